//! Bytes to be sent together; long pieces stay in registered memory until the wire takes them.

use std::io;

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi as crc32c};

use super::packet::low_u32;
use crate::vi::{Memory, OutOfBounds};

/// The longest piece of memory that a fragment has a copy of, in bytes: to keep the memory costs as much.
const KEPT_MAX: usize = 512;

/// The longest piece of memory that packets have a copy of, in bytes. The kernel takes one segment of 64 KiB faster
/// than 44 packets of 1472 bytes with two segments each, by more than the copies cost.
const COPIED_MAX: usize = 4096;

/// Packets, or a part of one: bytes, interleaved with pieces of registered memory.
///
/// A process with access to that memory may write it at any time, even while it is sent; the content of
/// such a transfer is then undefined. The packet may be refused for its CRC once, and is sent again as a copy.
/// The memory stays alive as long as this value.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    bytes: Vec<u8>,
    pieces: Vec<MemoryPiece>,
    /// The length of everything.
    length: usize,
    copies: bool,
}

#[derive(Clone, Debug)]
struct MemoryPiece {
    /// The number of the bytes that come before it.
    at: usize,
    memory: Memory,
    offset: u64,
    length: usize,
}

/// A part of a [`Gather`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a wire must know where all bytes are")]
pub enum GatherPart<'a> {
    /// Bytes that do not change.
    Bytes(&'a [u8]),
    /// A piece of registered memory, in bounds, which others may write.
    Memory {
        /// The memory.
        memory: &'a Memory,
        /// The beginning of the piece, in bytes.
        offset: u64,
        /// The piece's length in bytes.
        length: usize,
    },
}

impl Gather {
    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns all bytes, unless a piece is in registered memory.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.pieces.is_empty().then_some(&self.bytes)
    }

    /// Returns an upper bound on the number of [`parts`](Self::parts).
    #[must_use]
    pub const fn parts_max(&self) -> usize {
        2 * self.pieces.len() + 1
    }

    /// Returns the parts in order, none of them empty.
    pub fn parts(&self) -> impl Iterator<Item = GatherPart<'_>> {
        let mut before = 0;
        let parts = self.pieces.iter().flat_map(move |piece| {
            let bytes = self.bytes.get(before..piece.at).unwrap_or(&[]);
            before = piece.at;
            let MemoryPiece { memory, offset, length, .. } = piece;
            [
                GatherPart::Bytes(bytes),
                GatherPart::Memory { memory, offset: *offset, length: *length },
            ]
        });
        let behind = self.pieces.last().map_or(0, |piece| piece.at);
        let last = GatherPart::Bytes(self.bytes.get(behind..).unwrap_or(&[]));
        parts.chain([last]).filter(|part| !part.is_empty())
    }

    /// Appends a copy of all bytes to `out`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a piece is not inside its memory, which does not happen.
    pub fn copy_onto(&self, out: &mut Vec<u8>) -> io::Result<()> {
        for part in self.parts() {
            match part {
                GatherPart::Bytes(bytes) => out.extend_from_slice(bytes),
                GatherPart::Memory { memory, offset, length } => memory
                    .read_onto(offset, length, out)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
            }
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
        self.length = 0;
    }

    /// Returns the length of the bytes held here (not in registered memory): where the next one goes.
    pub(super) const fn position(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Overwrites bytes held here.
    pub(super) fn set(&mut self, position: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(position..position + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Lets `append` append to the bytes held here.
    pub(super) fn append<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.bytes.len();
        let done = append(&mut self.bytes);
        self.length += self.bytes.len().saturating_sub(before);
        done
    }

    /// Sets whether memory is copied from now on, however long the pieces are.
    pub(super) const fn copy_memory(&mut self, copies: bool) {
        self.copies = copies;
    }

    /// Appends a piece of memory; a long one is not copied.
    pub(super) fn push_memory(
        &mut self,
        memory: &Memory,
        offset: u64,
        length: usize,
    ) -> Result<(), OutOfBounds> {
        if self.copies || length <= KEPT_MAX {
            return self.append(|bytes| memory.take_onto(offset, length, bytes));
        }
        memory.check(offset, length)?;
        let at = self.bytes.len();
        self.pieces.push(MemoryPiece { at, memory: memory.clone(), offset, length });
        self.length += length;
        Ok(())
    }

    /// Copies the pieces, so that nothing changes any more.
    pub(super) fn copy_pieces(&mut self) {
        if self.pieces.is_empty() {
            return;
        }
        let mut bytes = Vec::with_capacity(self.length);
        if self.copy_onto(&mut bytes).is_ok() {
            self.bytes = bytes;
            self.pieces.clear();
        }
    }

    /// Appends all of `other`; pieces up to [`COPIED_MAX`] are copied, the memory of others stays alive.
    pub(super) fn push_all(&mut self, other: &Self) -> Result<(), OutOfBounds> {
        let mut before = 0;
        for piece in &other.pieces {
            self.push(other.bytes.get(before..piece.at).unwrap_or(&[]));
            before = piece.at;
            let MemoryPiece { memory, offset, length, .. } = piece;
            if *length <= COPIED_MAX {
                self.append(|bytes| memory.take_onto(*offset, *length, bytes))?;
            } else {
                self.pieces.push(MemoryPiece { at: self.bytes.len(), ..piece.clone() });
                self.length += length;
            }
        }
        self.push(other.bytes.get(before..).unwrap_or(&[]));
        Ok(())
    }

    /// Returns the CRC-32C of all from a position on. If others write a piece of memory afterwards, it is wrong.
    pub(super) fn sum_from(&self, start: usize) -> Result<u32, OutOfBounds> {
        let first = self.pieces.partition_point(|piece| piece.at < start);
        let pieces = self.pieces.get(first..).unwrap_or(&[]);
        if pieces.is_empty() {
            return Ok(crc32c(self.bytes.get(start..).unwrap_or(&[])));
        }
        let (mut before, mut sum) = (start, Digest::new(CrcAlgorithm::Crc32Iscsi));
        for MemoryPiece { at, memory, offset, length } in pieces {
            sum.update(self.bytes.get(before..*at).unwrap_or(&[]));
            sum_memory(memory, *offset, *length, &mut sum)?;
            before = *at;
        }
        sum.update(self.bytes.get(before..).unwrap_or(&[]));
        Ok(low_u32(sum.finalize()))
    }

    /// Removes the bytes from a position on, and the memory appended there.
    pub(super) fn truncate(&mut self, position: usize) {
        self.bytes.truncate(position);
        self.pieces.retain(|piece| piece.at < position);
        self.length =
            self.bytes.len() + self.pieces.iter().map(|piece| piece.length).sum::<usize>();
    }

    /// Takes what was gathered, leaving this empty.
    #[cfg(test)]
    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.copy_onto(&mut bytes).expect("inside");
        self.clear();
        bytes
    }
}

/// Continues a CRC with a piece of memory, which others may write meanwhile: what is summed are copies.
fn sum_memory(
    memory: &Memory,
    offset: u64,
    length: usize,
    sum: &mut Digest,
) -> Result<(), OutOfBounds> {
    let mut copy = [0; COPIED_MAX];
    let mut done = 0;
    while done < length {
        let part = &mut copy[..(length - done).min(COPIED_MAX)];
        memory.read(offset + to_u64(done), part)?;
        sum.update(part);
        done += part.len();
    }
    Ok(())
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

impl GatherPart<'_> {
    const fn is_empty(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Memory { length, .. } => *length == 0,
        }
    }
}

