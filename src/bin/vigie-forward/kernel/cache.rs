//! Routes, neighbours and interfaces as the kernel has them, without I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
    sync::Arc,
};

use vigie::forward::tables::Prefix;

/// The target of a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// This host; includes broadcast and multicast.
    Local,
    /// An interface: to a gateway, or directly to the destination.
    Via { interface: u32, gateway: Option<IpAddr> },
    /// Several of these, among which flows are spread.
    Spread(Arc<[Hop]>),
    /// None: unreachable, prohibited, black hole.
    Discard,
}

/// One of several hops of a route, whether it lives or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hop {
    pub(crate) interface: u32,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) weight: NonZeroU16,
}

impl Target {
    /// Returns the interfaces by which packets may leave, with their gateways.
    pub(crate) fn ways(&self) -> impl Iterator<Item = (u32, Option<IpAddr>)> {
        let (one, several): (_, &[Hop]) = match self {
            Self::Via { interface, gateway } => (Some((*interface, *gateway)), &[]),
            Self::Spread(hops) => (None, hops),
            Self::Local | Self::Discard => (None, &[]),
        };
        one.into_iter().chain(several.iter().map(|hop| (hop.interface, hop.gateway)))
    }
}

/// A route of one table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    /// The local table comes before all others; `false` sorts first.
    pub(crate) is_of_other_table: bool,
    /// The lowest metric wins.
    pub(crate) metric: u32,
    pub(crate) target: Target,
    pub(crate) prefix: Prefix,
}

/// A neighbour's link-layer address, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    pub(crate) mac: Option<[u8; 6]>,
    /// The kernel has not heard from it for a while.
    pub(crate) is_stale: bool,
    /// It has not answered when the kernel asked last.
    pub(crate) is_failed: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Option<[u8; 6]>,
    /// True if its packets have no Ethernet header (tun, WireGuard, tunnels of IPv4).
    pub(crate) is_headerless: bool,
    /// The same, of a kind where a program at tcx may not find the IP header (vti, XFRM: what is decrypted there may keep the place of a header).
    pub(crate) is_without_tcx: bool,
    pub(crate) mtu: u32,
    pub(crate) is_up: bool,
    /// One end of a veth pair.
    pub(crate) is_pair: bool,
    /// The index of the interface whose VLAN it is.
    pub(crate) vlan_of: Option<u32>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    /// The address with the lowest rank is the source of ICMP errors.
    pub(crate) rank: u8,
}

/// The addresses from which an interface sends ICMP errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceAddresses {
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
}

/// The content of one kernel message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetlinkEvent {
    Interface(Interface),
    InterfaceGone(u32),
    Route(Route),
    RouteGone(Route),
    Neighbour(Neighbour),
    NeighbourGone(Neighbour),
    /// An interface has an address. If it lacked one before, the kernel may have removed routes silently.
    Address(Address),
    /// An address was removed or became unusable: the kernel then removes routes silently.
    Addresses,
    /// A next hop that routes name by its number has changed: the kernel may have changed routes silently.
    NextHops,
}

/// A change of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The prefix has another target, or no route of its own any more.
    Route { prefix: Prefix, target: Option<Target> },
    /// A neighbour's address became known, changed, is no longer known, or is to be confirmed or was; or it does not answer.
    Neighbour { interface: u32, address: IpAddr, mac: Option<[u8; 6]>, is_failed: bool },
    /// An interface appeared or changed.
    Interface(Interface),
    /// An interface is gone.
    InterfaceGone { index: u32, name: String },
    /// The addresses of an interface changed.
    Addresses { interface: u32, own: SourceAddresses },
}

/// The state of the cache: equal to the kernel's tables, or perhaps not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "silently removed routes stay known until the kernel is queried again"]
pub(crate) enum CacheState {
    /// The event contained all changes.
    Current,
    /// The kernel must be queried again.
    Stale,
}

/// The cached tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetlinkCache {
    interfaces: BTreeMap<u32, Interface>,
    /// The routes of one prefix in order of preference, at most [`ROUTES_OF_PREFIX_MAX`].
    routes: BTreeMap<Prefix, Vec<Route>>,
    neighbours: BTreeMap<(u32, IpAddr), Neighbour>,
    /// The best one of each interface, for IPv4 and IPv6.
    addresses: BTreeMap<(u32, bool), Address>,
}

