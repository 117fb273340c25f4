//! A clock that wakes one thread: how the supervisor sleeps at no cost to the threads that may need it.
//!
//! Threads that run tasks keep postponing the watchdog: while they switch, they move it before it fires, so
//! the supervisor sleeps. It fires only in a long poll. Postponing it is one system call that wakes no
//! thread, made at most once per length of a long poll; at any other switch, checking the watchdog is one
//! load.

use std::{io, time::Duration};

use super::timerfd::TimerFd;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

pub(crate) struct Watchdog {
    /// Only a model reads it from outside.
    pub(crate) timer: TimerFd,
    /// The time at which the watchdog fires, in nanoseconds; zero while it is not set. The last bit says that the sleeper
    /// set it itself, so that no other thread may postpone it. `Relaxed` for threads that run tasks: a stale
    /// value makes the sleeper check once too often, or is detected by its age.
    due: AtomicU64,
    /// The earliest time after the beginning of a poll at which the sleeper may check.
    delay_ns: u64,
    /// The time at which all long polls so far will be forgotten: each one moves this on by a hundred times its length.
    forgotten_at: AtomicU64,
    /// The sleeper must wake up and end. Stored before the timer is set to fire at once, and loaded by each thread after
    /// it has set or stopped the timer: see [`end`](Self::end).
    is_ended: AtomicBool,
}

/// The sleeper set the watchdog itself.
const HELD: u64 = 1;

/// The watchdog is postponed past a deadline that is at most this far away; for a later one, or none, it is
/// stopped.
const NEXT_NS: u64 = 10_000_000;

/// A long poll is remembered for this many times its length, so that the watchdog is alert if long polls
/// recently took more than a hundredth of the time. Rarer ones are not computing tasks: on a busy machine, a
/// thread that handles interrupts, or whose virtual processor was taken away, seems to compute for a
/// millisecond now and then.
const REMEMBERED: u64 = 100;

/// The watchdog is alert if its memory reaches at least this far ahead: from 5 ms of long polls on.
const ALERT_AHEAD_NS: u64 = 500_000_000;

/// The memory reaches at most this far ahead: the watchdog stops being alert at most one second after the
/// last long poll.
const AHEAD_NS_MAX: u64 = 1_500_000_000;

/// If the sleeper has not run this long after its watchdog was due, it was not woken: two threads set the
/// timer in one order and recorded it in the other.
const LOST_NS: u64 = 10_000_000;

