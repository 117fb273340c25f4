//! The resources that a process has used so far, and the work of its compute tasks.

use std::fs;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::compute;

/// The resources that a process has used by some instant. The difference of two is the use in
/// between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Usage {
    /// The instant: nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Processor time of all threads, those that have ended included, in nanoseconds.
    pub cpu_ns: u64,
    /// Units of work that compute tasks have done.
    pub work: u64,
    /// Operations that tasks have noted.
    pub operations: u64,
}

impl Usage {
    /// Returns what this process has used so far.
    pub(crate) fn of_this_process() -> Self {
        Self {
            at_ns: nanoseconds(clock_gettime(ClockId::Monotonic)),
            cpu_ns: nanoseconds(clock_gettime(ClockId::ProcessCPUTime)),
            work: compute::work(),
            operations: compute::operations(),
        }
    }

    /// Returns what was used since `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            at_ns: self.at_ns.saturating_sub(before.at_ns),
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            work: self.work.saturating_sub(before.work),
            operations: self.operations.saturating_sub(before.operations),
        }
    }

    /// Returns the units of work per second, if this is what was used over a span.
    #[must_use]
    pub fn work_per_s(self) -> f64 {
        self.work as f64 / (self.at_ns as f64 / 1e9)
    }
}

/// Returns how many threads a process has; none if it has ended.
pub(crate) fn threads_of(process: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    threads_in(&status)
}

/// Finds the number of threads in a `status` file.
fn threads_in(status: &str) -> usize {
    let count = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn nanoseconds(time: Timespec) -> u64 {
    // Neither clock is ever negative.
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_difference() {
        // Goal: each field is its own difference, and the rate is per second. Method: known figures.
        let before = Usage { at_ns: 1_000, cpu_ns: 50, work: 7, operations: 1 };
        let after = Usage { at_ns: 2_000_001_000, cpu_ns: 80, work: 107, operations: 5 };
        let span = after.since(before);
        assert_eq!(span, Usage { at_ns: 2_000_000_000, cpu_ns: 30, work: 100, operations: 4 });
        assert!((span.work_per_s() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn threads_are_found() {
        // Goal: the right line of the file. Method: a part of one, and this process.
        assert_eq!(threads_in("State:\tS (sleeping)\nThreads:\t17\nSigQ:\t0/6\n"), 17);
        assert!(threads_of(std::process::id()) >= 1);
    }
}
