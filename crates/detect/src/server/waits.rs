//! Reports of what waits at a server.

use std::task::Waker;

/// A wait that is pending at a server: see [`Server::waits`](crate::Server::waits).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitReport {
    /// The name under which the detector was registered.
    pub handle: &'static str,
    /// The awaited event, in the detector's words; empty if it says nothing.
    pub what: String,
    /// The waiter.
    pub waiter: WaiterId,
}

/// Tells one waiter from another: all clones of a waker have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(usize);

impl WaiterId {
    /// Returns that of a waker.
    #[must_use]
    pub fn of(waker: &Waker) -> Self {
        Self(waker.data().addr())
    }
}
