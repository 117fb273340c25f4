//! Keeps the maps of a program like the tables of the host, while it runs.

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
    bpf::{MapError, Put, Table},
    packet::Port,
    pipeline::{Offload, Stage, Stock},
    tables::{
        Fib, FibChange, FibFeed, FibSnapshot, Interface, NatChange, NatFeed, NatFlow, NatTable,
        NatTuple, Prefix, Route, Update,
    },
};

/// Why the maps are not like the tables any more. Until they are, packets should not be forwarded by them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FollowError {
    /// More entries than the map has room for.
    #[error(
        "the interface's {table} are full with {entries_max} entries: make them larger, or forward on the host"
    )]
    Full {
        /// Which map.
        table: &'static str,
        /// How many it has.
        entries_max: u32,
    },
    /// The kernel said no.
    #[error("the interface's {table}: {source}")]
    Map {
        /// Which map.
        table: &'static str,
        /// What is wrong.
        source: MapError,
    },
}

fn failed(table: &'static str) -> impl Fn(MapError) -> FollowError {
    move |source| match source {
        MapError::Full { entries_max } => FollowError::Full { table, entries_max },
        source => FollowError::Map { table, source },
    }
}

/// A removal of what may be gone already.
fn gone(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(MapError::Missing) => Ok(()),
        other => other,
    }
}

/// A router: its place among the hops, and how many routes lead through it.
#[derive(Clone, Copy, Debug)]
struct Hop {
    index: u32,
    routes: u32,
}

/// A line of a flow: the time of its last packet when it was looked at, and whether it is in the map.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    used: u64,
    is_mapped: bool,
}

