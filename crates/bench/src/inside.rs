//! The server runtime's own metrics, in addition to the client's measurements.
//!
//! The client's times contain everything. The runtime's own say how long tasks that an event woke were
//! ready before they were polled, and how often the kernel stopped the whole group, which is how a
//! program without such a client can tell a late reaction from a missing quota.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use vigie_runtime::Handle;
use vigie_runtime::metrics::Metrics;

/// The runtime that serves in this process, if it is vigie's.
static RUNTIME: OnceLock<Handle> = OnceLock::new();

/// Takes note of the runtime that the calling thread runs for, if it is vigie's.
pub(crate) fn take_note() {
    if let Ok(handle) = Handle::try_current() {
        // There is one runtime in a server process; a second one would not be told of.
        let _ = RUNTIME.set(handle);
    }
}

/// Returns what the runtime of this process has counted so far; nothing if it is not vigie's.
pub(crate) fn counts_here() -> Option<Counts> {
    RUNTIME.get().map(|handle| Counts::of(&handle.metrics()))
}

/// What a runtime has counted by some instant. Two of them tell what came in between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// How many tasks that an event woke waited how long to be polled: bucket `i` is of times below
    /// 2^i ns.
    delays: Vec<u64>,
    /// In how many periods the kernel stopped the control group, and for how many nanoseconds; nothing
    /// without a quota.
    throttled: Option<(u64, u64)>,
}

impl Counts {
    fn of(metrics: &Metrics) -> Self {
        let throttled = metrics.throttling.map(|throttling| {
            let nanos = u64::try_from(throttling.throttled_time.as_nanos()).unwrap_or(u64::MAX);
            (throttling.throttled_periods, nanos)
        });
        Self { delays: metrics.event_delay.buckets().to_vec(), throttled }
    }

    /// Returns what was counted since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let pairs = self.delays.iter().zip(&before.delays);
        let throttled = self
            .throttled
            .zip(before.throttled)
            .map(|(now, then)| (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1)));
        Self { delays: pairs.map(|(now, then)| now.saturating_sub(*then)).collect(), throttled }
    }

    /// Returns a bound in microseconds that `percent` of the delays did not exceed, at most twice the
    /// true value; nothing if there were none.
    pub(crate) fn delay_us(&self, percent: u64) -> Option<f64> {
        let count: u64 = self.delays.iter().sum();
        let rank = (count * percent).div_ceil(100).max(1);
        let mut below = 0;
        let bucket = self.delays.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some((2_f64.powi(i32::try_from(bucket).ok()?) - 1.0) / 1e3)
    }

    /// Returns in how many periods the group was stopped.
    pub(crate) fn throttled_periods(&self) -> Option<u64> {
        self.throttled.map(|(periods, _)| periods)
    }

    /// Returns for how many nanoseconds the group was stopped, summed over processors.
    pub(crate) fn throttled_ns(&self) -> Option<u64> {
        self.throttled.map(|(_, nanos)| nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_between_two_instants() {
        // Goal: what was before does not count, and percentiles are upper ends of buckets. Method: known
        // counts.
        let before = Counts { delays: vec![5, 0, 7, 0], throttled: Some((2, 100)) };
        let after = Counts { delays: vec![5, 98, 8, 1], throttled: Some((5, 900)) };
        let between = after.since(&before);
        assert_eq!(between, Counts { delays: vec![0, 98, 1, 1], throttled: Some((3, 800)) });
        let delays = [0, 50, 98, 99, 100].map(|percent| between.delay_us(percent));
        assert_eq!(delays, [0.001, 0.001, 0.001, 0.003, 0.007].map(Some));
        assert_eq!((between.throttled_periods(), between.throttled_ns()), (Some(3), Some(800)));
        let nothing = before.since(&before);
        assert_eq!((nothing.delay_us(99), Counts::default().delay_us(50)), (None, None));
        assert_eq!(after.since(&Counts::default()).throttled_periods(), None);
    }
}
