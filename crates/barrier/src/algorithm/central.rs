//! Algorithms in which the master hears from everybody.

use super::{
    Networks,
    tree::exit,
    writer::{Writer, source},
};
use crate::schedule::{Network, Source, Step};

/// All tell the master [eth-barrier, §3.2.3], by both networks in turn if there are two [eth-barrier, §3.3.2]; the
/// master tells all at once.
pub(super) fn concurrent(n: u32, networks: Networks) -> Vec<Vec<Step>> {
    let network = |rank: u32| networks.of(rank - 1);
    (0..n)
        .map(|rank| {
            let mut steps = Writer::default();
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

/// All tell the master, which tells one after the other.
pub(super) fn central(n: u32) -> Vec<Vec<Step>> {
    (0..n)
        .map(|rank| {
            let mut steps = Writer::default();
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
