//! The format of a ring's entries: one cache line each.
//!
//! ```text
//! bytes  0..4    sequence number, written last       24..64  inline data, or:
//!        4       kind                                24..28  length
//!        5       length of inline data               28..32  staging offset
//!        6..8    offset, bits 32 to 47               32..40  length of the whole transfer
//!        8..12   immediate data
//!       12..16   offset, bits 0 to 31
//!       16..24   key
//! ```
//!
//! Everything here is pure. [`RingEntry::decode`] accepts any 64 bytes, since a hostile peer may write any.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{CHUNK_MAX_BYTES, STAGING_BYTES, TRANSFER_MAX_BYTES};
use crate::vi::{CACHE_LINE, RemoteKey};

/// The most bytes of data inside an entry.
pub(super) const INLINE_MAX: usize = 40;
/// The offset at which they begin in the entry.
pub(super) const INLINE_AT: usize = 24;
/// The largest offset that an entry can express. It is outside every region, so a larger offset may be
/// encoded as this one: the owner of the memory refuses it.
pub(super) const OFFSET_MAX: u64 = (1 << 48) - 1;

/// A ring entry as laid out in memory.
pub(super) type CacheLine = [u8; CACHE_LINE];

const HAS_IMMEDIATE: u8 = 1 << 3;
const IS_LAST: u8 = 1 << 4;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EntryKind {
    /// Data for a receive descriptor.
    Send = 1,
    /// Data for an address in the receiver's memory.
    Write = 2,
    /// A request for data from the receiver's memory.
    ReadRequest = 3,
    /// Data that answers a request.
    ReadData = 4,
    /// A refused request.
    ReadRefused = 5,
}

/// The place of an entry's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataLocation {
    /// In the entry itself: the whole transfer.
    Inline { length: u8 },
    /// In the staging area that belongs to the ring.
    Staged { at: u32, length: u32 },
    /// Already in place: the sender has written it there. In a request: where to read from.
    Placed,
}

/// A decoded entry. The inline data stays in the cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingEntry {
    pub(super) kind: EntryKind,
    pub(super) place: DataLocation,
    /// Immediate data, repeated in every entry of the transfer.
    pub(super) immediate: Option<i32>,
    /// True if the transfer ends with this entry.
    pub(super) is_last: bool,
    pub(super) key: RemoteKey,
    pub(super) offset: u64,
    /// The length of the whole transfer.
    pub(super) total: u64,
}

impl RingEntry {
    /// Writes everything but the sequence number and the inline data. The caller ensures that the fields fit.
    #[inline]
    pub(super) fn encode(&self, draft: &Draft) {
        let (place, inline_length) = match self.place {
            DataLocation::Inline { length } => (0, length),
            DataLocation::Staged { at, length } => {
                draft.set(3, words_of(length, at));
                draft.set(4, self.total);
                (1 << 5, 0)
            }
            DataLocation::Placed => {
                draft.set(3, 0);
                draft.set(4, self.total);
                (2 << 5, 0)
            }
        };

        let mut kind = self.kind as u8 | place;
        if self.immediate.is_some() {
            kind |= HAS_IMMEDIATE;
        }
        if self.is_last {
            kind |= IS_LAST;
        }
        debug_assert!(self.offset <= OFFSET_MAX, "an offset that no entry can express");
        let [a, b, c, d, high, higher, ..] = self.offset.to_le_bytes();
        let kinds = u32::from_ne_bytes([kind, inline_length, high, higher]);
        draft.set(0, words_of(0, kinds));
        let immediate = self.immediate.unwrap_or(0).cast_unsigned();
        draft.set(1, words_of(immediate, u32::from_ne_bytes([a, b, c, d])));
        draft.set(2, self.key.0);
    }

    /// Decodes what a peer wrote.
    ///
    /// # Errors
    /// A violation of the format, which no correct peer commits.
    #[inline]
    pub(super) fn decode(line: &CacheLine) -> Result<Self, &'static str> {
        let [kind_bits, inline_length, high, higher] = take(line, 4);
        let [a, b, c, d] = take(line, 12);
        let has_immediate = kind_bits & HAS_IMMEDIATE != 0;
        let is_last = kind_bits & IS_LAST != 0;
        let kind = match kind_bits & 7 {
            1 => EntryKind::Send,
            2 => EntryKind::Write,
            3 => EntryKind::ReadRequest,
            4 => EntryKind::ReadData,
            5 => EntryKind::ReadRefused,
            _ => return Err("an entry of an unknown kind"),
        };

