//! A clock that wakes one thread: how the supervisor sleeps without costing those who may need it.
//!
//! Threads that run tasks keep the alarm ahead of themselves: as long as they switch, they put it off
//! before it rings, so that the supervisor sleeps. Only a poll that is long lets it ring. Putting it off is
//! one system call that wakes nobody, made once in as much time as a poll may take; at any other switch a
//! look at the alarm is one load.

use std::{io, time::Duration};

use crate::{
    sync::{AtomicU64, Ordering},
    timerfd::Timer,
};

pub(crate) struct Alarm {
    /// Seen from outside by a model alone.
    pub(crate) timer: Timer,
    /// When the alarm rings, in nanoseconds; zero while it is not set. The last bit says that the sleeper
    /// set it itself, so that nobody else may put it off. `Relaxed` for threads that run tasks: a stale
    /// value makes the sleeper look once too often, or is found out by its age.
    due: AtomicU64,
    /// How long after the beginning of a poll the sleeper may look at the earliest.
    delay_ns: u64,
}

/// The sleeper set the alarm itself.
const HELD: u64 = 1;

/// A sleeper that has not run for so long after its alarm was due was not woken: two threads have set the
/// timer in one order and noted it in the other.
const LOST_NS: u64 = 10_000_000;

impl Alarm {
    pub(crate) fn new(delay: Duration) -> io::Result<Self> {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX / 4);
        Ok(Self { timer: Timer::new()?, due: AtomicU64::new(0), delay_ns })
    }

    /// Makes sure that the sleeper looks between one and two `delays` of the alarm after `now`, when a poll
    /// begins, or sooner if it must. One load if that is so already. `may_put_off` says whether nobody else
    /// needs the look that is due sooner.
    #[inline]
    pub(crate) fn guard(&self, now: u64, delays: u64, may_put_off: impl FnOnce() -> bool) {
        let delay = delays * self.delay_ns;
        let due = self.due.load(Ordering::Relaxed);
        if due.wrapping_sub(now.wrapping_add(delay)) > delay {
            self.correct(now, due, delay, may_put_off);
        }
    }

    #[cold]
    fn correct(&self, now: u64, due: u64, delay: u64, may_put_off: impl FnOnce() -> bool) {
        let is_right = match due.checked_sub(now) {
            // It comes sooner than this poll needs.
            Some(left) if left <= delay => due & HELD != 0 || !may_put_off(),
            // Later than this poll needs.
            Some(_) => false,
            // The sleeper is on its way.
            None => due != 0 && now - due < LOST_NS,
        };
        if !is_right {
            self.set(now + 2 * delay, 2 * delay);
        }
    }

    fn set(&self, due: u64, delay: u64) {
        self.due.store(due & !HELD, Ordering::Relaxed);
        self.timer.wake_in(Duration::from_nanos(delay));
    }

    /// Nobody runs a task any more: the sleeper need not look. For a thread that goes to sleep where events
    /// wake it.
    pub(crate) fn stop(&self) {
        let due = self.due.load(Ordering::Relaxed);
        if due != 0
            && due & HELD == 0
            && self.due.compare_exchange(due, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            self.timer.stop();

            // Another thread may have set the alarm since, and its timer before we stopped it. The kernel
            // locks the timer: if it was set first, we see the alarm that was noted before.
            if self.due.load(Ordering::SeqCst) != 0 {
                self.timer.wake_in(Duration::from_nanos(self.delay_ns));
            }
        }
    }

    /// Makes the sleeper look after `delay`, whatever others do. Only the sleeper itself, and the shutdown,
    /// call this.
    pub(crate) fn hold(&self, now: u64, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX / 4);
        // A swap and no store: it stands before or after the exchange in `stop`, which either fails or sees
        // this alarm afterwards.
        self.due.swap(now.saturating_add(nanos) | HELD, Ordering::SeqCst);
        self.timer.wake_in(delay);
    }

    /// Returns whether nobody has set the alarm since the sleeper began to rest.
    pub(crate) fn is_resting(&self) -> bool {
        self.due.load(Ordering::SeqCst) == 0
    }

    /// The sleeper wants to rest: from now on those who need it must set the alarm.
    ///
    /// A thread may have read the old alarm a moment before, taken it for enough, and begun a poll that the
    /// sleeper would have to see. So the sleeper must sleep for one more delay, which is longer than any
    /// store takes to arrive, look once more, and only then sleep without a timer.
    pub(crate) fn begin_rest(&self) {
        self.due.store(0, Ordering::SeqCst);
        self.timer.wake_in(Duration::from_nanos(self.delay_ns));
    }

    /// Sleeps until the timer ends.
    pub(crate) fn sleep(&self) {
        // A signal that ends the sleep makes the sleeper look once too often.
        if let Err(error) = self.timer.sleep() {
            tracing::error!(%error, "the supervisor's timer could not be read");
            crate::sync::thread::park_timeout(Duration::from_nanos(self.delay_ns));
        }
    }
}
