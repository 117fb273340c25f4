//! Copies the kernel's routes into the tables used for routing.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use vigie::{
    forward::{
        packet::Port,
        tables::{Fib, Interface, Route},
    },
    via::link::MacAddress,
};

use super::{questions::Questions, stages::KERNEL};
use crate::kernel::{Change, NetlinkCache, SourceAddresses, Target};

/// The number of requests in one poll.
const QUESTIONS_MAX: usize = 64;

/// Keeps a [`Fib`] in step with the kernel's routes, for some interfaces.
#[derive(Debug)]
pub(super) struct Tables {
    fib: Fib,
    /// Names of interfaces, in the order of their ports.
    names: Vec<String>,
    /// Ports by the current indices of their interfaces.
    ports: BTreeMap<u32, Port>,
    /// Addresses of interfaces, by their indices.
    own: BTreeMap<u32, SourceAddresses>,
    questions: Arc<Questions>,
}

impl Tables {
    pub(super) fn new(fib: Fib, names: Vec<String>, questions: Arc<Questions>) -> Self {
        Self { fib, names, ports: BTreeMap::new(), own: BTreeMap::new(), questions }
    }

    /// Applies changes.
    pub(super) fn follow(&mut self, changes: &[Change], cache: &NetlinkCache) {
        for change in changes {
            match change {
                Change::Route { prefix, target } => {
                    self.fib.set_route(*prefix, target.map(|target| self.route(target)));
                }
                Change::Neighbour { interface, address, mac } => {
                    if let Some(port) = self.ports.get(interface) {
                        self.fib.set_neighbour(*port, *address, mac.map(MacAddress));
                    }
                }
                Change::Interface(interface) => {
                    let Some(port) = self.port_of(&interface.name) else { continue };
                    let is_new = self.ports.insert(interface.index, port) != Some(port);
                    self.questions.set_index(port, interface.index);
                    let mtu = usize::try_from(interface.mtu).unwrap_or(0);
                    let own = interface.mac.filter(|_| interface.is_up);
                    let own = own.map(|mac| Interface::new(MacAddress(mac), mtu));
                    self.fib
                        .set_interface(port, own.map(|one| self.with_own(interface.index, one)));
                    if is_new {
                        // Routes and neighbours of this index that were known before it became a port's.
                        self.catch_up(interface.index, cache);
                    }
                }
                Change::Addresses { interface, own } => {
                    self.own.insert(*interface, *own);
                    if let Some(port) = self.ports.get(interface)
                        && let Some(known) = self.fib.snapshot().interface(*port)
                    {
                        self.fib.set_interface(*port, Some(self.with_own(*interface, known)));
                    }
                }
                Change::InterfaceGone { index, name } => {
                    self.own.remove(index);
                    if let Some(port) = self.ports.remove(index) {
                        self.forget_neighbours(port);
                    }
                    // A new interface may have the name already.
                    if let Some(port) = self.port_of(name)
                        && !self.ports.values().any(|other| *other == port)
                    {
                        self.fib.set_interface(port, None);
                    }
                }
            }
        }
    }

    /// Adds the addresses of an index to an interface.
    fn with_own(&self, index: u32, mut interface: Interface) -> Interface {
        let own = self.own.get(&index).copied().unwrap_or_default();
        (interface.ipv4, interface.ipv6) = (own.ipv4, own.ipv6);
        interface
    }

    /// Sets routes and neighbours of an interface that has just become a port.
    fn catch_up(&mut self, index: u32, cache: &NetlinkCache) {
        let is_meant = |change: &Change| match change {
            Change::Route { target: Some(Target::Via { interface, .. }), .. }
            | Change::Neighbour { interface, .. } => *interface == index,
            _ => false,
        };
        let changes: Vec<_> = cache.changes().into_iter().filter(is_meant).collect();
        self.follow(&changes, cache);
    }

    /// Removes the neighbours of an interface that is gone: it may return with others.
    fn forget_neighbours(&self, port: Port) {
        let mut known = Vec::new();
        self.fib.snapshot().each_neighbour(|of, address, _| {
            if of == port {
                known.push(address);
            }
        });
        for address in known {
            self.fib.set_neighbour(port, address, None);
        }
    }

    fn port_of(&self, name: &str) -> Option<Port> {
        let at = self.names.iter().position(|one| one == name)?;
        u16::try_from(at).ok().map(Port)
    }

