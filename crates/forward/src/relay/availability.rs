//! The availability of targets: whether connections should try one, by what earlier ones met.
//!
//! ```text
//!          1 failed, or slow                        2 time is up: one connection tries, briefly
//!   Use ─────────────────────▶ Avoid, for a time ─────────────────────────────▶ Avoid, for a time
//!    ▲                            ▲     3 failed again: for twice the time           │
//!    │                            └──────────────────────────────────────────────────┤
//!    └─────────────────────────────── 4 reached ─────────────────────────────────────┘
//! ```
//! A target that is avoided is still tried after all others.

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
    state: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    count: u32,
    avoided_until: Option<Instant>,
}

impl Availability {
    /// Returns what the next connection should do.
    pub(super) fn choose(&self, now: Instant) -> Choice {
        if !self.has_failed.load(Ordering::Relaxed) {
            return Choice::Use;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.avoided_until {
            None => Choice::Use,
            Some(until) if now < until => Choice::Avoid,
            Some(_) => {
                // Others do not try it meanwhile.
                state.avoided_until = Some(now + TRIAL);
                Choice::Try
            }
        }
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
            assert_eq!(target.choose(at(now)), Choice::Avoid, "one tries");
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        // One that does not say how its trial ended does not block the next.
        assert_eq!(target.choose(at(now + 1000)), Choice::Try);
        target.reached();
        assert_eq!(target.choose(at(now + 1000)), Choice::Use);
        target.failed(at(now));
        assert_eq!(target.choose(at(now + 1000)), Choice::Try, "it begins anew");
    }
}
