//! Detectors that say at arming that an event has happened, and then report none.

use std::time::Duration;

use crate::clock::Instant;

/// For how long a detector may have nothing but work of its own to do, before that is worth a warning.
const WARN_AFTER: Duration = Duration::from_secs(1);

/// A handle's record of the times at which its detector was [ready](crate::ArmOutcome::Ready) and reported nothing.
///
/// Such a detector may work for its peers, without an event for a waiter here, so the server polls again at once. One that is wrong about
/// it keeps a core busy, and must not keep the server from its timers and its poller.
#[derive(Default)]
pub(super) struct FalseReady {
    since: Option<Instant>,
    is_said: bool,
}

impl FalseReady {
    /// Called after each arming. Returns when to poll again, if the detector was ready without an event.
    pub(super) fn record(&mut self, is_false: bool, now: Instant, handle: &str) -> Option<Instant> {
        if !is_false {
            *self = Self::default();
            return None;
        }

        let since = *self.since.get_or_insert(now);
        if !self.is_said && now >= since + WARN_AFTER {
            self.is_said = true;
            tracing::warn!(
                handle,
                "for a second, the detector has said at each arming that an event is ready, and reported none: it keeps a core busy; \
                 `arm` must return `ArmOutcome::Ready` only if the next poll reports an event, or has work to do"
            );
        }
        Some(now)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: a poll follows at once, and the count begins anew after an event. Method: both, by the clock.
    #[test]
    fn a_ready_detector_is_polled_again() {
        let mut false_ready = FalseReady::default();
        let at = |ms| Instant::from_nanos(0) + Duration::from_millis(ms);
        assert_eq!(false_ready.record(true, at(0), "x"), Some(at(0)));
        assert_eq!(false_ready.record(true, at(999), "x"), Some(at(999)));
        assert!(!false_ready.is_said);
        assert_eq!(false_ready.record(true, at(1000), "x"), Some(at(1000)));
        assert!(false_ready.is_said);

        assert_eq!(false_ready.record(false, at(1001), "x"), None);
        assert_eq!(false_ready.record(true, at(1002), "x"), Some(at(1002)));
        assert!(!false_ready.is_said);
    }
}
