//! Flows whose addresses are translated in both directions, and their ports.

mod blocks;
mod event;
mod flow;
mod mapping;
mod pool;
mod saved;
mod state;
mod tcp;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thiserror::Error;
use vigie_detect::Instant;

pub use self::blocks::{PortBlock, PortBlocks};
use self::event::NatObserver;
pub use self::event::{NatEnd, NatEvent};
pub use self::flow::{NatEndpoint, NatFlow, NatTuple};
pub use self::saved::NatRestoreError;
use self::state::{NatLimits, NatState};
pub use self::tcp::TcpProgress;
use super::feed::{LogRead, Update};

/// The time without packets after which a flow expires.
///
/// The defaults are those that RFC 5382, RFC 4787 and RFC 5508 require or recommend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NatTimeouts {
    pub(crate) tcp_established: Duration,
    pub(crate) tcp_transitory: Duration,
    pub(crate) udp: Duration,
    pub(crate) icmp: Duration,
}

impl Default for NatTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            tcp_established: seconds(7_440),
            tcp_transitory: seconds(240),
            udp: seconds(300),
            icmp: seconds(60),
        }
    }
}

/// One change of a [`NatTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatChange {
    /// A flow was added.
    Added(NatFlow),
    /// A flow was removed.
    Removed(NatFlow),
}

/// The usage of a [`NatTable`], and the flows evicted and refused so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NatUsage {
    /// The number of flows.
    pub flows: usize,
    /// The maximum number of flows.
    pub flows_max: usize,
    /// The number of ports in use, of the external address and protocol with the most.
    pub ports: usize,
    /// The number of ports of an address.
    pub ports_max: usize,
    /// Flows that were evicted to make room for others.
    pub evicted: u64,
    /// Flows that were refused.
    pub refused: u64,
    /// The limit that was the reason for the last eviction or refusal.
    pub limit: Option<NatLimit>,
}

/// What a [`NatTable`] has no more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatLimit {
    /// Ports of the address.
    Ports,
    /// Flows.
    Flows,
    /// A host's [block](NatTableBuilder::port_blocks) of ports.
    Block(PortBlock),
    /// A host's [share](NatTableBuilder::host_percent) of the ports of an address.
    HostPorts {
        /// The host.
        host: IpAddr,
        /// Its share.
        max: usize,
    },
    /// A host's share of the flows.
    HostFlows {
        /// The host.
        host: IpAddr,
        /// Its share.
        max: usize,
    },
}

impl NatUsage {
    /// Returns how full the table is, in percent: its flows or the ports of an address, whichever is fuller.
    #[must_use]
    pub fn percent(&self) -> usize {
        let percent = |of: usize, max: usize| of * 100 / max.max(1);
        percent(self.flows, self.flows_max).max(percent(self.ports, self.ports_max))
    }
}

/// The reason why a flow cannot be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NatError {
    /// All ports of the address are in use.
    #[error(
        "all ports of {address} for protocol {protocol} are in use: add an address, or shorten the timeouts"
    )]
    Ports {
        /// The address.
        address: IpAddr,
        /// The protocol number.
        protocol: u8,
    },
    /// An inside host has its share of the ports of the address or of the table, and uses all of it.
    #[error(
        "{host} has all of its share, {max}: raise the share or the block of a host, or shorten the timeouts"
    )]
    Host {
        /// The host.
        host: IpAddr,
        /// Its share of ports, or of flows.
        max: usize,
    },
    /// Hosts have blocks of ports, and this one has none.
    #[error("{host} has no block of ports: add its network, or widen the range of ports")]
    NoBlock {
        /// The host.
        host: IpAddr,
    },
    /// The table is full.
    #[error("the table holds {max} flows: make it larger, or shorten the timeouts")]
    Full {
        /// Its capacity.
        max: usize,
    },
    /// Packets of the flow would be indistinguishable from another's.
    #[error("another flow has the same endpoints on one side")]
    Conflict,
}

