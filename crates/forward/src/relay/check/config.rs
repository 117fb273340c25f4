//! The interval of checks, and the number of them that decides.

use std::time::Duration;

/// The configuration of a relay's health checks: see [`RelayBuilder::check`](crate::relay::RelayBuilder::check).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthCheckConfig {
    pub(super) every: Duration,
    pub(super) timeout: Duration,
    pub(super) rise: u32,
    pub(super) fall: u32,
}

impl Default for HealthCheckConfig {
    fn default() -> Self {
        let (every, timeout) = (Duration::from_secs(2), Duration::from_secs(1));
        Self { every, timeout, rise: 2, fall: 3 }
    }
}

impl HealthCheckConfig {
    vigie_detect::setters! {
        /// Sets the time between two checks of a target. Default 2 s; at least 1 ms.
        every: Duration,

        /// Sets how long a check may take. Default 1 s; at least 1 ms, and at most the time between two checks.
        timeout: Duration,

        /// Sets how many checks in a row must pass before a target that is down is used again. Default 2; at least 1.
        rise: u32,

        /// Sets how many checks in a row must fail before a target is down. Default 3; at least 1.
        fall: u32,
    }

    pub(in crate::relay) fn is_possible(&self) -> bool {
        let Self { every, timeout, rise, fall } = self;
        *timeout >= Duration::from_millis(1) && timeout <= every && *rise > 0 && *fall > 0
    }
}
