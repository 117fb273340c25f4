//! Where packets go: routes, neighbours and ports.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use vigie_via::link::MacAddress;

use super::{
    feed::{Feed, Reader, Table},
    prefix::Prefix,
    trie::Trie,
};
use crate::packet::Port;

/// Where a prefix is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Route {
    /// By this port.
    pub port: Port,
    /// Through this router; without one, the destination is on the link itself.
    pub via: Option<IpAddr>,
}

impl Route {
    /// Creates a route to what is on the link of a port.
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
    /// Its own address, which frames say that leave by it.
    pub address: MacAddress,
    /// The longest payload of a frame, in bytes.
    pub mtu: usize,
    /// From whom [errors](crate::icmp) come that are sent by it, in version 4 of IP.
    pub ipv4: Option<Ipv4Addr>,
    /// The same in version 6.
    pub ipv6: Option<Ipv6Addr>,
}

impl Interface {
    /// Creates an interface without addresses of IP.
    #[must_use]
    pub const fn new(address: MacAddress, mtu: usize) -> Self {
        Self { address, mtu, ipv4: None, ipv6: None }
    }

    /// Sets its address of this version of IP.
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
    /// A prefix has this route now, or none.
    Route(Prefix, Option<Route>),
    /// An address on the link of a port has this address of Ethernet now, or none that is known.
    Neighbour(Port, IpAddr, Option<MacAddress>),
    /// A port is this interface now, or none.
    Interface(Port, Option<Interface>),
}

/// What is in a [`Fib`] at one time.
#[derive(Clone, Debug, Default)]
pub struct FibSnapshot {
    routes: Trie<Route>,
    /// By port, since addresses of a link are alone there. The inner map is shared until it changes.
    neighbours: BTreeMap<Port, Arc<BTreeMap<IpAddr, MacAddress>>>,
    interfaces: BTreeMap<Port, Interface>,
}

/// Where a packet goes, all looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hop {
    /// By this port.
    pub port: Port,
    /// To this address of Ethernet.
    pub to: MacAddress,
    /// From this one.
    pub from: MacAddress,
    /// The longest payload of a frame there, in bytes.
    pub mtu: usize,
}

/// Why a destination has no [`Hop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoHop {
    /// No route leads there, or to a port that is not there.
    Route,
    /// The next hop's address of Ethernet is not known.
    Neighbour {
        /// On the link of this port.
        port: Port,
        /// Whose it is.
        next: IpAddr,
    },
}

impl FibSnapshot {
    /// Returns the route of the longest prefix of an address.
    #[must_use]
    pub fn route(&self, address: IpAddr) -> Option<Route> {
        self.routes.lookup(address).copied()
    }

    /// Returns the address of Ethernet of an address on the link of a port.
    #[must_use]
    pub fn neighbour(&self, port: Port, address: IpAddr) -> Option<MacAddress> {
        self.neighbours.get(&port)?.get(&address).copied()
    }

    /// Returns the interface of a port.
    #[must_use]
    pub fn interface(&self, port: Port) -> Option<Interface> {
        self.interfaces.get(&port).copied()
    }

    /// Looks up where a packet to an address goes.
    ///
    /// # Cost
    /// A step for each branch of the prefixes on the way, and a search among the neighbours of one port.
    ///
    /// # Errors
    /// [`NoHop`].
    #[inline]
    pub fn hop(&self, address: IpAddr) -> Result<Hop, NoHop> {
        let route = self.routes.lookup(address).ok_or(NoHop::Route)?;
        let interface = self.interfaces.get(&route.port).ok_or(NoHop::Route)?;
        let next = route.via.unwrap_or(address);
        let to = self.neighbour(route.port, next);
        let to = to.ok_or(NoHop::Neighbour { port: route.port, next })?;
        Ok(Hop { port: route.port, to, from: interface.address, mtu: interface.mtu })
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

    /// Returns how many routes there are.
    #[must_use]
    pub const fn route_count(&self) -> usize {
        self.routes.len()
    }
}

/// The forwarding information base: routes, neighbours and interfaces, changed by one side while others
/// forward by it. Clones are the same one.
///
/// Forwarding sees each change whole and in order, and is never stopped for one.
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
/// let hop = fib.snapshot().hop("10.1.2.3".parse()?).expect("a hop");
/// assert_eq!(hop.to, MacAddress([2, 0, 0, 0, 0, 9]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fib {
    table: Table<FibSnapshot, FibChange>,
}

impl Fib {
    /// Sets the route of a prefix, or removes it. Returns what it was.
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

    /// Sets the address of Ethernet of an address on the link of a port, or forgets it. Returns what it was.
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

    /// Sets the interface of a port, or removes it. Returns what it was.
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

    /// Returns what is in it now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<FibSnapshot> {
        self.table.snapshot()
    }

    /// Follows what changes from now on, after all that is in it.
    #[must_use]
    pub fn follow(&self) -> FibFeed {
        self.table.follow()
    }

    /// Reads it for forwarding.
    #[must_use]
    pub fn reader(&self) -> FibReader {
        FibReader { reader: self.table.reader() }
    }
}

/// The changes of a [`Fib`].
pub type FibFeed = Feed<FibSnapshot, FibChange>;

/// Reads a [`Fib`] packet by packet: a load, and a look where packets go.
#[derive(Debug)]
pub struct FibReader {
    reader: Reader<FibSnapshot, FibChange>,
}

impl FibReader {
    /// Returns what is in it now.
    #[inline]
    pub fn get(&mut self) -> &FibSnapshot {
        self.reader.get()
    }
}
