//! The packets between two nodes, and their greeting.
//!
//! ```text
//! packet     kind u8, flags u8, 0 u16, tag u32, destination u32, source u32, message u32, length u32, offset u32,
//!            credit u32; payload of data packets
//! greeting   "VFwd", version u16, role u8, 0 u8, payload u32, packets u32, longest message u32, 0 u32
//! ```
//! Numbers are little-endian. A malformed packet ends the connection.

/// The length of every packet's header, in bytes.
pub(super) const HEADER_BYTES: usize = 32;

/// [`HEADER_BYTES`], for lengths of 32 bits.
pub(super) const HEADER_BYTES_U32: u32 = 32;

const MAGIC: [u8; 4] = *b"VFwd";
const VERSION: u16 = 1;

/// Flags of packets.
const WANTS_DELIVERED: u8 = 1;

/// The longest payload of a packet, in bytes.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 60_000;

numbered! {
    /// The kind of a packet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum PacketKind: u8 {
        /// A fragment of a message.
        Data = 1,
        /// Credit only.
        Credit = 2,
        /// To the source: `message` of its messages to `destination` have left the window.
        Delivered = 3,
        /// From the source, after its messages: requests an acknowledgement.
        Finish = 4,
        /// To the source: `message` messages were delivered, `length` dropped on purpose.
        Finished = 5,
        /// To the source: `destination` is no longer reachable.
        Gone = 6,
        /// From a forwarder: replaces a message that its algorithm dropped, so that counts stay right.
        Dropped = 7,
        /// From a forwarder: the rest of an incomplete message of `source`, and anything after it, will not come.
        Abort = 8,
    }
}

impl PacketKind {
    /// Returns whether it is queued in order with the data, and uses credit as data does.
    pub(super) const fn is_in_order(self) -> bool {
        matches!(self, Self::Data | Self::Finish | Self::Dropped | Self::Abort)
    }
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketHeader {
    pub(super) kind: PacketKind,
    /// True if the source wants to be told when this message has left its window.
    pub(super) wants_delivered: bool,
    /// The user's tag.
    pub(super) tag: u32,
    /// The final destination's number.
    pub(super) destination: u32,
    /// The source's number, assigned by the forwarder; zero from the source itself.
    pub(super) source: u32,
    /// The number of the message among the source's for this destination.
    pub(super) message: u32,
    /// The length of the message in bytes.
    pub(super) length: u32,
    /// The start of the payload in the message.
    pub(super) offset: u32,
    /// The number of credit-bearing packets from the peer that this side has released since the connection began.
    pub(super) credit: u32,
}

impl PacketHeader {
    /// A packet about a destination and a source; everything else is zero.
    pub(super) const fn new(kind: PacketKind, destination: u32, source: u32) -> Self {
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
        bytes[0] = self.kind.number();
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

    /// Decodes the header of a packet of `length` bytes, with at most `payload_max` bytes of payload.
    pub(super) fn decode(
        bytes: &[u8; HEADER_BYTES],
        length: u64,
        payload_max: u32,
    ) -> Result<Self, &'static str> {
        let kind = PacketKind::from_number(bytes[0]);
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
        let expected = header.payload_bytes(payload_max).ok_or("a fragment outside its message")?;
        if payload != u64::from(expected) {
            return Err("a payload whose length does not fit its message");
        }
        Ok(header)
    }

    /// Returns the bytes of payload that a packet with this header has; `None` if the header is invalid.
    pub(super) fn payload_bytes(&self, payload_max: u32) -> Option<u32> {
        if self.kind != PacketKind::Data {
            return Some(0);
        }
        let is_first = self.offset == 0;
        let is_inside = self.offset < self.length && self.offset.is_multiple_of(payload_max);
        (is_first || is_inside).then(|| (self.length - self.offset).min(payload_max))
    }

    /// Returns whether this is the last fragment of its message.
    pub(super) fn is_last(&self, payload_max: u32) -> bool {
        self.length - self.offset <= payload_max
    }
}

numbered! {
    /// The role of a node towards its peer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Role: u8 {
        Source = 1,
        Forwarder = 2,
        Sink = 3,
    }
}

/// The first message of each side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) role: Role,
    /// The payload of a full packet, in bytes: the same at both ends.
    pub(super) payload_bytes: u32,
    /// The number of credit-bearing packets that fit here.
    pub(super) packets: u32,
    /// The longest message accepted here, in bytes.
    pub(super) message_bytes_max: u32,
}

/// The length of a greeting.
const GREETING_BYTES: usize = 24;

impl Greeting {
    pub(super) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self.role.number();
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
        let role = Role::from_number(bytes[6]).ok_or("an unknown role")?;
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
        /// Goal: no bytes of a peer cause a panic, and a decoded packet means what it says. Method: random headers and
        /// lengths; what decodes is encoded again.
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in prop::array::uniform32(0_u8..9),
            length in 0_u64..200,
            payload_max in 1_u32..100,
        ) {
            if let Ok(header) = PacketHeader::decode(&bytes, length, payload_max) {
                let mut written = header.encode();
                // Unused flags, and fields that must be zero.
                written[1..4].copy_from_slice(&bytes[1..4]);
                prop_assert_eq!(written, bytes);
                let _ = header.kind == PacketKind::Data && header.is_last(payload_max);
                prop_assert!(header.payload_bytes(payload_max).is_some());
            }
        }

        /// Goal: no greeting of a stranger causes a panic. Method: random bytes after a correct start.
        #[test]
        fn any_greeting_is_read_or_refused(rest in prop::collection::vec(0_u8..5, 0..24)) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(rest);
            if let Ok(greeting) = Greeting::decode(&bytes) {
                prop_assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
            }
        }
    }

    /// Goal: a message can be cut into fragments in one way only. Method: each kind of wrong fragment.
    #[test]
    fn pieces_are_where_they_belong() {
        let fragment = |offset, payload| {
            let mut header = PacketHeader::new(PacketKind::Data, 1, 2);
            (header.length, header.offset) = (250, offset);
            PacketHeader::decode(&header.encode(), u64::from(HEADER_BYTES_U32) + payload, 100)
        };
        assert!(
            fragment(0, 100).is_ok() && fragment(100, 100).is_ok() && fragment(200, 50).is_ok()
        );
        for (offset, payload) in [(0, 99), (50, 100), (200, 100), (300, 0), (250, 0), (100, 50)] {
            assert!(fragment(offset, payload).is_err(), "{payload} bytes at {offset}");
        }
        assert!(fragment(200, 50).expect("a fragment").is_last(100));
        assert!(!fragment(100, 100).expect("a fragment").is_last(100));
    }
}
