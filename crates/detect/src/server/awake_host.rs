//! What a host that is awake sees to while others sleep in the wait point: the deadlines that its tasks submit.

use std::{cell::Cell, ptr};

use super::{registered::Due, shared::Shared};
use crate::{
    clock::Instant,
    sync::{Ordering, thread_local},
};

thread_local! {
    /// The server of which this thread is a host that is awake.
    static HOSTED: Cell<*const Shared> = const { Cell::new(ptr::null()) };
    /// The next deadline was left to this thread, see `Shared::leave_deadline_here`.
    static OWES: Cell<bool> = const { Cell::new(false) };
}

/// The thread sleeps, or ends: it looks at nothing by itself.
pub(crate) fn forget() {
    let _ = HOSTED.try_with(|hosted| hosted.set(ptr::null()));
}

/// Returns whether a deadline was left to this thread, which sees to it now.
pub(crate) fn take_debt() -> bool {
    OWES.try_with(|owes| owes.replace(false)).unwrap_or(false)
}

/// A deadline is left to this thread.
pub(crate) fn owe() {
    let _ = OWES.try_with(|owes| owes.set(true));
}

impl Shared {
    /// The thread is a host that is awake, and looks again before it sleeps.
    pub(crate) fn note_host(&self) {
        let _ = HOSTED.try_with(|hosted| hosted.set(self));
    }

    pub(crate) fn is_hosted_here(&self) -> bool {
        HOSTED.try_with(|hosted| ptr::eq(hosted.get(), self)).unwrap_or(false)
    }

    /// Makes sure that the host does not sleep past the deadline. Another one that sleeps is not woken for what this thread will see
    /// by itself. Called after the detector has taken the
    /// request, so that the driver, which raises both words before it asks the detectors, either finds it
    /// there or is followed by this.
    pub(crate) fn publish_deadline(&self, due: Due) {
        let (soft, hard) = (due.soft.as_nanos(), due.hard.as_nanos());
        // Most are later than what is known. A load that sees a lower word has happened before the driver
        // raised it; then the handle's lock, which the driver takes after that, has shown it the request.
        if soft < self.next_due.load(Ordering::Relaxed) {
            self.next_due.fetch_min(soft, Ordering::SeqCst);
        }
        if hard < self.next_deadline.load(Ordering::Relaxed)
            && self.word.lower(&self.next_deadline, hard)
            && !self.leave_deadline_here()
        {
            self.unpark();
        }
    }

    /// The next deadline has become sooner, and a host sleeps. Returns whether this thread is another one, which is awake: it sees to
    /// the deadline at its next look, or before it sleeps, so that the one that sleeps need not be woken.
    pub(crate) fn leave_deadline_here(&self) -> bool {
        let is_here = self.is_hosted_here();
        if is_here {
            owe();
        }
        is_here
    }

    /// Returns whether a second host may sleep in the wait point. Where the policies want the host to poll before it sleeps, the kernel
    /// would wake the other one for each event that the first one finds by polling; and one that sleeps does not poll or arm what another
    /// one has found.
    pub(crate) fn may_share(&self, now: Instant) -> bool {
        let is_allowed = self.sharing.is_allowed(now);
        let polls =
            self.polls_first.load(Ordering::Relaxed) || self.has_active.load(Ordering::Relaxed);
        if is_allowed && polls {
            self.sharing.pause(now);
        }
        is_allowed && !polls
    }

    /// Returns whether a host sleeps at the wait point that will see all that can be seen there: it was told when to poll, and the
    /// timer fires when the next deadline comes.
    pub(crate) fn is_covered(&self) -> bool {
        self.word.is_parked()
            && self.armed.load(Ordering::Relaxed) <= self.next_deadline.load(Ordering::Relaxed)
    }

    /// Returns whether detectors must be polled, or armed, while others sleep; or may have to be, since something has changed.
    pub(crate) fn must_poll(&self) -> bool {
        self.has_active.load(Ordering::Relaxed) || self.frequencies_changed.load(Ordering::Relaxed)
    }

    /// Returns whether the next deadline is over at `now`, and the timer does not end the sleep of others for it.
    pub(crate) fn is_deadline_lost(&self, now: Instant) -> bool {
        let next = self.next_deadline.load(Ordering::Relaxed);
        self.is_deadline_over(now) && self.armed.load(Ordering::Relaxed) > next
    }

    pub(crate) fn is_deadline_over(&self, now: Instant) -> bool {
        now.as_nanos() >= self.next_deadline.load(Ordering::Relaxed)
    }
}
