//! Flows whose addresses are translated, in both directions, and the ports that they have.

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

pub use self::flow::{Endpoint, NatFlow, NatTuple};
use self::state::State;
use super::feed::{Taken, Update};
use crate::packet::TcpFlags;

/// How long a flow stays without a packet.
///
/// Defaults are those that RFC 5382, RFC 4787 and RFC 5508 require or recommend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NatTimeouts {
    /// A connection of TCP that both sides have opened: 2 h 4 min.
    pub tcp_established: Duration,
    /// One that opens or closes: 4 min.
    pub tcp_transitory: Duration,
    /// UDP: 5 min.
    pub udp: Duration,
    /// Echoes of ICMP: 60 s.
    pub icmp: Duration,
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
    /// A flow is translated from now on.
    Added(NatFlow),
    /// A flow is not translated any more.
    Removed(NatFlow),
}

/// Why a flow cannot be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NatError {
    /// All ports of the address have flows.
    #[error(
        "all ports of {address} for protocol {protocol} are in use: add an address, or shorten the timeouts"
    )]
    Ports {
        /// The address.
        address: IpAddr,
        /// The protocol's number.
        protocol: u8,
    },
    /// As many flows as the table holds.
    #[error("the table holds {max} flows: make it larger, or shorten the timeouts")]
    Full {
        /// How many.
        max: usize,
    },
    /// Packets of the flow could not be told from those of another one.
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
    /// Sets how many flows there are at most; 0 counts as 1. Default: 65 536.
    pub const fn flows_max(mut self, count: usize) -> Self {
        self.flows_max = count;
        self
    }

    /// Sets which ports, or identifiers of echoes, are given to flows: from the first to the last. Default: 1024 to 65 535.
    pub const fn ports(mut self, first: u16, last: u16) -> Self {
        self.ports = (first, last);
        self
    }

    /// Sets how long flows stay.
    pub const fn timeouts(mut self, timeouts: NatTimeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Sets the chance from which the order of ports comes, and the places of flows in memory; strangers
    /// should not know it. Default: the machine's.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Creates the table.
    #[must_use]
    pub fn build(self) -> NatTable {
        let state = State::new(self.flows_max.max(1), self.ports, self.timeouts, self.seed);
        let inner = Inner { version: AtomicU64::new(0), state: Mutex::new(state) };
        NatTable { inner: Arc::new(inner) }
    }
}

struct Inner {
    /// How many changes there were. Written under the lock; `Relaxed` suffices, since what is new is read
    /// under the lock.
    version: AtomicU64,
    state: Mutex<State>,
}

/// The flows that are translated. Clones are the same table.
///
/// A flow is known by what its packets say before they are translated, in each direction. Ports are given
/// out in an order that nobody can foretell, and come back at the end of the row, so that one that was in use
/// rests as long as possible.
#[derive(Clone)]
pub struct NatTable {
    inner: Arc<Inner>,
}

impl NatTable {
    /// Begins with the settings of a table.
    pub fn builder() -> NatTableBuilder {
        NatTableBuilder {
            flows_max: 1 << 16,
            ports: (1024, u16::MAX),
            timeouts: NatTimeouts::default(),
            seed: fastrand::u64(..),
        }
    }

    /// Nothing behind the lock is left half done by a panic: no foreign code is called.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        self.inner.version.store(state.version(), Ordering::Relaxed);
        result
    }

    /// Returns what a packet becomes, if it belongs to a flow, and keeps the flow alive. A flow whose time is
    /// over has gone.
    ///
    /// # Cost
    /// A lock, and one look into a hash table.
    #[must_use]
    pub fn translate(
        &self,
        tuple: &NatTuple,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Option<NatTuple> {
        self.changed(|state| state.translate(tuple, flags, now))
    }

    /// Returns what a packet would become; the flow is as it was.
    #[must_use]
    pub fn peek(&self, tuple: &NatTuple) -> Option<NatTuple> {
        self.lock().peek(tuple)
    }

    /// Begins a flow whose packets say to come from `external`, with a port of its own.
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

    /// Begins a flow whose packets go to `internal`.
    ///
    /// # Errors
    /// [`NatError::Full`], [`NatError::Conflict`].
    pub fn open_destination(
        &self,
        original: NatTuple,
        internal: Endpoint,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Result<NatTuple, NatError> {
        self.changed(|state| state.open_destination(original, internal, flags, now))
    }

    /// Ends flows whose time is over. Returns how many.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn expire(&self, now: Instant) -> usize {
        self.changed(|state| state.expire(now, usize::MAX))
    }

    /// Returns when the next flow can end, at the earliest.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        self.lock().next_expiry()
    }

    /// Keeps a flow alive of which another processor has translated a packet: one with this tuple, before it
    /// was translated. Returns whether there is such a flow.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn touch(&self, tuple: &NatTuple, now: Instant) -> bool {
        self.changed(|state| state.translate(tuple, None, now).is_some())
    }

    /// Returns how many flows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all flows, oldest place first.
    #[must_use]
    pub fn flows(&self) -> Vec<NatFlow> {
        self.lock().flows()
    }

    /// Follows what changes from now on, after all flows that there are.
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

/// Follows a [`NatTable`], so that maps of another processor can be kept like it.
#[derive(Debug)]
pub struct NatFeed {
    table: NatTable,
    next: Option<u64>,
}

impl NatFeed {
    /// Returns whether there is something that was not taken.
    ///
    /// # Cost
    /// A load.
    #[must_use]
    pub fn has_news(&self) -> bool {
        let version = self.table.inner.version.load(Ordering::Relaxed);
        self.next.is_none_or(|next| next != version)
    }

    /// Takes the next update, if there is one.
    pub fn take(&mut self) -> Option<Update<Vec<NatFlow>, NatChange>> {
        if !self.has_news() {
            return None;
        }
        let state = self.table.lock();
        match state.log().take(&mut self.next) {
            Taken::Nothing => None,
            Taken::One(change) => Some(Update::One(change)),
            Taken::All => Some(Update::All(state.flows())),
        }
    }
}
