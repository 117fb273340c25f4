//! Registered memory and its access rights.

use std::{io, os::fd::OwnedFd, sync::Arc};

use super::wakeup::NicPage;
use crate::{
    auth::random,
    slots::Slots,
    vi::{
        LocalSegment, Memory, MemoryAttributes, MemoryHandle, OutOfBounds, ProtectionTag, Region,
        RemoteKey, Status, ViAttributes,
        objects::{Access, RegionEntry},
    },
};

#[derive(Debug)]
pub(super) struct ShmRegion {
    pub(super) entry: RegionEntry,
    /// The file of memory that peers may map. Several registrations of one memory share it.
    pub(super) file: Option<Arc<OwnedFd>>,
}

impl ShmRegion {
    /// Returns the rights that mapping this memory gives to the peer of such a VI, if it may map it.
    ///
    /// Memory mapped for writing can also be read. So a mapping is granted only if the VI's peer may
    /// write all of the memory that can be written; every other access goes through the owner.
    pub(super) fn grant(&self, vi: &ViAttributes) -> Option<(bool, bool)> {
        self.file.as_ref()?;
        let MemoryAttributes { tag, allows_write, allows_read } = self.entry.attributes;
        if tag != vi.tag || (allows_write && !vi.allows_write) {
            return None;
        }
        let allows_read = allows_read && vi.allows_read;
        (allows_write || allows_read).then_some((allows_write, allows_read))
    }
}

#[derive(Debug)]
pub(super) struct RegionTable {
    pub(super) regions: Slots<ShmRegion, u32>,
}

impl RegionTable {
    pub(super) const fn new() -> Self {
        Self { regions: Slots::new() }
    }

    pub(super) fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
        file: Option<Arc<OwnedFd>>,
        page: &NicPage,
    ) -> io::Result<Region> {
        let nonce = u64::from(u32::from_ne_bytes(random()?));
        let key = RemoteKey(nonce);
        let entry = RegionEntry { memory: memory.clone(), attributes, key };
        let registered = ShmRegion { entry, file };
        let Ok(name) = self.regions.try_insert(registered) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let key = RemoteKey(u64::from(name) << 32 | nonce);
        if let Some(registered) = self.regions.get_mut(name) {
            registered.entry.key = key;
        }
        page.set_live(key, true);
        Ok(Region::new(memory, MemoryHandle(name), key))
    }

    /// Returns the file of memory that was allocated for peers to read and is registered again, for peers of other VIs.
    pub(super) fn file_of(&self, memory: &Memory) -> Option<Arc<OwnedFd>> {
        let place = (memory.address(), memory.len());
        let shares = |entry: &RegionEntry| {
            (entry.memory.address(), entry.memory.len()) == place && !entry.attributes.allows_write
        };
        let found = self.regions.iter().find(|(_, one)| one.file.is_some() && shares(&one.entry));
        found.and_then(|(_, one)| one.file.clone())
    }

    pub(super) fn deregister(&mut self, memory: MemoryHandle, page: &NicPage) -> Option<ShmRegion> {
        let registered = self.regions.remove(memory.0)?;
        page.set_live(registered.entry.key, false);
        Some(registered)
    }

    /// Returns the memory that a data segment of a VI with this tag refers to.
    #[inline]
    pub(super) fn local(
        &self,
        tag: ProtectionTag,
        segment: &LocalSegment,
    ) -> Result<&Memory, Status> {
        let registered = self.regions.get(segment.memory.0).ok_or(Status::ProtectionError)?;
        registered.entry.local(tag, segment)
    }

    /// Returns the memory that a peer reaches through a VI.
    #[inline]
    pub(super) fn remote(
        &self,
        vi: &ViAttributes,
        key: RemoteKey,
        place: (u64, u64),
        access: Access,
    ) -> Result<&ShmRegion, Status> {
        let name = u32::try_from(key.0 >> 32).unwrap_or(0);
        let registered = self.regions.get(name).filter(|registered| registered.entry.key == key);
        let registered = registered.ok_or(Status::RdmaProtectionError)?;
        registered.entry.remote(vi, place, access)?;
        Ok(registered)
    }

    /// Calls `copy` for each piece of memory covered by `length` bytes of the segments, starting at
    /// `from`. Its arguments are the memory, the offset there, the number of bytes before, and the
    /// piece's length.
    pub(super) fn pieces(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        from: u64,
        length: u64,
        mut copy: impl FnMut(&Memory, u64, u64, usize) -> Result<(), OutOfBounds>,
    ) -> Result<(), Status> {
        let (mut skip, mut done) = (from, 0);
        for segment in segments {
            if done == length {
                break;
            }
            if skip >= segment.length {
                skip -= segment.length;
                continue;
            }
            let piece = (segment.length - skip).min(length - done);
            let memory = self.local(tag, segment)?;
            let count = usize::try_from(piece).map_err(|_| Status::LengthError)?;
            copy(memory, segment.offset + skip, done, count)
                .map_err(|_| Status::ProtectionError)?;
            done += piece;
            skip = 0;
        }

        if done == length { Ok(()) } else { Err(Status::LengthError) }
    }

    /// Returns the length of the segments, all of which this VI must be allowed to use.
    pub(super) fn check(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
    ) -> Result<u64, Status> {
        segments.iter().try_fold(0_u64, |total, segment| {
            self.local(tag, segment)?;
            total.checked_add(segment.length).ok_or(Status::LengthError)
        })
    }
}

/// Copies bytes out; eight bytes at a multiple of eight as one word.
#[inline]
pub(super) fn read_bytes(
    memory: &Memory,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), OutOfBounds> {
    if bytes.len() == 8 && offset.is_multiple_of(8) {
        bytes.copy_from_slice(&memory.load(offset)?.to_ne_bytes());
        return Ok(());
    }
    memory.read(offset, bytes)
}

/// Copies from one memory to another; eight bytes at multiples of eight as one word.
pub(super) fn copy_bytes(
    to: &Memory,
    offset: u64,
    from: &Memory,
    from_offset: u64,
    length: usize,
) -> Result<(), OutOfBounds> {
    if length == 8 && offset.is_multiple_of(8) && from_offset.is_multiple_of(8) {
        return to.store(offset, from.load(from_offset)?);
    }
    to.copy_from(offset, from, from_offset, length)
}
