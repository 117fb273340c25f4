//! The detection server: all registered detectors, the wait point, and the rounds of detection.
//!
//! A server does nothing by itself. A *host* turns it: a scheduler at its task switches and when it
//! has nothing to run, a thread of its own ([`Server::spawn_thread`]), or the simulator. The host's
//! side is the [`Lookout`].
//!
//! ```text
//!  any thread                 shared                         host (holds the driver's lock)
//!  ──────────                 ──────                         ──────────────────────────────
//!  wait ──▶ submit ─────────▶ handle's core                  Lookout::detect, at a switch:
//!  Bell::ring ──────────────▶ rung list, park word ────────▶   1 rung handles
//!  Site::watch ─────────────▶ epoll ───────────────────────▶   2 announcements of the wait point
//!                             next_deadline ───────────────▶   3 handles that are polled
//!                                                              4 handles with a deadline
//!  future polled again ◀───── waker ◀──── slot ◀── event ◀───  then, without locks: wake
//! ```

mod awake_host;
mod builtin_handles;
mod current;
mod driver;
mod handle;
pub(crate) mod helper;
mod host_thread;
mod inner;
mod lookout;
mod metrics;
pub(crate) mod own_point;
pub(crate) mod park;
mod raised;
mod registered;
mod registering;
mod registration;
mod rounds;
mod shared;
mod sharing;
mod signals;
mod table;
mod wait_point;
mod watch_state;

use std::{fmt, io, os::fd::RawFd, time::Duration};

use self::{
    registration::PENDING_MAX,
    shared::Shared,
    wait_point::{Gate, WaitPoint},
};
use crate::{
    builtin::{Readiness, Timers},
    clock::{Clock, ClockSource, Instant},
    detector::{Detector, Flavor},
    error::RegisterError,
    policy::{Adaptive, Costs, Load, Policy},
    sync::Arc,
};

#[cfg(test)]
pub(crate) use self::inner::lock_count::cores;
pub use self::{
    current::{Entered, NoServer},
    handle::{EventStream, Handle, Wait},
    host_thread::HostThread,
    lookout::{Detected, Lookout},
    metrics::{Detection, HandleReport, Snapshot},
    own_point::{Alarm, OwnWaitPoint},
    registration::Registration,
};

/// A detection server. Clones are the same server; when the last is dropped, it is
/// [shut down](Self::shutdown).
///
/// # Fork without exec
/// A forked child has none of the threads that turn the server, and shares its epoll with the parent.
/// There, nothing is registered, watched or submitted any more ([`WaitError::ServerClosed`]), and everything
/// that was made before the fork (server, handles, waits, sockets, timers) may be dropped: that frees
/// descriptors of the child, and changes nothing for the parent. A server that the child makes itself works
/// like any other.
///
/// [`WaitError::ServerClosed`]: crate::WaitError::ServerClosed
#[derive(Clone)]
pub struct Server {
    owner: Arc<Owner>,
}

/// So many timers fire in one round while more are due: events of others stand behind those that a look has woken, and
/// before the rest.
const TIMERS_BATCH: usize = 64;

/// Apart from [`Shared`], which handles keep alive: so the last user's drop is noticed.
struct Owner {
    shared: Arc<Shared>,
    timers: Handle<Timers>,
    readiness: Handle<Readiness>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Server {
    /// Makes a server for a scheduler of `flavor`, which then turns it through a [`Lookout`].
    ///
    /// # Errors
    /// Fails if the kernel gives no epoll, eventfd or timerfd, which needs three descriptors.
    pub fn new(flavor: Flavor) -> io::Result<Self> {
        Self::with_readiness_policy(flavor, Adaptive::default())
    }

    /// Like [`new`](Self::new), with the policy for the readiness of descriptors.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_readiness_policy(flavor: Flavor, policy: impl Policy) -> io::Result<Self> {
        Self::with_policies(flavor, Adaptive::default(), policy)
    }

