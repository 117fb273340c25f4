//! Memory that a device or a peer may write at any time.
//!
//! No reference into it is ever made: bytes are copied in and out through raw pointers, after a bounds check, by
//! atomic words (`copy.rs`), so that other threads with the same memory may do the same at the same time. Check bytes
//! after copying them out, since a second read may return something else.

#![expect(unsafe_code, reason = "bytes that others write are reached through raw pointers alone")]

mod copy;

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    fmt,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use thiserror::Error;

#[cfg(feature = "message")]
pub(crate) use self::copy::is_string_copy;
use self::copy::{copy_in, copy_out, prefetch_line_to_write};
use crate::sync::SharedWord;

/// A cache line, in bytes: the unit that processors exchange. Allocations begin at one.
pub const CACHE_LINE: usize = 64;

/// The size of the stack buffer through which copies between two memories go, in bytes.
const PART_BYTES: usize = 512;

/// An access that is not inside the memory, or a word that is not aligned to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{length} bytes at {offset} are not inside {size} bytes of memory, or not aligned")]
#[non_exhaustive]
pub struct OutOfBounds {
    /// The beginning of the access, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The size of the memory in bytes.
    pub size: u64,
}

/// Bytes that a device, the kernel or a peer's process may write at any time. Clones share the memory, which
/// is freed with the last of them.
#[derive(Clone)]
pub struct Memory {
    bytes: Arc<Bytes>,
}

struct Bytes {
    base: NonNull<u8>,
    length: usize,
    is_writable: bool,
    owner: MemoryOwner,
}

enum MemoryOwner {
    Heap(Layout),
    Mapping,
    /// Bytes of another memory, which lives as long as this one.
    Other {
        _memory: Memory,
    },
}

// SAFETY: the bytes are only touched through raw pointers, in ways that allow for concurrent writers; the
// base and the length never change.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Drop for Bytes {
    fn drop(&mut self) {
        match self.owner {
            MemoryOwner::Heap(layout) => {
                // SAFETY: allocated with this layout, and no clone of the memory is left.
                unsafe { dealloc(self.base.as_ptr(), layout) }
            }
            MemoryOwner::Mapping => {
                // SAFETY: the mapping is ours, and no clone of the memory is left.
                let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
                debug_assert!(unmapped.is_ok(), "a mapping of ours");
            }
            MemoryOwner::Other { .. } => {}
        }
    }
}

impl Memory {
    /// Allocates `length` zeroed bytes of this process, at a cache line.
    ///
    /// # Errors
    /// [`std::io::ErrorKind::OutOfMemory`].
    pub fn allocate(length: usize) -> std::io::Result<Self> {
        let out_of_memory = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let layout = Layout::from_size_align(length.max(1), CACHE_LINE);
        // Whole lines, since a copy accesses whole words.
        let layout = layout.map_err(|_| out_of_memory())?.pad_to_align();
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or_else(out_of_memory)?;
        let owner = MemoryOwner::Heap(layout);
        let memory = Self { bytes: Arc::new(Bytes { base, length, is_writable: true, owner }) };
        #[cfg(loom)]
        memory.make_words();
        Ok(memory)
    }

