//! The registration cache against a model of it, on a NIC that reports what is registered.

use proptest::{collection::vec, prelude::*, test_runner::TestCaseError};
use vigie_via::{
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{
        Memory, MemoryAttributes, MemoryHandle, ProtectionTag, Provider, Registered,
        RegistrationCache,
    },
};

const BYTES_MAX: u64 = 40_000;
const ENTRIES_MAX: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// Makes user memory of this many bytes.
    Make(usize),
    /// Takes a pool buffer for this many bytes.
    Allocate(usize),
    /// Registers one of the existing memories, under one of two attributes, and keeps the registration or not.
    Register {
        index: usize,
        is_writable: bool,
        is_kept: bool,
    },
    /// Drops one of the memories.
    Forget(usize),
    /// Drops one of the kept registrations.
    Release(usize),
    /// Deregisters a kept registration explicitly.
    Deregister(usize),
    Sweep,
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = 0_usize..8;
    let register = (index.clone(), any::<bool>(), any::<bool>());
    let step = prop_oneof![
        3 => (1_usize..12_000).prop_map(Step::Make),
        3 => (1_usize..20_000).prop_map(Step::Allocate),
        8 => register.prop_map(|(index, is_writable, is_kept)| Step::Register {
            index, is_writable, is_kept
        }),
        4 => index.clone().prop_map(Step::Forget),
        3 => index.clone().prop_map(Step::Release),
        1 => index.prop_map(Step::Deregister),
        1 => Just(Step::Sweep),
        1 => Just(Step::Clear),
    ];
    vec(step, 1..80)
}

/// The expected state of the cache.
#[derive(Clone, Debug)]
struct Entry {
    memory: u32,
    is_writable: bool,
    is_buffer: bool,
    bytes: u64,
    used: u64,
    handle: Option<MemoryHandle>,
    /// Distinguishes several registrations of the same memory.
    number: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    hits: u64,
    misses: u64,
    reuses: u64,
    allocations: u64,
    evictions: u64,
    abandoned: u64,
    invalidations: u64,
}

struct Kept {
    registered: Registered,
    memory: u32,
    entry: u64,
}

struct Run {
    nic: SimNic,
    tag: ProtectionTag,
    cache: RegistrationCache,
    memories: Vec<(u32, Memory)>,
    kept: Vec<Kept>,
    entries: Vec<Entry>,
    counts: Counts,
    made: u32,
    clock: u64,
    registrations: u32,
}

impl Run {
    fn new() -> Self {
        let network = SimNetwork::new(0, FaultPlan::reliable());
        let mut nic = network.nic();
        let tag = nic.create_tag();
        Self {
            nic,
            tag,
            cache: RegistrationCache::new(BYTES_MAX, ENTRIES_MAX),
            memories: Vec::new(),
            kept: Vec::new(),
            entries: Vec::new(),
            counts: Counts::default(),
            made: 0,
            clock: 0,
            registrations: 0,
        }
    }

    fn attributes(&self, is_writable: bool) -> MemoryAttributes {
        MemoryAttributes { tag: self.tag, allows_write: is_writable, allows_read: true }
    }

    fn has_users(&self, memory: u32) -> bool {
        self.memories.iter().any(|(id, _)| *id == memory)
            || self.kept.iter().any(|kept| kept.memory == memory)
    }

    fn is_in_use(&self, entry: &Entry) -> bool {
        self.kept.iter().any(|kept| kept.entry == entry.number)
            || entry.is_buffer && self.has_users(entry.memory)
    }

    fn make_room(&mut self, bytes: u64, count: usize) {
        loop {
            let total: u64 = self.entries.iter().map(|entry| entry.bytes).sum();
            let idle = self.entries.iter().filter(|entry| !self.is_in_use(entry));
            let Some(least) = idle.map(|entry| entry.used).min() else { return };
            if total <= bytes && self.entries.len() <= count {
                return;
            }
            self.entries.retain(|entry| entry.used != least);
            self.counts.evictions += 1;
        }
    }

    fn sweep(&mut self) {
        let gone = |entry: &Entry| !entry.is_buffer && !self.has_users(entry.memory);
        let (gone, rest) = self.entries.clone().into_iter().partition::<Vec<_>, _>(gone);
        self.counts.abandoned += gone.len() as u64;
        self.entries = rest;
        self.make_room(BYTES_MAX, ENTRIES_MAX);
    }

    fn acquire(&mut self, entry: Entry) {
        self.sweep();
        self.make_room(BYTES_MAX.saturating_sub(entry.bytes), ENTRIES_MAX - 1);
        self.entries.push(entry);
        self.registrations += 1;
    }

    fn allocate(&mut self, length: usize) {
        self.clock += 1;
        self.make_room(BYTES_MAX, ENTRIES_MAX);
        let attributes = self.attributes(false);
        let memory = self.cache.buffer(&mut self.nic, length, attributes).expect("memory");
        assert!(memory.len() >= length);
        let bytes = memory.len() as u64;
        let free = self
            .entries
            .iter()
            .filter(|entry| entry.is_buffer && entry.bytes == bytes && !self.is_in_use(entry));
        if let Some(used) = free.map(|entry| entry.used).max() {
            self.counts.reuses += 1;
            let entry = self.entries.iter_mut().find(|entry| entry.used == used);
            let entry = entry.expect("just found");
            entry.used = self.clock;
            self.memories.push((entry.memory, memory));
            return;
        }
        self.counts.allocations += 1;
        self.made += 1;
        self.acquire(Entry {
            memory: self.made,
            is_writable: false,
            is_buffer: true,
            bytes,
            used: self.clock,
            handle: None,
            number: self.clock,
        });
        self.memories.push((self.made, memory));
    }

