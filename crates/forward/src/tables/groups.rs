//! The groups of hops that routes lead to, by number: prefixes with the same hops share one.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    hop_counters::{HopCounters, HopTraffic},
    hops::{HopGroup, HopTable, Route},
};

/// The entry of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteEntry {
    /// A single hop.
    Hop(Route),
    /// Several hops: the group of this number.
    Group(u32),
}

/// A group, and how many routes lead to it.
#[derive(Clone, Debug)]
struct CountedGroup {
    table: HopTable,
    routes: usize,
}

/// The groups in use.
#[derive(Clone, Debug, Default)]
pub(super) struct HopGroups {
    groups: BTreeMap<u32, CountedGroup>,
    numbers: BTreeMap<HopGroup, u32>,
    /// Free numbers below the next one; the most recently freed one comes last.
    free: VecDeque<u32>,
    next: u32,
    /// Routers of groups that do not answer.
    failed: BTreeSet<Route>,
    counters: HopCounters,
}

impl HopGroups {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the traffic of each hop.
    pub(super) fn traffic(&self) -> Vec<HopTraffic> {
        self.counters.traffic()
    }

    #[inline]
    pub(super) fn table(&self, number: u32) -> Option<&HopTable> {
        self.groups.get(&number).map(|one| &one.table)
    }

    pub(super) fn each(&self, mut visit: impl FnMut(u32, &HopTable)) {
        self.groups.iter().for_each(|(number, one)| visit(*number, &one.table));
    }

    /// Returns the number of a group, for one more route to it.
    pub(super) fn take(&mut self, hops: &HopGroup, has_interface: impl Fn(&Route) -> bool) -> u32 {
        if let Some(number) = self.numbers.get(hops) {
            if let Some(known) = self.groups.get_mut(number) {
                known.routes += 1;
            }
            return *number;
        }
        let number = self.free.pop_front().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let is_alive = |hop: &Route| has_interface(hop) && !self.failed.contains(hop);
        let cells = hops.hops().iter().map(|(hop, _)| self.counters.cell(*hop)).collect();
        let table = HopTable::new(hops.clone(), cells, is_alive);
        self.groups.insert(number, CountedGroup { table, routes: 1 });
        self.numbers.insert(hops.clone(), number);
        number
    }

    /// Returns whether a group has been taken for a single route.
    pub(super) fn is_new(&self, number: u32) -> bool {
        self.groups.get(&number).is_some_and(|one| one.routes == 1)
    }

    /// Counts one route less to a group. Returns whether it was the last, and the group is gone.
    pub(super) fn leave(&mut self, number: u32) -> bool {
        let Some(known) = self.groups.get_mut(&number) else { return false };
        known.routes -= 1;
        if known.routes > 0 {
            return false;
        }
        self.numbers.remove(known.table.group());
        self.groups.remove(&number);
        self.free.push_back(number);
        let Self { groups, failed, .. } = self;
        failed.retain(|hop| groups.values().any(|one| one.has(|other| other == hop)));
        true
    }

    pub(super) fn has_failed(&self, router: &Route) -> bool {
        self.failed.contains(router)
    }

    /// Notes whether a router does not answer, if it is one of a group's hops. Returns whether that has changed.
    pub(super) fn set_failed(&mut self, router: Route, has_failed: bool) -> bool {
        if !has_failed {
            return self.failed.remove(&router);
        }
        self.groups.values().any(|one| one.has(|hop| *hop == router)) && self.failed.insert(router)
    }

    /// Deals the buckets anew of the groups that have such a hop. Returns those that have changed.
    pub(super) fn deal(
        &mut self,
        is_hop: impl Fn(&Route) -> bool,
        has_interface: impl Fn(&Route) -> bool,
    ) -> Vec<(u32, HopTable)> {
        let Self { groups, failed, .. } = self;
        let is_alive = |hop: &Route| has_interface(hop) && !failed.contains(hop);
        let mut dealt = Vec::new();
        for (number, one) in groups.iter_mut().filter(|(_, one)| one.has(&is_hop)) {
            let known = &one.table;
            let table = HopTable::new(known.group().clone(), Arc::clone(known.cells()), is_alive);
            if table != one.table {
                one.table = table.clone();
                dealt.push((*number, table));
            }
        }
        dealt
    }
}

impl CountedGroup {
    fn has(&self, is_hop: impl Fn(&Route) -> bool) -> bool {
        self.table.group().hops().iter().any(|(hop, _)| is_hop(hop))
    }
}
