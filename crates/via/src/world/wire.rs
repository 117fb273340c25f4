//! The protocol between ranks and launcher: messages, their bytes, and the frames of a stream.
//!
//! A frame is a length (`u32`, of what follows, at most [`FRAME_BYTES_MAX`]), a kind (`u8`) and the fields of
//! that kind: integers in little endian, strings and bytes preceded by their length (`u16`). Nothing here
//! does I/O, or panics on what a peer sends.

use std::fmt;

use thiserror::Error;

use super::{Identity, Membership, Rank, RankExit, WorldEvent};

/// The version of this protocol, which both sides must speak.
pub const VERSION: u16 = 2;
/// The longest key, in bytes. PMI-1 launchers guarantee that much.
pub const KEY_BYTES_MAX: usize = 32;
/// The longest value, in bytes: twice that many hexadecimal characters still fit into a value of PMI-1, whose
/// launchers guarantee 1023.
pub const VALUE_BYTES_MAX: usize = 500;
/// The most bytes of a frame behind its length.
pub const FRAME_BYTES_MAX: usize = 600;

/// The key under which a rank asks the hub for the keys that it shares with each single other rank; no rank can put it. The value
/// of rank `r` holds those of the ranks from `r` on, at most [`PAIR_KEYS_MAX`].
pub const PAIR_KEYS: &str = "vigie:pair-keys";
/// The most pair keys in one value.
pub const PAIR_KEYS_MAX: usize = VALUE_BYTES_MAX / PAIR_KEY_BYTES;
/// The length of a pair key, in bytes.
pub(super) const PAIR_KEY_BYTES: usize = 16;

/// The most missing ranks that are named.
pub const MISSING_MAX: usize = 100;

/// The longest text with which a launcher says why it expels a rank.
const TEXT_BYTES_MAX: usize = 300;
const LENGTH_BYTES: usize = 4;

/// A message from a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HubRequest {
    /// The first message: it asks which rank it is.
    Hello {
        /// The version of the protocol that it speaks.
        version: u16,
    },
    /// It publishes a value, once for each key.
    Put {
        /// The name.
        key: String,
        /// The bytes.
        value: Vec<u8>,
    },
    /// It asks for a value, to be sent as soon as there is one.
    Get {
        /// The rank whose value is asked for; `None` for all ranks.
        rank: Option<Rank>,
        /// The name.
        key: String,
    },
    /// It has entered a barrier.
    Enter {
        /// The barrier's number, from 1.
        round: u32,
    },
    /// It needs the others no longer.
    Leave,
}

/// A message from the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HubReply {
    /// The answer to [`HubRequest::Hello`].
    Welcome(Membership),
    /// A value that was asked for.
    Value {
        /// The rank that put it.
        rank: Rank,
        /// The name.
        key: String,
        /// The bytes.
        value: Vec<u8>,
    },
    /// A value that was asked for and will not come: its rank is gone.
    Absent {
        /// The rank.
        rank: Rank,
        /// The name.
        key: String,
    },
    /// All remaining ranks have entered the barrier.
    Passed {
        /// The barrier's number.
        round: u32,
    },
    /// Something happened to a rank.
    Event(WorldEvent),
    /// The receiver broke the rules; no further message follows.
    Expelled {
        /// The rule.
        why: String,
    },
    /// Ranks have not arrived in time; no further message follows.
    Missing {
        /// Their number.
        count: u32,
        /// The first [`MISSING_MAX`] of them.
        ranks: Vec<Rank>,
    },
}

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// A length beyond [`FRAME_BYTES_MAX`], or zero.
    #[error("a frame of {bytes} bytes; it must be 1 to {FRAME_BYTES_MAX}")]
    FrameLength {
        /// The length in the frame.
        bytes: u32,
    },
    /// A kind that this side does not know.
    #[error("a message of the unknown kind {kind}")]
    UnknownKind {
        /// The number.
        kind: u8,
    },
    /// A frame that ends before its last field.
    #[error("a message that ends before its last field")]
    Truncated,
    /// A frame that continues after its last field.
    #[error("a message with {bytes} bytes too many")]
    TrailingBytes {
        /// The number of surplus bytes.
        bytes: usize,
    },
    /// A frame without the valid tag of its connection.
    #[error("a message that was forged or changed on the way")]
    Forged,
    /// A field with an invalid value.
    #[error("a message with a bad {field}")]
    BadField {
        /// The field.
        field: &'static str,
    },
}

