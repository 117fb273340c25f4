//! Registered memory, and how peers name it.
//!
//! The device checks a key of 32 bits and an address. A key may come again once its memory is gone, so that the
//! address has to differ: the beginning of each memory is given an address of its own, made of a number that is
//! counted up. A [`RemoteKey`] is all of it:
//!
//! ```text
//! 63          54 53                32 31                                0
//! [ offset / 64 ][ number, 22 bits   ][ the device's key                 ]
//! address of the first byte = number << 40 | offset in its page
//! ```
//!
//! A stale key therefore fails at the device even if its 32 bits name other memory by now, unless 4 million
//! registrations lie in between. The offset is there since kernels want it to be that of the real address.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    NAME,
    sys::{Domain, NO_KEY, Piece, Registration, SEGMENTS_MAX},
};
use crate::vi::{
    LocalSegment, Memory, MemoryAttributes, MemoryHandle, ProtectionTag, Region, RemoteKey,
    RemoteSegment, Status, ViError,
};

const NUMBER_BITS: u32 = 22;
const OFFSET_UNIT: u64 = 64;

struct Known {
    tag: ProtectionTag,
    length: u64,
    address: u64,
    /// None of no bytes: devices refuse that, and nothing can be done with it.
    registration: Option<Registration>,
}

pub(super) struct Table {
    known: BTreeMap<u32, Known>,
    next: u32,
    number: u64,
}

impl Table {
    /// Begins with a number that differs from NIC to NIC.
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
        // From 1 on, so that no sum wraps around below the first byte.
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
        self.known.insert(name, Known { tag: attributes.tag, length, address, registration });
        Ok(Region::new(memory, MemoryHandle(name), RemoteKey(key)))
    }

    pub(super) fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        self.known.remove(&memory.0).map(drop).ok_or(ViError::UnknownMemory(memory))
    }

    /// Returns how the device calls a piece, if it exists and a VI with this tag may use it.
    fn piece(&self, tag: ProtectionTag, segment: &LocalSegment) -> Option<Piece> {
        let known = self.known.get(&segment.memory.0).filter(|known| known.tag == tag)?;
        let end = segment.offset.checked_add(segment.length)?;
        if end > known.length {
            return None;
        }
        let lkey = known.registration.as_ref().map_or(NO_KEY, |known| known.local_key);
        let length = u32::try_from(segment.length).unwrap_or(u32::MAX);
        Some(Piece { addr: known.address + segment.offset, length, lkey })
    }

    /// Returns the pieces of a message to be sent, or to be read, and its length; or what is wrong with them.
    pub(super) fn gather(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        length_max: u64,
    ) -> Result<(Pieces, u64), Status> {
        let (mut pieces, mut length) = (Pieces::new(), 0_u64);
        for segment in segments {
            let piece = self.piece(tag, segment).ok_or(Status::ProtectionError)?;
            length = length.checked_add(segment.length).ok_or(Status::LengthError)?;
            if segment.length > 0 {
                pieces.push(piece);
            }
        }
        if length > length_max { Err(Status::LengthError) } else { Ok((pieces, length)) }
    }

    /// Returns whether a VI with this tag may use all of these.
    pub(super) fn reaches(&self, tag: ProtectionTag, segments: &[LocalSegment]) -> bool {
        segments.iter().all(|segment| self.piece(tag, segment).is_some())
    }

    /// Returns the pieces that a message is received into. One that is out of reach is named in a way that makes
    /// the device fail when a message gets there.
    pub(super) fn scatter(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        length_max: u64,
    ) -> Pieces {
        let mut pieces = Pieces::new();
        let mut room = u32::try_from(length_max).unwrap_or(u32::MAX);
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            let Some(mut piece) = self.piece(tag, segment) else {
                pieces.push(Piece { addr: 0, length: room.max(1), lkey: NO_KEY });
                break;
            };
            // No message is longer, and devices add lengths up in 32 bits.
            piece.length = piece.length.min(room);
            room -= piece.length;
            pieces.push(piece);
            if room == 0 {
                break;
            }
        }
        pieces
    }
}

/// Returns the address and the key of a place in a peer's memory, for the device there.
pub(super) fn place(segment: &RemoteSegment) -> (u64, u32) {
    let RemoteKey(key) = segment.key;
    let number = (key >> 32) & ((1 << NUMBER_BITS) - 1);
    let address = (number << 40) | ((key >> 54) * OFFSET_UNIT);
    let device_key = u32::try_from(key & u64::from(u32::MAX)).unwrap_or(NO_KEY);
    (address.wrapping_add(segment.offset), device_key)
}

/// The pieces of one descriptor.
pub(super) struct Pieces {
    pieces: [Piece; SEGMENTS_MAX],
    count: usize,
}

impl Pieces {
    pub(super) const fn new() -> Self {
        Self { pieces: [Piece { addr: 0, length: 0, lkey: NO_KEY }; SEGMENTS_MAX], count: 0 }
    }

    /// Descriptors with more are refused before.
    fn push(&mut self, piece: Piece) {
        if let Some(place) = self.pieces.get_mut(self.count) {
            *place = piece;
            self.count += 1;
        }
    }

    pub(super) fn as_slice(&self) -> &[Piece] {
        self.pieces.get(..self.count).unwrap_or(&[])
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Piece] {
        self.pieces.get_mut(..self.count).unwrap_or(&mut [])
    }
}