/// Further routes of one prefix are not kept: they differ in metric, and the first wins.
const ROUTES_OF_PREFIX_MAX: usize = 64;

impl NetlinkCache {
    /// Builds a cache from a full dump of the kernel.
    pub(crate) fn of(events: impl IntoIterator<Item = NetlinkEvent>) -> Self {
        let mut cache = Self::default();
        for event in events {
            let _ = cache.take(event, &mut Vec::new());
        }
        cache
    }

    /// Applies one event, and appends the resulting changes.
    pub(crate) fn take(&mut self, event: NetlinkEvent, changes: &mut Vec<Change>) -> CacheState {
        match event {
            NetlinkEvent::Interface(new) => self.take_interface(new, changes),
            NetlinkEvent::InterfaceGone(index) => {
                if let Some(Interface { name, .. }) = self.interfaces.remove(&index) {
                    changes.push(Change::InterfaceGone { index, name });
                }
                self.addresses.retain(|(of, _), _| *of != index);
                CacheState::Stale
            }
            NetlinkEvent::Route(route) => {
                self.add(route, changes);
                CacheState::Current
            }
            NetlinkEvent::RouteGone(route) => self.remove(&route, changes),
            NetlinkEvent::Neighbour(new) => {
                let key = (new.interface, new.address);
                let old = self.neighbours.insert(key, new);
                let seen = |of: Neighbour| (of.mac, of.is_stale, of.is_failed);
                if old.map_or((None, false, false), seen) != seen(new) {
                    let (interface, address) = key;
                    let Neighbour { mac, is_failed, .. } = new;
                    changes.push(Change::Neighbour { interface, address, mac, is_failed });
                }
                CacheState::Current
            }
            NetlinkEvent::NeighbourGone(gone) => {
                let (interface, address) = (gone.interface, gone.address);
                let old = self.neighbours.remove(&(interface, address));
                if old.is_some_and(|old| old.mac.is_some()) {
                    let (mac, is_failed) = (None, false);
                    changes.push(Change::Neighbour { interface, address, mac, is_failed });
                }
                CacheState::Current
            }
            NetlinkEvent::Address(new) => {
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
                CacheState::Stale
            }
            NetlinkEvent::Addresses | NetlinkEvent::NextHops => CacheState::Stale,
        }
    }

    /// Returns the addresses from which an interface sends ICMP errors: those of the widest scope.
    pub(crate) fn own(&self, interface: u32) -> SourceAddresses {
        let best = |is_v6| self.addresses.get(&(interface, is_v6)).map(|one| one.address);
        let mut own = SourceAddresses::default();
        for address in [false, true].into_iter().filter_map(best) {
            match address {
                IpAddr::V4(address) => own.ipv4 = Some(address),
                IpAddr::V6(address) => own.ipv6 = Some(address),
            }
        }
        own
    }

    fn take_interface(&mut self, new: Interface, changes: &mut Vec<Change>) -> CacheState {
        let old = self.interfaces.insert(new.index, new.clone());
        if old.as_ref() == Some(&new) {
            return CacheState::Current;
        }
        // The kernel silently removes the IPv4 routes of an interface that goes down.
        let trust = if old.is_none_or(|old| old.is_up) && !new.is_up {
            CacheState::Stale
        } else {
            CacheState::Current
        };
        changes.push(Change::Interface(new));
        trust
    }

    fn add(&mut self, route: Route, changes: &mut Vec<Change>) {
        let prefix = route.prefix;
        let before = self.target(prefix);
        let routes = self.routes.entry(prefix).or_default();
        // A new route with the same table and metric replaces the old one. (If the kernel keeps both, it has appended
        // the new one, and the first wins: the next full query corrects that.)
        let rank = |route: &Route| (route.is_of_other_table, route.metric);
        routes.retain(|old| rank(old) != rank(&route));
        if routes.len() < ROUTES_OF_PREFIX_MAX {
            routes.push(route);
        }
        routes.sort_unstable();
        self.note(prefix, before, changes);
    }

