//! Packets: what travels between two nodes, and what they say when they meet.
//!
//! ```text
//! packet     kind u8, flags u8, 0 u16, tag u32, destination u32, source u32, message u32, length u32, offset u32,
//!            credit u32; payload of data packets
//! greeting   "VFwd", version u16, role u8, 0 u8, payload u32, packets u32, longest message u32, 0 u32
//! ```
//! Numbers are little-endian. What makes no sense is no packet: whoever sent it is cut off.

/// What every packet begins with, in bytes.
pub(super) const HEADER_BYTES: usize = 32;

/// [`HEADER_BYTES`], where lengths are 32 bits.
pub(super) const HEADER_BYTES_U32: u32 = 32;

const MAGIC: [u8; 4] = *b"VFwd";
const VERSION: u16 = 1;

/// Flags of packets.
const WANTS_DELIVERED: u8 = 1;

/// The longest payload of a packet, in bytes.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 60_000;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A piece of a message.
    Data,
    /// Nothing but credit.
    Credit,
    /// To the source: so many (`message`) of its messages to `destination` are out of the window.
    Delivered,
    /// From the source, behind its messages: an acknowledgement is wanted.
    Finish,
    /// To the source: `message` messages were delivered, `length` were dropped on purpose.
    Finished,
    /// To the source: `destination` cannot be reached any more.
    Gone,
    /// From a forwarder: in the place of a message that its algorithm dropped, so that counts stay right.
    Dropped,
    /// From a forwarder: the rest of what began to arrive of `source` will not come, nor will anything else.
    Abort,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Data,
        Self::Credit,
        Self::Delivered,
        Self::Finish,
        Self::Finished,
        Self::Gone,
        Self::Dropped,
        Self::Abort,
    ];

    /// Whether it takes its turn among the data, and uses credit as data does.
    pub(super) const fn is_in_order(self) -> bool {
        matches!(self, Self::Data | Self::Finish | Self::Dropped | Self::Abort)
    }

    const fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Credit => 2,
            Self::Delivered => 3,
            Self::Finish => 4,
            Self::Finished => 5,
            Self::Gone => 6,
            Self::Dropped => 7,
            Self::Abort => 8,
        }
    }
}

/// What a packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Whether the source wants to hear when this message is out of its window.
    pub(super) wants_delivered: bool,
    /// The user's.
    pub(super) tag: u32,
    /// The final destination's number.
    pub(super) destination: u32,
    /// The source's number, as the forwarder gives it out; zero from the source itself.
    pub(super) source: u32,
    /// The number of the message among the source's for this destination.
    pub(super) message: u32,
    /// The length of the message in bytes.
    pub(super) length: u32,
    /// Where the payload begins in the message.
    pub(super) offset: u32,
    /// How many of the peer's packets with credit this side is done with, since the connection began.
    pub(super) credit: u32,
}

impl Header {
    /// A packet about a destination and a source; everything else is zero.
    pub(super) const fn new(kind: Kind, destination: u32, source: u32) -> Self {
        Self {
            kind,
            wants_delivered: false,
            tag: 0,
            destination,
            source,
            message: 0,
            length: 0,
            offset: 0,
            credit: 0,
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.code();
        bytes[1] = u8::from(self.wants_delivered) * WANTS_DELIVERED;
        let words = [
            self.tag,
            self.destination,
            self.source,
            self.message,
            self.length,
            self.offset,
            self.credit,
        ];
        for (place, word) in bytes[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the header of a packet of `length` bytes, with at most `payload_max` bytes of payload.
    pub(super) fn decode(
        bytes: &[u8; HEADER_BYTES],
        length: u64,
        payload_max: u32,
    ) -> Result<Self, &'static str> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.code() == bytes[0]);
        let kind = kind.ok_or("a packet of an unknown kind")?;
        let mut words = [0; 7];
        for (word, place) in words.iter_mut().zip(bytes[4..].chunks_exact(4)) {
            *word = u32::from_le_bytes(place.try_into().map_err(|_| "a short packet")?);
        }
        let [tag, destination, source, message, total, offset, credit] = words;
        let header = Self {
            kind,
            wants_delivered: bytes[1] & WANTS_DELIVERED != 0,
            tag,
            destination,
            source,
            message,
            length: total,
            offset,
            credit,
        };
        let payload = length.checked_sub(u64::from(HEADER_BYTES_U32)).ok_or("a short packet")?;
        let expected = header.payload_bytes(payload_max).ok_or("a piece outside its message")?;
        if payload != u64::from(expected) {
            return Err("a payload of another length than its message has there");
        }
        Ok(header)
    }

    /// How many bytes of payload a packet with this header has; nothing if it makes no sense.
    pub(super) fn payload_bytes(&self, payload_max: u32) -> Option<u32> {
        if self.kind != Kind::Data {
            return Some(0);
        }
        let is_first = self.offset == 0;
        let is_inside = self.offset < self.length && self.offset.is_multiple_of(payload_max);
        (is_first || is_inside).then(|| (self.length - self.offset).min(payload_max))
    }

    /// Whether this is the last piece of its message.
    pub(super) fn is_last(&self, payload_max: u32) -> bool {
        self.length - self.offset <= payload_max
    }
}

/// What a node is to the one that it speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Source,
    Forwarder,
    Sink,
}

/// What both ends of a connection tell each other first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) role: Role,
    /// The payload of a full packet, in bytes: the same at both ends.
    pub(super) payload_bytes: u32,
    /// How many packets with credit fit here.
    pub(super) packets: u32,
    /// The longest message that is taken here, in bytes.
    pub(super) message_bytes_max: u32,
}

