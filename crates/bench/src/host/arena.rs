//! Memory that the ranks of a run share.
//!
//! Its ranks are processes of one program, started by one parent, so they trust each other: do not
//! take this as a model for a provider's treatment of peers' memory. Still, no reference to plain data
//! in it is made, since another process may write at any time: words are atomic, bytes are copied
//! through pointers.
//!
//! - **arena-1**: `base` is a mapping of `bytes` bytes, readable and writable, which lives as long as
//!   the arena, and its file is never shortened.
//! - **arena-2**: [`Arena::at`] gives pointers to spans within it only.
#![expect(unsafe_code, reason = "shared memory has no safe interface")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::Failure;

/// Bytes at the beginning, in which each rank leaves a word for the others.
pub(crate) const CONTROL_BYTES: usize = 4096;

/// Bytes of shared memory that a parent has made, and by which path its children find it.
#[derive(Debug)]
pub(crate) struct SharedFile {
    file: OwnedFd,
}

impl SharedFile {
    pub(crate) fn create(bytes: usize) -> Result<Self, Failure> {
        let doing = "making shared memory";
        let file = memfd_create("vigie-bench", MemfdFlags::CLOEXEC)
            .map_err(|error| Failure::io(doing)(error.into()))?;
        ftruncate(&file, bytes as u64).map_err(|error| Failure::io(doing)(error.into()))?;
        Ok(Self { file })
    }

    /// The path under which processes of this user can open it while this process has it.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd()).into()
    }
}

/// The shared memory, mapped.
#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

impl Arena {
    /// Maps the memory at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let doing = || format!("mapping {}", path.display());
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(Failure::io(doing()))?;
        let length = file.metadata().map_err(Failure::io(doing()))?.len();
        let bytes = usize::try_from(length).map_err(Failure::runtime)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a null hint lets the kernel choose a place where nothing of ours is.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, &file, 0) };
        let base = base.map_err(|error| Failure::io(doing())(error.into()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Failure::runtime("mapped at null"))?;
        Ok(Self { base, bytes })
    }

    /// A pointer to `length` bytes at `offset`.
    ///
    /// # Panics
    /// Panics if they are not within the arena.
    #[inline]
    fn at(&self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(
            offset <= self.bytes && length <= self.bytes - offset,
            "{length} bytes at {offset} of {}",
            self.bytes
        );
        // SAFETY: the offset is within the mapping (arena-1), as was just checked.
        unsafe { self.base.add(offset) }
    }

    /// The word at `offset`, which is a multiple of 8.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "word at {offset}");
        let word = self.at(offset, 8).cast();
        // SAFETY: eight bytes within the mapping (arena-2), aligned since a mapping begins at a page;
        // they live as long as `self` (arena-1), and all processes treat them as atomic.
        unsafe { word.as_ref() }
    }

    /// The half word at `offset`, which is a multiple of 4.
    #[inline]
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "half word at {offset}");
        let word = self.at(offset, 4).cast();
        // SAFETY: as in `word`.
        unsafe { word.as_ref() }
    }

    /// Copies `data` to `offset`.
    #[inline]
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: the span is within the mapping (arena-2), which no Rust reference covers. The
        // protocols have one writer of a span at a time: it wrote a sequence that readers wait for
        // after this, or read the counter by which they gave it back.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), to.as_ptr(), data.len()) };
    }

    /// Copies from `offset` to `data`.
    #[inline]
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) {
        let from = self.at(offset, data.len());
        // SAFETY: as in `write`; the reader has seen the sequence that the writer published.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), data.as_mut_ptr(), data.len()) };
    }

    /// Leaves a word that is not 0 for the others.
    pub(crate) fn post(&self, rank: u32, word: u64) {
        self.posted_word(rank).store(word, Ordering::Release);
    }

    /// The word that a rank has left; 0: none yet.
    pub(crate) fn posted(&self, rank: u32) -> u64 {
        self.posted_word(rank).load(Ordering::Acquire)
    }

    fn posted_word(&self, rank: u32) -> &AtomicU64 {
        let places = CONTROL_BYTES / 8;
        self.word(usize::try_from(rank).map_or(0, |rank| rank % places) * 8)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own (arena-1), and all borrows of `self` have ended.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        // Goal: two mappings of a file are the same memory, up to its last byte. Method: both ways.
        let file = SharedFile::create(CONTROL_BYTES + 64).unwrap();
        let [one, other] = [Arena::open(&file.path()).unwrap(), Arena::open(&file.path()).unwrap()];
        one.write(CONTROL_BYTES + 60, &[1, 2, 3, 4]);
        let mut data = [0; 4];
        other.read(CONTROL_BYTES + 60, &mut data);
        assert_eq!(data, [1, 2, 3, 4]);
        other.post(3, 77);
        assert_eq!((one.posted(3), one.posted(2)), (77, 0));
    }

    #[test]
    #[should_panic(expected = "bytes at")]
    fn nothing_is_written_beyond_the_end() {
        // Goal: a span that leaves the mapping is refused. Method: one byte too many.
        let file = SharedFile::create(4096).unwrap();
        Arena::open(&file.path()).unwrap().write(4090, &[0; 7]);
    }
}
