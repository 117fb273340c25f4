//! The address resolution protocol (ARP), for IPv4 over Ethernet.

use std::net::Ipv4Addr;

use vigie_via::link::MacAddress;

use super::error::{ParseError, Protocol, bytes_at};

/// The length of an ARP packet in bytes.
pub const ARP_BYTES: usize = 28;

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arp {
    /// 1 is a request, 2 a reply.
    pub operation: u16,
    /// The sender's Ethernet address.
    pub sender: MacAddress,
    /// The sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// The target's Ethernet address.
    pub target: MacAddress,
    /// The target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Parses the packet at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Short`], [`ParseError::Arp`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let packet = bytes_at::<ARP_BYTES>(bytes, 0, Protocol::Arp)?;
        let [h, h2, p, p2, h_len, p_len, o, o2, ..] = packet;
        let (hardware, protocol) = (u16::from_be_bytes([h, h2]), u16::from_be_bytes([p, p2]));
        if (hardware, protocol, h_len, p_len) != (1, 0x0800, 6, 4) {
            return Err(ParseError::Arp { hardware, protocol });
        }
        Ok(Self {
            operation: u16::from_be_bytes([o, o2]),
            sender: MacAddress(bytes_at(&packet, 8, Protocol::Arp)?),
            sender_ip: bytes_at::<4>(&packet, 14, Protocol::Arp)?.into(),
            target: MacAddress(bytes_at(&packet, 18, Protocol::Arp)?),
            target_ip: bytes_at::<4>(&packet, 24, Protocol::Arp)?.into(),
        })
    }
}
