//! The counters of each thread, which only that thread writes.

use std::{cell::Cell, time::Duration};

use super::{
    histogram::{BUCKETS, Histogram, bucket},
    readings::{LaneMetrics, Metrics, ReserveMetrics},
};
use crate::{
    lane::{Cause, Lane},
    sync::count::{AtomicU64, RELAXED},
    task_cell::{ReadyTime, poll},
};

/// The counters of one thread that runs tasks. Only that thread writes them, any thread reads them:
/// `Relaxed`, since nothing is ordered by them.
#[derive(Debug)]
pub(crate) struct ThreadCounters {
    lanes: [LaneCounters; 2],
    long_polls: AtomicU64,
    hogs: AtomicU64,
    sleeps: AtomicU64,
    event_delay: Buckets,
    task_delay: Buckets,
}

#[derive(Debug)]
struct LaneCounters {
    polls: AtomicU64,
    nanos: AtomicU64,
}

type Buckets = [AtomicU64; BUCKETS];

impl ThreadCounters {
    pub(crate) const fn new() -> Self {
        const fn lane() -> LaneCounters {
            LaneCounters { polls: AtomicU64::new(0), nanos: AtomicU64::new(0) }
        }
        Self {
            lanes: [lane(), lane()],
            long_polls: AtomicU64::new(0),
            hogs: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            event_delay: [const { AtomicU64::new(0) }; BUCKETS],
            task_delay: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    /// Records that a task that became ready at `ready` is about to be polled at `now`.
    #[inline]
    pub(crate) fn begin_poll(&self, ready: ReadyTime, now: u64) {
        if let Some((delay, by_event)) = ready.delay(now) {
            let buckets = if by_event { &self.event_delay } else { &self.task_delay };
            add(&buckets[bucket(delay)], 1);
        }
    }

    /// Records the end of a poll.
    #[inline]
    pub(crate) fn end_poll(&self, lane: Lane, nanos: u64) {
        let lane = &self.lanes[lane as usize];
        add(&lane.polls, 1);
        add(&lane.nanos, nanos);
    }

    /// Records that the poll that ended was long.
    pub(crate) fn count_long_poll(&self, is_hog: bool) {
        add(&self.long_polls, 1);
        add(&self.hogs, u64::from(is_hog));
    }

    pub(crate) fn count_sleep(&self) {
        add(&self.sleeps, 1);
    }

    pub(crate) fn polls(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.polls.load(RELAXED)).sum()
    }

    pub(crate) fn sleeps(&self) -> u64 {
        self.sleeps.load(RELAXED)
    }

    /// Takes over the counts of another thread, which no longer counts.
    pub(crate) fn absorb(&self, other: &Self) {
        for (own, other) in self.all().zip(other.all()) {
            add(own, other.load(RELAXED));
        }
    }

    fn all(&self) -> impl Iterator<Item = &AtomicU64> {
        let lanes = self.lanes.iter().flat_map(|lane| [&lane.polls, &lane.nanos]);
        let buckets = self.event_delay.iter().chain(&self.task_delay);
        lanes.chain([&self.long_polls, &self.hogs, &self.sleeps]).chain(buckets)
    }

    /// Adds these counters to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Metrics) {
        let lane = |lane: Lane, sum: &mut LaneMetrics| {
            let lane = &self.lanes[lane as usize];
            sum.polls += lane.polls.load(RELAXED);
            sum.time += Duration::from_nanos(lane.nanos.load(RELAXED));
        };
        lane(Lane::Reaction, &mut sum.reaction);
        lane(Lane::Compute, &mut sum.compute);
        sum.long_polls += self.long_polls.load(RELAXED);
        sum.hogs += self.hogs.load(RELAXED);
        let histogram = |buckets: &Buckets, sum: &mut Histogram| {
            for (sum, bucket) in sum.counts.iter_mut().zip(buckets) {
                *sum += bucket.load(RELAXED);
            }
        };
        histogram(&self.event_delay, &mut sum.event_delay);
        histogram(&self.task_delay, &mut sum.task_delay);
    }
}

