//! A detector's connection to its server, and its notifier.

use std::{
    fmt, io,
    os::fd::{BorrowedFd, RawFd},
    task::Wake,
};

use super::{
    address::HandleAddress, flavor::Flavor, readiness_event::Interest,
    signal_listener::SignalListener,
};
use crate::{
    clock::{ClockSource, Instant},
    error::WaitError,
    sync::{Arc, Weak},
};

/// A watch: the edges of `descriptor` are reported to the handle at `address` under `key`.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    pub(crate) descriptor: RawFd,
    pub(crate) address: HandleAddress,
    pub(crate) key: u32,
    pub(crate) interest: Interest,
}

/// The server's side of a driver handle.
pub(crate) trait Registry: Send + Sync {
    /// Returns whether this is a forked child's copy.
    fn is_inherited(&self) -> bool;
    /// Returns the descriptor by which the poller knows what a descriptor stands for: in virtual time, its original.
    fn name_of(&self, descriptor: BorrowedFd<'_>) -> RawFd;
    /// Watches a descriptor.
    fn watch(&self, watch: Watch) -> io::Result<()>;
    fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()>;
    /// Returns what a descriptor stands for, if that is known.
    fn describe(&self, descriptor: RawFd) -> Option<String>;
    /// Makes the host poll the handle at `address` soon.
    fn notify(&self, address: HandleAddress);
}

/// A detector's connection to its server: it watches descriptors and provides a notifier and the clock.
///
/// It does not keep the server alive: leaking a detector does not leak the server.
#[derive(Clone)]
pub struct DriverHandle {
    registry: Weak<dyn Registry>,
    clock: ClockSource,
    flavor: Flavor,
    address: HandleAddress,
    /// Only if the detector has a signal.
    listener: Option<Arc<SignalListener>>,
}

impl DriverHandle {
    pub(crate) fn new(
        registry: Weak<dyn Registry>,
        (clock, flavor): (ClockSource, Flavor),
        address: HandleAddress,
        listener: Option<Arc<SignalListener>>,
    ) -> Self {
        Self { registry, clock, flavor, address, listener }
    }

    fn registry(&self) -> io::Result<Arc<dyn Registry>> {
        let registry = self.registry.upgrade().filter(|registry| !registry.is_inherited());
        registry.ok_or_else(|| WaitError::ServerClosed.into())
    }

    pub(crate) const fn address(&self) -> HandleAddress {
        self.address
    }

    /// Watches a descriptor: its edges are reported to
    /// [`Detector::notified`](crate::Detector::notified) under `key`. The descriptor must stay open
    /// until [`unwatch`](Self::unwatch).
    ///
    /// # Errors
    /// The kernel's error, for example if the descriptor is closed, is watched already, or cannot
    /// be
    /// watched (a regular file); [`io::ErrorKind::Unsupported`] in virtual time;
    /// [`io::ErrorKind::NotConnected`] once the server is gone, and in a forked child.
    pub fn watch(
        &self,
        descriptor: BorrowedFd<'_>,
        key: u32,
        interest: Interest,
    ) -> io::Result<()> {
        self.watch_raw(self.registry()?.name_of(descriptor), key, interest)
    }

    /// Like [`watch`](Self::watch), for a descriptor known to be open.
    pub(crate) fn watch_raw(
        &self,
        descriptor: RawFd,
        key: u32,
        interest: Interest,
    ) -> io::Result<()> {
        self.registry()?.watch(Watch { descriptor, address: self.address, key, interest })
    }

    /// Stops watching a descriptor. A readiness event already in progress may still arrive.
    ///
    /// # Errors
    /// The kernel's error if the descriptor is not watched; [`io::ErrorKind::NotConnected`] once the
    /// server is gone, and in a forked child, where the parent keeps watching.
    pub fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.registry()?.unwatch(descriptor)
    }

    /// Returns what a descriptor stands for, if that is known: in virtual time.
    pub(crate) fn describe(&self, descriptor: RawFd) -> Option<String> {
        self.registry.upgrade()?.describe(descriptor)
    }

    /// Returns a notifier that makes the host poll this detector.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier { driver: self.clone() }
    }

    /// Returns the present instant.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the flavor of the hosting scheduler.
    #[must_use]
    pub const fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Returns how many times the signal named by [`Detector::signal`](crate::Detector::signal) has
    /// arrived since the registration; zero for a detector without one. A SIGIO sent in place of lost
    /// real-time signals is not counted.
    #[must_use]
    pub fn signal_arrivals(&self) -> u64 {
        self.listener.as_ref().map_or(0, |listener| listener.arrivals())
    }

    /// Makes the host poll this detector soon.
    pub(crate) fn notify(&self) {
        // Without a server there are no waiters left.
        if let Some(registry) = self.registry.upgrade() {
            registry.notify(self.address);
        }
    }
}

impl fmt::Debug for DriverHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverHandle").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Announces events of one detector from any thread: the host polls it at its next switch, or is
/// woken for it. Several notifications between two polls count as one.
#[derive(Clone, Debug)]
pub struct Notifier {
    driver: DriverHandle,
}

impl Notifier {
    /// Notifies the host: everything that this thread did before is visible to the poll that
    /// follows.
    ///
    /// # Cost
    /// A few atomic operations and one uncontended lock; a system call if the host sleeps.
    pub fn notify(&self) {
        self.driver.notify();
    }
}

/// Lets an engine inside another engine notify the outer one.
impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}
