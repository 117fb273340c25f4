//! What was seen of one handle so far: the ground on which a policy decides.

use std::time::Duration;

use crate::clock::Instant;

/// Rounds, hits and times of one handle.
///
/// Averages are exponential with weight 1/8 for the newest value.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    rounds: u64,
    hits: u64,
    events: u64,
    first_round: Option<Instant>,
    last_event: Option<Instant>,
    /// Nanoseconds from one round with events to the next, an average.
    event_interval_ns: u64,
    intervals: u64,
}

impl History {
    /// Returns how many rounds of detection ran.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Returns how many rounds found an event.
    #[must_use]
    pub const fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns how many events were found.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Returns the average time between two rounds with events, once there were two.
    #[must_use]
    pub fn event_interval(&self) -> Option<Duration> {
        (self.intervals > 0).then(|| Duration::from_nanos(self.event_interval_ns))
    }

    /// Returns the time since the last event, or since the first round while there was none.
    #[must_use]
    pub fn idle(&self, now: Instant) -> Duration {
        self.last_event.or(self.first_round).map_or(Duration::ZERO, |last| now - last)
    }

    /// Takes note of one round.
    pub fn record(&mut self, now: Instant, event_count: usize) {
        self.rounds += 1;
        self.first_round.get_or_insert(now);
        if event_count == 0 {
            return;
        }
        self.hits += 1;
        self.events += event_count as u64;
        if let Some(last) = self.last_event.replace(now) {
            let interval = u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX);
            self.event_interval_ns = match self.intervals {
                0 => interval,
                _ => self.event_interval_ns - self.event_interval_ns / 8 + interval / 8,
            };
            self.intervals += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a handle is idle from its first round on, also before any event. Method: two rounds.
    #[test]
    fn idle_before_the_first_event() {
        let mut history = History::default();
        assert_eq!(history.idle(Instant::from_nanos(5)), Duration::ZERO);
        history.record(Instant::from_nanos(10), 0);
        history.record(Instant::from_nanos(20), 0);
        assert_eq!(history.idle(Instant::from_nanos(50)), Duration::from_nanos(40));
    }

    /// Goal: the average converges to a steady interval. Method: a burst, then a steady train.
    #[test]
    fn the_interval_converges() {
        let mut history = History::default();
        let mut now = Instant::from_nanos(0);
        for _ in 0..10 {
            now = now + Duration::from_nanos(100);
            history.record(now, 1);
        }
        for _ in 0..100 {
            now = now + Duration::from_micros(80);
            history.record(now, 2);
            history.record(now + Duration::from_micros(1), 0);
        }
        let interval = history.event_interval().expect("events were recorded");
        assert!(interval > Duration::from_micros(79) && interval <= Duration::from_micros(80));
        assert_eq!((history.rounds(), history.hits(), history.events()), (210, 110, 210));
    }
}
