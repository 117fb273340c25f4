//! Keeps a program's maps in step with the host's tables, while it runs.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Weak, atomic::Ordering},
};

use thiserror::Error;
use vigie_detect::Instant;
use vigie_via::link::MacAddress;

use super::layout::{
    self, FLOWS, HANDING_OVER_AT, Layout, ROUTES, TCP_SEEN_AT, USED_AT, flow_key, flow_value,
    group_route_value, group_value, interface_value, neighbour_key, neighbour_value, port_key,
    route_key, route_value, version,
};
use crate::{
    bpf::{BpfMap, MapError, UpdateMode},
    packet::{Port, TCP, TcpFlags},
    pipeline::{BuiltinStage, Offload, Stage},
    tables::{
        Fib, FibChange, FibFeed, FibSnapshot, FlowProcessor, HopCell, HopTable, Interface,
        NatChange, NatFeed, NatFlow, NatTable, NatTuple, Prefix, Route, RouteEntry, TcpProgress,
        Update,
    },
};

/// The reason why the maps no longer match the tables. Until they do, do not forward packets by them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FollowError {
    /// A map is too small for its table.
    #[error(
        "the interface's map of {table} is full with {entries_max} entries: make it larger, or forward on the host"
    )]
    Full {
        /// The name of the map.
        table: &'static str,
        /// Its capacity.
        entries_max: u32,
    },
    /// An error from the kernel.
    #[error("the interface's {table}: {source}")]
    Map {
        /// The name of the map.
        table: &'static str,
        /// The cause.
        source: MapError,
    },
}

impl FollowError {
    fn of(table: &'static str, source: MapError) -> Self {
        match source {
            MapError::Full { entries_max } => Self::Full { table, entries_max },
            source => Self::Map { table, source },
        }
    }
}

/// The step between generations: so large that a half-written one cannot equal an earlier one.
const GENERATION_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A router: its index among the hops, and the number of routes and groups through it.
#[derive(Clone, Copy, Debug)]
struct HopEntry {
    index: u32,
    routes: u32,
}

/// A hop of groups that is counted: its counters, the numbers in the map when they were last read, and the number of groups with it.
#[derive(Debug)]
struct CountedHop {
    cell: Arc<HopCell>,
    key: u32,
    read: [u64; 2],
    groups: u32,
}

/// The translation of a flow: what it becomes, the time of its last packet and what its last TCP segment said, when they were last read, and whether it
/// is in the map.
#[derive(Clone, Copy, Debug)]
struct MappedTranslation {
    becomes: NatTuple,
    used: (u64, u64),
    is_mapped: bool,
}

/// The maps of flows, in which programs note their packets.
#[derive(Debug)]
pub(super) struct FlowMaps<T>([T; 2]);

impl<T: BpfMap + Send + Sync> FlowProcessor for FlowMaps<T> {
    fn last_used(&self, tuple: &NatTuple) -> Option<Instant> {
        let version = version(tuple.source.address);
        let value = self.0[version].value(&flow_key(tuple)).ok()?;
        let at = |offset: i16| value.get(usize::from(offset.unsigned_abs())..);
        let with_host = u32::from_ne_bytes(*at(HANDING_OVER_AT[version])?.first_chunk()?);
        let used = u64::from_ne_bytes(*at(USED_AT[version])?.first_chunk()?);
        (with_host == 0 && used != 0).then(|| Instant::from_nanos(used))
    }
}

/// Applies changes of a pipeline's tables to the maps.
#[derive(Debug)]
pub(super) struct Follower {
    layout: Layout,
    fib: Option<(Fib, FibFeed)>,
    flows: Option<(NatTable, NatFeed)>,
    routes: BTreeMap<Prefix, RouteEntry>,
    groups: BTreeMap<u32, HopTable>,
    hops: BTreeMap<(Port, IpAddr), HopEntry>,
    counted: BTreeMap<Route, CountedHop>,
    /// Free indices; the most recently freed one comes last.
    free: VecDeque<u32>,
    next_hop: u32,
    macs: BTreeMap<(Port, IpAddr), MacAddress>,
    interfaces: BTreeMap<Port, Interface>,
    translations: BTreeMap<NatTuple, MappedTranslation>,
    /// True if new flows are left to the host until they are asked for.
    takes_asked: bool,
    /// The place at which the search for flows in use continues.
    refreshed_to: Option<NatTuple>,
    /// Whether entries that programs may have noted have changed, of routes and of flows.
    are_changed: [bool; 2],
}

