//! Storage for a handle's requests: reused while needed, freed after a burst.
//!
//! ```text
//!                  insert                          free
//!      spare ────────────────▶ in use ────────────────────▶ spare
//!        │                        ▲                           │ more spare than in use
//!        │ trim                   │ insert, a new entry       ▼
//!        └──▶ no place ◀──────────┴───────────────────── place without entry
//!                        trim
//! ```
//!
//! An entry keeps its address while it is in use. Places keep their numbers, which are the indices of
//! keys; the list of places shrinks when those at its end are free.

use std::mem;

use super::{key::Mode, slot::EventSlot};
use crate::sync::Arc;

/// The index that means "no entry".
pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    Pending,
    Cancelling,
    Ended,
}

pub(crate) struct RequestEntry<R, E> {
    pub(super) request: Option<R>,
    pub(crate) slot: Arc<EventSlot<E>>,
    pub(super) generation: u32,
    pub(super) phase: Phase,
    pub(crate) mode: Mode,
    /// Neighbours in the list of pending entries, oldest first.
    pub(super) previous: u32,
    pub(super) next: u32,
}

impl<R, E> RequestEntry<R, E> {
    pub(super) fn new(generation: u32) -> Self {
        Self {
            request: None,
            slot: Arc::new(EventSlot::new()),
            generation,
            phase: Phase::Free,
            mode: Mode::Once,
            previous: NIL,
            next: NIL,
        }
    }
}

/// The number of spare entries that are always kept.
const KEPT: usize = 1024;

pub(super) struct Entries<R, E> {
    places: Vec<Option<Box<RequestEntry<R, E>>>>,
    /// Places with a free entry.
    spare: Vec<u32>,
    /// Places without an entry.
    vacant: Vec<u32>,
    /// The generation of new entries: above that of all freed entries, so that an old key never names
    /// a newer request.
    generation: u32,
    /// The number of entries in use at or below which a removal checks if the list of places can shrink.
    trim_at: usize,
}

