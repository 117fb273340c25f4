//! A detector's place at its server, and the bell that it rings there.

use std::{
    fmt, io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

use super::{address::Address, flavor::Flavor, listener::Listener, notice::Interest};
use crate::{
    clock::{ClockSource, Instant},
    error::WaitError,
    sync::{Arc, Weak},
};

/// What a site asks of its server.
pub(crate) trait Home: Send + Sync {
    /// Returns whether it is the copy of a forked child.
    fn is_inherited(&self) -> bool;
    /// Watches a descriptor for the handle at `address`: its edges are announced there under `key`.
    fn watch(
        &self,
        descriptor: RawFd,
        address: Address,
        key: u32,
        interest: Interest,
    ) -> io::Result<()>;
    fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()>;
    /// Makes the host poll the handle at `address` soon.
    fn ring(&self, address: Address);
}

/// A detector's place at its server: where it watches descriptors, and has its bell and clock from.
///
/// It does not keep the server alive: a detector that is leaked leaks itself alone.
#[derive(Clone)]
pub struct Site {
    home: Weak<dyn Home>,
    clock: ClockSource,
    flavor: Flavor,
    address: Address,
    /// Of a detector that has a signal.
    listener: Option<Arc<Listener>>,
}

impl Site {
    pub(crate) fn new(
        home: Weak<dyn Home>,
        (clock, flavor): (ClockSource, Flavor),
        address: Address,
        listener: Option<Arc<Listener>>,
    ) -> Self {
        Self { home, clock, flavor, address, listener }
    }

    fn home(&self) -> io::Result<Arc<dyn Home>> {
        let home = self.home.upgrade().filter(|home| !home.is_inherited());
        home.ok_or_else(|| WaitError::ServerClosed.into())
    }

    pub(crate) const fn address(&self) -> Address {
        self.address
    }

    /// Watches a descriptor: its edges are announced to
    /// [`Detector::notified`](crate::Detector::notified) under `key`. The descriptor must stay open
    /// until [`unwatch`](Self::unwatch).
    ///
    /// # Errors
    /// The kernel's, for example if the descriptor is closed, is watched already, or cannot be
    /// watched (a regular file); [`io::ErrorKind::Unsupported`] in virtual time;
    /// [`io::ErrorKind::NotConnected`] once the server is gone, and in a forked child.
    pub fn watch(
        &self,
        descriptor: BorrowedFd<'_>,
        key: u32,
        interest: Interest,
    ) -> io::Result<()> {
        self.watch_raw(descriptor.as_raw_fd(), key, interest)
    }

    /// Like [`watch`](Self::watch), for a descriptor that is known to be open.
    pub(crate) fn watch_raw(
        &self,
        descriptor: RawFd,
        key: u32,
        interest: Interest,
    ) -> io::Result<()> {
        self.home()?.watch(descriptor, self.address, key, interest)
    }

    /// Watches a descriptor no more. An announcement that is under way may still come.
    ///
    /// # Errors
    /// The kernel's, if the descriptor is not watched; [`io::ErrorKind::NotConnected`] once the server is
    /// gone, and in a forked child, where the parent goes on watching.
    pub fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.home()?.unwatch(descriptor)
    }

    /// Returns the bell that makes the host poll this detector.
    #[must_use]
    pub fn bell(&self) -> Bell {
        Bell { site: self.clone() }
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

    /// Returns how often the signal that [`Detector::signal`](crate::Detector::signal) names has arrived
    /// since the registration; zero for a detector without one. A SIGIO that stands for lost real-time
    /// signals is not counted.
    #[must_use]
    pub fn signal_arrivals(&self) -> u64 {
        self.listener.as_ref().map_or(0, |listener| listener.arrivals())
    }

    /// Makes the host poll this detector soon.
    pub(crate) fn ring_again(&self) {
        // Without a server nobody waits any more.
        if let Some(home) = self.home.upgrade() {
            home.ring(self.address);
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Announces events of one detector from any thread: the host polls it at its next switch, or is
/// woken for it. Rings between two polls are one.
#[derive(Clone, Debug)]
pub struct Bell {
    site: Site,
}

impl Bell {
    /// Rings: everything that this thread did before is visible to the poll that follows.
    ///
    /// # Cost
    /// A few atomic operations and one uncontended lock; a system call if the host sleeps.
    pub fn ring(&self) {
        self.site.ring_again();
    }
}
