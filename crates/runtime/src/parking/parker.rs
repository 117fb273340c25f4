//! A worker's sleep: in the poller if it is free, otherwise on its thread.
//!
//! ```text
//!              park (1)              occupied (2)
//!   awake ──────────────▶ in poller ──────────▶ on thread
//!     ▲  │                   │                         │
//!     │  │ unpark (3)        │ unpark (3)              │ unpark (3)
//!     │  ▼                   ▼                         ▼
//!     │ notified           called                   notified
//!     └──(4)─────────────────┴─────────────────────────┘
//! ```
//!
//! The worker does (1), (2) and (4) in [`Parker::park`]; any thread does (3). An `unpark` that finds the
//! worker awake keeps it from its next sleep.

use crate::sync::{
    AtomicU8, OnceLock, Ordering,
    parking::{self, Thread},
};

const AWAKE: u8 = 0;
const NOTIFIED: u8 = 1;
const IN_POLLER: u8 = 2;
const ON_THREAD: u8 = 3;
/// Notified in the poller, where another thread may take the wake-up.
const CALLED: u8 = 4;

#[derive(Debug)]
pub(crate) struct Parker {
    /// The worker moves it from `AWAKE` to where it sleeps and back; any thread moves it to `NOTIFIED`.
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl Parker {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(AWAKE), thread: OnceLock::new() }
    }

    /// Binds the calling thread as the one that parks here.
    pub(crate) fn bind(&self) {
        // A second worker on the same parker would be a bug: the first binding stays.
        let _ = self.thread.set(parking::current());
    }

    /// Sleeps until [`unpark`](Self::unpark) or, in the poller, until something happens.
    ///
    /// `wait` sleeps in the poller and returns `true`, or returns `false` at once if the poller is occupied.
    /// After it has announced its sleep to the threads that wake the poller, it must ask the given function
    /// whether the worker is awaited, and if so not sleep: an `unpark` before the announcement has set the
    /// state here, one after it wakes the poller.
    pub(crate) fn park(&self, wait: impl FnOnce(&dyn Fn() -> bool) -> bool) {
        if self.moves(AWAKE, IN_POLLER) {
            let was_free = wait(&|| self.is_called());
            if !was_free && self.moves(IN_POLLER, ON_THREAD) {
                while self.state.load(Ordering::SeqCst) != NOTIFIED {
                    parking::park();
                }
            }
        }
        // A swap: a worker that clears the mark of an `unpark` sees everything done before it.
        self.state.swap(AWAKE, Ordering::SeqCst);
    }

    /// Wakes the worker, or keeps it from its next sleep. `wake_wait_point` wakes the thread that sleeps in
    /// the poller.
    pub(crate) fn unpark(&self, wake_wait_point: impl FnOnce()) {
        let after = |before| if matches!(before, IN_POLLER | CALLED) { CALLED } else { NOTIFIED };
        let mut before = self.state.load(Ordering::SeqCst);
        while let Err(changed) =
            self.state.compare_exchange(before, after(before), Ordering::SeqCst, Ordering::SeqCst)
        {
            before = changed;
        }
        match before {
            IN_POLLER => wake_wait_point(),
            ON_THREAD => {
                if let Some(thread) = self.thread.get() {
                    thread.unpark();
                }
            }
            _ => {}
        }
    }

    /// Returns whether an `unpark` has come while the worker is in the poller.
    ///
    /// A thread that returns from the poller asks this about the other threads there, since the kernel may
    /// have woken it in place of another one. An `unpark` marks its parker before it notifies, so the thread
    /// that takes the notification finds the mark.
    pub(crate) fn is_called(&self) -> bool {
        self.state.load(Ordering::SeqCst) == CALLED
    }

    /// Withdraws the `unpark`. Returns whether the worker had not noticed it yet.
    pub(crate) fn take_back(&self) -> bool {
        self.moves(CALLED, IN_POLLER)
    }

    fn moves(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

// The models of `tests/loom.rs` compile this file too, but not the test below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Goal: a call is known as long as it is not taken note of, only in the poller, and can be taken back there.
    /// Method: `unpark` before, in and after a sleep in the poller, once and twice.
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
