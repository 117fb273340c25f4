//! A worker's sleep: in the wait point if there is room, on its thread otherwise.
//!
//! ```text
//!              park (1)              occupied (2)
//!   awake ──────────────▶ in wait point ──────────▶ on thread
//!     ▲  │                   │                         │
//!     │  │ unpark (3)        │ unpark (3)              │ unpark (3)
//!     │  ▼                   ▼                         ▼
//!     │ notified           called                   notified
//!     └──(4)─────────────────┴─────────────────────────┘
//! ```
//!
//! (1), (2) and (4) are the worker's, in [`Parker::park`]; (3) is anybody's. An `unpark` that finds the
//! worker awake keeps it from its next sleep.

use crate::sync::{
    AtomicU8, OnceLock, Ordering,
    parking::{self, Thread},
};

const AWAKE: u8 = 0;
const NOTIFIED: u8 = 1;
const IN_WAIT_POINT: u8 = 2;
const ON_THREAD: u8 = 3;
/// Notified in the wait point, where another thread may take the wake-up.
const CALLED: u8 = 4;

#[derive(Debug)]
pub(crate) struct Parker {
    /// Who may move it: the worker from `AWAKE` to where it sleeps and back, anybody to `NOTIFIED`.
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl Parker {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(AWAKE), thread: OnceLock::new() }
    }

    /// Names the calling thread as the one that parks here.
    pub(crate) fn bind(&self) {
        // A second worker on the same parker would be a bug: the first binding stays.
        let _ = self.thread.set(parking::current());
    }

    /// Sleeps until [`unpark`](Self::unpark) or, in the wait point, until something happens.
    ///
    /// `wait` sleeps in the wait point and returns `true`, or `false` at once if others are
    /// there. Once its sleep is announced to those who wake the wait point, it must ask whether the
    /// worker is awaited, and not sleep then: an `unpark` before the announcement has left its mark
    /// here, one after it wakes the wait point.
    pub(crate) fn park(&self, wait: impl FnOnce(&dyn Fn() -> bool) -> bool) {
        if self.moves(AWAKE, IN_WAIT_POINT) {
            let was_free = wait(&|| self.is_called());
            if !was_free && self.moves(IN_WAIT_POINT, ON_THREAD) {
                while self.state.load(Ordering::SeqCst) != NOTIFIED {
                    parking::park();
                }
            }
        }
        // A swap: whoever takes the mark of an `unpark` away sees what was done before it.
        self.state.swap(AWAKE, Ordering::SeqCst);
    }

    /// Wakes the worker, or keeps it from its next sleep. `wake_wait_point` wakes whoever sleeps there.
    pub(crate) fn unpark(&self, wake_wait_point: impl FnOnce()) {
        let after =
            |before| if matches!(before, IN_WAIT_POINT | CALLED) { CALLED } else { NOTIFIED };
        let mut before = self.state.load(Ordering::SeqCst);
        while let Err(changed) =
            self.state.compare_exchange(before, after(before), Ordering::SeqCst, Ordering::SeqCst)
        {
            before = changed;
        }
        match before {
            IN_WAIT_POINT => wake_wait_point(),
            ON_THREAD => {
                if let Some(thread) = self.thread.get() {
                    thread.unpark();
                }
            }
            _ => {}
        }
    }

    /// Returns whether an `unpark` has come since the worker went to the wait point, while it is there.
    ///
    /// A thread that is back from the wait point asks this of the others there: the wake-up may have come to it. An `unpark` marks
    /// its parker before it rings, so whoever takes the ring finds the mark.
    pub(crate) fn is_called(&self) -> bool {
        self.state.load(Ordering::SeqCst) == CALLED
    }

    /// Takes the `unpark` back. Returns whether the worker had not taken note of it.
    pub(crate) fn take_back(&self) -> bool {
        self.moves(CALLED, IN_WAIT_POINT)
    }

    fn moves(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

// The models of `tests/loom.rs` compile this file, too: the test below is none of them.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Goal: a call is known as long as it is not taken note of, only in the wait point, and can be taken back there.
    /// Method: `unpark` before, in and after a sleep in the wait point, once and twice.
    #[test]
    fn calls_in_the_wait_point_can_be_taken_back() {
        let parker = Parker::new();
        let mut wakes = 0;
        parker.unpark(|| wakes += 1);
        assert!(!parker.is_called() && !parker.take_back(), "it is awake");
        parker.park(|_| panic!("it was notified"));
        for is_taken_back in [false, true] {
            parker.park(|is_awaited| {
                assert!(!is_awaited() && !parker.is_called() && !parker.take_back());
                parker.unpark(|| wakes += 1);
                parker.unpark(|| panic!("it is called already"));
                assert!(is_awaited() && parker.is_called());
                assert!(!is_taken_back || parker.take_back() && !is_awaited());
                true
            });
            assert!(!parker.is_called());
        }
        assert_eq!(wakes, 2);
    }
}
