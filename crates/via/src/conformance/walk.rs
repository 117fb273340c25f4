//! Random sequences of transfers on several connections at once, against an oracle.

use std::{collections::VecDeque, io::IoSlice};

use super::{
    Case, Clause, Fixture, Violation,
    stage::{Party, Queues, REGION_BYTES, Stage, descriptor},
};
use crate::vi::{
    Completion, Data, MemoryAttributes, Operation, Provider, Queue, Region, SendDescriptor, Status,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, Case<F>)> {
    vec![("walks", walks)]
}

type Judged = Result<(), Violation>;

/// How many steps one walk has.
const STEPS: usize = 600;

/// How many descriptors of one queue are under way at most, and the size of the place of each. So many
/// places are half of a region: one half is for messages, the other for writes.
const WINDOW: u64 = 16;
const PLACE_BYTES: u64 = 256;
const WRITES_AT: u64 = WINDOW * PLACE_BYTES;

/// A message under way, as the receiver has to find it.
struct Message {
    bytes: Vec<u8>,
    immediate: Option<i32>,
    /// Where a write goes; a send goes where its receive descriptor says.
    offset: Option<u64>,
}

/// One end of a connection, and what it is owed.
struct Owed {
    party: Party,
    source: Region,
    peer: usize,
    /// Receive descriptors posted here so far, and messages that were sent here.
    posted: u64,
    addressed: u64,
    received: u64,
    messages: VecDeque<Message>,
    /// Send descriptors posted here so far, and those whose completions were taken.
    sent: u64,
    told: u64,
}

fn walks<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let seeds = stage.profile.seeds.clone();
    for seed in seeds {
        walk(stage, seed).map_err(|violation| match violation {
            Violation::Broken { clause, saw, at } => {
                Violation::Broken { clause, saw: format!("{saw}; seed {seed}"), at }
            }
            other => other,
        })?;
    }
    Ok(())
}

fn walk<F: Fixture>(stage: &mut Stage<'_, F>, seed: u64) -> Judged {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ends = ends(stage)?;
    for _ in 0..STEPS {
        let index = random.usize(0..ends.len());
        match random.u8(0..8) {
            0..=2 => receive(stage, &mut ends[index])?,
            3..=5 => send(stage, &mut ends, index, &mut random)?,
            6 => {
                stage.step();
            }
            _ => {
                let nic = ends[index].party.nic;
                let Some(cq) = ends[index].party.send_cq else { continue };
                while let Some(found) = stage.nics[nic].poll(cq) {
                    judge(stage, &mut ends, nic, &found)?;
                }
            }
        }
    }
    while let Some(end) = ends.iter().find(|end| end.told < end.sent || !end.messages.is_empty()) {
        let party = end.party.clone();
        let found = stage.completion(&party, Queue::Send)?;
        judge(stage, &mut ends, party.nic, &found)?;
    }
    for end in &ends {
        stage.expect_no_completion(Clause::Once, &end.party, Queue::Send)?;
    }
    Ok(())
}

/// Three NICs, each connected with each, one completion queue on each.
fn ends<F: Fixture>(stage: &mut Stage<'_, F>) -> Result<Vec<Owed>, Violation> {
    let mut queues = Vec::new();
    for nic in 0..3 {
        let cq = stage.nics[nic].create_cq();
        queues.push(Queues::Given(stage.call(Clause::Name, "create_cq", cq)?));
    }
    let mut ends: Vec<Owed> = Vec::new();
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        let parties = [stage.party(one, queues[one])?, stage.party(other, queues[other])?];
        stage.connect(&parties[0], &parties[1])?;
        let first = ends.len();
        for (party, peer) in parties.into_iter().zip([first + 1, first]) {
            let source =
                stage.region(party.nic, MemoryAttributes::private(party.tag), REGION_BYTES)?;
            ends.push(Owed {
                party,
                source,
                peer,
                posted: 0,
                addressed: 0,
                received: 0,
                messages: VecDeque::new(),
                sent: 0,
                told: 0,
            });
        }
    }
    Ok(ends)
}

fn receive<F: Fixture>(stage: &mut Stage<'_, F>, end: &mut Owed) -> Judged {
    if end.posted - end.received == WINDOW {
        return Ok(());
    }
    let place = end.party.piece(end.posted % WINDOW * PLACE_BYTES, PLACE_BYTES);
    stage.post_receive(&end.party, end.posted, &[place])?;
    end.posted += 1;
    Ok(())
}

/// Sends a message or writes, if the peer has a receive descriptor for it.
fn send<F: Fixture>(
    stage: &mut Stage<'_, F>,
    ends: &mut [Owed],
    index: usize,
    random: &mut fastrand::Rng,
) -> Judged {
    let peer = ends[index].peer;
    let (posted, addressed) = (ends[peer].posted, ends[peer].addressed);
    let Owed { party, source, sent, told, .. } = &ends[index];
    if addressed == posted || sent - told == WINDOW {
        return Ok(());
    }
    let most = PLACE_BYTES.min(stage.attributes().max_inline);
    let length = if random.bool() { random.u64(0..=most) } else { random.u64(0..=most.min(16)) };
    let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
    let from = sent % WINDOW * PLACE_BYTES;
    stage.put(source, from, &bytes)?;
    let segments = [crate::vi::LocalSegment { memory: source.handle, offset: from, length }];
    let pieces = [IoSlice::new(&bytes)];
    let data = if random.bool() { Data::Segments(&segments) } else { Data::Inline(&pieces) };
    let offset = random.bool().then_some(WRITES_AT + addressed % WINDOW * PLACE_BYTES);
    let operation = if offset.is_some() { Operation::RdmaWrite } else { Operation::Send };
    // A write without immediate data would tell nobody.
    let immediate = (offset.is_some() || random.bool()).then(|| random.i32(..));
    let remote = offset.map(|offset| ends[peer].party.place(offset));
    let posted = SendDescriptor { immediate, ..descriptor(operation, *sent, remote, data) };
    stage.post(party, &posted)?;
    ends[index].sent += 1;
    ends[peer].addressed += 1;
    ends[peer].messages.push_back(Message { bytes, immediate, offset });
    Ok(())
}

/// Compares a completion with what is owed.
fn judge<F: Fixture>(
    stage: &Stage<'_, F>,
    ends: &mut [Owed],
    nic: usize,
    found: &Completion,
) -> Judged {
    let is_it = |end: &&mut Owed| end.party.nic == nic && end.party.vi == found.vi;
    let Some(end) = ends.iter_mut().find(is_it) else {
        return Err(stage.broken(Clause::Once, format!("{found:?} of no VI")));
    };
    stage.expect(Clause::Status, "the status", &found.status, &Status::Done)?;
    if found.queue == Queue::Send {
        stage.expect(Clause::Order, "whose completion", &found.cookie, &end.told)?;
        end.told += 1;
        return Ok(());
    }
    let Some(message) = end.messages.pop_front() else {
        return Err(stage.broken(Clause::Once, format!("{found:?}, but nothing was sent")));
    };
    stage.expect(Clause::Order, "whose completion", &found.cookie, &end.received)?;
    stage.expect(Clause::Placement, "immediate data", &found.immediate, &message.immediate)?;
    let length = usize::try_from(found.length).unwrap_or(usize::MAX);
    stage.expect(Clause::Placement, "the length", &length, &message.bytes.len())?;
    let offset = message.offset.unwrap_or(end.received % WINDOW * PLACE_BYTES);
    let bytes = stage.get(&end.party.region, offset, length)?;
    stage.expect(Clause::Placement, "the data", &bytes, &message.bytes)?;
    end.received += 1;
    Ok(())
}
