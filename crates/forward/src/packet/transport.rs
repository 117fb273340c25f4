//! TCP, UDP and ICMP.

use super::error::{ParseError, Protocol, bytes_at};

/// Bytes of TCP's header without options.
pub const TCP_BYTES: usize = 20;
/// Bytes of UDP's header.
pub const UDP_BYTES: usize = 8;
/// Bytes of ICMP's header, both versions.
pub const ICMP_BYTES: usize = 8;

/// A segment of TCP, its bytes left where they are.
#[derive(Clone, Copy, Debug)]
#[must_use = "it only looks at bytes"]
pub struct Tcp<'a> {
    segment: &'a [u8],
    header: [u8; TCP_BYTES],
    header_bytes: usize,
}

impl<'a> Tcp<'a> {
    /// Reads the segment that `bytes` are.
    ///
    /// # Errors
    /// [`ParseError::Short`], [`ParseError::HeaderLength`], [`ParseError::Length`].
    #[inline]
    pub fn parse(segment: &'a [u8]) -> Result<Self, ParseError> {
        let header = bytes_at::<TCP_BYTES>(segment, 0, Protocol::Tcp)?;
        let header_bytes = usize::from(header[12] >> 4) * 4;
        if header_bytes < TCP_BYTES {
            return Err(ParseError::HeaderLength { header: Protocol::Tcp, says: header_bytes });
        }
        if header_bytes > segment.len() {
            let has = segment.len();
            return Err(ParseError::Length { header: Protocol::Tcp, says: header_bytes, has });
        }
        Ok(Self { segment, header, header_bytes })
    }

    /// Returns the sender's port.
    #[must_use]
    pub const fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// Returns the receiver's port.
    #[must_use]
    pub const fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the number of the first byte of the payload.
    #[must_use]
    pub const fn sequence(&self) -> u32 {
        u32::from_be_bytes([self.header[4], self.header[5], self.header[6], self.header[7]])
    }

    /// Returns the flags.
    #[must_use]
    pub const fn flags(&self) -> TcpFlags {
        TcpFlags(self.header[13])
    }

    /// Returns the checksum, as it stands there.
    #[must_use]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[16], self.header[17]])
    }

    /// Returns the bytes of the header, options among them.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Returns the options, padding among them.
    #[must_use]
    pub fn options(&self) -> &'a [u8] {
        self.segment.get(TCP_BYTES..self.header_bytes).unwrap_or_default()
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.segment.get(self.header_bytes..).unwrap_or_default()
    }
}

/// Flags of TCP: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(pub(crate) u8);

impl TcpFlags {
    /// The sender sends no more.
    pub const FIN: Self = Self(1);
    /// The connection begins.
    pub const SYN: Self = Self(2);
    /// The connection is broken off.
    pub const RST: Self = Self(4);
    /// What came before is wanted now.
    pub const PSH: Self = Self(8);
    /// Something is acknowledged.
    pub const ACK: Self = Self(16);

    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A datagram of UDP, its bytes left where they are.
#[derive(Clone, Copy, Debug)]
#[must_use = "it only looks at bytes"]
pub struct Udp<'a> {
    datagram: &'a [u8],
    header: [u8; UDP_BYTES],
}

impl<'a> Udp<'a> {
    /// Reads the datagram that begins with `bytes`. If they are `whole`, its length must fit them; the first
    /// fragment says the length of all.
    ///
    /// # Errors
    /// [`ParseError::Short`], [`ParseError::Length`].
    #[inline]
    pub fn parse(bytes: &'a [u8], is_whole: bool) -> Result<Self, ParseError> {
        let header = bytes_at::<UDP_BYTES>(bytes, 0, Protocol::Udp)?;
        let says = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let has = bytes.len();
        if says < UDP_BYTES || (is_whole && says > has) {
            return Err(ParseError::Length { header: Protocol::Udp, says, has });
        }
        let datagram = bytes.get(..says).unwrap_or(bytes);
        Ok(Self { datagram, header })
    }

    /// Returns the sender's port.
    #[must_use]
    pub const fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// Returns the receiver's port.
    #[must_use]
    pub const fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the checksum, as it stands there: 0 if the sender has made none.
    #[must_use]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.datagram.get(UDP_BYTES..).unwrap_or_default()
    }
}

/// A message of ICMP, of version 4 or 6, its bytes left where they are.
#[derive(Clone, Copy, Debug)]
#[must_use = "it only looks at bytes"]
pub struct Icmp<'a> {
    message: &'a [u8],
    header: [u8; ICMP_BYTES],
}

impl<'a> Icmp<'a> {
    /// Reads the message that `bytes` are.
    ///
    /// # Errors
    /// [`ParseError::Short`].
    #[inline]
    pub fn parse(message: &'a [u8]) -> Result<Self, ParseError> {
        Ok(Self { message, header: bytes_at(message, 0, Protocol::Icmp)? })
    }

    /// Returns what it is.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        self.header[0]
    }

    /// Returns which of its kind it is.
    #[must_use]
    pub const fn code(&self) -> u8 {
        self.header[1]
    }

    /// Returns the checksum, as it stands there.
    #[must_use]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the identifier of an echo.
    #[must_use]
    pub const fn identifier(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// Returns the number of an echo.
    #[must_use]
    pub const fn sequence(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// Returns what is behind the header; in an error, the packet that it is about.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.message.get(ICMP_BYTES..).unwrap_or_default()
    }
}