    fn register(&mut self, index: usize, is_writable: bool, is_kept: bool) {
        let Some((id, memory)) = self.memories.get(index).cloned() else { return };
        self.clock += 1;
        self.make_room(BYTES_MAX, ENTRIES_MAX);
        let attributes = self.attributes(is_writable);
        let registered = self.cache.register(&mut self.nic, &memory, attributes).expect("it does");
        assert!(registered.memory().is_same(&memory));
        let found = self
            .entries
            .iter_mut()
            .find(|entry| (entry.memory, entry.is_writable) == (id, is_writable));
        let number = if let Some(entry) = found {
            self.counts.hits += 1;
            entry.used = self.clock;
            let handle = registered.region().handle;
            assert_eq!(*entry.handle.get_or_insert(handle), handle, "another registration");
            entry.number
        } else {
            self.counts.misses += 1;
            self.acquire(Entry {
                memory: id,
                is_writable,
                is_buffer: false,
                bytes: memory.len() as u64,
                used: self.clock,
                handle: Some(registered.region().handle),
                number: self.clock,
            });
            self.clock
        };
        if is_kept {
            self.kept.push(Kept { registered, memory: id, entry: number });
        }
    }

    fn deregister(&mut self, index: usize) {
        let Some(kept) = self.kept.get(index) else { return };
        let (handle, number) = (kept.registered.region().handle, kept.entry);
        let was_there = self.entries.iter().any(|entry| entry.number == number);
        let result = self.cache.deregister(&mut self.nic, handle);
        assert_eq!(
            result.is_ok(),
            was_there,
            "what is kept is registered, unless it was taken back"
        );
        self.entries.retain(|entry| entry.number != number);
        self.counts.invalidations += u64::from(was_there);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Make(length) => {
                self.made += 1;
                self.memories.push((self.made, Memory::allocate(length).expect("memory")));
            }
            Step::Allocate(length) => self.allocate(length),
            Step::Register { index, is_writable, is_kept } => {
                self.register(index, is_writable, is_kept);
            }
            Step::Forget(index) if index < self.memories.len() => {
                self.memories.remove(index);
            }
            Step::Release(index) if index < self.kept.len() => {
                self.kept.remove(index);
            }
            Step::Forget(_) | Step::Release(_) => {}
            Step::Deregister(index) => self.deregister(index),
            Step::Sweep => {
                self.cache.sweep(&mut self.nic);
                self.sweep();
                let is_within = self.cache.len() <= ENTRIES_MAX && self.cache.bytes() <= BYTES_MAX;
                let are_used = self.entries.iter().all(|entry| self.is_in_use(entry));
                assert!(is_within || are_used, "{:?}", self.cache);
            }
            Step::Clear => {
                self.cache.clear(&mut self.nic);
                self.make_room(0, 0);
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let found = self.cache.counters();
        let found = Counts {
            hits: found.hits,
            misses: found.misses,
            reuses: found.reuses,
            allocations: found.allocations,
            evictions: found.evictions,
            abandoned: found.abandoned,
            invalidations: found.invalidations,
        };
        prop_assert_eq!(&found, &self.counts);
        prop_assert_eq!(self.cache.len(), self.entries.len());
        let bytes: u64 = self.entries.iter().map(|entry| entry.bytes).sum();
        prop_assert_eq!(self.cache.bytes(), bytes);
        Ok(())
    }
}

proptest! {
    /// Goal: the cache finds exactly what it should, never evicts registrations in use, respects its
    /// bounds, counts correctly, and leaves nothing registered that it has evicted. Method: random steps
    /// against a model that identifies memory by its number, not its address; at the end ask the NIC for
    /// every handle.
    #[test]
    fn the_cache_does_what_its_model_does(steps in steps()) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
            run.check()?;
        }
        for kept in &run.kept {
            let is_there = run.entries.iter().any(|entry| entry.number == kept.entry);
            let handle = kept.registered.region().handle;
            let known = run.nic.deregister(handle).is_ok();
            if is_there {
                run.entries.retain(|entry| entry.number != kept.entry);
            }
            // A second one of the same entry was already removed with it.
            prop_assert!(known == is_there, "{:?}", handle);
        }
        let handles = (0..=2 * run.registrations).map(MemoryHandle);
        let left = handles.filter(|handle| run.nic.deregister(*handle).is_ok()).count();
        prop_assert_eq!(left, run.entries.len(), "unknown registrations");
    }
}

/// Goal: memory that was freed and reallocated at the same address is never taken for the old one.
/// Method: free and allocate memory of one size repeatedly, registering each; most get an address that
/// was used before.
#[test]
fn an_address_is_no_identity() {
    let network = SimNetwork::new(0, FaultPlan::reliable());
    let mut nic = network.nic();
    let attributes = MemoryAttributes::private(nic.create_tag());
    let mut cache = RegistrationCache::new(1 << 20, 8);
    let mut handles = Vec::new();
    for round in 0..100_u8 {
        let memory = Memory::allocate(4096).expect("memory");
        memory.write(0, &[round]).expect("inside");
        let registered = cache.register(&mut nic, &memory, attributes).expect("registers");
        let found = registered.region().memory.read_to_vec(0, 1).expect("inside");
        assert_eq!(found, [round], "the registration of another memory");
        handles.push(registered.region().handle);
    }
    handles.dedup();
    assert_eq!(handles.len(), 100, "each was registered for itself");
    let counters = cache.counters();
    assert_eq!((counters.misses, counters.hits, counters.evictions), (100, 0, 0));
    assert!(counters.abandoned >= 99, "memory that only the cache holds is not kept");
}