    /// Maps the first `length` bytes of a file, shared with every other process that maps it. The caller must
    /// make sure that the file is not shorter and cannot shrink (`F_SEAL_SHRINK`): touching bytes beyond its
    /// end kills the process.
    ///
    /// # Errors
    /// The kernel's; [`std::io::ErrorKind::InvalidInput`] if `length` is zero.
    pub fn map(file: BorrowedFd<'_>, length: usize, is_writable: bool) -> std::io::Result<Self> {
        if length == 0 {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let protection =
            if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses a free address, so that no mapping of others is replaced.
        let base =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let owner = MemoryOwner::Mapping;
        Ok(Self { bytes: Arc::new(Bytes { base, length, is_writable, owner }) })
    }

    /// Makes each whole word of new memory one of loom's atomics, which lie in the memory itself: all mappings of a file share them.
    #[cfg(loom)]
    pub(crate) fn make_words(&self) {
        const { assert!(size_of::<SharedWord>() == size_of::<u64>(), "loom's words fit") };
        for offset in (0..self.len() / 8 * 8).step_by(8) {
            // SAFETY: inside the allocation, as was just checked.
            let word = unsafe { self.bytes.base.add(offset) }.cast::<SharedWord>();
            // SAFETY: in bounds, aligned as for `word`, and no other thread has the memory yet.
            unsafe { word.write(SharedWord::new(0)) };
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.length
    }

    /// Returns whether the memory is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether `other` is the same memory.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    /// Returns where the memory begins. No other memory begins there while a clone of this one lives.
    pub(crate) fn address(&self) -> usize {
        self.bytes.base.addr().get()
    }

    /// Returns where the memory begins, to be passed to a device.
    #[cfg(vigie_verbs)]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.bytes.base
    }

    /// Returns whether this process may write it.
    #[cfg(vigie_verbs)]
    pub(crate) fn is_writable(&self) -> bool {
        self.bytes.is_writable
    }

    /// Returns an alias of this memory, which holds it and whose holders are counted separately.
    pub(crate) fn alias(&self) -> Self {
        let Bytes { base, length, is_writable, .. } = *self.bytes;
        let owner = MemoryOwner::Other { _memory: self.clone() };
        Self { bytes: Arc::new(Bytes { base, length, is_writable, owner }) }
    }

    /// Returns the number of clones. If that is one, only this holder can make another, and everything that
    /// the others did with the bytes has happened before.
    pub(crate) fn holder_count(&self) -> usize {
        let count = Arc::strong_count(&self.bytes);
        // Pairs with the release with which a clone is dropped: the count alone is read without any order.
        fence(Ordering::Acquire);
        count
    }

    #[inline]
    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, OutOfBounds> {
        let size = self.bytes.length;
        match usize::try_from(offset) {
            Ok(start) if start <= size && length <= size - start => {
                // SAFETY: inside the allocation, as was just checked.
                Ok(unsafe { self.bytes.base.as_ptr().add(start) })
            }
            _ => Err(out_of_bounds(offset, length, size)),
        }
    }

    /// Checks that an access is inside the memory.
    pub(crate) fn check(&self, offset: u64, length: usize) -> Result<(), OutOfBounds> {
        self.at(offset, length).map(drop)
    }

    /// Returns where bytes are, for the kernel to read: make no reference to them.
    pub(crate) fn place(&self, offset: u64, length: usize) -> Result<*const u8, OutOfBounds> {
        self.at(offset, length).map(<*mut u8>::cast_const)
    }

    #[inline]
    fn writable_at(&self, offset: u64, length: usize) -> Result<*mut u8, OutOfBounds> {
        if !self.bytes.is_writable {
            return Err(out_of_bounds(offset, length, 0));
        }
        self.at(offset, length)
    }

    /// Copies bytes out. They may change while they are copied: check the copy.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, bytes.len())?;
        // SAFETY: in bounds, and the whole memory consists of words; `bytes` is exclusively borrowed and thus elsewhere.
        unsafe { copy_out(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes out into a new vector.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read_to_vec(&self, offset: u64, length: usize) -> Result<Vec<u8>, OutOfBounds> {
        let mut bytes = Vec::new();
        self.read_onto(offset, length, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies bytes out to the end of a vector.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read_onto(
        &self,
        offset: u64,
        length: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), OutOfBounds> {
        let from = self.at(offset, length)?;
        bytes.reserve(length);
        let end = bytes.len();
        let to = bytes.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: in bounds, as for `read`; the vector has room for `length` more bytes.
        unsafe { copy_out(from, to, length) };
        // SAFETY: they were just written.
        unsafe { bytes.set_len(end + length) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`OutOfBounds`]; its `size` is zero if the memory is mapped for reading only.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.writable_at(offset, bytes.len())?;
        // SAFETY: in bounds and writable; no reference into this memory exists, so `bytes` is elsewhere.
        unsafe { copy_in(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies bytes in, from another memory or from this one; the two places may overlap.
    ///
    /// # Errors
    /// [`OutOfBounds`], of the memory in which the access does not fit.
    pub fn copy_from(
        &self,
        offset: u64,
        source: &Self,
        source_offset: u64,
        length: usize,
    ) -> Result<(), OutOfBounds> {
        let from = source.at(source_offset, length)?;
        let to = self.writable_at(offset, length)?;
        // In parts, in the direction in which no part overwrites one that is still to be copied.
        let is_backward = from.addr() < to.addr();
        let mut part = [0; PART_BYTES];
        let mut done = 0;
        while done < length {
            let size = PART_BYTES.min(length - done);
            let at = if is_backward { length - done - size } else { done };
            // SAFETY: inside what was checked; the part is ours.
            unsafe { copy_out(from.wrapping_add(at), part.as_mut_ptr(), size) };
            // SAFETY: as above.
            unsafe { copy_in(part.as_ptr(), to.wrapping_add(at), size) };
            done += size;
        }
        Ok(())
    }

    /// Reads a word, in native byte order. Everything written before the word was stored is visible then.
    ///
    /// # Errors
    /// [`OutOfBounds`], also if `offset` is not a multiple of 8.
    #[inline]
    pub fn load(&self, offset: u64) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Writes a word, in native byte order, after everything that was written before.
    ///
    /// # Errors
    /// [`OutOfBounds`], also if `offset` is not a multiple of 8 or the memory is for reading only.
    #[inline]
    pub fn store(&self, offset: u64, value: u64) -> Result<(), OutOfBounds> {
        if !self.bytes.is_writable {
            return Err(out_of_bounds(offset, 8, 0));
        }
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Copies bytes in; an aligned word in one access, as [contract 3](crate::vi::Provider) wants it of RDMA.
    #[inline]
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        match <[u8; 8]>::try_from(bytes) {
            Ok(word) if offset.is_multiple_of(8) => self.store(offset, u64::from_ne_bytes(word)),
            _ => self.write(offset, bytes),
        }
    }

    /// Copies bytes out to the end of a vector; an aligned word in one access.
    pub(crate) fn take_onto(
        &self,
        offset: u64,
        length: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), OutOfBounds> {
        if length == 8 && offset.is_multiple_of(8) {
            bytes.extend_from_slice(&self.load(offset)?.to_ne_bytes());
            return Ok(());
        }
        self.read_onto(offset, length, bytes)
    }

    /// Copies the cache line at `offset` out. It may change while it is copied: check the copy.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn read_line(&self, offset: u64) -> Result<[u8; CACHE_LINE], OutOfBounds> {
        let mut line = [0; CACHE_LINE];
        self.read(offset, &mut line)?;
        Ok(line)
    }

    /// Copies a cache line in, word by word, and writes its first word last, as [`store`](Self::store) does:
    /// a thread that [loads](Self::load) that word's new value finds the rest.
    ///
    /// # Errors
    /// [`OutOfBounds`], also if `offset` is not a multiple of 8 or the memory is for reading only.
    #[inline]
    pub fn write_line(
        &self,
        offset: u64,
        line: &[AtomicU64; CACHE_LINE / 8],
    ) -> Result<(), OutOfBounds> {
        self.store_line(offset, line.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// As [`write_line`](Self::write_line), of words that are in registers.
    #[inline]
    pub(crate) fn store_line(
        &self,
        offset: u64,
        [first, rest @ ..]: [u64; CACHE_LINE / 8],
    ) -> Result<(), OutOfBounds> {
        if !self.bytes.is_writable {
            return Err(out_of_bounds(offset, CACHE_LINE, 0));
        }
        let [place, places @ ..] = self.line(offset)?;
        for (place, word) in places.iter().zip(rest) {
            place.store(word, Ordering::Relaxed);
        }
        place.store(first, Ordering::Release);
        Ok(())
    }

    /// Returns the words of the cache line at `offset`, which may be mapped for reading only.
    ///
    /// # Errors
    /// [`OutOfBounds`], also if `offset` is not a multiple of 8.
    #[inline]
    pub(crate) fn line(&self, offset: u64) -> Result<&[SharedWord; CACHE_LINE / 8], OutOfBounds> {
        let line = self.at(offset, CACHE_LINE)?.cast_const();
        if !offset.is_multiple_of(8) {
            return Err(out_of_bounds(offset, CACHE_LINE, self.bytes.length));
        }
        // SAFETY: in bounds, aligned as for `word`, and alive as long as `self`; atomics allow concurrent writers.
        Ok(unsafe { &*line.cast::<[SharedWord; CACHE_LINE / 8]>() })
    }

    #[inline]
    fn word(&self, offset: u64) -> Result<&SharedWord, OutOfBounds> {
        let word = self.at(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(out_of_bounds(offset, 8, self.bytes.length));
        }
        // SAFETY: in bounds, aligned to 8 since the base is aligned to a cache line or a page, and alive as
        // long as `self`. An atomic allows concurrent writers; a mapping that is for reading only is only
        // loaded from.
        Ok(unsafe { &*word.cast::<SharedWord>() })
    }

    /// Prefetches the cache lines of `length` bytes from `offset` on for reading. Does nothing if they are not inside the memory.
    #[inline]
    pub fn prefetch(&self, offset: u64, length: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Ok(start) = self.at(offset, length) {
            let end = start.wrapping_add(length);
            let mut line = start.wrapping_sub(start.addr() % CACHE_LINE);
            while line < end {
                // SAFETY: a hint that has no effect on memory; the address is in bounds, since the memory begins at a line.
                unsafe {
                    std::arch::x86_64::_mm_prefetch(line.cast(), std::arch::x86_64::_MM_HINT_T0);
                }
                line = line.wrapping_add(CACHE_LINE);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, length);
    }

    /// Prefetches the cache lines of `length` bytes from `offset` on for writing: the processor that last
    /// read them gives them up before they are needed. Does nothing if they are not inside the memory.
    ///
    /// # Cost
    /// The lines arrive while the caller continues; with more than some sixteen under way, it waits.
    #[inline]
    pub fn prefetch_to_write(&self, offset: u64, length: usize) {
        if let Ok(start) = self.writable_at(offset, length) {
            for line in (0..length).step_by(CACHE_LINE) {
                prefetch_line_to_write(start.wrapping_add(line));
            }
        }
    }
}

#[cold]
fn out_of_bounds(offset: u64, length: usize, size: usize) -> OutOfBounds {
    let wide = |count| u64::try_from(count).unwrap_or(u64::MAX);
    OutOfBounds { offset, length: wide(length), size: wide(size) }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("length", &self.bytes.length)
            .field("is_writable", &self.bytes.is_writable)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing outside is touched, at either end and for lengths that wrap around. Method: accesses
    /// around the bounds.
    #[test]
    fn bounds_are_kept() {
        let memory = Memory::allocate(100).expect("memory");
        memory.write(90, &[7; 10]).expect("inside");
        assert_eq!(
            memory.read_to_vec(88, 12).expect("inside"),
            [0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
        );
        for (offset, length) in [(91, 10), (100, 1), (u64::MAX, 1), (u64::MAX - 4, 10), (0, 101)] {
            let found = memory.read(offset, &mut vec![0; length]).expect_err("outside");
            assert_eq!((found.offset, found.size), (offset, 100));
            assert!(memory.write(offset, &vec![0; length]).is_err(), "{offset} {length}");
        }
        memory.read(100, &mut []).expect("nothing at the end");
        for (offset, length) in [(0, 100), (90, 11), (u64::MAX, 64), (0, usize::MAX)] {
            memory.prefetch_to_write(offset, length);
        }
        assert_eq!(memory.read_to_vec(90, 10).expect("inside"), [7; 10], "hints change nothing");
        assert!(memory.load(96).is_err(), "half of the word is outside");
        assert!(memory.load(4).is_err(), "not aligned");
        memory.store(8, 1 << 63).expect("inside");
        assert_eq!(memory.load(8).expect("inside"), 1 << 63);
    }

    /// Goal: overlapping copies are exact. Method: shift a pattern by one byte and by nine, up and down.
    #[test]
    fn a_copy_may_overlap() {
        for (from, to) in [(0, 1), (1, 0), (0, 9), (9, 0)] {
            let memory = Memory::allocate(2000).expect("memory");
            let pattern: Vec<u8> = (0..=250).cycle().take(1500).collect();
            memory.write(from, &pattern).expect("inside");
            memory.copy_from(to, &memory, from, 1500).expect("inside");
            assert_eq!(memory.read_to_vec(to, 1500).expect("inside"), pattern);
        }
    }

    /// Goal: safe code cannot race: threads with the same memory read, write and copy the same bytes at the same time.
    /// Method: all of it, for Miri, which detects races (`cargo +nightly miri test -p vigie-via --lib memory`).
    #[test]
    fn threads_may_access_the_same_bytes() {
        let memory = Memory::allocate(100).expect("memory");
        let threads = [1, 2, 3].map(|number| {
            let memory = memory.clone();
            std::thread::spawn(move || {
                for offset in [0, 3, 8, 16] {
                    memory.write(offset, &[number; 21]).expect("inside");
                    memory.read(offset + 2, &mut [0; 30]).expect("inside");
                    memory.copy_from(offset, &memory, 40, 24).expect("inside");
                    memory.store(8, u64::from(number)).expect("inside");
                    memory.load(8).expect("inside");
                    memory.read_line(offset).expect("inside");
                    let line = [const { AtomicU64::new(7) }; CACHE_LINE / 8];
                    memory.write_line(16, &line).expect("inside");
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(
            memory.read_to_vec(16, 64).expect("inside"),
            [[7, 0, 0, 0, 0, 0, 0, 0]; 8].concat()
        );
    }
}
