//! RDMA writes with immediate data that begin with a head: 16 bytes that their receiver looks at first.
//!
//! The head travels with the announcement, and so do the bytes behind it if they are few. Adapters that write the bytes of a short message
//! into its completion (mlx5 calls this *scatter to CQE*) spare the receiver the memory that they were sent to. Here this also spares both
//! sides most of a descriptor's instructions.

use super::{RemoteKey, ViId};

/// The bytes of a head.
pub const HEAD_BYTES: usize = 16;

/// The most bytes behind a head that travel with it.
pub const SHORT_BODY_MAX: usize = 24;

const WORDS: usize = SHORT_BODY_MAX / 8;

/// At most [`SHORT_BODY_MAX`] bytes, as words: narrower loads of what was just stored need not wait for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortBody {
    words: [u64; WORDS],
    length: usize,
}

impl ShortBody {
    /// Returns these bytes; `None` if they are more than [`SHORT_BODY_MAX`].
    #[inline(always)]
    #[must_use]
    pub const fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > SHORT_BODY_MAX {
            return None;
        }
        let words = [word_at(bytes, 0), word_at(bytes, 8), word_at(bytes, 16)];
        Some(Self { words, length: bytes.len() })
    }

    /// Returns the first `length` of these bytes, given as words.
    #[inline(always)]
    pub(crate) const fn of_words(words: [u64; WORDS], length: usize) -> Self {
        Self { words, length: if length < SHORT_BODY_MAX { length } else { SHORT_BODY_MAX } }
    }

    /// Returns the bytes as words; those behind the last byte mean nothing.
    #[inline(always)]
    pub(crate) const fn words(&self) -> [u64; WORDS] {
        self.words
    }

    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "an empty body is as good as any")]
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Copies as many of the bytes as there is room for to `place`. Returns how many those are.
    #[inline(always)]
    pub fn copy_to(&self, place: &mut [u8]) -> usize {
        let count = place.len().min(self.len());
        let [first, second, third] = self.words;
        let (wholes, part) = place[..count].as_chunks_mut::<8>();
        // Each word in a register of its own, not in an array.
        let last = match wholes {
            [] => first,
            [one] => {
                *one = first.to_ne_bytes();
                second
            }
            [one, two, rest @ ..] => {
                (*one, *two) = (first.to_ne_bytes(), second.to_ne_bytes());
                rest.iter_mut().for_each(|three| *three = third.to_ne_bytes());
                third
            }
        };
        for (byte, of) in part.iter_mut().zip(last.to_ne_bytes()) {
            *byte = of;
        }
        count
    }

    /// Returns the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes);
        bytes
    }
}

/// Returns the word that begins at `at`, filled up by zeros.
#[inline(always)]
const fn word_at(bytes: &[u8], at: usize) -> u64 {
    if bytes.len() <= at {
        return 0;
    }
    let (_, rest) = bytes.split_at(at);
    match rest.first_chunk::<8>() {
        Some(word) => u64::from_ne_bytes(*word),
        None => partial_word(rest),
    }
}

/// Returns a word that starts with fewer than eight bytes, without a detour through memory.
#[inline]
pub(crate) const fn partial_word(bytes: &[u8]) -> u64 {
    let (mut word, mut shift, mut rest) = (0, 0, bytes);
    if let Some((four, behind)) = rest.split_first_chunk::<4>() {
        word = u32::from_le_bytes(*four) as u64;
        (shift, rest) = (32, behind);
    }
    if let Some((two, behind)) = rest.split_first_chunk::<2>() {
        word |= (u16::from_le_bytes(*two) as u64) << shift;
        (shift, rest) = (shift + 16, behind);
    }
    if let [one] = rest {
        word |= (*one as u64) << shift;
    }
    // The bytes are now in address order, as in a little-endian word.
    u64::from_le(word)
}

/// Where the bytes behind a head are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a caller must handle each")]
pub enum HeadedBody {
    /// Here alone: neither they nor the head were written to memory.
    Here(ShortBody),
    /// In memory, behind the place of the head, which was not written there. Their number.
    InPlace(u32),
}

impl HeadedBody {
    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "an empty body is as good as any")]
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a short body has at most 24 bytes")]
    pub const fn len(&self) -> u32 {
        match self {
            Self::Here(short) => short.length as u32,
            Self::InPlace(length) => *length,
        }
    }
}

/// A headed write that has arrived. It consumed no receive descriptor: the first one, which it needed, is still the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "providers must be able to make one")]
pub struct HeadedWrite {
    /// The VI by which it came.
    pub vi: ViId,
    /// The cookie of that receive descriptor.
    pub cookie: u64,
    /// The immediate data.
    pub immediate: i32,
    /// The key of the memory that the peer wrote to.
    pub key: RemoteKey,
    /// The place there, in bytes from its beginning.
    pub offset: u64,
    /// The first 16 bytes, as a little-endian number.
    pub head: u128,
    /// What follows them.
    pub body: HeadedBody,
}

/// The result of [`Provider::poll_headed_write`](super::Provider::poll_headed_write).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a caller must handle each")]
pub enum HeadedPoll {
    /// A headed write has arrived.
    Write(HeadedWrite),
    /// Nothing has arrived.
    Nothing,
    /// Something else may have: call [`poll_cq`](super::Provider::poll_cq).
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: bytes are kept as they are. Method: every length that fits, and one that does not, to places of every length.
    #[test]
    fn bytes_are_kept() {
        let all: Vec<u8> = (1..=25).collect();
        for length in 0..=24 {
            let short = ShortBody::new(&all[..length]).expect("it fits");
            assert_eq!((short.len(), short.to_vec()), (length, all[..length].to_vec()));
            for room in 0..=25 {
                let mut place = [0; 25];
                let count = short.copy_to(&mut place[..room]);
                assert_eq!(count, length.min(room));
                assert_eq!((&place[..count], &place[count..]), (&all[..count], &[0; 25][count..]));
            }
            assert_eq!(ShortBody::of_words(short.words(), short.length), short);
            assert_eq!(HeadedBody::Here(short).len() as usize, length);
        }
        assert_eq!(ShortBody::new(&all), None);
        assert_eq!(
            ShortBody::of_words([7; WORDS], 200).to_vec().len(),
            24,
            "a peer may say anything"
        );
    }
}