/// The settings of a [`NatTable`].
#[derive(Clone, Debug)]
#[must_use = "`build` makes the table"]
pub struct NatTableBuilder {
    limits: NatLimits,
    seed: u64,
    observer: Option<NatObserver>,
}

impl NatTableBuilder {
    /// Sets the maximum number of flows; 0 counts as 1. Default: 65 536.
    pub const fn flows_max(mut self, count: usize) -> Self {
        self.limits.flows_max = if count == 0 { 1 } else { count };
        self
    }

    /// Sets the range of ports, or echo identifiers, assigned to flows, inclusive. Default: 1024 to 65 535.
    pub const fn ports(mut self, first: u16, last: u16) -> Self {
        self.limits.ports = (first, last);
        self
    }

    /// Sets the range of ports that are assigned to sources with a port below 1024, while there are free ones, and to others only when
    /// all of [`ports`](Self::ports) are in use: such a source then keeps its range, as RFC 4787 (REQ-3a) recommends. Ports that are in
    /// both ranges count as these. Default: none, and such a source gets one of `ports`.
    pub const fn low_ports(mut self, first: u16, last: u16) -> Self {
        self.limits.low_ports = Some((first, last));
        self
    }

    /// Sets how much one inside host may have of the flows of the table, and of the ports of an address, for each
    /// protocol, in percent from 1 to 100; other values count as the nearest of these. Default: 50.
    pub const fn host_percent(mut self, percent: u8) -> Self {
        self.limits.host_percent = match percent {
            0 => 1,
            1..=100 => percent,
            _ => 100,
        };
        self
    }

    /// Gives each inside host a block of [`ports`](Self::ports) of its own, from which alone its flows get theirs, whatever port their
    /// source has; so the host's share of ports is its block, and `low_ports` do not count. Flows of hosts without a block are refused.
    /// Default: none, and hosts share all ports.
    pub fn port_blocks(mut self, blocks: PortBlocks) -> Self {
        self.limits.blocks = Some(blocks);
        self
    }

    vigie_detect::setters! {
        /// Seeds the order of ports and the hashes of flows; keep it secret from strangers. Default: the machine's
        /// randomness.
        seed: u64,
    }

    /// Sets the time without packets after which an established TCP connection expires. Default 2 h 4 min, RFC 5382's minimum.
    pub const fn tcp_established_timeout(mut self, time: Duration) -> Self {
        self.limits.timeouts.tcp_established = time;
        self
    }

    /// Sets the time without packets after which a TCP connection that opens or closes expires. Default 4 min, RFC 5382's minimum.
    pub const fn tcp_transitory_timeout(mut self, time: Duration) -> Self {
        self.limits.timeouts.tcp_transitory = time;
        self
    }

    /// Sets the time without packets after which a flow of UDP expires. Default 5 min, which RFC 4787 recommends.
    pub const fn udp_timeout(mut self, time: Duration) -> Self {
        self.limits.timeouts.udp = time;
        self
    }

    /// Sets the time without packets after which a flow of ICMP echoes expires. Default 60 s, RFC 5508's minimum.
    pub const fn icmp_timeout(mut self, time: Duration) -> Self {
        self.limits.timeouts.icmp = time;
        self
    }

