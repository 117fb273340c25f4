//! The compute lane's queues: the task that has used least goes first.

use std::{cmp::Ordering as Order, collections::BinaryHeap};

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// Where a task stands in the compute lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    /// The least goes first: see [`Credit::place`](super::Credit::place).
    pub(crate) place: u64,
    /// How long its polls are.
    pub(crate) length: Length,
}

/// How long a task's polls are as a rule: by this, reserve threads know what they may run behind polls
/// that do not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Length {
    /// No longer than a quantum.
    Short,
    Long,
    /// It was never polled, nor was any task of its kind: perhaps its polls never end.
    Unknown,
}

#[derive(Debug)]
struct Entry<T> {
    place: u64,
    /// Among equals the first comer goes first.
    arrival: u64,
    length: Length,
    item: T,
}

impl<T> Entry<T> {
    const fn order(&self) -> (u64, u64) {
        (self.place, self.arrival)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    /// Reversed: the greatest of a `BinaryHeap` comes first.
    fn cmp(&self, other: &Self) -> Order {
        other.order().cmp(&self.order())
    }
}

/// The compute lane of one thread, without a lock.
#[derive(Debug)]
pub(crate) struct Ranked<T> {
    /// One for each [`Length`].
    heaps: [BinaryHeap<Entry<T>>; 3],
    arrivals: u64,
}

impl<T> Default for Ranked<T> {
    fn default() -> Self {
        Self { heaps: [const { BinaryHeap::new() }; 3], arrivals: 0 }
    }
}

/// A heap that holds less than a quarter of its memory gives it back, down to this.
const KEPT: usize = 256;

impl<T> Ranked<T> {
    pub(crate) fn push(&mut self, item: T, rank: Rank) {
        let Rank { place, length } = rank;
        self.arrivals += 1;
        self.insert(Entry { place, arrival: self.arrivals, length, item });
    }

    fn insert(&mut self, entry: Entry<T>) {
        self.heaps[entry.length as usize].push(entry);
    }

    /// Takes the task that has used least.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_entry(Length::Unknown).map(|entry| entry.item)
    }

    /// Takes the task that has used least of those whose polls are no longer than `longest`.
    pub(crate) fn pop_known(&mut self, longest: Length) -> Option<T> {
        self.pop_entry(longest).map(|entry| entry.item)
    }

    fn pop_entry(&mut self, longest: Length) -> Option<Entry<T>> {
        let heaps = self.heaps[..=longest as usize].iter_mut().filter(|heap| !heap.is_empty());
        let heap = heaps.min_by_key(|heap| heap.peek().map(Entry::order))?;
        let entry = heap.pop();
        give_memory_back(heap);
        entry
    }

    pub(crate) fn len(&self) -> usize {
        self.heaps.iter().map(BinaryHeap::len).sum()
    }
}

fn give_memory_back<T>(heap: &mut BinaryHeap<Entry<T>>) {
    if heap.capacity() > KEPT && heap.len() < heap.capacity() / 4 {
        heap.shrink_to(heap.len() * 2);
    }
}

/// The most that is taken from another thread at a time.
const BATCH_MAX: usize = 16;

/// The compute lane of one thread, from which others may take.
///
/// A lock and no lock-free queue: computing tasks switch rarely, and the order is worth more.
#[derive(Debug)]
pub(crate) struct ComputeQueue<T> {
    ranked: Mutex<Ranked<T>>,
    /// How many there are, and how many of them are short or long. Written under the lock, read by anybody: a
    /// thread that goes to sleep reads them after a fence (see `Idle::choose`).
    count: AtomicUsize,
    known_counts: [AtomicUsize; 2],
}

