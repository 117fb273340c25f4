//! The compute lane's queues: the task that would finish first, if all of them ran at the same time, goes
//! first.

use std::{cmp::Ordering as Order, collections::BinaryHeap, mem};

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// A task's position in the compute lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    /// The lowest goes first: see [`Credit::place`](super::Credit::place).
    pub(crate) place: u64,
    /// The expected time of the next poll, in nanoseconds of processor time; zero if unknown.
    pub(crate) needs_ns: u32,
    /// Its polls are known to be short: reserve threads may run it too.
    pub(crate) is_short: bool,
}

#[derive(Debug)]
struct QueueEntry<T> {
    place: u64,
    /// The part of the place that is due to the expected time of the poll.
    takes_ns: u64,
    /// Among equals, the first to arrive goes first.
    arrival: u64,
    is_short: bool,
    item: T,
}

impl<T> QueueEntry<T> {
    const fn order(&self) -> (u64, u64) {
        (self.place, self.arrival)
    }

    /// It turns out to be short: it no longer waits for its expected time.
    fn turned_short(self) -> Self {
        Self { place: self.place - self.takes_ns, takes_ns: 0, is_short: true, ..self }
    }
}

impl<T> PartialEq for QueueEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<T> Eq for QueueEntry<T> {}

impl<T> PartialOrd for QueueEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for QueueEntry<T> {
    /// Reversed: a `BinaryHeap` yields its greatest element first.
    fn cmp(&self, other: &Self) -> Order {
        other.order().cmp(&self.order())
    }
}

/// The compute lane of one thread, without a lock.
#[derive(Debug)]
pub(crate) struct RankedQueue<T> {
    short: BinaryHeap<QueueEntry<T>>,
    other: BinaryHeap<QueueEntry<T>>,
    arrivals: u64,
}

impl<T> Default for RankedQueue<T> {
    fn default() -> Self {
        Self { short: BinaryHeap::new(), other: BinaryHeap::new(), arrivals: 0 }
    }
}

/// Among this many tasks near the head of the lane one is tried.
const TRIED_AMONG: usize = 64;

/// A heap that uses less than a quarter of its memory gives it back, down to this capacity.
const KEPT: usize = 256;

/// The longest that a task is placed behind others that are ready with it and have used the same: 2 s.
const TAKES_MOST_NS: u64 = 2_000_000_000;

impl<T> RankedQueue<T> {
    pub(crate) fn push(&mut self, item: T, rank: Rank) {
        let Rank { place, needs_ns, is_short } = rank;
        self.arrivals += 1;
        // With `len` others that each get the same share, a poll takes this many times as long.
        let takes = u64::from(needs_ns).saturating_mul(self.len() as u64 + 1);
        let takes_ns = takes.min(TAKES_MOST_NS);
        let place = place.saturating_add(takes_ns);
        self.insert(QueueEntry { place, takes_ns, arrival: self.arrivals, is_short, item });
    }

    fn insert(&mut self, entry: QueueEntry<T>) {
        if entry.is_short { self.short.push(entry) } else { self.other.push(entry) }
    }

