//! Packets: the messages between members.
//!
//! ```text
//! magic "vB", version u8, kind u8, group u64, epoch u32, sender u16, round u16, length u16, 0 u16; payload; tag u64 if there is a key
//! ```
//! Numbers are little-endian. A group's name is 64 random bits that are in every packet: strangers are kept out as
//! long as they cannot listen. If they can, a key gives each packet a tag, SipHash-2-4 [siphash, §6].

use std::{collections::BTreeSet, fmt};

use thiserror::Error;
pub use vigie_via::Secret as Key;
use vigie_via::auth::{PACKET_TAG_BYTES, is_same};

use crate::{group::Rank, schedule::Round};

/// The length of a packet's header, in bytes.
pub const HEADER_BYTES: usize = 24;

/// The longest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1024;

/// The longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX + PACKET_TAG_BYTES;

/// The most dead members that a packet can name.
pub const DEAD_MAX: usize = PAYLOAD_BYTES_MAX / 2;

const MAGIC: [u8; 2] = *b"vB";
const VERSION: u8 = 2;

const SIGNAL: u8 = 1;
const NACK: u8 = 2;
const ALIVE: u8 = 3;
const VIEW: u8 = 4;
const DECIDED: u8 = 5;
const LEAVE_ACK: u8 = 6;

/// A group's name: 64 random bits, the same at all members and secret from others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "its maker draws it")]
pub struct GroupId(pub u64);

impl GroupId {
    /// Returns the name of the group that remains without `dead`, or of the next one if no member is dead: members
    /// that know this name and agree on the dead derive the same name, and no other process can.
    pub(crate) fn without(self, dead: &BTreeSet<Rank>) -> Self {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.0.to_le_bytes());
        key[8..].copy_from_slice(&(!self.0).to_le_bytes());
        let dead: Vec<u8> = dead.iter().flat_map(|rank| rank.0.to_le_bytes()).collect();
        Self(u64::from_le_bytes(Key::new(key).short_tag(&dead)))
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupId(_)")
    }
}

/// A packet that was read, or is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet<'a> {
    /// The group.
    pub group: GroupId,
    /// The barrier, counted from 0, wrapping around.
    pub epoch: u32,
    /// The sender.
    pub sender: Rank,
    /// The contents.
    pub body: Body<'a>,
}

/// The contents of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body<'a> {
    /// A message of the schedule.
    Signal {
        /// Its number among the sender's messages.
        round: Round,
        /// The value to reduce, of the length that the group has agreed on.
        value: &'a [u8],
    },
    /// The sender waits for this message of the receiver.
    Nack {
        /// Its number among the receiver's messages.
        round: Round,
        /// Repeated by an answer, so that an older answer is not mistaken for it.
        attempt: u32,
    },
    /// The sender is alive, and has not yet sent the message it was asked for.
    AliveReply {
        /// The attempt number of the question.
        attempt: u32,
    },
    /// The sender believes these members to be dead.
    View {
        /// True if the sender waits for the receiver's view.
        wants_reply: bool,
        /// The dead members.
        dead: DeadRanks<'a>,
    },
    /// The survivors have agreed that these members are dead.
    Decided {
        /// The dead members.
        dead: DeadRanks<'a>,
    },
    /// The sender knows that the receiver leaves; the packet's epoch is the sender's own barrier.
    LeaveAck,
}

/// Some ranks, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadRanks<'a>(&'a [u8]);

impl<'a> DeadRanks<'a> {
    /// Reads ranks of 16 bits, ascending, least significant byte first: at most [`DEAD_MAX`].
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let is_ascending = Self(bytes).ranks().is_sorted_by(|one, next| one < next);
        (bytes.len().is_multiple_of(2) && is_ascending).then_some(Self(bytes))
    }

    /// Returns the ranks in order.
    pub fn ranks(self) -> impl Iterator<Item = Rank> + 'a {
        let rank = |bytes: &[u8; 2]| Rank(u16::from_le_bytes(*bytes).into());
        self.0.as_chunks().0.iter().map(rank)
    }
}

