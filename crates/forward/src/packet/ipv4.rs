//! IPv4 packets.

use std::net::Ipv4Addr;

use super::{
    error::{ParseError, Protocol, bytes_at},
    headers::Fragment,
};

/// The length of the header without options, in bytes.
pub const IPV4_BYTES: usize = 20;
/// The longest packet.
const PACKET_BYTES_MAX: usize = 65_535;

/// An IPv4 packet, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
#[must_use = "it only reads bytes"]
pub struct Ipv4<'a> {
    packet: &'a [u8],
    header: [u8; IPV4_BYTES],
    header_bytes: usize,
}

impl<'a> Ipv4<'a> {
    /// Parses the packet at the start of `bytes`; bytes after its end are ignored.
    ///
    /// # Errors
    /// [`ParseError`] for any defect except a wrong checksum.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let header = bytes_at::<IPV4_BYTES>(bytes, 0, Protocol::Ipv4)?;
        let version = header[0] >> 4;
        if version != 4 {
            return Err(ParseError::Version { header: Protocol::Ipv4, version });
        }
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        if header_bytes < IPV4_BYTES {
            return Err(ParseError::HeaderLength { header: Protocol::Ipv4, says: header_bytes });
        }
        let says = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let packet = match bytes.get(..says) {
            Some(packet) if says >= header_bytes => packet,
            _ => {
                let has = bytes.len();
                return Err(ParseError::Length { header: Protocol::Ipv4, says, has });
            }
        };
        let this = Self { packet, header, header_bytes };
        let offset = this.fragment_offset();
        let length = says - header_bytes;
        if offset > 0 && offset + length + header_bytes > PACKET_BYTES_MAX {
            return Err(ParseError::Fragment { offset, length });
        }
        Ok(this)
    }

    /// Returns the length of the header in bytes, including options.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Returns the length of the packet in bytes, header and payload.
    #[must_use]
    pub const fn total_bytes(&self) -> usize {
        self.packet.len()
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.packet.get(self.header_bytes..).unwrap_or_default()
    }

    /// Returns the identification, which all fragments of a packet share.
    #[must_use]
    pub const fn identification(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    const fn has_more(&self) -> bool {
        self.header[6] & 0x20 != 0
    }

    fn fragment_offset(&self) -> usize {
        usize::from(u16::from_be_bytes([self.header[6] & 0x1f, self.header[7]])) * 8
    }

    /// Returns which part of a packet it is.
    #[must_use]
    #[inline]
    pub fn fragment(&self) -> Fragment {
        match (self.fragment_offset(), self.has_more()) {
            (0, false) => Fragment::Whole,
            (0, true) => Fragment::First,
            _ => Fragment::Later,
        }
    }

    /// Returns the time to live: how many routers it may still cross.
    #[must_use]
    pub const fn ttl(&self) -> u8 {
        self.header[8]
    }

    /// Returns the protocol number of the payload.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.header[9]
    }

    /// Returns the sender's address.
    #[must_use]
    pub const fn source(&self) -> Ipv4Addr {
        let [.., a, b, c, d, _, _, _, _] = self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Returns the receiver's address.
    #[must_use]
    pub const fn destination(&self) -> Ipv4Addr {
        let [.., a, b, c, d] = self.header;
        Ipv4Addr::new(a, b, c, d)
    }
}
