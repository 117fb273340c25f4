//! A worker's sleep: in the wait point if nobody else is there, on its thread otherwise.

use vigie_detect::{Detected, Lookout, Server};

use crate::{
    panics::contained,
    sync::{
        AtomicU8, OnceLock, Ordering,
        thread::{self, Thread},
    },
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
        let _ = self.thread.set(thread::current());
    }

    /// Sleeps until [`unpark`](Self::unpark) or, in the wait point, until something happens. Returns
    /// what was detected.
    pub(crate) fn park(&self, lookout: &mut Lookout) -> Detected {
        if !self.moves(AWAKE, IN_WAIT_POINT) {
            self.state.store(AWAKE, Ordering::SeqCst);
            return Detected::Nothing;
        }
        // Asked for after the sleep is announced at the wait point: an `unpark` before that has left
        // its mark here, one after it wakes the wait point.
        let is_awaited = || self.state.load(Ordering::SeqCst) == NOTIFIED;
        let detected = contained("a sleep", || lookout.park_unless(None, is_awaited));
        let detected = detected.unwrap_or(Detected::Nothing);
        if detected == Detected::Busy && self.moves(IN_WAIT_POINT, ON_THREAD) {
            while self.state.load(Ordering::SeqCst) != NOTIFIED {
                thread::park();
            }
        }
        self.state.swap(AWAKE, Ordering::SeqCst);
        detected
    }

    /// Wakes the worker, or keeps it from its next sleep.
    pub(crate) fn unpark(&self, server: &Server) {
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            IN_WAIT_POINT => server.unpark(),
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
