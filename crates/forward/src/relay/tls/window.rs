//! Bytes of records on their way, in a buffer that is given back when there are none.

use crate::relay::buffers::{Buffer, Buffers};

/// Bytes in the middle of a buffer.
#[derive(Debug, Default)]
pub(super) struct Window {
    buffer: Option<Buffer>,
    start: usize,
    end: usize,
}

impl Window {
    pub(super) const fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of its buffer, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// Returns the bytes.
    pub(super) fn filled(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[self.start..self.end])
    }

    /// Takes bytes from the front.
    pub(super) fn discard(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "invariant: as many were there");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns the room behind the bytes; [`extend`](Self::extend) says how much of it was filled.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[self.end..])
    }

    pub(super) const fn extend(&mut self, bytes: usize) {
        self.end += bytes;
    }

    /// Makes room for at least `bytes`, in the buffer that there is or in one of at least `size_bytes`.
    pub(super) fn reserve(&mut self, bytes: usize, size_bytes: usize, buffers: &Buffers) {
        if self.capacity() >= (self.len() + bytes).max(size_bytes) {
            if self.capacity() - self.end < bytes {
                self.compact();
            }
            return;
        }
        self.move_to(buffers.take_beyond_budget(size_bytes.max(self.len() + bytes)));
    }

    /// Moves the bytes into `buffer`, which has room for them.
    pub(super) fn move_to(&mut self, mut buffer: Buffer) {
        let held = self.filled();
        let length = held.len();
        buffer[..length].copy_from_slice(held);
        (self.start, self.end) = (0, length);
        self.buffer = Some(buffer);
    }

    /// Moves the bytes to the front.
    pub(super) fn compact(&mut self) {
        if self.start > 0
            && let Some(buffer) = &mut self.buffer
        {
            buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.len());
        }
    }

    /// Gives the buffer back, if it holds nothing.
    pub(super) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}