    /// Takes the first task.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_entry().map(|entry| entry.item)
    }

    fn pop_entry(&mut self) -> Option<QueueEntry<T>> {
        let is_short = match (self.short.peek(), self.other.peek()) {
            (Some(short), Some(other)) => short.order() <= other.order(),
            (short, _) => short.is_some(),
        };
        pop_heap(if is_short { &mut self.short } else { &mut self.other })
    }

    /// Takes the first task with short polls, if its place is no later than `limit`.
    pub(crate) fn pop_short(&mut self, limit: u64) -> Option<T> {
        self.short.peek().filter(|entry| entry.place <= limit)?;
        pop_heap(&mut self.short).map(|entry| entry.item)
    }

    /// Counts tasks at the head as short that `is_short` knows to be by now, up to [`BATCH_MAX`].
    fn reconsider_head(&mut self, is_short: impl Fn(&T) -> bool) {
        for _ in 0..BATCH_MAX {
            if !self.other.peek().is_some_and(|first| is_short(&first.item)) {
                return;
            }
            let first = pop_heap(&mut self.other);
            self.short.extend(first.map(QueueEntry::turned_short));
        }
    }

    /// Counts all tasks as short that `is_short` knows to be by now.
    fn reconsider_all(&mut self, is_short: impl Fn(&T) -> bool) {
        let all = mem::take(&mut self.other).into_vec().into_iter();
        let (short, other): (Vec<_>, Vec<_>) = all.partition(|entry| is_short(&entry.item));
        self.other = other.into();
        self.short.extend(short.into_iter().map(QueueEntry::turned_short));
    }

    /// Counts one task as short that `is_tried` grants a trial, among the first of those that are not; at most [`TRIED_AMONG`] are asked.
    fn try_one(&mut self, is_tried: impl Fn(&T) -> bool) {
        let first = self.other.iter().take(TRIED_AMONG);
        let Some(at) = first.map(|entry| &entry.item).position(is_tried) else { return };
        let mut all = mem::take(&mut self.other).into_vec();
        self.short.push(all.swap_remove(at).turned_short());
        self.other = all.into();
    }

    /// Returns the place of the first task with short polls.
    fn first_short(&self) -> u64 {
        self.short.peek().map_or(u64::MAX, |entry| entry.place)
    }

    pub(crate) fn len(&self) -> usize {
        self.short.len() + self.other.len()
    }
}

fn pop_heap<T>(heap: &mut BinaryHeap<QueueEntry<T>>) -> Option<QueueEntry<T>> {
    let entry = heap.pop();
    if heap.capacity() > KEPT && heap.len() < heap.capacity() / 4 {
        heap.shrink_to(heap.len() * 2);
    }
    entry
}

/// The most that is taken from another thread in one go.
const BATCH_MAX: usize = 16;

/// The compute lane of one thread, from which others may take.
///
/// It has a lock rather than a lock-free queue: computing tasks switch rarely, and the order is worth more.
#[derive(Debug)]
pub(crate) struct ComputeQueue<T> {
    ranked: Mutex<RankedQueue<T>>,
    /// The number of tasks, and that of the short ones among them. Written under the lock, read by any thread:
    /// a thread that goes to sleep reads them after a fence (see `Idle::choose`).
    count: AtomicUsize,
    short_count: AtomicUsize,
    /// The place of the first short task, or `u64::MAX` without one.
    first_short: AtomicU64,
    /// The number of kinds that had turned short when all tasks were last reconsidered. Written under the lock.
    reconsidered: AtomicU64,
}

