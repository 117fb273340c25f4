//! TCP, UDP and ICMP.

use super::error::{ParseError, Protocol, bytes_at};

/// The length of a TCP header without options, in bytes.
pub const TCP_BYTES: usize = 20;
/// The length of a UDP header in bytes.
pub const UDP_BYTES: usize = 8;
/// The length of an ICMP header in bytes, both versions.
pub const ICMP_BYTES: usize = 8;

/// A TCP segment, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
#[must_use = "it only reads bytes"]
pub struct Tcp<'a> {
    segment: &'a [u8],
    header: [u8; TCP_BYTES],
    header_bytes: usize,
}

impl<'a> Tcp<'a> {
    /// Parses the segment.
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

    /// Returns the sequence number of the first byte of the payload.
    #[must_use]
    pub const fn sequence(&self) -> u32 {
        u32::from_be_bytes([self.header[4], self.header[5], self.header[6], self.header[7]])
    }

    /// Returns the next sequence number that the sender expects.
    #[must_use]
    pub const fn acknowledgement(&self) -> u32 {
        u32::from_be_bytes([self.header[8], self.header[9], self.header[10], self.header[11]])
    }

    /// Returns the sender's window, in bytes, before it is scaled.
    #[must_use]
    pub const fn window(&self) -> u16 {
        u16::from_be_bytes([self.header[14], self.header[15]])
    }

    /// Returns the shift of the sender's windows, an option of segments with SYN (RFC 7323, §2).
    #[must_use]
    pub fn window_shift(&self) -> Option<u8> {
        self.option_at(3, 3).and_then(|at| self.segment.get(at + 2).copied())
    }

    /// Returns the longest segment that the sender takes, in bytes, an option of segments with SYN (RFC 9293, §3.7.1).
    #[must_use]
    pub fn segment_bytes_max(&self) -> Option<u16> {
        let word = self.segment.get(self.segment_bytes_max_at()?..)?.first_chunk()?;
        Some(u16::from_be_bytes(*word))
    }

    /// Returns where that is, from the beginning of the segment.
    pub(super) fn segment_bytes_max_at(&self) -> Option<usize> {
        self.option_at(2, 4).map(|at| at + 2)
    }

    /// Returns where an option of this kind and length begins.
    fn option_at(&self, kind: u8, length: u8) -> Option<usize> {
        let mut at = TCP_BYTES;
        loop {
            match *self.segment.get(at..self.header_bytes)? {
                [] | [0, ..] => return None,
                [1, ..] => at += 1,
                [found, its, ..] if found == kind && its == length => {
                    return (at + usize::from(length) <= self.header_bytes).then_some(at);
                }
                [_, its, ..] if its >= 2 => at += usize::from(its),
                _ => return None,
            }
        }
    }

    /// Returns the flags.
    #[must_use]
    pub const fn flags(&self) -> TcpFlags {
        TcpFlags(self.header[13])
    }

    /// Returns the length of the header in bytes, including options.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.segment.get(self.header_bytes..).unwrap_or_default()
    }
}

/// The flags of TCP, as a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(pub(crate) u8);

impl TcpFlags {
    /// The sender has no more data.
    pub const FIN: Self = Self(1);
    /// Opens the connection.
    pub const SYN: Self = Self(2);
    /// Resets the connection.
    pub const RST: Self = Self(4);
    /// The acknowledgement number is valid.
    pub const ACK: Self = Self(16);

    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Checks the UDP header at the start of `bytes`. If `is_whole`, the datagram must fit them; the length in a first fragment
/// is that of the whole datagram.
#[inline]
pub(super) fn check_udp(bytes: &[u8], is_whole: bool) -> Result<(), ParseError> {
    let header = bytes_at::<UDP_BYTES>(bytes, 0, Protocol::Udp)?;
    let says = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let has = bytes.len();
    if says < UDP_BYTES || (is_whole && says > has) {
        return Err(ParseError::Length { header: Protocol::Udp, says, has });
    }
    Ok(())
}

/// An ICMP message of version 4 or 6, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
#[must_use = "it only reads bytes"]
pub struct Icmp<'a> {
    message: &'a [u8],
    header: [u8; ICMP_BYTES],
}

impl<'a> Icmp<'a> {
    /// Parses the message.
    ///
    /// # Errors
    /// [`ParseError::Short`].
    #[inline]
    pub fn parse(message: &'a [u8]) -> Result<Self, ParseError> {
        Ok(Self { message, header: bytes_at(message, 0, Protocol::Icmp)? })
    }

    /// Returns the type.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        self.header[0]
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(&self) -> u8 {
        self.header[1]
    }

    /// Returns the identifier of an echo.
    #[must_use]
    pub const fn identifier(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// Returns the sequence number of an echo.
    #[must_use]
    pub const fn sequence(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// Returns the bytes after the header; in an error, the quoted packet.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.message.get(ICMP_BYTES..).unwrap_or_default()
    }
}
