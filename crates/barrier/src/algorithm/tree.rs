//! Trees whose shape depends only on the ranks.

use super::{
    builder::{ScheduleBuilder, source},
    networks::Networks,
};
use crate::schedule::{Network, Source, Step};

/// Adds the last steps of a member in a tree with a multicast exit: it tells its parent and waits for the master or,
/// if it is the master, tells all.
pub(super) fn exit(
    mut steps: ScheduleBuilder,
    n: u32,
    parent: Option<(u32, Network)>,
) -> Vec<Step> {
    if let Some((parent, network)) = parent {
        steps.send(parent, network);
        steps.receive([source(0, 0)]);
    } else if n > 1 {
        steps.multicast();
    }
    steps.finish()
}

/// In stage i, a member whose lowest non-zero digit in base k is digit i tells the member that has a 0 there
/// [eth-barrier, §3.2.1].
pub(super) fn nomial(n: u32, k: u32) -> Vec<Vec<Step>> {
    (0..n)
        .map(|rank| {
            let mut steps = ScheduleBuilder::default();
            let (stages, parent) = place(rank, n, k);
            for children in stages {
                steps.receive(children.into_iter().map(|child| source(child, 0)));
            }
            exit(steps, n, parent.map(|parent| (parent, Network::First)))
        })
        .collect()
}

/// The binary tree, up and down again.
pub(super) fn tournament(n: u32) -> Vec<Vec<Step>> {
    (0..n)
        .map(|rank| {
            let mut steps = ScheduleBuilder::default();
            let (stages, winner) = place(rank, n, 2);
            for losers in &stages {
                steps.receive(losers.iter().map(|loser| source(*loser, 0)));
            }
            if let Some(winner) = winner {
                steps.send(winner, Network::First);
                steps.receive([waking(winner, rank, n)]);
            }
            // The last loser has the most members below it.
            for loser in stages.into_iter().rev().flatten() {
                steps.send(loser, Network::First);
            }
            steps.finish()
        })
        .collect()
}

/// The message by which a winner wakes this loser: it follows the one to its own winner and those to later losers.
fn waking(winner: u32, loser: u32, n: u32) -> Source {
    let (stages, above) = place(winner, n, 2);
    let later = stages.iter().flatten().filter(|other| **other > loser).count();
    source(winner, u32::try_from(later).unwrap_or(u32::MAX) + u32::from(above.is_some()))
}

/// The place of a member in a k-nomial tree: its children by stage, without stages that have none, and its parent.
fn place(rank: u32, n: u32, k: u32) -> (Vec<Vec<u32>>, Option<u32>) {
    let mut stages = Vec::new();
    let mut unit = 1_u32;
    while unit < n {
        let above = unit.saturating_mul(k);
        let digit = rank % above;
        if digit != 0 {
            // All lower digits are 0: the loop ends at the first that is not.
            return (stages, Some(rank - digit));
        }
        let children: Vec<u32> =
            (1..k).map(|digit| rank + digit * unit).take_while(|child| *child < n).collect();
        if !children.is_empty() {
            stages.push(children);
        }
        unit = above;
    }
    (stages, None)
}

/// The children of r are r·c + 1 to r·c + c [eth-barrier, §3.2.2], alternating between two networks if there are two
/// [eth-barrier, §3.3.1].
pub(super) fn heap(n: u32, children: u32, networks: Networks) -> Vec<Vec<Step>> {
    let network = |rank: u32| networks.of((rank - 1) % children);
    (0..n)
        .map(|rank| {
            let mut steps = ScheduleBuilder::default();
            let first = rank.saturating_mul(children).saturating_add(1);
            let own = first.min(n)..first.saturating_add(children).min(n);
            steps.receive(own.map(|child| Source { network: network(child), ..source(child, 0) }));
            let parent = rank.checked_sub(1).map(|below| (below / children, network(rank)));
            exit(steps, n, parent)
        })
        .collect()
}
