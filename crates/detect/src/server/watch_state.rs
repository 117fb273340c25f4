//! The state of a registered handle that the server reads without the handle's lock.

use crate::sync::{AtomicBool, AtomicU64, AtomicUsize};

/// The state of a handle that the server reads without its lock.
#[derive(Debug)]
pub(crate) struct WatchState {
    /// Requests known to the detector: pending and cancelling. Written under the core's lock; read
    /// by the driver to skip idle handles. A stale zero is followed by a notification: see
    /// `ParkState::raise`.
    pub(crate) known_count: AtomicUsize,
    /// Nanoseconds between polls while tasks run; `u64::MAX` for never.
    pub(crate) every_ns: AtomicU64,
    /// Switches between polls while tasks run; zero for none.
    pub(crate) every_switches: AtomicUsize,
    /// The time to poll before a sleep, in nanoseconds.
    pub(crate) spin_ns: AtomicU64,
    /// The detector has watched a descriptor: poll passes serve it.
    pub(crate) watches: AtomicBool,
    /// The server must poll this handle: a polling strategy, or arming before each sleep.
    pub(crate) is_active: AtomicBool,
    /// The time of the next poll of an active handle, in nanoseconds.
    pub(crate) next_poll_ns: AtomicU64,
    /// The detector was armed since the last poll: the next event ends a host's sleep. Written under the core's lock; read by the
    /// driver, to leave the detector alone while others sleep.
    pub(crate) is_armed: AtomicBool,
    /// The detector has had a deadline.
    pub(crate) has_deadlines: AtomicBool,
    /// A notifier was called and the poll is still due.
    pub(crate) is_notified: AtomicBool,
}

impl WatchState {
    /// Nothing is pending, and no strategy is chosen yet.
    pub(crate) fn new() -> Self {
        Self {
            known_count: AtomicUsize::new(0),
            every_ns: AtomicU64::new(u64::MAX),
            every_switches: AtomicUsize::new(0),
            spin_ns: AtomicU64::new(0),
            watches: AtomicBool::new(false),
            is_active: AtomicBool::new(false),
            next_poll_ns: AtomicU64::new(0),
            is_armed: AtomicBool::new(false),
            has_deadlines: AtomicBool::new(false),
            is_notified: AtomicBool::new(false),
        }
    }
}
