//! The formats that travel: envelopes of frames, and control entries. All fields are little-endian. Bytes that arrive
//! were copied out of shared memory once, and are checked here.

/// The length of an envelope, in bytes.
pub(super) const ENVELOPE_BYTES: usize = 16;

/// The length of what follows the envelope of a message in several frames, in bytes.
pub(super) const OPENING_BYTES: usize = 32;

/// The length of a control entry, in bytes.
pub(super) const CONTROL_BYTES: usize = 32;

/// The kind of a frame in the RDMA area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameKind {
    /// A whole message.
    Eager,
    /// The beginning of a message in several frames: an [`Opening`] follows, then the first bytes.
    First,
    /// More of a message: its `id` is the stream that [`Self::First`] opened.
    Data,
    /// The rest of a message will not come: its `id` is the stream.
    Abort,
    /// A whole message whose bytes were put in place before: an [`Opening`] says where.
    Loaned,
    /// A piece of the area that will be filled later, or will not be used.
    Reserved,
}

/// The sender wants to be told when a receive matches the message: synchronous mode.
pub(super) const FLAG_SYNCHRONOUS: u8 = 1;
/// The sender believes that a receive is posted: ready mode.
pub(super) const FLAG_READY: u8 = 2;
/// The opening contains the key of memory that holds the message.
pub(super) const FLAG_KEY: u8 = 4;
/// This is the last frame of its message.
pub(super) const FLAG_LAST: u8 = 8;
/// The peer has paused this side: none of the message's bytes is sent before the peer grants them.
pub(super) const FLAG_ANNOUNCED: u8 = 16;
/// The `id` of a message whose sender expects no answer.
pub(super) const NO_REQUEST: u32 = u32::MAX;
/// All flags.
const FLAGS: u8 = 31;

/// The head of a frame: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the wire's format is fixed")]
pub struct Envelope {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// `FLAG_…` bits.
    pub flags: u8,
    /// The communicator's context.
    pub context: u16,
    /// The message's tag.
    pub tag: u32,
    /// The index of the sender's request, if it waits for an answer; in a data frame, the stream.
    pub id: u32,
    /// The bytes of payload in this frame.
    pub length: u32,
}

impl Envelope {
    /// Returns the bytes on the wire.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; ENVELOPE_BYTES] {
        self.bits().to_le_bytes()
    }

    /// Returns these bytes as a number, which travels in registers.
    #[inline(always)]
    pub(super) fn bits(&self) -> u128 {
        let kind = match self.kind {
            FrameKind::Eager => 1,
            FrameKind::First => 2,
            FrameKind::Data => 3,
            FrameKind::Abort => 4,
            FrameKind::Loaned => 5,
            FrameKind::Reserved => 6_u128,
        };
        kind | u128::from(self.flags) << 8
            | u128::from(self.context) << 16
            | u128::from(self.tag) << 32
            | u128::from(self.id) << 64
            | u128::from(self.length) << 96
    }

    /// Returns the envelope with these [bits](Self::bits), or `None` if they have an unknown kind or flag.
    #[inline(always)]
    pub(super) fn of_bits(bits: u128) -> Option<Self> {
        Self::decode(bits.to_le_bytes())
    }

    /// Returns the envelope in these bytes, or `None` if they have an unknown kind or flag.
    #[inline]
    #[must_use]
    pub fn decode(bytes: [u8; ENVELOPE_BYTES]) -> Option<Self> {
        let [kind, flags, c0, c1, t0, t1, t2, t3, i0, i1, i2, i3, l0, l1, l2, l3] = bytes;
        let kind = match kind {
            1 => FrameKind::Eager,
            2 => FrameKind::First,
            3 => FrameKind::Data,
            4 => FrameKind::Abort,
            5 => FrameKind::Loaned,
            6 => FrameKind::Reserved,
            _ => return None,
        };
        if flags & !FLAGS != 0 {
            return None;
        }
        Some(Self {
            kind,
            flags,
            context: u16::from_le_bytes([c0, c1]),
            tag: u32::from_le_bytes([t0, t1, t2, t3]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
        })
    }

    /// Returns whether a flag is set.
    #[inline]
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The opening of a message in several frames: 32 bytes after the envelope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the wire's format is fixed")]
pub struct Opening {
    /// The length of the whole message, in bytes.
    pub total: u64,
    /// The sender's request.
    pub request: u64,
    /// The key of the memory that holds the message, with `FLAG_KEY`; unused for a loan.
    pub key: u64,
    /// The offset in that memory; for a loan, in the area.
    pub offset: u64,
}

impl Opening {
    /// Returns the bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; OPENING_BYTES] {
        let mut bytes = [0; OPENING_BYTES];
        for (to, word) in
            bytes.chunks_exact_mut(8).zip([self.total, self.request, self.key, self.offset])
        {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the opening in these bytes.
    #[must_use]
    pub fn decode(bytes: [u8; OPENING_BYTES]) -> Self {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(word)
        };
        Self { total: word(0), request: word(1), key: word(2), offset: word(3) }
    }
}

/// A control entry, which one engine sends to another beside the messages: it has its own ring, whose entries are taken at once,
/// so that no flood of messages can hold it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// A receive matched the peer's message.
    Matched {
        /// The sender's request; for a message in one frame, only its index is known.
        request: u64,
    },
    /// The peer may send its message up to this many bytes.
    Grant {
        /// The sender's request.
        request: u64,
        /// The limit, in bytes from the beginning of the message.
        limit: u64,
    },
    /// The peer may send this announced message up to this many bytes, although no receive has matched it.
    Invite {
        /// The sender's request.
        request: u64,
        /// The limit, in bytes from the beginning of the message.
        limit: u64,
    },
    /// The peer may send the messages that it has announced, as far as it sends messages that no receive has matched.
    Admit {
        /// The number of the last one of them, in the order of the announcements on this connection, from 1 on.
        through: u64,
    },
    /// The message was read from the peer's memory: its owner may have the memory back.
    Finished {
        /// The sender's request.
        request: u64,
    },
    /// The peer wants its message back, unless a receive has matched it.
    Cancel {
        /// The sender's request.
        request: u64,
    },
    /// Too many bytes wait for receives: announce messages without their bytes, and continue none that has no grant.
    Pause,
    /// Takes [`Self::Pause`] back.
    Resume,
    /// A reserved piece of the area will not be filled.
    Unreserve {
        /// The beginning of the piece, in bytes.
        offset: u64,
    },
    /// The answer to [`Self::Cancel`].
    Cancelled {
        /// The sender's request.
        request: u64,
        /// True if no receive will ever see the message.
        is_cancelled: bool,
    },
}

