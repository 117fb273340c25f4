//! A table of values under keys that are never reused: an index and the generation of its slot.

use std::marker::PhantomData;

/// A table for values whose keys outlive them: a stale key finds nothing.
///
/// Keys of 64 bits are for as many values as there is memory; those of 32 bits for at most 65 536, each slot of which
/// is used as many times less one.
#[derive(Debug)]
pub(crate) struct Slots<T, K = u64> {
    entries: Vec<SlotEntry<T>>,
    free: Vec<u32>,
    /// Slots that have used all their generations.
    retired_count: usize,
    keys: PhantomData<K>,
}

#[derive(Debug)]
struct SlotEntry<T> {
    /// Starts at 1, so that no key is zero.
    generation: u32,
    value: Option<T>,
}

/// A key: the generation in its high half, the index in its low one.
pub(crate) trait SlotKey: Copy {
    const INDEX_MAX: u32;
    const GENERATION_MAX: u32;

    fn new(generation: u32, index: u32) -> Self;

    fn generation(self) -> u32;

    /// Returns the index: the part that fits into half as many bits on the wire.
    fn index(self) -> u32;
}

impl SlotKey for u64 {
    // The highest number stands for no request on the wire.
    const INDEX_MAX: u32 = u32::MAX - 1;
    const GENERATION_MAX: u32 = u32::MAX;

    #[inline]
    fn new(generation: u32, index: u32) -> Self {
        Self::from(generation) << 32 | Self::from(index)
    }

    #[inline]
    fn generation(self) -> u32 {
        (self >> 32) as u32
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is the index")]
    fn index(self) -> u32 {
        self as u32
    }
}

impl SlotKey for u32 {
    const INDEX_MAX: Self = 0xffff;
    const GENERATION_MAX: Self = 0xffff;

    #[inline]
    fn new(generation: u32, index: u32) -> Self {
        generation << 16 | index
    }

    #[inline]
    fn generation(self) -> u32 {
        self >> 16
    }

    #[inline]
    fn index(self) -> u32 {
        self & 0xffff
    }
}

impl<T> Slots<T> {
    // Always inline: the value is then made in its slot, field by field, and not copied by words that wait for the fields' stores.
    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        self.insert_with(|| value)
    }

    /// As [`insert`](Self::insert), of a value that is not even built elsewhere.
    #[inline(always)]
    pub(crate) fn insert_with(&mut self, value: impl FnOnce() -> T) -> u64 {
        // Not by `try_insert`, which would move the value once more to give it back.
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            // There is nothing to drop, which the compiler does not know.
            std::mem::forget(entry.value.replace(value()));
            return SlotKey::new(entry.generation, index);
        }
        self.insert_new(value())
    }

    #[cold]
    fn insert_new(&mut self, value: T) -> u64 {
        self.try_insert(value).unwrap_or_else(|_| panic!("more than 2^32 requests at once"))
    }
}

