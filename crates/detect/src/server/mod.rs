//! The detection server: all registered detectors, the poller, and the poll passes.
//!
//! A server does nothing on its own. A *host* drives it: a scheduler at its task switches and when
//! it has nothing to run, a dedicated thread ([`Server::spawn_thread`]), or the simulator. The
//! host's side is the [`Driver`].
//!
//! ```text
//!  any thread                 shared                         host (holds the driver's lock)
//!  ──────────                 ──────                         ──────────────────────────────
//!  wait ──▶ submit ─────────▶ handle's core                  Driver::detect, at a switch:
//!  Notifier::notify ────────▶ notified list, park state ───▶   1 notified handles
//!  DriverHandle::watch ─────▶ epoll ───────────────────────▶   2 readiness events of the poller
//!                             next_deadline ───────────────▶   3 handles that are polled
//!                                                              4 handles with a deadline
//!  future polled again ◀───── waker ◀──── slot ◀── event ◀───  then, without locks: wake
//! ```

mod awake_host;
pub(crate) mod blocking_executor;
mod builtin_handles;
mod current;
mod driver;
mod driver_state;
mod embedded;
mod false_ready;
mod handle;
mod handle_inner;
mod handle_table;
pub(crate) mod helper;
mod host_thread;
mod inspection;
mod metrics;
pub(crate) mod park_state;
mod poll_pass;
mod poller;
mod raised_signals;
mod registered;
mod registering;
mod registration;
mod shared;
mod sharing;
mod signals;
pub(crate) mod thread_poller;
#[cfg(feature = "tokio")]
mod tokio_host;
mod waits;
mod watch_state;

use std::{fmt, io, os::fd::BorrowedFd, time::Duration};

use self::{
    blocking_executor::BlockingCall,
    poller::{Poller, PollerHandle},
    registration::PENDING_MAX,
    shared::ServerShared,
};
use crate::{
    builtin::{Readiness, Timers},
    clock::{Clock, ClockSource, Instant},
    detector::{Detector, Flavor},
    error::RegisterError,
    network::{NetworkNode, SimulatedNetwork},
    policy::{Adaptive, Costs, Load, Policy},
    sync::Arc,
};

#[cfg(test)]
pub(crate) use self::handle_inner::lock_count::cores;
pub(crate) use self::poller::RoutedEvent;
#[cfg(feature = "tokio")]
pub use self::tokio_host::TokioHost;
pub use self::{
    current::{NoServer, ServerGuard, refuse_in_simulation},
    driver::{Detected, Driver},
    embedded::EmbeddedDriver,
    handle::{EventStream, Handle, Wait},
    host_thread::HostThread,
    metrics::{Detection, HandleReport, Snapshot},
    registration::Registration,
    thread_poller::{ThreadPoller, Unparker},
    waits::{WaitReport, WaiterId},
};

/// A detection server. Clones are the same server; when the last is dropped, it is
/// [shut down](Self::shutdown).
///
/// # Fork without exec
/// A forked child has none of the threads that drive the server, and shares its epoll with the parent.
/// There, nothing can be registered, watched or submitted ([`WaitError::ServerClosed`]), and everything
/// created before the fork (server, handles, waits, sockets, timers) may be dropped: that frees descriptors
/// of the child and changes nothing for the parent. A server that the child creates works like any other.
///
/// [`WaitError::ServerClosed`]: crate::WaitError::ServerClosed
#[derive(Clone)]
pub struct Server {
    owner: Arc<ServerOwner>,
}

/// The number of timers that fire in one poll while more are due: events of other handles queue behind the tasks
/// woken by a poll pass, and before the remaining timers.
const TIMERS_BATCH: usize = 64;

/// Separate from [`ServerShared`], which handles keep alive, so that the last user's drop is
/// noticed.
struct ServerOwner {
    shared: Arc<ServerShared>,
    timers: Handle<Timers>,
    readiness: Handle<Readiness>,
}

impl Drop for ServerOwner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Server {
    /// Creates a server for a scheduler of `flavor`, which then drives it through a [`Driver`].
    ///
    /// # Errors
    /// Fails if the kernel refuses an epoll, eventfd or timerfd; a server needs these three
    /// descriptors. [`io::ErrorKind::Unsupported`] inside a simulation.
    pub fn new(flavor: Flavor) -> io::Result<Self> {
        Self::with_readiness_policy(flavor, Adaptive::default())
    }

