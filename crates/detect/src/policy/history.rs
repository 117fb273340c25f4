//! The history of one handle: the basis of a policy's decisions.

use std::time::Duration;

use super::spin_balance::SpinBalance;
use crate::clock::{Instant, nanos};

/// The costs of the two options of a host with nothing to run: poll for a while first, or sleep at
/// once.
///
/// Both are in the same currency, nanoseconds of processor time; the policy decides what a delay is
/// worth in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "policies must be able to make one")]
pub struct SpinCosts {
    /// The time to poll first. It should not exceed the cost of a sleep: see
    /// [`History::spin_balance`].
    pub spin: Duration,
    /// The cost of sleeping and waking.
    pub sleep: Duration,
}

/// The way in which an event was found that came while the host had nothing to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleEvent {
    /// By polling: the time is exact.
    Awake,
    /// The event ended a sleep: the time includes that of waking up, which is about `wake_delay`.
    Asleep { wake_delay: Duration },
}

/// Polls, hits and times of one handle.
///
/// Averages are exponential with weight 1/8 for the newest value.
///
/// # What polling first would have paid
/// A policy bets on the time between the moment at which the host has nothing to run and the event;
/// the time between two events says little about that, since it includes the host's own delay. The
/// history keeps the account of the bet, [`spin_balance`](Self::spin_balance): what polling first has
/// saved or would have saved, minus what it has cost or would have cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    polls: u64,
    hits: u64,
    events: u64,
    first_round: Option<Instant>,
    last_event: Option<Instant>,
    /// Nanoseconds from one poll with events to the next, an average.
    event_interval_ns: u64,
    intervals: u64,
    /// Nanoseconds from an idle host to an event, an average.
    idle_wait_ns: u64,
    idle_waits: u64,
    /// The duration of a poll, an average of the measured ones.
    poll_cost_ns: u64,
    spin_hits: u64,
    spin_misses: u64,
    spin_balance: SpinBalance,
}

/// A sleep that ended with an event within this many costs of a sleep may in truth have been short.
const DOUBTFUL_SLEEPS: u64 = 4;

/// This many doubtful sleeps pay for one attempt to poll first.
const DOUBTS: u64 = 32;

impl History {
    /// Returns how many polls ran.
    #[must_use]
    pub const fn polls(&self) -> u64 {
        self.polls
    }

    /// Returns how many polls found an event.
    #[must_use]
    pub const fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns how many events were found.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Returns the average time between two polls with events, once there were two.
    #[must_use]
    pub fn event_interval(&self) -> Option<Duration> {
        (self.intervals > 0).then(|| Duration::from_nanos(self.event_interval_ns))
    }

    /// Returns the time since the last event, or since the first poll if there has been no event.
    #[must_use]
    pub fn idle(&self, now: Instant) -> Duration {
        self.last_event.or(self.first_round).map_or(Duration::ZERO, |last| now - last)
    }

    /// Returns the average time from the moment at which the host had nothing to run to the event,
    /// once there was one; without the delay of waking up, as far as it is known.
    #[must_use]
    pub fn idle_wait(&self) -> Option<Duration> {
        (self.idle_waits > 0).then(|| Duration::from_nanos(self.idle_wait_ns))
    }

    /// Returns the average cost of a poll, once measured. Only polls that the strategy asks for are
    /// measured.
    #[must_use]
    pub fn poll_cost(&self) -> Option<Duration> {
        (self.poll_cost_ns > 0).then(|| Duration::from_nanos(self.poll_cost_ns))
    }

    /// Returns how many times the host polled before a sleep and found an event of this handle in
    /// time.
    #[must_use]
    pub const fn spin_hits(&self) -> u64 {
        self.spin_hits
    }

    /// Returns how many times the host polled for this handle before a sleep and found nothing.
    #[must_use]
    pub const fn spin_misses(&self) -> u64 {
        self.spin_misses
    }

