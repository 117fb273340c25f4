//! Panics outside tasks: in destructors, policies and wakers that a scheduler runs.

use std::{
    mem,
    panic::{self, AssertUnwindSafe},
};

/// Calls foreign code. A panic in it is logged and goes no further: the scheduler survives.
pub(crate) fn contained<T>(place: &'static str, call: impl FnOnce() -> T) -> Option<T> {
    // Only the foreign code's own data can be left half-changed: our locks are released during unwinding.
    let payload = match panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    tracing::error!(place, "foreign code panicked");
    // Dropping a payload may panic too; whatever that leaves behind is leaked.
    if let Err(another) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(another);
    }
    None
}
