//! Routes, neighbours and interfaces.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, atomic::AtomicUsize},
};

use vigie_via::link::MacAddress;

use super::{
    feed::{Feed, TableReader, VersionedTable},
    groups::{HopGroups, RouteEntry},
    hop_counters::{HopCell, HopTraffic},
    hops::{FlowHash, HopGroup, HopTable, Route},
    prefix::Prefix,
    trie::Trie,
};
use crate::packet::Port;

/// An interface as routing sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Its Ethernet address, the source of frames sent by it.
    pub address: MacAddress,
    /// The MTU: the longest payload of a frame, in bytes.
    pub mtu: usize,
    /// The source of ICMPv4 [errors](crate::icmp) sent by it.
    pub ipv4: Option<Ipv4Addr>,
    /// The same for ICMPv6.
    pub ipv6: Option<Ipv6Addr>,
    /// True if its packets go without Ethernet header, and so to no neighbour: every next hop has the address zero.
    pub is_headerless: bool,
}

impl Interface {
    /// Creates an interface without IP addresses.
    #[must_use]
    pub const fn new(address: MacAddress, mtu: usize) -> Self {
        Self { address, mtu, ipv4: None, ipv6: None, is_headerless: false }
    }

    /// Creates an interface whose packets have no Ethernet header: on the host, its link [adds](vigie_via::link::LinkBuilder::adds_headers) one; a
    /// program must [know the port](crate::nic::NicConfig::headerless).
    #[must_use]
    pub const fn headerless(mtu: usize) -> Self {
        Self { is_headerless: true, ..Self::new(MacAddress([0; 6]), mtu) }
    }

    /// Sets its address for this version of IP.
    #[must_use]
    pub const fn ip(mut self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.ipv4 = Some(address),
            IpAddr::V6(address) => self.ipv6 = Some(address),
        }
        self
    }
}

/// One change of a [`Fib`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FibChange {
    /// The new route of a prefix, or `None` if it was removed.
    Route(Prefix, Option<RouteEntry>),
    /// The new buckets of a group of hops by its number, or `None` if no route leads to it any more.
    Group(u32, Option<HopTable>),
    /// The new Ethernet address of an address on the link of a port, or `None` if it is no longer known.
    Neighbour(Port, IpAddr, Option<MacAddress>),
    /// The new interface of a port, or `None` if it was removed.
    Interface(Port, Option<Interface>),
}

/// The contents of a [`Fib`] at one time.
#[derive(Clone, Debug, Default)]
pub struct FibSnapshot {
    routes: Trie<RouteEntry>,
    /// Shared until it changes.
    groups: Arc<HopGroups>,
    /// By port, since the addresses of a link are a namespace of their own. The inner map is shared until it changes.
    neighbours: BTreeMap<Port, Arc<BTreeMap<IpAddr, MacAddress>>>,
    interfaces: BTreeMap<Port, Interface>,
}

/// The result of a look-up: everything needed to send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextHop {
    /// The outgoing port.
    pub port: Port,
    /// The destination Ethernet address.
    pub to: MacAddress,
    /// The source Ethernet address.
    pub from: MacAddress,
    /// The MTU of the port, in bytes.
    pub mtu: usize,
}

/// The reason why a destination has no [`NextHop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextHopError {
    /// There is no route, or its port has no interface.
    Route,
    /// The Ethernet address of the next hop is unknown.
    Neighbour {
        /// On the link of this port.
        port: Port,
        /// The next hop.
        next: IpAddr,
    },
}

impl FibSnapshot {
    /// Returns the route with the longest prefix of an address. If it has several hops, `flow` is asked for the packet's flow, which
    /// chooses among them.
    #[must_use]
    #[inline]
    pub fn route(&self, address: IpAddr, flow: impl FnOnce() -> FlowHash) -> Option<Route> {
        Some(self.counted_route(address, flow)?.0)
    }

    /// The same, with the counters of the hop if the route has several.
    #[inline]
    fn counted_route(
        &self,
        address: IpAddr,
        flow: impl FnOnce() -> FlowHash,
    ) -> Option<(Route, Option<&HopCell>)> {
        match self.routes.lookup(address)? {
            RouteEntry::Hop(route) => Some((*route, None)),
            RouteEntry::Group(number) => Some(self.groups.table(*number)?.counted_hop(flow())),
        }
    }

    /// Returns the Ethernet address of an address on the link of a port.
    #[must_use]
    pub fn neighbour(&self, port: Port, address: IpAddr) -> Option<MacAddress> {
        self.neighbours.get(&port)?.get(&address).copied()
    }

    /// Returns the interface of a port.
    #[must_use]
    pub fn interface(&self, port: Port) -> Option<Interface> {
        self.interfaces.get(&port).copied()
    }

