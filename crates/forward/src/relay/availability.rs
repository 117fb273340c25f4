//! The availability of targets: whether connections should try one, by what earlier ones met.
//!
//! ```text
//!          1 failed, or slow                        2 time is up: one connection tries, briefly
//!   Use ─────────────────────▶ Avoid, for a time ─────────────────────────────▶ Avoid, for a time
//!    ▲                            ▲     3 failed again: for twice the time           │
//!    │                            └──────────────────────────────────────────────────┤
//!    └─────────────────────────────── 4 reached ─────────────────────────────────────┘
//! ```
//! A target that is avoided is still tried after all others. While checks find it down, it is avoided without trials.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use vigie_detect::Instant;

/// The time for which a target is avoided after its first failure; this doubles up to the second one.
const AVOIDED_FIRST: Duration = Duration::from_secs(1);
const AVOIDED_LAST: Duration = Duration::from_secs(60);
/// The time that a connection tries a target that has failed before, if there are others.
pub(super) const TRIAL: Duration = Duration::from_secs(1);

/// A connection's decision about a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Try it in its turn.
    Use,
    /// Try it in its turn for no longer than [`TRIAL`]: it has failed before.
    Try,
    /// Try it after all others.
    Avoid,
}

/// The state of one target.
#[derive(Debug, Default)]
pub(super) struct Availability {
    /// Saves healthy targets the lock. A hint: a reader that misses a change sees the next.
    has_failed: AtomicBool,
    /// Whether checks have found it down, which decides, whatever connections have met before.
    is_down: AtomicBool,
    state: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    count: u32,
    avoided_until: Option<Instant>,
}

impl Failures {
    fn choice(&self, now: Instant) -> Choice {
        match self.avoided_until {
            None => Choice::Use,
            Some(until) if now < until => Choice::Avoid,
            Some(_) => Choice::Try,
        }
    }
}

impl Availability {
    /// Returns what the next connection should do, without claiming a trial for it.
    pub(super) fn peek(&self, now: Instant) -> Choice {
        if self.is_down() {
            return Choice::Avoid;
        }
        if !self.has_failed.load(Ordering::Relaxed) {
            return Choice::Use;
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).choice(now)
    }

    /// Returns what a connection should do that turns to it now; if it is to try, others do not meanwhile.
    pub(super) fn choose(&self, now: Instant) -> Choice {
        if self.is_down() {
            return Choice::Avoid;
        }
        if !self.has_failed.load(Ordering::Relaxed) {
            return Choice::Use;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let choice = state.choice(now);
        if choice == Choice::Try {
            state.avoided_until = Some(now + TRIAL);
        }
        choice
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Records what checks have found. A target that is up again begins anew.
    pub(super) fn checked(&self, is_up: bool) {
        if is_up {
            self.reached();
        }
        self.is_down.store(!is_up, Ordering::Relaxed);
    }

    /// Records that it was not reached.
    pub(super) fn failed(&self, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let time = AVOIDED_FIRST.saturating_mul(1 << state.count.min(16)).min(AVOIDED_LAST);
        state.count += 1;
        state.avoided_until = state.avoided_until.max(Some(now + time));
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Records that it was reached.
    pub(super) fn reached(&self) {
        if self.has_failed.load(Ordering::Relaxed) {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            *state = Failures::default();
            self.has_failed.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a target that fails is passed over for a time that doubles with each failure up to a minute, one connection at a
    /// time tries it, and it is used again once one has reached it. Method: times by hand.
    #[test]
    fn failing_targets_are_passed_over() {
        let target = Availability::default();
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        assert_eq!(target.choose(at(0)), Choice::Use);
        let (mut now, mut waits) = (0_u64, Vec::new());
        for _ in 0..9 {
            target.failed(at(now));
            let begin = now;
            while target.choose(at(now)) == Choice::Avoid {
                now += 500;
            }
            waits.push((now - begin) / 1000);
            assert_eq!(target.peek(at(now)), Choice::Avoid, "it was claimed");
            assert_eq!(target.choose(at(now)), Choice::Avoid, "one tries");
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        // One that does not say how its trial ended does not block the next.
        assert_eq!(target.peek(at(now + 1000)), Choice::Try, "peeking claims nothing");
        assert_eq!(target.choose(at(now + 1000)), Choice::Try);
        target.reached();
        assert_eq!(target.choose(at(now + 1000)), Choice::Use);
        target.failed(at(now));
        assert_eq!(target.choose(at(now + 1000)), Choice::Try, "it begins anew");
        target.checked(false);
        assert_eq!(target.choose(at(now + 100_000)), Choice::Avoid, "checks find it down");
        target.reached();
        assert_eq!(target.peek(at(now + 100_000)), Choice::Avoid, "only checks say that it is up");
        target.failed(at(now));
        target.checked(true);
        assert_eq!(target.choose(at(now)), Choice::Use);
    }
}
