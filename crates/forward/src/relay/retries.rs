//! The budget of retries: how many connections may try another target after one has failed, so that a relay does not multiply the load
//! of targets that fail together. (As Finagle's `RetryBudget`, whose defaults these are.)

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use vigie_detect::Instant;

/// A bound on retries: after a target could not be reached, a connection tries the next one only while the retries of the last 10 s are
/// fewer than a share of the connections of that time, plus a number for each second. Beyond it the connection fails at once.
///
/// The number lets relays with few connections try every target; the share bounds the load of targets that all fail: with the
/// defaults they get at most 1.2 attempts for each connection, plus 10 a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryBudget {
    pub(super) percent: u32,
    pub(super) min_per_second: u32,
}

impl RetryBudget {
    vigie_detect::setters! {
        /// Sets the retries for 100 connections. Default 20; 0 for none beyond [`min_per_second`](Self::min_per_second). With 100 times
        /// the number of other targets, every connection may try every target, if each attempt fails within less than 10 s.
        percent: u32,

        /// Sets the retries for each second, whatever the number of connections. Default 10. Those of 10 s may come at once.
        min_per_second: u32,
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { percent: 20, min_per_second: 10 }
    }
}

/// The seconds that count.
const SECONDS: u64 = 10;
const NANOS: u64 = 1_000_000_000;

/// The connections and retries of the last seconds.
#[derive(Debug)]
pub(super) struct Retries {
    budget: RetryBudget,
    window: Mutex<Window>,
}

/// At most [`SECONDS`], the oldest first.
#[derive(Debug, Default)]
struct Window(VecDeque<Second>);

#[derive(Debug, Default)]
struct Second {
    number: u64,
    connections: u64,
    retries: u64,
}

impl Retries {
    pub(super) fn new(budget: RetryBudget) -> Self {
        Self { budget, window: Mutex::default() }
    }

    /// Counts a connection.
    pub(super) fn note_connection(&self, now: Instant) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.current(now).connections += 1;
    }

    /// Returns whether a connection may retry now, and if so, counts the retry.
    pub(super) fn take(&self, now: Instant) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.current(now);
        let connections: u64 = window.0.iter().map(|second| second.connections).sum();
        let retries: u64 = window.0.iter().map(|second| second.retries).sum();
        let RetryBudget { percent, min_per_second } = self.budget;
        let share = u128::from(connections) * u128::from(percent) / 100;
        let is_within =
            u128::from(retries) < share + u128::from(min_per_second) * u128::from(SECONDS);
        if is_within {
            window.current(now).retries += 1;
        }
        is_within
    }
}

impl Window {
    /// Forgets what is too old, and returns the current second: the last one known, if another thread has read a later time.
    fn current(&mut self, now: Instant) -> &mut Second {
        let number = now.as_nanos() / NANOS;
        while self.0.front().is_some_and(|oldest| oldest.number + SECONDS <= number) {
            self.0.pop_front();
        }
        if self.0.back().is_none_or(|last| last.number < number) {
            self.0.push_back(Second { number, ..Second::default() });
        }
        self.0.back_mut().expect("invariant: it was just added if there was none")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// The retries that are granted of so many.
    fn granted(retries: &Retries, of: u32, millis: u64) -> usize {
        (0..of).filter(|_| retries.take(at(millis))).count()
    }

    /// Goal: without load, the number for each second is granted, all of a window at once, and again when that has passed. Method: a relay
    /// without other connections.
    #[test]
    fn few_connections_may_retry() {
        let retries = Retries::new(RetryBudget::default());
        assert_eq!(granted(&retries, 1000, 500), 100);
        assert_eq!(granted(&retries, 1000, 9_999), 0, "they are in the window");
        assert_eq!(granted(&retries, 1000, 10_000), 100, "the window has passed");
        assert_eq!(granted(&retries, 1000, 1_000_000), 100, "no more after a long silence");
    }

    /// Goal: targets that all fail get no more than the share of connections, for as long as they fail. Method: 1000 connections a second
    /// for a minute, each of which would retry twice.
    #[test]
    fn a_dead_cluster_gets_a_share_more() {
        let budget = RetryBudget::default().percent(20).min_per_second(0);
        let retries = Retries::new(budget);
        let mut count = 0;
        for millis in 0..60_000 {
            retries.note_connection(at(millis));
            count += granted(&retries, 2, millis);
            assert!(u64::try_from(count * 5).unwrap() <= millis + 1, "{count} after {millis} ms");
        }
        assert_eq!(count, 12_000);
    }

    /// Goal: after a time without failures, a burst is retried in full, within the share of the window; and connections that are older count no
    /// longer. Method: 100 connections a second for 20 s, then retries.
    #[test]
    fn the_window_forgets() {
        let retries = Retries::new(RetryBudget::default().min_per_second(0));
        for number in 0..2000 {
            retries.note_connection(at(number * 10));
        }
        assert_eq!(granted(&retries, 1000, 19_999), 200);
        assert_eq!(granted(&retries, 1000, 30_000), 0, "no connection is left in the window");
        let none = Retries::new(RetryBudget::default().percent(0).min_per_second(0));
        none.note_connection(at(0));
        assert_eq!(granted(&none, 10, 0), 0);
        let all = Retries::new(RetryBudget::default().percent(u32::MAX).min_per_second(u32::MAX));
        assert_eq!(granted(&all, 10_000, 0), 10_000);
    }

    /// Goal: a time that goes back a little breaks nothing, since threads read it at different moments. Method: a second that is over.
    #[test]
    fn late_counts_are_kept() {
        let retries = Retries::new(RetryBudget::default().percent(100).min_per_second(0));
        retries.note_connection(at(12_000));
        retries.note_connection(at(11_999));
        assert_eq!(granted(&retries, 10, 11_999), 2);
        assert_eq!(granted(&retries, 10, 12_000), 0);
    }
}
