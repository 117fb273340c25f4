//! Random programs that are legal by MPI 5.0, section 3.5: none may hang, although a rank polls only the request that
//! it waits for.

use std::{collections::BTreeMap, io::IoSlice, task::Poll};

use vigie_via::{
    protocol::{EngineConfig, Pattern, Payload, RequestId, SendState},
    sim::FaultPlan,
    vi::{NicAttributes, Reliability},
};

use crate::{
    cluster::{Cluster, scarce, small},
    kit::seeds::for_each_seed,
    programs::{Step, Transfer, programs},
};

/// A run that takes more steps hangs.
const STEPS_MAX: usize = 400_000;

#[derive(Debug, Default)]
struct Rank {
    program: Vec<Step>,
    next: usize,
    /// The request of the step that waits.
    waiting: Option<RequestId>,
    found: Vec<u8>,
    sends: BTreeMap<usize, SendState>,
    receives: BTreeMap<usize, RequestId>,
}

struct Programs {
    cluster: Cluster,
    transfers: Vec<Transfer>,
    ranks: Vec<Rank>,
}

impl Programs {
    fn pattern(&self, number: usize) -> Pattern {
        let &Transfer { from, context, has_wildcard, .. } = &self.transfers[number];
        let source = (!has_wildcard).then_some(from);
        Pattern { context, source, tag: Some(u32::try_from(number).expect("few")) }
    }

    fn start_send(&mut self, number: usize, is_owned: bool) -> SendState {
        let &Transfer { from, to, context, mode, ref body, .. } = &self.transfers[number];
        let slices = [IoSlice::new(body)];
        let payload = if is_owned && number.is_multiple_of(3) {
            let memory = self.cluster.engine(from).buffer(body.len().max(1)).expect("memory");
            memory.write(0, body).expect("inside");
            Payload::Memory { memory, offset: 0, length: body.len() as u64 }
        } else if is_owned {
            Payload::Owned(body.clone())
        } else {
            Payload::Borrowed(&slices)
        };
        let tag = u32::try_from(number).expect("few");
        self.cluster.engine(from).send(to, context, tag, mode, payload).expect("the send begins")
    }

    /// Returns whether a send is done.
    fn has_sent(&mut self, number: usize, state: SendState, is_owned: bool) -> bool {
        let SendState::Pending(id) = state else { return true };
        let Transfer { from, body, .. } = &self.transfers[number];
        let slices = [IoSlice::new(body)];
        let engine = self.cluster.engine(*from);
        match engine.poll_send(id, (!is_owned).then_some(&slices[..])) {
            Poll::Ready(result) => result.map(|()| true).expect("sent"),
            Poll::Pending => false,
        }
    }

    /// Returns whether a receive is done, and checks its message.
    fn has_received(&mut self, rank: usize, number: usize, id: RequestId) -> bool {
        let mut found = std::mem::take(&mut self.ranks[rank].found);
        let engine = &mut self.cluster.engines[rank];
        let Poll::Ready(result) = engine.poll_receive(id, &mut found) else {
            self.ranks[rank].found = found;
            return false;
        };
        assert_eq!(result.expect("received").source, self.transfers[number].from);
        assert!(found == self.transfers[number].body, "message {number}");
        true
    }

    /// Carries on with a rank's program. Returns whether a step was done.
    fn carry_on(&mut self, rank: usize) -> bool {
        let Some(&step) = self.ranks[rank].program.get(self.ranks[rank].next) else { return false };
        let is_done = match step {
            Step::StartSend(number) => {
                let state = self.start_send(number, true);
                self.ranks[rank].sends.insert(number, state);
                true
            }
            Step::WaitSend(number) => {
                let state = self.ranks[rank].sends[&number];
                self.has_sent(number, state, true)
            }
            Step::Send(number) => {
                let begun = self.ranks[rank].sends.get(&number).copied();
                let state = begun.unwrap_or_else(|| self.start_send(number, false));
                self.ranks[rank].sends.insert(number, state);
                self.has_sent(number, state, false)
            }
            Step::StartReceive(number) => {
                let pattern = self.pattern(number);
                let id = self.cluster.engines[rank].post_receive(pattern);
                self.ranks[rank].receives.insert(number, id);
                true
            }
            Step::WaitReceive(number) => {
                let id = self.ranks[rank].receives[&number];
                self.has_received(rank, number, id)
            }
            Step::Receive(number) => {
                let pattern = self.pattern(number);
                let waiting = self.ranks[rank].waiting;
                let id =
                    waiting.unwrap_or_else(|| self.cluster.engines[rank].post_receive(pattern));
                self.ranks[rank].waiting = Some(id);
                self.has_received(rank, number, id)
            }
        };
        if is_done {
            self.ranks[rank].next += 1;
            self.ranks[rank].waiting = None;
        }
        is_done
    }

    fn run(&mut self, random: &mut fastrand::Rng) {
        for _ in 0..STEPS_MAX {
            let mut has_worked = false;
            for rank in 0..self.ranks.len() {
                // A rank may compute for a while between two steps.
                has_worked |= random.bool() && self.carry_on(rank);
            }
            if has_worked || self.cluster.tick() {
                continue;
            }
            // A poll may send more, although its step is not done.
            if (0..self.ranks.len()).any(|rank| self.carry_on(rank)) || self.cluster.tick() {
                continue;
            }
            let left: Vec<_> = self.ranks.iter().map(|rank| rank.program.get(rank.next)).collect();
            assert!(left.iter().all(Option::is_none), "these steps hang: {left:?}");
            for engine in &self.cluster.engines {
                assert_eq!((engine.kept(), engine.has_all_left()), (0, true), "{}", engine.rank());
            }
            return;
        }
        panic!("never quiet");
    }
}

/// Goal: no legal program hangs, and each receive gets its message. Method: random programs of sends and receives that
/// block or are started before and waited for later, of which only the one that a rank waits for is polled; over VIs of
/// both kinds, with tight limits and without, with mapped memory and without, connected before or on demand.
#[test]
fn random_legal_programs_end() {
    for_each_seed(150, |seed| {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (mut config, mut attributes) = (EngineConfig::default(), NicAttributes::named("sim"));
        if random.bool() {
            (config, attributes) = (small(), scarce());
            config = config.staging_frames(2);
            config = config.unexpected_bytes_max(random.u64(0..4000));
            config = config.unexpected_messages_max(random.u32(0..20));
            config = config.held_bytes_max(random.u64(0..4000));
        }
        attributes.has_window = random.bool();
        let mut plan = FaultPlan::reliable();
        if random.u32(0..4) == 0 {
            config = config.reliability(Reliability::Unreliable);
            plan = FaultPlan::lossy(0.05);
        }
        let size = random.u32(1..5);
        let (transfers, programs) = programs(random, size, 30);
        let ranks =
            programs.into_iter().map(|program| Rank { program, ..Rank::default() }).collect();
        let make = if random.bool() { Cluster::with } else { Cluster::on_demand };
        let cluster = make(seed, plan, size, config, attributes);
        Programs { cluster, transfers, ranks }.run(random);
    });
}
