//! A cache of registrations, and a pool of registered buffers.
//!
//! To register memory is dear where a device has to pin its pages, and so is to allocate memory that peers
//! can map (a file, a mapping, a message to each peer, and a page fault for each page on both sides). Whoever
//! sends from the same memory again and again should pay for that once.
//!
//! # The classic trap
//! Caches of registrations that know memory by its address alone are wrong as soon as the memory is freed
//! and the address given to something else: the cached registration still names the old pages. They have to
//! spy on `free` and `munmap`, and miss some. Here that cannot happen: what is registered is an owned
//! [`Memory`], and an entry *holds* it. While there is an entry, its address belongs to this memory and to
//! nothing else; a lookup that finds the address has found the memory.
//!
//! # When an entry goes
//! An entry must not keep memory for ever that everybody else has forgotten, so holders are counted: the NIC
//! is given an alias, which holds the user's memory and is counted apart. If nobody but the alias and the
//! entry hold it, the last user has gone.
//!
//! | how | what goes | counted as |
//! | --- | --- | --- |
//! | the last user has gone | registered memory, at the next [`sweep`](RegistrationCache::sweep) or miss | `abandoned` |
//! | there is no room | the entry that was used least recently, of those that nobody uses | `evictions` |
//! | [`deregister`](RegistrationCache::deregister) | the entry that was named | `invalidations` |
//!
//! *In use* is registered memory while a [`Registered`] of it lives, and a buffer while anybody holds it.
//! What is in use is never evicted, so whenever something is asked for there is at most what is in use, or the
//! bounds if that is more.

use std::{collections::BTreeMap, sync::Arc};

use super::{Memory, MemoryAttributes, MemoryHandle, ProtectionTag, Provider, Region, ViError};

/// The smallest buffer, in bytes: a page.
const BUFFER_BYTES_MIN: usize = 4096;

/// What a cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheCounters {
    /// Memory that was registered already when it was asked for.
    pub hits: u64,
    /// Memory that had to be registered.
    pub misses: u64,
    /// Buffers that were there already when one was asked for.
    pub reuses: u64,
    /// Buffers that had to be allocated.
    pub allocations: u64,
    /// Registrations and buffers that were given up for others.
    pub evictions: u64,
    /// Registrations that were given up since nobody else held the memory any more.
    pub abandoned: u64,
    /// Registrations and buffers that were deregistered explicitly.
    pub invalidations: u64,
}

/// Memory that stays registered while this lives, as long as nobody deregisters it explicitly.
#[derive(Clone, Debug)]
#[must_use = "the registration may be evicted when this is dropped"]
pub struct Registered {
    region: Region,
    /// The user's: whoever sends it holds it.
    memory: Memory,
    _lease: Arc<()>,
}

impl Registered {
    /// Returns the names of the memory.
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the memory, as it was given to the cache.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// By what an entry is found. The address is the memory's identity while the entry holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    address: usize,
    tag: ProtectionTag,
    allows_write: bool,
    allows_read: bool,
}

impl Key {
    /// Returns the least key of an address.
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
enum Kind {
    /// A user's memory. The entry holds it, and so does the alias that the NIC was given.
    Registered,
    /// A buffer of the pool. The NIC has the memory itself, and users an alias, which the entry holds.
    Buffer,
}

#[derive(Debug)]
struct Entry {
    region: Region,
    /// What users have. All entries with its address have clones of one.
    memory: Memory,
    kind: Kind,
    /// One for the entry, and one for each [`Registered`].
    lease: Arc<()>,
    /// When it was used last: a count of calls.
    used: u64,
}

impl Entry {
    fn new(region: Region, memory: Memory, kind: Kind, used: u64) -> Self {
        Self { region, memory, kind, lease: Arc::new(()), used }
    }

