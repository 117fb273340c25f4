//! The expected cost of a barrier: LogP's closed forms, and the choice of an algorithm.
//!
//! With X = o_s + L + o_r, the time of one message from the start of its sending to the end of its reception, and G =
//! max(o_r, g), the time between the ends of two receptions at one member:
//!
//! | algorithm | time |
//! | --- | --- |
//! | shuffle exchange | log2 n · X [eth-barrier, §5.1.2] |
//! | dissemination with w ways | per round X + (w − 1) · max(o_s, G) |
//! | k-nomial tree and multicast | ⌈log_k n⌉ · (X + (k − 2) · G) + X [eth-barrier, §5.1.2] |
//! | heap of c children and multicast | depth · (X + (c − 1) · G) + X |
//! | concurrent | 2 X + (n − 2) · G |
//! | optimal tree and multicast | F(n) + X, N(F) = N(F − G) + N(F − X) \[karp93\] |
//! | pairwise, with members folded in | log2 m · X + 2 X |
//! | tournament | 2 ⌈log2 n⌉ · X |
//! | central | 2 X + (n − 2) · (G + max(o_s, g)) |
//!
//! *Deviation* from the paper: it counts o_r where two messages follow each other, which is right as long as the wire
//! is not slower, g ≤ o_r. It counts log3 n stages of its ternary tree, in which a parent has two children; these are
//! the stages of a trinomial tree, and a heap is deeper, which shows from 27 members on. The multicast exit uses the
//! multicast's own sending cost, if known.
//!
//! The closed forms assume that each member has its own processor. If members share processors, like processes on one
//! machine, a barrier takes at least its work: the cost of all sends and receptions, divided by the cores. The
//! [planner](plan) takes the larger of both.
//!
//! [`Readings`] of a live transport give its [parameters](MeasuredCosts), as in `NetBarrier::measure`; a [`Report`]
//! compares the expected and observed times of a barrier.

mod measured;
mod observed;
mod planner;

use std::{num::NonZeroU32, time::Duration};

#[cfg(not(loom))]
pub(crate) use self::observed::WaitHistory;
pub use self::{
    measured::{MeasuredCosts, Readings, Spread},
    observed::{ObservedWaits, Report},
    planner::{Advice, Candidate, CoreAllocation, candidates, plan},
};
use crate::{
    algorithm::{Algorithm, HopTiming, partners},
    group::Group,
};

/// The parameters of a transport between two members, and of its multicast [logp, §3].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LogP {
    /// o_s: how long sending a message occupies the sender.
    pub send: Duration,
    /// L: how long a message is under way while neither side does anything.
    pub latency: Duration,
    /// o_r: how long receiving a message occupies the receiver.
    pub receive: Duration,
    /// g: the minimum time between two messages of one sender, or to one receiver.
    pub gap: Duration,
    /// The cost of a multicast for its sender.
    pub multicast: Multicast,
    /// The time for which a member that polls for a message and finds none keeps a processor from the others that share it.
    /// Zero if members sleep while they wait, and by default.
    pub poll: Duration,
}

/// The cost of a multicast for its sender: a fixed part, and one per receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Multicast {
    /// a: independent of the receivers.
    pub base: Duration,
    /// b: per port that it leaves by. Zero if a switch does the copying.
    pub per_port: Duration,
}

impl Multicast {
    /// Creates a cost from both parts.
    #[must_use]
    pub const fn new(base: Duration, per_port: Duration) -> Self {
        Self { base, per_port }
    }

    /// Returns the cost of a multicast to that many ports.
    #[must_use]
    pub fn cost(self, ports: u32) -> Duration {
        self.base + self.per_port * ports
    }
}

impl LogP {
    /// The paper's library, over Fast Ethernet and a switch [eth-barrier, §5.1.1]. The gap is not the sender's, which
    /// the paper gives, but the one between messages to one receiver: zero, as it does not exceed o_r.
    pub const OF_THE_PAPER: Self = Self::new(
        Duration::from_micros(3),
        Duration::from_nanos(17_500),
        Duration::from_nanos(9500),
    )
    .with_gap(Duration::ZERO);

    /// Creates parameters from o_s, L and o_r; the gap is zero, and a multicast costs the same as a message.
    #[must_use]
    pub const fn new(send: Duration, latency: Duration, receive: Duration) -> Self {
        let multicast = Multicast::new(send, Duration::ZERO);
        let (gap, poll) = (Duration::ZERO, Duration::ZERO);
        Self { send, latency, receive, gap, multicast, poll }
    }

    /// Sets g.
    #[must_use]
    pub const fn with_gap(mut self, gap: Duration) -> Self {
        self.gap = gap;
        self
    }

    /// Sets the cost of a poll that finds nothing.
    #[must_use]
    pub const fn with_poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Sets the cost of a multicast.
    #[must_use]
    pub const fn with_multicast(mut self, multicast: Multicast) -> Self {
        self.multicast = multicast;
        self
    }

