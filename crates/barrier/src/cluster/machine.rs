//! The member state machine as the program of a node: the same state machine that real transports drive.

use std::collections::BTreeMap;

use vigie_detect::Instant;

use super::program::{Action, Program};
use crate::member::{Event, Member, Transmit};
use crate::packet::{Body, Packet};
use crate::schedule::{Round, Step};

/// A [`Member`], with its recovery, on a simulated node.
///
/// The state machine acts as soon as a packet is there; the node makes it wait for the processor. Each `Receive` step
/// of its schedule costs a wait, as with the bare steps.
#[derive(Debug)]
pub struct MemberProgram {
    member: Member,
    /// The number of `Receive` steps before each send of the schedule, by round.
    before: BTreeMap<Round, u32>,
    /// The number of `Receive` steps among the first n steps.
    receives: Vec<u32>,
    /// The waits of this barrier that have been paid for.
    paid: u32,
    /// The barrier that the program is in, or enters next.
    epoch: u32,
    /// A packet to send once its waits are paid for.
    held: Option<Transmit>,
    /// The state machine has left the barrier; the program leaves when its waits are paid for.
    is_leaving: bool,
}

impl MemberProgram {
    /// Takes a member that is outside its first barrier and has no reduction.
    #[must_use]
    pub fn new(member: Member) -> Self {
        let mut before = BTreeMap::new();
        let mut receives = vec![0];
        let mut count = 0;
        for step in member.schedule().steps(member.rank()) {
            match step {
                Step::Send { round, .. } => _ = before.insert(*round, count),
                Step::Receive(_) => count += 1,
            }
            receives.push(count);
        }
        let epoch = member.epoch();
        Self { member, before, receives, paid: 0, epoch, held: None, is_leaving: false }
    }

    /// The number of waits before a packet; 0 before one that is not a message of this barrier's schedule.
    fn waits_before(&self, transmit: &Transmit) -> u32 {
        // Packets with tags are not parsed: their waits are paid for later.
        let Ok(packet) = Packet::parse(&transmit.packet, None) else { return 0 };
        match packet.body {
            Body::Signal { round, .. } if packet.epoch == self.epoch => {
                self.before.get(&round).copied().unwrap_or(0)
            }
            _ => 0,
        }
    }
}

impl MemberProgram {
    /// The number of waits of this barrier that have ended.
    fn waits_over(&self) -> u32 {
        match self.member.steps_done() {
            Some(steps) => self.receives.get(steps).copied().unwrap_or(0),
            None if self.is_leaving => self.receives.last().copied().unwrap_or(0),
            None => 0,
        }
    }
}

impl Program for MemberProgram {
    type Message = Vec<u8>;

    fn enter(&mut self, now_ns: u64) {
        // It is called only outside a barrier; other failures are reported as events.
        _ = self.member.enter(Instant::from_nanos(now_ns), &[]);
        self.paid = 0;
    }

    fn next(&mut self, _now_ns: u64) -> Action<Self::Message> {
        let transmit = self.held.take().or_else(|| self.member.poll_transmit());
        match transmit {
            Some(transmit) if self.waits_before(&transmit) <= self.paid => {
                let Transmit { to, network, packet } = transmit;
                return Action::Send { to, network, message: packet };
            }
            transmit => self.held = transmit,
        }
        match self.member.poll_event() {
            Some(Event::Exited { .. }) => self.is_leaving = true,
            Some(event) => return Action::Failed(format!("{event:?}")),
            None => {}
        }
        if self.paid < self.waits_over() {
            self.paid += 1;
            return Action::Waited;
        }
        if !self.is_leaving {
            return Action::Blocked;
        }
        self.is_leaving = false;
        self.epoch = self.epoch.wrapping_add(1);
        Action::Exit
    }

    fn deliver(&mut self, now_ns: u64, message: Self::Message) {
        // Useless packets are counted by the member.
        _ = self.member.receive(Instant::from_nanos(now_ns), &message);
    }

    fn next_deadline(&self) -> Option<u64> {
        self.member.next_deadline().map(Instant::as_nanos)
    }

    fn handle_deadline(&mut self, now_ns: u64) {
        self.member.handle_deadline(Instant::from_nanos(now_ns));
    }
}
