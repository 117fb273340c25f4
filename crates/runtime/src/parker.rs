//! A worker's sleep: in the wait point if nobody else is there, on its thread otherwise.
//!
//! ```text
//!              park (1)              occupied (2)
//!   awake ──────────────▶ in wait point ──────────▶ on thread
//!     ▲  │                   │    │                    │
//!     │  └── unpark (3) ─────┼────┼────────────────────┘
//!     │                      ▼    ▼
//!     └──────── (4) ─────── notified
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
    /// `wait` sleeps in the wait point and returns `true`, or `false` at once if somebody else is
    /// there. Once its sleep is announced to those who wake the wait point, it must ask whether the
    /// worker is awaited, and not sleep then: an `unpark` before the announcement has left its mark
    /// here, one after it wakes the wait point.
    pub(crate) fn park(&self, wait: impl FnOnce(&dyn Fn() -> bool) -> bool) {
        if self.moves(AWAKE, IN_WAIT_POINT) {
            let was_free = wait(&|| self.state.load(Ordering::SeqCst) == NOTIFIED);
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
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            IN_WAIT_POINT => wake_wait_point(),
            ON_THREAD => {
                if let Some(thread) = self.thread.get() {
                    thread.unpark();
                }
            }
            _ => {}
        }
    }

    fn moves(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}