        let (place, total) = match kind_bits >> 5 {
            0 => {
                if usize::from(inline_length) > INLINE_MAX {
                    return Err("an entry with more inline data than fits");
                }
                (DataLocation::Inline { length: inline_length }, u64::from(inline_length))
            }
            1 => {
                let length = u32::from_ne_bytes(take(line, 24));
                let at = u32::from_ne_bytes(take(line, 28));
                let total = u64::from_ne_bytes(take(line, 32));
                if length == 0
                    || u64::from(length) > CHUNK_MAX_BYTES
                    || u64::from(at) + u64::from(length) > STAGING_BYTES
                    || u64::from(length) > total
                {
                    return Err("an entry with data outside the staging area");
                }
                (DataLocation::Staged { at, length }, total)
            }
            2 => (DataLocation::Placed, u64::from_ne_bytes(take(line, 32))),
            _ => return Err("an entry of an unknown kind"),
        };

        if total > TRANSFER_MAX_BYTES {
            return Err("an entry of a transfer that is too long");
        }
        let fits = match (kind, place) {
            (EntryKind::Send, DataLocation::Placed)
            | (EntryKind::ReadData, DataLocation::Placed) => false,
            (EntryKind::ReadRequest, place) => {
                place == DataLocation::Placed && is_last && !has_immediate
            }
            (EntryKind::ReadRefused, place) => {
                matches!(place, DataLocation::Inline { length: 0 }) && is_last && !has_immediate
            }
            (EntryKind::ReadData, _) => !has_immediate,
            (EntryKind::Send | EntryKind::Write, _) => true,
        };
        if !fits || (!is_last && !matches!(place, DataLocation::Staged { .. })) {
            return Err("an entry whose parts contradict each other");
        }
        let immediate = has_immediate.then(|| i32::from_ne_bytes(take(line, 8)));
        let offset = u64::from_le_bytes([a, b, c, d, high, higher, 0, 0]);
        let key = RemoteKey(u64::from_ne_bytes(take(line, 16)));
        Ok(Self { kind, place, immediate, is_last, key, offset, total })
    }
}

/// Returns the word whose bytes in memory are those of both arguments, in this order.
#[inline]
const fn words_of(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        first as u64 | (second as u64) << 32
    } else {
        (first as u64) << 32 | second as u64
    }
}

/// An entry under construction, written and read as whole words.
///
/// A wide load from narrow stores stalls until all earlier stores are done, including those of the last
/// entry, whose cache line the peer's processor holds. Compilers leave words of atomics alone: they
/// neither merge them into vectors nor turn their copies into calls of `memcpy`.
#[derive(Debug)]
pub(super) struct Draft {
    words: [AtomicU64; LINE_WORDS],
}

const LINE_WORDS: usize = CACHE_LINE / 8;

impl Draft {
    #[inline]
    pub(super) const fn new() -> Self {
        Self { words: [const { AtomicU64::new(0) }; LINE_WORDS] }
    }

    #[inline]
    fn set(&self, index: usize, word: u64) {
        self.words[index].store(word, Ordering::Relaxed);
    }

    /// Returns the words, the first one with the entry's `sequence` number.
    #[inline]
    pub(super) fn numbered(&self, sequence: u32) -> &[AtomicU64; LINE_WORDS] {
        let first = self.words[0].load(Ordering::Relaxed);
        let mask = words_of(0, u32::MAX);
        self.set(0, first & mask | words_of(sequence, 0));
        &self.words
    }

    /// Appends inline data to the `length` bytes already there. Returns the new length, or `None` if it
    /// does not fit.
    #[inline]
    pub(super) fn put_inline(&self, length: usize, bytes: &[u8]) -> Option<usize> {
        let end = length.checked_add(bytes.len()).filter(|end| *end <= INLINE_MAX)?;
        if length.is_multiple_of(8) {
            let (words, rest) = bytes.as_chunks::<8>();
            let mut index = (INLINE_AT + length) / 8;
            for word in words {
                self.set(index, u64::from_ne_bytes(*word));
                index += 1;
            }
            if !rest.is_empty() {
                self.set(index, partial_word(rest));
            }
        } else {
            for (byte, at) in bytes.iter().zip(INLINE_AT + length..) {
                let place = &self.words[at / 8];
                let mut word = place.load(Ordering::Relaxed).to_ne_bytes();
                word[at % 8] = *byte;
                place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            }
        }
        Some(end)
    }

