//! The one place where the benchmarks read the clock and sleep.
//!
//! Everything else in the workspace takes time from `vigie_detect::clock`, so that a simulation can
//! replace it. A benchmark is about real time, and measures peers that know nothing of that clock,
//! so it reads `CLOCK_MONOTONIC` through [`Instant`].
#![expect(
    clippy::disallowed_methods,
    reason = "benchmarks measure real time, in processes that run nothing else"
)]

use std::thread;
use std::time::{Duration, Instant};

/// Returns the present instant of `CLOCK_MONOTONIC`.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Blocks the calling thread for at least `duration`.
pub fn sleep(duration: Duration) {
    thread::sleep(duration);
}

/// Returns `duration` in nanoseconds; 584 years and more count as [`u64::MAX`].
#[must_use]
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