impl Follower {
    pub(super) fn new(stages: &[&dyn Stage], layout: Layout, takes_asked: bool) -> Self {
        let mut this = Self {
            layout,
            fib: None,
            flows: None,
            routes: BTreeMap::new(),
            groups: BTreeMap::new(),
            hops: BTreeMap::new(),
            counted: BTreeMap::new(),
            free: VecDeque::new(),
            next_hop: 0,
            macs: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            translations: BTreeMap::new(),
            takes_asked,
            refreshed_to: None,
            are_changed: [true; 2],
        };
        for stage in stages {
            match stage.offload() {
                Offload::Builtin(BuiltinStage::Route(route)) => {
                    this.fib = Some((route.fib().clone(), route.fib().follow()));
                }
                Offload::Builtin(BuiltinStage::Nat(nat)) => {
                    this.flows = Some((nat.table().clone(), nat.table().follow()));
                }
                _ => {}
            }
        }
        this
    }

    /// Lets the host's table of flows see which the programs use, as long as the result exists.
    pub(super) fn show_flows<T>(&self, maps: &[T]) -> Option<Arc<FlowMaps<T>>>
    where
        T: BpfMap + Clone + Send + Sync + 'static,
    {
        let (table, _) = self.flows.as_ref()?;
        let shown = Arc::new(FlowMaps(self.layout.flows.map(|map| maps[map].clone())));
        let processor: Weak<FlowMaps<T>> = Arc::downgrade(&shown);
        table.add_processor(processor);
        Some(shown)
    }

    /// Returns whether there are changes to apply.
    pub(super) fn has_updates(&self) -> bool {
        self.fib.as_ref().is_some_and(|(_, feed)| feed.has_updates())
            || self.flows.as_ref().is_some_and(|(_, feed)| feed.has_updates())
    }

    /// Applies all pending changes. Returns how many. After an error, the next call copies the tables anew.
    pub(super) fn follow<T: BpfMap>(&mut self, maps: &mut [T]) -> Result<usize, FollowError> {
        let mut writer = MapWriter { follower: self, maps };
        let taken = writer.take_over();
        let ended = writer.end_generations();
        let followed = taken.and_then(|count| ended.map(|()| count));
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

    /// Takes over a flow, after all pending changes.
    pub(super) fn add_flow<T: BpfMap>(
        &mut self,
        maps: &mut [T],
        flow: &NatFlow,
        now: Instant,
    ) -> Result<(), FollowError> {
        self.follow(maps)?;
        // Its first packets wait for each other: a SYN for nothing, its answer for the SYN.
        let handed_over = (flow.original.protocol != TCP).then_some(now);
        MapWriter { follower: self, maps }.add_flow(flow, handed_over)
    }

    /// Adds what programs have counted for each hop of a group to the table's counters.
    pub(super) fn count_hops<T: BpfMap>(&mut self, maps: &[T]) -> Result<(), FollowError> {
        let map = &maps[self.layout.hop_traffic];
        self.counted.values_mut().try_for_each(|one| one.read(map))
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
                Err(error) => return Err(FollowError::of("flows", error)),
            };
            let at = |offset: i16| value.get(usize::from(offset.unsigned_abs())..)?.first_chunk();
            let number =
                |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            let tcp = at(TCP_SEEN_AT[version]).filter(|_| tuple.protocol == TCP);
            // Two packets may have come in one tick of the clock.
            let used = (number(at(USED_AT[version])), number(tcp));
            if used != translation.used {
                translation.used = used;
                let tcp = tcp.map(|bytes| tcp_seen(*bytes));
                in_use += usize::from(table.touch(tuple, tcp.as_ref(), now));
            }
        }

        if self.refreshed_to.is_some_and(|last| self.translations.range(last..).nth(1).is_none()) {
            self.refreshed_to = None;
        }

