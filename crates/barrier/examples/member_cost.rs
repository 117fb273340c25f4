//! The cost of recovery while nothing is lost: the processor time of the member machine for one message, beside that of a
//! machine that knows no epochs, keeps nothing for repeats and has no deadline.
//!
//! Prediction: some tens of nanoseconds a message, against the 6 to 8 µs of sending and receiving a datagram: about 1 %
//! at most. Found: 30 to 65.
//! Method: all members of a group in one thread, whose packets are handed over in memory; both machines read and write
//! the same packets; the best of 40 runs of 500 barriers each, both in turn.
//!
//! `cargo run --release -p vigie-barrier --example member_cost` prints one line for each algorithm and size, like
//! `dissemination   32 members: 160 messages, plain 131 ns, with recovery 160 ns a message, 29 ns more`.

use std::{collections::VecDeque, error::Error, sync::Arc, time::Duration};

use vigie_barrier::{
    Algorithm, Group, Member, Rank, Schedule, Step, Target,
    member::{Event, MemberConfig},
    packet::{Body, GroupId, Packet},
};
use vigie_detect::Instant;

const GROUP: GroupId = GroupId(0x0bad_cafe_0bad_cafe);
const BARRIERS: u32 = 500;
const RUNS: usize = 40;

/// A member that trusts the network: no message is lost, repeated or late.
struct Plain {
    schedule: Arc<Schedule>,
    rank: Rank,
    step: usize,
    /// The messages that have arrived, which are few.
    arrived: Vec<(Rank, u16)>,
}

impl Plain {
    /// Goes on as far as possible. Returns whether it has left.
    fn advance(&mut self, outbox: &mut VecDeque<(Rank, Target, Vec<u8>)>) -> bool {
        let schedule = Arc::clone(&self.schedule);
        while let Some(step) = schedule.steps(self.rank).get(self.step) {
            match step {
                Step::Send { to, round, .. } => {
                    let body = Body::Signal { round: *round, value: &[] };
                    let packet = Packet::new(GROUP, 0, self.rank, body).encode(None);
                    outbox.push_back((self.rank, *to, packet));
                }
                Step::Receive(sources) => {
                    let is_there = |source: &vigie_barrier::Source| {
                        self.arrived.contains(&(source.rank, source.round.0))
                    };
                    if !sources.iter().all(is_there) {
                        return false;
                    }
                    self.arrived.retain(|name| {
                        !sources.iter().any(|source| (source.rank, source.round.0) == *name)
                    });
                }
                _ => {}
            }
            self.step += 1;
        }
        self.step = 0;
        true
    }
}

/// Hands everything over that is said. Returns how many packets that were.
fn plain_barrier(members: &mut [Plain]) -> usize {
    let (mut outbox, mut exits, mut handed) = (VecDeque::new(), 0, 0);
    for member in &mut *members {
        exits += usize::from(member.advance(&mut outbox));
    }
    while let Some((from, to, packet)) = outbox.pop_front() {
        for member in &mut *members {
            let is_for = to == Target::Member(member.rank)
                || (to == Target::Everyone && member.rank != from);
            if !is_for {
                continue;
            }
            handed += 1;
            let Ok(Packet { group: GROUP, sender, body: Body::Signal { round, .. }, .. }) =
                Packet::parse(&packet, None)
            else {
                continue;
            };
            member.arrived.push((sender, round.0));
            exits += usize::from(member.advance(&mut outbox));
        }
    }
    assert_eq!(exits, members.len(), "all have left");
    handed
}

fn full_barrier(members: &mut [Member], now: Instant) -> Result<usize, Box<dyn Error>> {
    let (mut outbox, mut exits, mut handed) = (VecDeque::new(), 0, 0);
    let drain = |member: &mut Member, outbox: &mut VecDeque<_>| {
        while let Some(transmit) = member.poll_transmit() {
            outbox.push_back((member.rank(), transmit.to, transmit.packet));
        }
        usize::from(matches!(member.poll_event(), Some(Event::Exited { .. })))
    };
    for member in &mut *members {
        member.enter(now, &[])?;
        exits += drain(member, &mut outbox);
    }
    while let Some((from, to, packet)) = outbox.pop_front() {
        for member in &mut *members {
            let rank = member.rank();
            if to == Target::Member(rank) || (to == Target::Everyone && rank != from) {
                handed += 1;
                member.receive(now, &packet)?;
                exits += drain(member, &mut outbox);
            }
        }
    }
    assert_eq!(exits, members.len(), "all have left");
    Ok(handed)
}

fn main() -> Result<(), Box<dyn Error>> {
    // Algorithms in which no member waits for many at once: the plain machine keeps its messages in a list.
    for algorithm in [Algorithm::DISSEMINATION, Algorithm::BINARY, Algorithm::TERNARY] {
        for size in [2, 8, 32] {
            let group = Group::new(size)?;
            let schedule = Arc::new(algorithm.schedule(group)?);
            let mut plain: Vec<Plain> = group
                .ranks()
                .map(|rank| Plain {
                    schedule: Arc::clone(&schedule),
                    rank,
                    step: 0,
                    arrived: Vec::new(),
                })
                .collect();
            let config = MemberConfig::new(GROUP);
            let mut full: Vec<Member> = group
                .ranks()
                .map(|rank| Member::new(Arc::clone(&schedule), rank, config.clone()))
                .collect::<Result<_, _>>()?;
            let (mut best_plain, mut best_full, mut messages) = (Duration::MAX, Duration::MAX, 0);
            for _ in 0..RUNS {
                let start = Instant::now();
                for _ in 0..BARRIERS {
                    messages = plain_barrier(&mut plain);
                }
                best_plain = best_plain.min(start.elapsed());
                let start = Instant::now();
                for _ in 0..BARRIERS {
                    // A transport reads the clock for its packets anyway.
                    assert_eq!(full_barrier(&mut full, start)?, messages);
                }
                best_full = best_full.min(start.elapsed());
            }
            assert!(full.iter().all(|member| member.counters().nacks == 0), "nothing extra");
            let each = |time: Duration| {
                time.as_secs_f64() * 1e9
                    / f64::from(BARRIERS)
                    / f64::from(u32::try_from(messages).unwrap_or(1))
            };
            let (plain, full) = (each(best_plain), each(best_full));
            println!(
                "{algorithm:15} {size:2} members: {messages:3} messages, plain {plain:.0} ns, with recovery {full:.0} ns a \
                 message, {:.0} ns more",
                full - plain
            );
        }
    }
    Ok(())
}
