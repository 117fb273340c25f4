//! A cache of registrations, and a pool of registered buffers.
//!
//! Registering memory is expensive where a device has to pin its pages, and so is allocating memory that
//! peers can map (a file, a mapping, a message to each peer, and a page fault for each page on both sides). A
//! program that sends from the same memory again and again should pay for that once.
//!
//! # Why an entry holds its memory
//! A cache that identifies memory by its address alone is wrong as soon as the memory is freed and the
//! address reused: the cached registration still names the old pages. Such caches have to intercept `free`
//! and `munmap`, and miss some calls. Here that cannot happen: you register an owned [`Memory`], and an entry
//! *holds* it. While the entry exists, its address belongs to this memory and nothing else, so a lookup that
//! finds the address has found the memory.
//!
//! # When an entry is removed
//! An entry must not keep memory alive that has no other user, so holders are counted: the NIC is given an
//! alias, which holds the user's memory and is counted separately. If only the alias and the entry hold the
//! memory, its last user is gone.
//!
//! | when | what is removed | counted as |
//! | --- | --- | --- |
//! | the last user is gone | registered memory, at the next [`sweep`](RegistrationCache::sweep) or miss | `abandoned` |
//! | there is no room | the least recently used of the entries not in use | `evictions` |
//! | [`deregister`](RegistrationCache::deregister) | the entry that was named | `invalidations` |
//!
//! Registered memory is *in use* while a [`Registered`] of it lives, a buffer while any clone of it lives.
//! Memory in use is never evicted, so the cache holds at most its bounds, or what is in use if that is more.

use std::{collections::BTreeMap, sync::Arc};

use super::{Memory, MemoryAttributes, MemoryHandle, ProtectionTag, Provider, Region, ViError};

/// The smallest buffer, in bytes: a page.
const BUFFER_BYTES_MIN: usize = 4096;

/// The counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheCounters {
    /// Requests for memory that was already registered.
    pub hits: u64,
    /// Memory that had to be registered.
    pub misses: u64,
    /// Requests for buffers that the pool could serve.
    pub reuses: u64,
    /// Buffers that had to be allocated.
    pub allocations: u64,
    /// Registrations and buffers that were removed to make room.
    pub evictions: u64,
    /// Registrations that were removed since only the cache still held the memory.
    pub abandoned: u64,
    /// Registrations and buffers that you deregistered explicitly.
    pub invalidations: u64,
}

/// Keeps memory registered while it lives, unless you deregister the memory explicitly.
#[derive(Clone, Debug)]
#[must_use = "the registration may be evicted when this is dropped"]
pub struct Registered {
    region: Region,
    /// The user's memory, held while it is being sent.
    memory: Memory,
    _lease: Arc<()>,
}

impl Registered {
    /// Returns the memory's names.
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the memory, as you gave it to the cache.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// The key of an entry. While the entry holds the memory, the address identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CacheKey {
    address: usize,
    tag: ProtectionTag,
    allows_write: bool,
    allows_read: bool,
}

impl CacheKey {
    /// Returns the lowest key with an address.
    const fn first(address: usize) -> Self {
        Self { address, tag: ProtectionTag(0), allows_write: false, allows_read: false }
    }

    fn new(memory: &Memory, attributes: MemoryAttributes) -> Self {
        let MemoryAttributes { tag, allows_write, allows_read } = attributes;
        Self { address: memory.address(), tag, allows_write, allows_read }
    }

