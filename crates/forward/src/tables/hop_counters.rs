//! The packets that each hop of a route with several got.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{counters::Traffic, hops::Route};

/// Beyond this number of hops, those are forgotten to which no route leads any more.
const KEPT_MAX: usize = 1024;

/// The traffic that routes with several hops led to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HopTraffic {
    /// The hop.
    pub hop: Route,
    /// Packets routed by the host, as they came: before they are cut into fragments or segments.
    pub host: Traffic,
    /// Packets routed by programs, as far as these were asked (`NicPipeline::count_hops`).
    pub nic: Traffic,
}

/// The counters of one hop: any thread adds to them.
#[derive(Debug, Default)]
pub(crate) struct HopCell {
    host: [AtomicU64; 2],
    nic: [AtomicU64; 2],
}

/// Only the numbers matter: they synchronise no other memory.
fn add(counters: &[AtomicU64; 2], numbers: [u64; 2]) {
    for (counter, number) in counters.iter().zip(numbers) {
        counter.fetch_add(number, Ordering::Relaxed);
    }
}

fn load(counters: &[AtomicU64; 2]) -> Traffic {
    let [packets, bytes] = counters.each_ref().map(|one| one.load(Ordering::Relaxed));
    Traffic { packets, bytes }
}

impl HopCell {
    /// Counts a packet of the host.
    #[inline]
    pub(crate) fn count(&self, bytes: usize) {
        add(&self.host, [1, u64::try_from(bytes).unwrap_or(u64::MAX)]);
    }

    /// Adds packets and bytes of a program.
    #[cfg(feature = "nic")]
    pub(crate) fn add_nic(&self, numbers: [u64; 2]) {
        add(&self.nic, numbers);
    }
}

/// The counters of all hops that have been in a group. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct HopCounters(Arc<Mutex<BTreeMap<Route, Arc<HopCell>>>>);

impl HopCounters {
    /// Returns the counters of a hop, which go on where they were.
    pub(super) fn cell(&self, hop: Route) -> Arc<HopCell> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cells.len() >= KEPT_MAX && !cells.contains_key(&hop) {
            cells.retain(|_, cell| Arc::strong_count(cell) > 1);
        }
        Arc::clone(cells.entry(hop).or_default())
    }

    pub(super) fn traffic(&self) -> Vec<HopTraffic> {
        let cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let traffic = |(hop, cell): (&Route, &Arc<HopCell>)| HopTraffic {
            hop: *hop,
            host: load(&cell.host),
            nic: load(&cell.nic),
        };
        cells.iter().map(traffic).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Port;

    /// Goal: a hop that returns goes on counting, and the number of hops that are kept without a route is bounded. Method: more hops than
    /// are kept, of which one is in use.
    #[test]
    fn hops_are_forgotten_in_the_end() {
        let counters = HopCounters::default();
        let hop = |number: u32| {
            Route::via(Port(0), std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into())
        };
        let kept = counters.cell(hop(0));
        counters.cell(hop(1)).count(60);
        counters.cell(hop(1)).count(40);
        let found = |at: usize| counters.traffic().get(at).map(|one| (one.hop, one.host));
        assert_eq!(found(1), Some((hop(1), Traffic { packets: 2, bytes: 100 })));
        let many = u32::try_from(KEPT_MAX).unwrap();
        (2..many).for_each(|number| drop(counters.cell(hop(number))));
        assert_eq!((counters.traffic().len(), found(1).unwrap().1.packets), (KEPT_MAX, 2));
        let _ = counters.cell(hop(many));
        kept.count(1);
        let hops: Vec<_> =
            counters.traffic().iter().map(|one| (one.hop, one.host.packets)).collect();
        assert_eq!(hops, [(hop(0), 1), (hop(many), 0)]);
    }
}