/// Encodes ranks for a packet; `None` if there are too many.
pub(crate) fn encode_ranks(ranks: &BTreeSet<Rank>) -> Option<Vec<u8>> {
    let bytes = |rank: &Rank| u16::try_from(rank.0).ok().map(u16::to_le_bytes);
    let bytes: Vec<[u8; 2]> = ranks.iter().map(bytes).collect::<Option<_>>()?;
    (bytes.len() <= DEAD_MAX).then(|| bytes.concat())
}

/// The reason why bytes are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than any packet, or longer than the longest.
    #[error("{length} bytes cannot be a packet")]
    Length {
        /// The number of bytes.
        length: usize,
    },
    /// It does not begin with the magic bytes.
    #[error("not a packet of this protocol")]
    Magic,
    /// Another version.
    #[error(
        "a packet of version {version}, not {VERSION}: all members need the same version of this library"
    )]
    Version {
        /// The version.
        version: u8,
    },
    /// The tag is wrong: the packet is a stranger's, or was changed on the way.
    #[error("the tag is wrong")]
    Tag,
    /// The contents are invalid for the packet's kind.
    #[error("a packet of kind {kind} with invalid contents")]
    Contents {
        /// The kind.
        kind: u8,
    },
}

impl<'a> Packet<'a> {
    /// Creates a packet.
    #[must_use]
    pub const fn new(group: GroupId, epoch: u32, sender: Rank, body: Body<'a>) -> Self {
        Self { group, epoch, sender, body }
    }

    /// Reads a packet. With a key, its tag must be right; without one, it must have no tag.
    ///
    /// # Errors
    /// [`ParseError`]. Only the header is examined before the tag.
    pub fn parse(bytes: &'a [u8], key: Option<&Key>) -> Result<Self, ParseError> {
        let (header, payload) = PacketHeader::parse(bytes, (MAGIC, VERSION), key)?;
        let PacketHeader { kind, group, number: epoch, sender, word } = header;
        let body = Body::read(kind, word, payload).ok_or(ParseError::Contents { kind })?;
        Ok(Self { group, epoch, sender, body })
    }

    /// Writes the packet, with a tag if there is a key.
    #[must_use]
    pub fn encode(&self, key: Option<&Key>) -> Vec<u8> {
        let attempt;
        let (kind, word, payload) = match self.body {
            Body::Signal { round, value } => (SIGNAL, round.0, value),
            Body::Nack { round, attempt: number } => {
                attempt = number.to_le_bytes();
                (NACK, round.0, &attempt[..])
            }
            Body::AliveReply { attempt: number } => {
                attempt = number.to_le_bytes();
                (ALIVE, 0, &attempt[..])
            }
            Body::View { wants_reply, dead } => (VIEW, u16::from(wants_reply), dead.0),
            Body::Decided { dead } => (DECIDED, 0, dead.0),
            Body::LeaveAck => (LEAVE_ACK, 0, &[][..]),
        };
        let Self { group, epoch: number, sender, .. } = *self;
        PacketHeader { kind, group, number, sender, word }.encode((MAGIC, VERSION), payload, key)
    }
}

/// The header that packets share with the probes of a transport.
pub(crate) struct PacketHeader {
    pub(crate) kind: u8,
    pub(crate) group: GroupId,
    pub(crate) number: u32,
    pub(crate) sender: Rank,
    pub(crate) word: u16,
}

