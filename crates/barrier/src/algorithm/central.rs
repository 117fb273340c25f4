//! Algorithms in which every member reports to the master.

use super::{
    builder::{ScheduleBuilder, source},
    networks::Networks,
    tree::exit,
};
use crate::schedule::{Network, Source, Step};

/// All members tell the master [eth-barrier, §3.2.3], alternating between two networks if there are two
/// [eth-barrier, §3.3.2]; the master tells all at once.
pub(super) fn concurrent(n: u32, networks: Networks) -> Vec<Vec<Step>> {
    let network = |rank: u32| networks.of(rank - 1);
    (0..n)
        .map(|rank| {
            let mut steps = ScheduleBuilder::default();
            if rank > 0 {
                return exit(steps, n, Some((0, network(rank))));
            }
            steps.receive(
                (1..n).map(|other| Source { network: network(other), ..source(other, 0) }),
            );
            exit(steps, n, None)
        })
        .collect()
}

/// All members tell the master, which tells them one after the other.
pub(super) fn central(n: u32) -> Vec<Vec<Step>> {
    (0..n)
        .map(|rank| {
            let mut steps = ScheduleBuilder::default();
            if rank > 0 {
                steps.send(0, Network::First);
                steps.receive([source(0, rank - 1)]);
                return steps.finish();
            }
            steps.receive((1..n).map(|other| source(other, 0)));
            for other in 1..n {
                steps.send(other, Network::First);
            }
            steps.finish()
        })
        .collect()
}
