//! What a barrier should cost: LogP's closed forms, and the choice of an algorithm.
//!
//! With X = o_s + L + o_r, the way of one message from the beginning of its sending to the end of its reception, and
//! G = max(o_r, g), the time between the ends of two receptions at one member:
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
//! *Deviation* from the paper: it counts o_r where two messages come one after the other, which is right as long as the
//! wire is not slower, g ≤ o_r. It counts log3 n stages of its ternary tree, in which a parent has two children; these
//! are the stages of a trinomial tree, and a heap is deeper, which shows from 27 members on. The exit by multicast takes the multicast's own cost for sending, if that is known.
//!
//! The closed forms suppose that each member has a processor of its own. Where they share few, as processes on one
//! machine do, a barrier takes at least its work: what all sendings and receptions cost together, divided by the cores.
//! The [planner](plan) takes the larger of both.
//!
//! [`Readings`] of a live transport give its [parameters](Measured), as `NetBarrier::measure` does; a [`Report`] says what a
//! barrier was expected to take, and what it took.

mod measured;
mod observed;
mod planner;

use std::{num::NonZeroU32, time::Duration};

#[cfg(not(loom))]
pub(crate) use self::observed::Waits;
pub use self::{
    measured::{Measured, Readings, Spread},
    observed::{Observed, Report},
    planner::{Advice, Candidate, Cores, PlanError, candidates, plan},
};
use crate::{
    algorithm::{Algorithm, Pace, partners},
    group::Group,
};

/// The parameters of a transport between two members, and of its multicast [logp, §3].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LogP {
    /// o_s: for so long sending a message occupies the sender.
    pub send: Duration,
    /// L: for so long a message is under way, while neither side does anything.
    pub latency: Duration,
    /// o_r: for so long receiving a message occupies the receiver.
    pub receive: Duration,
    /// g: at least so much time is between two messages of one sender, or to one receiver.
    pub gap: Duration,
    /// What a multicast costs its sender.
    pub multicast: Multicast,
    /// For so long a member that looks for a message, and finds none, keeps a processor from the others that share it. Zero
    /// where members sleep while they wait, and by default.
    pub look: Duration,
}

/// What a multicast costs its sender: a fixed part, and one for each receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Multicast {
    /// a: whoever receives it.
    pub base: Duration,
    /// b: for each port that it leaves by. Nothing where a switch does the copying.
    pub per_port: Duration,
}

impl Multicast {
    /// Takes both parts.
    #[must_use]
    pub const fn new(base: Duration, per_port: Duration) -> Self {
        Self { base, per_port }
    }

    /// Returns what a multicast to so many costs.
    #[must_use]
    pub fn cost(self, ports: u32) -> Duration {
        self.base + self.per_port * ports
    }
}

impl LogP {
    /// The library of the paper, over Fast Ethernet and a switch [eth-barrier, §5.1.1]. The gap is not the sender's, which
    /// the paper gives, but what keeps messages to one receiver apart: nothing that is longer than o_r.
    pub const OF_THE_PAPER: Self = Self::new(
        Duration::from_micros(3),
        Duration::from_nanos(17_500),
        Duration::from_nanos(9500),
    )
    .with_gap(Duration::ZERO);

    /// Takes o_s, L and o_r; there is no gap, and a multicast costs what a message costs.
    #[must_use]
    pub const fn new(send: Duration, latency: Duration, receive: Duration) -> Self {
        let multicast = Multicast::new(send, Duration::ZERO);
        let (gap, look) = (Duration::ZERO, Duration::ZERO);
        Self { send, latency, receive, gap, multicast, look }
    }

    /// Takes g.
    #[must_use]
    pub const fn with_gap(mut self, gap: Duration) -> Self {
        self.gap = gap;
        self
    }

    /// Takes what a look that finds nothing costs.
    #[must_use]
    pub const fn with_look(mut self, look: Duration) -> Self {
        self.look = look;
        self
    }

    /// Takes the cost of a multicast.
    #[must_use]
    pub const fn with_multicast(mut self, multicast: Multicast) -> Self {
        self.multicast = multicast;
        self
    }

    /// Returns X = o_s + L + o_r: the way of one message.
    #[must_use]
    pub fn hop(&self) -> Duration {
        self.send + self.latency + self.receive
    }

    /// Returns G = max(o_r, g): the time between two receptions.
    #[must_use]
    pub fn reception(&self) -> Duration {
        self.receive.max(self.gap)
    }

    /// Returns the pace for which the [optimal tree](Algorithm::Optimal) is optimal.
    #[must_use]
    pub fn pace(&self) -> Pace {
        Pace::new(self.hop(), self.reception())
    }

    /// Returns how long the multicast that tells all to leave takes.
    fn exit(&self, group: Group) -> Duration {
        self.multicast.cost(group.size() - 1) + self.latency + self.receive
    }

    /// Returns by the closed form how long a barrier takes from the last entry to the last exit, if each member has a
    /// processor of its own.
    ///
    /// Two networks share what one would bring to a receiver, but the receiver's processor is one: where the wire is not
    /// the bottleneck, they are no gain [eth-barrier, §5.2].
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
                // A partner's message leaves behind those to the partners before it, and comes behind theirs.
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
            Algorithm::Optimal(pace) => {
                // The shape is that of the given pace; it is walked at this one's.
                self.optimal(group, pace) + self.exit(group)
            }
            Algorithm::Tournament => hop * (2 * rounds(n, 2)),
            Algorithm::Central => hop * 2 + (reception + self.send.max(self.gap)) * (n - 2),
        }
    }

    /// As [`predict`](Self::predict), for members that share so many cores and look for their messages: each message of the
    /// chain waits until all the others on its receiver's core have had a look.
    #[must_use]
    pub fn predict_sharing(
        &self,
        algorithm: Algorithm,
        group: Group,
        cores: NonZeroU32,
    ) -> Duration {
        let others = f64::from(group.size()) / f64::from(cores.get()) - 1.0;
        let latency = self.latency + self.look.mul_f64(others.max(0.0));
        Self { latency, ..*self }.predict(algorithm, group)
    }

    /// Gathering by a tree in which k members become one in each stage [eth-barrier, §5.1.2].
    fn tree(&self, n: u32, k: u32) -> Duration {
        (self.hop() + self.reception() * k.saturating_sub(2)) * rounds(n, k)
    }

    /// Gathering by the tree that is optimal for some pace, at the pace that messages have here.
    fn optimal(&self, group: Group, pace: Pace) -> Duration {
        if pace == self.pace() {
            pace.gather_time(group)
        } else {
            pace.gather_time_at(group, self.pace())
        }
    }

    /// Returns what all members' processors have to do together for a barrier.
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

/// Returns how far the last member of a heap is from the master.
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
