//! Flows whose addresses are translated in both directions, and their ports.

mod flow;
mod pool;
mod state;

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

pub use self::flow::{NatEndpoint, NatFlow, NatTuple};
use self::state::NatState;
use super::feed::{LogRead, Update};
use crate::packet::TcpFlags;

/// The time without packets after which a flow expires.
///
/// The defaults are those that RFC 5382, RFC 4787 and RFC 5508 require or recommend.
#[derive(Clone, Copy, Debug)]
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

/// Why a flow cannot be translated.
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
    flows_max: usize,
    ports: (u16, u16),
    timeouts: NatTimeouts,
    seed: u64,
}

impl NatTableBuilder {
    /// Sets the maximum number of flows; 0 counts as 1. Default: 65 536.
    pub const fn flows_max(mut self, count: usize) -> Self {
        self.flows_max = count;
        self
    }

    /// Sets the range of ports, or echo identifiers, assigned to flows, inclusive. Default: 1024 to 65 535.
    pub const fn ports(mut self, first: u16, last: u16) -> Self {
        self.ports = (first, last);
        self
    }

    vigie_detect::setters! {
        /// Seeds the order of ports and the hashes of flows; keep it secret from strangers. Default: the machine's
        /// randomness.
        seed: u64,
    }

    /// Sets the time without packets after which an established TCP connection expires. Default 2 h 4 min, RFC 5382's minimum.
    pub const fn tcp_established_timeout(mut self, time: Duration) -> Self {
        self.timeouts.tcp_established = time;
        self
    }

    /// Sets the time without packets after which a TCP connection that opens or closes expires. Default 4 min, RFC 5382's minimum.
    pub const fn tcp_transitory_timeout(mut self, time: Duration) -> Self {
        self.timeouts.tcp_transitory = time;
        self
    }

    /// Sets the time without packets after which a flow of UDP expires. Default 5 min, which RFC 4787 recommends.
    pub const fn udp_timeout(mut self, time: Duration) -> Self {
        self.timeouts.udp = time;
        self
    }

    /// Sets the time without packets after which a flow of ICMP echoes expires. Default 60 s, RFC 5508's minimum.
    pub const fn icmp_timeout(mut self, time: Duration) -> Self {
        self.timeouts.icmp = time;
        self
    }

    /// Creates the table.
    #[must_use]
    pub fn build(self) -> NatTable {
        let state = NatState::new(self.flows_max.max(1), self.ports, self.timeouts, self.seed);
        let inner = NatTableInner { version: AtomicU64::new(0), state: Mutex::new(state) };
        NatTable { inner: Arc::new(inner) }
    }
}

struct NatTableInner {
    /// The number of changes so far. Written under the lock; `Relaxed` suffices, since the changes are read under the
    /// lock.
    version: AtomicU64,
    state: Mutex<NatState>,
}

/// The translated flows. Clones share the table.
///
/// In each direction, a flow is identified by its packets before translation. Ports are assigned in an unpredictable
/// order, and a freed one goes to the end of the queue, so that it rests as long as possible.
#[derive(Clone)]
pub struct NatTable {
    inner: Arc<NatTableInner>,
}

impl NatTable {
    /// Starts the settings of a table.
    pub fn builder() -> NatTableBuilder {
        NatTableBuilder {
            flows_max: 1 << 16,
            ports: (1024, u16::MAX),
            timeouts: NatTimeouts::default(),
            seed: fastrand::u64(..),
        }
    }

    /// A panic cannot leave anything behind the lock half done: no foreign code is called.
    fn lock(&self) -> MutexGuard<'_, NatState> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed<T>(&self, change: impl FnOnce(&mut NatState) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        self.inner.version.store(state.version(), Ordering::Relaxed);
        result
    }

    /// Returns the translation of a packet, if it belongs to a flow, and refreshes the flow. Expired flows no longer
    /// exist.
    ///
    /// # Cost
    /// A lock, and one look-up in a hash table.
    #[must_use]
    pub fn translate(
        &self,
        tuple: &NatTuple,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Option<NatTuple> {
        self.changed(|state| state.translate(tuple, flags, now))
    }

    /// Returns the translation of a packet without refreshing the flow.
    #[must_use]
    pub fn peek(&self, tuple: &NatTuple) -> Option<NatTuple> {
        self.lock().peek(tuple)
    }

    /// Starts a flow whose source becomes `external`, with a port of its own.
    ///
    /// # Errors
    /// [`NatError`].
    pub fn open_source(
        &self,
        original: NatTuple,
        external: IpAddr,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Result<NatTuple, NatError> {
        self.changed(|state| state.open_source(original, external, flags, now))
    }

    /// Starts a flow whose destination becomes `internal`.
    ///
    /// # Errors
    /// [`NatError::Full`], [`NatError::Conflict`].
    pub fn open_destination(
        &self,
        original: NatTuple,
        internal: NatEndpoint,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Result<NatTuple, NatError> {
        self.changed(|state| state.open_destination(original, internal, flags, now))
    }

    /// Removes expired flows. Returns how many.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn expire(&self, now: Instant) -> usize {
        self.changed(|state| state.expire(now, usize::MAX))
    }

    /// Refreshes a flow of which another processor has translated a packet, whose tuple was `tuple` before translation.
    /// Returns whether the flow exists.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn touch(&self, tuple: &NatTuple, now: Instant) -> bool {
        self.changed(|state| state.translate(tuple, None, now).is_some())
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

    /// Returns all flows, in the order of their slots.
    #[must_use]
    pub fn flows(&self) -> Vec<NatFlow> {
        self.lock().flows()
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