    fn has(&self, attributes: MemoryAttributes) -> bool {
        let MemoryAttributes { tag, allows_write, allows_read } = attributes;
        (self.tag, self.allows_write, self.allows_read) == (tag, allows_write, allows_read)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegistrationKind {
    /// A user's memory, held by the entry and by the alias that the NIC was given.
    Registered,
    /// A buffer of the pool. The NIC holds the memory itself; users and the entry hold an alias of it.
    Buffer,
}

#[derive(Debug)]
struct CacheEntry {
    region: Region,
    /// The memory that users hold. All entries with the same address hold clones of one memory.
    memory: Memory,
    kind: RegistrationKind,
    /// One for the entry, and one for each [`Registered`].
    lease: Arc<()>,
    /// The time of its last use: a count of calls.
    used: u64,
}

impl CacheEntry {
    fn new(region: Region, memory: Memory, kind: RegistrationKind, used: u64) -> Self {
        Self { region, memory, kind, lease: Arc::new(()), used }
    }

    /// Returns how many holders of the memory belong to the cache itself.
    const fn own_holders(&self) -> usize {
        match self.kind {
            RegistrationKind::Registered => 2,
            RegistrationKind::Buffer => 1,
        }
    }

    fn bytes(&self) -> u64 {
        bytes_of(self.memory.len())
    }

    fn lend(&mut self, now: u64) -> Registered {
        self.used = now;
        Registered {
            region: self.region.clone(),
            memory: self.memory.clone(),
            _lease: Arc::clone(&self.lease),
        }
    }
}

/// Registrations kept for the next use, and buffers kept registered. A cache belongs to one NIC: pass the
/// same one to all calls.
///
/// # Cost
/// A hit is a search among the entries, without a call of the NIC. A buffer is searched for among all
/// entries: nanoseconds for each, compared to the 100 µs or more that a new one costs.
#[derive(Debug)]
pub struct RegistrationCache {
    entries: BTreeMap<CacheKey, CacheEntry>,
    bytes: u64,
    bytes_max: u64,
    entries_max: usize,
    clock: u64,
    counters: CacheCounters,
}

impl RegistrationCache {
    /// Makes a cache that keeps at most `bytes_max` bytes in at most `entries_max` registrations, beside
    /// those in use. Zero for either keeps nothing.
    #[must_use]
    pub const fn new(bytes_max: u64, entries_max: usize) -> Self {
        let counters = CacheCounters {
            hits: 0,
            misses: 0,
            reuses: 0,
            allocations: 0,
            evictions: 0,
            abandoned: 0,
            invalidations: 0,
        };
        Self { entries: BTreeMap::new(), bytes: 0, bytes_max, entries_max, clock: 0, counters }
    }

    /// Registers memory, unless it is already registered with these attributes, as a buffer of
    /// [`allocate`](Self::buffer) is.
    ///
    /// # Errors
    /// The NIC's, if it still fails after everything that is not in use was removed.
    pub fn register<P: Provider>(
        &mut self,
        nic: &mut P,
        memory: &Memory,
        attributes: MemoryAttributes,
    ) -> Result<Registered, ViError> {
        self.clock += 1;
        self.make_room(nic, self.bytes_max, self.entries_max);
        let key = CacheKey::new(memory, attributes);
        if let Some(entry) = self.entries.get_mut(&key) {
            self.counters.hits += 1;
            return Ok(entry.lend(self.clock));
        }
        self.counters.misses += 1;
        let register = |nic: &mut P| nic.register(memory.alias(), attributes);
        let region = self.acquire(nic, memory.len(), register)?;
        let mut entry =
            CacheEntry::new(region, memory.clone(), RegistrationKind::Registered, self.clock);
        let registered = entry.lend(self.clock);
        self.insert(key, entry);
        Ok(registered)
    }

    /// Returns a registered buffer of at least `length` bytes, of the kind that peers reach fastest. It
    /// returns to the pool when the last clone is dropped. Its content is zero or left from earlier uses.
    ///
    /// A buffer's size is a power of two; pages that are never touched cost nothing.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn buffer<P: Provider>(
        &mut self,
        nic: &mut P,
        length: usize,
        attributes: MemoryAttributes,
    ) -> Result<Memory, ViError> {
        self.clock += 1;
        self.make_room(nic, self.bytes_max, self.entries_max);
        let capacity = length.max(BUFFER_BYTES_MIN);
        let capacity = capacity.checked_next_power_of_two().unwrap_or(capacity);
        let fits = |(key, entry): &(&CacheKey, &CacheEntry)| {
            entry.kind == RegistrationKind::Buffer
                && entry.memory.len() == capacity
                && key.has(attributes)
                && !self.is_in_use(entry)
        };
        // The most recently used one: its bytes are most likely in a processor's cache.
        let free = self.entries.iter().filter(fits).max_by_key(|(_, entry)| entry.used);
        let free = free.map(|(key, _)| *key);
        if let Some(entry) = free.and_then(|key| self.entries.get_mut(&key)) {
            self.counters.reuses += 1;
            entry.used = self.clock;
            return Ok(entry.memory.clone());
        }
        self.counters.allocations += 1;
        let allocate = |nic: &mut P| nic.allocate(capacity, attributes);
        let region = self.acquire(nic, capacity, allocate)?;
        let memory = region.memory.alias();
        let entry = CacheEntry::new(region, memory.clone(), RegistrationKind::Buffer, self.clock);
        self.insert(CacheKey::new(&memory, attributes), entry);
        Ok(memory)
    }

    /// Deregisters memory at once, whether or not it is in use, so that no lookup finds it any more. Memory
    /// that is not in this cache is deregistered too.
    ///
    /// # Errors
    /// The NIC's.
    pub fn deregister<P: Provider>(
        &mut self,
        nic: &mut P,
        handle: MemoryHandle,
    ) -> Result<(), ViError> {
        let found = self.entries.iter().find(|(_, entry)| entry.region.handle == handle);
        if let Some(key) = found.map(|(key, _)| *key) {
            self.counters.invalidations += 1;
            self.remove(key);
        }
        nic.deregister(handle)
    }

    /// Deregisters memory that only the cache still holds, and entries that exceed the bounds and are no
    /// longer in use. Returns the number of entries removed.
    pub fn sweep<P: Provider>(&mut self, nic: &mut P) -> usize {
        let before = self.entries.len();
        let gone = self.entries.iter().filter(|(_, entry)| self.is_abandoned(entry));
        for key in gone.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.counters.abandoned += 1;
            self.give_up(nic, key);
        }
        self.make_room(nic, self.bytes_max, self.entries_max);
        before - self.entries.len()
    }