    /// Routes that do not use one of our ports are the kernel's.
    fn route(&self, target: Target) -> Route {
        let Target::Via { interface, gateway } = target else { return Route::on_link(KERNEL) };
        match (self.ports.get(&interface), gateway) {
            (Some(port), Some(gateway)) => Route::via(*port, gateway),
            (Some(port), None) => Route::on_link(*port),
            (None, _) => Route::on_link(KERNEL),
        }
    }

    /// Returns the indices of our interfaces.
    pub(super) fn indices(&self) -> Vec<u32> {
        self.ports.keys().copied().collect()
    }

    /// Makes the kernel find out or confirm neighbours.
    pub(super) fn ask_for(&self, neighbours: impl Iterator<Item = (Port, IpAddr)>) {
        neighbours
            .take(QUESTIONS_MAX)
            .for_each(|(port, address)| self.questions.ask(port, address));
    }

    /// Returns the port of an interface's index.
    pub(super) fn port(&self, index: u32) -> Option<Port> {
        self.ports.get(&index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vigie::forward::tables::Prefix;

    use crate::kernel;

    fn interface(index: u32, name: &str, is_up: bool) -> Change {
        let name = name.to_owned();
        Change::Interface(kernel::Interface {
            index,
            name,
            mac: Some([2; 6]),
            mtu: 1500,
            is_up,
            is_pair: false,
        })
    }

    fn route(to: &str, bits: u8, interface: u32) -> Change {
        let prefix = Prefix::new(to.parse().unwrap(), bits).unwrap();
        Change::Route { prefix, target: Some(Target::Via { interface, gateway: None }) }
    }

    /// Goal: routes by our interfaces lead to their ports, others to the kernel, and an interface that returns with
    /// another index is the same port. Method: changes by hand.
    #[test]
    fn changes_become_routes() {
        let fib = Fib::default();
        let cache = NetlinkCache::default();
        let mut tables = Tables::new(
            fib.clone(),
            vec!["a".to_owned(), "b".to_owned()],
            Arc::new(Questions::new()),
        );
        let to: IpAddr = [10, 1, 0, 5].into();
        let port = |fib: &Fib| fib.snapshot().route(to).map(|route| route.port);
        let mac = Some([2, 0, 0, 0, 0, 9]);
        let neighbour = |interface| Change::Neighbour { interface, address: to, mac };
        tables.follow(&[interface(3, "a", true), interface(4, "b", true)], &cache);
        tables.follow(&[route("10.1.0.0", 16, 4), neighbour(4)], &cache);
        assert_eq!(fib.snapshot().next_hop(to).map(|hop| hop.port), Ok(Port(1)));
        tables.follow(&[route("10.1.0.0", 24, 99)], &cache);
        assert_eq!(port(&fib), Some(KERNEL));
        tables.follow(&[interface(4, "b", false)], &cache);
        assert_eq!(fib.snapshot().interface(Port(1)), None);
        let gone = Change::InterfaceGone { index: 4, name: "b".to_owned() };
        tables.follow(&[gone, interface(7, "b", true)], &cache);
        tables.follow(&[route("10.1.0.0", 24, 7), neighbour(7)], &cache);
        assert_eq!(fib.snapshot().next_hop(to).map(|hop| hop.port), Ok(Port(1)));
        assert_eq!((tables.indices(), tables.port(4)), (vec![3, 7], None));
    }

    /// Goal: interfaces have the addresses of their indices, whichever is announced first, and do not inherit those of
    /// one that is gone. Method: changes by hand.
    #[test]
    fn interfaces_have_addresses() {
        let fib = Fib::default();
        let cache = NetlinkCache::default();
        let mut tables = Tables::new(fib.clone(), vec!["a".to_owned()], Arc::new(Questions::new()));
        let own = |last| SourceAddresses { ipv4: Some([10, 0, 0, last].into()), ipv6: None };
        let addresses = |last| Change::Addresses { interface: 3, own: own(last) };
        let found = |fib: &Fib| fib.snapshot().interface(Port(0)).and_then(|one| one.ipv4);
        tables.follow(&[addresses(1), interface(3, "a", true)], &cache);
        assert_eq!(found(&fib), own(1).ipv4);
        tables.follow(&[addresses(2)], &cache);
        assert_eq!(found(&fib), own(2).ipv4);
        tables.follow(&[interface(3, "a", false), interface(3, "a", true)], &cache);
        assert_eq!(found(&fib), own(2).ipv4);
        let gone = Change::InterfaceGone { index: 3, name: "a".to_owned() };
        tables.follow(&[gone, interface(3, "a", true)], &cache);
        assert_eq!(found(&fib), None);
    }
}
