//! Copies the kernel's routes into the tables used for routing.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16, sync::Arc};

use vigie::{
    forward::{
        packet::Port,
        tables::{Fib, HOPS_MAX, HopGroup, HopGroupError, HopTraffic, Interface, Prefix, Route},
    },
    via::link::MacAddress,
};

use super::{questions::Questions, stages::KERNEL};
use crate::{
    journal::log,
    kernel::{Change, NetlinkCache, SourceAddresses, Target},
    stats::HopReport,
};

/// The number of requests in one poll.
const QUESTIONS_MAX: usize = 64;

/// Keeps a [`Fib`] in step with the kernel's routes, for some interfaces.
#[derive(Debug)]
pub(super) struct Tables {
    flow: String,
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
    pub(super) fn new(flow: &str, fib: Fib, names: Vec<String>, questions: Arc<Questions>) -> Self {
        let (flow, ports, own) = (flow.to_owned(), BTreeMap::new(), BTreeMap::new());
        Self { flow, fib, names, ports, own, questions }
    }

    /// Applies changes.
    pub(super) fn follow(&mut self, changes: &[Change], cache: &NetlinkCache) {
        for change in changes {
            match change {
                Change::Route { prefix, target } => self.set_route(*prefix, target.as_ref()),
                Change::Neighbour { interface, address, mac, is_failed } => {
                    if let Some(port) = self.ports.get(interface) {
                        self.fib.set_neighbour(*port, *address, mac.map(MacAddress));
                        if *is_failed {
                            self.fib.fail_neighbour(*port, *address);
                        }
                    }
                }
                Change::Interface(interface) => {
                    let Some(port) = self.port_of(&interface.name) else { continue };
                    let is_new = self.ports.insert(interface.index, port) != Some(port);
                    self.questions.set_index(port, interface.index);
                    let mtu = usize::try_from(interface.mtu).unwrap_or(0);
                    let own = if interface.is_headerless {
                        Some(Interface::headerless(mtu))
                    } else {
                        interface.mac.map(|mac| Interface::new(MacAddress(mac), mtu))
                    };
                    let own = own.filter(|_| interface.is_up);
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
            Change::Route { target: Some(target), .. } => {
                target.ways().any(|(interface, _)| interface == index)
            }
            Change::Neighbour { interface, .. } => *interface == index,
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

    /// Routes that do not use one of our ports are the kernel's. Of several hops, those that do are used.
    fn set_route(&self, prefix: Prefix, target: Option<&Target>) {
        let Some(target) = target else { return self.fib.set_route(prefix, None) };
        let weights: Vec<_> = match target {
            Target::Spread(hops) => hops.iter().map(|hop| hop.weight).collect(),
            _ => vec![NonZeroU16::MIN],
        };
        let ours: Vec<_> = target
            .ways()
            .zip(weights)
            .filter_map(|((interface, gateway), weight)| {
                let port = *self.ports.get(&interface)?;
                let on_link = || Route::on_link(port);
                let route = gateway.map_or_else(on_link, |to| Route::via(port, to));
                Some((route, weight))
            })
            .collect();
        let mut group = HopGroup::new(ours.iter().copied());
        if let Err(error @ HopGroupError::TooMany { .. }) = group {
            let flow = &self.flow;
            log(format!(
                "flow `{flow}`: the route to {prefix}: {error}; its first {HOPS_MAX} are used"
            ));
            group = HopGroup::new(ours.into_iter().take(HOPS_MAX));
        }
        match group {
            Ok(group) => self.fib.set_hops(prefix, &group),
            Err(_) => self.fib.set_route(prefix, Some(Route::on_link(KERNEL))),
        }
    }

    /// Returns what each hop of routes with several has got so far.
    pub(super) fn hop_traffic(&self) -> Vec<HopReport> {
        let report = |one: HopTraffic| HopReport {
            interface: self.names.get(usize::from(one.hop.port.0)).cloned().unwrap_or_default(),
            gateway: one.hop.via,
            host_packets: one.host.packets,
            host_bytes: one.host.bytes,
            nic_packets: one.nic.packets,
            nic_bytes: one.nic.bytes,
        };
        self.fib.snapshot().hop_traffic().into_iter().map(report).collect()
    }

    /// Returns the indices of our interfaces that have neighbours.
    pub(super) fn indices(&self) -> Vec<u32> {
        let fib = self.fib.snapshot();
        let has_neighbours = |port| fib.interface(port).is_none_or(|one| !one.is_headerless);
        self.ports
            .iter()
            .filter(|(_, port)| has_neighbours(**port))
            .map(|(index, _)| *index)
            .collect()
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
    use vigie::forward::tables::FlowHash;

    use crate::kernel::{self, Hop};

    fn interface(index: u32, name: &str, is_up: bool) -> Change {
        let name = name.to_owned();
        Change::Interface(kernel::Interface {
            index,
            name,
            mac: Some([2; 6]),
            mtu: 1500,
            is_up,
            is_pair: false,
            is_headerless: false,
            is_without_tcx: false,
            vlan_of: None,
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
            "l3",
            fib.clone(),
            vec!["a".to_owned(), "b".to_owned()],
            Arc::new(Questions::new()),
        );
        let to: IpAddr = [10, 1, 0, 5].into();
        let port = |fib: &Fib| fib.snapshot().route(to, FlowHash::default).map(|route| route.port);
        let leaves_by =
            |fib: &Fib| fib.snapshot().next_hop(to, FlowHash::default).map(|hop| hop.port);
        let mac = Some([2, 0, 0, 0, 0, 9]);
        let neighbour =
            |interface| Change::Neighbour { interface, address: to, mac, is_failed: false };
        tables.follow(&[interface(3, "a", true), interface(4, "b", true)], &cache);
        tables.follow(&[route("10.1.0.0", 16, 4), neighbour(4)], &cache);
        assert_eq!(leaves_by(&fib), Ok(Port(1)));
        tables.follow(&[route("10.1.0.0", 24, 99)], &cache);
        assert_eq!(port(&fib), Some(KERNEL));
        tables.follow(&[interface(4, "b", false)], &cache);
        assert_eq!(fib.snapshot().interface(Port(1)), None);
        let gone = Change::InterfaceGone { index: 4, name: "b".to_owned() };
        tables.follow(&[gone, interface(7, "b", true)], &cache);
        tables.follow(&[route("10.1.0.0", 24, 7), neighbour(7)], &cache);
        assert_eq!(leaves_by(&fib), Ok(Port(1)));
        assert_eq!((tables.indices(), tables.port(4)), (vec![3, 7], None));
    }

    /// Goal: of several hops those by our interfaces are used, as soon as these are known, at most 64, and those that live. Method: changes by
    /// hand, and the hops that the flows of a table's buckets take.
    #[test]
    fn several_hops_become_a_group() {
        let (fib, cache) = (Fib::default(), NetlinkCache::default());
        let names = vec!["a".to_owned(), "b".to_owned()];
        let mut tables = Tables::new("l3", fib.clone(), names, Arc::new(Questions::new()));
        let hop = |interface, last| {
            let gateway = Some([10, 0, 0, last].into());
            Hop { interface, gateway, weight: NonZeroU16::MIN }
        };
        let spread = |hops: Vec<Hop>| {
            let (prefix, target) = (Prefix::ALL_V4, Some(Target::Spread(hops.into())));
            Change::Route { prefix, target }
        };
        let used = |fib: &Fib| {
            let mut used = std::collections::BTreeSet::new();
            fib.snapshot().each_group(|_, table| {
                let hops = table.group().hops().iter().map(|(hop, _)| *hop);
                let shares = table.shares().into_iter().zip(hops);
                used.extend(shares.filter(|(share, _)| *share > 0).map(|(_, hop)| hop.port));
            });
            used.into_iter().collect::<Vec<_>>()
        };
        let count = |fib: &Fib| {
            let mut count = Vec::new();
            fib.snapshot().each_group(|_, table| count.push(table.group().hops().len()));
            count
        };
        tables.follow(&[interface(3, "a", true), interface(4, "b", true)], &cache);
        tables.follow(&[spread(vec![hop(3, 1), hop(4, 1), hop(99, 1)])], &cache);
        assert_eq!((count(&fib), used(&fib)), (vec![2], vec![Port(0), Port(1)]));
        tables.follow(&[interface(4, "b", false)], &cache);
        assert_eq!((count(&fib), used(&fib)), (vec![2], vec![Port(0)]));
        tables.follow(&[interface(4, "b", true)], &cache);
        let failed = |is_failed: bool| {
            let mac = (!is_failed).then_some([2; 6]);
            Change::Neighbour { interface: 3, address: [10, 0, 0, 1].into(), mac, is_failed }
        };
        tables.follow(&[failed(true)], &cache);
        assert_eq!(used(&fib), [Port(1)]);
        tables.follow(&[failed(false)], &cache);
        assert_eq!(used(&fib), [Port(0), Port(1)]);
        tables.follow(&[spread((1..=70).map(|last| hop(3, last)).collect())], &cache);
        assert_eq!(count(&fib), [64]);
        tables.follow(&[spread(vec![hop(98, 1), hop(99, 1)])], &cache);
        let route = fib.snapshot().route([1, 1, 1, 1].into(), FlowHash::default);
        assert_eq!((count(&fib), route), (vec![], Some(Route::on_link(KERNEL))));
    }

    /// Goal: interfaces have the addresses of their indices, whichever is announced first, and do not inherit those of
    /// one that is gone. Method: changes by hand.
    #[test]
    fn interfaces_have_addresses() {
        let fib = Fib::default();
        let cache = NetlinkCache::default();
        let mut tables =
            Tables::new("l3", fib.clone(), vec!["a".to_owned()], Arc::new(Questions::new()));
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
