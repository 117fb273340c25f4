//! Duties of an awake host while others sleep in the poller: the deadlines that its tasks submit.

use std::{cell::Cell, ptr};

use super::{registered::Due, shared::ServerShared};
use crate::{
    clock::Instant,
    sync::{Ordering, thread_local},
};

thread_local! {
    /// The server of which this thread is an awake host.
    static HOSTED: Cell<*const ServerShared> = const { Cell::new(ptr::null()) };
    /// The next deadline was deferred to this thread, see `ServerShared::leave_deadline_here`.
    static DEFERRED_WAKEUP: Cell<bool> = const { Cell::new(false) };
}

/// The thread sleeps or ends: it no longer polls unprompted.
pub(crate) fn forget() {
    let _ = HOSTED.try_with(|hosted| hosted.set(ptr::null()));
}

/// Returns whether a deadline was deferred to this thread, which handles it now.
pub(crate) fn take_deferred_wakeup() -> bool {
    DEFERRED_WAKEUP.try_with(|has_deferred| has_deferred.replace(false)).unwrap_or(false)
}

/// Defers a deadline to this thread.
pub(crate) fn defer_wakeup() {
    let _ = DEFERRED_WAKEUP.try_with(|has_deferred| has_deferred.set(true));
}

impl ServerShared {
    /// Records that the thread is an awake host, which polls again before it sleeps.
    pub(crate) fn note_host(&self) {
        let _ = HOSTED.try_with(|hosted| hosted.set(self));
    }

    pub(crate) fn is_hosted_here(&self) -> bool {
        HOSTED.try_with(|hosted| ptr::eq(hosted.get(), self)).unwrap_or(false)
    }

    /// Makes sure that the host does not sleep past the deadline. A sleeping host is not woken for a deadline that this thread will
    /// handle itself. Called after the detector has taken the request: the driver, which raises both words before it asks the
    /// detectors, either finds the request there or is followed by this call.
    pub(crate) fn publish_deadline(&self, due: Due) {
        let (soft, hard) = (due.soft.as_nanos(), due.hard.as_nanos());
        if soft < hard {
            self.is_deadline_doubtful.store(true, Ordering::Relaxed);
        }
        // Most deadlines are later than the known one. If a load sees a lower word, it happened before
        // the driver raised that word; the handle's lock, which the driver takes afterwards, then shows
        // it the request.
        if soft < self.next_due.load(Ordering::Relaxed) {
            self.next_due.fetch_min(soft, Ordering::SeqCst);
        }
        if hard < self.next_deadline.load(Ordering::Relaxed)
            && self.park_state.lower(&self.next_deadline, hard)
            && !self.leave_deadline_here()
        {
            self.unpark();
        }
    }

    /// Called when the next deadline has become earlier and a host sleeps. Returns whether this thread is another, awake host: it
    /// handles the deadline in its next poll pass, or before it sleeps, so the sleeping host need not be woken.
    pub(crate) fn leave_deadline_here(&self) -> bool {
        let is_here = self.is_hosted_here();
        if is_here {
            defer_wakeup();
        }
        is_here
    }

    /// Returns whether a second host may sleep in the poller. If the policies want the host to poll before it sleeps, the kernel would
    /// wake the second host for each event that the first finds by polling; and a sleeping host does not poll or arm the detectors that
    /// another host has found.
    pub(crate) fn may_share(&self, now: Instant) -> bool {
        let is_allowed = self.sharing.is_allowed(now);
        let polls =
            self.polls_first.load(Ordering::Relaxed) || self.has_active.load(Ordering::Relaxed);
        if is_allowed && polls {
            self.sharing.pause(now);
        }
        is_allowed && !polls
    }

    /// Returns whether a host sleeps in the poller that will see everything: it was told when to poll, and the timer fires at
    /// the next deadline.
    pub(crate) fn is_covered(&self) -> bool {
        self.park_state.is_parked()
            && self.armed.load(Ordering::Relaxed) <= self.next_deadline.load(Ordering::Relaxed)
    }

    /// Returns whether detectors must be polled or armed while others sleep, or may have to be because something has changed.
    pub(crate) fn must_poll(&self) -> bool {
        self.has_active.load(Ordering::Relaxed) || self.frequencies_changed.load(Ordering::Relaxed)
    }

    /// Returns whether the next deadline has passed at `now` without a timer that ends the sleep of others for
    /// it.
    pub(crate) fn is_deadline_lost(&self, now: Instant) -> bool {
        let next = self.next_deadline.load(Ordering::Relaxed);
        self.is_deadline_over(now) && self.armed.load(Ordering::Relaxed) > next
    }

    pub(crate) fn is_deadline_over(&self, now: Instant) -> bool {
        now.as_nanos() >= self.next_deadline.load(Ordering::Relaxed)
    }
}