    /// Like [`new`](Self::new), with the policy for everything that says none of its own (timers,
    /// channels, detectors registered without [`Registration::policy`]), and the one for the
    /// readiness of descriptors.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_policies(
        flavor: Flavor,
        default: impl Into<Adaptive>,
        readiness: impl Policy,
    ) -> io::Result<Self> {
        let points = wait_point::epoll()?;
        let policies = (default.into(), Box::new(readiness) as Box<dyn Policy>);
        Self::build(flavor, ClockSource::Monotonic, points, policies)
    }

    pub(crate) fn new_virtual(flavor: Flavor, clock: Arc<dyn Clock>) -> io::Result<Self> {
        // A wake-up costs nothing here.
        let default = Adaptive { timer_slack: Duration::ZERO, ..Adaptive::default() };
        Self::new_virtual_with(flavor, clock, default)
    }

    pub(crate) fn new_virtual_with(
        flavor: Flavor,
        clock: Arc<dyn Clock>,
        default: Adaptive,
    ) -> io::Result<Self> {
        let points = (WaitPoint::Virtual, Gate::Virtual);
        let policies = (default, Box::new(default) as Box<dyn Policy>);
        Self::build(flavor, ClockSource::Other(clock), points, policies)
    }

    fn build(
        flavor: Flavor,
        clock: ClockSource,
        (wait_point, gate): (WaitPoint, Gate),
        (default, policy): (Adaptive, Box<dyn Policy>),
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(flavor, clock, wait_point, gate, default));
        // Neither is bounded before memory is: each request is one that a task waits for.
        let registration = |name| Registration::named(name).max_pending(PENDING_MAX);
        // When a timer fires is known: there is nothing to poll for unless it must not be late at all.
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
        Ok(Self { owner: Arc::new(Owner { shared, timers, readiness }) })
    }

    /// Registers a detector and returns the handle through which its events are waited for. Only
    /// requests made through the same handle are watched for together [bouge02, §2.2].
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

    /// Returns the host's side, one for each thread that turns the server.
    #[must_use]
    pub fn lookout(&self) -> Lookout {
        Lookout::new(Arc::clone(&self.owner.shared))
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

    /// Returns what a wait for peers is planned from, and the policy that plans it. Samples the load, if that is asked for and
    /// the last sample is old.
    pub(crate) fn plans_waits(&self, samples: bool) -> (Adaptive, Costs, Load) {
        let shared = &self.owner.shared;
        if samples {
            shared.load.refresh(shared.now());
        }
        (shared.default_policy, shared.costs.costs(), shared.load.load())
    }

    /// Returns the flavor of the scheduler that this server is for.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.owner.shared.flavor()
    }

    /// Returns whether some host sleeps at the wait point, or is about to: then what is announced wakes it, and the next deadline does.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.owner.shared.is_covered()
    }

    /// Returns how many hosts sleep at the wait point, or are about to, whatever they watch there.
    #[must_use]
    pub fn sleeper_count(&self) -> u32 {
        self.owner.shared.word.parked_count()
    }

    /// Returns whether something waits for a look at `now`: a bell was rung, a deadline has come, or the
    /// wait point announces an event. Sees nothing of detectors that must be polled.
    ///
    /// # Cost
    /// Two loads and one system call that does not block.
    #[must_use]
    pub fn has_events(&self, now: Instant) -> bool {
        self.owner.shared.has_events(now)
    }

    /// Returns the descriptor of the wait point, for those who want to know whether an event waits
    /// without looking (a signal handler, for example): it is readable then. It is the server's; nobody
    /// else may read, change or close it. None in virtual time.
    #[must_use]
    pub fn wait_point(&self) -> Option<RawFd> {
        self.owner.shared.gate().descriptor()
    }

    /// Wakes the host from its sleep, or keeps it from the next one. May be called from any thread.
    pub fn unpark(&self) {
        self.owner.shared.unpark();
    }

    /// Returns what was counted so far.
    #[must_use]
    pub fn metrics(&self) -> Snapshot {
        self.owner.shared.metrics.snapshot()
    }

    /// Returns what each handle has done so far, in the order of registration as far as places in the
    /// table were not used again. Nothing after a shutdown.
    ///
    /// # Cost
    /// One short lock for each handle, and one allocation for all. To be asked now and then, not at
    /// switches.
    #[must_use]
    pub fn handles(&self) -> Vec<HandleReport> {
        self.owner.shared.reports()
    }

    /// Ends every pending request with [`WaitError::ServerClosed`](crate::WaitError::ServerClosed)
    /// and frees the detectors. What a device may still write to is waited for, for at most 100 ms a
    /// handle, and leaked after that. Later waits and registrations fail.
    pub fn shutdown(&self) {
        self.owner.shared.close();
    }

    /// Returns whether a parent of this process has made the server, so that this is a forked child, which
    /// can only drop it.
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
