//! Log lines about a failing target of a relay: at the first failure, then now and then, and when it has recovered.
//!
//! ```text
//!            1 failed: logged at once, unless there was a line a moment ago
//!   well ───────────────────────────────────────────────────▶ failing ┐ 2 failed: logged every QUIET,
//!        ◀─────────────────────────────────────────────────── ◀───────┘   with the number not logged
//!            3 worked: logged if the failure was
//! ```
//! So a flapping target causes two lines per [`QUIET`], and a healthy one costs a check of a flag.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use vigie_detect::Instant;

use super::{availability::Availability, proxy::ProxyError};

/// The minimum time between log lines about a target's failures.
const QUIET: Duration = Duration::from_secs(10);

/// One target, and whether it is reachable and answers.
#[derive(Debug)]
pub(super) struct UpstreamHealth {
    relay: Arc<str>,
    target: String,
    history: Arc<TargetHistory>,
}

/// What is known of a target, whichever relay has it.
#[derive(Debug, Default)]
struct TargetHistory {
    availability: Availability,
    reached: FailureTracker,
    answered: FailureTracker,
}

impl UpstreamHealth {
    pub(super) fn new(relay: Arc<str>, target: impl fmt::Display) -> Self {
        Self { relay, target: target.to_string(), history: Arc::default() }
    }

    /// The same target, of which another relay knows this.
    pub(super) fn known_to(&self, other: &Self) -> Self {
        let (relay, target) = (Arc::clone(&self.relay), self.target.clone());
        Self { relay, target, history: Arc::clone(&other.history) }
    }

    pub(super) fn availability(&self) -> &Availability {
        &self.history.availability
    }

    /// Records that the target was unreachable.
    pub(super) fn note_unreachable(&self, error: &dyn fmt::Display, now: Instant) {
        self.history.availability.failed(now);
        if let Some(suppressed) = self.history.reached.failed(now) {
            let (Self { relay, target, .. }, suppressed) = (self, shown(suppressed));
            tracing::warn!(%relay, %target, %error, suppressed, "a target cannot be reached");
        }
    }

    /// Records that checks have found the target down.
    pub(super) fn note_down(&self, error: &dyn fmt::Display) {
        self.history.availability.checked(false);
        let Self { relay, target, .. } = self;
        tracing::warn!(%relay, %target, %error, "a target is down, since its checks fail");
    }

    /// Records that checks have found the target up again.
    pub(super) fn note_up(&self) {
        self.history.availability.checked(true);
        let Self { relay, target, .. } = self;
        tracing::info!(%relay, %target, "a target is up again, since its checks pass");
    }

    /// Records that the target was reached.
    pub(super) fn note_reached(&self, now: impl FnOnce() -> Instant) {
        self.history.availability.reached();
        if let Some(Recovery { after, failures }) = self.history.reached.worked(now) {
            let Self { relay, target, .. } = self;
            tracing::info!(%relay, %target, ?after, failures, "a target can be reached again");
        }
    }

    /// Records that a client waited for the target's answer and got none, and how that ended.
    pub(super) fn note_silent(&self, end: &dyn fmt::Display, now: Instant) {
        if let Some(suppressed) = self.history.answered.failed(now) {
            let (Self { relay, target, .. }, suppressed) = (self, shown(suppressed));
            tracing::warn!(
                %relay, %target, %end, suppressed,
                "a target was sent something and has answered nothing"
            );
        }
    }

    /// Records that the target has answered.
    pub(super) fn note_answered(&self, now: impl FnOnce() -> Instant) {
        if let Some(Recovery { after, failures }) = self.history.answered.worked(now) {
            let Self { relay, target, .. } = self;
            tracing::info!(%relay, %target, ?after, failures, "a target answers again");
        }
    }
}

/// A name, and whether it can be resolved.
#[derive(Debug)]
pub(super) struct NameHealth {
    relay: Arc<str>,
    name: String,
    resolved: FailureTracker,
}

impl NameHealth {
    pub(super) fn new(relay: Arc<str>, name: &str) -> Self {
        Self { relay, name: name.to_owned(), resolved: FailureTracker::default() }
    }

    /// Records that the name could not be resolved.
    pub(super) fn note_unresolved(&self, error: &dyn fmt::Display, now: Instant) {
        if let Some(suppressed) = self.resolved.failed(now) {
            let (Self { relay, name, .. }, suppressed) = (self, shown(suppressed));
            tracing::warn!(
                %relay, %name, %error, suppressed,
                "the name of a target cannot be resolved"
            );
        }
    }

    /// Records that the name was resolved.
    pub(super) fn note_resolved(&self, now: impl FnOnce() -> Instant) {
        if let Some(Recovery { after, failures }) = self.resolved.worked(now) {
            let Self { relay, name, .. } = self;
            tracing::info!(
                %relay, %name, ?after, failures,
                "the name of a target can be resolved again"
            );
        }
    }

