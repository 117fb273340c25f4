//! Routes, neighbours and interfaces.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, atomic::AtomicUsize},
};

use vigie_via::link::MacAddress;

use super::{
    feed::{Feed, TableReader, VersionedTable},
    prefix::Prefix,
    trie::Trie,
};
use crate::packet::Port;

/// The next hop of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Route {
    /// The outgoing port.
    pub port: Port,
    /// The router; `None` if the destination is directly on the link.
    pub via: Option<IpAddr>,
}

impl Route {
    /// Creates a route to destinations on the link of a port.
    #[must_use]
    pub const fn on_link(port: Port) -> Self {
        Self { port, via: None }
    }

    /// Creates a route through a router on the link of a port.
    #[must_use]
    pub const fn via(port: Port, router: IpAddr) -> Self {
        Self { port, via: Some(router) }
    }
}

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
}

impl Interface {
    /// Creates an interface without IP addresses.
    #[must_use]
    pub const fn new(address: MacAddress, mtu: usize) -> Self {
        Self { address, mtu, ipv4: None, ipv6: None }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FibChange {
    /// The new route of a prefix, or `None` if it was removed.
    Route(Prefix, Option<Route>),
    /// The new Ethernet address of an address on the link of a port, or `None` if it is no longer known.
    Neighbour(Port, IpAddr, Option<MacAddress>),
    /// The new interface of a port, or `None` if it was removed.
    Interface(Port, Option<Interface>),
}

/// The contents of a [`Fib`] at one time.
#[derive(Clone, Debug, Default)]
pub struct FibSnapshot {
    routes: Trie<Route>,
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
    /// Returns the route with the longest prefix of an address.
    #[must_use]
    pub fn route(&self, address: IpAddr) -> Option<Route> {
        self.routes.lookup(address).copied()
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

    /// Looks up the next hop of an address.
    ///
    /// # Cost
    /// A step for each branch of the trie on the way, and a search among the neighbours of one port.
    ///
    /// # Errors
    /// [`NextHopError`].
    #[inline]
    pub fn next_hop(&self, address: IpAddr) -> Result<NextHop, NextHopError> {
        let route = self.routes.lookup(address).ok_or(NextHopError::Route)?;
        let interface = self.interfaces.get(&route.port).ok_or(NextHopError::Route)?;
        let next = route.via.unwrap_or(address);
        let to = self.neighbour(route.port, next);
        let to = to.ok_or(NextHopError::Neighbour { port: route.port, next })?;
        Ok(NextHop { port: route.port, to, from: interface.address, mtu: interface.mtu })
    }

    /// Visits all routes, in the order of their prefixes.
    pub fn each_route(&self, mut visit: impl FnMut(Prefix, Route)) {
        self.routes.each(|prefix, route| visit(prefix, *route));
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
}

/// The forwarding information base: routes, neighbours and interfaces, changed by one side while others forward. Clones
/// share it.
///
/// Forwarding sees each change atomically and in order, and never stops for one.
///
/// ```
/// use vigie_forward::packet::Port;
/// use vigie_forward::tables::{Fib, Interface, Route};
/// use vigie_via::link::MacAddress;
///
/// let fib = Fib::default();
/// fib.set_interface(Port(1), Some(Interface::new(MacAddress([2, 0, 0, 0, 0, 1]), 1500)));
/// fib.set_route("10.0.0.0/8".parse()?, Some(Route::on_link(Port(1))));
/// fib.set_neighbour(Port(1), "10.1.2.3".parse()?, Some(MacAddress([2, 0, 0, 0, 0, 9])));
/// let next_hop = fib.snapshot().next_hop("10.1.2.3".parse()?).expect("a next hop");
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

    /// Sets the route of a prefix, or removes it. Returns the previous one.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn set_route(&self, prefix: Prefix, route: Option<Route>) -> Option<Route> {
        self.table.change(|fib| {
            let before = match route {
                Some(route) => fib.routes.insert(prefix, route),
                None => fib.routes.remove(prefix),
            };
            (before, (before != route).then_some(FibChange::Route(prefix, route)))
        })
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
            if before == mac {
                return (before, None);
            }
            let of_port = Arc::make_mut(fib.neighbours.entry(port).or_default());
            match mac {
                Some(mac) => of_port.insert(address, mac),
                None => of_port.remove(&address),
            };
            (before, Some(FibChange::Neighbour(port, address, mac)))
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
            (before, (before != interface).then_some(FibChange::Interface(port, interface)))
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
