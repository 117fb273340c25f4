//! Timers as a detector: a request is a deadline, its event that the deadline has come.
//!
//! Deadlines are exact to the nanosecond and kept in a four-ary heap that knows where each timer
//! stands, so that a cancelled one leaves at once. *Deviation* from the hashed wheel of [wheels87]: a
//! wheel rounds deadlines to its tick; and appending at the far end of a heap, which is what time-outs
//! do, takes constant time as well.

use crate::{
    clock::Instant,
    detector::{Arming, Cancel, Detector, Key, Methods, Mode, Round, Submitted},
    site::Site,
};

/// The timers of a server: see [`Server::timers`](crate::Server::timers).
#[derive(Debug, Default)]
pub struct Timers {
    site: Option<Site>,
    heap: DeadlineHeap,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self::default()
    }
}

impl Detector for Timers {
    type Request = Instant;
    type Event = ();

    fn methods(&self) -> Methods {
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn attach(&mut self, site: &Site) -> std::io::Result<()> {
        self.site = Some(site.clone());
        Ok(())
    }

    fn submit(&mut self, key: Key, deadline: &mut Instant, _: Mode) -> Submitted<()> {
        self.heap.insert(*deadline, key);
        Submitted::Pending
    }

    fn check(&mut self, key: Key, deadline: &mut Instant) -> Option<()> {
        let site = self.site.as_ref().expect("invariant: attached before the first request");
        let is_over = *deadline <= site.now();
        if is_over {
            self.heap.remove(key);
        }
        is_over.then_some(())
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        while let Some((deadline, key)) = self.heap.first() {
            if deadline > round.now() {
                break;
            }
            if round.is_full() {
                round.more();
                break;
            }
            self.heap.remove(key);
            round.complete(key, ());
        }
    }

    fn cancel(&mut self, key: Key, _: &mut Instant) -> Cancel {
        self.heap.remove(key);
        Cancel::Released
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.heap.first().map(|(deadline, _)| deadline)
    }
}

const ARITY: usize = 4;
const ABSENT: u32 = u32::MAX;

/// A heap of deadlines, earliest first, that knows where each key stands.
#[derive(Debug, Default)]
struct DeadlineHeap {
    nodes: Vec<(Instant, Key)>,
    /// By the key's index: where in `nodes` it stands.
    places: Vec<u32>,
}

impl DeadlineHeap {
    fn first(&self) -> Option<(Instant, Key)> {
        self.nodes.first().copied()
    }

    fn insert(&mut self, deadline: Instant, key: Key) {
        if key.index() >= self.places.len() {
            self.places.resize(key.index() + 1, ABSENT);
        }
        self.nodes.push((deadline, key));
        self.rise(self.nodes.len() - 1);
    }

    /// Removes `key`, if it is there.
    fn remove(&mut self, key: Key) {
        let Some(&place) = self.places.get(key.index()) else { return };
        let place = place as usize;
        if self.nodes.get(place).is_none_or(|&(_, found)| found != key) {
            return;
        }
        self.places[key.index()] = ABSENT;
        let last = self.nodes.pop().expect("invariant: the heap holds the key");
        if place < self.nodes.len() {
            self.nodes[place] = last;
            let settled = self.rise(place);
            self.sink(settled);
        }
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

    fn put(&mut self, place: usize, node: (Instant, Key)) {
        self.nodes[place] = node;
        self.places[node.1.index()] =
            u32::try_from(place).expect("invariant: no more timers than keys");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: the heap is a set ordered by deadline. Method: random insertions and removals
        /// against a `BTreeSet`.
        #[test]
        fn the_heap_agrees_with_a_set(operations in prop::collection::vec((0u64..50, 0u64..40, any::<bool>()), 0..300)) {
            let mut heap = DeadlineHeap::default();
            let mut oracle = BTreeSet::new();
            for (nanos, index, inserts) in operations {
                let key = Key::from_bits(index);
                let held = oracle.iter().find(|(_, held)| *held == key).copied();
                match (inserts, held) {
                    (true, None) => {
                        heap.insert(Instant::from_nanos(nanos), key);
                        oracle.insert((Instant::from_nanos(nanos), key));
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
            }
        }
    }
}
