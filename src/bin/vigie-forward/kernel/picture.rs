//! Routes, neighbours and interfaces as the kernel has them, without I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prefix {
    /// The first of them.
    pub(crate) address: IpAddr,
    /// How many bits of it count.
    pub(crate) bits: u8,
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Where packets to a prefix go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// To this host, which broadcasts and groups count as.
    Local,
    /// Out of an interface: to a gateway, or to the destination itself.
    Via { interface: u32, gateway: Option<IpAddr> },
    /// Nowhere: unreachable, prohibited, black hole.
    Discard,
}

/// A route of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    /// The local table comes before all others; `false` sorts first.
    pub(crate) is_of_other_table: bool,
    /// The lowest wins.
    pub(crate) metric: u32,
    pub(crate) target: Target,
    pub(crate) prefix: Prefix,
}

/// A neighbour's address on the link, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    pub(crate) mac: Option<[u8; 6]>,
    /// The kernel has not heard from it for a while.
    pub(crate) is_stale: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu: u32,
    pub(crate) is_up: bool,
    /// One end of a veth pair.
    pub(crate) is_pair: bool,
}

/// An address that an interface has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    /// The lowest is the one from which others are told something.
    pub(crate) rank: u8,
}

/// From which of its addresses others are told something by an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
}

/// What one message of the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Interface(Interface),
    InterfaceGone(u32),
    Route(Route),
    RouteGone(Route),
    Neighbour(Neighbour),
    NeighbourGone(Neighbour),
    /// An interface has an address. If it had not, the kernel may have removed routes without a word.
    Address(Address),
    /// An address went, or cannot be used: the kernel then removes routes without a word.
    Addresses,
}

/// What is different now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Packets to the prefix go elsewhere, or have no route of their own any more.
    Route { prefix: Prefix, target: Option<Target> },
    /// A neighbour's address is known, another one, or not any more.
    Neighbour { interface: u32, address: IpAddr, mac: Option<[u8; 6]> },
    /// An interface is there, or changed.
    Interface(Interface),
    /// An interface is gone.
    InterfaceGone { index: u32, name: String },
    /// An interface has other addresses.
    Addresses { interface: u32, own: Own },
}

/// Whether what is known may differ from what the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "routes that the kernel removed in silence stay known until it is asked again"]
pub(crate) enum Trust {
    /// The event told everything.
    Kept,
    /// The kernel must be asked again.
    Lost,
}

/// Everything that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Picture {
    interfaces: BTreeMap<u32, Interface>,
    /// Those of one prefix in order of preference, at most [`ROUTES_OF_PREFIX_MAX`].
    routes: BTreeMap<Prefix, Vec<Route>>,
    neighbours: BTreeMap<(u32, IpAddr), Neighbour>,
    /// The best of each interface, of version 4 and 6.
    addresses: BTreeMap<(u32, bool), Address>,
}

/// More routes to one prefix are not kept: they differ in metric, and the first wins.
const ROUTES_OF_PREFIX_MAX: usize = 64;