    /// Records that the name has got other addresses.
    pub(super) fn note_changed(&self, new: &[String], gone: &[String]) {
        let Self { relay, name, .. } = self;
        tracing::info!(%relay, %name, ?new, ?gone, "the name of a target has new addresses");
    }
}

/// The PROXY protocol headers of clients.
#[derive(Debug)]
pub(super) struct HeaderHealth {
    relay: Arc<str>,
    accepted: FailureTracker,
}

impl HeaderHealth {
    pub(super) fn new(relay: Arc<str>) -> Self {
        Self { relay, accepted: FailureTracker::default() }
    }

    /// Records that a client did not begin with a header. One that sent nothing at all may be a probe of the port.
    pub(super) fn note_refused(
        &self,
        client: Option<SocketAddr>,
        error: &ProxyError,
        now: Instant,
    ) {
        if matches!(error, ProxyError::Truncated { received: 0 }) {
            return;
        }
        if let Some(suppressed) = self.accepted.failed(now) {
            let client = client.map_or_else(|| "unix".to_owned(), |client| client.to_string());
            let (relay, suppressed) = (&self.relay, shown(suppressed));
            tracing::warn!(
                %relay, %client, %error, suppressed,
                "a client was refused, since it must begin with a PROXY protocol header (version 2) and did not"
            );
        }
    }
}

/// The number of suppressed failures, if there are any to report.
fn shown(suppressed: u64) -> Option<u64> {
    Some(suppressed).filter(|suppressed| *suppressed > 0)
}

/// One kind of failure.
#[derive(Debug, Default)]
struct FailureTracker {
    /// Saves healthy targets the lock. A hint: a reader that misses a change sees the next.
    is_failing: AtomicBool,
    history: Mutex<FailureHistory>,
}

#[derive(Debug, Default)]
struct FailureHistory {
    /// The time at which it began to fail, the number of failures since, and whether that was logged.
    since: Option<Instant>,
    failures: u64,
    is_logged: bool,
    /// The time of the last log line, and the number of failures not logged since.
    last_logged: Option<Instant>,
    suppressed: u64,
}

/// The end of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recovery {
    after: Duration,
    failures: u64,
}

impl FailureTracker {
    /// Returns the number of failures suppressed before, if this one is to be logged.
    #[must_use = "it is counted as said"]
    fn failed(&self, now: Instant) -> Option<u64> {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_failing.store(true, Ordering::Relaxed);
        history.since.get_or_insert(now);
        history.failures += 1;
        if history.last_logged.is_some_and(|last| now < last + QUIET) {
            history.suppressed += 1;
            return None;
        }
        history.is_logged = true;
        history.last_logged = Some(now);
        Some(std::mem::take(&mut history.suppressed))
    }

    /// Returns the recovery, if it is to be logged.
    #[must_use = "it is counted as said"]
    fn worked(&self, now: impl FnOnce() -> Instant) -> Option<Recovery> {
        if !self.is_failing.load(Ordering::Relaxed) {
            return None;
        }
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_failing.store(false, Ordering::Relaxed);
        let (since, failures) = (history.since.take()?, std::mem::take(&mut history.failures));
        let after = now().saturating_duration_since(since);
        std::mem::take(&mut history.is_logged).then_some(Recovery { after, failures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Goal: the first failure is logged, then one every ten seconds with the number of those between; the recovery is
    /// logged once. Method: failures at times by hand.
    #[test]
    fn failures_are_said_now_and_then() {
        let tracker = FailureTracker::default();
        assert_eq!(tracker.worked(|| at(0)), None, "it was well");
        assert_eq!(tracker.failed(at(1000)), Some(0));
        assert_eq!(tracker.failed(at(1001)), None);
        assert_eq!(tracker.failed(at(10_999)), None);
        assert_eq!(tracker.failed(at(11_000)), Some(2));
        let back = Recovery { after: Duration::from_secs(12), failures: 4 };
        assert_eq!(tracker.worked(|| at(13_000)), Some(back));
        assert_eq!(tracker.worked(|| at(13_001)), None);
    }

    /// Goal: a flapping target is not logged each time. Method: it fails and works every second for a minute; the lines
    /// are counted, and every failure is in one of them.
    #[test]
    fn flapping_targets_are_said_seldom() {
        let tracker = FailureTracker::default();
        let (mut failed, mut back, mut accounted) = (0, 0, 0);
        for second in 0..60 {
            if let Some(suppressed) = tracker.failed(at(second * 1000)) {
                failed += 1;
                accounted += 1 + suppressed;
            }
            back += u64::from(tracker.worked(|| at(second * 1000 + 500)).is_some());
        }
        assert_eq!((failed, back), (6, 6));
        assert_eq!(accounted, 51, "the last nine wait for their line");
    }
}