    /// Returns the inline data, and the rest of the entry behind it.
    #[inline]
    pub(super) fn inline(&self) -> [u8; INLINE_MAX] {
        let mut bytes = [0; INLINE_MAX];
        let (places, _) = bytes.as_chunks_mut::<8>();
        for (place, word) in places.iter_mut().zip(&self.words[INLINE_AT / 8..]) {
            *place = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        bytes
    }
}

/// Returns a word that starts with fewer than eight bytes, without a detour through memory.
#[inline]
fn partial_word(bytes: &[u8]) -> u64 {
    let (mut word, mut shift, mut rest) = (0, 0, bytes);
    if let Some((four, behind)) = rest.split_first_chunk::<4>() {
        word = u64::from(u32::from_le_bytes(*four));
        (shift, rest) = (32, behind);
    }
    if let Some((two, behind)) = rest.split_first_chunk::<2>() {
        word |= u64::from(u16::from_le_bytes(*two)) << shift;
        (shift, rest) = (shift + 16, behind);
    }
    if let [one] = rest {
        word |= u64::from(*one) << shift;
    }
    // The bytes are now in address order, as in a little-endian word.
    u64::from_le(word)
}

#[inline]
fn take<const N: usize>(line: &CacheLine, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&line[at..at + N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Draft {
        /// Returns a draft of these bytes.
        pub(in crate::shm) fn of(line: &CacheLine) -> Self {
            let draft = Self::new();
            for (place, word) in draft.words.iter().zip(line.as_chunks::<8>().0) {
                place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            draft
        }

        /// Returns the bytes.
        pub(in crate::shm) fn line(&self) -> CacheLine {
            let mut line = [0; CACHE_LINE];
            for (place, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(&self.words) {
                *place = word.load(Ordering::Relaxed).to_ne_bytes();
            }
            line
        }
    }

    /// Goal: what is written is read back. Method: entries of every kind and place, decoded again.
    #[test]
    fn what_is_encoded_is_decoded() {
        let kinds = [
            EntryKind::Send,
            EntryKind::Write,
            EntryKind::ReadRequest,
            EntryKind::ReadData,
            EntryKind::ReadRefused,
        ];

        let places = [
            DataLocation::Inline { length: 0 },
            DataLocation::Inline { length: 40 },
            DataLocation::Staged { at: 64, length: 4096 },
            DataLocation::Placed,
        ];

        let mut valid_count = 0;
        for (kind, place) in kinds.iter().flat_map(|kind| places.map(|place| (*kind, place))) {
            for (immediate, is_last) in [(None, false), (None, true), (Some(-5), true)] {
                let total = match place {
                    DataLocation::Inline { length } => u64::from(length),
                    _ => 1 << 30,
                };
                let key = RemoteKey(0x0123_4567_89ab_cdef);
                let offset = 0xfedc_ba98_7654;
                let entry = RingEntry { kind, place, immediate, is_last, key, offset, total };
                let draft = Draft::of(&[0xff; CACHE_LINE]);
                entry.encode(&draft);
                if let Ok(decoded) = RingEntry::decode(&draft.line()) {
                    assert_eq!(decoded, entry);
                    valid_count += 1;
                }
            }
        }

        // Send: 2 + 2 + 3 + 0; write: 2 + 2 + 3 + 2; request: 1; data: 1 + 1 + 2; refused: 1.
        assert_eq!(valid_count, 22, "no more and no less makes sense");
    }

    /// Goal: inline data arrives byte for byte, however many pieces it is written in. Method: pieces of
    /// all lengths that fit, two together and one after them.
    #[test]
    fn inline_data_is_put_together() {
        let bytes: Vec<u8> =
            (1..=INLINE_MAX + 1).map(|at| u8::try_from(at).expect("small")).collect();
        for first in 0..=INLINE_MAX {
            for second in 0..=INLINE_MAX - first {
                let draft = Draft::new();
                let put = |length, piece: &[u8]| draft.put_inline(length, piece);
                assert_eq!(put(0, &bytes[..first]), Some(first));
                assert_eq!(put(first, &bytes[first..first + second]), Some(first + second));
                let end = first + second;
                let room = INLINE_MAX - end;
                assert_eq!(put(end, &bytes[end..=end + room]), None, "one byte too many");
                let mut expected = [0; INLINE_MAX];
                expected[..end].copy_from_slice(&bytes[..end]);
                assert_eq!(draft.inline(), expected, "{first} and {second} bytes");
            }
        }
    }
}