impl Picture {
    /// Makes a picture of everything that the kernel tells when it is asked.
    pub(crate) fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut picture = Self::default();
        for event in events {
            let _ = picture.take(event, &mut Vec::new());
        }
        picture
    }

    /// Takes in one event, and appends what it changed.
    pub(crate) fn take(&mut self, event: Event, changes: &mut Vec<Change>) -> Trust {
        match event {
            Event::Interface(new) => self.take_interface(new, changes),
            Event::InterfaceGone(index) => {
                if let Some(Interface { name, .. }) = self.interfaces.remove(&index) {
                    changes.push(Change::InterfaceGone { index, name });
                }
                self.addresses.retain(|(of, _), _| *of != index);
                Trust::Lost
            }
            Event::Route(route) => {
                self.add(route, changes);
                Trust::Kept
            }
            Event::RouteGone(route) => self.remove(&route, changes),
            Event::Neighbour(new) => {
                let key = (new.interface, new.address);
                let old = self.neighbours.insert(key, new).and_then(|old| old.mac);
                if old != new.mac {
                    let (interface, address) = key;
                    changes.push(Change::Neighbour { interface, address, mac: new.mac });
                }
                Trust::Kept
            }
            Event::NeighbourGone(gone) => {
                let (interface, address) = (gone.interface, gone.address);
                let old = self.neighbours.remove(&(interface, address));
                if old.is_some_and(|old| old.mac.is_some()) {
                    changes.push(Change::Neighbour { interface, address, mac: None });
                }
                Trust::Kept
            }
            Event::Address(new) => {
                let before = self.own(new.interface);
                let best = self.addresses.entry((new.interface, new.address.is_ipv6()));
                let best = best.or_insert(new);
                if new.rank < best.rank {
                    *best = new;
                }
                let (interface, own) = (new.interface, self.own(new.interface));
                if own != before {
                    changes.push(Change::Addresses { interface, own });
                }
                Trust::Lost
            }
            Event::Addresses => Trust::Lost,
        }
    }

    /// Returns from which addresses others are told something by an interface.
    fn own(&self, interface: u32) -> Own {
        let best = |is_v6| self.addresses.get(&(interface, is_v6)).map(|one| one.address);
        let mut own = Own::default();
        for address in [false, true].into_iter().filter_map(best) {
            match address {
                IpAddr::V4(address) => own.ipv4 = Some(address),
                IpAddr::V6(address) => own.ipv6 = Some(address),
            }
        }
        own
    }

    fn take_interface(&mut self, new: Interface, changes: &mut Vec<Change>) -> Trust {
        let old = self.interfaces.insert(new.index, new.clone());
        if old.as_ref() == Some(&new) {
            return Trust::Kept;
        }
        // The kernel removes the IPv4 routes of an interface that goes down without telling.
        let trust =
            if old.is_none_or(|old| old.is_up) && !new.is_up { Trust::Lost } else { Trust::Kept };
        changes.push(Change::Interface(new));
        trust
    }

    fn add(&mut self, route: Route, changes: &mut Vec<Change>) {
        let prefix = route.prefix;
        let before = self.target(prefix);
        let routes = self.routes.entry(prefix).or_default();
        // A new route of the same table and metric replaces the old one. (Where the kernel keeps both, it has
        // only appended, and the first wins: that is found out when it is asked again.)
        let rank = |route: &Route| (route.is_of_other_table, route.metric);
        routes.retain(|old| rank(old) != rank(&route));
        if routes.len() < ROUTES_OF_PREFIX_MAX {
            routes.push(route);
        }
        routes.sort_unstable();
        self.note(prefix, before, changes);
    }

    fn remove(&mut self, route: &Route, changes: &mut Vec<Change>) -> Trust {
        let before = self.target(route.prefix);
        let Some(routes) = self.routes.get_mut(&route.prefix) else { return Trust::Lost };
        let Some(at) = routes.iter().position(|known| known == route) else { return Trust::Lost };
        routes.remove(at);
        if routes.is_empty() {
            self.routes.remove(&route.prefix);
        }
        self.note(route.prefix, before, changes);
        Trust::Kept
    }

    fn note(&self, prefix: Prefix, before: Option<Target>, changes: &mut Vec<Change>) {
        let target = self.target(prefix);
        if target != before {
            changes.push(Change::Route { prefix, target });
        }
    }

    /// Returns where packets to exactly this prefix go.
    pub(crate) fn target(&self, prefix: Prefix) -> Option<Target> {
        Some(self.routes.get(&prefix)?.first()?.target)
    }

    /// Puts `new` in the place of what is known, and appends what differs: interfaces that came, routes that
    /// went, routes that came, neighbours, addresses, interfaces that went.
    pub(crate) fn replace(&mut self, new: Self, changes: &mut Vec<Change>) {
        for interface in new.interfaces.values() {
            if self.interfaces.get(&interface.index) != Some(interface) {
                changes.push(Change::Interface(interface.clone()));
            }
        }
        for prefix in self.routes.keys().filter(|prefix| new.target(**prefix).is_none()) {
            changes.push(Change::Route { prefix: *prefix, target: None });
        }
        for prefix in
            new.routes.keys().filter(|prefix| new.target(**prefix) != self.target(**prefix))
        {
            changes.push(Change::Route { prefix: *prefix, target: new.target(*prefix) });
        }
        let mac = |of: &Self, key: &(u32, IpAddr)| of.neighbours.get(key).and_then(|one| one.mac);
        let keys = self.neighbours.keys().chain(new.neighbours.keys());
        let keys: BTreeSet<_> = keys.copied().collect();
        for key in keys.into_iter().filter(|key| mac(self, key) != mac(&new, key)) {
            let (interface, address) = key;
            changes.push(Change::Neighbour { interface, address, mac: mac(&new, &key) });
        }
        let known = self.addresses.keys().chain(new.addresses.keys());
        let known: BTreeSet<u32> = known.map(|(interface, _)| *interface).collect();
        for interface in known.into_iter().filter(|one| self.own(*one) != new.own(*one)) {
            changes.push(Change::Addresses { interface, own: new.own(interface) });
        }
        for Interface { index, name, .. } in self.interfaces.values() {
            if !new.interfaces.contains_key(index) {
                changes.push(Change::InterfaceGone { index: *index, name: name.clone() });
            }
        }
        *self = new;
    }

    /// Returns everything that is known, as changes from nothing.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        Self::default().replace(self.clone(), &mut changes);
        changes
    }

    /// Returns the interface of a name.
    pub(crate) fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.values().find(|interface| interface.name == name)
    }

    /// Returns the networks of IPv4 that are reached by an interface, without the default route.
    pub(crate) fn networks(&self, index: u32) -> Vec<Prefix> {
        let is_by = |prefix: &&Prefix| {
            let target = self.target(**prefix);
            matches!(target, Some(Target::Via { interface, .. }) if interface == index)
        };
        let networks =
            self.routes.keys().filter(|prefix| prefix.bits > 0 && prefix.address.is_ipv4());
        networks.filter(is_by).copied().collect()
    }

    /// Returns how many routes count: one for each prefix.
    pub(crate) fn route_count(&self) -> usize {
        self.routes.len()
    }

    /// Returns how many neighbours have a known address.
    pub(crate) fn neighbour_count(&self) -> usize {
        self.neighbours.values().filter(|neighbour| neighbour.mac.is_some()).count()
    }

    /// Returns the gateways out of these interfaces of which the kernel knows no address, or has not heard
    /// for a while, each once.
    pub(crate) fn gateways_to_ask(&self, interfaces: &[u32]) -> Vec<(u32, IpAddr)> {
        let targets = self.routes.values().filter_map(|routes| Some(routes.first()?.target));
        let gateways = targets.filter_map(|target| match target {
            Target::Via { interface, gateway: Some(gateway) }
                if interfaces.contains(&interface) =>
            {
                Some((interface, gateway))
            }
            _ => None,
        });
        let gateways: BTreeSet<_> = gateways.collect();
        let is_fresh = |key: &(u32, IpAddr)| {
            self.neighbours.get(key).is_some_and(|one| one.mac.is_some() && !one.is_stale)
        };
        gateways.into_iter().filter(|key| !is_fresh(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, bits) = text.split_once('/').unwrap();
        Prefix { address: address.parse().unwrap(), bits: bits.parse().unwrap() }
    }

    fn route(to: &str, metric: u32, interface: u32) -> Route {
        let target = Target::Via { interface, gateway: None };
        Route { is_of_other_table: true, metric, target, prefix: prefix(to) }
    }

    fn via(interface: u32) -> Option<Target> {
        Some(Target::Via { interface, gateway: None })
    }

    fn up(index: u32, is_up: bool) -> Interface {
        Interface {
            index,
            name: format!("if{index}"),
            mac: Some([2; 6]),
            mtu: 1500,
            is_up,
            is_pair: false,
        }
    }

    /// Goal: of several routes to one prefix the local table's and then the lowest metric's counts, and what
    /// it hides comes back when it goes. Method: three routes, removed one by one, with the changes told.
    #[test]
    fn the_best_route_counts() {
        let mut picture = Picture::default();
        let local =
            Route { is_of_other_table: false, target: Target::Local, ..route("10.0.0.0/8", 0, 0) };
        let mut said = |event| {
            let mut changes = Vec::new();
            let trust = picture.take(event, &mut changes);
            let targets = changes.into_iter().map(|change| match change {
                Change::Route { target, .. } => target,
                other => panic!("{other:?}"),
            });
            (trust, targets.collect::<Vec<_>>())
        };
        assert_eq!(said(Event::Route(route("10.0.0.0/8", 100, 1))), (Trust::Kept, vec![via(1)]));
        assert_eq!(said(Event::Route(route("10.0.0.0/8", 200, 2))), (Trust::Kept, vec![]));
        assert_eq!(said(Event::Route(local)), (Trust::Kept, vec![Some(Target::Local)]));
        assert_eq!(said(Event::RouteGone(route("10.0.0.0/8", 100, 1))), (Trust::Kept, vec![]));
        assert_eq!(said(Event::RouteGone(local)), (Trust::Kept, vec![via(2)]));
        assert_eq!(said(Event::Route(route("10.0.0.0/8", 200, 3))), (Trust::Kept, vec![via(3)]));
        assert_eq!(said(Event::RouteGone(route("10.0.0.0/8", 200, 3))), (Trust::Kept, vec![None]));
        // What was never heard of: something was lost.
        assert_eq!(said(Event::RouteGone(route("10.0.0.0/8", 200, 3))), (Trust::Lost, vec![]));
    }

    /// Goal: what the kernel does in silence is asked for. Method: an interface that goes down, one that is
    /// removed, and an address.
    #[test]
    fn silence_is_not_trusted() {
        let (mut picture, mut changes) = (Picture::default(), Vec::new());
        assert_eq!(picture.take(Event::Interface(up(1, true)), &mut changes), Trust::Kept);
        assert_eq!(picture.take(Event::Interface(up(1, true)), &mut changes), Trust::Kept);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(picture.take(Event::Interface(up(1, false)), &mut changes), Trust::Lost);
        assert_eq!(picture.take(Event::InterfaceGone(1), &mut changes), Trust::Lost);
        assert_eq!(picture.take(Event::Addresses, &mut changes), Trust::Lost);
        assert_eq!(changes.len(), 3, "{changes:?}");
    }

    /// Goal: the best address of each version counts, and what goes is not kept. Method: addresses in a bad order, and the interface's
    /// end.
    #[test]
    fn the_best_address_counts() {
        let (mut picture, mut changes) = (Picture::default(), Vec::new());
        let address = |text: &str, rank| {
            Event::Address(Address { interface: 1, address: text.parse().unwrap(), rank })
        };
        let all =
            [("fe80::1", 4), ("10.0.0.2", 1), ("10.0.0.1", 0), ("10.0.0.3", 0), ("fd00::1", 0)];
        for (text, rank) in all {
            assert_eq!(picture.take(address(text, rank), &mut changes), Trust::Lost);
        }
        let own = Own { ipv4: Some([10, 0, 0, 1].into()), ipv6: "fd00::1".parse().ok() };
        assert_eq!(picture.own(1), own);
        assert_eq!(changes.len(), 4, "{changes:?}");
        assert_eq!(changes.last(), Some(&Change::Addresses { interface: 1, own }));
        let _ = picture.take(Event::InterfaceGone(1), &mut changes);
        assert_eq!(picture.own(1), Own::default());
    }

    /// Goal: a picture that is replaced by another tells exactly what differs: applied to the first one, the
    /// changes give the second. Method: random pictures from 64 seeds.
    #[test]
    fn replacing_tells_what_differs() {
        let random = |rng: &mut fastrand::Rng| {
            Picture::of((0..rng.usize(0..40)).map(|_| match rng.u8(0..4) {
                3 => Event::Address(Address {
                    interface: rng.u32(1..4),
                    address: [10, 0, 1, rng.u8(1..5)].into(),
                    rank: rng.u8(0..3),
                }),
                0 => Event::Interface(up(rng.u32(1..4), rng.bool())),
                1 => {
                    let to = format!("10.{}.0.0/16", rng.u8(0..6));
                    Event::Route(route(&to, rng.u32(0..3), rng.u32(1..4)))
                }
                _ => Event::Neighbour(Neighbour {
                    interface: rng.u32(1..3),
                    address: [10, 0, 0, rng.u8(1..5)].into(),
                    mac: rng.bool().then(|| [rng.u8(0..3); 6]),
                    is_stale: rng.bool(),
                }),
            }))
        };
        let seen = |picture: &Picture| {
            let targets = picture.routes.keys().map(|prefix| (*prefix, picture.target(*prefix)));
            let macs = picture.neighbours.iter();
            let macs = macs.filter_map(|(key, one)| Some((*key, one.mac?)));
            (
                targets.collect::<BTreeMap<_, _>>(),
                macs.collect::<BTreeMap<_, _>>(),
                picture.interfaces.clone(),
                (1..4).map(|index| (index, picture.own(index))).collect::<BTreeMap<_, _>>(),
            )
        };
        for seed in 0..64 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut old, new) = (random(&mut rng), random(&mut rng));
            let (mut targets, mut macs, mut interfaces, mut owns) = seen(&old);
            let mut changes = Vec::new();
            old.replace(new.clone(), &mut changes);
            for change in changes {
                match change {
                    Change::Route { prefix, target: None } => {
                        assert!(targets.remove(&prefix).is_some(), "seed {seed}");
                    }
                    Change::Route { prefix, target } => drop(targets.insert(prefix, target)),
                    Change::Neighbour { interface, address, mac: Some(mac) } => {
                        macs.insert((interface, address), mac);
                    }
                    Change::Neighbour { interface, address, mac: None } => {
                        assert!(macs.remove(&(interface, address)).is_some(), "seed {seed}");
                    }
                    Change::Interface(one) => drop(interfaces.insert(one.index, one)),
                    Change::InterfaceGone { index, .. } => {
                        assert!(interfaces.remove(&index).is_some(), "seed {seed}");
                    }
                    Change::Addresses { interface, own } => {
                        assert_ne!(owns.insert(interface, own), Some(own), "seed {seed}");
                    }
                }
            }
            assert_eq!((targets, macs, interfaces, owns), seen(&new), "seed {seed}");
            assert_eq!(old, new, "seed {seed}");
        }
    }

    /// Goal: gateways are asked for until their address is known and fresh. Method: one in each state.
    #[test]
    fn gateways_are_asked_for() {
        let gateway: IpAddr = [10, 0, 0, 1].into();
        let target = Target::Via { interface: 1, gateway: Some(gateway) };
        let mut picture = Picture::of([Event::Route(Route { target, ..route("0.0.0.0/0", 0, 1) })]);
        assert_eq!(picture.gateways_to_ask(&[1]), [(1, gateway)]);
        assert_eq!(picture.gateways_to_ask(&[2]), []);
        let mut known =
            Neighbour { interface: 1, address: gateway, mac: Some([2; 6]), is_stale: true };
        let _ = picture.take(Event::Neighbour(known), &mut Vec::new());
        assert_eq!(picture.gateways_to_ask(&[1]), [(1, gateway)]);
        known.is_stale = false;
        let _ = picture.take(Event::Neighbour(known), &mut Vec::new());
        assert_eq!(picture.gateways_to_ask(&[1]), []);
    }
}
