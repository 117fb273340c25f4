//! One run of the suite: its configuration, and its report.

use std::{env, fmt, ops::Range, time::Duration};

use crate::setters;

/// The thoroughness of a run of the suite.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "a configuration does nothing before it is given to `check_with`"]
pub struct SuiteConfig {
    pub(super) seeds: Range<u64>,
    pub(super) guard: Duration,
    pub(super) stress_waits: usize,
}

impl SuiteConfig {
    /// Takes the seeds from the environment: `SIM_SEED` (default 0) is the first one, `SIM_RUNS` their
    /// number (default 64, or 1 if `SIM_SEED` is set). A value that is not a number is ignored.
    pub fn from_env() -> Self {
        let number = |name| env::var(name).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let seed = number("SIM_SEED");
        let default = if seed.is_some() { 1 } else { 64 };
        let runs = number("SIM_RUNS").unwrap_or(default).max(1);
        let first = seed.unwrap_or(0);
        Self {
            seeds: first..first.saturating_add(runs),
            guard: Duration::from_secs(10),
            stress_waits: 1000,
        }
    }

    setters! {
        /// Sets the seeds.
        seeds: Range<u64>,

        /// Sets the real time after which an event counts as lost. Default 10 s. Conforming detectors never reach it, and neither
        /// does anything in virtual time.
        guard: Duration,

        /// Sets how many waits the stress test on two threads makes; zero skips it. Default 1000.
        stress_waits: usize,
    }
}

/// A report of the tests that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The cases, each with the host on which it ran.
    pub cases: Vec<(&'static str, &'static str)>,
    /// Cases that do not apply to this detector, and why.
    pub skipped: Vec<(&'static str, &'static str)>,
    /// Waits and streams that were begun.
    pub waits: u64,
    /// Events that were delivered.
    pub events: u64,
    /// Waits that were dropped before their end.
    pub cancelled: u64,
    /// Seeds that were run.
    pub seeds: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cases held: {} waits, {} events, {} cancelled, {} seeds",
            self.cases.len(),
            self.waits,
            self.events,
            self.cancelled,
            self.seeds,
        )?;
        // Each reason once, with the cases that it concerns: most are skipped on several hosts.
        let mut reasons: Vec<_> = self.skipped.iter().map(|&(_, why)| why).collect();
        reasons.sort_unstable();
        reasons.dedup();
        for why in reasons {
            let mut cases: Vec<_> = self
                .skipped
                .iter()
                .filter(|skipped| skipped.1 == why)
                .map(|skipped| skipped.0)
                .collect();
            cases.sort_unstable();
            cases.dedup();
            write!(f, "; skipped, since {why}: {}", cases.join(", "))?;
        }
        Ok(())
    }
}

/// One run of the suite.
pub(super) struct Suite<'a, F> {
    pub(super) options: &'a SuiteConfig,
    pub(super) factory: &'a mut F,
    pub(super) report: Report,
}
