//! Observed times of barriers, compared with the expected ones.

use std::{fmt, time::Duration};

use super::{Advice, LogP, measured::percentile};

/// The number of the latest waits that are kept.
const KEPT: usize = 1024;

/// The durations of one member's waits at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObservedWaits {
    /// Half of the waits were shorter.
    pub p50: Duration,
    /// 99 of a hundred waits were shorter.
    pub p99: Duration,
    /// The number of the latest waits that this counts.
    pub waits: u32,
}

/// The latest waits of a member.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitHistory {
    kept: Vec<Duration>,
    next: usize,
}

impl WaitHistory {
    /// Adds a wait; if the history is full, it replaces the oldest.
    #[inline]
    pub(crate) fn add(&mut self, wait: Duration) {
        if self.kept.len() < KEPT {
            self.kept.push(wait);
        } else {
            self.kept[self.next] = wait;
        }
        self.next = (self.next + 1) % KEPT;
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn observed(&self) -> Option<ObservedWaits> {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        let waits = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        let (p50, p99) = (percentile(&sorted, 50)?, percentile(&sorted, 99)?);
        Some(ObservedWaits { p50, p99, waits })
    }
}

/// The expected and the observed times of a group's barriers.
///
/// A wait is longer than its barrier if other members came later. If members arrive together, as in a loop over
/// nothing but barriers, both are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The group's algorithm, with its expected time and, after the first wait, the median observed time.
    pub advice: Advice,
    /// The costs on which the expectation is based.
    pub costs: LogP,
    /// True if they were measured on the transport; otherwise they are typical, or were given.
    pub is_measured: bool,
    /// This member's waits; `None` before the first.
    pub observed: Option<ObservedWaits>,
}

impl Report {
    /// Combines both.
    pub(crate) fn new(
        mut advice: Advice,
        (costs, is_measured): (LogP, bool),
        observed: Option<ObservedWaits>,
    ) -> Self {
        if let Some(observed) = observed {
            advice.observe(observed.p50);
        }
        Self { advice, costs, is_measured, observed }
    }

    /// Returns the ratio of the median observed to the expected time, if both are known.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.advice.deviation()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
        let kind = if self.is_measured { "measured" } else { "assumed" };
        let (name, expected) = (self.advice.algorithm, micros(self.advice.expected));
        write!(f, "{name}: expected {expected:.1} µs by {kind} costs")?;
        match (self.observed, self.ratio()) {
            (Some(observed), Some(ratio)) => {
                let (p50, p99) = (micros(observed.p50), micros(observed.p99));
                write!(f, ", observed p50 {p50:.1} µs, p99 {p99:.1} µs, ratio {ratio:.2}")
            }
            _ => f.write_str(", nothing observed yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::Algorithm,
        group::Group,
        logp::{CoreAllocation, plan},
    };

    /// Goal: the latest waits are observed. Method: more than are kept, then none.
    #[test]
    fn the_latest_waits_count() {
        let mut waits = WaitHistory::default();
        assert_eq!(waits.observed(), None);
        for micros in 0..5000 {
            waits.add(Duration::from_micros(micros));
        }
        let observed = waits.observed().expect("some");
        assert_eq!(observed.waits, 1024);
        assert_eq!(observed.p50, Duration::from_micros(5000 - 1024 + 511));
        assert_eq!(observed.p99, Duration::from_micros(5000 - 1024 + 1013));
        waits.clear();
        assert_eq!(waits.observed(), None);
    }

    /// Goal: a report says both, their ratio, and by which costs. Method: a barrier that takes twice as long.
    #[test]
    fn a_report_says_expected_and_observed() {
        let group = Group::new(32).expect("a size");
        let costs = LogP::OF_THE_PAPER;
        let advice = plan(group, &costs, CoreAllocation::Dedicated, &[Algorithm::ShuffleExchange])
            .expect("one");
        let report = Report::new(advice.clone(), (costs, false), None);
        assert_eq!(report.ratio(), None);
        let said = report.to_string();
        assert!(said.contains("expected 150.0 µs by assumed costs, nothing observed"), "{said}");
        let observed =
            ObservedWaits { p50: advice.expected * 2, p99: advice.expected * 3, waits: 7 };
        let report = Report::new(advice, (costs, true), Some(observed));
        assert!((report.ratio().expect("both") - 2.0).abs() < 1e-9);
        let said = report.to_string();
        assert!(said.contains("measured costs, observed p50 300.0 µs, p99 450.0 µs"), "{said}");
        assert!(said.contains("ratio 2.00"), "{said}");
    }
}