impl From<Vec<u8>> for Gather {
    fn from(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self { bytes, length, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Too long to be copied.
    const LONG: usize = COPIED_MAX + 1;

    /// Goal: what is gathered is what was put in, wherever it is stored, and what is removed is gone.
    /// Method: bytes and memory alternately, twice over, then half of it removed.
    #[test]
    fn parts_are_in_order() {
        let memory = Memory::allocate(3 * LONG).expect("memory");
        let pattern: Vec<u8> = (0..=250).cycle().take(3 * LONG).collect();
        memory.write(0, &pattern).expect("inside");
        let mut one = Gather::default();
        one.push_memory(&memory, 10, LONG).expect("inside");
        one.push(b", ");
        let before = one.position();
        one.push_memory(&memory, 3, 6).expect("inside");
        one.push_memory(&memory, to_u64(LONG), LONG).expect("inside");
        let whole =
            [&pattern[10..10 + LONG], b", ", &pattern[3..9], &pattern[LONG..2 * LONG]].concat();
        assert!(one.as_slice().is_none());
        let mut both = Gather::from(b"> ".to_vec());
        assert_eq!(both.as_slice(), Some(&b"> "[..]));
        both.push_all(&one).expect("inside");
        both.append(|bytes| bytes.extend_from_slice(b"; "));
        both.push_all(&one).expect("inside");
        both.set(0, b"<");
        let parts = both.parts().count();
        assert!(parts == 8 && parts <= both.parts_max(), "{parts}");
        assert_eq!((both.len(), both.position()), (4 + 2 * whole.len(), 20));
        assert_eq!(both.take_bytes(), [b"< ", &whole[..], b"; ", &whole].concat());
        assert_eq!((both.len(), both.parts().count()), (0, 0));
        one.truncate(before);
        assert_eq!(one.len(), LONG + 2);
        assert_eq!(one.take_bytes(), whole[..LONG + 2]);
        assert!(one.is_empty());
    }

    /// Goal: nothing beyond memory is ever gathered, gathered memory stays alive, and copied bytes no
    /// longer change. Method: pieces across the end, then of memory that is written later and dropped.
    #[test]
    fn pieces_are_inside_and_live() {
        let memory = Memory::allocate(2 * LONG).expect("memory");
        let mut gather = Gather::default();
        for (offset, length) in
            [(to_u64(LONG), LONG + 1), (u64::MAX, 2), (u64::MAX, LONG), (0, 3 * LONG)]
        {
            assert!(gather.push_memory(&memory, offset, length).is_err());
        }
        assert!(gather.is_empty());
        let mut copied = Gather::default();
        copied.copy_memory(true);
        gather.push_memory(&memory, 0, LONG).expect("inside");
        copied.push_memory(&memory, 0, LONG).expect("inside");
        memory.write(0, &[1; LONG]).expect("inside");
        drop(memory);
        assert_eq!(gather.take_bytes(), [1; LONG]);
        assert_eq!(copied.take_bytes(), [0; LONG]);
    }
}
