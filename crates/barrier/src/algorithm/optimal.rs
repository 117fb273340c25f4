//! The tree that LogP says is fastest.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use super::{
    tree::exit,
    writer::{Writer, source},
};
use crate::{
    group::Group,
    schedule::{Network, Step},
};

/// How fast messages are: what shapes an [optimal tree](super::Algorithm::Optimal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Pace {
    /// From the beginning of sending a message to the end of its reception, in whole nanoseconds: o_s + L + o_r.
    pub hop: Duration,
    /// Between the ends of two receptions at one member, in whole nanoseconds: the larger of o_r and g.
    pub gap: Duration,
}

impl Pace {
    /// Takes both times.
    #[must_use]
    pub const fn new(hop: Duration, gap: Duration) -> Self {
        Self { hop, gap }
    }

    /// Returns how long the optimal tree of so many members takes until the master has heard from all: F of
    /// N(t) = N(t − gap) + N(t − hop), the members that t is enough for \[karp93\].
    #[must_use]
    pub fn gather_time(self, group: Group) -> Duration {
        broadcast(group.size(), self).1
    }

    /// Returns how long the tree that is optimal for this pace takes if messages are of another.
    pub(crate) fn gather_time_at(self, group: Group, other: Self) -> Duration {
        let (nodes, _) = broadcast(group.size(), self);
        // Children have higher ranks than their parents: from the last on, each is done before its parent needs it.
        let mut done = vec![Duration::ZERO; nodes.len()];
        for (rank, node) in nodes.iter().enumerate().rev() {
            let children =
                node.children.iter().rev().filter_map(|child| usize::try_from(*child).ok());
            let mut arrivals: Vec<Duration> =
                children.map(|child| done[child] + other.hop).collect();
            arrivals.sort_unstable();
            done[rank] = arrivals.into_iter().fold(Duration::ZERO, |before, arrival| {
                // Nothing is before the first one.
                if before.is_zero() { arrival } else { arrival.max(before + other.gap) }
            });
        }
        done[0]
    }
}

/// One member of the tree of optimal broadcast.
#[derive(Clone, Debug, Default)]
struct Node {
    parent: Option<u32>,
    /// In the order in which a broadcast reaches them: to gather, the last one comes first.
    children: Vec<u32>,
}

/// Builds the tree of optimal broadcast over n members: whoever has the message sends it on, once in every gap, and
/// the next member is reached as early as anybody can \[karp93\]. Returns when the last one is, too.
fn broadcast(n: u32, pace: Pace) -> (Vec<Node>, Duration) {
    let (hop, gap) = (pace.hop.as_nanos(), pace.gap.as_nanos());
    let mut nodes = vec![Node::default()];
    let mut last = 0;
    // When the next message of a member would arrive; of equal times the lower rank's.
    let mut arrivals = BinaryHeap::from([Reverse((hop, 0_u32))]);
    for rank in 1..n {
        let Some(Reverse((at, sender))) = arrivals.pop() else { break };
        last = at;
        nodes.push(Node { parent: Some(sender), children: Vec::new() });
        if let Some(sender) = usize::try_from(sender).ok().and_then(|index| nodes.get_mut(index)) {
            sender.children.push(rank);
        }
        arrivals.push(Reverse((at + gap, sender)));
        arrivals.push(Reverse((at + hop, rank)));
    }
    (nodes, Duration::from_nanos(u64::try_from(last).unwrap_or(u64::MAX)))
}

/// The tree, gathering: all messages of the broadcast reversed in time.
pub(super) fn tree(n: u32, pace: Pace) -> Vec<Vec<Step>> {
    broadcast(n, pace)
        .0
        .into_iter()
        .map(|node| {
            let mut steps = Writer::default();
            steps.receive(node.children.into_iter().rev().map(|child| source(child, 0)));
            exit(steps, n, node.parent.map(|parent| (parent, Network::First)))
        })
        .collect()
}
