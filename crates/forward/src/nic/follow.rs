//! Keeps a program's maps in step with the host's tables, while it runs.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
};

use thiserror::Error;
use vigie_detect::Instant;
use vigie_via::link::MacAddress;

use super::layout::{
    self, Layout, USED_AT, flow_key, flow_value, mac_value, neighbour_key, place_value, port_key,
    route_key, route_value, version,
};
use crate::{
    bpf::{BpfMap, MapError, UpdateMode},
    packet::Port,
    pipeline::{Offload, Stage, StockStage},
    tables::{
        Fib, FibChange, FibFeed, FibSnapshot, Interface, NatChange, NatFeed, NatFlow, NatTable,
        NatTuple, Prefix, Route, Update,
    },
};

/// Why the maps no longer match the tables. Until they do, do not forward packets by them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FollowError {
    /// A map is too small for its table.
    #[error(
        "the interface's map of {table} is full with {entries_max} entries: make it larger, or forward on the host"
    )]
    Full {
        /// Which map.
        table: &'static str,
        /// Its capacity.
        entries_max: u32,
    },
    /// An error from the kernel.
    #[error("the interface's {table}: {source}")]
    Map {
        /// Which map.
        table: &'static str,
        /// The cause.
        source: MapError,
    },
}

fn failed(table: &'static str) -> impl Fn(MapError) -> FollowError {
    move |source| match source {
        MapError::Full { entries_max } => FollowError::Full { table, entries_max },
        source => FollowError::Map { table, source },
    }
}

/// Removes an entry that may be gone already.
fn gone(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(MapError::Missing) => Ok(()),
        other => other,
    }
}

/// A router: its index among the hops, and the number of routes through it.
#[derive(Clone, Copy, Debug)]
struct HopEntry {
    index: u32,
    routes: u32,
}

/// The translation of a flow: the time of its last packet when last read, and whether it is in the map.
#[derive(Clone, Copy, Debug, Default)]
struct MappedTranslation {
    used: u64,
    is_mapped: bool,
}

/// Applies changes of a pipeline's tables to the maps.
#[derive(Debug)]
pub(super) struct Follower {
    layout: Layout,
    fib: Option<(Fib, FibFeed)>,
    flows: Option<(NatTable, NatFeed)>,
    routes: BTreeMap<Prefix, Route>,
    hops: BTreeMap<(Port, IpAddr), HopEntry>,
    /// Free indices; the most recently freed one comes last.
    free: VecDeque<u32>,
    next_hop: u32,
    macs: BTreeMap<(Port, IpAddr), MacAddress>,
    interfaces: BTreeMap<Port, Interface>,
    translations: BTreeMap<NatTuple, MappedTranslation>,
    /// Where the search for flows in use continues.
    refreshed_to: Option<NatTuple>,
    unmapped: u64,
}

impl Follower {
    pub(super) fn new(stages: &[&dyn Stage], layout: Layout) -> Self {
        let mut this = Self {
            layout,
            fib: None,
            flows: None,
            routes: BTreeMap::new(),
            hops: BTreeMap::new(),
            free: VecDeque::new(),
            next_hop: 0,
            macs: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            translations: BTreeMap::new(),
            refreshed_to: None,
            unmapped: 0,
        };
        for stage in stages {
            match stage.offload() {
                Offload::Stock(StockStage::Route(route)) => {
                    this.fib = Some((route.fib().clone(), route.fib().follow()));
                }
                Offload::Stock(StockStage::Nat(nat)) => {
                    this.flows = Some((nat.table().clone(), nat.table().follow()));
                }
                _ => {}
            }
        }
        this
    }

    /// Whether there are changes to apply.
    pub(super) fn has_updates(&self) -> bool {
        self.fib.as_ref().is_some_and(|(_, feed)| feed.has_updates())
            || self.flows.as_ref().is_some_and(|(_, feed)| feed.has_updates())
    }

    /// Flows for which there was no room: the host translates them.
    pub(super) const fn unmapped(&self) -> u64 {
        self.unmapped
    }

    /// Applies all pending changes. Returns how many. After an error, the next call copies the tables anew.
    pub(super) fn follow<T: BpfMap>(&mut self, maps: &mut [T]) -> Result<usize, FollowError> {
        let followed = self.take_over(maps);
        if followed.is_err() {
            if let Some((fib, feed)) = &mut self.fib {
                *feed = fib.follow();
            }
            if let Some((table, feed)) = &mut self.flows {
                *feed = table.follow();
            }
        }
        followed
    }

    fn take_over<T: BpfMap>(&mut self, maps: &mut [T]) -> Result<usize, FollowError> {
        let mut count = 0;
        while let Some(update) = self.fib.as_mut().and_then(|(_, feed)| feed.take()) {
            count += 1;
            match update {
                Update::Snapshot(snapshot) => self.all_routes(maps, &snapshot)?,
                Update::Change(change) => self.change_route(maps, change)?,
            }
        }
        while let Some(update) = self.flows.as_mut().and_then(|(_, feed)| feed.take()) {
            count += 1;
            match update {
                Update::Snapshot(flows) => self.all_flows(maps, &flows)?,
                Update::Change(NatChange::Added(flow)) => self.add_flow(maps, &flow)?,
                Update::Change(NatChange::Removed(flow)) => self.remove_flow(maps, &flow)?,
            }
        }
        Ok(count)
    }

