//! The header in front of a datagram: eight bytes, which anyone on the network may have written.

use thiserror::Error;

/// The length of the header, in bytes.
pub const HEADER_BYTES: usize = 8;

const MAGIC: [u8; 2] = *b"MC";
const VERSION: u8 = 1;

/// The reason why bytes are not a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// There are fewer bytes than a header has.
    #[error("{length} bytes are too few for a header")]
    Short {
        /// The number of bytes.
        length: usize,
    },
    /// The bytes do not begin as a datagram does.
    #[error("these bytes are not a datagram")]
    Magic,
    /// It has another version, or flags that this version does not know.
    #[error("a datagram of version {version} with flags {flags:#x}")]
    Version {
        /// The version.
        version: u8,
        /// The flags.
        flags: u8,
    },
    /// It claims to be longer than what arrived.
    #[error("a datagram of {said} bytes, but only {there} arrived")]
    Length {
        /// The length in the header.
        said: usize,
        /// The bytes behind the header.
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

    /// Reads the header of a datagram of `total` bytes, which begins with `bytes`.
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