    /// Returns what polling before each sleep would have saved lately, in nanoseconds of the
    /// [`SpinCosts`]; negative if it would have cost more than it saved.
    ///
    /// A host that polls first while this is positive, and sleeps at once otherwise, pays at most twice
    /// as much as the better fixed choice, plus one sleep, if [`SpinCosts::spin`] is at most
    /// [`SpinCosts::sleep`]. In short: compared with always sleeping, a failed poll costs no more than
    /// the sleep that follows. Compared with always polling, the excess is the sleeps at a negative
    /// balance that polling would have avoided; each of them raises the balance by that amount, and
    /// only failed polls, which always polling pays for too, lower it.
    ///
    /// # Source
    /// [spin91, §3] for the wait that costs at most twice the best. *Deviation:* there, each wait is
    /// decided separately; the balance avoids failed polls when events are far apart.
    #[must_use]
    pub const fn spin_balance(&self) -> i64 {
        self.spin_balance.balance()
    }

    /// Records an event that came `waited` after the host had nothing to run. Returns whether the
    /// balance has changed its sign.
    pub(crate) fn record_idle(
        &mut self,
        waited: Duration,
        found: IdleEvent,
        spin_costs: &SpinCosts,
    ) -> bool {
        let (seen, spin, sleep) = (nanos(waited), nanos(spin_costs.spin), nanos(spin_costs.sleep));
        let waited = match found {
            IdleEvent::Awake => seen,
            IdleEvent::Asleep { wake_delay } => {
                let delay = nanos(wake_delay);
                if seen < delay / 4 {
                    // The event was there already: the host did not sleep, whatever was decided.
                    return false;
                }
                seen.saturating_sub(delay)
            }
        };

        self.idle_wait_ns = match self.idle_waits {
            0 => waited,
            _ => self.idle_wait_ns - self.idle_wait_ns / 8 + waited / 8,
        };
        self.idle_waits += 1;
        if found == IdleEvent::Awake && waited <= spin {
            self.spin_hits += 1;
        }

        let doubtful = sleep.saturating_mul(DOUBTFUL_SLEEPS);
        if spin == 0 {
            false
        } else if waited <= spin {
            self.spin_balance.settle(signed(sleep.saturating_sub(waited)), spin_costs)
        } else if found != IdleEvent::Awake
            && waited <= doubtful
            && !self.spin_balance.is_positive()
        {
            // The delay of waking up may be larger than is known. An attempt will show.
            self.spin_balance.settle(signed(spin / DOUBTS).max(1), spin_costs)
        } else {
            self.spin_balance.settle(-signed(spin), spin_costs)
        }
    }

    /// Records that the host polled for this handle, found nothing, and sleeps now. Returns whether
    /// the balance has changed its sign.
    pub(crate) fn record_spin_miss(&mut self, spin_costs: &SpinCosts) -> bool {
        self.spin_misses += 1;
        self.spin_balance.settle(-signed(nanos(spin_costs.spin)), spin_costs)
    }

    /// Records the duration of one poll.
    pub(crate) fn record_poll_cost(&mut self, cost: Duration) {
        let cost = nanos(cost);
        self.poll_cost_ns = match self.poll_cost_ns {
            0 => cost,
            before => before - before / 8 + cost / 8,
        };
    }

    /// Records one poll.
    pub fn record(&mut self, now: Instant, event_count: usize) {
        self.polls += 1;
        self.first_round.get_or_insert(now);
        if event_count == 0 {
            return;
        }
        self.hits += 1;
        self.events += event_count as u64;
        if let Some(last) = self.last_event.replace(now) {
            let interval = nanos(now - last);
            self.event_interval_ns = match self.intervals {
                0 => interval,
                _ => self.event_interval_ns - self.event_interval_ns / 8 + interval / 8,
            };
            self.intervals += 1;
        }
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a handle is idle from its first poll on, even before any event. Method: two polls.
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
            now += Duration::from_nanos(100);
            history.record(now, 1);
        }
        for _ in 0..100 {
            now += Duration::from_micros(80);
            history.record(now, 2);
            history.record(now + Duration::from_micros(1), 0);
        }
        let interval = history.event_interval().expect("events were recorded");
        assert!(interval > Duration::from_micros(79) && interval <= Duration::from_micros(80));
        assert_eq!((history.polls(), history.hits(), history.events()), (210, 110, 210));
    }
}