    /// Looks up the next hop of an address, for a flow as in [`route`](Self::route).
    ///
    /// # Cost
    /// A step for each branch of the trie on the way, and a search among the neighbours of one port; of a route with several hops also
    /// the hash.
    ///
    /// # Errors
    /// [`NextHopError`].
    #[inline]
    pub fn next_hop(
        &self,
        address: IpAddr,
        flow: impl FnOnce() -> FlowHash,
    ) -> Result<NextHop, NextHopError> {
        self.counted_next_hop(address, flow).map(|(hop, _)| hop)
    }

    /// The same, with the counters of the hop if the route has several.
    #[inline]
    pub(crate) fn counted_next_hop(
        &self,
        address: IpAddr,
        flow: impl FnOnce() -> FlowHash,
    ) -> Result<(NextHop, Option<&HopCell>), NextHopError> {
        let (route, cell) = self.counted_route(address, flow).ok_or(NextHopError::Route)?;
        let interface = self.interfaces.get(&route.port).ok_or(NextHopError::Route)?;
        let next = route.via.unwrap_or(address);
        let to = if interface.is_headerless {
            Some(interface.address)
        } else {
            self.neighbour(route.port, next)
        };
        let to = to.ok_or(NextHopError::Neighbour { port: route.port, next })?;
        let hop = NextHop { port: route.port, to, from: interface.address, mtu: interface.mtu };
        Ok((hop, cell))
    }

    /// Visits all routes, in the order of their prefixes.
    pub fn each_route(&self, mut visit: impl FnMut(Prefix, RouteEntry)) {
        self.routes.each(|prefix, route| visit(prefix, *route));
    }

    /// Visits all groups of hops, in the order of their numbers.
    pub fn each_group(&self, visit: impl FnMut(u32, &HopTable)) {
        self.groups.each(visit);
    }

    /// Returns what each hop of routes with several has got so far. A hop to which no route leads any more is forgotten some time later.
    #[must_use]
    pub fn hop_traffic(&self) -> Vec<HopTraffic> {
        self.groups.traffic()
    }

    /// Visits all neighbours, in order.
    pub fn each_neighbour(&self, mut visit: impl FnMut(Port, IpAddr, MacAddress)) {
        for (port, neighbours) in &self.neighbours {
            neighbours.iter().for_each(|(address, mac)| visit(*port, *address, *mac));
        }
    }

    /// Visits all interfaces, in order.
    pub fn each_interface(&self, mut visit: impl FnMut(Port, Interface)) {
        self.interfaces.iter().for_each(|(port, interface)| visit(*port, *interface));
    }

    /// Sets or removes a route, and frees the group that no route leads to any more.
    fn set_entry(
        &mut self,
        prefix: Prefix,
        entry: Option<RouteEntry>,
        changes: &mut Vec<FibChange>,
    ) {
        let before = match entry {
            Some(entry) => self.routes.insert(prefix, entry),
            None => self.routes.remove(prefix),
        };
        if before != entry {
            changes.push(FibChange::Route(prefix, entry));
        }
        if let Some(RouteEntry::Group(number)) = before
            && Arc::make_mut(&mut self.groups).leave(number)
        {
            changes.push(FibChange::Group(number, None));
        }
    }

    /// Deals the buckets anew of the groups that have such a hop.
    fn deal(&mut self, is_hop: impl Fn(&Route) -> bool, changes: &mut Vec<FibChange>) {
        if self.groups.is_empty() {
            return;
        }
        let interfaces = &self.interfaces;
        let dealt =
            Arc::make_mut(&mut self.groups).deal(is_hop, |hop| interfaces.contains_key(&hop.port));
        let dealt = dealt.into_iter();
        changes.extend(dealt.map(|(number, table)| FibChange::Group(number, Some(table))));
    }
}

/// The forwarding information base: routes, neighbours and interfaces, changed by one side while others forward. Clones
/// share it.
///
/// Forwarding sees each change atomically and in order, and never stops for one.
///
/// ```
/// use vigie_forward::packet::Port;
/// use vigie_forward::tables::{Fib, FlowHash, Interface, Route};
/// use vigie_via::link::MacAddress;
///
/// let fib = Fib::default();
/// fib.set_interface(Port(1), Some(Interface::new(MacAddress([2, 0, 0, 0, 0, 1]), 1500)));
/// fib.set_route("10.0.0.0/8".parse()?, Some(Route::on_link(Port(1))));
/// fib.set_neighbour(Port(1), "10.1.2.3".parse()?, Some(MacAddress([2, 0, 0, 0, 0, 9])));
/// let next_hop = fib.snapshot().next_hop("10.1.2.3".parse()?, FlowHash::default);
/// let next_hop = next_hop.expect("a next hop");
/// assert_eq!(next_hop.to, MacAddress([2, 0, 0, 0, 0, 9]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fib {
    table: VersionedTable<FibSnapshot, FibChange>,
    held_packets: Arc<AtomicUsize>,
}