    /// Calls `observe` when a flow begins or ends, in that order for each flow. It is called under the table's lock, so it must neither block nor
    /// use the table. Restored flows begin without a call. Default: none.
    pub fn observe(mut self, observe: impl Fn(&NatEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(NatObserver::new(observe));
        self
    }

    /// Creates the table.
    #[must_use]
    pub fn build(self) -> NatTable {
        let state = NatState::new(self.limits, self.seed, self.observer.is_some());
        let (version, state) = (AtomicU64::new(0), Mutex::new(state));
        let inner = NatTableInner { version, state, observer: self.observer };
        NatTable { inner: Arc::new(inner) }
    }
}

/// A program at an interface that translates packets of a table's flows without the host.
pub(crate) trait FlowProcessor: Send + Sync {
    /// Returns when it has last translated a packet whose tuple was `tuple` before translation. Called under the table's lock, so it must
    /// not use the table.
    fn last_used(&self, tuple: &NatTuple) -> Option<Instant>;
}

struct NatTableInner {
    /// The number of changes so far. Written under the lock; `Relaxed` suffices, since the changes are read under the
    /// lock.
    version: AtomicU64,
    state: Mutex<NatState>,
    observer: Option<NatObserver>,
}

/// The translated flows. Clones share the table.
///
/// In each direction, a flow is identified by its packets before translation. An inside end (address and port, or
/// identifier) has one external port for all its peers, as long as one of its flows lives; the peers may use it from any
/// of their ports. Ports are assigned in an unpredictable order, and a freed one goes to the end of the queue, so that it
/// rests as long as possible.
///
/// # Bounds
/// If there is no room, flows are evicted: first unanswered ones, the oldest first, then those that were answered but
/// not used again, or have ended. A host beyond its [share](NatTableBuilder::host_percent) loses its own, else the largest host loses
/// one. Established flows are never evicted, also where only a [`NicPipeline`](crate::nic::NicPipeline) has seen that they are.
#[derive(Clone)]
pub struct NatTable {
    inner: Arc<NatTableInner>,
}

impl NatTable {
    /// Starts the settings of a table.
    pub fn builder() -> NatTableBuilder {
        let limits = NatLimits {
            flows_max: 1 << 16,
            host_percent: 50,
            ports: (1024, u16::MAX),
            low_ports: None,
            blocks: None,
            timeouts: NatTimeouts::default(),
        };
        NatTableBuilder { limits, seed: fastrand::u64(..), observer: None }
    }

    /// A panic cannot leave anything behind the lock half done: foreign code is called only after a change is complete.
    fn lock(&self) -> MutexGuard<'_, NatState> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed<T>(&self, change: impl FnOnce(&mut NatState) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        self.inner.version.store(state.version(), Ordering::Relaxed);
        if let Some(observer) = &self.inner.observer {
            state.take_events(|event| observer.note(event));
        }
        result
    }

    /// Returns the translation of a packet, if it belongs to a flow, and refreshes the flow. Expired flows no longer
    /// exist. A segment of TCP that ends its connection shortens the flow's life if it is inside the window of the other
    /// end.
    ///
    /// # Cost
    /// A lock, and one look-up in a hash table.
    #[must_use]
    pub fn translate(
        &self,
        tuple: &NatTuple,
        tcp: Option<&TcpProgress>,
        now: Instant,
    ) -> Option<NatTuple> {
        self.changed(|state| state.translate(tuple, tcp, false, now))
    }

    /// Returns the translation of a packet without refreshing the flow.
    #[must_use]
    pub fn peek(&self, tuple: &NatTuple) -> Option<NatTuple> {
        self.lock().peek(tuple)
    }

    /// Returns the inside end that `external` is the port of: for `peer`, if flows from inside lead to that address, or
    /// for anyone.
    #[must_use]
    pub fn internal(
        &self,
        protocol: u8,
        external: NatEndpoint,
        peer: Option<IpAddr>,
    ) -> Option<NatEndpoint> {
        self.lock().internal(protocol, external, peer)
    }

    /// Returns the external ends that are [reserved](Self::reserve), each with the number of flows that were begun to it.
    #[must_use]
    pub fn reserved(&self) -> Vec<((u8, NatEndpoint), u64)> {
        self.lock().reserved()
    }

    /// Keeps a port out of those that are assigned: it is published.
    pub fn reserve(&self, protocol: u8, external: NatEndpoint) {
        self.lock().reserve(protocol, external);
    }

    /// Starts a flow whose source becomes a port of `source`, and whose destination becomes `destination`; at least one
    /// of them is given. Both are where an inside host uses the external end of another one ("hairpinning").
    ///
    /// # Errors
    /// [`NatError`].
    pub fn open(
        &self,
        original: NatTuple,
        (source, destination): (Option<IpAddr>, Option<NatEndpoint>),
        tcp: Option<&TcpProgress>,
        now: Instant,
    ) -> Result<NatTuple, NatError> {
        self.changed(|state| state.open(original, (source, destination), tcp, now))
    }

