//! A node's wall clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vigie_detect::{Clock, Instant, VirtualClock};

use crate::sync::{Arc, PoisonError, RealGuard, RealMutex};

/// Each world begins on 1 January 2026, 00:00 UTC.
const BEGIN: Duration = Duration::from_secs(1_767_225_600);

const PARTS: i128 = 1_000_000;

/// A clock that may be wrong, in a drift and in jumps; the virtual clock that timers use is not concerned.
#[derive(Debug)]
pub(crate) struct WallClock {
    real: Arc<VirtualClock>,
    state: RealMutex<WallClockState>,
}

#[derive(Debug)]
struct WallClockState {
    /// The last time at which it was set or changed its pace, in real time, and what it showed then, in nanoseconds.
    since: Instant,
    shown: i128,
    /// The rate at which it gains time, in parts per million.
    drift_ppm: i32,
}

impl WallClock {
    pub(crate) fn new(real: Arc<VirtualClock>) -> Self {
        let state =
            WallClockState { since: Instant::from_nanos(0), shown: nanos(BEGIN), drift_ppm: 0 };
        Self { real, state: RealMutex::new(state) }
    }

    fn state(&self) -> RealGuard<'_, WallClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> SystemTime {
        UNIX_EPOCH + self.since_1970()
    }

    /// Returns the time that it shows, since the beginning of 1970.
    pub(crate) fn since_1970(&self) -> Duration {
        let shown = self.state().at(self.real.now());
        Duration::from_nanos(u64::try_from(shown.max(0)).unwrap_or(u64::MAX))
    }

    /// Makes it gain this many microseconds in each second from now on, or lose them.
    pub(crate) fn drift(&self, drift_ppm: i32) {
        let now = self.real.now();
        let mut state = self.state();
        (state.shown, state.since, state.drift_ppm) = (state.at(now), now, drift_ppm);
    }

    /// Moves it forward or backward.
    pub(crate) fn jump(&self, by: Duration, forward: bool) {
        let by = nanos(by);
        self.state().shown += if forward { by } else { -by };
    }

    /// Sets it right, without a drift.
    pub(crate) fn correct(&self) {
        let mut state = self.state();
        (state.since, state.shown, state.drift_ppm) = (Instant::from_nanos(0), nanos(BEGIN), 0);
    }
}

impl WallClockState {
    fn at(&self, now: Instant) -> i128 {
        let passed = nanos(now.saturating_duration_since(self.since));
        self.shown + passed + passed * i128::from(self.drift_ppm) / PARTS
    }
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 4)
}
