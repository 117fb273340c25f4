//! A table of values under keys that are never reused: an index and the generation of its slot.

/// A table for values whose keys outlive them: a stale key finds nothing.
#[derive(Debug)]
pub(super) struct Slots<T> {
    entries: Vec<SlotEntry<T>>,
    free: Vec<u32>,
    /// Slots that have used all their generations.
    retired_count: usize,
}

#[derive(Debug)]
struct SlotEntry<T> {
    generation: u32,
    value: Option<T>,
}

/// Returns the index in a key: the part that fits into 32 bits on the wire.
#[inline]
pub(super) const fn index_of(key: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the low half is the index")]
    let index = key as u32;
    index
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), retired_count: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.entries.len() - self.free.len() - self.retired_count
    }

    pub(super) fn insert(&mut self, value: T) -> u64 {
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            entry.value = Some(value);
            return u64::from(index) | u64::from(entry.generation) << 32;
        }
        let index = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        assert!(index < u32::MAX, "more than 2^32 requests at once");
        self.entries.push(SlotEntry { generation: 1, value: Some(value) });
        u64::from(index) | 1 << 32
    }

    #[inline]
    fn entry(&self, key: u64) -> Option<&SlotEntry<T>> {
        let entry = self.entries.get(index_of(key) as usize)?;
        (u64::from(entry.generation) == key >> 32).then_some(entry)
    }

    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<&T> {
        self.entry(key)?.value.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let entry = self.entries.get_mut(index_of(key) as usize)?;
        if u64::from(entry.generation) == key >> 32 { entry.value.as_mut() } else { None }
    }

    /// Returns the whole key of the value at `index`.
    pub(super) fn key_at(&self, index: u32) -> Option<u64> {
        let entry = self.entries.get(index as usize)?;
        entry.value.as_ref()?;
        Some(u64::from(index) | u64::from(entry.generation) << 32)
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<T> {
        let entry = self.entries.get_mut(index_of(key) as usize)?;
        if u64::from(entry.generation) != key >> 32 {
            return None;
        }
        let value = entry.value.take()?;
        // No key is reused or zero: a slot that was used 2^32 times is retired.
        match entry.generation.checked_add(1) {
            Some(next) => {
                entry.generation = next;
                self.free.push(index_of(key));
            }
            None => self.retired_count += 1,
        }
        Some(value)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        (0_u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.value.is_some())
            .map(|(index, entry)| u64::from(index) | u64::from(entry.generation) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key whose value was removed finds nothing, also when its slot is used again. Method: reuse.
    #[test]
    fn stale_keys_find_nothing() {
        let mut slots = Slots::new();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b');
        assert_eq!(index_of(first), index_of(second));
        assert_eq!((slots.get(first).copied(), slots.remove(first)), (None, None));
        assert_eq!(slots.key_at(index_of(first)), Some(second));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [second]);
        assert_eq!((slots.get(second), slots.len()), (Some(&'b'), 1));
    }

    /// Goal: no key is reused, however often its slot is, and none is zero. Method: a slot that was used
    /// nearly as often as it can be.
    #[test]
    fn a_slot_that_is_used_up_is_left_alone() {
        let mut slots = Slots::new();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first), Some('a'));
        slots.entries[0].generation = u32::MAX;
        let last = slots.insert('b');
        assert_eq!((index_of(last), slots.len()), (0, 1));
        assert_eq!((slots.remove(last), slots.len()), (Some('b'), 0));
        assert_eq!((slots.get(last).copied(), slots.remove(last)), (None, None));
        let next = slots.insert('c');
        assert_eq!((index_of(next), slots.len()), (1, 1));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [next]);
    }

    /// Goal: each value is found under its key alone, whole or by its index, and changed there. Method: three
    /// values, of which the middle one is replaced.
    #[test]
    fn values_are_found_under_their_keys() {
        let mut slots = Slots::new();
        let keys = ['a', 'b', 'c'].map(|value| slots.insert(value));
        assert_eq!(slots.remove(keys[1]), Some('b'));
        assert_eq!((slots.len(), slots.key_at(index_of(keys[1]))), (2, None));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [keys[0], keys[2]]);
        let new = slots.insert('d');
        for (key, value) in [(keys[0], 'a'), (new, 'd'), (keys[2], 'c')] {
            assert_eq!(slots.get(key), Some(&value));
            assert_eq!(slots.key_at(index_of(key)), Some(key));
            *slots.get_mut(key).expect("it is there") = value.to_ascii_uppercase();
        }
        assert!(slots.get_mut(keys[1]).is_none() && slots.get_mut(3).is_none());
        assert_eq!((slots.key_at(3), slots.len()), (None, 3));
        let values = [keys[0], new, keys[2]].map(|key| slots.remove(key));
        assert_eq!(values, [Some('A'), Some('D'), Some('C')]);
        assert_eq!(slots.len(), 0);
    }
}