    /// Returns X = o_s + L + o_r: the time of one message.
    #[must_use]
    pub fn hop(&self) -> Duration {
        self.send + self.latency + self.receive
    }

    /// Returns G = max(o_r, g): the time between two receptions.
    #[must_use]
    pub fn reception(&self) -> Duration {
        self.receive.max(self.gap)
    }

    /// Returns the timing for which the [optimal tree](Algorithm::Optimal) is optimal.
    #[must_use]
    pub fn timing(&self) -> HopTiming {
        HopTiming::new(self.hop(), self.reception())
    }

    /// Returns the time of the multicast that tells all to leave.
    fn exit(&self, group: Group) -> Duration {
        self.multicast.cost(group.size() - 1) + self.latency + self.receive
    }

    /// Returns by the closed form how long a barrier takes from the last entry to the last exit, if each member has
    /// its own processor.
    ///
    /// Two networks share the messages to a receiver, but the receiver has one processor: unless the wire is the
    /// bottleneck, they gain nothing [eth-barrier, §5.2].
    #[must_use]
    pub fn predict(&self, algorithm: Algorithm, group: Group) -> Duration {
        let n = group.size();
        if n == 1 {
            return Duration::ZERO;
        }
        let (hop, reception) = (self.hop(), self.reception());
        match algorithm {
            // [eth-barrier, §5.1.2]: log2 n times the barrier of two.
            Algorithm::ShuffleExchange => hop * n.ilog2(),
            Algorithm::Pairwise => {
                let folded = if n.is_power_of_two() { 0 } else { 2 };
                hop * (n.ilog2() + folded)
            }
            Algorithm::Dissemination { ways } => {
                // A partner's message leaves after those to the partners before it, and arrives after theirs.
                let further = self.send.max(reception);
                let rounds = partners(n, u32::from(ways));
                rounds.map(|partners| hop + further * (partners - 1)).sum()
            }
            Algorithm::Nomial { k } => self.tree(n, u32::from(k)) + self.exit(group),
            Algorithm::Heap { children, .. } => {
                let children = u32::from(children);
                let stage = hop + reception * children.saturating_sub(1);
                stage * depth(n, children) + self.exit(group)
            }
            Algorithm::Concurrent { .. } => hop + reception * (n - 2) + self.exit(group),
            Algorithm::Optimal(timing) => {
                // The tree has the shape of the given timing, and is timed with this one.
                self.optimal(group, timing) + self.exit(group)
            }
            Algorithm::Tournament => hop * (2 * rounds(n, 2)),
            Algorithm::Central => hop * 2 + (reception + self.send.max(self.gap)) * (n - 2),
        }
    }

    /// Like [`predict`](Self::predict), for members that share `cores` and poll for their messages: each message of
    /// the chain waits until all others on its receiver's core have polled.
    #[must_use]
    pub fn predict_sharing(
        &self,
        algorithm: Algorithm,
        group: Group,
        cores: NonZeroU32,
    ) -> Duration {
        let others = f64::from(group.size()) / f64::from(cores.get()) - 1.0;
        let latency = self.latency + self.poll.mul_f64(others.max(0.0));
        Self { latency, ..*self }.predict(algorithm, group)
    }

    /// The time to gather by a tree in which k members combine into one per stage [eth-barrier, §5.1.2].
    fn tree(&self, n: u32, k: u32) -> Duration {
        (self.hop() + self.reception() * k.saturating_sub(2)) * rounds(n, k)
    }

    /// The time to gather by the tree that is optimal for `timing`, with this timing of messages.
    fn optimal(&self, group: Group, timing: HopTiming) -> Duration {
        if timing == self.timing() {
            timing.gather_time(group)
        } else {
            timing.gather_time_at(group, self.timing())
        }
    }

    /// Returns the total processor time of all members for a barrier.
    #[must_use]
    pub fn work(&self, algorithm: Algorithm, group: Group) -> Duration {
        let messages = algorithm.messages(group);
        let ports = group.size() - 1;
        let unicast = (self.send + self.receive).saturating_mul(narrow(messages.unicast));
        let multicast = self.multicast.cost(ports) + self.receive * ports;
        unicast + multicast.saturating_mul(narrow(messages.multicast))
    }
}

/// Returns ⌈log_k n⌉.
fn rounds(n: u32, k: u32) -> u32 {
    let (mut rounds, mut reached) = (0, 1_u64);
    while reached < u64::from(n) {
        reached *= u64::from(k.max(2));
        rounds += 1;
    }
    rounds
}

/// Returns the distance of a heap's last member from the master.
fn depth(n: u32, children: u32) -> u32 {
    let (mut depth, mut last) = (0, n - 1);
    while last > 0 {
        last = (last - 1) / children.max(1);
        depth += 1;
    }
    depth
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