/// The length of a greeting.
const GREETING_BYTES: usize = 24;

impl Greeting {
    pub(super) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = match self.role {
            Role::Source => 1,
            Role::Forwarder => 2,
            Role::Sink => 3,
        };
        let words = [self.payload_bytes, self.packets, self.message_bytes_max];
        for (place, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: &[u8; GREETING_BYTES] = bytes.try_into().map_err(|_| "no greeting of ours")?;
        if bytes[..4] != MAGIC {
            return Err("no greeting of ours");
        }
        if bytes[4..6] != VERSION.to_le_bytes() {
            return Err("another version of the protocol");
        }
        let role = match bytes[6] {
            1 => Role::Source,
            2 => Role::Forwarder,
            3 => Role::Sink,
            _ => return Err("an unknown role"),
        };
        let mut words = [0; 3];
        for (word, place) in words.iter_mut().zip(bytes[8..].chunks_exact(4)) {
            *word = u32::from_le_bytes(place.try_into().map_err(|_| "no greeting of ours")?);
        }
        let [payload_bytes, packets, message_bytes_max] = words;
        if payload_bytes == 0 || packets == 0 {
            return Err("a greeting that allows nothing");
        }
        Ok(Self { role, payload_bytes, packets, message_bytes_max })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: no bytes of a peer panic, and what is a packet means what it says. Method: random headers and
        /// lengths; what is read is written again.
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in prop::array::uniform32(0_u8..9),
            length in 0_u64..200,
            payload_max in 1_u32..100,
        ) {
            if let Ok(header) = Header::decode(&bytes, length, payload_max) {
                let mut written = header.encode();
                // Other flags, and what must be zero.
                written[1..4].copy_from_slice(&bytes[1..4]);
                prop_assert_eq!(written, bytes);
                let _ = header.kind == Kind::Data && header.is_last(payload_max);
                prop_assert!(header.payload_bytes(payload_max).is_some());
            }
        }

        /// Goal: no greeting of a stranger panics. Method: random bytes behind a right beginning.
        #[test]
        fn any_greeting_is_read_or_refused(rest in prop::collection::vec(0_u8..5, 0..24)) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(rest);
            if let Ok(greeting) = Greeting::decode(&bytes) {
                prop_assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
            }
        }
    }

    /// Goal: the pieces of a message are cut in one way only. Method: each kind of wrong piece.
    #[test]
    fn pieces_are_where_they_belong() {
        let piece = |offset, payload| {
            let mut header = Header::new(Kind::Data, 1, 2);
            (header.length, header.offset) = (250, offset);
            Header::decode(&header.encode(), u64::from(HEADER_BYTES_U32) + payload, 100)
        };
        assert!(piece(0, 100).is_ok() && piece(100, 100).is_ok() && piece(200, 50).is_ok());
        for (offset, payload) in [(0, 99), (50, 100), (200, 100), (300, 0), (250, 0), (100, 50)] {
            assert!(piece(offset, payload).is_err(), "{payload} bytes at {offset}");
        }
        assert!(piece(200, 50).expect("a piece").is_last(100));
        assert!(!piece(100, 100).expect("a piece").is_last(100));
    }
}
