//! The fastest tree according to LogP.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use super::{
    builder::{ScheduleBuilder, source},
    tree::exit,
};
use crate::{
    group::Group,
    schedule::{Network, Step},
};

/// The speed of messages, which shapes an [optimal tree](super::Algorithm::Optimal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HopTiming {
    /// From the beginning of sending a message to the end of its reception, in whole nanoseconds: o_s + L + o_r.
    pub hop: Duration,
    /// Between the ends of two receptions at one member, in whole nanoseconds: the larger of o_r and g.
    pub gap: Duration,
}

impl HopTiming {
    /// Creates a timing from both.
    #[must_use]
    pub const fn new(hop: Duration, gap: Duration) -> Self {
        Self { hop, gap }
    }

    /// Returns how long the optimal tree of this many members takes until the master has heard from all: F of N(t) =
    /// N(t − gap) + N(t − hop), the number of members that time t is enough for \[karp93\].
    #[must_use]
    pub fn gather_time(self, group: Group) -> Duration {
        broadcast(group.size(), self).1
    }

    /// Returns how long the tree that is optimal for this timing takes with messages of another timing.
    pub(crate) fn gather_time_at(self, group: Group, other: Self) -> Duration {
        let (nodes, _) = broadcast(group.size(), self);
        // Children have higher ranks than their parents: from the last rank on, each is done before its parent needs
        // it.
        let mut done = vec![Duration::ZERO; nodes.len()];
        for (rank, node) in nodes.iter().enumerate().rev() {
            let children =
                node.children.iter().rev().filter_map(|child| usize::try_from(*child).ok());
            let mut arrivals: Vec<Duration> =
                children.map(|child| done[child] + other.hop).collect();
            arrivals.sort_unstable();
            done[rank] = arrivals.into_iter().fold(Duration::ZERO, |before, arrival| {
                // Nothing precedes the first one.
                if before.is_zero() { arrival } else { arrival.max(before + other.gap) }
            });
        }
        done[0]
    }
}

/// One member of the tree of optimal broadcast.
#[derive(Clone, Debug, Default)]
struct TreeNode {
    parent: Option<u32>,
    /// In the order in which a broadcast reaches them: to gather, the last one comes first.
    children: Vec<u32>,
}

/// Builds the tree of optimal broadcast over n members: each member that has the message sends it on once per gap,
/// and the next member is reached as early as possible \[karp93\]. Also returns when the last one is reached.
fn broadcast(n: u32, timing: HopTiming) -> (Vec<TreeNode>, Duration) {
    let (hop, gap) = (timing.hop.as_nanos(), timing.gap.as_nanos());
    let mut nodes = vec![TreeNode::default()];
    let mut last = 0;
    // When each member's next message would arrive; at equal times, the lower rank first.
    let mut arrivals = BinaryHeap::from([Reverse((hop, 0_u32))]);
    for rank in 1..n {
        let Some(Reverse((at, sender))) = arrivals.pop() else { break };
        last = at;
        nodes.push(TreeNode { parent: Some(sender), children: Vec::new() });
        if let Some(sender) = usize::try_from(sender).ok().and_then(|index| nodes.get_mut(index)) {
            sender.children.push(rank);
        }
        arrivals.push(Reverse((at + gap, sender)));
        arrivals.push(Reverse((at + hop, rank)));
    }
    (nodes, Duration::from_nanos(u64::try_from(last).unwrap_or(u64::MAX)))
}

/// The gathering tree: all messages of the broadcast reversed in time.
pub(super) fn tree(n: u32, timing: HopTiming) -> Vec<Vec<Step>> {
    broadcast(n, timing)
        .0
        .into_iter()
        .map(|node| {
            let mut steps = ScheduleBuilder::default();
            steps.receive(node.children.into_iter().rev().map(|child| source(child, 0)));
            exit(steps, n, node.parent.map(|parent| (parent, Network::First)))
        })
        .collect()
}