    /// Returns how many holders of the memory are the cache's own.
    const fn own_holders(&self) -> usize {
        match self.kind {
            Kind::Registered => 2,
            Kind::Buffer => 1,
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

/// Registrations that are kept for the next use, and buffers that are kept registered. One cache belongs to
/// one NIC: all calls are to name the same.
///
/// # Cost
/// A hit is a search among the entries, without a call of the NIC. A buffer is searched for among all
/// entries: nanoseconds for each, beside the 100 µs or more that a new one costs.
#[derive(Debug)]
pub struct RegistrationCache {
    entries: BTreeMap<Key, Entry>,
    bytes: u64,
    bytes_max: u64,
    entries_max: usize,
    clock: u64,
    counters: CacheCounters,
}

impl RegistrationCache {
    /// Makes a cache that keeps at most `bytes_max` bytes in at most `entries_max` registrations, beside what
    /// is in use. Zero of either keeps nothing.
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

    /// Registers memory, unless it is registered with these attributes already. A buffer of
    /// [`allocate`](Self::allocate) is.
    ///
    /// # Errors
    /// The NIC's, once everything that is not in use was given up in vain.
    pub fn register<P: Provider>(
        &mut self,
        nic: &mut P,
        memory: &Memory,
        attributes: MemoryAttributes,
    ) -> Result<Registered, ViError> {
        self.clock += 1;
        self.make_room(nic, self.bytes_max, self.entries_max);
        let key = Key::new(memory, attributes);
        if let Some(entry) = self.entries.get_mut(&key) {
            self.counters.hits += 1;
            return Ok(entry.lend(self.clock));
        }
        self.counters.misses += 1;
        let register = |nic: &mut P| nic.register(memory.alias(), attributes);
        let region = self.acquire(nic, memory.len(), register)?;
        let mut entry = Entry::new(region, memory.clone(), Kind::Registered, self.clock);
        let registered = entry.lend(self.clock);
        self.insert(key, entry);
        Ok(registered)
    }

    /// Returns a registered buffer of at least `length` bytes, of the kind that peers reach fastest. It goes
    /// back to the pool when the last clone is dropped. What it contains is zero or of earlier uses.
    ///
    /// Buffers have a power of two of bytes, of which pages that nobody touches cost nothing.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn allocate<P: Provider>(
        &mut self,
        nic: &mut P,
        length: usize,
        attributes: MemoryAttributes,
    ) -> Result<Memory, ViError> {
        self.clock += 1;
        self.make_room(nic, self.bytes_max, self.entries_max);
        let capacity = length.max(BUFFER_BYTES_MIN);
        let capacity = capacity.checked_next_power_of_two().unwrap_or(capacity);
        let fits = |(key, entry): &(&Key, &Entry)| {
            entry.kind == Kind::Buffer
                && entry.memory.len() == capacity
                && key.has(attributes)
                && !self.is_in_use(entry)
        };
        // The one whose bytes are most likely in a processor's cache.
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
        let entry = Entry::new(region, memory.clone(), Kind::Buffer, self.clock);
        self.insert(Key::new(&memory, attributes), entry);
        Ok(memory)
    }

    /// Takes a registration back at once, whether or not it is in use, so that no lookup finds it any more.
    /// Memory that is not of this cache is deregistered too.
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

    /// Deregisters memory that nobody else holds any more, and what is beyond the bounds and not in use any
    /// more. Returns how many entries went.
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

    /// Deregisters everything that is not in use. Returns how many entries went.
    pub fn clear<P: Provider>(&mut self, nic: &mut P) -> usize {
        let before = self.entries.len();
        self.make_room(nic, 0, 0);
        before - self.entries.len()
    }

    /// Returns what was done so far.
    #[must_use]
    pub const fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// Returns how many registrations there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the names of what is registered.
    pub fn handles(&self) -> impl Iterator<Item = MemoryHandle> {
        self.entries.values().map(|entry| entry.region.handle)
    }

    /// Returns how many bytes are registered; of a buffer, all that it can hold.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether anybody but the cache holds an entry's memory.
    fn has_users(&self, entry: &Entry) -> bool {
        let holders = entry.memory.holder_count();
        let address = entry.memory.address();
        let others = self.entries.range(Key::first(address)..);
        let others = others.take_while(|(key, _)| key.address == address);
        holders > entry.own_holders()
            && holders > others.map(|(_, other)| other.own_holders()).sum::<usize>()
    }

    fn is_in_use(&self, entry: &Entry) -> bool {
        Arc::strong_count(&entry.lease) > 1 || entry.kind == Kind::Buffer && self.has_users(entry)
    }

    fn is_abandoned(&self, entry: &Entry) -> bool {
        entry.kind == Kind::Registered && !self.has_users(entry)
    }

    /// Makes room for `length` bytes and registers them by `act`; if the NIC has no room, once more when
    /// everything is given up that can be.
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

    /// Evicts what was used least recently until the rest is within the bounds, or in use.
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

    fn give_up<P: Provider>(&mut self, nic: &mut P, key: Key) {
        if let Some(entry) = self.remove(key) {
            // It is unknown only if somebody has deregistered it behind the cache's back.
            drop(nic.deregister(entry.region.handle));
        }
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        self.bytes += entry.bytes();
        let replaced = self.entries.insert(key, entry);
        debug_assert!(replaced.is_none(), "what an entry holds is nobody else's address");
    }

    fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.bytes -= entry.bytes();
        Some(entry)
    }
}

fn bytes_of(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