impl PacketHeader {
    /// Reads a header and its payload. With a key, the tag must be right; without one, there must be none.
    pub(crate) fn parse<'a>(
        bytes: &'a [u8],
        (magic, version): ([u8; 2], u8),
        key: Option<&Key>,
    ) -> Result<(Self, &'a [u8]), ParseError> {
        let wrong = Err(ParseError::Length { length: bytes.len() });
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return wrong };
        if header[..2] != magic {
            return Err(ParseError::Magic);
        }
        if header[2] != version {
            return Err(ParseError::Version { version: header[2] });
        }
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let (kind, length) = (header[3], usize::from(half(20)));
        let tag_bytes = if key.is_some() { PACKET_TAG_BYTES } else { 0 };
        if length > PAYLOAD_BYTES_MAX || rest.len() != length + tag_bytes {
            return wrong;
        }
        let (payload, tag) = rest.split_at(length);
        if key.is_some_and(|key| !is_same(&key.short_tag(&bytes[..HEADER_BYTES + length]), tag)) {
            return Err(ParseError::Tag);
        }
        if half(22) != 0 {
            return Err(ParseError::Contents { kind });
        }
        let [_, _, _, _, a, b, c, d, e, f, g, h, i, j, k, l, ..] = *header;
        let group = GroupId(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        let number = u32::from_le_bytes([i, j, k, l]);
        Ok((Self { kind, group, number, sender: Rank(half(16).into()), word: half(18) }, payload))
    }

    /// Writes a header and its payload, with a tag if there is a key.
    pub(crate) fn encode(
        &self,
        (magic, version): ([u8; 2], u8),
        payload: &[u8],
        key: Option<&Key>,
    ) -> Vec<u8> {
        let payload = &payload[..payload.len().min(PAYLOAD_BYTES_MAX)];
        // Both fit: ranks of the largest group have 16 bits, and the payload is truncated above.
        let sender = u16::try_from(self.sender.0).unwrap_or(u16::MAX);
        let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        let mut packet = Vec::with_capacity(HEADER_BYTES + payload.len() + PACKET_TAG_BYTES);
        packet.extend(magic);
        packet.extend([version, self.kind]);
        packet.extend(self.group.0.to_le_bytes());
        packet.extend(self.number.to_le_bytes());
        packet.extend([sender, self.word, length, 0].map(u16::to_le_bytes).as_flattened());
        packet.extend(payload);
        if let Some(key) = key {
            packet.extend(key.short_tag(&packet));
        }
        packet
    }
}

/// Returns whether bytes may be a [`Body::View`], which is rare: a check before any other.
#[inline]
#[cfg(not(loom))]
pub(crate) fn is_view(bytes: &[u8]) -> bool {
    bytes.get(3) == Some(&VIEW)
}

impl<'a> Body<'a> {
    fn read(kind: u8, round: u16, payload: &'a [u8]) -> Option<Self> {
        let attempt = || payload.try_into().ok().map(u32::from_le_bytes);
        match (kind, round) {
            (SIGNAL, _) => Some(Self::Signal { round: Round(round), value: payload }),
            (NACK, _) => Some(Self::Nack { round: Round(round), attempt: attempt()? }),
            (ALIVE, 0) => Some(Self::AliveReply { attempt: attempt()? }),
            (VIEW, 0 | 1) => {
                Some(Self::View { wants_reply: round == 1, dead: DeadRanks::new(payload)? })
            }
            (DECIDED, 0) => Some(Self::Decided { dead: DeadRanks::new(payload)? }),
            (LEAVE_ACK, 0) if payload.is_empty() => Some(Self::LeaveAck),
            _ => None,
        }
    }

    /// A view with the dead that [`encode_ranks`] has encoded.
    pub(crate) const fn view(list: &'a [u8], wants_reply: bool) -> Self {
        Self::View { wants_reply, dead: DeadRanks(list) }
    }