    /// Deregisters everything that is not in use. Returns the number of entries removed.
    pub fn clear<P: Provider>(&mut self, nic: &mut P) -> usize {
        let before = self.entries.len();
        self.make_room(nic, 0, 0);
        before - self.entries.len()
    }

    /// Returns the cache's counters.
    #[must_use]
    pub const fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// Returns the number of registrations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no registrations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the handles of all registrations.
    pub fn handles(&self) -> impl Iterator<Item = MemoryHandle> {
        self.entries.values().map(|entry| entry.region.handle)
    }

    /// Returns how many bytes are registered, counting the whole capacity of buffers.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether an entry's memory has holders beside the cache.
    fn has_users(&self, entry: &CacheEntry) -> bool {
        let holders = entry.memory.holder_count();
        let address = entry.memory.address();
        let others = self.entries.range(CacheKey::first(address)..);
        let others = others.take_while(|(key, _)| key.address == address);
        holders > entry.own_holders()
            && holders > others.map(|(_, other)| other.own_holders()).sum::<usize>()
    }

    fn is_in_use(&self, entry: &CacheEntry) -> bool {
        Arc::strong_count(&entry.lease) > 1
            || entry.kind == RegistrationKind::Buffer && self.has_users(entry)
    }

    fn is_abandoned(&self, entry: &CacheEntry) -> bool {
        entry.kind == RegistrationKind::Registered && !self.has_users(entry)
    }

    /// Makes room for `length` bytes and registers them with `act`; if the NIC has no room, tries once more
    /// after removing everything that can be removed.
    fn acquire<P: Provider>(
        &mut self,
        nic: &mut P,
        length: usize,
        act: impl Fn(&mut P) -> Result<Region, ViError>,
    ) -> Result<Region, ViError> {
        self.sweep(nic);
        let bytes = self.bytes_max.saturating_sub(bytes_of(length));
        self.make_room(nic, bytes, self.entries_max.saturating_sub(1));
        match act(nic) {
            Err(ViError::Io(_)) if self.clear(nic) > 0 => act(nic),
            other => other,
        }
    }

    /// Evicts the least recently used entries until the rest is within the bounds or in use.
    fn make_room<P: Provider>(&mut self, nic: &mut P, bytes: u64, count: usize) {
        while self.bytes > bytes || self.entries.len() > count {
            let idle = self.entries.iter().filter(|(_, entry)| !self.is_in_use(entry));
            let Some(key) = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key) else {
                return;
            };
            self.counters.evictions += 1;
            self.give_up(nic, key);
        }
    }

    fn give_up<P: Provider>(&mut self, nic: &mut P, key: CacheKey) {
        if let Some(entry) = self.remove(key) {
            // This fails only if the memory was deregistered behind the cache's back.
            drop(nic.deregister(entry.region.handle));
        }
    }

    fn insert(&mut self, key: CacheKey, entry: CacheEntry) {
        self.bytes += entry.bytes();
        let replaced = self.entries.insert(key, entry);
        debug_assert!(replaced.is_none(), "no other memory has the address of what an entry holds");
    }

    fn remove(&mut self, key: CacheKey) -> Option<CacheEntry> {
        let entry = self.entries.remove(&key)?;
        self.bytes -= entry.bytes();
        Some(entry)
    }
}

fn bytes_of(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
