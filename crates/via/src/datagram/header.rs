//! What stands in front of a datagram: eight bytes, which anybody on the network may have written.

use thiserror::Error;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

const MAGIC: [u8; 2] = *b"MC";
const VERSION: u8 = 1;

/// Why bytes are no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than the header has.
    #[error("{length} bytes have no room for a header")]
    Short {
        /// How many there are.
        length: usize,
    },
    /// It does not begin as a datagram does.
    #[error("these bytes are no datagram")]
    Magic,
    /// Another version, or flags that this one does not know.
    #[error("a datagram of version {version} with flags {flags:#x}")]
    Version {
        /// The version.
        version: u8,
        /// The flags.
        flags: u8,
    },
    /// It says to be longer than what arrived.
    #[error("a datagram of {said} bytes, of which {there} arrived")]
    Length {
        /// What the header says.
        said: usize,
        /// What is behind it.
        there: usize,
    },
}

/// The header of a datagram.
///
/// | bytes | what |
/// | --- | --- |
/// | 0, 1 | `MC` |
/// | 2 | version, 1 |
/// | 3 | port it is for |
/// | 4 | port it comes from |
/// | 5 | flags, 0 |
/// | 6, 7 | length of the payload, most significant byte first: Ethernet pads short frames |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The port it is for.
    pub to: u8,
    /// The port it comes from.
    pub from: u8,
    /// The length of the payload in bytes.
    pub length: u16,
}

impl Header {
    /// Makes a header.
    #[must_use]
    pub const fn new(from: u8, to: u8, length: u16) -> Self {
        Self { to, from, length }
    }

    /// Returns its bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> [u8; HEADER_BYTES] {
        let [high, low] = self.length.to_be_bytes();
        [MAGIC[0], MAGIC[1], VERSION, self.to, self.from, 0, high, low]
    }

    /// Reads the header in front of a datagram of `total` bytes, which begins with `bytes`.
    ///
    /// # Errors
    /// [`HeaderError`].
    #[inline]
    pub fn parse(bytes: &[u8], total: usize) -> Result<Self, HeaderError> {
        let Some(&[m, c, version, to, from, flags, high, low]) =
            bytes.first_chunk::<HEADER_BYTES>()
        else {
            return Err(HeaderError::Short { length: bytes.len() });
        };
        if [m, c] != MAGIC {
            return Err(HeaderError::Magic);
        }
        if version != VERSION || flags != 0 {
            return Err(HeaderError::Version { version, flags });
        }
        let length = u16::from_be_bytes([high, low]);
        let there = total.saturating_sub(HEADER_BYTES);
        if usize::from(length) > there {
            return Err(HeaderError::Length { said: usize::from(length), there });
        }
        Ok(Self { to, from, length })
    }
}