impl<T> ComputeQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            ranked: Mutex::new(RankedQueue::default()),
            count: AtomicUsize::new(0),
            short_count: AtomicUsize::new(0),
            first_short: AtomicU64::new(u64::MAX),
            reconsidered: AtomicU64::new(0),
        }
    }

    /// Returns how many tasks wait: one load.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns whether no task waits: one load.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many tasks with short polls wait: one load.
    #[inline]
    pub(crate) fn short_len(&self) -> usize {
        self.short_count.load(Ordering::Relaxed)
    }

    /// Returns whether a short task waits whose place is no later than `limit`: two loads.
    #[inline]
    pub(crate) fn has_short(&self, limit: u64) -> bool {
        self.short_len() > 0 && self.first_short.load(Ordering::Relaxed) <= limit
    }

    /// Runs `work` on the tasks, then publishes their counts.
    fn with<R>(&self, work: impl FnOnce(&mut RankedQueue<T>) -> R) -> R {
        let mut ranked = lock(&self.ranked);
        let result = work(&mut ranked);
        self.count.store(ranked.len(), Ordering::Relaxed);
        self.short_count.store(ranked.short.len(), Ordering::Relaxed);
        self.first_short.store(ranked.first_short(), Ordering::Relaxed);
        result
    }

    pub(crate) fn push(&self, item: T, rank: Rank) {
        self.with(|ranked| ranked.push(item, rank));
    }

    /// Takes the first task.
    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() { None } else { self.with(RankedQueue::pop) }
    }

    /// Takes the first task with short polls, if its place is no later than `limit`.
    pub(crate) fn pop_short(&self, limit: u64) -> Option<T> {
        if self.has_short(limit) { self.with(|ranked| ranked.pop_short(limit)) } else { None }
    }

    /// Counts tasks as short that were not when they were queued, and are known to `is_short` by now: those at the head, or all if
    /// the number of kinds that have turned short, `turned`, has changed since that was last done. If there are none, one is tried
    /// that `is_tried` grants a trial.
    pub(crate) fn reconsider(
        &self,
        turned: u64,
        is_short: impl Fn(&T) -> bool,
        is_tried: impl Fn(&T) -> bool,
    ) {
        if self.len() == self.short_len() {
            return;
        }
        self.with(|ranked| {
            if self.reconsidered.swap(turned, Ordering::Relaxed) == turned {
                ranked.reconsider_head(is_short);
            } else {
                ranked.reconsider_all(is_short);
            }
            if ranked.short.is_empty() {
                ranked.try_one(is_tried);
            }
        });
    }

    /// Moves up to half of the tasks of `victim` here, at least one and at most [`BATCH_MAX`].
    pub(crate) fn take_batch(&self, victim: &Self) {
        let mut batch = Batch::default();
        victim.with(|ranked| batch.fill(ranked, ranked.len().div_ceil(2)));
        self.with(|ranked| batch.empty_into(ranked));
    }

    /// Takes the first task, and moves up to half of the others to `thief`, at most [`BATCH_MAX`].
    pub(crate) fn steal_batch_and_pop(&self, thief: &Self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut batch = Batch::default();
        let first = self.with(|ranked| {
            let first = ranked.pop();
            batch.fill(ranked, ranked.len() / 2);
            first
        });
        // Never holds both locks at once: two threads may steal from each other.
        if batch.0[0].is_some() {
            thief.with(|ranked| batch.empty_into(ranked));
        }
        first
    }
}

/// Tasks on their way from one queue to another, on the stack.
struct Batch<T>([Option<QueueEntry<T>>; BATCH_MAX]);

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self([const { None }; BATCH_MAX])
    }
}

impl<T> Batch<T> {
    fn fill(&mut self, ranked: &mut RankedQueue<T>, count: usize) {
        self.0.iter_mut().take(count).for_each(|place| *place = ranked.pop_entry());
    }

    fn empty_into(self, ranked: &mut RankedQueue<T>) {
        self.0.into_iter().flatten().for_each(|entry| ranked.insert(entry));
    }
}

