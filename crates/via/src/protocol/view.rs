//! A message that is read where it lies in this rank's area.

use super::{area::Hold, to_u64};
use crate::vi::{Memory, OutOfBounds};

/// A message that you read in place. [`MessageEngine::release`](super::MessageEngine::release) gives the piece of the area back.
#[derive(Debug)]
#[must_use = "a view that is not released keeps a piece of the area, for which its sender may wait"]
pub struct View {
    pub(super) rank: u32,
    pub(super) memory: Memory,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) hold: Hold,
}

impl View {
    /// Returns the message's length, in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length as u64
    }

    /// Returns whether the message is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Reads a part of the message. Its sender can still change it: read once what you check.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        check(offset, bytes.len(), self.len())?;
        self.memory.read(self.offset + offset, bytes)
    }

    pub(super) const fn new(
        rank: u32,
        memory: Memory,
        offset: u64,
        length: u32,
        hold: Hold,
    ) -> Self {
        Self { rank, memory, offset, length, hold }
    }
}

fn outside(offset: u64, length: usize, size: u64) -> OutOfBounds {
    OutOfBounds { offset, length: to_u64(length), size }
}

pub(super) fn check(offset: u64, length: usize, size: u64) -> Result<(), OutOfBounds> {
    match offset.checked_add(to_u64(length)) {
        Some(end) if end <= size => Ok(()),
        _ => Err(outside(offset, length, size)),
    }
}
