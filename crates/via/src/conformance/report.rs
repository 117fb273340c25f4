//! The report of a suite that found nothing wrong.

use std::fmt;

use crate::vi::Reliability;

/// The cases that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConformanceReport {
    /// The cases, each with its level.
    pub cases: Vec<(&'static str, Reliability)>,
    /// Cases, or parts of them, that do not apply to this provider, and why.
    pub skipped: Vec<(&'static str, &'static str)>,
    /// Completions that were taken.
    pub completions: u64,
    /// Events that were taken.
    pub events: u64,
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cases held: {} completions, {} events; {} skipped",
            self.cases.len(),
            self.completions,
            self.events,
            self.skipped.len()
        )
    }
}
