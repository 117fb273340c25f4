//! Targets: what a relay connects to, with a weight, what is known of its health, and its counters.

use std::{
    fmt,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
};

use vigie_detect::Instant;

use super::{
    availability::{Availability, Choice},
    check::CheckHistory,
    counters::Counter,
    endpoint::Endpoint,
    health::UpstreamHealth,
};

/// A target of a relay: of streams by default, or of datagrams (`Upstream<SocketAddr>`).
///
/// ```
/// use vigie_forward::relay::{Endpoint, Upstream};
///
/// let address: Endpoint = "tcp:192.0.2.10:80".parse()?;
/// let three_times_as_much = Upstream::from(address).weight(3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream<A = Endpoint> {
    pub(super) address: A,
    pub(super) weight: u16,
}

/// The largest weight.
pub(super) const WEIGHT_MAX: u16 = 256;

impl<A> Upstream<A> {
    const fn at(address: A) -> Self {
        Self { address, weight: 1 }
    }

    /// Sets its share of connections, relative to other targets: 1 to 256. Default 1.
    #[must_use]
    pub fn weight(mut self, weight: u16) -> Self {
        self.weight = weight;
        self
    }
}

impl From<Endpoint> for Upstream {
    fn from(endpoint: Endpoint) -> Self {
        Self::at(endpoint)
    }
}

impl From<SocketAddr> for Upstream {
    fn from(address: SocketAddr) -> Self {
        Self::at(address.into())
    }
}

impl From<PathBuf> for Upstream {
    fn from(path: PathBuf) -> Self {
        Self::at(path.into())
    }
}

impl From<SocketAddr> for Upstream<SocketAddr> {
    fn from(address: SocketAddr) -> Self {
        Self::at(address)
    }
}

/// An address of a target.
pub(super) trait TargetAddress: Clone + Eq {
    /// Returns it as it is logged and counted; the same text is the same target to a hash.
    fn named(&self) -> String;
}

impl TargetAddress for Endpoint {
    fn named(&self) -> String {
        self.to_string()
    }
}

impl TargetAddress for SocketAddr {
    fn named(&self) -> String {
        format!("udp:{self}")
    }
}

/// A target in use.
#[derive(Debug)]
pub(super) struct Target<A> {
    pub(super) address: A,
    pub(super) weight: u16,
    pub(super) name: String,
    pub(super) health: Arc<UpstreamHealth>,
    /// Its turn, of the policy that goes round; written under the policy's lock.
    pub(super) turn: AtomicI64,
    pub(super) counters: TargetCounters,
    pub(super) checks: Mutex<CheckHistory>,
}

#[derive(Debug, Default)]
pub(super) struct TargetCounters {
    pub(super) active: Counter,
    pub(super) connections: Counter,
    pub(super) failures: Counter,
    pub(super) checks_failed: Counter,
}

impl<A: TargetAddress> Target<A> {
    pub(super) fn new(address: A, weight: u16) -> Self {
        let name = address.named();
        let health = Arc::new(UpstreamHealth::new(&name));
        Self {
            address,
            weight,
            name,
            health,
            turn: AtomicI64::new(0),
            counters: TargetCounters::default(),
            checks: Mutex::default(),
        }
    }
}

impl<A> Target<A> {
    pub(super) fn availability(&self) -> &Availability {
        &self.health.availability
    }

    /// Records that it was not reached.
    pub(super) fn failed(&self, error: &dyn fmt::Display, now: Instant) {
        self.counters.failures.add(1);
        self.health.note_unreachable(error, now);
    }

    fn stats(&self, now: Instant) -> TargetStats {
        let state = match self.availability().look(now) {
            Choice::Use => TargetState::Available,
            Choice::Try => TargetState::OnTrial,
            Choice::Avoid if self.availability().is_down() => TargetState::Down,
            Choice::Avoid => TargetState::Avoided,
        };
        let TargetCounters { active, connections, failures, checks_failed } = &self.counters;
        TargetStats {
            target: self.name.clone(),
            weight: self.weight,
            state,
            active: active.value(),
            connections: connections.value(),
            failures: failures.value(),
            checks_failed: checks_failed.value(),
        }
    }
}

named! {
    /// What a relay thinks of a target.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum TargetState {
        /// Connections use it in its turn.
        Available => "available",
        /// It has failed, and the next connection whose turn it is tries it briefly.
        OnTrial => "on trial",
        /// It has failed, and is tried only after all others.
        Avoided => "avoided",
        /// Its checks fail, and it is tried only after all others.
        Down => "down",
    }
}

/// A target at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetStats {
    /// Its address, as in `tcp:192.0.2.1:80`.
    pub target: String,
    /// Its weight.
    pub weight: u16,
    /// Whether it is used.
    pub state: TargetState,
    /// Open connections to it, and those that are being opened; sessions of datagrams.
    pub active: u64,
    /// Connections made to it so far; sessions.
    pub connections: u64,
    /// Failed attempts to reach it; of datagrams, how often a network reported that one did not arrive.
    pub failures: u64,
    /// Failed checks.
    pub checks_failed: u64,
}

/// Counts a connection as one of its target's, while it lives.
#[derive(Debug)]
pub(super) struct TargetUse<A> {
    pub(super) target: Arc<Target<A>>,
}

impl<A> TargetUse<A> {
    pub(super) fn of(target: &Arc<Target<A>>) -> Self {
        target.counters.active.add(1);
        Self { target: Arc::clone(target) }
    }
}

impl<A> Drop for TargetUse<A> {
    fn drop(&mut self) {
        self.target.counters.active.subtract(1);
    }
}

/// The targets of a relay.
#[derive(Debug)]
pub(super) struct Targets<A> {
    list: Mutex<Arc<[Arc<Target<A>>]>>,
}

impl<A: TargetAddress> Targets<A> {
    pub(super) fn new(upstreams: &[Upstream<A>]) -> Self {
        let target = |one: &Upstream<A>| Arc::new(Target::new(one.address.clone(), one.weight));
        Self { list: Mutex::new(upstreams.iter().map(target).collect()) }
    }

    /// Returns the present ones, in order.
    pub(super) fn list(&self) -> Arc<[Arc<Target<A>>]> {
        Arc::clone(&self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn stats(&self, now: Instant) -> Vec<TargetStats> {
        self.list().iter().map(|target| target.stats(now)).collect()
    }
}

/// Returns whether all weights are in range.
pub(super) fn are_weights<A>(upstreams: &[Upstream<A>]) -> bool {
    upstreams.iter().all(|one| (1..=WEIGHT_MAX).contains(&one.weight))
}

impl<A> Target<A> {
    /// Adds to its turn, and returns the sum. The policy's lock orders this.
    pub(super) fn add_turn(&self, steps: i64) -> i64 {
        self.turn.fetch_add(steps, Ordering::Relaxed) + steps
    }
}