impl Control {
    /// Returns the bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; CONTROL_BYTES] {
        let (kind, request, value) = match *self {
            Self::Matched { request } => (1_u64, request, 0),
            Self::Grant { request, limit } => (2, request, limit),
            Self::Finished { request } => (3, request, 0),
            Self::Cancel { request } => (4, request, 0),
            Self::Cancelled { request, is_cancelled } => (5, request, u64::from(is_cancelled)),
            Self::Pause => (6, 0, 0),
            Self::Resume => (7, 0, 0),
            Self::Unreserve { offset } => (8, 0, offset),
            Self::Invite { request, limit } => (9, request, limit),
            Self::Admit { through } => (10, 0, through),
        };
        let mut bytes = [0; CONTROL_BYTES];
        bytes[..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&request.to_le_bytes());
        bytes[16..24].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// Returns the entry in these bytes, or `None` if its kind is unknown.
    #[must_use]
    pub fn decode(bytes: [u8; CONTROL_BYTES]) -> Option<Self> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(word)
        };
        let (request, value) = (word(1), word(2));
        match word(0) {
            1 => Some(Self::Matched { request }),
            2 => Some(Self::Grant { request, limit: value }),
            3 => Some(Self::Finished { request }),
            4 => Some(Self::Cancel { request }),
            5 if value <= 1 => Some(Self::Cancelled { request, is_cancelled: value == 1 }),
            6 => Some(Self::Pause),
            7 => Some(Self::Resume),
            8 => Some(Self::Unreserve { offset: value }),
            9 => Some(Self::Invite { request, limit: value }),
            10 => Some(Self::Admit { through: value }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: decoding ends whatever bytes arrive, and what it accepts encodes to the same bytes again.
        /// Method: random bytes.
        #[test]
        fn envelopes_round_trip(mut bytes in any::<[u8; ENVELOPE_BYTES]>(), is_plausible: bool) {
            if is_plausible {
                bytes[0] = bytes[0] % 6 + 1;
                bytes[1] &= FLAGS;
            }
            let decoded = Envelope::decode(bytes);
            prop_assert_eq!(decoded.is_some(), (1..=6).contains(&bytes[0]) && bytes[1] <= FLAGS);
            if let Some(envelope) = decoded {
                prop_assert_eq!(envelope.encode(), bytes);
            }
        }

        /// Goal: the same for openings and control entries. Method: random words.
        #[test]
        fn control_round_trips(kind in 0_u64..12, request: u64, value in prop_oneof![0_u64..3, any::<u64>()]) {
            let mut bytes = [0; CONTROL_BYTES];
            bytes[..8].copy_from_slice(&kind.to_le_bytes());
            bytes[8..16].copy_from_slice(&request.to_le_bytes());
            bytes[16..24].copy_from_slice(&value.to_le_bytes());
            let decoded = Control::decode(bytes);
            let is_known = (1..=10).contains(&kind) && (kind != 5 || value <= 1);
            prop_assert_eq!(decoded.is_some(), is_known);
            if let Some(control) = decoded {
                prop_assert_eq!(Control::decode(control.encode()), Some(control));
            }
            let opening = Opening { total: request, request: value, key: kind, offset: !value };
            prop_assert_eq!(Opening::decode(opening.encode()), opening);
        }
    }
}