impl Watchdog {
    pub(crate) fn new(delay: Duration) -> io::Result<Self> {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX / 4);
        Ok(Self {
            timer: TimerFd::new()?,
            due: AtomicU64::new(0),
            delay_ns,
            forgotten_at: AtomicU64::new(0),
            is_ended: AtomicBool::new(false),
        })
    }

    /// Makes sure, when a poll begins, that the sleeper checks between one and two `delays` of the watchdog
    /// after `now`, or sooner if it must. One load if that is so already. `may_put_off` says whether an
    /// earlier check that is due may be postponed because no other thread needs it.
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
            // It fires sooner than this poll needs. Only the last delay matters: postponing it at each poll
            // would cost more.
            Some(left) if left <= delay => {
                due & HELD != 0 || left > self.delay_ns || !may_put_off()
            }
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
        self.wake_in(Duration::from_nanos(delay));
    }

    fn wake_in(&self, delay: Duration) {
        self.timer.wake_in(delay);
        self.keep_ended();
    }

    /// To be called after each setting of the timer: if it has replaced that of [`end`](Self::end), repeats it.
    fn keep_ended(&self) {
        if self.is_ended.load(Ordering::Relaxed) {
            self.timer.wake_in(Duration::ZERO);
        }
    }

    /// Records a poll that was long for `nanos` until `now`, counting time that its thread computed or slept.
    pub(crate) fn note_long_poll(&self, now: u64, nanos: u64) {
        // If two threads do this at once, one poll is lost.
        let before = self.forgotten_at.load(Ordering::Relaxed).max(now);
        let after = before.saturating_add(nanos.saturating_mul(REMEMBERED));
        self.forgotten_at.store(after.min(now.saturating_add(AHEAD_NS_MAX)), Ordering::Relaxed);
    }

    /// Records a poll that has been long for `nanos` at `now` and goes on. It counts in full now if it alone
    /// makes the watchdog alert, otherwise once it is over.
    pub(crate) fn note_lasting_poll(&self, now: u64, nanos: u64) {
        if nanos.saturating_mul(REMEMBERED) > ALERT_AHEAD_NS {
            self.forgotten_at.store(now.saturating_add(AHEAD_NS_MAX), Ordering::Relaxed);
        }
    }

    /// Returns whether long polls took more than a hundredth of the last second: if so, a task is not trusted
    /// to stay brief because its polls were brief.
    #[inline]
    pub(crate) fn is_alert(&self, now: u64) -> bool {
        self.forgotten_at.load(Ordering::Relaxed) > now.saturating_add(ALERT_AHEAD_NS)
    }

    /// No thread runs a task any more at `now`: the sleeper need not check. For a thread that goes to sleep
    /// where events wake it. If a deadline comes soon, the watchdog is postponed beyond it by at least
    /// `delays`, as far as the next poll needs, so that the thread that wakes does not have to set it.
    pub(crate) fn stop(&self, now: u64, deadline: Option<u64>, delays: u64) {
        let due = self.due.load(Ordering::Relaxed);
        if due == 0 || due & HELD != 0 {
            return;
        }
        let is_soon = |deadline: &u64| (now..now.saturating_add(NEXT_NS)).contains(deadline);
        let deadline = deadline.filter(is_soon);
        let delay = delays * self.delay_ns;
        if deadline.is_some_and(|deadline| (deadline + delay..=deadline + 2 * delay).contains(&due))
        {
            return;
        }
        let after = deadline.map_or(0, |deadline| (deadline + 2 * delay) & !HELD);
        if self.due.compare_exchange(due, after, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            match after.checked_sub(now) {
                Some(left) => self.timer.wake_in(Duration::from_nanos(left)),
                None => self.timer.stop(),
            }
            self.keep_ended();

            // Another thread may have set the watchdog since, and its timer before we set ours. The kernel
            // locks the timer: if theirs was set first, we see the watchdog that they recorded before.
            if self.due.load(Ordering::SeqCst) != after {
                self.wake_in(Duration::from_nanos(self.delay_ns));
            }
        }
    }

    /// Returns the delay, the length of a long poll, in nanoseconds.
    #[inline]
    pub(crate) fn delay_ns(&self) -> u64 {
        self.delay_ns
    }

    /// Returns when the watchdog fires, in nanoseconds; zero while it is not set.
    pub(crate) fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// Makes the sleeper check after `delay`, whatever other threads do. Only the sleeper itself calls this.
    pub(crate) fn hold(&self, now: u64, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX / 4);
        // A swap, not a store: it is ordered before or after the exchange in `stop`, which either fails or
        // sees this watchdog afterwards.
        self.due.swap(now.saturating_add(nanos) | HELD, Ordering::SeqCst);
        self.wake_in(delay);
    }

    /// Wakes the sleeper for the last time, at once, whatever other threads do: they may be about to set or to stop the
    /// timer, and the sleeper may be about to rest.
    ///
    /// `Relaxed` is enough, since the kernel locks the timer. Of the settings by other threads, one before ours is replaced
    /// by it; a thread whose setting comes after ours sees what we stored before ours, and sets the timer again.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
        self.timer.wake_in(Duration::ZERO);
    }

    /// Returns whether the watchdog has not been set since the sleeper began to rest.
    pub(crate) fn is_resting(&self) -> bool {
        self.due.load(Ordering::SeqCst) == 0
    }

    /// The sleeper wants to rest: from now on, threads that need it must set the watchdog.
    ///
    /// A thread may have read the old watchdog a moment before, found it sufficient, and begun a poll that
    /// the sleeper would have to see. So the sleeper must sleep for one more delay, which is longer than any
    /// store takes to become visible, check once more, and only then sleep without a timer.
    /// A thread that loses its processor meanwhile takes longer than that. So it must show its poll first, and
    /// [`guard`](Self::guard) it then.
    pub(crate) fn begin_rest(&self) {
        self.due.store(0, Ordering::SeqCst);
        self.wake_in(Duration::from_nanos(self.delay_ns));
    }

    /// Sleeps until the timer expires.
    pub(crate) fn sleep(&self) {
        // A signal that ends the sleep makes the sleeper check once too often.
        if let Err(error) = self.timer.sleep() {
            tracing::error!(%error, "the supervisor's timer could not be read");
            crate::sync::thread::park_timeout(Duration::from_nanos(self.delay_ns));
        }
    }
}

