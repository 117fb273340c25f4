//! The interpreter's maps, which behave like the kernel's.

use std::collections::BTreeMap;

use super::map::{BpfMap, MapError, MapKind, MapSpec, UpdateMode, masked, prefix};

/// The maximum number of entries of an interpreter's map, and of bytes of a value.
pub const USER_MAP_MAX: u32 = 1 << 20;

/// A map in this process. It stores what a kernel map does; for interfaces the number given.
#[derive(Clone, Debug)]
pub struct UserMap {
    spec: MapSpec,
    /// The values, each in its slot.
    values: Vec<u8>,
    /// The slot of each key; for arrays, only the entries of maps of interfaces.
    slots: BTreeMap<Vec<u8>, u32>,
    free: Vec<u32>,
    /// The time at which each slot was last used, and the current time.
    used: Vec<u64>,
    now: u64,
    /// The number of prefixes of each length.
    lengths: BTreeMap<u32, u32>,
}

impl UserMap {
    /// Creates an empty map.
    ///
    /// # Errors
    /// [`MapError::Invalid`] if a size is 0, exceeds [`USER_MAP_MAX`], or does not suit the kind.
    pub fn new(spec: MapSpec) -> Result<Self, MapError> {
        let MapSpec { kind, key_bytes, value_bytes, entries_max } = spec;
        let is_sized = (1..=USER_MAP_MAX).contains(&value_bytes)
            && (1..=USER_MAP_MAX).contains(&entries_max)
            && (1..=512).contains(&key_bytes);
        let suits = match kind {
            MapKind::LpmTrie => (5..=260).contains(&key_bytes),
            _ if kind.is_array() => key_bytes == 4,
            _ => true,
        };
        let bytes =
            spec.value_length().checked_mul(usize::try_from(entries_max).unwrap_or(usize::MAX));
        let Some(bytes) = bytes.filter(|_| is_sized && suits) else {
            return Err(MapError::Invalid);
        };
        let is_full = matches!(kind, MapKind::Array | MapKind::PerCpuArray);
        Ok(Self {
            spec,
            values: if is_full { vec![0; bytes] } else { Vec::new() },
            slots: BTreeMap::new(),
            free: Vec::new(),
            used: Vec::new(),
            now: 0,
            lengths: BTreeMap::new(),
        })
    }

    const fn is_preset(&self) -> bool {
        matches!(self.spec.kind, MapKind::Array | MapKind::PerCpuArray)
    }

    /// Finds the slot of a key, as a program's look-up does.
    pub(super) fn slot(&mut self, key: &[u8]) -> Option<u32> {
        let slot = self.find(key)?;
        self.touch(slot);
        Some(slot)
    }

    fn touch(&mut self, slot: u32) {
        self.now += 1;
        if let Some(used) = used_of(&mut self.used, slot) {
            *used = self.now;
        }
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        if self.is_preset() {
            let index = u32::from_ne_bytes(key.try_into().ok()?);
            return (index < self.spec.entries_max).then_some(index);
        }
        if self.spec.kind != MapKind::LpmTrie {
            return self.slots.get(key).copied();
        }
        let (asked, _) = prefix(key)?;
        let mut lengths = self.lengths.range(..=asked).rev();
        lengths.find_map(|(length, _)| self.slots.get(&masked(key, *length)?).copied())
    }

    /// The bytes of a slot.
    pub(super) fn bytes(&self, slot: u32) -> Option<&[u8]> {
        let length = self.spec.value_length();
        let start = usize::try_from(slot).ok()?.checked_mul(length)?;
        self.values.get(start..start.checked_add(length)?)
    }

    /// The bytes of a slot, for writing.
    pub(super) fn bytes_mut(&mut self, slot: u32) -> Option<&mut [u8]> {
        let length = self.spec.value_length();
        let start = usize::try_from(slot).ok()?.checked_mul(length)?;
        self.values.get_mut(start..start.checked_add(length)?)
    }

    /// The key as stored, or an error if it is invalid.
    fn kept(&self, key: &[u8]) -> Result<Vec<u8>, MapError> {
        MapError::check("key", key, self.spec.key_length())?;
        if self.spec.kind == MapKind::LpmTrie {
            let (length, _) = prefix(key).ok_or(MapError::Invalid)?;
            return masked(key, length).ok_or(MapError::Invalid);
        }
        if self.spec.kind.is_array() {
            let index = key.try_into().map(u32::from_ne_bytes).unwrap_or(u32::MAX);
            if index >= self.spec.entries_max {
                return Err(MapError::Full { entries_max: self.spec.entries_max });
            }
        }
        Ok(key.to_vec())
    }

    /// A slot for a new key.
    fn room(&mut self) -> Result<u32, MapError> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let count = u32::try_from(self.used.len()).unwrap_or(u32::MAX);
        if count < self.spec.entries_max {
            self.used.push(0);
            self.values.resize(self.values.len() + self.spec.value_length(), 0);
            return Ok(count);
        }
        if self.spec.kind == MapKind::LruHash {
            let used = |slot: u32| self.used.get(usize::try_from(slot).unwrap_or(0));
            let oldest = self.slots.iter().min_by_key(|(_, slot)| used(**slot));
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.take(&key);
                return self.free.pop().ok_or(MapError::Missing);
            }
        }
        Err(MapError::Full { entries_max: self.spec.entries_max })
    }

    fn take(&mut self, key: &[u8]) -> bool {
        let Some(slot) = self.slots.remove(key) else { return false };
        self.free.push(slot);
        if self.spec.kind == MapKind::LpmTrie
            && let Some((length, _)) = prefix(key)
            && let Some(count) = self.lengths.get_mut(&length)
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
        true
    }
}

