//! IPv6 packets, and their extension headers.

use std::net::Ipv6Addr;

use super::{
    error::{ParseError, Protocol, bytes_at},
    headers::Fragment,
};

/// The length of the header without extensions, in bytes.
pub const IPV6_BYTES: usize = 40;
/// The maximum number of extension headers; a packet with more is [`ParseError::Extensions`].
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

/// An IPv6 packet, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
#[must_use = "it only reads bytes"]
pub struct Ipv6<'a> {
    packet: &'a [u8],
    header: [u8; IPV6_BYTES],
    protocol: u8,
    transport_at: usize,
    fragment: Fragment,
    identification: u32,
}

impl<'a> Ipv6<'a> {
    /// Parses the packet at the start of `bytes` with its extension headers; bytes after its end are ignored. A routing
    /// header is skipped like the others: the destination is that of the IPv6 header.
    ///
    /// # Errors
    /// [`ParseError`]. A payload length of 0 means an empty payload: jumbograms do not fit into a frame.
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
                        // An "atomic" fragment: a fragment header, but not fragmented.
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
            // A later fragment contains no further headers.
            if self.fragment == Fragment::Later || !is_extension(next) {
                return Ok(());
            }
        }
        Err(ParseError::Extensions { max: EXTENSIONS_MAX })
    }

    /// Returns the length of the packet in bytes, header and payload.
    #[must_use]
    pub const fn total_bytes(&self) -> usize {
        self.packet.len()
    }

    /// Returns where the data after the extension headers starts, in bytes from the start of the packet.
    #[must_use]
    pub const fn transport_at(&self) -> usize {
        self.transport_at
    }

    /// Returns the data after the extension headers.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.packet.get(self.transport_at..).unwrap_or_default()
    }

    getters! {
        /// Returns which part of a packet it is.
        fragment: Fragment,

        /// Returns the identification, which all fragments of a packet share; 0 if it is not fragmented.
        identification: u32,
    }

    /// Returns the protocol number after the extension headers; in a later fragment, that of the header after the
    /// fragment header in the first one.
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

/// Headers whose second byte is their length. Encrypted data (50), or no next header (59), ends the chain.
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
