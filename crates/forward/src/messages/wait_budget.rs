//! The time that a node waits for others that may be stalled.

use std::time::Duration;

use vigie_detect::Instant;

/// The maximum time between two checks of a running node that waits: it sleeps for half of that. Any time beyond it
/// passed while the process was stopped, or the machine suspended.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The longest time that a node may be stopped while it connects: providers count that time, [`WaitBudget`] does not.
pub(super) const STOPPED_MAX: Duration = Duration::from_secs(3600);

/// The time that a node may still wait, counting only time in which it ran. When all nodes of a machine resume after a stop,
/// the first one to check finds nothing new and a late clock: that does not mean that the others are stalled.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBudget {
    left: Duration,
    /// The last reading of the clock.
    checked_at: Instant,
}

impl WaitBudget {
    pub(super) const fn new(time: Duration, now: Instant) -> Self {
        Self { left: time, checked_at: now }
    }

    /// Reads `now`. Returns whether the budget is used up.
    pub(super) fn is_exhausted(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.checked_at).min(CHECK_INTERVAL_MAX);
        self.left = self.left.saturating_sub(passed);
        self.checked_at = now;
        self.left.is_zero()
    }

    /// Returns the latest time at which to check again.
    pub(super) fn next_check(&self) -> Instant {
        self.checked_at + self.left.min(CHECK_INTERVAL_MAX / 2)
    }
}
