//! The format of a ring's entries: one cache line each.
//!
//! ```text
//! bytes  0..4    sequence number, written last       24..64  inline data, or:
//!        4       kind                                24..28  length
//!        5       length of inline data               28..32  staging offset
//!        6..8    offset, bits 32 to 47               32..40  length of the whole transfer
//!        8..12   immediate data
//!       12..16   offset, bits 0 to 31
//!       16..24   key                                40..56  head
//! ```
//!
//! Everything here is pure. [`RingEntry::decode`] accepts any 64 bytes, since a hostile peer may write any.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{CHUNK_MAX_BYTES, STAGING_BYTES, TRANSFER_MAX_BYTES};
use crate::{
    sync::SharedWord,
    vi::{
        CACHE_LINE, HEAD_BYTES, HeadedBody, RemoteKey, SHORT_BODY_MAX, ShortBody,
        headed::partial_word,
    },
};

/// The most bytes of data inside an entry.
pub(super) const INLINE_MAX: usize = HEAD_BYTES + SHORT_BODY_MAX;
/// The offset at which they begin in the entry.
pub(super) const INLINE_AT: usize = 24;
/// The largest offset that an entry can express. It is outside every region, so a larger offset may be
/// encoded as this one: the owner of the memory refuses it.
pub(super) const OFFSET_MAX: u64 = (1 << 48) - 1;

/// A ring entry as laid out in memory.
pub(super) type CacheLine = [u8; CACHE_LINE];