/// The counters of the supervisor, the only thread that calls reserve threads.
#[derive(Debug)]
pub(crate) struct ReserveCounters {
    calls: AtomicU64,
    new_threads: AtomicU64,
    refused: AtomicU64,
}

impl ReserveCounters {
    pub(crate) const fn new() -> Self {
        Self {
            calls: AtomicU64::new(0),
            new_threads: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Records a call of a reserve thread, and whether a thread was created for it.
    pub(crate) fn count_call(&self, has_new_thread: bool) {
        add(&self.calls, 1);
        add(&self.new_threads, u64::from(has_new_thread));
    }

    /// Records that no reserve thread could be called.
    pub(crate) fn count_refusal(&self) {
        add(&self.refused, 1);
    }

    pub(crate) fn fill(&self, metrics: &mut ReserveMetrics) {
        metrics.calls = self.calls.load(RELAXED);
        metrics.new_threads = self.new_threads.load(RELAXED);
        metrics.refused = self.refused.load(RELAXED);
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(RELAXED).wrapping_add(count), RELAXED);
}

/// Decides, for one scheduling thread, when to record the time at which a task became ready. Where that would
/// need a reading of the clock in the middle of a poll, it samples about one task in 16.
#[derive(Debug)]
pub(crate) struct Sampler {
    left: Cell<u32>,
    /// Uneven distances, so that a pattern in the tasks is not sampled at the same place every time.
    chance: Cell<u32>,
}

impl Sampler {
    pub(crate) const fn new(seed: u32) -> Self {
        Self { left: Cell::new(1), chance: Cell::new(seed) }
    }

    /// Returns the present time, or that of the poll that has just ended, for a task that becomes ready for
    /// this `cause`.
    #[inline]
    pub(crate) fn ready_time(&self, cause: Cause, was_running: bool) -> ReadyTime {
        let by_event = !was_running && !matches!(cause, Cause::Poll);
        if by_event {
            return now(true);
        }
        if let Some(ended) = poll::poll_end() {
            return ReadyTime::new(ended, false);
        }
        let left = self.left.get() - 1;
        self.left.set(left);
        if left > 0 {
            return ReadyTime::UNKNOWN;
        }
        // The constants of Numerical Recipes' generator; 8 to 23, 15.5 on average.
        let chance = self.chance.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.chance.set(chance);
        self.left.set(8 + (chance >> 28));
        now(false)
    }
}

/// For a thread that is not a worker and so has no sampler.
pub(crate) fn foreign_ready_time() -> ReadyTime {
    now(true)
}

fn now(by_event: bool) -> ReadyTime {
    ReadyTime::new(vigie_detect::clock::monotonic_now().as_nanos(), by_event)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: of wake-ups in the middle of a poll, about one in 16 is timed, and each one by an event.
    /// Method: count them.
    #[test]
    fn samples_are_taken() {
        let sampler = Sampler::new(7);
        let count = |cause| {
            let times = (0..3100).map(|_| sampler.ready_time(cause, false));
            times.filter(|&time| time != ReadyTime::UNKNOWN).count()
        };
        let sampled = count(Cause::Poll);
        assert!((150..=260).contains(&sampled), "{sampled}");
        assert_eq!(count(Cause::Detection), 3100);
        assert_eq!(count(Cause::Foreign), 3100);
    }

    /// Goal: delays are counted by what made the task ready. Method: known times.
    #[test]
    fn delays_are_told_apart() {
        let counters = ThreadCounters::new();
        counters.begin_poll(ReadyTime::new(1_000, true), 1_100);
        counters.begin_poll(ReadyTime::new(1_000, false), 900);
        counters.begin_poll(ReadyTime::UNKNOWN, 1_000_000);
        let count = |buckets: &Buckets, nanos| buckets[bucket(nanos)].load(RELAXED);
        assert_eq!(count(&counters.event_delay, 99), 1);
        assert_eq!(count(&counters.task_delay, 0), 1);
        let all = counters.event_delay.iter().chain(&counters.task_delay);
        assert_eq!(all.map(|bucket| bucket.load(RELAXED)).sum::<u64>(), 2);
    }
}