impl HubRequest {
    /// Returns the frame of this message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { version } => FrameBuilder::new(1).u16(*version).done(),
            Self::Put { key, value } => {
                FrameBuilder::new(2).bytes(key.as_bytes()).bytes(value).done()
            }
            Self::Get { rank, key } => {
                let rank = rank.map_or(EVERYBODY, |rank| rank.0);
                FrameBuilder::new(3).u32(rank).bytes(key.as_bytes()).done()
            }
            Self::Enter { round } => FrameBuilder::new(4).u32(*round).done(),
            Self::Leave => FrameBuilder::new(5).done(),
        }
    }

    /// Reads a frame without its length.
    ///
    /// # Errors
    /// [`WireError`]: [`encode`](Self::encode) does not make such bytes.
    pub fn decode(frame: &[u8]) -> Result<Self, WireError> {
        let mut fields = FieldReader(frame);
        let message = match fields.u8()? {
            1 => Self::Hello { version: fields.u16()? },
            2 => Self::Put { key: fields.key()?, value: fields.value()? },
            3 => {
                let rank = fields.u32()?;
                let rank = (rank != EVERYBODY).then_some(Rank(rank));
                Self::Get { rank, key: fields.key()? }
            }
            4 => Self::Enter { round: fields.u32()? },
            5 => Self::Leave,
            kind => return Err(WireError::UnknownKind { kind }),
        };
        fields.end(message)
    }
}

/// Stands for all ranks where a rank is asked for.
const EVERYBODY: u32 = u32::MAX;

impl HubReply {
    /// Returns the frame of this message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(membership) => FrameBuilder::new(65)
                .u16(VERSION)
                .u32(membership.rank.0)
                .u32(membership.size)
                .raw(&membership.identity.id)
                .raw(&membership.identity.secret)
                .done(),
            Self::Value { rank, key, value } => {
                FrameBuilder::new(66).u32(rank.0).bytes(key.as_bytes()).bytes(value).done()
            }
            Self::Absent { rank, key } => {
                FrameBuilder::new(67).u32(rank.0).bytes(key.as_bytes()).done()
            }
            Self::Passed { round } => FrameBuilder::new(68).u32(*round).done(),
            Self::Event(WorldEvent::Left { rank }) => FrameBuilder::new(69).u32(rank.0).done(),
            Self::Event(WorldEvent::Expelled { rank }) => FrameBuilder::new(70).u32(rank.0).done(),
            Self::Event(WorldEvent::Ended { rank, ending }) => {
                let (kind, number) = match ending {
                    RankExit::Exited(code) => (71, *code),
                    RankExit::Killed(signal) => (72, *signal),
                };
                FrameBuilder::new(kind).u32(rank.0).raw(&number.to_le_bytes()).done()
            }
            Self::Expelled { why } => {
                let mut end = why.len().min(TEXT_BYTES_MAX);
                while !why.is_char_boundary(end) {
                    end -= 1;
                }
                FrameBuilder::new(73).bytes(&why.as_bytes()[..end]).done()
            }
            Self::Missing { count, ranks } => {
                let named = &ranks[..ranks.len().min(MISSING_MAX)];
                let bytes = named.iter().flat_map(|rank| rank.0.to_le_bytes());
                FrameBuilder::new(74).u32(*count).bytes(&bytes.collect::<Vec<_>>()).done()
            }
        }
    }

    /// Reads a frame without its length.
    ///
    /// # Errors
    /// [`WireError`]: [`encode`](Self::encode) does not make such bytes.
    pub fn decode(frame: &[u8]) -> Result<Self, WireError> {
        let mut fields = FieldReader(frame);
        let message = match fields.u8()? {
            65 => {
                if fields.u16()? != VERSION {
                    return Err(WireError::BadField { field: "version" });
                }
                let (rank, size) = (fields.rank()?, fields.u32()?);
                if rank.0 >= size {
                    return Err(WireError::BadField { field: "rank" });
                }
                let identity = Identity { id: fields.array()?, secret: fields.array()? };
                Self::Welcome(Membership { rank, size, identity })
            }
            66 => Self::Value { rank: fields.rank()?, key: fields.key()?, value: fields.value()? },
            67 => Self::Absent { rank: fields.rank()?, key: fields.key()? },
            68 => Self::Passed { round: fields.u32()? },
            69 => Self::Event(WorldEvent::Left { rank: fields.rank()? }),
            70 => Self::Event(WorldEvent::Expelled { rank: fields.rank()? }),
            kind @ (71 | 72) => {
                let (rank, number) = (fields.rank()?, i32::from_le_bytes(fields.array()?));
                let ending = if kind == 71 { RankExit::Exited } else { RankExit::Killed }(number);
                Self::Event(WorldEvent::Ended { rank, ending })
            }
            73 => Self::Expelled { why: fields.text()? },
            74 => {
                let count = fields.u32()?;
                let bytes = fields.bytes(4 * MISSING_MAX, "list of ranks")?;
                let (ranks, rest) = bytes.as_chunks();
                if !rest.is_empty() {
                    return Err(WireError::BadField { field: "list of ranks" });
                }
                let ranks = ranks.iter().map(|bytes| Rank(u32::from_le_bytes(*bytes))).collect();
                Self::Missing { count, ranks }
            }
            kind => return Err(WireError::UnknownKind { kind }),
        };
        fields.end(message)
    }
}