    /// Removes expired flows. Returns how many.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn expire(&self, now: Instant) -> usize {
        self.changed(|state| state.expire(now, usize::MAX))
    }

    /// Refreshes a flow of which another processor has translated a packet, whose tuple was `tuple` before translation.
    /// Returns whether the flow exists.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn touch(&self, tuple: &NatTuple, tcp: Option<&TcpProgress>, now: Instant) -> bool {
        self.changed(|state| state.translate(tuple, tcp, true, now).is_some())
    }

    /// Asks a processor for its packets before a flow is evicted, as long as the processor exists.
    #[cfg(any(test, feature = "nic"))]
    pub(crate) fn add_processor(&self, processor: std::sync::Weak<dyn FlowProcessor>) {
        self.lock().add_processor(processor);
    }

    /// Returns how full the table is.
    #[must_use]
    pub fn usage(&self) -> NatUsage {
        self.lock().usage()
    }

    /// Returns the number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether there are no flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how long a flow lives without packets in its present state.
    #[must_use]
    pub fn timeout_of(&self, tuple: &NatTuple) -> Option<Duration> {
        self.lock().timeout_of(tuple)
    }

    /// Returns all flows, in the order of their slots.
    #[must_use]
    pub fn flows(&self) -> Vec<NatFlow> {
        self.lock().flows()
    }

    /// Returns all flows, in the order of their slots, each with the time since it began, or since it was restored.
    #[must_use]
    pub fn flows_with_ages(&self, now: Instant) -> Vec<(NatFlow, Duration)> {
        self.lock().flows_with_ages(now)
    }

    /// Returns all flows as bytes, for [`restore`](Self::restore).
    ///
    /// # Cost
    /// Some 60 bytes for each flow of IPv4; the lock is held while they are copied.
    #[must_use]
    pub fn save(&self, now: Instant) -> Vec<u8> {
        let flows = self.lock().save(now);
        saved::write(flows.into_iter())
    }

    /// Takes over the flows that were [saved](Self::save) `age` ago, with their ports: those that `keeps` accepts, that have not
    /// expired meanwhile, and for which this table has room and their port. Returns how many it has taken over, and how many it has
    /// not.
    ///
    /// # Errors
    /// [`NatRestoreError`]; then the table is unchanged.
    pub fn restore(
        &self,
        bytes: &[u8],
        age: Duration,
        keeps: impl Fn(&NatFlow) -> bool,
        now: Instant,
    ) -> Result<(usize, usize), NatRestoreError> {
        let flows = saved::read(bytes)?;
        let all = flows.len();
        let kept = flows.into_iter().filter(|saved| keeps(&saved.flow));
        let restore =
            |state: &mut NatState| kept.filter(|one| state.restore(one, age, now)).count();
        let restored = self.changed(restore);
        Ok((restored, all - restored))
    }

    /// Follows the table: first all existing flows, then each change.
    #[must_use]
    pub fn follow(&self) -> NatFeed {
        NatFeed { table: self.clone(), next: None }
    }
}

impl fmt::Debug for NatTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatTable").field("flows", &self.len()).finish_non_exhaustive()
    }
}

/// Follows a [`NatTable`], to keep the maps of another processor in step.
#[derive(Debug)]
pub struct NatFeed {
    table: NatTable,
    next: Option<u64>,
}

impl NatFeed {
    /// Returns whether there is an update to take.
    ///
    /// # Cost
    /// A load.
    #[must_use]
    pub fn has_updates(&self) -> bool {
        let version = self.table.inner.version.load(Ordering::Relaxed);
        self.next.is_none_or(|next| next != version)
    }

    /// Takes the next update, if there is one.
    pub fn take(&mut self) -> Option<Update<Vec<NatFlow>, NatChange>> {
        if !self.has_updates() {
            return None;
        }
        let state = self.table.lock();
        match state.log().take(&mut self.next) {
            LogRead::Nothing => None,
            LogRead::One(change) => Some(Update::Change(change)),
            LogRead::All => Some(Update::Snapshot(state.flows())),
        }
    }
}
