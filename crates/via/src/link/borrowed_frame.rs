//! A received frame that is borrowed, in a ring or in a slice.

use std::fmt;

use super::{
    frame_status::{Checksum, VlanTag},
    segments::{FrameSegments, SegmentError},
};
use crate::memory::Memory;

/// A received frame, borrowed while it is being read.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Bytes that are not in its slot and come before those.
    pub(super) front: &'a [u8],
    pub(super) source: FrameData<'a>,
    pub(super) length: usize,
    pub(super) wire_length: usize,
    pub(super) checksum: Checksum,
    pub(super) tag: Option<VlanTag>,
    pub(super) segments: Result<Option<FrameSegments>, SegmentError>,
}

/// The place of its bytes.
#[derive(Clone, Copy)]
pub(super) enum FrameData<'a> {
    Memory(&'a Memory, u64),
    Slice(&'a [u8]),
}

impl Frame<'_> {
    /// Returns the length in bytes, with the header.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.front.len() + self.length
    }

    /// Returns whether the frame is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the frame was longer than a slot: several segments that no network card has cut yet.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.wire_length > self.length
    }

    /// Returns what is known about the checksum of the packet inside.
    #[must_use]
    pub const fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Returns the VLAN tag that the kernel has removed from the frame, for [`EtherType::ALL`](super::EtherType::ALL).
    #[must_use]
    pub const fn tag(&self) -> Option<u16> {
        match self.tag {
            Some(tag) => Some(tag.control),
            None => None,
        }
    }

    /// Returns that tag with the protocol that announced it, as it must be put back to pass the frame on.
    #[must_use]
    pub const fn vlan_tag(&self) -> Option<VlanTag> {
        self.tag
    }

    /// Returns how the frame is to be cut if it holds several segments, for a link that takes them
    /// ([`LinkBuilder::segments`](super::LinkBuilder::segments)) and a kernel that tells it; `None` for single packets.
    ///
    /// # Errors
    /// [`SegmentError`]: the kernel describes segments that are not known here.
    pub const fn segments(&self) -> Result<Option<FrameSegments>, SegmentError> {
        self.segments
    }

    /// Returns the length of the frame before it was cut to a slot, in bytes.
    #[must_use]
    pub const fn wire_length(&self) -> usize {
        self.front.len() + self.wire_length
    }

    /// Copies bytes from `at` on; fewer if the frame ends before. Returns their number.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> usize {
        if self.front.is_empty() {
            return self.read_slot(at, bytes);
        }
        let front = self.front.get(at..).unwrap_or_default();
        let count = front.len().min(bytes.len());
        let (first, rest) = bytes.split_at_mut(count);
        first.copy_from_slice(&front[..count]);
        count + self.read_slot((at + count).saturating_sub(self.front.len()), rest)
    }

    #[inline]
    fn read_slot(&self, at: usize, bytes: &mut [u8]) -> usize {
        let count = self.length.saturating_sub(at).min(bytes.len());
        let (Some(bytes), Ok(offset)) = (bytes.get_mut(..count), u64::try_from(at)) else {
            return 0;
        };
        match self.source {
            FrameData::Memory(memory, begin) => match memory.read(begin + offset, bytes) {
                Ok(()) => count,
                Err(_) => 0,
            },
            FrameData::Slice(source) => source.get(at..at + count).map_or(0, |source| {
                bytes.copy_from_slice(source);
                count
            }),
        }
    }

    /// Copies the frame.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let count = self.read(0, &mut bytes);
        bytes.truncate(count);
        bytes
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("length", &self.len())
            .field("checksum", &self.checksum)
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}
