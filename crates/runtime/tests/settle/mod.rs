//! Waiting for what happens in its own time.

use std::thread;

/// Waits, giving the core away, until `condition` holds: for what another thread or the kernel still
/// does. To be used under a guard against hanging.
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}
