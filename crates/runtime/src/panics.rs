//! Panics that belong to no task: of destructors, policies and wakers that a scheduler runs.

use std::{
    mem,
    panic::{self, AssertUnwindSafe},
};

/// Calls foreign code. A panic in it is told and goes no further: the scheduler lives.
pub(crate) fn contained<T>(place: &'static str, call: impl FnOnce() -> T) -> Option<T> {
    // What the code leaves half-changed is its own: locks of ours are released on the way.
    let payload = match panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    tracing::error!(place, "foreign code panicked");
    // A payload may panic in its turn when it is dropped; what that leaves is leaked.
    if let Err(another) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(another);
    }
    None
}
