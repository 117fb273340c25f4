//! The record that a signal handler keeps for one handle.

use super::address::HandleAddress;
use crate::sync::{
    Arc,
    signal_safe::{AtomicBool, AtomicU64, Ordering},
};

/// One handle as signal handlers see it.
#[derive(Debug)]
pub(crate) struct SignalListener {
    address: HandleAddress,
    signal: i32,
    /// Raised by handlers (release) before they notify; taken by the driver (acquire) before its poll.
    is_raised: AtomicBool,
    /// Written by handlers, before `is_raised`.
    arrivals: AtomicU64,
}

impl SignalListener {
    pub(crate) fn new(address: HandleAddress, signal: i32) -> Arc<Self> {
        let (is_raised, arrivals) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { address, signal, is_raised, arrivals })
    }

    pub(crate) const fn address(&self) -> HandleAddress {
        self.address
    }

    pub(crate) const fn signal(&self) -> i32 {
        self.signal
    }

    /// Records that the signal has arrived `arrivals` times. Async-signal-safe: two atomic writes.
    pub(crate) fn record(&self, arrivals: u64) {
        self.arrivals.fetch_add(arrivals, Ordering::Release);
        self.is_raised.store(true, Ordering::Release);
    }

    /// Returns whether the signal has arrived since the last call.
    pub(crate) fn take_raised(&self) -> bool {
        self.is_raised.swap(false, Ordering::AcqRel)
    }

    /// Returns how many times the signal has arrived since the registration.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Acquire)
    }
}