    /// Like [`Self::view`], for a decision.
    pub(crate) const fn decided(list: &'a [u8]) -> Self {
        Self::Decided { dead: DeadRanks(list) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(list: &[u8]) -> Vec<Packet<'_>> {
        [
            Body::Signal { round: Round(65_535), value: &[] },
            Body::Signal { round: Round(3), value: &[9; PAYLOAD_BYTES_MAX] },
            Body::Nack { round: Round(7), attempt: u32::MAX },
            Body::AliveReply { attempt: 5 },
            Body::view(list, true),
            Body::view(&[], false),
            Body::decided(list),
            Body::LeaveAck,
        ]
        .into_iter()
        .map(|body| Packet::new(GroupId(0x0123_4567_89ab_cdef), 0xdead_beef, Rank(65_535), body))
        .collect()
    }

    /// Goal: every written packet can be read. Method: every kind, with a tag and without; a list of ranks.
    #[test]
    fn packets_are_read_as_written() {
        let ranks: BTreeSet<Rank> = [0, 255, 256, 65_535].map(Rank).into();
        let list = encode_ranks(&ranks).expect("few");
        let key = Key::new([7; 16]);
        for packet in packets(&list) {
            for key in [None, Some(&key)] {
                let bytes = packet.encode(key);
                assert!(bytes.len() <= PACKET_BYTES_MAX);
                assert_eq!(Packet::parse(&bytes, key), Ok(packet));
            }
            if let Body::Decided { dead } = packet.body {
                assert!(dead.ranks().eq(ranks.iter().copied()));
            }
        }
        let many: BTreeSet<Rank> = (0..513).map(Rank).collect();
        assert_eq!(encode_ranks(&many), None);
    }

    /// Goal: the layout is the documented one, so that versions can be told apart for ever. Method: one packet by hand.
    #[test]
    fn the_layout_is_fixed() {
        let body = Body::Signal { round: Round(0x0102), value: &[0xaa] };
        let packet = Packet::new(GroupId(0x1112_1314_1516_1718), 0x2122_2324, Rank(0x3132), body);
        let bytes = [
            b'v', b'B', 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22,
            0x21, 0x32, 0x31, 0x02, 0x01, 1, 0, 0, 0, 0xaa,
        ];
        assert_eq!(packet.encode(None), bytes);
    }

    /// Goal: with a key, no bit can be changed. Method: every bit of every kind; cut and prolonged; without the tag,
    /// with another key.
    #[test]
    fn tags_cover_everything() {
        let list = encode_ranks(&[1, 2].map(Rank).into()).expect("few");
        let key = Key::new([7; 16]);
        for packet in packets(&list) {
            let bytes = packet.encode(Some(&key));
            for bit in 0..bytes.len().min(64) * 8 {
                let mut forged = bytes.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert!(Packet::parse(&forged, Some(&key)).is_err(), "{packet:?}, bit {bit}");
            }
            for length in 0..bytes.len() {
                assert!(Packet::parse(&bytes[..length], Some(&key)).is_err());
                assert!(
                    Packet::parse(&bytes[..length], None).is_err() || length + 8 == bytes.len()
                );
            }
            assert!(Packet::parse(&[&bytes[..], &[0]].concat(), Some(&key)).is_err());
            assert!(Packet::parse(&packet.encode(None), Some(&key)).is_err());
            let other = Key::new([8; 16]);
            assert_eq!(Packet::parse(&bytes, Some(&other)), Err(ParseError::Tag));
        }
    }

    /// Goal: packets that no member would send are refused. Method: each field with a value that it cannot have.
    #[test]
    fn impossible_contents_are_refused() {
        let list = encode_ranks(&[1, 2].map(Rank).into()).expect("few");
        let parse = |bytes: &[u8]| Packet::parse(bytes, None).expect_err("impossible");
        let view = packets(&list)[4].encode(None);
        let with = |at: usize, byte: u8| {
            let mut bytes = view.clone();
            bytes[at] = byte;
            bytes
        };
        assert_eq!(parse(&with(0, 0)), ParseError::Magic);
        assert_eq!(parse(&with(2, 1)), ParseError::Version { version: 1 });
        assert!(parse(&with(2, 1)).to_string().contains("same version"));
        let contents = ParseError::Contents { kind: VIEW };
        assert_eq!(parse(&with(3, 0)), ParseError::Contents { kind: 0 });
        assert_eq!(parse(&with(3, ALIVE)), ParseError::Contents { kind: ALIVE });
        assert_eq!(parse(&with(3, LEAVE_ACK)), ParseError::Contents { kind: LEAVE_ACK });
        assert_eq!(parse(&with(18, 2)), contents, "a flag that there is not");
        assert_eq!(parse(&with(22, 1)), contents, "what is 0");
        assert_eq!(parse(&with(26, 1)), contents, "one rank twice");
        assert!(matches!(parse(&with(20, 3)), ParseError::Length { .. }));
        assert!(matches!(parse(&[0; 5000]), ParseError::Magic));
        assert!(matches!(parse(&[]), ParseError::Length { length: 0 }));
    }

    /// Goal: the name of a smaller group depends on both the survivors and the old name. Method: change either.
    #[test]
    fn smaller_groups_have_names_of_their_own() {
        let id = GroupId(42);
        let of = |ranks: &[u32]| id.without(&ranks.iter().copied().map(Rank).collect());
        assert!(of(&[1]) != of(&[2]) && of(&[1]) != of(&[1, 2]) && of(&[1]) != id);
        assert!(of(&[1]) == of(&[1]) && GroupId(43).without(&[Rank(1)].into()) != of(&[1]));
    }
}
