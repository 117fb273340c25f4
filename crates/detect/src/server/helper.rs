//! Blocking calls on helper threads: one kernel thread for each handle that blocks, idle most of the
//! time.
//!
//! ```text
//!             want (1)               call returned (3)
//!   parked ────────────▶ calling ──────────────────────▶ parked, and the host is rung for
//!     │                     │
//!     └──── close (2) ──────┴──── close, interrupt (2) ──▶ ended
//! ```
//!
//! (1) is the host's, or a waiter's, in [`Helper::want`]: whenever requests are pending and no call is
//! under way. (2) is [`Helper::close`]. (3) is the thread's, in [`Control::run`]: the round that follows
//! takes what the call announced and wants the next one if somebody still waits.
//!
//! The thread is made with the first request, and makes no call while nobody waits.

use std::{io, time::Duration};

use crate::{
    clock::Instant,
    detector::{Blocker, Call, Interrupt, Site},
    error::{WaitError, caught, discard},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, lock, thread},
};

/// How long to wait before a thread that the kernel refused is asked for again.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(10);

/// How often an interrupt is tried, a millisecond apart, before a thread is left to itself.
const INTERRUPTS_MAX: u32 = 100;

/// The helper of one handle, behind the handle's lock.
pub(crate) struct Helper {
    control: Arc<Control>,
    name: &'static str,
    thread: Option<thread::JoinHandle<()>>,
    /// When to ask for the thread again after it was refused.
    retry_at: Option<Instant>,
}

/// What the handle and the helper's thread share. `tests/loom.rs` checks that no wish is lost.
pub(crate) struct Control {
    state: Mutex<State>,
    changed: Condvar,
    interrupt: Option<Interrupt>,
}

#[derive(Default)]
struct State {
    /// Until the thread takes it.
    call: Option<Call>,
    is_wanted: bool,
    is_calling: bool,
    is_closed: bool,
    has_ended: bool,
    failure: Option<WaitError>,
}

impl Helper {
    pub(crate) fn new(blocker: Blocker, name: &'static str) -> Self {
        let control = Arc::new(Control::new(blocker));
        Self { control, name, thread: None, retry_at: None }
    }

    /// Wants a call, if none is under way. Returns whether there is a thread for it.
    #[must_use = "without a thread the host must poll"]
    pub(crate) fn want(&mut self, site: &Site, now: Instant) -> bool {
        if self.thread.is_none() && !self.spawn(site, now) {
            return false;
        }
        self.control.want();
        true
    }

    fn spawn(&mut self, site: &Site, now: Instant) -> bool {
        if self.retry_at.is_some_and(|at| now < at) {
            return false;
        }
        let (control, site) = (Arc::clone(&self.control), site.clone());
        let spawned = thread::Builder::new()
            .name("vigie-helper".to_owned())
            .spawn(move || control.run(|| site.ring_again()));
        match spawned {
            Ok(thread) => {
                if self.retry_at.take().is_some() {
                    tracing::info!(handle = self.name, "the helper thread could be made after all");
                }
                self.thread = Some(thread);
                true
            }
            Err(error) => {
                if self.retry_at.is_none() {
                    let handle = self.name;
                    tracing::warn!(handle, %error, "no helper thread: the handle is polled instead");
                }
                self.retry_at = Some(now + RETRY_AFTER);
                false
            }
        }
    }

    /// Returns what the last call failed with.
    pub(crate) fn take_failure(&self) -> Option<WaitError> {
        self.control.lock().failure.take()
    }

    /// Ends the thread, and waits for that for a bounded time.
    pub(crate) fn close(mut self) {
        let (unused, has_ended) = self.control.close(self.thread.is_some());
        discard(unused);
        let Some(thread) = self.thread.take() else { return };
        if has_ended && thread.thread().id() != thread::current().id() {
            // Panics of the call are caught in it.
            drop(thread.join());
        } else if self.control.interrupt.is_some() {
            tracing::warn!(handle = self.name, "a blocking call was not interrupted: left alone");
        } else {
            tracing::debug!(handle = self.name, "a blocking call outlasts its handle");
        }
    }
}

impl Control {
    pub(crate) fn new(blocker: Blocker) -> Self {
        let Blocker { call, interrupt } = blocker;
        let state = Mutex::new(State { call: Some(call), ..State::default() });
        Self { state, changed: Condvar::new(), interrupt }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Wants a call, if none is under way.
    pub(crate) fn want(&self) {
        let mut state = self.lock();
        if !state.is_calling && !state.is_wanted {
            state.is_wanted = true;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// No call is wanted any more. Interrupts the one under way, and waits for the thread's end if it
    /// `has_thread`, for a bounded time. Returns the call if no thread ever took it, and whether the thread
    /// has ended.
    pub(crate) fn close(&self, has_thread: bool) -> (Option<Call>, bool) {
        let mut state = self.lock();
        state.is_closed = true;
        // A thread that has only just begun takes it, and drops it outside the lock.
        let unused = if has_thread { None } else { state.call.take() };
        self.changed.notify_all();
        for _ in 0..if has_thread { INTERRUPTS_MAX } else { 0 } {
            if state.is_calling
                && let Some(interrupt) = &self.interrupt
            {
                drop(state);
                let _ = caught("interrupt", interrupt);
                state = self.lock();
            }
            // A call that cannot be interrupted ends in its own time.
            if state.has_ended || (state.is_calling && self.interrupt.is_none()) {
                break;
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        (unused, state.has_ended)
    }

    /// What the thread does: calls, as often as it is wanted, and `ring`s after each call.
    pub(crate) fn run(&self, ring: impl Fn()) {
        let call = self.lock().call.take();
        let limit = if self.interrupt.is_some() { None } else { Some(Blocker::LIMIT) };
        if let Some(mut call) = call {
            while self.begin() {
                let result = match caught("block", || call(limit)) {
                    Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => {
                        Some(WaitError::Failed(error))
                    }
                    Ok(_) => None,
                    Err(panicked) => Some(panicked),
                };
                self.end(result);
                // After the end: a wish that came during the call was passed over, and the round that
                // this brings about repeats it.
                ring();
            }
            discard(call);
        }
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// Sleeps until a call is wanted; false if none ever will be.
    fn begin(&self) -> bool {
        let mut state = self.lock();
        while !state.is_wanted && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_wanted = false;
        state.is_calling = !state.is_closed;
        !state.is_closed
    }

    fn end(&self, failure: Option<WaitError>) {
        let mut state = self.lock();
        state.is_calling = false;
        state.failure = failure;
    }
}