fn used_of(used: &mut [u64], slot: u32) -> Option<&mut u64> {
    used.get_mut(usize::try_from(slot).ok()?)
}

impl BpfMap for UserMap {
    fn spec(&self) -> MapSpec {
        self.spec
    }

    fn value(&self, key: &[u8]) -> Result<Vec<u8>, MapError> {
        MapError::check("key", key, self.spec.key_length())?;
        let slot = self.find(key).ok_or(MapError::Missing)?;
        let mut value = self.bytes(slot).ok_or(MapError::Missing)?.to_vec();
        if self.spec.kind == MapKind::PerCpuArray {
            value.resize(value.len().next_multiple_of(8), 0);
        }
        Ok(value)
    }

    fn put(&mut self, key: &[u8], value: &[u8], put: UpdateMode) -> Result<(), MapError> {
        let is_padded = self.spec.kind == MapKind::PerCpuArray;
        let length = self.spec.value_length();
        let wanted = if is_padded { length.next_multiple_of(8) } else { length };
        MapError::check("value", value, wanted)?;
        let key = self.kept(key)?;
        let is_there = self.is_preset() || self.slots.contains_key(&key);
        match put {
            UpdateMode::New if is_there => return Err(MapError::Exists),
            UpdateMode::Existing if !is_there => return Err(MapError::Missing),
            _ => {}
        }

        let slot = if self.is_preset() {
            key.as_slice().try_into().map(u32::from_ne_bytes).unwrap_or(u32::MAX)
        } else if let Some(slot) = self.slots.get(&key) {
            *slot
        } else {
            let slot = self.room()?;
            if self.spec.kind == MapKind::LpmTrie
                && let Some((length, _)) = prefix(&key)
            {
                *self.lengths.entry(length).or_default() += 1;
            }
            self.slots.insert(key, slot);
            slot
        };

        self.touch(slot);
        if let Some(bytes) = self.bytes_mut(slot) {
            bytes.copy_from_slice(&value[..length]);
        }

        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), MapError> {
        if self.is_preset() {
            MapError::check("key", key, self.spec.key_length())?;
            return Err(MapError::Invalid);
        }
        let key = self.kept(key)?;
        if self.take(&key) { Ok(()) } else { Err(MapError::Missing) }
    }

    fn keys(&self) -> Result<Vec<Vec<u8>>, MapError> {
        if self.is_preset() {
            let indices = 0..self.spec.entries_max;
            return Ok(indices.map(|index| index.to_ne_bytes().to_vec()).collect());
        }
        Ok(self.slots.keys().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(length: u32, bytes: [u8; 4]) -> Vec<u8> {
        [length.to_ne_bytes(), bytes].concat()
    }

    /// Goal: the longest prefix wins, also after others were removed. Method: nested prefixes, and the default route.
    #[test]
    fn the_longest_prefix_wins() {
        let mut map = UserMap::new(MapSpec::new(MapKind::LpmTrie, 8, 1, 4)).unwrap();
        let lookup = |map: &UserMap| map.value(&key(32, [10, 1, 2, 3])).map(|value| value[0]);
        assert!(matches!(lookup(&map), Err(MapError::Missing)));
        for (length, value) in [(0, 1), (8, 2), (23, 3), (32, 4)] {
            map.put(&key(length, [10, 1, 2, 3]), &[value], UpdateMode::New).unwrap();
            assert_eq!(lookup(&map).unwrap(), value);
        }
        let full = map.put(&key(9, [10, 0, 0, 0]), &[9], UpdateMode::Any);
        assert!(matches!(full, Err(MapError::Full { entries_max: 4 })));
        // Bits behind the prefix are ignored.
        map.remove(&key(23, [10, 1, 3, 255])).unwrap();
        map.remove(&key(32, [10, 1, 2, 3])).unwrap();
        assert_eq!(lookup(&map).unwrap(), 2);
        map.remove(&key(8, [10, 0, 0, 0])).unwrap();
        assert_eq!(lookup(&map).unwrap(), 1);
        assert!(matches!(map.put(&key(33, [0; 4]), &[0], UpdateMode::Any), Err(MapError::Invalid)));
    }

    /// Goal: a full hash refuses new entries, an LRU hash evicts one. Method: one more than fits.
    #[test]
    fn full_maps() {
        let mut map = UserMap::new(MapSpec::hash(1, 1, 2)).unwrap();
        let mut lru = UserMap::new(MapSpec::new(MapKind::LruHash, 1, 1, 2)).unwrap();
        for number in [1, 2] {
            map.put(&[number], &[number], UpdateMode::Any).unwrap();
            lru.put(&[number], &[number], UpdateMode::Any).unwrap();
        }
        assert!(lru.slot(&[1]).is_some());
        assert!(matches!(map.put(&[3], &[3], UpdateMode::Any), Err(MapError::Full { .. })));
        assert!(matches!(map.put(&[1], &[3], UpdateMode::New), Err(MapError::Exists)));
        assert!(matches!(map.put(&[3], &[3], UpdateMode::Existing), Err(MapError::Missing)));
        lru.put(&[3], &[3], UpdateMode::Any).unwrap();
        assert_eq!(lru.keys().unwrap(), [[1], [3]]);
    }
}
