//! A heap of timers, by hard expiry, that knows the place of each key.

use crate::{clock::Instant, detector::Key};

const ARITY: usize = 4;
const ABSENT: u32 = u32::MAX;

/// The number of places kept when the heap empties.
const KEPT: usize = 1024;

/// The most timers that [`DeadlineHeap::wake_at`] inspects. If more are that close together, the last of
/// them expires near the first one's hard expiry.
const VISITED_MAX: usize = 32;

/// One timer. Ordered by hard expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeapNode {
    pub(super) hard: Instant,
    pub(super) soft: Instant,
    pub(super) key: Key,
}

/// Timers, the earliest hard expiry in front. Frees memory as it empties.
#[derive(Debug, Default)]
pub(super) struct DeadlineHeap {
    nodes: Vec<HeapNode>,
    /// By the key's index: the place in `nodes`.
    places: Vec<u32>,
    /// The number of timers at or below which a removal checks if `places` can shrink.
    trim_at: usize,
}

impl DeadlineHeap {
    pub(super) fn first(&self) -> Option<HeapNode> {
        self.nodes.first().copied()
    }

    /// Returns the latest soft expiry found that is not after the first hard one: a host that wakes
    /// up then delays no timer beyond its slack and finds all that have expired by then.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let first = self.nodes.first()?;
        let mut latest = first.soft;
        if first.hard == first.soft {
            return Some(latest);
        }

        // Nodes whose children are still to be inspected. The children of a node that is too late are
        // later still, or have a larger slack and can wait.
        let mut parents = [0_usize; VISITED_MAX];
        let (mut done, mut known) = (0, 1);