const HAS_IMMEDIATE: u8 = 1 << 3;
const IS_LAST: u8 = 1 << 4;
/// The place of a write that is in place but for its head, which is in the entry.
const PLACED_HEADED: u8 = 3;

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
    /// The same but for the head, which is in the entry.
    PlacedBody,
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
    /// Writes everything but the sequence number, the inline data and a head. The caller ensures that the fields fit.
    #[inline]
    pub(super) fn encode(&self, draft: &Draft) {
        let (place, inline_length) = match self.place {
            DataLocation::Inline { length } => (0, length),
            DataLocation::Staged { at, length } => {
                draft.set(3, words_of(length, at));
                draft.set(4, self.total);
                (1 << 5, 0)
            }
            DataLocation::Placed | DataLocation::PlacedBody => {
                draft.set(3, 0);
                draft.set(4, self.total);
                let is_whole = self.place == DataLocation::Placed;
                (if is_whole { 2 } else { PLACED_HEADED } << 5, 0)
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
            PLACED_HEADED if kind_bits != HEADED_WRITE => {
                return Err("an entry with a head that has none");
            }
            2 => (DataLocation::Placed, u64::from_ne_bytes(take(line, 32))),
            PLACED_HEADED => {
                let total = u64::from_ne_bytes(take(line, 32));
                if total < HEAD_BYTES as u64 {
                    return Err("an entry with a head that is longer than the whole");
                }
                (DataLocation::PlacedBody, total)
            }
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

/// The kind and flags of an RDMA write that is wholly inside its entry and has immediate data.
const SHORT_WRITE: u8 = EntryKind::Write as u8 | HAS_IMMEDIATE | IS_LAST;
/// Those of one that is in place but for its head, which is in the entry.
const HEADED_WRITE: u8 = SHORT_WRITE | PLACED_HEADED << 5;

/// Returns the words of a headed write's entry, without its sequence number. The caller ensures that the offset fits.
#[inline(always)]
pub(super) fn headed_write_words(
    key: RemoteKey,
    offset: u64,
    immediate: i32,
    head: u128,
    body: HeadedBody,
) -> [u64; LINE_WORDS] {
    debug_assert!(offset <= OFFSET_MAX, "an offset that no entry can express");
    let [a, b, c, d, high, higher, ..] = offset.to_le_bytes();
    let second = words_of(immediate.cast_unsigned(), u32::from_ne_bytes([a, b, c, d]));
    let first = |kind: u8, length| words_of(0, u32::from_ne_bytes([kind, length, high, higher]));
    let (low, up) = halves(head);
    match body {
        HeadedBody::Here(short) => {
            let [x, y, z] = short.words();
            #[expect(clippy::cast_possible_truncation, reason = "at most 40")]
            let length = (HEAD_BYTES + short.len()) as u8;
            [first(SHORT_WRITE, length), second, key.0, low, up, x, y, z]
        }
        HeadedBody::InPlace(length) => {
            let total = u64::from(length) + HEAD_BYTES as u64;
            [first(HEADED_WRITE, 0), second, key.0, 0, total, low, up, 0]
        }
    }
}

/// Returns the head of an entry whose other bytes are in place.
#[inline]
pub(super) fn head_of(line: &CacheLine) -> [u8; HEAD_BYTES] {
    take(line, 40)
}

/// A headed write as its entry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadedEntry {
    pub(super) key: RemoteKey,
    pub(super) offset: u64,
    pub(super) immediate: i32,
    pub(super) head: u128,
    pub(super) body: HeadedBody,
}

/// Returns the headed write of an entry, if it is one.
#[inline(always)]
pub(super) fn headed_write_of(line: &[SharedWord; LINE_WORDS], first: u64) -> Option<HeadedEntry> {
    let [_, _, _, _, kind, length, high, higher] = first.to_ne_bytes();
    // Each word is loaded once: the peer may write others meanwhile.
    let load = |index: usize| line[index].load(Ordering::Relaxed);
    if kind != SHORT_WRITE && kind != HEADED_WRITE {
        return None;
    }
    let key = RemoteKey(load(2));
    let [i, j, k, l, a, b, c, d] = load(1).to_ne_bytes();
    let offset = u64::from_le_bytes([a, b, c, d, high, higher, 0, 0]);
    let immediate = i32::from_ne_bytes([i, j, k, l]);
    if kind == HEADED_WRITE {
        let length = load(4).checked_sub(HEAD_BYTES as u64)?;
        let body = HeadedBody::InPlace(u32::try_from(length).ok()?);
        let head = whole(load(5), load(6));
        return Some(HeadedEntry { key, offset, immediate, head, body });
    }
    let length = usize::from(length).checked_sub(HEAD_BYTES)?;
    if length > SHORT_BODY_MAX {
        return None;
    }
    let body = HeadedBody::Here(ShortBody::of_words([load(5), load(6), load(7)], length));
    let head = whole(load(3), load(4));
    Some(HeadedEntry { key, offset, immediate, head, body })
}

/// Returns the two words that hold a little-endian number of 16 bytes.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
const fn halves(number: u128) -> (u64, u64) {
    ((number as u64).to_le(), ((number >> 64) as u64).to_le())
}

/// Returns the number in two such words.
#[inline(always)]
const fn whole(low: u64, up: u64) -> u128 {
    u64::from_le(low) as u128 | (u64::from_le(up) as u128) << 64
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

    /// Returns the words.
    #[inline]
    pub(super) fn words(&self) -> [u64; LINE_WORDS] {
        self.words.each_ref().map(|word| word.load(Ordering::Relaxed))
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

/// Returns the first word of an entry with its `sequence` number.
#[inline]
pub(super) const fn numbered(first: u64, sequence: u32) -> u64 {
    first & words_of(0, u32::MAX) | words_of(sequence, 0)
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

    /// Goal: a headed write is read back, by its own decoder and by that of all entries, and no other entry is taken for one. Method: every
    /// short body, longer ones; entries of every kind and place.
    #[test]
    fn headed_writes_are_decoded() {
        let (key, offset, immediate) = (RemoteKey(0x0123_4567_89ab_cdef), 0xfedc_ba98_7654, -77);
        let head = u128::from_le_bytes(std::array::from_fn(|at| u8::try_from(at).expect("small")));
        let all: Vec<u8> = (16..40).collect();
        let short = (0..=SHORT_BODY_MAX)
            .map(|length| HeadedBody::Here(ShortBody::new(&all[..length]).expect("it fits")));
        let long = [25, 4096, 1 << 20].map(HeadedBody::InPlace);
        for body in short.chain(long) {
            let words = headed_write_words(key, offset, immediate, head, body);
            let line = words.map(AtomicU64::new);
            let found = headed_write_of(&line, words[0]);
            assert_eq!(found, Some(HeadedEntry { key, offset, immediate, head, body }));

            let draft = Draft { words: line };
            let entry = RingEntry::decode(&draft.line()).expect("an entry");
            assert_eq!((entry.key, entry.offset, entry.immediate), (key, offset, Some(immediate)));
            assert_eq!((entry.kind, entry.is_last), (EntryKind::Write, true));
            assert_eq!(entry.total, u64::from(body.len()) + 16);
            let is_inline = matches!(entry.place, DataLocation::Inline { .. });
            assert_eq!(is_inline, matches!(body, HeadedBody::Here(_)));
            if is_inline {
                let expected = [&head.to_le_bytes()[..], &all[..body.len() as usize]].concat();
                assert_eq!(draft.inline()[..expected.len()], expected);
            }
        }

        for bits in 0..=u8::MAX {
            for length in [0, 15, 16, 40, 41, 255] {
                let mut line = [0; CACHE_LINE];
                (line[4], line[5]) = (bits, length);
                line[32] = 200;
                let draft = Draft::of(&line);
                let found = headed_write_of(&draft.words, draft.words()[0]);
                let is_one =
                    (bits == SHORT_WRITE && (16..=40).contains(&length)) || bits == HEADED_WRITE;
                assert_eq!(found.is_some(), is_one, "{bits:#x} {length}");
                assert!(!is_one || RingEntry::decode(&line).is_ok(), "{bits:#x} {length}");
            }
        }
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
