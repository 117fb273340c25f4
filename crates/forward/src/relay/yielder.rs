//! The policy by which a relay yields its core.
//!
//! If the other ends of a stream share the relay's core, a relay that continues while it can fills the receiver's queue
//! with megabytes, which have left the caches by the time they are read. A relay that yields after each poll lets them
//! run while the bytes are still cached. If no other thread waits for the core, that costs a system call.
//!
//! But if a compute-bound thread takes the core, it comes back milliseconds later: then the relay [backs
//! off](YieldBackoff).

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use vigie_detect::{Server, YieldBackoff, clock::monotonic_now};

/// A poll ends after this many bytes, to let other connections and waiting threads run while the bytes are still in the
/// caches.
pub(super) const POLL_BYTES_MAX: usize = 256 << 10;

/// Yields the core unless recent yields were expensive.
#[derive(Debug, Default)]
pub(super) struct Yielder(Mutex<YieldBackoff>);

impl Yielder {
    /// Yields the core, if others need it and that does not cost too much. `connections` is their number, each with two
    /// ends that may take a turn.
    pub(super) fn yield_now(&self, server: &Server, connections: u64) {
        if server.is_virtual() {
            return;
        }
        let before = monotonic_now();
        if self.with(|backoff| backoff.is_paused(before)) {
            return;
        }
        thread::yield_now();
        let now = monotonic_now();
        // The time it would take if the relay and all ends slept, each in turn: a longer yield is a loss.
        let turns = u32::try_from(connections.saturating_mul(2)).unwrap_or(u32::MAX);
        let costs = server.costs();
        let sleep = costs.sleep_cpu.saturating_add(costs.wake_delay);
        let most = sleep.saturating_mul(turns.saturating_add(1));
        self.with(|backoff| backoff.learn(now - before, most, now));
    }

    fn with<T>(&self, call: impl FnOnce(&mut YieldBackoff) -> T) -> T {
        call(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
