//! The memory that the members share: atomic words only.
//!
//! ```text
//!  0     Central    arrivals, sleepers, futex word              64 bytes
//!  64    Slot 0     entered, is_asleep                          64 bytes for each member
//!  128   Slot 1     …
//! ```
//!
//! It is an anonymous file that can neither shrink nor grow, so no name can be left behind and no page can vanish.
//! Peers may write anything at any time: every value of a word is valid, and none is used as an index or a length. A
//! hostile member can do no more than it can by not entering, or by entering too often: delay the others, or let them
//! go too early.
//!
//! - **segment-1**: `base` is a mapping of `layout(size)` bytes, readable and writable, which begins at a page and
//!   lives as long as the segment; its file is sealed against shrinking and at least that long.

#![expect(unsafe_code, reason = "shared memory has no safe interface")]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
};

use rustix::{
    fs::SealFlags,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use vigie_via::local_socket;

use super::super::central::Central;
use crate::{
    group::{Group, Rank},
    sync::AtomicU32,
};

/// The file system of memfds; huge pages have another one, and may be missing when they are touched.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The words by which one member informs the others.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct MemberSlot {
    /// The number of barriers it has entered. Written only by the member (release), after it has arrived; read by members
    /// that found it gone (acquire).
    pub(super) entered: AtomicU32,
    /// Non-zero: it sleeps, or is about to, where only its liveness socket wakes it. Set by the member before the
    /// `sleepers` of [`Central`], cleared by the member that wakes it. `SeqCst`, like those.
    pub(super) is_asleep: AtomicU32,
}

/// The shared memory, mapped.
#[derive(Debug)]
pub(super) struct Segment {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is not tied to a thread, and contains only atomics.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

const fn layout(size: usize) -> usize {
    size_of::<Central>() + size * size_of::<MemberSlot>()
}

impl Segment {
    /// Creates the memory of a group, all zero: no member has entered. The file is for the other members.
    pub(super) fn create(group: Group) -> io::Result<(Self, OwnedFd)> {
        let length = layout(Rank(group.size()).index());
        let file = local_socket::make_file("vigie-barrier", length)?;
        local_socket::seal_file(file.as_fd(), false)?;
        let segment = Self::map(file.as_fd(), group)?;
        Ok((segment, file))
    }

    /// Maps the memory that another member has created, if it can be accessed safely: an ordinary memfd, long enough,
    /// and sealed against shrinking.
    pub(super) fn open(file: BorrowedFd<'_>, group: Group) -> io::Result<Self> {
        let unfit = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(unfit("the file is not sealed against shrinking"));
        }
        if u64::try_from(rustix::fs::fstatfs(file)?.f_type).ok() != Some(TMPFS_MAGIC) {
            return Err(unfit("the file is not a memfd"));
        }
        let length = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        if length < layout(Rank(group.size()).index()) {
            return Err(unfit("the file is too short for the group"));
        }
        Self::map(file, group)
    }

    fn map(file: BorrowedFd<'_>, group: Group) -> io::Result<Self> {
        let size = Rank(group.size()).index();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Now, not at the first barrier.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a free address, so no existing mapping is replaced.
        let base = unsafe { mmap(ptr::null_mut(), layout(size), protection, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, size })
    }

    #[inline]
    pub(super) fn central(&self) -> &Central {
        // SAFETY: at the start of the mapping and inside it (segment-1), aligned since a page is; all of its words
        // are atomics, for which every value is valid and which any process may write at any time.
        unsafe { self.base.cast().as_ref() }
    }

    pub(super) fn slots(&self) -> &[MemberSlot] {
        // SAFETY: inside the mapping (segment-1): the slots follow immediately.
        let first = unsafe { self.base.add(size_of::<Central>()) };
        // SAFETY: `size` slots are inside (segment-1), aligned since `Central` is one cache line long; atomics, as
        // above.
        unsafe { slice::from_raw_parts(first.cast().as_ptr(), self.size) }
    }

    pub(super) fn slot(&self, rank: Rank) -> Option<&MemberSlot> {
        self.slots().get(rank.index())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own (segment-1), and all borrows of `self` have ended.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), layout(self.size)) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    /// Goal: two mappings are the same words, up to the last slot; words of one are not words of another.
    /// Method: write by one, read by the other, all slots.
    #[test]
    fn both_mappings_are_the_same_words() {
        let group = Group::new(100).unwrap();
        let (one, file) = Segment::create(group).unwrap();
        let other = Segment::open(file.as_fd(), group).unwrap();
        for (number, slot) in (1..).zip(one.slots()) {
            slot.entered.store(number, Ordering::Relaxed);
            slot.is_asleep.store(1000 + number, Ordering::Relaxed);
        }
        let _ = one.central().arrive(7);
        for rank in group.ranks() {
            let slot = other.slot(rank).unwrap();
            assert_eq!(slot.entered.load(Ordering::Relaxed), rank.0 + 1);
            assert_eq!(slot.is_asleep.load(Ordering::Relaxed), 1001 + rank.0);
        }
        assert!(other.slot(Rank(100)).is_none());
        assert!(other.central().is_passed(1) && !other.central().is_passed(2));
    }

    /// Goal: nothing is mapped that could vanish under us. Method: files that are too short, not sealed, or no
    /// memfd.
    #[test]
    fn unfit_files_are_refused() {
        let group = Group::new(64).unwrap();
        let short = Segment::create(Group::new(63).unwrap()).unwrap().1;
        let unsealed = local_socket::make_file("test", 1 << 20).unwrap();
        let ordinary: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        for file in [short, unsealed, ordinary] {
            assert!(Segment::open(file.as_fd(), group).is_err());
        }
    }
}