    fn remove(&mut self, route: &Route, changes: &mut Vec<Change>) -> CacheState {
        let before = self.target(route.prefix);
        let Some(routes) = self.routes.get_mut(&route.prefix) else { return CacheState::Stale };
        let Some(at) = routes.iter().position(|known| known == route) else {
            return CacheState::Stale;
        };
        routes.remove(at);
        if routes.is_empty() {
            self.routes.remove(&route.prefix);
        }
        self.note(route.prefix, before, changes);
        CacheState::Current
    }

    fn note(&self, prefix: Prefix, before: Option<Target>, changes: &mut Vec<Change>) {
        let target = self.target(prefix);
        if target != before {
            changes.push(Change::Route { prefix, target });
        }
    }

    /// Returns the target of exactly this prefix.
    pub(crate) fn target(&self, prefix: Prefix) -> Option<Target> {
        Some(self.routes.get(&prefix)?.first()?.target.clone())
    }

    /// Replaces the contents by `new`, and appends the differences: new interfaces, removed routes, new routes,
    /// neighbours, addresses, removed interfaces.
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

        let seen = |of: &Self, key: &(u32, IpAddr)| {
            let known = of.neighbours.get(key);
            known.map_or((None, false), |one| (one.mac, one.is_failed))
        };
        let keys = self.neighbours.keys().chain(new.neighbours.keys());
        let keys: BTreeSet<_> = keys.copied().collect();
        for key in keys.into_iter().filter(|key| seen(self, key) != seen(&new, key)) {
            let ((interface, address), (mac, is_failed)) = (key, seen(&new, &key));
            changes.push(Change::Neighbour { interface, address, mac, is_failed });
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

    /// Returns the whole contents, as changes from an empty cache.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        Self::default().replace(self.clone(), &mut changes);
        changes
    }

