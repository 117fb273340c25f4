//! The packet of a run.

use crate::bpf::insn::ChecksumState;

/// Room before a frame, as the kernel leaves it for XDP.
const HEADROOM: usize = 256;
/// A frame is never shorter.
const FRAME_MIN: usize = 14;

/// A frame with room before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketBuffer {
    pub(super) bytes: Vec<u8>,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) checksum: ChecksumState,
}

impl PacketBuffer {
    /// Copies a frame.
    #[must_use]
    pub fn new(frame: &[u8]) -> Self {
        let mut bytes = vec![0; HEADROOM];
        bytes.extend_from_slice(frame);
        Self { end: bytes.len(), bytes, start: HEADROOM, checksum: ChecksumState::Complete }
    }

    /// Sets what the kernel knows of the checksum of the transport. Default: [`ChecksumState::Complete`].
    #[must_use]
    pub const fn checksum(mut self, state: ChecksumState) -> Self {
        self.checksum = state;
        self
    }

    /// Replaces the frame, reusing the memory.
    pub fn replace(&mut self, frame: &[u8]) {
        self.bytes.resize(HEADROOM, 0);
        self.bytes.extend_from_slice(frame);
        self.start = HEADROOM;
        self.end = self.bytes.len();
    }

    /// Returns the frame as it is now.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes the Ethernet header.
    pub(crate) fn remove_header(&mut self) {
        self.start = self.end.min(self.start + FRAME_MIN);
    }

    /// Moves the frame's start, forward if `by` is positive. Returns whether there was room.
    pub(super) fn adjust_head(&mut self, by: i64) -> bool {
        let start = i64::try_from(self.start).ok().and_then(|start| start.checked_add(by));
        let Some(start) = start.and_then(|start| usize::try_from(start).ok()) else {
            return false;
        };
        let has_room = start.checked_add(FRAME_MIN).is_some_and(|least| least <= self.end);
        if has_room {
            self.start = start;
        }
        has_room
    }
}