impl<T> ComputeQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            ranked: Mutex::new(Ranked::default()),
            count: AtomicUsize::new(0),
            known_counts: [AtomicUsize::new(0), AtomicUsize::new(0)],
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

    /// Returns whether a task waits whose polls are no longer than `longest`: a load or two.
    #[inline]
    pub(crate) fn has_known(&self, longest: Length) -> bool {
        let counts = self.known_counts.iter().take(longest as usize + 1);
        counts.into_iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Works on the tasks, and publishes how many there are afterwards.
    fn with<R>(&self, work: impl FnOnce(&mut Ranked<T>) -> R) -> R {
        let mut ranked = lock(&self.ranked);
        let result = work(&mut ranked);
        self.count.store(ranked.len(), Ordering::Relaxed);
        for (count, heap) in self.known_counts.iter().zip(&ranked.heaps) {
            count.store(heap.len(), Ordering::Relaxed);
        }
        result
    }

    pub(crate) fn push(&self, item: T, rank: Rank) {
        self.with(|ranked| ranked.push(item, rank));
    }

    /// Takes the task that has used least.
    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() { None } else { self.with(Ranked::pop) }
    }

    /// Takes the task that has used least of those whose polls are no longer than `longest`.
    pub(crate) fn pop_known(&self, longest: Length) -> Option<T> {
        if self.has_known(longest) { self.with(|ranked| ranked.pop_known(longest)) } else { None }
    }

    /// Moves up to half of the tasks of `victim` here, at least one and at most [`BATCH_MAX`].
    pub(crate) fn take_batch(&self, victim: &Self) {
        let mut batch = Batch::default();
        victim.with(|ranked| batch.fill(ranked, ranked.len().div_ceil(2)));
        self.with(|ranked| batch.empty_into(ranked));
    }

    /// Takes the task that has used least, and moves up to half of the others to `thief`, at most
    /// [`BATCH_MAX`].
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
        // Never both locks at a time: two thieves may rob each other.
        if batch.0[0].is_some() {
            thief.with(|ranked| batch.empty_into(ranked));
        }
        first
    }
}

/// Tasks on their way from one queue to another, on the stack.
struct Batch<T>([Option<Entry<T>>; BATCH_MAX]);

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self([const { None }; BATCH_MAX])
    }
}

impl<T> Batch<T> {
    fn fill(&mut self, ranked: &mut Ranked<T>, count: usize) {
        self.0.iter_mut().take(count).for_each(|place| *place = ranked.pop_entry(Length::Unknown));
    }

    fn empty_into(self, ranked: &mut Ranked<T>) {
        self.0.into_iter().flatten().for_each(|entry| ranked.insert(entry));
    }
}

// The models of `tests/loom.rs` compile this file, too: the tests below are none of them.
#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: what has used least goes first, among equals what came first; short ones, and those of
        /// known length, alone in the same order. Method: random operations against a sorted list.
        #[test]
        fn the_least_used_goes_first(operations in prop::collection::vec((0u8..5, 0u64..8, 0usize..3), 0..200)) {
            let queue = ComputeQueue::new();
            let lengths = [Length::Short, Length::Long, Length::Unknown];
            let mut oracle: Vec<(u64, usize, Length)> = Vec::new();
            for (number, (kind, place, length)) in operations.into_iter().enumerate() {
                let length = lengths[length];
                match kind {
                    0 | 1 => {
                        queue.push(number, Rank { place, length });
                        oracle.push((place, number, length));
                        oracle.sort_unstable();
                    }
                    2 => {
                        let expected = (!oracle.is_empty()).then(|| oracle.remove(0).1);
                        prop_assert_eq!(queue.pop(), expected);
                    }
                    kind => {
                        let longest = if kind == 3 { Length::Short } else { Length::Long };
                        let found = oracle.iter().position(|entry| entry.2 <= longest);
                        prop_assert_eq!(queue.pop_known(longest), found.map(|at| oracle.remove(at).1));
                    }
                }
                prop_assert_eq!(queue.len(), oracle.len());
                for longest in [Length::Short, Length::Long] {
                    let has = oracle.iter().any(|entry| entry.2 <= longest);
                    prop_assert_eq!(queue.has_known(longest), has);
                }
            }
        }
    }

    /// Goal: a thief takes the first task and at most half of the rest, and nothing is lost. Method: 100
    /// tasks, one theft, and all that both queues hold.
    #[test]
    fn thieves_take_a_part() {
        let (victim, thief) = (ComputeQueue::new(), ComputeQueue::new());
        for place in 0..100 {
            victim.push(
                place,
                Rank { place, length: [Length::Short, Length::Unknown][place as usize % 2] },
            );
        }
        assert_eq!(victim.steal_batch_and_pop(&thief), Some(0));
        assert_eq!((victim.len(), thief.len()), (83, BATCH_MAX));
        let mut all: Vec<u64> = std::iter::from_fn(|| thief.pop()).collect();
        assert_eq!(all, (1..=16).collect::<Vec<_>>());
        all.extend(std::iter::from_fn(|| victim.pop()));
        assert_eq!(all, (1..100).collect::<Vec<_>>());
        assert_eq!(victim.steal_batch_and_pop(&thief), None);
    }

    /// Goal: a burst gives its memory back. Method: the heap's capacity after 10 000 tasks have gone.
    #[test]
    fn memory_is_given_back() {
        let mut ranked = Ranked::default();
        for place in 0..10_000 {
            ranked.push((), Rank { place, length: Length::Long });
        }
        while ranked.pop().is_some() {}
        let capacity = ranked.heaps[Length::Long as usize].capacity();
        assert!(capacity <= 4 * KEPT, "{capacity}");
    }
}
