//! The header of IP version 6, and its extension headers.

use std::net::Ipv6Addr;

use super::{
    error::{ParseError, Protocol, bytes_at},
    headers::Fragment,
};

/// Bytes of the header without extensions.
pub const IPV6_BYTES: usize = 40;
/// Extension headers that are looked into; a packet with more is [`ParseError::Extensions`].
pub const EXTENSIONS_MAX: usize = 8;
/// The longest payload.
const PAYLOAD_BYTES_MAX: usize = 65_535;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// A packet of IP version 6, its bytes left where they are.
#[derive(Clone, Copy, Debug)]
#[must_use = "it only looks at bytes"]
pub struct Ipv6<'a> {
    packet: &'a [u8],
    header: [u8; IPV6_BYTES],
    protocol: u8,
    transport_at: usize,
    fragment: Fragment,
    identification: u32,
}

impl<'a> Ipv6<'a> {
    /// Reads the packet at the beginning of `bytes` with its extension headers; what is behind its length is
    /// left out. A routing header is passed over like the others: the destination is that of the header.
    ///
    /// # Errors
    /// [`ParseError`]. A payload of length 0 is one of no bytes: jumbograms do not fit a frame.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let header = bytes_at::<IPV6_BYTES>(bytes, 0, Protocol::Ipv6)?;
        let version = header[0] >> 4;
        if version != 6 {
            return Err(ParseError::Version { header: Protocol::Ipv6, version });
        }
        let says = IPV6_BYTES + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let has = bytes.len();
        let length = ParseError::Length { header: Protocol::Ipv6, says, has };
        let packet = bytes.get(..says).ok_or(length)?;
        let mut this = Self {
            packet,
            header,
            protocol: header[6],
            transport_at: IPV6_BYTES,
            fragment: Fragment::Whole,
            identification: 0,
        };
        if is_extension(this.protocol) {
            this.pass_extensions()?;
        }
        Ok(this)
    }

    #[cold]
    fn pass_extensions(&mut self) -> Result<(), ParseError> {
        for _ in 0..EXTENSIONS_MAX {
            let at = self.transport_at;
            let [next, length, a, b, rest @ ..] =
                bytes_at::<8>(self.packet, at, Protocol::Extension)?;
            let bytes = match self.protocol {
                FRAGMENT => {
                    let offset = usize::from(u16::from_be_bytes([a, b]) & 0xfff8);
                    let is_last = b & 1 == 0;
                    let length = self.packet.len().saturating_sub(at + 8);
                    if offset + length > PAYLOAD_BYTES_MAX {
                        return Err(ParseError::Fragment { offset, length });
                    }
                    self.identification = u32::from_be_bytes(rest);
                    self.fragment = match (offset, is_last) {
                        // "Atomic": a fragment header, and nothing was cut.
                        (0, true) => Fragment::Whole,
                        (0, false) => Fragment::First,
                        _ => Fragment::Later,
                    };
                    8
                }
                // In units of four bytes, less two.
                AUTHENTICATION => (usize::from(length) + 2) * 4,
                // In units of eight bytes, less one.
                _ => (usize::from(length) + 1) * 8,
            };
            let end = at + bytes;
            if end > self.packet.len() {
                let has = self.packet.len() - at;
                return Err(ParseError::Length { header: Protocol::Extension, says: bytes, has });
            }
            self.protocol = next;
            self.transport_at = end;
            // What follows in a later fragment is the middle of something.
            if self.fragment == Fragment::Later || !is_extension(next) {
                return Ok(());
            }
        }
        Err(ParseError::Extensions { max: EXTENSIONS_MAX })
    }

    /// Returns the bytes of the packet, header and payload.
    #[must_use]
    pub const fn total_bytes(&self) -> usize {
        self.packet.len()
    }

    /// Returns where what is behind the extension headers begins, in bytes from the beginning of the packet.
    #[must_use]
    pub const fn transport_at(&self) -> usize {
        self.transport_at
    }

    /// Returns the extension headers, one after the other.
    #[must_use]
    pub fn extensions(&self) -> &'a [u8] {
        self.packet.get(IPV6_BYTES..self.transport_at).unwrap_or_default()
    }

    /// Returns what is behind the extension headers.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.packet.get(self.transport_at..).unwrap_or_default()
    }

    /// Returns which part of a packet it is.
    #[must_use]
    pub const fn fragment(&self) -> Fragment {
        self.fragment
    }

    /// Returns the number that all fragments of a packet share; 0 if it is not cut.
    #[must_use]
    pub const fn identification(&self) -> u32 {
        self.identification
    }

    /// Returns how many routers it may still cross.
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        self.header[7]
    }

    /// Returns the number of the protocol behind the extension headers; in a later fragment, of what its
    /// first part begins with behind the fragment header.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns the sender's address.
    #[must_use]
    pub fn source(&self) -> Ipv6Addr {
        let (_, rest) = self.header.split_at(8);
        rest.first_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |bytes| Ipv6Addr::from(*bytes))
    }

    /// Returns the receiver's address.
    #[must_use]
    pub fn destination(&self) -> Ipv6Addr {
        self.header.last_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |bytes| Ipv6Addr::from(*bytes))
    }
}

/// What has a length behind its first byte. What is encrypted (50), or nothing (59), ends the row.
const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        HOP_BY_HOP
            | ROUTING
            | FRAGMENT
            | AUTHENTICATION
            | DESTINATION
            | MOBILITY
            | HOST_IDENTITY
            | SHIM6
    )
}
