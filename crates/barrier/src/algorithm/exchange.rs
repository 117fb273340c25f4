//! Algorithms in which all members do the same: without a master, and without a message that tells members to leave.

use super::builder::{ScheduleBuilder, source};
use crate::schedule::{Network, Step};

/// Shuffle exchange among the largest power of two, with the remaining members folded in.
pub(super) fn pairwise(n: u32) -> Vec<Vec<Step>> {
    let rounds = n.ilog2();
    let inner = 1 << rounds;
    (0..n)
        .map(|rank| {
            let mut steps = ScheduleBuilder::default();
            if rank >= inner {
                steps.send(rank - inner, Network::First);
                // After the exchanges, which are numbered from 0.
                steps.receive([source(rank - inner, rounds)]);
                return steps.finish();
            }
            let folded = rank.checked_add(inner).filter(|folded| *folded < n);
            steps.receive(folded.map(|folded| source(folded, 0)));
            for round in 0..rounds {
                let partner = rank ^ (1 << round);
                steps.send(partner, Network::First);
                steps.receive([source(partner, round)]);
            }
            if let Some(folded) = folded {
                steps.send(folded, Network::First);
            }
            steps.finish()
        })
        .collect()
}

/// After a round in which every member has sent to `ways` others, each has heard of `ways + 1` times as many members
/// \[hensgen88\].
pub(super) fn dissemination(n: u32, ways: u32) -> Vec<Vec<Step>> {
    (0..n)
        .map(|rank| {
            let mut steps = ScheduleBuilder::default();
            let (mut known, mut sent) = (1, 0);
            for partners in partners(n, ways) {
                // No distance reaches n: the last round has only the partners that it needs.
                for way in 1..=partners {
                    steps.send(ahead(rank, way * known, n), Network::First);
                }
                steps.receive(
                    (1..=partners)
                        .map(|way| source(ahead(rank, n - way * known, n), sent + way - 1)),
                );
                known = known.saturating_mul(ways + 1);
                sent += partners;
            }
            steps.finish()
        })
        .collect()
}

/// Returns the number of partners in each round of n-way dissemination; the last round has only those that it needs.
pub(crate) fn partners(size: u32, ways: u32) -> impl Iterator<Item = u32> {
    let (size, ways) = (u64::from(size), u64::from(ways.max(1)));
    let mut known = 1;
    std::iter::from_fn(move || {
        if known >= size {
            return None;
        }
        let partners = ways.min(size.div_ceil(known) - 1);
        known = known.saturating_mul(ways + 1);
        u32::try_from(partners).ok()
    })
}

/// The rank that is `distance` further round the circle.
const fn ahead(rank: u32, distance: u32, n: u32) -> u32 {
    (rank + distance) % n
}