// The models of `tests/loom.rs` compile this file too, with a timer that only knows whether it is set.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const HOUR_NS: u64 = 3_600_000_000_000;
    /// The watchdog's delay. So long that no timer of these tests ends, and that what is left of one says how
    /// it was set, however slow the machine is.
    const D: u64 = 2 * HOUR_NS;
    /// The value that the timer is set to before each step, and by nothing else.
    const BEFORE: Duration = Duration::from_secs(100 * 3600);
    const NOW: u64 = 1_000 * D;

    fn watchdog(due: u64) -> Watchdog {
        let watchdog = Watchdog::new(Duration::from_nanos(D)).expect("a timer");
        watchdog.due.store(due, Ordering::Relaxed);
        watchdog.timer.wake_in(BEFORE);
        watchdog
    }

    /// Returns when the watchdog is due, and to what its timer was set.
    fn seen(watchdog: &Watchdog) -> (u64, Duration) {
        // Rounded up to hours.
        let hours = (watchdog.timer.left() + HOUR - Duration::from_nanos(1)).as_secs() / 3600;
        (watchdog.due.load(Ordering::Relaxed), HOUR * u32::try_from(hours).expect("few"))
    }

    /// Goal: a poll that begins is checked between one and two times what it asks for, by one load if that
    /// is so already; sooner only if the sleeper wants it itself, or others need it. Method: watchdogs around
    /// each bound, for a poll that asks for two delays.
    #[test]
    fn a_poll_is_checked_in_time() {
        let delay = 2 * D;
        let right = [
            (NOW + delay, NOW, true, "the first moment"),
            (NOW + 2 * delay, NOW, true, "the last moment"),
            (NOW + D - 2, NOW, false, "sooner, for others"),
            (NOW + D + 2, NOW, true, "sooner, but not soon"),
            (NOW + delay - 1, NOW, true, "sooner, for the sleeper"),
            (NOW - LOST_NS + 1, NOW, true, "on its way"),
        ];
        for (due, now, may_put_off, case) in right {
            let watchdog = watchdog(due);
            watchdog.guard(now, 2, || may_put_off);
            assert_eq!(seen(&watchdog), (due, BEFORE), "{case}");
        }
        let wrong = [
            (0, NOW, false, "not set"),
            (0, 5, false, "not set, soon after the clock's beginning"),
            (0, NOW + 1, false, "at an odd time, as no thread sets it"),
            (NOW + D, NOW, true, "sooner, for no thread"),
            (NOW + 2 * delay + 2, NOW, false, "too late"),
            (NOW + 2 * delay + 3, NOW, false, "too late, for the sleeper"),
            (NOW - LOST_NS, NOW, false, "lost"),
        ];
        for (due, now, may_put_off, case) in wrong {
            let watchdog = watchdog(due);
            watchdog.guard(now, 2, || may_put_off);
            let set_to = Duration::from_nanos(2 * delay);
            assert_eq!(seen(&watchdog), ((now + 2 * delay) & !HELD, set_to), "{case}");
        }
    }

    /// Goal: a thread that does not need the sleeper stops only the timer that threads have set, or postpones it
    /// beyond the next deadline, so that a poll then finds it set. Method: a watchdog of the threads, one of the
    /// sleeper, and none; deadlines.
    #[test]
    fn only_watchdogs_of_threads_are_stopped() {
        for (due, after) in [
            (0, (0, BEFORE)),
            (NOW | HELD, (NOW | HELD, BEFORE)),
            (HELD, (HELD, BEFORE)),
            (NOW, (0, Duration::ZERO)),
        ] {
            let watchdog = watchdog(due);
            watchdog.stop(NOW, None, 1);
            assert_eq!(seen(&watchdog), after, "{due}");
        }
        for (deadline, hours) in
            [(NOW - 1, 0), (NOW, 12), (NOW + NEXT_NS - 1, 13), (NOW + NEXT_NS, 0), (u64::MAX, 0)]
        {
            let watchdog = watchdog(NOW);
            watchdog.stop(NOW, Some(deadline), 3);
            let due = if hours > 0 { (deadline + 12 * HOUR_NS) & !HELD } else { 0 };
            assert_eq!(seen(&watchdog), (due, hours * HOUR), "{deadline}");
            if hours > 0 {
                watchdog.guard(deadline, 3, || false);
                assert_eq!(seen(&watchdog), (due, hours * HOUR), "it is as the poll needs it");
            }
        }
        let deadline = NOW + NEXT_NS / 2;
        for (due, stays) in [
            (deadline + 3 * D - 2, false),
            (deadline + 3 * D, true),
            (deadline + 6 * D, true),
            (deadline + 6 * D + 2, false),
        ] {
            let watchdog = watchdog(due);
            watchdog.stop(NOW, Some(deadline), 3);
            let expected = if stays { (due, BEFORE) } else { (deadline + 6 * D, 13 * HOUR) };
            assert_eq!(seen(&watchdog), expected, "{due}");
        }
    }

    /// Goal: the share of time that long polls take makes the watchdog alert, for at most a second after them. Method: one
    /// poll on both sides of each bound, and polls of a millisecond at two distances.
    #[test]
    fn long_polls_are_remembered_by_their_share() {
        const MS: u64 = 1_000_000;
        assert!(!watchdog(0).is_alert(0));
        for (nanos, alert_ns) in
            [(5 * MS, 0), (5 * MS + 1, 100), (8 * MS, 300 * MS), (HOUR_NS, 1_000 * MS)]
        {
            let ended = watchdog(0);
            ended.note_long_poll(NOW, nanos);
            let lasting = watchdog(0);
            lasting.note_lasting_poll(NOW, nanos);
            for (watchdog, alert_ns) in
                [(ended, alert_ns), (lasting, if alert_ns == 0 { 0 } else { 1_000 * MS })]
            {
                assert_eq!(watchdog.is_alert(NOW), alert_ns > 0, "{nanos}");
                assert_eq!(watchdog.is_alert(NOW + alert_ns.saturating_sub(1)), alert_ns > 0);
                assert!(!watchdog.is_alert(NOW + alert_ns));
            }
        }
        for (pause, is_alert) in [(50 * MS, true), (100 * MS, false)] {
            let watchdog = watchdog(0);
            let times = (0..100).map(|number| NOW + number * pause);
            for now in times {
                watchdog.note_long_poll(now, MS);
            }
            assert_eq!(watchdog.is_alert(NOW + 99 * pause), is_alert);
            watchdog.note_lasting_poll(NOW + 99 * pause, 5 * MS);
            assert_eq!(watchdog.is_alert(NOW + 99 * pause), is_alert, "it does not count yet");
        }
    }

    /// Goal: the sleeper's own watchdog is marked as such, at whatever time. Method: odd and even times; the
    /// longest delay.
    #[test]
    fn the_sleepers_own_watchdog_is_known() {
        for now in [NOW, NOW + 1] {
            let watchdog = watchdog(0);
            assert!(watchdog.is_resting());
            watchdog.hold(now, HOUR);
            assert_eq!(seen(&watchdog), ((now + HOUR_NS) | HELD, HOUR));
            assert!(!watchdog.is_resting());
            watchdog.begin_rest();
            assert_eq!(seen(&watchdog), (0, Duration::from_nanos(D)));
            assert!(watchdog.is_resting());
        }
        let watchdog = watchdog(0);
        watchdog.hold(NOW, Duration::MAX);
        assert_eq!(watchdog.due.load(Ordering::Relaxed), (NOW + u64::MAX / 4) | HELD);
    }

    /// Goal: a sleep ends with the timer, and the next one needs another end. Method: what the descriptor
    /// says before and after.
    #[test]
    fn a_sleep_takes_the_end_of_the_timer() {
        let watchdog = watchdog(0);
        assert!(!watchdog.timer.is_over());
        watchdog.hold(NOW, Duration::ZERO);
        while !watchdog.timer.is_over() {
            std::thread::yield_now();
        }
        watchdog.sleep();
        assert!(!watchdog.timer.is_over());
    }

    /// Goal: the sleeper wakes up for the end, whatever is done to the watchdog afterwards. Method: each way to set or to stop it,
    /// after the end.
    #[test]
    fn the_end_is_never_put_off() {
        let ways: [fn(&Watchdog); 6] = [
            |watchdog| watchdog.guard(NOW, 1, || true),
            |watchdog| watchdog.stop(NOW, None, 1),
            |watchdog| watchdog.stop(NOW, Some(NOW), 1),
            |watchdog| watchdog.hold(NOW, HOUR),
            Watchdog::begin_rest,
            |watchdog| {
                watchdog.guard(NOW, 1, || true);
                watchdog.stop(NOW, None, 1);
            },
        ];
        for (number, way) in ways.into_iter().enumerate() {
            let watchdog = watchdog(NOW);
            watchdog.end();
            way(&watchdog);
            // It fires after a nanosecond; if it was put off, after an hour or more, or never.
            let is_over = (0..1_000_000).any(|_| {
                std::thread::yield_now();
                watchdog.timer.is_over()
            });
            assert!(is_over, "way {number}");
        }
    }
}
