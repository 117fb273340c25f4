//! A detector's place at its server, and the bell that it rings there.

use std::{fmt, io, os::fd::BorrowedFd};

use crate::{
    clock::Instant,
    policy::Flavor,
    shared::Shared,
    sync::Arc,
    wait_point::{Address, Interest},
};

/// A detector's place at its server: where it watches descriptors, and has its bell and clock from.
#[derive(Clone)]
pub struct Site {
    shared: Arc<Shared>,
    address: Address,
}

impl Site {
    pub(crate) const fn new(shared: Arc<Shared>, address: Address) -> Self {
        Self { shared, address }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) const fn address(&self) -> Address {
        self.address
    }

    /// Watches a descriptor: its edges are announced to [`Detector::notified`](crate::Detector::notified) under `key`. The
    /// descriptor must stay open until [`unwatch`](Self::unwatch).
    ///
    /// # Errors
    /// The kernel's, for example if the descriptor is closed, is watched already, or cannot be
    /// watched (a regular file); [`io::ErrorKind::Unsupported`] in virtual time.
    pub fn watch(
        &self,
        descriptor: BorrowedFd<'_>,
        key: u32,
        interest: Interest,
    ) -> io::Result<()> {
        self.shared.gate().watch(descriptor, self.address, key, interest)
    }

    /// Watches a descriptor no more. An announcement that is under way may still come.
    ///
    /// # Errors
    /// The kernel's, if the descriptor is not watched.
    pub fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.shared.gate().unwatch(descriptor)
    }

    /// Returns the bell that makes the host poll this detector.
    #[must_use]
    pub fn bell(&self) -> Bell {
        Bell { site: self.clone() }
    }

    /// Returns the present instant.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// Returns the flavor of the hosting scheduler.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.shared.flavor()
    }

    /// Makes the host poll this detector soon.
    pub(crate) fn ring_again(&self) {
        self.shared.ring(self.address);
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
    /// Two atomic operations and one uncontended lock; a system call if the host sleeps.
    pub fn ring(&self) {
        self.site.ring_again();
    }
}
