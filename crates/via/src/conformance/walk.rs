//! Random sequences of transfers on several connections at once, against an oracle.

use std::{collections::VecDeque, io::IoSlice};

use super::{
    Clause, Fixture, Violation,
    testbed::{ConformanceCase, Party, Queues, REGION_BYTES, Testbed, descriptor},
};
use crate::vi::{
    Completion, Data, MemoryAttributes, Operation, Provider, Queue, Region, SendDescriptor, Status,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    vec![("walks", walks)]
}

use super::violation::CaseResult;

/// The number of steps of a walk.
const STEPS: usize = 600;

/// The most descriptors of one queue in flight, and the size of each one's place. This many places are
/// half of a region: one half is for messages, the other for writes.
const WINDOW: u64 = 16;
const PLACE_BYTES: u64 = 256;
const WRITES_AT: u64 = WINDOW * PLACE_BYTES;

/// A message in flight, as the receiver must find it.
struct SentMessage {
    bytes: Vec<u8>,
    immediate: Option<i32>,
    /// The destination of a write; a send goes where its receive descriptor says.
    offset: Option<u64>,
}

/// One end of a connection, and the completions that are due to it.
struct ExpectedCompletions {
    party: Party,
    source: Region,
    peer: usize,
    /// Receive descriptors posted here so far, and messages sent to them.
    posted: u64,
    addressed: u64,
    received: u64,
    messages: VecDeque<SentMessage>,
    /// Send descriptors posted here so far, and those whose completions were taken.
    sent: u64,
    told: u64,
}

fn walks<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let seeds = testbed.profile.seeds.clone();
    for seed in seeds {
        walk(testbed, seed).map_err(|violation| match violation {
            Violation::Broken { clause, saw, at } => {
                Violation::Broken { clause, saw: format!("{saw}; seed {seed}"), at }
            }
            other => other,
        })?;
    }
    Ok(())
}

fn walk<F: Fixture>(testbed: &mut Testbed<'_, F>, seed: u64) -> CaseResult {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ends = ends(testbed)?;
    for _ in 0..STEPS {
        let index = random.usize(0..ends.len());
        match random.u8(0..8) {
            0..=2 => receive(testbed, &mut ends[index])?,
            3..=5 => send(testbed, &mut ends, index, &mut random)?,
            6 => {
                testbed.step();
            }
            _ => {
                let nic = ends[index].party.nic;
                let Some(cq) = ends[index].party.send_cq else { continue };
                while let Some(found) = testbed.nics[nic].poll_cq(cq) {
                    judge(testbed, &mut ends, nic, &found)?;
                }
            }
        }
    }

    while let Some(end) = ends.iter().find(|end| end.told < end.sent || !end.messages.is_empty()) {
        let party = end.party.clone();
        let found = testbed.completion(&party, Queue::Send)?;
        judge(testbed, &mut ends, party.nic, &found)?;
    }

    for end in &ends {
        testbed.expect_no_completion(Clause::Once, &end.party, Queue::Send)?;
    }
    Ok(())
}

