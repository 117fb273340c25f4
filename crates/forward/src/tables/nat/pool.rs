//! The ports of one external address and protocol: those that are free, and what each inside host has of them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
};

use fastrand::Rng;

/// The last of the low ports.
const LOW_MAX: u16 = 1023;

/// The standing of a flow: the one with the least to lose is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// No answer has come.
    Unanswered,
    /// It was answered, but not used again; or it has ended.
    Brief,
    /// Both sides use it: it is never evicted.
    Assured,
}

/// The share of one inside host.
#[derive(Debug, Default)]
pub(super) struct HostShare {
    pub(super) flows: usize,
    pub(super) ports: usize,
    /// Flows that may be evicted, unanswered ones first, the oldest first: the number of the flow, and its slot.
    evictable: [BTreeSet<(u64, usize)>; 2],
}

impl HostShare {
    /// Returns the flow to evict first.
    pub(super) fn victim(&self) -> Option<usize> {
        self.evictable.iter().find_map(|flows| flows.first()).map(|(_, slot)| *slot)
    }

    /// Moves a flow from one standing to another.
    pub(super) fn set_standing(
        &mut self,
        flow: (u64, usize),
        from: Option<Standing>,
        to: Option<Standing>,
    ) {
        if let Some(flows) = from.and_then(|from| self.evictable.get_mut(from as usize)) {
            flows.remove(&flow);
        }
        if let Some(flows) = to.and_then(|to| self.evictable.get_mut(to as usize)) {
            flows.insert(flow);
        }
    }
}

/// The ports of an address.
#[derive(Debug)]
pub(super) struct PortPool {
    /// Free ports, even and odd ones, in the order of assignment.
    free: [VecDeque<u16>; 2],
    /// The same, first for sources with ports below 1024 (RFC 4787, REQ-3a).
    low: [VecDeque<u16>; 2],
    low_ports: Option<(u16, u16)>,
    pub(super) hosts: BTreeMap<IpAddr, HostShare>,
}

impl PortPool {
    /// All ports of a range, shuffled, so that the next one is unpredictable (RFC 6056).
    pub(super) fn new(ports: (u16, u16), low_ports: Option<(u16, u16)>, rng: &mut Rng) -> Self {
        let (free, low, hosts) = (Default::default(), Default::default(), BTreeMap::new());
        let mut this = Self { free, low, low_ports, hosts };
        let mut free: Vec<u16> = (ports.0..=ports.1).collect();
        let low = low_ports.into_iter().flat_map(|(first, last)| first..=last);
        // Those in both ranges are low.
        free.extend(low.filter(|port| !(ports.0..=ports.1).contains(port)));
        rng.shuffle(&mut free);
        free.into_iter().for_each(|port| this.give_back(port));
        this
    }

    /// Takes a port, if possible below 1024 only if `like` is (RFC 4787, REQ-3a), and of the same parity (REQ-4).
    pub(super) fn take(&mut self, like: u16) -> Option<u16> {
        let parity = usize::from(like & 1);
        let is_low = like <= LOW_MAX;
        let mut lists = [&mut self.low, &mut self.free];
        lists.rotate_left(usize::from(!is_low));
        lists.into_iter().find_map(|free| {
            let port = free.get_mut(parity).and_then(VecDeque::pop_front);
            port.or_else(|| free.get_mut(1 - parity)?.pop_front())
        })
    }

    /// The list of a port.
    fn list(&mut self, port: u16) -> Option<&mut VecDeque<u16>> {
        let is_low = self.low_ports.is_some_and(|(first, last)| (first..=last).contains(&port));
        let lists = if is_low { &mut self.low } else { &mut self.free };
        lists.get_mut(usize::from(port & 1))
    }

    /// Takes a certain port. Returns whether it was free.
    pub(super) fn take_exactly(&mut self, port: u16) -> bool {
        let Some(free) = self.list(port) else { return false };
        let at = free.iter().position(|one| *one == port);
        at.is_some_and(|at| free.remove(at).is_some())
    }

    /// Takes a port out of the pool for good.
    pub(super) fn reserve(&mut self, port: u16) {
        if let Some(free) = self.list(port) {
            free.retain(|one| *one != port);
        }
    }

    pub(super) fn give_back(&mut self, port: u16) {
        if let Some(free) = self.list(port) {
            free.push_back(port);
        }
    }

    pub(super) fn free(&self) -> usize {
        self.low.iter().chain(&self.free).map(VecDeque::len).sum()
    }

    pub(super) fn host(&mut self, host: IpAddr) -> &mut HostShare {
        self.hosts.entry(host).or_default()
    }

    /// Forgets a host that has nothing.
    pub(super) fn forget(&mut self, host: IpAddr) {
        if self.hosts.get(&host).is_some_and(|share| share.flows == 0 && share.ports == 0) {
            self.hosts.remove(&host);
        }
    }

    /// Returns the largest host with flows that may be evicted: its size, and the flow to evict.
    pub(super) fn victim(&self, size: fn(&HostShare) -> usize) -> Option<(usize, usize)> {
        let victims = self.hosts.values().filter_map(|host| Some((size(host), host.victim()?)));
        victims.max_by_key(|(size, _)| *size)
    }
}
