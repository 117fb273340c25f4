//! A table whose names are never reused.

/// How many bits of a name are the index; the rest counts the uses of that index.
const INDEX_BITS: u32 = 16;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// How often an index is used before it is retired.
const USES_MAX: u32 = u32::MAX >> INDEX_BITS;

/// A table whose names tell both where a value is and whether it is still the same value. Holds at most
/// 65 536 values, and each place is reused at most as many times.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<SlotEntry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct SlotEntry<T> {
    /// Starts at 1, so that no name is zero.
    use_count: u32,
    value: Option<T>,
}

/// Returns the index of a name's place: less than 65 536.
#[inline]
pub(super) const fn index_of(name: u32) -> u32 {
    name & INDEX_MASK
}

#[inline]
fn place(name: u32) -> usize {
    usize::try_from(index_of(name)).unwrap_or(usize::MAX)
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Inserts a value and returns its name, or gives the value back if every name is used up.
    pub(super) fn insert(&mut self, value: T) -> Result<u32, T> {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(place(index))
        {
            slot.use_count += 1;
            slot.value = Some(value);
            return Ok(slot.use_count << INDEX_BITS | index);
        }
        match u32::try_from(self.slots.len()) {
            Ok(index) if index <= INDEX_MASK => {
                self.slots.push(SlotEntry { use_count: 1, value: Some(value) });
                Ok(1 << INDEX_BITS | index)
            }
            _ => Err(value),
        }
    }

    #[inline]
    pub(super) fn get(&self, name: u32) -> Option<&T> {
        let slot = self.slots.get(place(name))?;
        if slot.use_count == name >> INDEX_BITS { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(place(name))?;
        if slot.use_count == name >> INDEX_BITS { slot.value.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        let slot = self.slots.get_mut(place(name))?;
        if slot.use_count != name >> INDEX_BITS {
            return None;
        }
        let value = slot.value.take()?;
        if slot.use_count < USES_MAX {
            self.free.push(index_of(name));
        }
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot): (u32, _)| {
            slot.value.as_ref().map(|value| (slot.use_count << INDEX_BITS | index, value))
        })
    }

    pub(super) fn names(&self) -> Vec<u32> {
        self.iter().map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a name never comes back, even when a place was used as often as possible. Method: use one
    /// place until it is retired, and look up the oldest names.
    #[test]
    fn names_are_never_used_twice() {
        let mut slots = Slots::new();
        let mut last = 0;
        for value in 0..=USES_MAX {
            let name = slots.insert(value).expect("names are left");
            assert!(name != last && slots.get(last).is_none(), "{name:#x} after {last:#x}");
            assert_eq!(slots.get(name), Some(&value));
            if value == USES_MAX {
                assert_eq!(index_of(name), 1, "the first place is retired");
            }
            assert_eq!(slots.remove(name), Some(value));
            assert_eq!(slots.remove(name), None);
            last = name;
        }
    }
}