impl<R, E> Entries<R, E> {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            spare: Vec::new(),
            vacant: Vec::new(),
            generation: 0,
            trim_at: 0,
        }
    }

    /// Returns the entry at `index`, free or not, if there is one.
    pub(super) fn get(&self, index: u32) -> Option<&RequestEntry<R, E>> {
        self.places.get(index as usize)?.as_deref()
    }

    /// Returns the entry at `index`.
    ///
    /// # Panics
    /// Panics if it is not in use.
    pub(super) fn used(&mut self, index: u32) -> &mut Box<RequestEntry<R, E>> {
        self.places[index as usize].as_mut().expect("invariant: an entry in use is there")
    }

    /// Returns all entries that are there, free or not.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &RequestEntry<R, E>)> {
        (0..).zip(&self.places).filter_map(|(index, place)| Some((index, place.as_deref()?)))
    }

    /// Returns the place of a free entry and marks it as in use.
    pub(super) fn insert(&mut self) -> u32 {
        if let Some(index) = self.spare.pop() {
            return index;
        }
        let entry = Box::new(RequestEntry::new(self.generation));
        if let Some(index) = self.vacant.pop() {
            self.places[index as usize] = Some(entry);
            return index;
        }
        self.places.push(Some(entry));
        self.trim_at = self.places.len() / 8;
        u32::try_from(self.places.len() - 1).expect("invariant: max_pending fits in a u32")
    }

    /// Frees the entry at `index`. It no longer holds anything that foreign code would have to drop.
    pub(super) fn free(&mut self, index: u32) {
        let entry = self.used(index);
        entry.phase = Phase::Free;
        entry.generation = entry.generation.wrapping_add(1);
        self.spare.push(index);
        let in_use = self.in_use();
        // At most twice: one more is spare, and one less may be.
        while self.spare.len() > in_use.max(KEPT) {
            let index = self.spare.pop().expect("invariant: at least one is spare");
            let entry = mem::take(&mut self.places[index as usize]);
            self.forget(entry);
            self.vacant.push(index);
        }
        if in_use <= self.trim_at && self.places.len() > KEPT {
            self.trim();
        }
    }

    /// Returns how many entries and places there are.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        let lists = self.vacant.capacity().max(self.spare.capacity());
        (self.iter().count(), self.places.capacity().max(lists))
    }

    fn in_use(&self) -> usize {
        self.places.len() - self.spare.len() - self.vacant.len()
    }

    fn forget(&mut self, entry: Option<Box<RequestEntry<R, E>>>) {
        if let Some(entry) = entry {
            self.generation = self.generation.max(entry.generation);
        }
    }

    /// Frees the free places at the end: when an eighth of the places or less is in use, and again
    /// at each half of that, so that all checks together cost less than the burst.
    #[cold]
    fn trim(&mut self) {
        let in_use = self.in_use();
        let is_free = |place: &Option<Box<RequestEntry<R, E>>>| {
            place.as_ref().is_none_or(|entry| entry.phase == Phase::Free)
        };
        while self.places.len() > KEPT && self.places.last().is_some_and(is_free) {
            let entry = self.places.pop().flatten();
            self.forget(entry);
        }
        let count = self.places.len();
        for list in [&mut self.spare, &mut self.vacant] {
            list.retain(|&index| (index as usize) < count);
            list.shrink_to(list.len() * 2);
        }
        self.places.shrink_to(count * 2);
        self.trim_at = in_use / 2;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::Instant;

    /// Goal: after a burst of more than 2^20 requests, entries and places are freed, and no key is used
    /// twice. Method: three bursts, which end from the front, from the back, and with only the newest
    /// request left; all keys of freed places are compared.
    #[test]
    fn a_burst_is_forgotten() {
        let count: u32 = (1 << 20) + 1000;
        for order in 0..3 {
            let mut entries = Entries::<Instant, ()>::new();
            let mut ending = Vec::new();
            for _ in 0..count {
                let index = entries.insert();
                entries.used(index).phase = Phase::Pending;
                ending.push(index);
            }
            let generation = entries.used(count - 1).generation;
            match order {
                0 => {}
                1 => ending.reverse(),
                _ => drop(ending.pop()),
            }
            ending.into_iter().for_each(|index| entries.free(index));
            let (kept, places) = entries.size();
            assert!(kept <= 2 * KEPT, "{kept} entries are kept");
            if order < 2 {
                assert!(places <= 2 * KEPT, "{places} places are kept");
            } else {
                // Only their numbers, since the last one is in use.
                entries.free(count - 1);
                assert!(entries.size().1 <= 2 * KEPT, "{:?}", entries.size());
            }
            for _ in 0..count {
                entries.insert();
            }
            assert!(entries.used(count - 1).generation > generation);
        }
    }

    /// Goal: places are freed when an eighth of them is in use, and again at each half of that; the rest has
    /// room for twice as many. Method: the number of places around each of these moments, with requests
    /// whose last ones end first.
    #[test]
    fn places_are_given_back_by_halves() {
        const COUNT: u32 = 80_000;
        let mut entries = Entries::<Instant, ()>::new();
        for _ in 0..COUNT {
            let index = entries.insert();
            entries.used(index).phase = Phase::Pending;
        }
        let mut before = entries.places.capacity();
        let mut leaving = (0..COUNT).rev();
        for left in [10_000, 5_000, 2_500] {
            while entries.in_use() > left + 1 {
                entries.free(leaving.next().expect("one is left"));
            }
            assert_eq!(entries.places.capacity(), before, "too early");
            entries.free(leaving.next().expect("one is left"));
            before = entries.places.capacity();
            assert_eq!((entries.places.len(), before), (left, 2 * left));
            assert!(entries.spare.is_empty() && entries.vacant.is_empty(), "all are in use");
        }
        // Spare entries are used before new ones, and places before the list grows.
        entries.free(7);
        assert_eq!((entries.insert(), entries.insert()), (7, 2_500));
    }

    /// Goal: no more entries are spare than are in use, or than are always kept. Method: as many as are
    /// kept end, one more, and then enough to leave places without an entry, which are filled first again.
    #[test]
    fn no_more_are_spare_than_used() {
        let kept = u32::try_from(KEPT).expect("few");
        let mut entries = Entries::<Instant, ()>::new();
        for _ in 0..3 * kept {
            let index = entries.insert();
            entries.used(index).phase = Phase::Pending;
        }
        let size = |entries: &Entries<Instant, ()>| (entries.iter().count(), entries.vacant.len());
        // In use: twice as many as are kept, then half of that.
        (0..kept).for_each(|index| entries.free(index));
        assert_eq!(size(&entries), (3 * KEPT, 0));
        (kept..2 * kept).for_each(|index| entries.free(index));
        assert_eq!(size(&entries), (2 * KEPT, KEPT));
        let mut filled: Vec<u32> = (0..2 * kept).map(|_| entries.insert()).collect();
        filled.sort_unstable();
        assert!(filled.into_iter().eq(0..2 * kept));
        assert_eq!((size(&entries), entries.places.len()), ((3 * KEPT, 0), 3 * KEPT));
    }

    proptest! {
        /// Goal: an index is handed out once at a time, and with a new generation each time. Method: random
        /// bursts and ends, against sets.
        #[test]
        fn keys_are_unique(bursts in prop::collection::vec((0usize..6000, 0usize..6000, any::<bool>()), 1..12)) {
            let mut entries = Entries::<Instant, ()>::new();
            let mut used = Vec::new();
            let mut keys = BTreeSet::new();
            for (begins, ends, is_last_first) in bursts {
                for _ in 0..begins {
                    let index = entries.insert();
                    prop_assert!(keys.insert((index, entries.used(index).generation)));
                    entries.used(index).phase = Phase::Pending;
                    used.push(index);
                }
                for _ in 0..ends.min(used.len()) {
                    let at = if is_last_first { used.len() - 1 } else { 0 };
                    entries.free(used.swap_remove(at));
                }
                prop_assert_eq!(entries.in_use(), used.len());
                prop_assert!(entries.iter().count() <= 2 * used.len().max(KEPT));
                for &index in &used {
                    prop_assert!(entries.get(index).is_some_and(|entry| entry.phase == Phase::Pending));
                }
            }
        }
    }
}
