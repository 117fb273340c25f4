//! Detection of a deadlock: all threads sleep waiting for a task that itself waits for a thread. A pure decision.
//!
//! Reaching the thread limit alone is not a deadlock: threads that compute will switch, and so will those
//! that sleep for a time or for something outside. It is one if every thread sleeps in the kernel inside a
//! poll while tasks are ready or events have come, and within a second no poll has ended and no thread has
//! run.

use std::time::Duration;

use vigie_detect::Instant;

/// The time for which nothing must have moved.
const STANDS_FOR: Duration = Duration::from_secs(1);

/// The interval between readings of the threads' clocks meanwhile: one system call each.
const MEASURE_EVERY: Duration = Duration::from_millis(250);

/// A fingerprint that changes if any thread makes progress: if it is equal twice, nothing has moved in
/// between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standstill {
    threads: usize,
    /// The sum of the times at which their polls began.
    polls_began: u64,
    /// The sum of their processor times.
    processor_time: u64,
}

impl Standstill {
    /// Adds a thread, with the beginning of its poll and its processor time.
    pub(crate) fn add(&mut self, poll_began: Instant, processor_time: u64) {
        self.threads += 1;
        self.polls_began = self.polls_began.wrapping_add(poll_began.as_nanos());
        self.processor_time = self.processor_time.wrapping_add(processor_time);
    }
}

/// The observations so far.
#[derive(Debug, Default)]
pub(crate) struct DeadlockWatch {
    since: Option<(Instant, Standstill)>,
    next: Option<Instant>,
    is_reported: bool,
}

impl DeadlockWatch {
    /// Checks at `now`. `is_possible` says that no more threads may be created, and that all of them were
    /// found asleep; `measure` returns the fingerprint if any task or event waits. Returns whether that is a
    /// deadlock, as far as is known: once, until something moves.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        is_possible: bool,
        measure: impl FnOnce() -> Option<Standstill>,
    ) -> bool {
        if !is_possible {
            *self = Self::default();
            return false;
        }
        if self.next.is_some_and(|next| now < next) {
            return false;
        }
        self.next = Some(now + MEASURE_EVERY);
        let measured = measure();
        match (self.since, measured) {
            (Some((since, before)), Some(measured)) if before == measured => {
                let is_news = !self.is_reported && now - since >= STANDS_FOR;
                self.is_reported |= is_news;
                is_news
            }
            _ => {
                self.since = measured.map(|measured| (now, measured));
                self.is_reported = false;
                false
            }
        }
    }
}

/// Returns whether a thread that sleeps in this kernel function will wake up without help.
pub(crate) fn ends_by_itself(place: &str) -> bool {
    place.contains("nanosleep")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Whether a deadlock is possible, and the state of the threads.
    type Seen = (bool, Option<Standstill>);

    fn stands(polls_began: u64, processor_time: u64) -> Option<Standstill> {
        let mut standstill = Standstill::default();
        standstill.add(Instant::from_nanos(polls_began), processor_time);
        Some(standstill)
    }

    /// Checks each millisecond from `from` to `to`, and returns when it was told.
    fn told(
        watch: &mut DeadlockWatch,
        (from, to): (u64, u64),
        seen: impl Fn(u64) -> Seen,
    ) -> Vec<u64> {
        let is_reported = |&millis: &u64| {
            let (is_possible, standstill) = seen(millis);
            watch.check(at(millis), is_possible, || standstill)
        };
        (from..to).filter(is_reported).collect()
    }

    /// Goal: a standstill is told of once, after a second, and again if it comes again. Method: one that
    /// lasts, ends for a millisecond, and lasts again.
    #[test]
    fn a_standstill_is_told_of_once() {
        let mut watch = DeadlockWatch::default();
        let seen = |millis| (millis != 5_000, stands(7, 9));
        assert_eq!(told(&mut watch, (0, 5_000), seen), [1_000]);
        assert_eq!(told(&mut watch, (5_000, 9_000), seen), [6_001]);
    }

    /// Goal: whatever moves begins a new second. Method: a poll that ends, a thread that runs for a
    /// nanosecond, and nothing that waits, each once or for ever again.
    #[test]
    fn what_moves_is_no_deadlock() {
        let once: [fn(u64) -> Option<Standstill>; 3] = [
            |millis| stands(7 + u64::from(millis > 800), 9),
            |millis| stands(7, 9 + u64::from(millis > 800)),
            |millis| if (700..800).contains(&millis) { None } else { stands(7, 9) },
        ];
        for seen in once {
            let told = told(&mut DeadlockWatch::default(), (0, 5_000), |at| (true, seen(at)));
            assert_eq!(told, [2_000]);
        }
        let always: [fn(u64) -> Seen; 4] = [
            |millis| (true, stands(millis / 900, 9)),
            |millis| (true, stands(7, millis / 900)),
            |_| (true, None),
            |_| (false, stands(7, 9)),
        ];
        for seen in always {
            assert_eq!(told(&mut DeadlockWatch::default(), (0, 5_000), seen), []);
        }
    }

    /// Goal: clocks are read four times a second at most, and only where a deadlock is possible. Method: the readings
    /// of a check in each millisecond are counted.
    #[test]
    fn clocks_are_read_rarely() {
        for (is_possible, expected) in [(true, 12), (false, 0)] {
            let (mut watch, mut readings) = (DeadlockWatch::default(), 0);
            for millis in 0..3_000 {
                watch.check(at(millis), is_possible, || {
                    readings += 1;
                    stands(7, 9)
                });
            }
            assert_eq!(readings, expected);
        }
    }

    /// Goal: threads that sleep for a time are told from threads that wait for another. Method: names of the kernel.
    #[test]
    fn sleeps_with_an_end_are_known() {
        assert!(ends_by_itself("hrtimer_nanosleep"));
        for place in ["futex_do_wait", "futex_wait_queue", "pipe_read", "do_epoll_wait"] {
            assert!(!ends_by_itself(place));
        }
    }
}
