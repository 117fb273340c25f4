//! Tasks that wait for any thread, and what all threads know of the lanes.

use crossbeam::deque::Injector;

use crate::{
    lane::ComputeQueue,
    sync::{AtomicU64, Ordering},
};

/// A task whose usual poll is no longer than this may react to an event without credit while no computation waits: less than the budget of
/// a poll, at which floods end theirs.
pub(crate) const SMALL_NS: u32 = 40_000;

/// A task whose usual poll is no longer than this, and than half a long poll, is brief: the supervisor checks its polls later.
pub(crate) const BRIEF_NS: u64 = 100_000;

/// If the reaction lane has not run empty for this long, it is overloaded. From then on only brief tasks react.
const CONGESTED_NS: u64 = 5_000_000;

/// The time for which that is remembered: otherwise the deferred tasks would come back at once, all together.
const CONGESTION_LASTS_NS: u64 = 20_000_000;

/// The longer the lane is crowded, the briefer a task must be to react, down to this, or to so many times the lane's usual poll if that
/// is at most [`SMALL_NS`]: small tasks that are alike stay together.
const BRIEFEST_NS: u64 = 10_000;
const BRIEFEST_POLLS: u64 = 4;

/// Tasks that wait for any thread.
pub(crate) struct Injected<T> {
    pub(crate) reaction: Injector<T>,
    pub(crate) compute: ComputeQueue<T>,
    /// Until this time, reserve threads leave short tasks that have used up their share to the workers.
    pub(super) short_until: AtomicU64,
    /// The time at which the next task that need not be short gets its turn, or zero while none is known.
    any_from: AtomicU64,
    /// The reaction lane is crowded until this time, and the longest usual poll of a task that reacts meanwhile.
    congested_until: AtomicU64,
    brief_ns: AtomicU64,
}

impl<T> Injected<T> {
    pub(crate) fn new() -> Self {
        Self {
            reaction: Injector::new(),
            compute: ComputeQueue::new(),
            short_until: AtomicU64::new(0),
            any_from: AtomicU64::new(0),
            congested_until: AtomicU64::new(0),
            brief_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Records that a thread's reaction lane, with polls of usually `usual_ns`, has not run empty for `busy_ns`.
    pub(super) fn note_busy(&self, now: u64, busy_ns: u64, usual_ns: u32) {
        if busy_ns >= CONGESTED_NS {
            let halvings = (busy_ns / CONGESTED_NS).ilog2();
            let alike = BRIEFEST_POLLS * u64::from(usual_ns);
            let briefest = alike.clamp(BRIEFEST_NS, SMALL_NS.into());
            self.brief_ns.store((BRIEF_NS >> halvings.min(63)).max(briefest), Ordering::Relaxed);
            self.congested_until.store(now.saturating_add(CONGESTION_LASTS_NS), Ordering::Relaxed);
        }
    }

    /// Returns the longest usual poll of a task that reacts at `now`.
    pub(crate) fn brief_ns(&self, now: u64) -> u64 {
        let is_congested = now < self.congested_until.load(Ordering::Relaxed);
        if is_congested { self.brief_ns.load(Ordering::Relaxed) } else { u64::MAX }
    }

    /// A reserve thread has run a short task for `nanos` since `since` beside computing workers: together, such tasks get the part of the
    /// processors that they would have if each task had a thread.
    pub(super) fn charge_extra(
        &self,
        workers: usize,
        (waiting, short): (usize, usize),
        since: u64,
        nanos: u64,
    ) {
        let short = 1 + short;
        let all = short.max(1 + waiting) + workers;
        let pause = u128::from(nanos) * all as u128 / (workers * short) as u128;
        let pause = u64::try_from(pause).unwrap_or(EXTRA_PAUSE_MAX_NS);
        // If another thread does the same, one of the two is lost.
        let after = self.short_until.load(Ordering::Relaxed).max(since).saturating_add(pause);
        let most = since.saturating_add(EXTRA_PAUSE_MAX_NS);
        self.short_until.store(after.min(most), Ordering::Relaxed);
    }

    /// The same for a task of any kind beside endlessly computing workers, and the `waiting` ones: not one turn in two seconds.
    pub(super) fn charge_any(&self, workers: usize, waiting: usize, since: u64, nanos: u64) {
        let waiting = 1 + waiting;
        let pause = u128::from(nanos) * (waiting + workers) as u128 / (workers * waiting) as u128;
        let from = since.saturating_add(u64::try_from(pause).unwrap_or(u64::MAX)).max(1);
        self.set_turn_of_any(from);
    }

    /// From this time on, another task that need not be short gets its turn; zero: none does.
    pub(crate) fn set_turn_of_any(&self, from: u64) {
        self.any_from.store(from, Ordering::Relaxed);
    }

    /// Returns whether the task that reserve threads last ran beside endlessly computing workers has come back, and paid for its
    /// poll.
    pub(crate) fn is_turn_of_any(&self, now: u64) -> bool {
        let from = self.any_from.load(Ordering::Relaxed);
        from != 0 && now >= from
    }
}

/// A short task that has overdrawn its bucket by this much has used up its share: 3 ms.
const USED_UP_NS: u64 = 60_000_000;

/// The longest pause for which reserve threads leave such tasks to the workers.
const EXTRA_PAUSE_MAX_NS: u64 = 20_000_000;

/// A reserve thread goes on with such tasks until their pause would be this long: a few long turns switch less than many short ones, and
/// fewer of a task's operations wait.
const TURN_PAUSE_NS: u64 = 16_000_000;

/// Returns the last place in the compute lanes up to which a reserve thread runs short tasks at `now`; `goes_on` says whether it has just
/// run some.
pub(crate) fn short_limit<T>(injected: &Injected<T>, now: u64, goes_on: bool) -> u64 {
    let ahead = if goes_on { TURN_PAUSE_NS } else { 0 };
    let may_run_all = now.saturating_add(ahead) >= injected.short_until.load(Ordering::Relaxed);
    if may_run_all { u64::MAX } else { now.saturating_add(USED_UP_NS) }
}