impl<T, K: SlotKey> Slots<T, K> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), retired_count: 0, keys: PhantomData }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len() - self.free.len() - self.retired_count
    }

    /// Inserts a value and returns its key, or gives the value back if every key is used up.
    #[inline]
    pub(crate) fn try_insert(&mut self, value: T) -> Result<K, T> {
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            entry.value = Some(value);
            return Ok(K::new(entry.generation, index));
        }
        match u32::try_from(self.entries.len()) {
            Ok(index) if index <= K::INDEX_MAX => {
                self.entries.push(SlotEntry { generation: 1, value: Some(value) });
                Ok(K::new(1, index))
            }
            _ => Err(value),
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        let entry = self.entries.get(key.index() as usize)?;
        if entry.generation == key.generation() { entry.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index() as usize)?;
        if entry.generation == key.generation() { entry.value.as_mut() } else { None }
    }

    /// Returns the whole key of the value at `index`.
    pub(crate) fn key_at(&self, index: u32) -> Option<K> {
        let entry = self.entries.get(index as usize)?;
        entry.value.as_ref()?;
        Some(K::new(entry.generation, index))
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        let value = self.get_mut_slot(key)?.take()?;
        self.release(key);
        Some(value)
    }

    /// As [`remove`](Self::remove), but drops the value where it is instead of moving it.
    #[inline]
    pub(crate) fn discard(&mut self, key: K) {
        if let Some(value) = self.get_mut_slot(key)
            && value.is_some()
        {
            *value = None;
            self.release(key);
        }
    }

    #[inline]
    fn get_mut_slot(&mut self, key: K) -> Option<&mut Option<T>> {
        let entry = self.entries.get_mut(key.index() as usize)?;
        (entry.generation == key.generation()).then_some(&mut entry.value)
    }

    /// Frees an emptied slot. No key is reused: one that has used all its generations is retired.
    #[inline]
    fn release(&mut self, key: K) {
        let Some(entry) = self.entries.get_mut(key.index() as usize) else { return };
        if entry.generation < K::GENERATION_MAX {
            entry.generation += 1;
            self.free.push(key.index());
        } else {
            self.retired_count += 1;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        (0..).zip(&self.entries).filter_map(|(index, entry): (u32, _)| {
            entry.value.as_ref().map(|value| (K::new(entry.generation, index), value))
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key whose value was removed finds nothing, also when its slot is used again. Method: reuse.
    #[test]
    fn stale_keys_find_nothing() {
        let mut slots = Slots::<_>::new();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b');
        assert_eq!(first.index(), second.index());
        assert_eq!((slots.get(first).copied(), slots.remove(first)), (None, None));
        assert_eq!(slots.key_at(first.index()), Some(second));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [second]);
        assert_eq!((slots.get(second), slots.len()), (Some(&'b'), 1));
    }

    /// Goal: no key is reused, however often its slot is, and none is zero. Method: a slot that was used
    /// nearly as often as it can be.
    #[test]
    fn a_slot_that_is_used_up_is_left_alone() {
        let mut slots = Slots::<_>::new();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first), Some('a'));
        slots.entries[0].generation = u32::MAX;
        let last = slots.insert('b');
        assert_eq!((last.index(), slots.len()), (0, 1));
        assert_eq!((slots.remove(last), slots.len()), (Some('b'), 0));
        assert_eq!((slots.get(last).copied(), slots.remove(last)), (None, None));
        let next = slots.insert('c');
        assert_eq!((next.index(), slots.len()), (1, 1));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [next]);
    }

    /// Goal: each value is found under its key alone, whole or by its index, and changed there. Method: three
    /// values, of which the middle one is replaced.
    #[test]
    fn values_are_found_under_their_keys() {
        let mut slots = Slots::<_>::new();
        let keys = ['a', 'b', 'c'].map(|value| slots.insert(value));
        assert_eq!(slots.remove(keys[1]), Some('b'));
        assert_eq!((slots.len(), slots.key_at(keys[1].index())), (2, None));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [keys[0], keys[2]]);
        let new = slots.insert('d');
        for (key, value) in [(keys[0], 'a'), (new, 'd'), (keys[2], 'c')] {
            assert_eq!(slots.get(key), Some(&value));
            assert_eq!(slots.key_at(key.index()), Some(key));
            *slots.get_mut(key).expect("it is there") = value.to_ascii_uppercase();
        }
        assert!(slots.get_mut(keys[1]).is_none() && slots.get_mut(3).is_none());
        assert_eq!((slots.key_at(3), slots.len()), (None, 3));
        let values = [keys[0], new, keys[2]].map(|key| slots.remove(key));
        assert_eq!(values, [Some('A'), Some('D'), Some('C')]);
        assert_eq!(slots.len(), 0);
    }

    /// Goal: the same with short keys, of which a slot gives 65 535. Method: use one slot until it is retired, and
    /// look up each key before.
    #[test]
    fn short_keys_are_never_used_twice() {
        let mut slots = Slots::<_, u32>::new();
        let mut last = 0;
        for value in 0..=<u32 as SlotKey>::GENERATION_MAX {
            let key = slots.try_insert(value).expect("keys are left");
            assert!(key != last && slots.get(last).is_none(), "{key:#x} after {last:#x}");
            assert_eq!(slots.get(key), Some(&value));
            if value == <u32 as SlotKey>::GENERATION_MAX {
                assert_eq!(key.index(), 1, "the first slot is retired");
            }
            assert_eq!(slots.remove(key), Some(value));
            assert_eq!(slots.remove(key), None);
            last = key;
        }
    }
}
