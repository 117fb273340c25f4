//! Provided buffers: see the invariants of the [module](super).

use std::{
    alloc::{self, Layout},
    fmt, io, mem,
    ops::Deref,
    ptr::NonNull,
    slice,
};

use io_uring::types::BufRingEntry;

use crate::{
    detector::Notifier,
    fork::ForkGeneration,
    sync::{Arc, AtomicU16, Mutex, Ordering, lock},
};

/// The provided buffers and the ring in which they are offered to the kernel.
pub(crate) struct BufferPool {
    offers: Pages,
    memory: Pages,
    /// A power of two.
    count: u16,
    size_bytes: u32,
    state: Mutex<PoolState>,
    generation: ForkGeneration,
}

struct PoolState {
    tail: u16,
    lent_count: usize,
    /// A receive waits for a buffer: notified when one is returned.
    is_awaited: bool,
    notifier: Option<Notifier>,
}

impl BufferPool {
    pub(super) fn new(count: u16, size_bytes: u32) -> io::Result<Self> {
        assert!(count.is_power_of_two() && size_bytes > 0, "invariant: the builder has rounded");
        let offers = Pages::new(usize::from(count) * size_of::<BufRingEntry>())?;
        let memory = Pages::new(usize::from(count) * size_bytes as usize)?;
        let state = PoolState { tail: 0, lent_count: 0, is_awaited: false, notifier: None };
        let (state, generation) = (Mutex::new(state), ForkGeneration::current());
        let pool = Self { offers, memory, count, size_bytes, state, generation };
        for id in 0..count {
            pool.offer(&mut lock(&pool.state), id);
        }
        Ok(pool)
    }

    pub(crate) fn set_notifier(&self, notifier: Option<Notifier>) {
        lock(&self.state).notifier = notifier;
    }

    pub(crate) fn lent_count(&self) -> usize {
        lock(&self.state).lent_count
    }

    /// Returns whether the kernel has a buffer to receive into; if not, the notifier will be called.
    pub(crate) fn has_offers(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_awaited = state.lent_count >= usize::from(self.count);
        !state.is_awaited
    }

    /// Returns the address at which the kernel finds the offers.
    pub(super) fn offers_address(&self) -> u64 {
        self.offers.address()
    }

    /// Takes the buffer named by a completion, with `length` bytes in it.
    ///
    /// # Safety
    /// The completion has just been read, and only once (uring-3).
    pub(super) unsafe fn lend(self: &Arc<Self>, id: u16, length: usize) -> ProvidedBuffer {
        assert!(id < self.count, "invariant: the kernel was offered no other buffer");
        assert!(
            length <= self.size_bytes as usize,
            "invariant: the kernel knows the buffers' size"
        );
        lock(&self.state).lent_count += 1;
        ProvidedBuffer { pool: Arc::clone(self), id, length }
    }

    fn give_back(&self, id: u16) {
        if self.generation.is_inherited() {
            // The kernel knows the parent's pages, and another thread may have held the lock.
            return;
        }
        let notifier = {
            let mut state = lock(&self.state);
            self.offer(&mut state, id);
            state.lent_count -= 1;
            if mem::take(&mut state.is_awaited) { state.notifier.clone() } else { None }
        };
        if let Some(notifier) = notifier {
            notifier.notify();
        }
    }

    fn offer(&self, state: &mut PoolState, id: u16) {
        let first = self.offers.base.cast::<BufRingEntry>().as_ptr();
        let slot = usize::from(state.tail & (self.count - 1));
        // SAFETY: the pages hold `count` entries.
        let entry = unsafe { first.add(slot) };
        // SAFETY: uring-4: no other thread writes to this entry, nor reads what is set in it.
        let entry = unsafe { &mut *entry };
        let offset = usize::from(id) * self.size_bytes as usize;
        entry.set_addr(self.memory.address() + offset as u64);
        entry.set_len(self.size_bytes);
        entry.set_bid(id);
        state.tail = state.tail.wrapping_add(1);
        // SAFETY: `first` is the address of the first entry.
        let tail = unsafe { BufRingEntry::tail(first) };
        // SAFETY: the tail is aligned, inside the pages, and accessed only by atomic operations, on
        // both sides.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        // Release: the kernel's acquire of the tail sees the entry.
        tail.store(state.tail, Ordering::Release);
    }
}

/// Received bytes, in a buffer that the kernel has filled. Dropping it, on any thread, returns the
/// buffer so that it can be received into again.
#[must_use = "a buffer that is dropped is given back with what was received in it"]
pub struct ProvidedBuffer {
    pool: Arc<BufferPool>,
    id: u16,
    length: usize,
}

impl Deref for ProvidedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let offset = usize::from(self.id) * self.pool.size_bytes as usize;
        // SAFETY: `lend` has checked that the buffer lies inside the pages.
        let start = unsafe { self.pool.memory.base.add(offset) };
        // SAFETY: uring-3: the buffer is ours until we give it back, so that it is not written to;
        // it was zeroed at first, and lives as long as the pool, of which we hold a share.
        unsafe { slice::from_raw_parts(start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for ProvidedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for ProvidedBuffer {
    fn drop(&mut self) {
        self.pool.give_back(self.id);
    }
}

impl fmt::Debug for ProvidedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProvidedBuffer")
            .field("id", &self.id)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// Zeroed memory, aligned to every page size that Linux has.
struct Pages {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is not tied to a thread; uring-3 and uring-4 say which side may access which
// part, and when.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

const PAGE_BYTES: usize = 1 << 16;

impl Pages {
    fn new(size_bytes: usize) -> io::Result<Self> {
        assert!(size_bytes > 0, "invariant: no pool is empty");
        let layout = Layout::from_size_align(size_bytes, PAGE_BYTES).map_err(io::Error::other)?;
        // SAFETY: the size is not zero.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, layout })
    }

    /// The address for the kernel, which may write through it from now on.
    fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the kernel has forgotten it (uring-2), and every
        // borrower of it holds a share of the pool.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}
