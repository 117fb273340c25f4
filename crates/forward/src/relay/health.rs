//! What is said of a target that fails: the first time, then now and then, and when it is back.
//!
//! ```text
//!            1 failed: said at once, unless something was said a moment ago
//!   well ───────────────────────────────────────────────────▶ ailing ─┐ 2 failed: said every QUIET, with
//!        ◀─────────────────────────────────────────────────── ◀───────┘   how many were not said
//!            3 worked: said if the failure was
//! ```
//! So a target that comes and goes costs two lines in [`QUIET`], and one that works costs a look at a flag.

use std::{
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use vigie_detect::Instant;

/// How long nothing is said of a target's failures after something was.
const QUIET: Duration = Duration::from_secs(10);

/// One target, and whether it can be reached and answers.
#[derive(Debug)]
pub(super) struct Health {
    target: String,
    reached: Ailment,
    answered: Ailment,
}

impl Health {
    pub(super) fn new(target: impl fmt::Display) -> Self {
        let (reached, answered) = (Ailment::default(), Ailment::default());
        Self { target: target.to_string(), reached, answered }
    }

    /// Learns that the target could not be reached.
    pub(super) fn note_unreachable(&self, error: &dyn fmt::Display, now: Instant) {
        if let Some(unsaid) = self.reached.failed(now) {
            let (target, unsaid) = (&self.target, shown(unsaid));
            tracing::warn!(%target, %error, unsaid, "a target cannot be reached");
        }
    }

    /// Learns that the target was reached.
    pub(super) fn note_reached(&self, now: impl FnOnce() -> Instant) {
        if let Some(Back { after, failures }) = self.reached.worked(now) {
            tracing::info!(target = %self.target, ?after, failures, "a target can be reached again");
        }
    }

    /// Learns that somebody waited in vain for the target's answer, and how that ended.
    pub(super) fn note_silent(&self, end: &dyn fmt::Display, now: Instant) {
        if let Some(unsaid) = self.answered.failed(now) {
            let (target, unsaid) = (&self.target, shown(unsaid));
            tracing::warn!(%target, %end, unsaid, "a target was sent something and has answered nothing");
        }
    }

    /// Learns that the target has answered.
    pub(super) fn note_answered(&self, now: impl FnOnce() -> Instant) {
        if let Some(Back { after, failures }) = self.answered.worked(now) {
            tracing::info!(target = %self.target, ?after, failures, "a target answers again");
        }
    }
}

/// Failures that were not said are worth a word if there are any.
fn shown(unsaid: u64) -> Option<u64> {
    Some(unsaid).filter(|unsaid| *unsaid > 0)
}

/// One way to fail.
#[derive(Debug, Default)]
struct Ailment {
    /// Spares those that work the lock. A hint: whoever misses a change sees the next.
    is_ailing: AtomicBool,
    course: Mutex<Course>,
}

#[derive(Debug, Default)]
struct Course {
    /// When it began to fail, how often it has since, and whether that was said.
    since: Option<Instant>,
    failures: u64,
    is_said: bool,
    /// When something was said last, and how many failures were not since.
    last_said: Option<Instant>,
    unsaid: u64,
}

/// A failure that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Back {
    after: Duration,
    failures: u64,
}

impl Ailment {
    /// Returns how many failures went unsaid before, if this one is to be said.
    #[must_use = "it is counted as said"]
    fn failed(&self, now: Instant) -> Option<u64> {
        let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ailing.store(true, Ordering::Relaxed);
        course.since.get_or_insert(now);
        course.failures += 1;
        if course.last_said.is_some_and(|last| now < last + QUIET) {
            course.unsaid += 1;
            return None;
        }
        course.is_said = true;
        course.last_said = Some(now);
        Some(std::mem::take(&mut course.unsaid))
    }

    /// Returns what is over, if it is to be said.
    #[must_use = "it is counted as said"]
    fn worked(&self, now: impl FnOnce() -> Instant) -> Option<Back> {
        if !self.is_ailing.load(Ordering::Relaxed) {
            return None;
        }
        let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ailing.store(false, Ordering::Relaxed);
        let (since, failures) = (course.since.take()?, std::mem::take(&mut course.failures));
        let after = now().saturating_duration_since(since);
        std::mem::take(&mut course.is_said).then_some(Back { after, failures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Goal: the first failure is said, then one each ten seconds with the number of those between; the end is said
    /// once. Method: failures at times by hand.
    #[test]
    fn failures_are_said_now_and_then() {
        let ailment = Ailment::default();
        assert_eq!(ailment.worked(|| at(0)), None, "it was well");
        assert_eq!(ailment.failed(at(1000)), Some(0));
        assert_eq!(ailment.failed(at(1001)), None);
        assert_eq!(ailment.failed(at(10_999)), None);
        assert_eq!(ailment.failed(at(11_000)), Some(2));
        let back = Back { after: Duration::from_secs(12), failures: 4 };
        assert_eq!(ailment.worked(|| at(13_000)), Some(back));
        assert_eq!(ailment.worked(|| at(13_001)), None);
    }

    /// Goal: a target that comes and goes is not said each time. Method: it fails and works every second for a minute;
    /// the lines are counted, and every failure is in one of them.
    #[test]
    fn flapping_targets_are_said_seldom() {
        let ailment = Ailment::default();
        let (mut failed, mut back, mut accounted) = (0, 0, 0);
        for second in 0..60 {
            if let Some(unsaid) = ailment.failed(at(second * 1000)) {
                failed += 1;
                accounted += 1 + unsaid;
            }
            back += u64::from(ailment.worked(|| at(second * 1000 + 500)).is_some());
        }
        assert_eq!((failed, back), (6, 6));
        assert_eq!(accounted, 51, "the last nine wait for their line");
    }
}