    fn all_routes<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        all: &FibSnapshot,
    ) -> Result<(), FollowError> {
        let (mut routes, mut macs) = (BTreeMap::new(), BTreeMap::new());
        let mut interfaces = BTreeMap::new();
        all.each_route(|prefix, route| {
            routes.insert(prefix, route);
        });

        all.each_neighbour(|port, address, mac| {
            macs.insert((port, address), mac);
        });

        all.each_interface(|port, interface| {
            interfaces.insert(port, interface);
        });

        let lost = |kept: &Port| !interfaces.contains_key(kept);
        for port in self.interfaces.keys().copied().filter(lost).collect::<Vec<_>>() {
            self.set_interface(maps, port, None)?;
        }

        for (port, interface) in interfaces {
            self.set_interface(maps, port, Some(interface))?;
        }

        let lost = |kept: &(Port, IpAddr)| !macs.contains_key(kept);
        for (port, address) in self.macs.keys().copied().filter(lost).collect::<Vec<_>>() {
            self.set_neighbour(maps, port, address, None)?;
        }

        for ((port, address), mac) in macs {
            self.set_neighbour(maps, port, address, Some(mac))?;
        }

        let lost = |kept: &Prefix| !routes.contains_key(kept);
        for prefix in self.routes.keys().copied().filter(lost).collect::<Vec<_>>() {
            self.set_route(maps, prefix, None)?;
        }

        for (prefix, route) in routes {
            self.set_route(maps, prefix, Some(route))?;
        }

        Ok(())
    }

    fn change_route<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        change: FibChange,
    ) -> Result<(), FollowError> {
        match change {
            FibChange::Route(prefix, route) => self.set_route(maps, prefix, route),
            FibChange::Neighbour(port, address, mac) => {
                self.set_neighbour(maps, port, address, mac)
            }
            FibChange::Interface(port, interface) => self.set_interface(maps, port, interface),
        }
    }

    fn set_interface<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        port: Port,
        interface: Option<Interface>,
    ) -> Result<(), FollowError> {
        let mtu = interface.map_or(0, |one| u32::try_from(one.mtu).unwrap_or(u32::MAX));
        let value = place_value(interface.map(|one| one.address), mtu);
        let map = &mut maps[self.layout.interfaces];
        map.put(&port_key(port), &value, UpdateMode::Any).map_err(failed("ports"))?;
        match interface {
            Some(interface) => self.interfaces.insert(port, interface),
            None => self.interfaces.remove(&port),
        };
        Ok(())
    }

    fn set_neighbour<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        port: Port,
        address: IpAddr,
        mac: Option<MacAddress>,
    ) -> Result<(), FollowError> {
        let map = &mut maps[self.layout.neighbours[version(address)]];
        let key = neighbour_key(port, address);
        let done = match mac {
            Some(mac) => map.put(&key, &mac_value(mac), UpdateMode::Any),
            None => gone(map.remove(&key)),
        };
        done.map_err(failed("neighbours"))?;
        match mac {
            Some(mac) => self.macs.insert((port, address), mac),
            None => self.macs.remove(&(port, address)),
        };
        match self.hops.get(&(port, address)) {
            Some(hop) => self.put_hop(maps, hop.index, mac),
            None => Ok(()),
        }
    }

    fn put_hop<T: BpfMap>(
        &self,
        maps: &mut [T],
        index: u32,
        mac: Option<MacAddress>,
    ) -> Result<(), FollowError> {
        let map = &mut maps[self.layout.hops];
        map.put(&index.to_ne_bytes(), &place_value(mac, 0), UpdateMode::Any)
            .map_err(failed("routers"))
    }

    fn set_route<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        prefix: Prefix,
        route: Option<Route>,
    ) -> Result<(), FollowError> {
        let before = self.routes.get(&prefix).copied();
        if before == route {
            return Ok(());
        }

        // The new router gets its index before a route refers to it, and the old one keeps its own as long as one does.
        let router = route.and_then(|route| Some((route.port, route.via?)));
        let hop = match router {
            Some(router) => self.take_hop(maps, router)? + 1,
            None => 0,
        };

        let map = &mut maps[self.layout.routes[version(prefix.address())]];
        let key = route_key(prefix);
        let done = match route {
            Some(route) => map.put(&key, &route_value(route.port, hop), UpdateMode::Any),
            None => gone(map.remove(&key)),
        };

        if let Err(error) = done {
            router.into_iter().for_each(|router| self.leave_hop(router));
            return Err(failed("routes")(error));
        }

        match route {
            Some(route) => self.routes.insert(prefix, route),
            None => self.routes.remove(&prefix),
        };

        if let Some(router) = before.and_then(|route| Some((route.port, route.via?))) {
            self.leave_hop(router);
        }

        Ok(())
    }

    fn take_hop<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        router: (Port, IpAddr),
    ) -> Result<u32, FollowError> {
        if let Some(hop) = self.hops.get_mut(&router) {
            hop.routes += 1;
            return Ok(hop.index);
        }
        let entries_max = self.layout.sizes.neighbours;
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.next_hop < entries_max => {
                self.next_hop += 1;
                self.next_hop - 1
            }
            None => return Err(FollowError::Full { table: "routers", entries_max }),
        };
        self.put_hop(maps, index, self.macs.get(&router).copied())?;
        self.hops.insert(router, HopEntry { index, routes: 1 });
        Ok(index)
    }

    fn leave_hop(&mut self, router: (Port, IpAddr)) {
        let Some(hop) = self.hops.get_mut(&router) else { return };
        hop.routes -= 1;
        if hop.routes == 0 {
            self.free.push_back(hop.index);
            self.hops.remove(&router);
        }
    }

    fn all_flows<T: BpfMap>(&mut self, maps: &mut [T], all: &[NatFlow]) -> Result<(), FollowError> {
        let translations = all.iter().flat_map(|flow| flow.translations().map(|(tuple, _)| tuple));
        let kept: std::collections::BTreeSet<NatTuple> = translations.collect();
        let lost = |tuple: &NatTuple| !kept.contains(tuple);
        for tuple in self.translations.keys().copied().filter(lost).collect::<Vec<_>>() {
            self.remove_translation(maps, &tuple)?;
        }
        all.iter().try_for_each(|flow| self.add_flow(maps, flow))
    }

    fn add_flow<T: BpfMap>(&mut self, maps: &mut [T], flow: &NatFlow) -> Result<(), FollowError> {
        for (tuple, becomes) in flow.translations() {
            if self.translations.get(&tuple).is_some_and(|translation| translation.is_mapped) {
                continue;
            }
            let map = &mut maps[self.layout.flows[version(tuple.source.address)]];
            let is_same_version =
                tuple.source.address.is_ipv4() == becomes.source.address.is_ipv4();
            let put = match is_same_version {
                true => map.put(&flow_key(&tuple), &flow_value(&becomes), UpdateMode::Any),
                false => Err(MapError::Full { entries_max: 0 }),
            };
            let is_mapped = match put {
                Ok(()) => true,
                // The host goes on translating it.
                Err(MapError::Full { .. }) => {
                    self.unmapped += 1;
                    false
                }
                Err(error) => return Err(failed("flows")(error)),
            };
            self.translations.insert(tuple, MappedTranslation { used: 0, is_mapped });
        }
        Ok(())
    }

    fn remove_flow<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        flow: &NatFlow,
    ) -> Result<(), FollowError> {
        flow.translations().iter().try_for_each(|(tuple, _)| self.remove_translation(maps, tuple))
    }

    fn remove_translation<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        tuple: &NatTuple,
    ) -> Result<(), FollowError> {
        match self.translations.remove(tuple) {
            Some(translation) if translation.is_mapped => {
                let map = &mut maps[self.layout.flows[version(tuple.source.address)]];
                gone(map.remove(&flow_key(tuple))).map_err(failed("flows"))
            }
            _ => Ok(()),
        }
    }

    /// Refreshes flows in the host's table whose packets the program has translated since they were last examined;
    /// examines at most `count` entries. Returns how many were in use.
    pub(super) fn refresh<T: BpfMap>(
        &mut self,
        maps: &[T],
        now: Instant,
        count: usize,
    ) -> Result<usize, FollowError> {
        let Some((table, _)) = &self.flows else { return Ok(0) };
        let mut in_use = 0;
        let from = self.refreshed_to.take();
        let behind = match from {
            Some(from) => (std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded),
            None => (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded),
        };

        for (tuple, translation) in self.translations.range_mut(behind).take(count) {
            self.refreshed_to = Some(*tuple);
            if !translation.is_mapped {
                continue;
            }
            let version = version(tuple.source.address);
            let value = match maps[self.layout.flows[version]].value(&flow_key(tuple)) {
                Ok(value) => value,
                Err(MapError::Missing) => continue,
                Err(error) => return Err(failed("flows")(error)),
            };
            let at = usize::try_from(USED_AT[version]).unwrap_or(0);
            let used = value.get(at..).and_then(|rest| rest.first_chunk::<8>());
            let used = used.map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            if used != translation.used {
                translation.used = used;
                in_use += usize::from(table.touch(tuple, now));
            }
        }

        if self.refreshed_to.is_some_and(|last| self.translations.range(last..).nth(1).is_none()) {
            self.refreshed_to = None;
        }

        Ok(in_use)
    }
}

/// The counters, summed over all processors.
pub(super) fn counters<T: BpfMap>(map: &T) -> Result<Vec<u64>, MapError> {
    let values = map.value(&0_u32.to_ne_bytes())?;
    let count = usize::try_from(layout::counter_count()).unwrap_or(0);
    let mut sums = vec![0_u64; count];
    for of_processor in values.chunks_exact(count * 8) {
        for (sum, value) in sums.iter_mut().zip(of_processor.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*value));
        }
    }
    Ok(sums)
}
