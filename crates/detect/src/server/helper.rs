//! Blocking calls on helper threads: one kernel thread for each handle that blocks, idle most of the
//! time.
//!
//! ```text
//!             want (1)               call returned (3)
//!   parked ────────────▶ calling ──────────────────────▶ parked, and the host is notified
//!     │                     │
//!     └──── close (2) ──────┴──── close, interrupt (2) ──▶ ended
//! ```
//!
//! (1) is called by the host or a waiter, in [`Helper::want`], whenever requests are pending and no call is
//! in progress. (2) is [`Helper::close`]. (3) happens on the thread, in [`HelperControl::run`]: the poll that
//! follows takes what the call announced and wants the next call if a request is still pending.
//!
//! The thread is created with the first request, and makes no call while nothing is pending.

use std::{io, time::Duration};

use crate::{
    clock::Instant,
    detector::{Blocker, Call, DriverHandle, Interrupt},
    error::{WaitError, caught, discard},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, lock, thread},
};

/// The time to wait before a retry after the kernel refused a thread.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(10);

/// The number of interrupts that are tried, a millisecond apart, before the thread is abandoned.
const INTERRUPTS_MAX: u32 = 100;

/// The helper of one handle, behind the handle's lock.
pub(crate) struct Helper {
    control: Arc<HelperControl>,
    name: &'static str,
    thread: Option<thread::JoinHandle<()>>,
    /// The time of the next try after the thread was refused.
    retry_at: Option<Instant>,
}

/// The state that the handle and the helper's thread share. `tests/loom.rs` checks that no wanted
/// call is lost.
pub(crate) struct HelperControl {
    state: Mutex<HelperState>,
    changed: Condvar,
    interrupt: Option<Interrupt>,
}

#[derive(Default)]
struct HelperState {
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
        let control = Arc::new(HelperControl::new(blocker));
        Self { control, name, thread: None, retry_at: None }
    }

    /// Wants a call, if none is in progress. Returns whether there is a thread for it.
    #[must_use = "without a thread the host must poll"]
    pub(crate) fn want(&mut self, driver: &DriverHandle, now: Instant) -> bool {
        if self.thread.is_none() && !self.spawn(driver, now) {
            return false;
        }
        self.control.want();
        true
    }

    fn spawn(&mut self, driver: &DriverHandle, now: Instant) -> bool {
        if self.retry_at.is_some_and(|at| now < at) {
            return false;
        }
        let (control, driver) = (Arc::clone(&self.control), driver.clone());
        let spawned = thread::Builder::new()
            .name("vigie-helper".to_owned())
            .spawn(move || control.run(|| driver.notify()));
        match spawned {
            Ok(thread) => {
                if self.retry_at.take().is_some() {
                    tracing::info!(handle = self.name, "the helper thread was created after all");
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

    /// Returns the error of the last call.
    pub(crate) fn take_failure(&self) -> Option<WaitError> {
        self.control.lock().failure.take()
    }

    /// Ends the thread, and waits for its end for a bounded time.
    pub(crate) fn close(mut self) {
        let (unused, has_ended) = self.control.close(self.thread.is_some());
        discard(unused);
        let Some(thread) = self.thread.take() else { return };
        if has_ended && thread.thread().id() != thread::current().id() {
            // The call catches its own panics.
            drop(thread.join());
        } else if self.control.interrupt.is_some() {
            tracing::warn!(handle = self.name, "a blocking call ignored its interrupt: abandoned");
        } else {
            tracing::debug!(handle = self.name, "a blocking call outlasts its handle");
        }
    }
}

impl HelperControl {
    pub(crate) fn new(blocker: Blocker) -> Self {
        let Blocker { call, interrupt } = blocker;
        let state = Mutex::new(HelperState { call: Some(call), ..HelperState::default() });
        Self { state, changed: Condvar::new(), interrupt }
    }

    fn lock(&self) -> MutexGuard<'_, HelperState> {
        lock(&self.state)
    }

    /// Wants a call, if none is in progress.
    pub(crate) fn want(&self) {
        let mut state = self.lock();
        if !state.is_calling && !state.is_wanted {
            state.is_wanted = true;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Wants no further call. Interrupts the one in progress, and waits for the thread's end if it
    /// `has_thread`, for a bounded time. Returns the call if no thread ever took it, and whether the thread
    /// has ended.
    pub(crate) fn close(&self, has_thread: bool) -> (Option<Call>, bool) {
        let mut state = self.lock();
        state.is_closed = true;
        // A thread that has only just started takes it, and drops it outside the lock.
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

    /// The thread's main function: makes a call whenever one is wanted, and calls `notify` after
    /// each.
    pub(crate) fn run(&self, notify: impl Fn()) {
        let call = self.lock().call.take();
        let limit = if self.interrupt.is_some() { None } else { Some(Blocker::UNINTERRUPTED_MAX) };
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
                // After the call's end: a want during the call was ignored, and the poll caused by
                // this notification repeats it.
                notify();
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