/// Makes three NICs, each connected with each, with one completion queue each.
fn ends<F: Fixture>(testbed: &mut Testbed<'_, F>) -> Result<Vec<ExpectedCompletions>, Violation> {
    let mut queues = Vec::new();
    for nic in 0..3 {
        let cq = testbed.nics[nic].create_cq();
        queues.push(Queues::Given(testbed.call(Clause::Name, "create_cq", cq)?));
    }

    let mut ends: Vec<ExpectedCompletions> = Vec::new();
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        let parties = [testbed.party(one, queues[one])?, testbed.party(other, queues[other])?];
        testbed.connect(&parties[0], &parties[1])?;
        let first = ends.len();
        for (party, peer) in parties.into_iter().zip([first + 1, first]) {
            let source =
                testbed.region(party.nic, MemoryAttributes::private(party.tag), REGION_BYTES)?;
            ends.push(ExpectedCompletions {
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

fn receive<F: Fixture>(testbed: &mut Testbed<'_, F>, end: &mut ExpectedCompletions) -> CaseResult {
    if end.posted - end.received == WINDOW {
        return Ok(());
    }
    let place = end.party.piece(end.posted % WINDOW * PLACE_BYTES, PLACE_BYTES);
    testbed.post_receive(&end.party, end.posted, &[place])?;
    end.posted += 1;
    Ok(())
}

/// Sends a message or writes, if the peer has a receive descriptor for it.
fn send<F: Fixture>(
    testbed: &mut Testbed<'_, F>,
    ends: &mut [ExpectedCompletions],
    index: usize,
    random: &mut fastrand::Rng,
) -> CaseResult {
    let peer = ends[index].peer;
    let (posted, addressed) = (ends[peer].posted, ends[peer].addressed);
    let ExpectedCompletions { party, source, sent, told, .. } = &ends[index];
    if addressed == posted || sent - told == WINDOW {
        return Ok(());
    }
    let most = PLACE_BYTES.min(testbed.attributes().inline_bytes_max);
    let length = if random.bool() { random.u64(0..=most) } else { random.u64(0..=most.min(16)) };
    let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
    let from = sent % WINDOW * PLACE_BYTES;
    testbed.put(source, from, &bytes)?;
    let segments = [crate::vi::LocalSegment { memory: source.handle, offset: from, length }];
    let pieces = [IoSlice::new(&bytes)];
    let data = if random.bool() { Data::Segments(&segments) } else { Data::Inline(&pieces) };
    let offset = random.bool().then_some(WRITES_AT + addressed % WINDOW * PLACE_BYTES);
    let operation = if offset.is_some() { Operation::RdmaWrite } else { Operation::Send };
    // A write without immediate data would be invisible to the peer.
    let immediate = (offset.is_some() || random.bool()).then(|| random.i32(..));
    let remote = offset.map(|offset| ends[peer].party.place(offset));
    let posted = SendDescriptor { immediate, ..descriptor(operation, *sent, remote, data) };
    testbed.post(party, &posted)?;
    ends[index].sent += 1;
    ends[peer].addressed += 1;
    ends[peer].messages.push_back(SentMessage { bytes, immediate, offset });
    Ok(())
}

/// Compares a completion with the one that is due.
fn judge<F: Fixture>(
    testbed: &Testbed<'_, F>,
    ends: &mut [ExpectedCompletions],
    nic: usize,
    found: &Completion,
) -> CaseResult {
    let is_it = |end: &&mut ExpectedCompletions| end.party.nic == nic && end.party.vi == found.vi;
    let Some(end) = ends.iter_mut().find(is_it) else {
        return Err(testbed.broken(Clause::Once, format!("{found:?} of no VI")));
    };
    testbed.expect(Clause::Status, "the status", &found.status, &Status::Done)?;
    if found.queue == Queue::Send {
        testbed.expect(Clause::Order, "whose completion", &found.cookie, &end.told)?;
        end.told += 1;
        return Ok(());
    }

    let Some(message) = end.messages.pop_front() else {
        return Err(testbed.broken(Clause::Once, format!("{found:?}, but nothing was sent")));
    };
    testbed.expect(Clause::Order, "whose completion", &found.cookie, &end.received)?;
    testbed.expect(Clause::Placement, "immediate data", &found.immediate, &message.immediate)?;
    let length = usize::try_from(found.length).unwrap_or(usize::MAX);
    testbed.expect(Clause::Placement, "the length", &length, &message.bytes.len())?;
    let offset = message.offset.unwrap_or(end.received % WINDOW * PLACE_BYTES);
    let bytes = testbed.get(&end.party.region, offset, length)?;
    testbed.expect(Clause::Placement, "the data", &bytes, &message.bytes)?;
    end.received += 1;
    Ok(())
}