// The models of `tests/loom.rs` compile this file too, but not the tests below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: the task that has used least goes first, among equals the first to arrive; short ones alone in the
        /// same order, up to a limit. Method: random operations against a sorted list.
        #[test]
        fn the_least_used_goes_first(operations in prop::collection::vec((0u8..4, 0u64..8, any::<bool>()), 0..200)) {
            let queue = ComputeQueue::new();
            let mut oracle: Vec<(u64, usize, bool)> = Vec::new();
            for (number, (kind, place, is_short)) in operations.into_iter().enumerate() {
                match kind {
                    0 | 1 => {
                        queue.push(number, Rank { place, needs_ns: 0, is_short });
                        oracle.push((place, number, is_short));
                        oracle.sort_unstable();
                    }
                    2 => {
                        let expected = (!oracle.is_empty()).then(|| oracle.remove(0).1);
                        prop_assert_eq!(queue.pop(), expected);
                    }
                    _ => {
                        let found = oracle.iter().position(|entry| entry.2 && entry.0 <= place);
                        prop_assert_eq!(queue.has_short(place), found.is_some());
                        prop_assert_eq!(queue.pop_short(place), found.map(|at| oracle.remove(at).1));
                    }
                }
                prop_assert_eq!(queue.len(), oracle.len());
                prop_assert_eq!(queue.is_empty(), oracle.is_empty());
                prop_assert_eq!(queue.short_len(), oracle.iter().filter(|entry| entry.2).count());
            }
        }
    }

    /// Goal: a thief takes the first task and at most half of the rest, and nothing is lost. Method: 100
    /// tasks, one theft, and all that both queues hold.
    #[test]
    fn thieves_take_a_part() {
        let (victim, thief) = (ComputeQueue::new(), ComputeQueue::new());
        for place in 0..100 {
            victim.push(place, Rank { place, needs_ns: 0, is_short: place % 2 == 0 });
        }
        assert_eq!(victim.steal_batch_and_pop(&thief), Some(0));
        assert_eq!((victim.len(), thief.len()), (83, BATCH_MAX));
        let mut all: Vec<u64> = std::iter::from_fn(|| thief.pop()).collect();
        assert_eq!(all, (1..=16).collect::<Vec<_>>());
        all.extend(std::iter::from_fn(|| victim.pop()));
        assert_eq!(all, (1..100).collect::<Vec<_>>());
        assert_eq!(victim.steal_batch_and_pop(&thief), None);
    }

    /// Goal: of tasks that have used the same, the one that would finish first goes first, if each had the same share
    /// of the time; a longer one waits for no more than two seconds for it. Method: a poll of 10 ms among ten others, and
    /// short ones that come around the time at which it would be through.
    #[test]
    fn long_polls_stand_where_they_would_be_through() {
        const MS: u64 = 1_000_000;
        let rank = |place, needs_ns| Rank { place, needs_ns, is_short: needs_ns < 1_000_000 };
        for (needs_ns, through) in [(10_000_000, 110 * MS), (u32::MAX, TAKES_MOST_NS)] {
            let queue = ComputeQueue::new();
            (0..10).for_each(|number| queue.push(number, rank(0, 0)));
            queue.push(10, rank(0, needs_ns));
            queue.push(11, rank(through - MS, 0));
            queue.push(12, rank(through, 0));
            queue.push(13, rank(0, 0));
            let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).collect();
            assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 11, 10, 12]);
        }
    }

    /// Goal: if no task is known to be short, one near the head is tried, without the time that others of its kind took, and no other beside
    /// it. Method: tasks that compute, and one that may be tried, near the head and far behind.
    #[test]
    fn one_of_those_that_may_be_short_is_tried() {
        let queue = ComputeQueue::new();
        let needs = |place| Rank { place, needs_ns: 1_000, is_short: false };
        (0..200).for_each(|place| queue.push(place, needs(place)));
        let tries = |which: u64| queue.reconsider(0, |_| false, |&place| place == which);
        tries(199);
        assert_eq!(queue.short_len(), 0, "too far behind");
        tries(3);
        tries(4);
        assert_eq!((queue.short_len(), queue.len()), (1, 200));
        assert_eq!(queue.pop_short(3), Some(3), "at its own place");
        tries(4);
        assert_eq!(queue.pop(), Some(4), "before those that wait for their time");
        assert_eq!(queue.len(), 198);
    }

    /// Goal: tasks at the head count as short once they are known to be, in their places, and no others. Method: tasks of both kinds,
    /// of which those below a number become known, and those above that are too far behind.
    #[test]
    fn what_has_become_known_is_short() {
        let queue = ComputeQueue::new();
        for place in 0..40 {
            queue.push(place, Rank { place, needs_ns: 0, is_short: place == 5 });
        }
        queue.reconsider(0, |&place| place != 0, |_| false);
        assert_eq!(queue.short_len(), 1, "the head is not known to be short");
        queue.reconsider(0, |&place| place < 8, |_| false);
        assert_eq!((queue.short_len(), queue.len()), (8, 40));
        let short: Vec<u64> = std::iter::from_fn(|| queue.pop_short(6)).collect();
        assert_eq!(short, [0, 1, 2, 3, 4, 5, 6]);
        queue.reconsider(0, |_| true, |_| false);
        assert_eq!(queue.short_len(), 1 + BATCH_MAX, "a few at a time");
    }

    /// Goal: if a kind has turned short, all its tasks count as short, wherever they stand, and no longer wait for the time
    /// that was expected of them. Method: long polls before and behind the tasks of such a kind, before and after it turns.
    #[test]
    fn a_kind_that_turns_short_is_found_everywhere() {
        let queue = ComputeQueue::new();
        let long = |place| Rank { place, needs_ns: 200_000_000, is_short: false };
        for number in 0..60 {
            queue.push(number, long(number));
        }
        let is_of_kind = |number: &u64| number % 3 == 1;
        queue.reconsider(0, is_of_kind, |_| false);
        assert_eq!(queue.short_len(), 0, "the head is of another kind");
        queue.reconsider(1, is_of_kind, |_| false);
        assert_eq!(queue.short_len(), 20);
        let short: Vec<u64> = std::iter::from_fn(|| queue.pop_short(59)).collect();
        assert_eq!(short, (0..60).filter(is_of_kind).collect::<Vec<_>>());
        assert_eq!(queue.pop(), Some(0));
    }

    /// Goal: a burst gives its memory back. Method: the heap's capacity after 10 000 tasks have gone.
    #[test]
    fn memory_is_given_back() {
        let mut ranked = RankedQueue::default();
        for place in 0..10_000 {
            ranked.push((), Rank { place, needs_ns: 0, is_short: false });
        }
        while ranked.pop().is_some() {}
        assert!(ranked.other.capacity() <= 4 * KEPT, "{}", ranked.other.capacity());
    }

    /// Goal: a thread that takes from another takes half, rounded up, and at most one batch; a thief gets
    /// one more to run at once, and half of what is left then. Method: few tasks and many.
    #[test]
    fn half_of_the_tasks_are_taken() {
        for (count, taken, stolen) in
            [(0, 0, 0), (1, 1, 0), (2, 1, 0), (5, 3, 2), (6, 3, 2), (99, 16, 16)]
        {
            let filled = || {
                let queue = ComputeQueue::new();
                for place in 0..count {
                    queue.push(place, Rank { place: place as u64, needs_ns: 0, is_short: false });
                }
                queue
            };
            let (victim, thief) = (filled(), ComputeQueue::new());
            thief.take_batch(&victim);
            assert_eq!((victim.len(), thief.len()), (count - taken, taken));
            assert_eq!(thief.pop(), (taken > 0).then_some(0));
            let (victim, thief) = (filled(), ComputeQueue::new());
            assert_eq!(victim.steal_batch_and_pop(&thief), (count > 0).then_some(0));
            assert_eq!((thief.len(), thief.pop()), (stolen, (stolen > 0).then_some(1)));
        }
    }

    /// Goal: a heap shrinks when less than a quarter of it is used, to twice of that. Method: the capacity
    /// before and after each pop of a burst.
    #[test]
    fn a_heap_shrinks_by_half() {
        let mut ranked = RankedQueue::default();
        (0..10_000).for_each(|place| ranked.push((), Rank { place, needs_ns: 0, is_short: false }));
        let mut before = ranked.other.capacity();
        while ranked.pop().is_some() {
            let (count, after) = (ranked.len(), ranked.other.capacity());
            let expected = if before > KEPT && count < before / 4 { 2 * count } else { before };
            assert!((expected..=expected + 8).contains(&after), "{before} to {after} for {count}");
            before = after;
        }
    }

    /// Goal: a heap that was never large keeps its memory, so that its bursts allocate once. Method: as many
    /// tasks as are kept come and go.
    #[test]
    fn a_small_heap_keeps_its_memory() {
        let mut ranked = RankedQueue::default();
        for place in 0..KEPT as u64 {
            ranked.push((), Rank { place, needs_ns: 0, is_short: false });
        }
        let capacity = ranked.other.capacity();
        assert_eq!(capacity, KEPT, "the test is for the largest one that is kept");
        while ranked.pop().is_some() {}
        assert_eq!(ranked.other.capacity(), capacity);
    }

    /// Goal: `==` says what the order says. Method: all pairs of few places and arrivals.
    #[test]
    fn equality_agrees_with_the_order() {
        let entry = |n: u64| QueueEntry {
            place: n / 2,
            takes_ns: 0,
            arrival: n % 2,
            is_short: n > 2,
            item: n,
        };
        for (one, other) in (0..16).map(|n| (entry(n / 4), entry(n % 4))) {
            assert_eq!(one == other, one.cmp(&other).is_eq());
            assert_eq!(one == other, one.item == other.item);
        }
    }
}
