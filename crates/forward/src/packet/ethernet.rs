//! Ethernet frames and their VLAN tags.

use vigie_via::link::{EtherType, MacAddress};

use super::error::{ParseError, Protocol, bytes_at};

/// The length of the header without tags, in bytes: two addresses and the protocol.
pub const ETHERNET_BYTES: usize = 14;
/// The length of a tag in bytes.
pub const TAG_BYTES: usize = 4;
/// The maximum number of nested tags (802.1ad). A frame with more is [`ParseError::TooManyTags`].
pub const TAGS_MAX: usize = 2;

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tag {
    /// The protocol number before it: 0x8100, or 0x88a8 for an outer tag.
    pub ether_type: EtherType,
    /// Priority (3 bits), drop eligibility (1), VLAN number (12).
    pub control: u16,
}

impl Tag {
    /// The protocol number of 802.1Q.
    pub const INNER: EtherType = EtherType(0x8100);
    /// The protocol number of 802.1ad.
    pub const OUTER: EtherType = EtherType(0x88a8);

    /// Creates an 802.1Q tag with a VLAN number of 12 bits, and priority 0.
    #[must_use]
    pub const fn of_vlan(number: u16) -> Self {
        Self { ether_type: Self::INNER, control: number & 0xfff }
    }

    pub(crate) const fn announces(ether_type: EtherType) -> bool {
        matches!(ether_type, Self::INNER | Self::OUTER)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ethernet {
    /// The destination address.
    pub destination: MacAddress,
    /// The source address.
    pub source: MacAddress,
    /// The tags, outermost first.
    pub tags: [Option<Tag>; TAGS_MAX],
    /// The protocol after the tags. Numbers below 0x600 are lengths of IEEE 802.3 frames.
    pub ether_type: EtherType,
    /// The start of the payload, in bytes.
    pub payload_at: usize,
}

impl Ethernet {
    /// Parses the header at the start of a frame.
    ///
    /// # Errors
    /// [`ParseError::Short`], [`ParseError::TooManyTags`].
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let header = bytes_at::<ETHERNET_BYTES>(frame, 0, Protocol::Ethernet)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, high, low] = header;
        let mut ether_type = EtherType(u16::from_be_bytes([high, low]));
        let mut tags = [None; TAGS_MAX];
        let mut payload_at = ETHERNET_BYTES;
        let mut places = tags.iter_mut();
        while Tag::announces(ether_type) {
            let place = places.next().ok_or(ParseError::TooManyTags { max: TAGS_MAX })?;
            let [control_high, control_low, high, low] =
                bytes_at::<TAG_BYTES>(frame, payload_at, Protocol::Vlan)?;
            let control = u16::from_be_bytes([control_high, control_low]);
            *place = Some(Tag { ether_type, control });
            ether_type = EtherType(u16::from_be_bytes([high, low]));
            payload_at += TAG_BYTES;
        }
        Ok(Self {
            destination: MacAddress([a, b, c, d, e, f]),
            source: MacAddress([g, h, i, j, k, l]),
            tags,
            ether_type,
            payload_at,
        })
    }
}