/// Follows the tables of a pipeline.
#[derive(Debug)]
pub(super) struct Follower {
    layout: Layout,
    fib: Option<(Fib, FibFeed)>,
    flows: Option<(NatTable, NatFeed)>,
    routes: BTreeMap<Prefix, Route>,
    hops: BTreeMap<(Port, IpAddr), Hop>,
    /// Places that are free; the one that was in use last comes last.
    free: VecDeque<u32>,
    next_hop: u32,
    macs: BTreeMap<(Port, IpAddr), MacAddress>,
    interfaces: BTreeMap<Port, Interface>,
    lines: BTreeMap<NatTuple, Line>,
    /// Where looking for flows in use goes on.
    looked: Option<NatTuple>,
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
            lines: BTreeMap::new(),
            looked: None,
            unmapped: 0,
        };
        for stage in stages {
            match stage.offload() {
                Offload::Stock(Stock::Route(route)) => {
                    this.fib = Some((route.fib().clone(), route.fib().follow()));
                }
                Offload::Stock(Stock::Nat(nat)) => {
                    this.flows = Some((nat.table().clone(), nat.table().follow()));
                }
                _ => {}
            }
        }
        this
    }

    /// Whether there is something to follow.
    pub(super) fn has_news(&self) -> bool {
        self.fib.as_ref().is_some_and(|(_, feed)| feed.has_news())
            || self.flows.as_ref().is_some_and(|(_, feed)| feed.has_news())
    }

    /// Flows for which there was no room: the host translates them.
    pub(super) const fn unmapped(&self) -> u64 {
        self.unmapped
    }

    /// Takes over all changes that there are. Returns how many. After an error, the next call takes over everything anew.
    pub(super) fn follow<T: Table>(&mut self, maps: &mut [T]) -> Result<usize, FollowError> {
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

    fn take_over<T: Table>(&mut self, maps: &mut [T]) -> Result<usize, FollowError> {
        let mut count = 0;
        while let Some(update) = self.fib.as_mut().and_then(|(_, feed)| feed.take()) {
            count += 1;
            match update {
                Update::All(snapshot) => self.all_routes(maps, &snapshot)?,
                Update::One(change) => self.change_route(maps, change)?,
            }
        }
        while let Some(update) = self.flows.as_mut().and_then(|(_, feed)| feed.take()) {
            count += 1;
            match update {
                Update::All(flows) => self.all_flows(maps, &flows)?,
                Update::One(NatChange::Added(flow)) => self.add_flow(maps, &flow)?,
                Update::One(NatChange::Removed(flow)) => self.remove_flow(maps, &flow)?,
            }
        }
        Ok(count)
    }

    fn all_routes<T: Table>(
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

    fn change_route<T: Table>(
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

    fn set_interface<T: Table>(
        &mut self,
        maps: &mut [T],
        port: Port,
        interface: Option<Interface>,
    ) -> Result<(), FollowError> {
        let mtu = interface.map_or(0, |one| u32::try_from(one.mtu).unwrap_or(u32::MAX));
        let value = place_value(interface.map(|one| one.address), mtu);
        let map = &mut maps[self.layout.interfaces];
        map.put(&port_key(port), &value, Put::Any).map_err(failed("ports"))?;
        match interface {
            Some(interface) => self.interfaces.insert(port, interface),
            None => self.interfaces.remove(&port),
        };
        Ok(())
    }

    fn set_neighbour<T: Table>(
        &mut self,
        maps: &mut [T],
        port: Port,
        address: IpAddr,
        mac: Option<MacAddress>,
    ) -> Result<(), FollowError> {
        let map = &mut maps[self.layout.neighbours[version(address)]];
        let key = neighbour_key(port, address);
        let done = match mac {
            Some(mac) => map.put(&key, &mac_value(mac), Put::Any),
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

    fn put_hop<T: Table>(
        &self,
        maps: &mut [T],
        index: u32,
        mac: Option<MacAddress>,
    ) -> Result<(), FollowError> {
        let map = &mut maps[self.layout.hops];
        map.put(&index.to_ne_bytes(), &place_value(mac, 0), Put::Any).map_err(failed("routers"))
    }

    fn set_route<T: Table>(
        &mut self,
        maps: &mut [T],
        prefix: Prefix,
        route: Option<Route>,
    ) -> Result<(), FollowError> {
        let before = self.routes.get(&prefix).copied();
        if before == route {
            return Ok(());
        }
        // The new router has its place before a route leads there, and the old one as long as it does.
        let router = route.and_then(|route| Some((route.port, route.via?)));
        let hop = match router {
            Some(router) => self.take_hop(maps, router)? + 1,
            None => 0,
        };
        let map = &mut maps[self.layout.routes[version(prefix.address())]];
        let key = route_key(prefix);
        let done = match route {
            Some(route) => map.put(&key, &route_value(route.port, hop), Put::Any),
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

    fn take_hop<T: Table>(
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
        self.hops.insert(router, Hop { index, routes: 1 });
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

    fn all_flows<T: Table>(&mut self, maps: &mut [T], all: &[NatFlow]) -> Result<(), FollowError> {
        let lines = all.iter().flat_map(|flow| flow.lines().map(|(says, _)| says));
        let kept: std::collections::BTreeSet<NatTuple> = lines.collect();
        let lost = |says: &NatTuple| !kept.contains(says);
        for says in self.lines.keys().copied().filter(lost).collect::<Vec<_>>() {
            self.remove_line(maps, &says)?;
        }
        all.iter().try_for_each(|flow| self.add_flow(maps, flow))
    }

    fn add_flow<T: Table>(&mut self, maps: &mut [T], flow: &NatFlow) -> Result<(), FollowError> {
        for (says, becomes) in flow.lines() {
            if self.lines.get(&says).is_some_and(|line| line.is_mapped) {
                continue;
            }
            let map = &mut maps[self.layout.flows[version(says.source.address)]];
            let is_same_version = says.source.address.is_ipv4() == becomes.source.address.is_ipv4();
            let put = match is_same_version {
                true => map.put(&flow_key(&says), &flow_value(&becomes), Put::Any),
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
            self.lines.insert(says, Line { used: 0, is_mapped });
        }
        Ok(())
    }

    fn remove_flow<T: Table>(&mut self, maps: &mut [T], flow: &NatFlow) -> Result<(), FollowError> {
        flow.lines().iter().try_for_each(|(says, _)| self.remove_line(maps, says))
    }

    fn remove_line<T: Table>(
        &mut self,
        maps: &mut [T],
        says: &NatTuple,
    ) -> Result<(), FollowError> {
        match self.lines.remove(says) {
            Some(line) if line.is_mapped => {
                let map = &mut maps[self.layout.flows[version(says.source.address)]];
                gone(map.remove(&flow_key(says))).map_err(failed("flows"))
            }
            _ => Ok(()),
        }
    }

    /// Keeps flows alive in the host's table whose packets the program has translated since they were looked at last; at
    /// most `count` lines are looked at. Returns how many were in use.
    pub(super) fn refresh<T: Table>(
        &mut self,
        maps: &[T],
        now: Instant,
        count: usize,
    ) -> Result<usize, FollowError> {
        let Some((table, _)) = &self.flows else { return Ok(0) };
        let mut in_use = 0;
        let from = self.looked.take();
        let behind = match from {
            Some(from) => (std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded),
            None => (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded),
        };
        for (says, line) in self.lines.range_mut(behind).take(count) {
            self.looked = Some(*says);
            if !line.is_mapped {
                continue;
            }
            let version = version(says.source.address);
            let value = match maps[self.layout.flows[version]].value(&flow_key(says)) {
                Ok(value) => value,
                Err(MapError::Missing) => continue,
                Err(error) => return Err(failed("flows")(error)),
            };
            let at = usize::try_from(USED_AT[version]).unwrap_or(0);
            let used = value.get(at..).and_then(|rest| rest.first_chunk::<8>());
            let used = used.map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            if used != line.used {
                line.used = used;
                in_use += usize::from(table.touch(says, now));
            }
        }
        if self.looked.is_some_and(|last| self.lines.range(last..).nth(1).is_none()) {
            self.looked = None;
        }
        Ok(in_use)
    }
}

/// The numbers of all processors, added.
pub(super) fn counters<T: Table>(map: &T) -> Result<Vec<u64>, MapError> {
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