    /// Returns the interface with a name.
    pub(crate) fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.values().find(|interface| interface.name == name)
    }

    /// Returns the name of a VLAN of an interface, if there is one.
    pub(crate) fn vlan_of(&self, index: u32) -> Option<&str> {
        let vlan = self.interfaces.values().find(|interface| interface.vlan_of == Some(index));
        vlan.map(|interface| interface.name.as_str())
    }

    /// Returns the IPv4 networks reached by an interface, without the default route.
    pub(crate) fn networks(&self, index: u32) -> Vec<Prefix> {
        let is_by = |prefix: &&Prefix| {
            let target = self.target(**prefix);
            target.is_some_and(|target| target.ways().any(|(interface, _)| interface == index))
        };
        let networks = self
            .routes
            .keys()
            .filter(|prefix| prefix.length_bits() > 0 && prefix.address().is_ipv4());
        networks.filter(is_by).copied().collect()
    }

    /// Returns the number of effective routes: one for each prefix.
    pub(crate) fn route_count(&self) -> usize {
        self.routes.len()
    }

    /// Returns the number of neighbours with a known address.
    pub(crate) fn neighbour_count(&self) -> usize {
        self.neighbours.values().filter(|neighbour| neighbour.mac.is_some()).count()
    }

    /// Returns the neighbours on these interfaces that the kernel should be asked for, each once: gateways whose address it
    /// does not know, and all that it has not confirmed for a while. It notices a changed address only by asking.
    pub(crate) fn neighbours_to_ask(&self, interfaces: &[u32]) -> Vec<(u32, IpAddr)> {
        let targets = self.routes.values().filter_map(|routes| Some(&routes.first()?.target));
        let gateways = targets
            .flat_map(Target::ways)
            .filter_map(|(interface, gateway)| Some((interface, gateway?)));
        let is_known =
            |key: &(u32, IpAddr)| self.neighbours.get(key).is_some_and(|one| one.mac.is_some());
        let unknown = gateways.filter(|key| !is_known(key));
        let stale = self.neighbours.iter().filter(|(_, one)| one.mac.is_some() && one.is_stale);
        let all: BTreeSet<_> = unknown.chain(stale.map(|(key, _)| *key)).collect();
        all.into_iter().filter(|(interface, _)| interfaces.contains(interface)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
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
            is_headerless: false,
            is_without_tcx: false,
            vlan_of: None,
        }
    }

    /// Goal: among routes to one prefix the local table's wins, then the lowest metric, and hidden ones come back when
    /// it is removed. Method: three routes, removed one by one, with the changes reported.
    #[test]
    fn the_best_route_counts() {
        let mut cache = NetlinkCache::default();
        let local =
            Route { is_of_other_table: false, target: Target::Local, ..route("10.0.0.0/8", 0, 0) };
        let mut said = |event| {
            let mut changes = Vec::new();
            let trust = cache.take(event, &mut changes);
            let targets = changes.into_iter().map(|change| match change {
                Change::Route { target, .. } => target,
                other => panic!("{other:?}"),
            });
            (trust, targets.collect::<Vec<_>>())
        };
        assert_eq!(
            said(NetlinkEvent::Route(route("10.0.0.0/8", 100, 1))),
            (CacheState::Current, vec![via(1)])
        );
        assert_eq!(
            said(NetlinkEvent::Route(route("10.0.0.0/8", 200, 2))),
            (CacheState::Current, vec![])
        );
        assert_eq!(
            said(NetlinkEvent::Route(local.clone())),
            (CacheState::Current, vec![Some(Target::Local)])
        );
        assert_eq!(
            said(NetlinkEvent::RouteGone(route("10.0.0.0/8", 100, 1))),
            (CacheState::Current, vec![])
        );
        assert_eq!(said(NetlinkEvent::RouteGone(local)), (CacheState::Current, vec![via(2)]));
        assert_eq!(
            said(NetlinkEvent::Route(route("10.0.0.0/8", 200, 3))),
            (CacheState::Current, vec![via(3)])
        );
        assert_eq!(
            said(NetlinkEvent::RouteGone(route("10.0.0.0/8", 200, 3))),
            (CacheState::Current, vec![None])
        );
        // Removal of an unknown route: an event was lost.
        assert_eq!(
            said(NetlinkEvent::RouteGone(route("10.0.0.0/8", 200, 3))),
            (CacheState::Stale, vec![])
        );
    }

    /// Goal: after silent changes the kernel is queried. Method: an interface that goes down, one that is removed, and
    /// an address.
    #[test]
    fn silence_is_not_trusted() {
        let (mut cache, mut changes) = (NetlinkCache::default(), Vec::new());
        assert_eq!(
            cache.take(NetlinkEvent::Interface(up(1, true)), &mut changes),
            CacheState::Current
        );
        assert_eq!(
            cache.take(NetlinkEvent::Interface(up(1, true)), &mut changes),
            CacheState::Current
        );
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(
            cache.take(NetlinkEvent::Interface(up(1, false)), &mut changes),
            CacheState::Stale
        );
        assert_eq!(cache.take(NetlinkEvent::InterfaceGone(1), &mut changes), CacheState::Stale);
        assert_eq!(cache.take(NetlinkEvent::Addresses, &mut changes), CacheState::Stale);
        assert_eq!(changes.len(), 3, "{changes:?}");
    }

    /// Goal: the best address of each version is used, and removed ones are not kept. Method: addresses in a bad order,
    /// and the interface's removal.
    #[test]
    fn the_best_address_counts() {
        let (mut cache, mut changes) = (NetlinkCache::default(), Vec::new());
        let address = |text: &str, rank| {
            NetlinkEvent::Address(Address { interface: 1, address: text.parse().unwrap(), rank })
        };
        let all =
            [("fe80::1", 4), ("10.0.0.2", 1), ("10.0.0.1", 0), ("10.0.0.3", 0), ("fd00::1", 0)];
        for (text, rank) in all {
            assert_eq!(cache.take(address(text, rank), &mut changes), CacheState::Stale);
        }
        let own =
            SourceAddresses { ipv4: Some([10, 0, 0, 1].into()), ipv6: "fd00::1".parse().ok() };
        assert_eq!(cache.own(1), own);
        assert_eq!(changes.len(), 4, "{changes:?}");
        assert_eq!(changes.last(), Some(&Change::Addresses { interface: 1, own }));
        let _ = cache.take(NetlinkEvent::InterfaceGone(1), &mut changes);
        assert_eq!(cache.own(1), SourceAddresses::default());
    }

    /// Goal: replacing a cache reports exactly the differences: applied to the first one, the changes give the second.
    /// Method: random caches from 64 seeds.
    #[test]
    fn replacing_tells_what_differs() {
        let random = |rng: &mut fastrand::Rng| {
            NetlinkCache::of((0..rng.usize(0..40)).map(|_| match rng.u8(0..4) {
                3 => NetlinkEvent::Address(Address {
                    interface: rng.u32(1..4),
                    address: [10, 0, 1, rng.u8(1..5)].into(),
                    rank: rng.u8(0..3),
                }),
                0 => NetlinkEvent::Interface(up(rng.u32(1..4), rng.bool())),
                1 => {
                    let to = format!("10.{}.0.0/16", rng.u8(0..6));
                    NetlinkEvent::Route(route(&to, rng.u32(0..3), rng.u32(1..4)))
                }
                _ => NetlinkEvent::Neighbour(Neighbour {
                    interface: rng.u32(1..3),
                    address: [10, 0, 0, rng.u8(1..5)].into(),
                    mac: rng.bool().then(|| [rng.u8(0..3); 6]),
                    is_stale: rng.bool(),
                    is_failed: rng.bool(),
                }),
            }))
        };
        let seen = |cache: &NetlinkCache| {
            let targets = cache.routes.keys().map(|prefix| (*prefix, cache.target(*prefix)));
            let macs = cache.neighbours.iter();
            let macs = macs.map(|(key, one)| (*key, (one.mac, one.is_failed)));
            let macs = macs.filter(|(_, seen)| *seen != (None, false));
            (
                targets.collect::<BTreeMap<_, _>>(),
                macs.collect::<BTreeMap<_, _>>(),
                cache.interfaces.clone(),
                (1..4).map(|index| (index, cache.own(index))).collect::<BTreeMap<_, _>>(),
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
                    Change::Neighbour { interface, address, mac: None, is_failed: false } => {
                        assert!(macs.remove(&(interface, address)).is_some(), "seed {seed}");
                    }
                    Change::Neighbour { interface, address, mac, is_failed } => {
                        macs.insert((interface, address), (mac, is_failed));
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

    /// Goal: gateways are requested until their address is known and fresh, all of a route, and it is told once that one has failed. Method: one
    /// in each state.
    #[test]
    fn gateways_are_asked_for() {
        let gateway: IpAddr = [10, 0, 0, 1].into();
        let hop = |interface, gateway| Hop { interface, gateway, weight: NonZeroU16::MIN };
        let target = Target::Spread([hop(1, Some(gateway)), hop(2, None)].into());
        let mut cache =
            NetlinkCache::of([NetlinkEvent::Route(Route { target, ..route("0.0.0.0/0", 0, 1) })]);
        assert_eq!(cache.neighbours_to_ask(&[1]), [(1, gateway)]);
        assert_eq!(cache.neighbours_to_ask(&[2]), []);
        let mut known = Neighbour {
            interface: 1,
            address: gateway,
            mac: None,
            is_stale: false,
            is_failed: true,
        };
        let mut changes = Vec::new();
        let _ = cache.take(NetlinkEvent::Neighbour(known), &mut changes);
        let _ = cache.take(NetlinkEvent::Neighbour(known), &mut changes);
        let (interface, address, mac, is_failed) = (1, gateway, None, true);
        assert_eq!(changes, [Change::Neighbour { interface, address, mac, is_failed }]);
        assert_eq!(cache.neighbours_to_ask(&[1]), [(1, gateway)]);
        (known.mac, known.is_stale, known.is_failed) = (Some([2; 6]), true, false);
        let _ = cache.take(NetlinkEvent::Neighbour(known), &mut Vec::new());
        assert_eq!(cache.neighbours_to_ask(&[1]), [(1, gateway)]);
        known.is_stale = false;
        let _ = cache.take(NetlinkEvent::Neighbour(known), &mut Vec::new());
        assert_eq!(cache.neighbours_to_ask(&[1]), []);
        // One that is no gateway is confirmed, too, but not found out.
        let mut other = Neighbour { address: [10, 0, 0, 7].into(), is_stale: true, ..known };
        let _ = cache.take(NetlinkEvent::Neighbour(other), &mut Vec::new());
        assert_eq!(cache.neighbours_to_ask(&[1]), [(1, other.address)]);
        other.mac = None;
        let _ = cache.take(NetlinkEvent::Neighbour(other), &mut Vec::new());
        assert_eq!(cache.neighbours_to_ask(&[1]), []);
    }
}