/// Splits a stream of bytes into frames. Holds at most one frame beyond what it was fed.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// The number of `bytes` that were already returned.
    taken: usize,
}

impl Decoder {
    /// Returns a decoder at the beginning of a stream.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), taken: 0 }
    }

    /// Appends bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole frame without its length; `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`WireError::FrameLength`], after which the rest of the stream is meaningless.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, WireError> {
        Ok(self.next_tagged(0)?.map(|(_, _, body)| body))
    }

    /// Returns the next whole frame that is followed by a tag: with its length, its tag, and without its length.
    pub(super) fn next_tagged(
        &mut self,
        tag_bytes: usize,
    ) -> Result<Option<TaggedFrame<'_>>, WireError> {
        let rest = &self.bytes[self.taken..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_le_bytes(*length);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if !(1..=FRAME_BYTES_MAX).contains(&length) {
            return Err(WireError::FrameLength { bytes });
        }
        if rest.len() < length + tag_bytes {
            return Ok(None);
        }
        let frame = &self.bytes[self.taken..];
        self.taken += LENGTH_BYTES + length + tag_bytes;
        let (frame, rest) = frame.split_at(LENGTH_BYTES + length);
        Ok(Some((frame, &rest[..tag_bytes], &frame[LENGTH_BYTES..])))
    }
}

/// A frame with its length, its tag, and without its length.
type TaggedFrame<'a> = (&'a [u8], &'a [u8], &'a [u8]);

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("held_bytes", &(self.bytes.len() - self.taken)).finish()
    }
}

/// A frame that is being written.
struct FrameBuilder(Vec<u8>);

impl FrameBuilder {
    fn new(kind: u8) -> Self {
        let mut bytes = vec![0; LENGTH_BYTES];
        bytes.push(kind);
        Self(bytes)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u16(self, number: u16) -> Self {
        self.raw(&number.to_le_bytes())
    }

    fn u32(self, number: u32) -> Self {
        self.raw(&number.to_le_bytes())
    }

    /// Appends bytes preceded by their length. Bytes beyond the longest allowed field are cut off, so that
    /// the receiver refuses them rather than misunderstands what follows.
    fn bytes(self, bytes: &[u8]) -> Self {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(length).raw(&bytes[..usize::from(length)])
    }

    fn done(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - LENGTH_BYTES).unwrap_or(u32::MAX);
        self.0[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Returns whether every launcher can carry `key`.
pub(super) fn is_key(key: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(is_allowed)
}

/// The unread fields of a frame.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    fn rank(&mut self) -> Result<Rank, WireError> {
        self.u32().map(Rank)
    }

    fn bytes(&mut self, longest: usize, field: &'static str) -> Result<Vec<u8>, WireError> {
        let length = usize::from(self.u16()?);
        if length > longest {
            return Err(WireError::BadField { field });
        }
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(bytes.to_vec())
    }

    fn key(&mut self) -> Result<String, WireError> {
        let key = self.bytes(KEY_BYTES_MAX, "key")?;
        let key = String::from_utf8(key).ok().filter(|key| is_key(key));
        key.ok_or(WireError::BadField { field: "key" })
    }

    fn value(&mut self) -> Result<Vec<u8>, WireError> {
        self.bytes(VALUE_BYTES_MAX, "value")
    }

    fn text(&mut self) -> Result<String, WireError> {
        let text = self.bytes(TEXT_BYTES_MAX, "text")?;
        String::from_utf8(text).map_err(|_| WireError::BadField { field: "text" })
    }

    /// Returns `message` if no byte is left.
    fn end<T>(self, message: T) -> Result<T, WireError> {
        match self.0.len() {
            0 => Ok(message),
            bytes => Err(WireError::TrailingBytes { bytes }),
        }
    }
}

#[cfg(test)]
mod tests;
