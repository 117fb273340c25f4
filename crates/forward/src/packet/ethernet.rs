//! Frames of Ethernet and their tags.

use vigie_via::link::{EtherType, MacAddress};

use super::error::{ParseError, Protocol, bytes_at};

/// Bytes of the header without tags: two addresses and the protocol.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 4;
/// Tags that are looked into, one in the other (802.1ad). A frame with more is [`ParseError::Tags`].
pub const TAGS_MAX: usize = 2;

/// The tag of a VLAN, as it stands in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tag {
    /// The protocol that announces it: 0x8100, or 0x88a8 for an outer tag.
    pub ether_type: EtherType,
    /// Priority (3 bits), drop eligibility (1), number of the VLAN (12).
    pub control: u16,
}

impl Tag {
    /// The protocol number of 802.1Q.
    pub const INNER: EtherType = EtherType(0x8100);
    /// The protocol number of 802.1ad.
    pub const OUTER: EtherType = EtherType(0x88a8);

    /// Creates a tag of 802.1Q with a number of 12 bits, and priority 0.
    #[must_use]
    pub const fn of_vlan(number: u16) -> Self {
        Self { ether_type: Self::INNER, control: number & 0xfff }
    }

    /// Returns the number of the VLAN.
    #[must_use]
    pub const fn vlan(self) -> u16 {
        self.control & 0xfff
    }

    pub(crate) const fn announces(ether_type: EtherType) -> bool {
        matches!(ether_type, Self::INNER | Self::OUTER)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ethernet {
    /// Whom it is for.
    pub destination: MacAddress,
    /// Who says to have sent it.
    pub source: MacAddress,
    /// The tags, outermost first.
    pub tags: [Option<Tag>; TAGS_MAX],
    /// The protocol behind the tags. Numbers below 0x600 are lengths of frames of IEEE 802.3.
    pub ether_type: EtherType,
    /// Where the payload begins, in bytes.
    pub payload_at: usize,
}

impl Ethernet {
    /// Reads the header at the beginning of a frame.
    ///
    /// # Errors
    /// [`ParseError::Short`], [`ParseError::Tags`].
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let header = bytes_at::<ETHERNET_BYTES>(frame, 0, Protocol::Ethernet)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, high, low] = header;
        let mut ether_type = EtherType(u16::from_be_bytes([high, low]));
        let mut tags = [None; TAGS_MAX];
        let mut payload_at = ETHERNET_BYTES;
        let mut places = tags.iter_mut();
        while Tag::announces(ether_type) {
            let place = places.next().ok_or(ParseError::Tags { max: TAGS_MAX })?;
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
