//! What the handler of a POSIX signal tells of one handle.

use super::address::Address;
use crate::sync::{
    Arc,
    signal_safe::{AtomicBool, AtomicU64, Ordering},
};

/// What a handler knows of one handle.
#[derive(Debug)]
pub(crate) struct Listener {
    address: Address,
    /// Raised by handlers (release) before they ring; taken by the driver (acquire) before its poll.
    is_raised: AtomicBool,
    /// Written by handlers, before `is_raised`.
    arrivals: AtomicU64,
}

impl Listener {
    pub(crate) fn new(address: Address) -> Arc<Self> {
        let (is_raised, arrivals) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { address, is_raised, arrivals })
    }

    pub(crate) const fn address(&self) -> Address {
        self.address
    }

    /// The signal has arrived so often. Async-signal-safe: two atomic writes.
    pub(crate) fn hear(&self, arrivals: u64) {
        self.arrivals.fetch_add(arrivals, Ordering::Release);
        self.is_raised.store(true, Ordering::Release);
    }

    /// Returns whether the signal has arrived since the last call.
    pub(crate) fn take_raised(&self) -> bool {
        self.is_raised.swap(false, Ordering::AcqRel)
    }

    /// Returns how often the signal arrived since the registration.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Acquire)
    }
}
