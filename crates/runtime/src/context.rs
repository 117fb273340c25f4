//! What a thread knows of the runtime that it runs for.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use vigie_detect::clock::monotonic_now;

use crate::{handle::Handle, sync::thread_local};

thread_local! {
    static CURRENT: RefCell<Option<Handle>> = const { RefCell::new(None) };
    static POLL: PollClock = const {
        PollClock { began: Cell::new(0), ended: Cell::new(0), quantum: Cell::new(0) }
    };
}

/// The times of the poll that runs on this thread, in nanoseconds.
struct PollClock {
    began: Cell<u64>,
    ended: Cell<u64>,
    /// A poll longer than this is long; zero where nobody measures.
    quantum: Cell<u64>,
}

/// Returns the runtime that this thread runs for, if there is one.
pub(crate) fn current() -> Option<Handle> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Makes `handle` the runtime of this thread, and its server the current one, until the guard drops.
pub(crate) fn enter(handle: Handle) -> Entered {
    let server = handle.server().enter();
    let previous = CURRENT.with(|current| current.borrow_mut().replace(handle));
    Entered { previous, _server: server }
}

#[derive(Debug)]
#[must_use = "the runtime is current only until this is dropped"]
pub(crate) struct Entered {
    previous: Option<Handle>,
    _server: vigie_detect::Entered,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let previous = self.previous.take();
        // The handle may be the runtime's last: dropped outside the borrow.
        let left = CURRENT
            .try_with(|current| std::mem::replace(&mut *current.borrow_mut(), previous));
        drop(left);
    }
}

/// A poll begins at `now`.
pub(crate) fn begin_poll(now: u64, quantum: Duration) {
    POLL.with(|poll| {
        poll.began.set(now);
        poll.ended.set(0);
        poll.quantum.set(u64::try_from(quantum.as_nanos()).unwrap_or(u64::MAX));
    });
}

/// The poll ends now. Returns whether it was long.
pub(crate) fn end_poll() -> bool {
    POLL.with(|poll| {
        let quantum = poll.quantum.get();
        if quantum == 0 {
            return false;
        }
        let now = monotonic_now().as_nanos();
        poll.ended.set(now);
        now.saturating_sub(poll.began.get()) > quantum
    })
}

/// Returns when the last poll on this thread ended, if it was timed, and stops the timing.
pub(crate) fn take_poll_end() -> Option<u64> {
    POLL.with(|poll| {
        poll.quantum.set(0);
        match poll.ended.replace(0) {
            0 => None,
            ended => Some(ended),
        }
    })
}
