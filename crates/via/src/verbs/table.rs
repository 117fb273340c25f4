//! Registered memory, and how peers refer to it.
//!
//! The device checks a key of 32 bits and an address. A key may be reused once its memory is gone, so
//! the address has to differ: each memory is registered at an artificial address, made of a number that
//! is counted up. A [`RemoteKey`] holds all of it:
//!
//! ```text
//! 63          54 53                32 31                                0
//! [ offset / 64 ][ number, 22 bits   ][ the device's key                 ]
//! address of the first byte = number << 40 | offset in its page
//! ```
//!
//! A stale key therefore fails at the device even if its 32 bits now belong to other memory, unless 4
//! million registrations happened in between. The offset is kept because kernels want it to be that of
//! the real address.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    NAME,
    sys::{Domain, NO_KEY, Registration, SEGMENTS_MAX, Sge},
};
use crate::vi::{
    LocalSegment, Memory, MemoryAttributes, MemoryHandle, ProtectionTag, Region, RemoteKey,
    RemoteSegment, Status, ViError,
};

const NUMBER_BITS: u32 = 22;
const OFFSET_UNIT: u64 = 64;

struct VerbsRegion {
    tag: ProtectionTag,
    length: u64,
    address: u64,
    /// `None` for empty memory: devices refuse it, and it cannot be accessed anyway.
    registration: Option<Registration>,
}

pub(super) struct RegionTable {
    known: BTreeMap<u32, VerbsRegion>,
    next: u32,
    number: u64,
}

impl RegionTable {
    /// Starts with a number that differs from NIC to NIC.
    pub(super) const fn new(number: u64) -> Self {
        Self { known: BTreeMap::new(), next: 0, number }
    }

    pub(super) fn register(
        &mut self,
        domain: &Arc<Domain>,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        let name = self.next;
        let limit = u64::from(u32::MAX);
        let next = self.next.checked_add(1);
        let what = "the number of registrations";
        self.next = next.ok_or(ViError::TooMuch { what, provider: NAME, limit })?;
        // Starts at 1, so that no sum wraps around below the first byte.
        self.number = self.number % ((1 << NUMBER_BITS) - 1) + 1;
        let start = u64::try_from(memory.base().addr().get()).unwrap_or(0);
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(1).min(1 << 16);
        let offset = start % page;
        let address = self.number << 40 | offset;
        let length = u64::try_from(memory.len()).unwrap_or(u64::MAX);
        let rights = (attributes.allows_write, attributes.allows_read);
        let registration = match length {
            0 => None,
            _ => Some(Registration::new(domain, memory.clone(), address, rights)?),
        };

        let device_key = registration.as_ref().map_or(NO_KEY, |known| known.remote_key);
        let key = ((offset / OFFSET_UNIT) << 54) | (self.number << 32) | u64::from(device_key);
        self.known.insert(name, VerbsRegion { tag: attributes.tag, length, address, registration });
        Ok(Region::new(memory, MemoryHandle(name), RemoteKey(key)))
    }

    pub(super) fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        self.known.remove(&memory.0).map(drop).ok_or(ViError::UnknownMemory(memory))
    }

    /// Returns a segment in the device's terms, if it exists and a VI with this tag may use it.
    fn sge(&self, tag: ProtectionTag, segment: &LocalSegment) -> Option<Sge> {
        let known = self.known.get(&segment.memory.0).filter(|known| known.tag == tag)?;
        let end = segment.offset.checked_add(segment.length)?;
        if end > known.length {
            return None;
        }
        let lkey = known.registration.as_ref().map_or(NO_KEY, |known| known.local_key);
        let length = u32::try_from(segment.length).unwrap_or(u32::MAX);
        Some(Sge { addr: known.address + segment.offset, length, lkey })
    }

    /// Returns the pieces of a message to be sent or read, and its length, or what is wrong with them.
    pub(super) fn gather(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        length_max: u64,
    ) -> Result<(SgeList, u64), Status> {
        let (mut sges, mut length) = (SgeList::new(), 0_u64);
        for segment in segments {
            let sge = self.sge(tag, segment).ok_or(Status::ProtectionError)?;
            length = length.checked_add(segment.length).ok_or(Status::LengthError)?;
            if segment.length > 0 {
                sges.push(sge);
            }
        }
        if length > length_max { Err(Status::LengthError) } else { Ok((sges, length)) }
    }

    /// Returns whether a VI with this tag may use all of these.
    pub(super) fn reaches(&self, tag: ProtectionTag, segments: &[LocalSegment]) -> bool {
        segments.iter().all(|segment| self.sge(tag, segment).is_some())
    }

    /// Returns the pieces that a message is received into. An inaccessible one is described such that
    /// the device fails when a message reaches it.
    pub(super) fn scatter(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        length_max: u64,
    ) -> SgeList {
        let mut sges = SgeList::new();
        let mut room = u32::try_from(length_max).unwrap_or(u32::MAX);
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            let Some(mut sge) = self.sge(tag, segment) else {
                sges.push(Sge { addr: 0, length: room.max(1), lkey: NO_KEY });
                break;
            };
            // No message is longer, and devices sum lengths in 32 bits.
            sge.length = sge.length.min(room);
            room -= sge.length;
            sges.push(sge);
            if room == 0 {
                break;
            }
        }
        sges
    }
}

/// Returns the address and key of a segment in a peer's memory, for the peer's device.
pub(super) fn place(segment: &RemoteSegment) -> (u64, u32) {
    let RemoteKey(key) = segment.key;
    let number = (key >> 32) & ((1 << NUMBER_BITS) - 1);
    let address = (number << 40) | ((key >> 54) * OFFSET_UNIT);
    let device_key = u32::try_from(key & u64::from(u32::MAX)).unwrap_or(NO_KEY);
    (address.wrapping_add(segment.offset), device_key)
}

/// The pieces of one descriptor.
pub(super) struct SgeList {
    sges: [Sge; SEGMENTS_MAX],
    count: usize,
}

impl SgeList {
    pub(super) const fn new() -> Self {
        Self { sges: [Sge { addr: 0, length: 0, lkey: NO_KEY }; SEGMENTS_MAX], count: 0 }
    }

    /// Longer descriptors were refused before.
    fn push(&mut self, sge: Sge) {
        if let Some(place) = self.sges.get_mut(self.count) {
            *place = sge;
            self.count += 1;
        }
    }

    pub(super) fn as_slice(&self) -> &[Sge] {
        self.sges.get(..self.count).unwrap_or(&[])
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Sge] {
        self.sges.get_mut(..self.count).unwrap_or(&mut [])
    }
}