impl Fib {
    /// Returns how many packets stages hold, since they do not know the neighbours of this table yet.
    pub(crate) fn held_packets(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.held_packets)
    }

    /// Sets the route of a prefix, or removes it.
    pub fn set_route(&self, prefix: Prefix, route: Option<Route>) {
        self.table.change(|fib| {
            let mut changes = Vec::new();
            fib.set_entry(prefix, route.map(RouteEntry::Hop), &mut changes);
            ((), changes)
        });
    }

    /// Sets the route of a prefix to several hops, over which its flows are spread: always over those that live, which have an interface
    /// and have not [failed](Self::fail_neighbour); over all if none does. When one goes, only its flows move.
    pub fn set_hops(&self, prefix: Prefix, hops: &HopGroup) {
        self.table.change(|fib| {
            let mut changes = Vec::new();
            let entry = if let [(only, _)] = hops.hops() {
                RouteEntry::Hop(*only)
            } else {
                let interfaces = &fib.interfaces;
                let groups = Arc::make_mut(&mut fib.groups);
                let number = groups.take(hops, |hop| interfaces.contains_key(&hop.port));
                if let Some(table) = groups.table(number).filter(|_| groups.is_new(number)) {
                    changes.push(FibChange::Group(number, Some(table.clone())));
                }
                RouteEntry::Group(number)
            };
            fib.set_entry(prefix, Some(entry), &mut changes);
            ((), changes)
        });
    }

    /// Tells that a router does not answer: until its Ethernet address is [set](Self::set_neighbour), routes with other hops do without it.
    pub fn fail_neighbour(&self, port: Port, address: IpAddr) {
        self.table.change(|fib| {
            let mut changes = Vec::new();
            let hop = Route::via(port, address);
            if !fib.groups.is_empty() && Arc::make_mut(&mut fib.groups).set_failed(hop, true) {
                fib.deal(|one| *one == hop, &mut changes);
            }
            ((), changes)
        });
    }

    /// Sets the Ethernet address of an address on the link of a port, or removes it. Returns the previous one.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn set_neighbour(
        &self,
        port: Port,
        address: IpAddr,
        mac: Option<MacAddress>,
    ) -> Option<MacAddress> {
        self.table.change(|fib| {
            let before = fib.neighbour(port, address);
            let mut changes = Vec::new();
            if before != mac {
                let of_port = Arc::make_mut(fib.neighbours.entry(port).or_default());
                match mac {
                    Some(mac) => of_port.insert(address, mac),
                    None => of_port.remove(&address),
                };
                changes.push(FibChange::Neighbour(port, address, mac));
            }
            let hop = Route::via(port, address);
            if mac.is_some() && fib.groups.has_failed(&hop) {
                Arc::make_mut(&mut fib.groups).set_failed(hop, false);
                fib.deal(|one| *one == hop, &mut changes);
            }
            (before, changes)
        })
    }

    /// Sets the interface of a port, or removes it. Returns the previous one.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn set_interface(&self, port: Port, interface: Option<Interface>) -> Option<Interface> {
        self.table.change(|fib| {
            let before = match interface {
                Some(interface) => fib.interfaces.insert(port, interface),
                None => fib.interfaces.remove(&port),
            };
            let mut changes = Vec::new();
            if before.is_some() != interface.is_some() {
                fib.deal(|hop| hop.port == port, &mut changes);
            }
            if before != interface {
                // No flow goes to a hop before its interface is there, or when it no longer is.
                let at = if interface.is_some() { 0 } else { changes.len() };
                changes.insert(at, FibChange::Interface(port, interface));
            }
            (before, changes)
        })
    }

    /// Returns the current contents.
    #[must_use]
    pub fn snapshot(&self) -> Arc<FibSnapshot> {
        self.table.snapshot()
    }

    /// Follows the table: first all its contents, then each change.
    #[must_use]
    pub fn follow(&self) -> FibFeed {
        self.table.follow()
    }

    /// Returns a reader for forwarding.
    #[must_use]
    pub fn reader(&self) -> FibReader {
        FibReader { reader: self.table.reader() }
    }
}

/// The changes of a [`Fib`].
pub type FibFeed = Feed<FibSnapshot, FibChange>;

/// Reads a [`Fib`] for each packet: a load, and a look-up.
#[derive(Debug)]
pub struct FibReader {
    reader: TableReader<FibSnapshot, FibChange>,
}

impl FibReader {
    /// Returns the current contents.
    #[inline]
    pub fn get(&mut self) -> &FibSnapshot {
        self.reader.get()
    }
}
