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

/// The free ports of one kind, even and odd ones, in the order of assignment.
type FreePorts = [VecDeque<u16>; 2];

/// The ports of an address.
#[derive(Debug)]
pub(super) struct PortPool {
    layout: PortLayout,
    /// By [`PortLayout::list_of`].
    free: Vec<FreePorts>,
    pub(super) hosts: BTreeMap<IpAddr, HostShare>,
}

/// How ports are divided into lists.
#[derive(Clone, Copy, Debug)]
pub(super) enum PortLayout {
    /// Those for all, and the others, which are first for sources with ports below 1024 (RFC 4787, REQ-3a).
    Shared { ports: (u16, u16), low_ports: Option<(u16, u16)> },
    /// One list for each block.
    Blocks { first: u16, size: u16, count: usize },
}

impl PortLayout {
    fn list_of(self, port: u16) -> usize {
        match self {
            Self::Shared { low_ports, .. } => {
                usize::from(low_ports.is_some_and(|(first, last)| (first..=last).contains(&port)))
            }
            // Ports below the first block are of none.
            Self::Blocks { first, size, .. } => {
                port.checked_sub(first).map_or(usize::MAX, |at| usize::from(at / size))
            }
        }
    }

    fn lists(self) -> usize {
        match self {
            Self::Shared { .. } => 2,
            Self::Blocks { count, .. } => count,
        }
    }

    /// The low ports that are not among those for all.
    fn low_ports(self) -> impl Iterator<Item = u16> {
        let (ports, low_ports) = match self {
            Self::Shared { ports, low_ports } => (ports, low_ports),
            Self::Blocks { .. } => ((0, 0), None),
        };
        let low = low_ports.into_iter().flat_map(|(first, last)| first..=last);
        low.filter(move |port| !(ports.0..=ports.1).contains(port))
    }

    fn ports(self) -> Vec<u16> {
        match self {
            Self::Shared { ports: (first, last), .. } => {
                (first..=last).chain(self.low_ports()).collect()
            }
            Self::Blocks { first, .. } => (first..=u16::MAX).take(self.count()).collect(),
        }
    }

    /// The number of ports, the low ones included.
    pub(super) fn count(self) -> usize {
        match self {
            Self::Shared { ports: (first, last), .. } => {
                usize::from(last.saturating_sub(first)) + 1 + self.low_ports().count()
            }
            Self::Blocks { size, count, .. } => usize::from(size) * count,
        }
    }
}

impl PortPool {
    /// All ports, shuffled, so that the next one is unpredictable (RFC 6056).
    pub(super) fn new(layout: PortLayout, rng: &mut Rng) -> Self {
        let free = vec![FreePorts::default(); layout.lists()];
        let mut this = Self { layout, free, hosts: BTreeMap::new() };
        let mut ports = layout.ports();
        rng.shuffle(&mut ports);
        ports.into_iter().for_each(|port| this.give_back(port));
        this
    }

    /// Takes a port of a block, or of all; then if possible below 1024 only if `like` is (RFC 4787, REQ-3a). If possible it is of the
    /// same parity (REQ-4).
    pub(super) fn take(&mut self, block: Option<usize>, like: u16) -> Option<u16> {
        let parity = usize::from(like & 1);
        let order = match block {
            Some(block) => [Some(block), None],
            None if like <= LOW_MAX => [Some(1), Some(0)],
            None => [Some(0), Some(1)],
        };
        order.into_iter().flatten().find_map(|list| {
            let free = self.free.get_mut(list)?;
            let port = free.get_mut(parity).and_then(VecDeque::pop_front);
            port.or_else(|| free.get_mut(1 - parity)?.pop_front())
        })
    }

    /// The list of a port.
    fn list(&mut self, port: u16) -> Option<&mut VecDeque<u16>> {
        self.free.get_mut(self.layout.list_of(port))?.get_mut(usize::from(port & 1))
    }

    /// Takes a certain port, of a certain block if one is given. Returns whether it was free.
    pub(super) fn take_exactly(&mut self, block: Option<usize>, port: u16) -> bool {
        if block.is_some_and(|block| self.layout.list_of(port) != block) {
            return false;
        }
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
        self.free.iter().flatten().map(VecDeque::len).sum()
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