    /// Like [`new`](Self::new), with a policy for the readiness of descriptors.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn with_readiness_policy(flavor: Flavor, policy: impl Policy) -> io::Result<Self> {
        Self::with_policies(flavor, Adaptive::default(), policy)
    }

    /// Like [`new`](Self::new), with a policy for everything that sets none of its own (timers,
    /// channels, detectors registered without [`Registration::policy`]), and one for the readiness
    /// of descriptors.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn with_policies(
        flavor: Flavor,
        default: impl Into<Adaptive>,
        readiness: impl Policy,
    ) -> io::Result<Self> {
        refuse_in_simulation(
            "servers of the kernel's events",
            "use `Server::current()`, or make the server before the simulation",
        )?;
        let points = poller::epoll()?;
        let policies = (default.into(), Box::new(readiness) as Box<dyn Policy>);
        Self::build(flavor, ClockSource::Monotonic, points, policies)
    }

    pub(crate) fn new_virtual(flavor: Flavor, clock: Arc<dyn Clock>) -> io::Result<Self> {
        // A wake-up costs nothing here.
        let default = Adaptive { timer_slack: Duration::ZERO, ..Adaptive::default() };
        let network = SimulatedNetwork::new(0);
        let node = network.add_node("main", &[]);
        Self::new_virtual_with(flavor, clock, default, NetworkNode { network, node })
    }

    pub(crate) fn new_virtual_with(
        flavor: Flavor,
        clock: Arc<dyn Clock>,
        default: Adaptive,
        node: NetworkNode,
    ) -> io::Result<Self> {
        let points = (Poller::Virtual, PollerHandle::Virtual(node));
        let policies = (default, Box::new(default) as Box<dyn Policy>);
        Self::build(flavor, ClockSource::Other(clock), points, policies)
    }

    fn build(
        flavor: Flavor,
        clock: ClockSource,
        (poller, poller_handle): (Poller, PollerHandle),
        (default, policy): (Adaptive, Box<dyn Policy>),
    ) -> io::Result<Self> {
        let shared = Arc::new(ServerShared::new(flavor, clock, poller, poller_handle, default));
        // Limited by memory alone: each request is one that a task waits for.
        let registration = |name| Registration::named(name).max_pending(PENDING_MAX);
        // The time at which a timer fires is known: polling first gains nothing unless the timer must
        // not be late at all.
        let slack = default.timer_slack;
        let spin_max = if slack.is_zero() { default.spin_max } else { Duration::ZERO };
        let timer_policy: Box<dyn Policy> = Box::new(Adaptive { spin_max, ..default });
        let timers_named = registration("timers").batch(TIMERS_BATCH);
        let timers =
            registering::register(&shared, Timers::new(slack), timers_named, Some(timer_policy))
                .map_err(io::Error::other)?;
        let registration = registration("readiness");
        let readiness =
            registering::register(&shared, Readiness::new(), registration, Some(policy))
                .map_err(io::Error::other)?;
        Ok(Self { owner: Arc::new(ServerOwner { shared, timers, readiness }) })
    }

    /// Registers a detector and returns the handle to wait for its events. Only requests made
    /// through the same handle are watched together [bouge02, §2.2].
    ///
    /// # Errors
    /// [`RegisterError`] if the detector offers no method or cannot be attached, or if the server is
    /// shut down or full.
    pub fn register<D: Detector>(
        &self,
        detector: D,
        registration: Registration,
    ) -> Result<Handle<D>, RegisterError> {
        registering::register(&self.owner.shared, detector, registration, None)
    }

    /// Sets what runs calls that block a thread: lookups of names in [`net`](crate::net). Each is passed to `run`, which
    /// must not run it on a thread that drives the server, and drops it if it cannot run it. Without an executor each
    /// call has a thread of its own. The runtime of vigie sets its blocking pool.
    ///
    /// Returns whether this was the first time; later executors are ignored.
    pub fn set_blocking_executor(
        &self,
        run: impl Fn(Box<dyn FnOnce() + Send>) + Send + Sync + 'static,
    ) -> bool {
        self.owner.shared.blocking.set(run)
    }

    /// Runs a call that blocks.
    ///
    /// # Errors
    /// The kernel's error, if it refuses a thread.
    pub(crate) fn run_blocking(&self, call: BlockingCall) -> io::Result<()> {
        self.owner.shared.blocking.run(call)
    }

    /// Returns a driver: the host's side. Each thread that drives the server needs its own.
    #[must_use]
    pub fn driver(&self) -> Driver {
        Driver::new(Arc::clone(&self.owner.shared))
    }

    /// Returns the handle of the timers.
    #[must_use]
    pub fn timers(&self) -> &Handle<Timers> {
        &self.owner.timers
    }

    /// Returns the handle of the readiness of descriptors.
    #[must_use]
    pub fn readiness(&self) -> &Handle<Readiness> {
        &self.owner.readiness
    }

    /// Returns the present instant of this server's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.owner.shared.now()
    }

    /// Returns the cost of sleeping and waking on this machine, as far as this server has measured
    /// it.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.owner.shared.costs.costs()
    }

    /// Returns what a wait for peers is planned from, and the policy that plans it. If `samples`, measures the load again when
    /// the last sample is old.
    pub(crate) fn plans_waits(&self, samples: bool) -> (Adaptive, Costs, Load) {
        let shared = &self.owner.shared;
        if samples {
            shared.load.refresh(shared.now());
        }
        (shared.default_policy, self.costs(), shared.load.load())
    }

    /// Returns whether its clock is a simulation's, which advances only while nothing can run, and its sockets are those of the
    /// simulated network.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.network_node().is_some()
    }

    /// Fills `bytes` with random ones of the simulation's seed, in virtual time; returns whether it has.
    #[doc(hidden)]
    #[must_use]
    pub fn fill_random(&self, bytes: &mut [u8]) -> bool {
        let node = self.network_node();
        if let Some(node) = node {
            node.network.fill_random(bytes);
        }
        node.is_some()
    }

    /// Raises a signal, by its number, in virtual time, where the kernel's do not arrive: the detectors at this server that have the method
    /// [`SIGNAL`](crate::Methods::SIGNAL) and name it get it. In real time, does nothing.
    pub fn raise(&self, signal: i32) {
        if self.is_virtual() {
            self.owner.shared.raised.deliver(signal);
            self.unpark();
        }
    }

    /// Returns whether a detector at this server has ever named the signal, by its number, in virtual time: then its default action is off.
    #[must_use]
    pub fn has_caught(&self, signal: i32) -> bool {
        self.owner.shared.raised.is_caught(signal)
    }

    /// Returns its place in the simulated network, in virtual time.
    pub(crate) fn network_node(&self) -> Option<&NetworkNode> {
        match self.owner.shared.poller_handle() {
            PollerHandle::Virtual(node) => Some(node),
            PollerHandle::Epoll(_) => None,
        }
    }

    /// Returns the flavor of the scheduler that hosts this server.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.owner.shared.flavor()
    }

    /// Returns whether a host sleeps in the poller, or is about to: then an announcement or the next deadline wakes it.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.owner.shared.is_covered()
    }

    /// Returns how many hosts sleep in the poller, or are about to, whatever they watch there.
    #[must_use]
    pub fn sleeper_count(&self) -> u32 {
        self.owner.shared.park_state.parked_count()
    }

    /// Returns whether a poll pass at `now` would find something: a notifier was called, a deadline has passed, or
    /// the poller announces an event. Does not cover detectors that announce nothing and must be polled.
    ///
    /// # Cost
    /// Two loads and one system call that does not block.
    #[must_use]
    pub fn has_announced_events(&self, now: Instant) -> bool {
        self.owner.shared.has_events(now)
    }

    /// Returns the descriptor of the poller, which is readable while an event waits: use it to check
    /// for events without polling, for example in a signal handler. It belongs to the server; do not
    /// read, change or close it. `None` in virtual time.
    #[must_use]
    pub fn poller_fd(&self) -> Option<BorrowedFd<'_>> {
        self.owner.shared.poller_handle().as_fd()
    }

    /// Wakes the host from its sleep, or prevents its next one. May be called from any thread.
    pub fn unpark(&self) {
        self.owner.shared.unpark();
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn metrics(&self) -> Snapshot {
        self.owner.shared.metrics.snapshot()
    }

    /// Returns a report for each handle, in the order of registration except where places in the
    /// table were reused. Empty after a shutdown.
    ///
    /// # Cost
    /// One short lock for each handle, and one allocation in all. Call it now and then, not at
    /// switches.
    #[must_use]
    pub fn handles(&self) -> Vec<HandleReport> {
        self.owner.shared.reports()
    }

    /// Returns who waits for what at this moment: a report for each waiter of each pending request. A detector that is inside a
    /// callback all the while is left out.
    ///
    /// # Cost
    /// One lock for each handle and each request, and a few allocations for each waiter. For the inspection of a program, not for
    /// its ordinary work.
    #[must_use]
    pub fn waits(&self) -> Vec<WaitReport> {
        self.owner.shared.waits()
    }

    /// Ends every pending request with [`WaitError::ServerClosed`](crate::WaitError::ServerClosed)
    /// and frees the detectors. Memory that a device may still write to is waited for, at most 100
    /// ms per handle, and then leaked. Later waits and registrations fail.
    pub fn shutdown(&self) {
        self.owner.shared.close();
    }

    /// Returns whether a parent of this process created the server, so that this forked child can only
    /// drop it.
    ///
    /// # Cost
    /// Two loads.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.owner.shared.is_inherited()
    }

    /// Returns whether [`shutdown`](Self::shutdown) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.owner.shared.is_closed()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("flavor", &self.flavor())
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