        Ok(in_use)
    }
}

/// A follower with the maps that it writes.
struct MapWriter<'a, T> {
    follower: &'a mut Follower,
    maps: &'a mut [T],
}

impl<T: BpfMap> MapWriter<'_, T> {
    fn take_over(&mut self) -> Result<usize, FollowError> {
        let mut count = 0;
        while let Some(update) = self.follower.fib.as_mut().and_then(|(_, feed)| feed.take()) {
            count += 1;
            match update {
                Update::Snapshot(snapshot) => self.all_routes(&snapshot)?,
                Update::Change(FibChange::Route(prefix, route)) => self.set_route(prefix, route)?,
                Update::Change(FibChange::Group(number, table)) => self.set_group(number, table)?,
                Update::Change(FibChange::Neighbour(port, address, mac)) => {
                    // Until now, its packets went to the host, which may still have some.
                    let is_handed_over = self.host_holds_packets()
                        && !self.follower.macs.contains_key(&(port, address));
                    self.set_neighbour(port, address, mac, is_handed_over)?;
                }
                Update::Change(FibChange::Interface(port, interface)) => {
                    self.set_interface(port, interface)?;
                }
            }
        }
        while let Some(update) = self.follower.flows.as_mut().and_then(|(_, feed)| feed.take()) {
            count += 1;
            match update {
                Update::Snapshot(flows) => self.all_flows(&flows)?,
                Update::Change(NatChange::Added(_)) if self.follower.takes_asked => {}
                Update::Change(NatChange::Added(flow)) => self.add_flow(&flow, None)?,
                Update::Change(NatChange::Removed(flow)) => {
                    for (tuple, _) in flow.translations() {
                        self.remove_translation(&tuple)?;
                    }
                }
            }
        }
        Ok(count)
    }

    /// Writes an entry of a map, or removes one that may be gone already.
    fn write(
        &mut self,
        (table, map): (&'static str, usize),
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FollowError> {
        let layout = &self.follower.layout;
        let is_flow = layout.needs.nat && layout.flows.contains(&map);
        // No program has noted a flow that is new.
        if !is_flow || value.is_none() {
            self.follower.are_changed[usize::from(is_flow)] = true;
        }
        let map = &mut self.maps[map];
        let done = match value {
            Some(value) => map.put(key, value, UpdateMode::Any),
            None => map.remove(key),
        };
        match done {
            Err(MapError::Missing) if value.is_none() => Ok(()),
            done => done.map_err(|error| FollowError::of(table, error)),
        }
    }

    /// Has the programs forget what they have noted of tables that have changed. All that was written before must be seen before this.
    fn end_generations(&mut self) -> Result<(), FollowError> {
        let needs = self.follower.layout.needs;
        let generations = &mut self.maps[self.follower.layout.generations];
        let failed = |source| FollowError::of("generations", source);
        for (index, is_used) in [(ROUTES, needs.routes), (FLOWS, needs.nat)] {
            let is_changed = &mut self.follower.are_changed[usize::from(index == FLOWS)];
            if is_used && *is_changed {
                let key = index.to_ne_bytes();
                let before = generations.value(&key).map_err(failed)?;
                let before = before.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                let next = before.wrapping_add(GENERATION_STEP).to_ne_bytes();
                generations.put(&key, &next, UpdateMode::Any).map_err(failed)?;
                *is_changed = false;
            }
        }
        Ok(())
    }

    fn all_routes(&mut self, all: &FibSnapshot) -> Result<(), FollowError> {
        let (mut routes, mut macs) = (BTreeMap::new(), BTreeMap::new());
        let (mut interfaces, mut groups) = (BTreeMap::new(), BTreeMap::new());
        all.each_route(|prefix, route| {
            routes.insert(prefix, route);
        });
        all.each_group(|number, table| {
            groups.insert(number, table.clone());
        });
        all.each_neighbour(|port, address, mac| {
            macs.insert((port, address), mac);
        });
        all.each_interface(|port, interface| {
            interfaces.insert(port, interface);
        });

        for (port, interface) in changes(&self.follower.interfaces, interfaces) {
            self.set_interface(port, interface)?;
        }
        for ((port, address), mac) in changes(&self.follower.macs, macs) {
            self.set_neighbour(port, address, mac, false)?;
        }
        // Routes lead to groups that are there.
        let groups = changes(&self.follower.groups, groups);
        let (gone, here): (Vec<_>, Vec<_>) = groups.into_iter().partition(|(_, one)| one.is_none());
        for (number, table) in here {
            self.set_group(number, table)?;
        }
        for (prefix, route) in changes(&self.follower.routes, routes) {
            self.set_route(prefix, route)?;
        }
        gone.into_iter().try_for_each(|(number, _)| self.set_group(number, None))
    }

    fn set_interface(
        &mut self,
        port: Port,
        interface: Option<Interface>,
    ) -> Result<(), FollowError> {
        let value = interface_value(interface);
        let map = ("ports", self.follower.layout.interfaces);
        self.write(map, &port_key(port), Some(&value))?;
        set(&mut self.follower.interfaces, port, interface);
        Ok(())
    }

    /// Returns whether the host holds packets whose neighbours it does not know yet.
    fn host_holds_packets(&self) -> bool {
        let fib = self.follower.fib.as_ref();
        fib.is_some_and(|(fib, _)| fib.held_packets().load(Ordering::Relaxed) > 0)
    }

    fn set_neighbour(
        &mut self,
        port: Port,
        address: IpAddr,
        mac: Option<MacAddress>,
        is_handed_over: bool,
    ) -> Result<(), FollowError> {
        let map = ("neighbours", self.follower.layout.neighbours[version(address)]);
        let value = mac.map(|mac| neighbour_value(Some(mac), is_handed_over));
        self.write(map, &neighbour_key(port, address), value.as_deref())?;
        set(&mut self.follower.macs, (port, address), mac);
        match self.follower.hops.get(&(port, address)).map(|hop| hop.index) {
            Some(index) => self.put_hop(index, mac, is_handed_over),
            None => Ok(()),
        }
    }

    fn put_hop(
        &mut self,
        index: u32,
        mac: Option<MacAddress>,
        is_handed_over: bool,
    ) -> Result<(), FollowError> {
        let map = ("routers", self.follower.layout.hops);
        self.write(map, &index.to_ne_bytes(), Some(&neighbour_value(mac, is_handed_over)))
    }

    fn set_route(&mut self, prefix: Prefix, route: Option<RouteEntry>) -> Result<(), FollowError> {
        let before = self.follower.routes.get(&prefix).copied();
        if before == route {
            return Ok(());
        }
        // The new router gets its index before a route refers to it, and the old one keeps its own as long as one does.
        let router = route.and_then(router);
        let hop = match router {
            Some(router) => self.take_hop(router)? + 1,
            None => 0,
        };

        let map = ("routes", self.follower.layout.routes[version(prefix.address())]);
        let value = route.map(|route| match route {
            RouteEntry::Hop(route) => route_value(route.port, hop),
            RouteEntry::Group(number) => group_route_value(number),
        });
        if let Err(error) = self.write(map, &route_key(prefix), value.as_deref()) {
            router.into_iter().for_each(|router| self.leave_hop(router));
            return Err(error);
        }

        set(&mut self.follower.routes, prefix, route);
        if let Some(router) = before.and_then(self::router) {
            self.leave_hop(router);
        }
        Ok(())
    }

    /// Writes the buckets of a group; one that is gone stays in the map, where no route leads to it.
    fn set_group(&mut self, number: u32, table: Option<HopTable>) -> Result<(), FollowError> {
        let before = self.follower.groups.get(&number).cloned();
        if before == table {
            return Ok(());
        }
        let entries_max = self.follower.layout.sizes.groups;
        if number >= entries_max {
            return Err(FollowError::Full { table: "groups of hops", entries_max });
        }

        let mut indices = BTreeMap::new();
        let mut written = Ok(());
        for router in table.iter().flat_map(routers) {
            match self.take_hop(router) {
                Ok(index) => drop(indices.insert(router, index + 1)),
                Err(error) => {
                    written = Err(error);
                    break;
                }
            }
        }
        if let (Ok(()), Some(table)) = (&written, &table) {
            let index = |hop: &Route| {
                hop.via.and_then(|via| indices.get(&(hop.port, via))).copied().unwrap_or(0)
            };
            let value = group_value(table.of_buckets(), index);
            let map = ("groups of hops", self.follower.layout.groups);
            written = self.write(map, &number.to_ne_bytes(), Some(&value));
        }
        if written.is_err() {
            indices.into_keys().for_each(|router| self.leave_hop(router));
            return written;
        }

        table.iter().try_for_each(|table| self.start_counting(table))?;
        before.iter().try_for_each(|table| self.end_counting(table))?;
        set(&mut self.follower.groups, number, table);
        before.iter().flat_map(routers).for_each(|router| self.leave_hop(router));
        Ok(())
    }

    /// Counts the hops of a group from here on: the numbers in the map may be another hop's.
    fn start_counting(&mut self, table: &HopTable) -> Result<(), FollowError> {
        let Follower { counted, hops, layout, .. } = &mut *self.follower;
        for (hop, cell) in table.counted() {
            if let Some(known) = counted.get_mut(&hop) {
                known.groups += 1;
                continue;
            }
            let key = match hop.via {
                None => u32::from(hop.port.0),
                Some(via) => {
                    let index = hops.get(&(hop.port, via)).map_or(0, |router| router.index);
                    u32::from(layout.sizes.ports) + index
                }
            };
            let read = hop_traffic(&self.maps[layout.hop_traffic], key)?;
            counted.insert(hop, CountedHop { cell: Arc::clone(cell), key, read, groups: 1 });
        }
        Ok(())
    }

    fn end_counting(&mut self, table: &HopTable) -> Result<(), FollowError> {
        let Follower { counted, layout, .. } = &mut *self.follower;
        for (hop, _) in table.counted() {
            let Some(known) = counted.get_mut(&hop) else { continue };
            known.groups -= 1;
            if known.groups == 0 {
                let read = known.read(&self.maps[layout.hop_traffic]);
                counted.remove(&hop);
                read?;
            }
        }
        Ok(())
    }

    /// Returns the index of a router, for one more route through it.
    fn take_hop(&mut self, router: (Port, IpAddr)) -> Result<u32, FollowError> {
        let follower = &mut *self.follower;
        if let Some(hop) = follower.hops.get_mut(&router) {
            hop.routes += 1;
            return Ok(hop.index);
        }
        let entries_max = follower.layout.sizes.neighbours;
        let index = match follower.free.pop_front() {
            Some(index) => index,
            None if follower.next_hop < entries_max => {
                follower.next_hop += 1;
                follower.next_hop - 1
            }
            None => return Err(FollowError::Full { table: "routers", entries_max }),
        };
        let mac = follower.macs.get(&router).copied();
        self.put_hop(index, mac, false)?;
        self.follower.hops.insert(router, HopEntry { index, routes: 1 });
        Ok(index)
    }

    fn leave_hop(&mut self, router: (Port, IpAddr)) {
        let follower = &mut *self.follower;
        let Some(hop) = follower.hops.get_mut(&router) else { return };
        hop.routes -= 1;
        if hop.routes == 0 {
            follower.free.push_back(hop.index);
            follower.hops.remove(&router);
        }
    }

    fn all_flows(&mut self, all: &[NatFlow]) -> Result<(), FollowError> {
        let kept: BTreeMap<NatTuple, NatTuple> =
            all.iter().flat_map(NatFlow::translations).collect();
        let known = self.follower.translations.iter();
        let gone = known.filter(|(tuple, one)| kept.get(tuple) != Some(&one.becomes));
        for tuple in gone.map(|(tuple, _)| *tuple).collect::<Vec<_>>() {
            self.remove_translation(&tuple)?;
        }
        if self.follower.takes_asked {
            return Ok(());
        }
        all.iter().try_for_each(|flow| self.add_flow(flow, None))
    }

    fn add_flow(
        &mut self,
        flow: &NatFlow,
        handed_over: Option<Instant>,
    ) -> Result<(), FollowError> {
        for (tuple, becomes) in flow.translations() {
            if self.follower.translations.get(&tuple).is_some_and(|one| one.is_mapped) {
                continue;
            }
            let is_same_version =
                tuple.source.address.is_ipv4() == becomes.source.address.is_ipv4();
            let map = ("flows", self.follower.layout.flows[version(tuple.source.address)]);
            let value = flow_value(&becomes, handed_over);
            let is_mapped = is_same_version
                && match self.write(map, &flow_key(&tuple), Some(&value)) {
                    Ok(()) => true,
                    // The host goes on translating it.
                    Err(FollowError::Full { .. }) => false,
                    Err(error) => return Err(error),
                };
            let used = (handed_over.map_or(0, Instant::as_nanos), 0);
            let translation = MappedTranslation { becomes, used, is_mapped };
            self.follower.translations.insert(tuple, translation);
        }
        Ok(())
    }

    fn remove_translation(&mut self, tuple: &NatTuple) -> Result<(), FollowError> {
        match self.follower.translations.remove(tuple) {
            Some(translation) if translation.is_mapped => {
                let map = self.follower.layout.flows[version(tuple.source.address)];
                self.write(("flows", map), &flow_key(tuple), None)
            }
            _ => Ok(()),
        }
    }
}

impl CountedHop {
    /// Adds what has been counted since the last time.
    fn read<T: BpfMap>(&mut self, map: &T) -> Result<(), FollowError> {
        let now = hop_traffic(map, self.key)?;
        self.cell.add_nic([0, 1].map(|at| now[at].wrapping_sub(self.read[at])));
        self.read = now;
        Ok(())
    }
}

/// The packets and bytes of a hop, summed over all processors. A port beyond the last one has none.
fn hop_traffic<T: BpfMap>(map: &T, key: u32) -> Result<[u64; 2], FollowError> {
    match sums(map, key, 2) {
        Ok(sums) => Ok([0, 1].map(|at| sums.get(at).copied().unwrap_or(0))),
        Err(MapError::Missing) => Ok([0; 2]),
        Err(error) => Err(FollowError::of("hop counters", error)),
    }
}

/// Returns the router of a single hop.
const fn router(route: RouteEntry) -> Option<(Port, IpAddr)> {
    match route {
        RouteEntry::Hop(Route { port, via: Some(via) }) => Some((port, via)),
        _ => None,
    }
}

/// Returns the routers of a group, each once.
fn routers(table: &HopTable) -> impl Iterator<Item = (Port, IpAddr)> {
    table.group().hops().iter().filter_map(|(hop, _)| Some((hop.port, hop.via?)))
}

/// Returns the fields of a TCP segment that a program has noted.
const fn tcp_seen([a, b, c, d, _, flags, high, low]: [u8; 8]) -> TcpProgress {
    let (acknowledged, window) =
        (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([high, low]));
    TcpProgress::new(TcpFlags(flags), 0, acknowledged, window)
}

/// Returns the changes that turn one table into the other: first the entries that are gone, then all that are there.
fn changes<K: Ord + Copy, V>(from: &BTreeMap<K, V>, to: BTreeMap<K, V>) -> Vec<(K, Option<V>)> {
    let gone: Vec<_> =
        from.keys().filter(|key| !to.contains_key(key)).map(|key| (*key, None)).collect();
    gone.into_iter().chain(to.into_iter().map(|(key, value)| (key, Some(value)))).collect()
}

fn set<K: Ord, V>(table: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => table.insert(key, value),
        None => table.remove(&key),
    };
}

/// The counters, summed over all processors.
pub(super) fn counters<T: BpfMap>(map: &T) -> Result<Vec<u64>, MapError> {
    sums(map, 0, usize::try_from(layout::counter_count()).unwrap_or(0))
}

fn sums<T: BpfMap>(map: &T, key: u32, count: usize) -> Result<Vec<u64>, MapError> {
    let values = map.value(&key.to_ne_bytes())?;
    let mut sums = vec![0_u64; count];
    for of_processor in values.chunks_exact(count * 8) {
        for (sum, value) in sums.iter_mut().zip(of_processor.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*value));
        }
    }
    Ok(sums)
}