        while done < known {
            let children = parents[done] * ARITY + 1;
            done += 1;
            for child in children..(children + ARITY).min(self.nodes.len()) {
                let soft = self.nodes[child].soft;
                if soft > first.hard {
                    continue;
                }
                if known == VISITED_MAX {
                    return Some(first.hard);
                }
                latest = latest.max(soft);
                parents[known] = child;
                known += 1;
            }
        }
        Some(latest)
    }

    pub(super) fn insert(&mut self, node: HeapNode) {
        if node.key.index() >= self.places.len() {
            self.places.resize(node.key.index() + 1, ABSENT);
            self.trim_at = self.places.len() / 8;
        }
        self.nodes.push(node);
        self.rise(self.nodes.len() - 1);
    }

    /// Removes `key`, if it is there.
    pub(super) fn remove(&mut self, key: Key) {
        let Some(&place) = self.places.get(key.index()) else { return };
        let place = place as usize;
        if self.nodes.get(place).is_none_or(|node| node.key != key) {
            return;
        }
        self.places[key.index()] = ABSENT;
        let last = self.nodes.pop().expect("invariant: the heap holds the key");
        if place < self.nodes.len() {
            self.nodes[place] = last;
            let settled = self.rise(place);
            self.sink(settled);
        }
        if self.nodes.len() <= self.trim_at && self.places.len() > KEPT {
            self.trim();
        }
    }

    /// Frees the memory left over from a burst: at a quarter of the size or less, at the cost of a
    /// pass over the remaining timers. Their number is at least halved each time, so that all passes
    /// together cost less than the burst.
    #[cold]
    fn trim(&mut self) {
        let used = self.nodes.iter().map(|node| node.key.index() + 1).max().unwrap_or(0);
        self.places.truncate(used.max(KEPT));
        self.places.shrink_to(self.places.len() * 2);
        self.nodes.shrink_to((self.nodes.len() * 2).max(KEPT));
        self.trim_at = self.nodes.len() / 2;
    }

    /// Moves the node at `place` up to where it belongs and returns that place.
    fn rise(&mut self, mut place: usize) -> usize {
        let node = self.nodes[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.nodes[parent] <= node {
                break;
            }
            self.put(place, self.nodes[parent]);
            place = parent;
        }
        self.put(place, node);
        place
    }

    /// Moves the node at `place` down to where it belongs.
    fn sink(&mut self, mut place: usize) {
        let node = self.nodes[place];
        loop {
            let children = place * ARITY + 1..(place * ARITY + 1 + ARITY).min(self.nodes.len());
            let Some(least) = children.min_by_key(|&child| self.nodes[child]) else { break };
            if node <= self.nodes[least] {
                break;
            }
            self.put(place, self.nodes[least]);
            place = least;
        }
        self.put(place, node);
    }

    fn put(&mut self, place: usize, node: HeapNode) {
        self.nodes[place] = node;
        self.places[node.key.index()] =
            u32::try_from(place).expect("invariant: no more timers than keys");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn node(soft: u64, slack: u64, index: u64) -> HeapNode {
        HeapNode {
            hard: Instant::from_nanos(soft + slack),
            soft: Instant::from_nanos(soft),
            key: Key::from_bits(index),
        }
    }

    proptest! {
        /// Goal: the heap is a set ordered by hard expiry, and its wake-up delays no timer beyond its
        /// slack. Method:
        /// random insertions and removals against a `BTreeSet`; the wake-up against all soft expiries.
        #[test]
        fn the_heap_agrees_with_a_set(operations in prop::collection::vec((0u64..50, 0u64..20, 0u64..40, any::<bool>()), 0..300)) {
            let mut heap = DeadlineHeap::default();
            let mut oracle = BTreeSet::<HeapNode>::new();
            for (soft, slack, index, inserts) in operations {
                let key = Key::from_bits(index);
                let held = oracle.iter().find(|held| held.key == key).copied();
                match (inserts, held) {
                    (true, None) => {
                        heap.insert(node(soft, slack, index));
                        oracle.insert(node(soft, slack, index));
                    }
                    (false, Some(held)) => {
                        heap.remove(key);
                        oracle.remove(&held);
                    }
                    (false, None) => heap.remove(key),
                    (true, Some(_)) => {}
                }
                prop_assert_eq!(heap.first(), oracle.first().copied());
                prop_assert_eq!(heap.nodes.len(), oracle.len());
                let Some(first) = oracle.first() else {
                    prop_assert_eq!(heap.wake_at(), None);
                    continue;
                };
                let wakeup = heap.wake_at().expect("there is a timer");
                prop_assert!(first.soft <= wakeup && wakeup <= first.hard);
            }
        }

        /// Goal: with one slack for all, the wake-up is at the last deadline within the first one's slack,
        /// or at the end of it if the timers there are more than are inspected. Method: against a search.
        #[test]
        fn the_wakeup_is_shared(softs in prop::collection::vec(0u64..1000, 1..60), slack in 0u64..400) {
            let mut heap = DeadlineHeap::default();
            for (index, &soft) in (0..).zip(&softs) {
                heap.insert(node(soft, slack, index));
            }
            let hard = softs.iter().min().expect("not empty") + slack;
            let within = softs.iter().copied().filter(|&soft| soft <= hard);
            let expected = if slack > 0 && within.clone().count() > VISITED_MAX { Some(hard) } else { within.max() };
            prop_assert_eq!(heap.wake_at().map(Instant::as_nanos), expected);
        }
    }

    /// Goal: memory is freed after a burst, even one that leaves a timer with a high key behind, and the
    /// rest stays usable. Method: more timers than 2^20, of which all but one are cancelled.
    #[test]
    fn a_burst_is_forgotten() {
        let count: u64 = (1 << 20) + 100;
        let mut heap = DeadlineHeap::default();
        for index in 0..count {
            heap.insert(node(index, 50, index));
        }
        assert!(heap.places.capacity() >= 1 << 20);
        for index in 1..count {
            heap.remove(Key::from_bits(index));
        }
        assert!(heap.places.capacity() <= 4 * KEPT, "{} places", heap.places.capacity());
        assert!(heap.nodes.capacity() <= 4 * KEPT, "{} nodes", heap.nodes.capacity());
        heap.insert(node(7, 50, count));
        heap.remove(Key::from_bits(0));
        assert_eq!(heap.first(), Some(node(7, 50, count)));
        heap.remove(Key::from_bits(count));
        assert_eq!(heap.first(), None);
        assert!(heap.places.capacity() <= 4 * KEPT);
    }

    /// Goal: memory is freed when an eighth of the places is in use, and again at each half of that; the rest
    /// has room for twice as many. Method: the capacities around each of these moments, with timers that leave
    /// in order of arrival and in reverse.
    #[test]
    fn memory_is_given_back_by_halves() {
        const COUNT: u64 = 80_000;
        for is_reversed in [false, true] {
            let mut heap = DeadlineHeap::default();
            (0..COUNT).for_each(|index| heap.insert(node(index, 50, index)));
            let order = |n: u64| if is_reversed { COUNT - 1 - n } else { n };
            let mut leaving = (0..COUNT).map(order);
            let mut before = (heap.nodes.capacity(), heap.places.capacity());
            for left in [10_000, 5_000, 2_500] {
                while heap.nodes.len() > left + 1 {
                    heap.remove(Key::from_bits(leaving.next().expect("one is left")));
                }
                assert_eq!((heap.nodes.capacity(), heap.places.capacity()), before, "too early");
                heap.remove(Key::from_bits(leaving.next().expect("one is left")));
                let (nodes, places) = (heap.nodes.capacity(), heap.places.capacity());
                assert!((2 * left..before.0).contains(&nodes), "{nodes} for {left}");
                let expected = if is_reversed { 2 * left } else { before.1 };
                assert!((expected..=expected + 8).contains(&places), "{places} for {left}");
                before = (nodes, places);
            }
        }
    }
}
