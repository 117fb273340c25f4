//! The encodings of a message's length.

use thiserror::Error;

named! {
    /// The encoding of a message's length before its bytes. The length counts the bytes that follow it, not itself.
    ///
    /// | format | bytes | used by |
    /// | --- | --- | --- |
    /// | [`U16Be`](Self::U16Be) | 2, most significant first | DNS over TCP |
    /// | [`U32Be`](Self::U32Be) | 4, most significant first | Kafka, Thrift (framed), most others |
    /// | [`U32Le`](Self::U32Le) | 4, least significant first | Chrome's native messages on common machines |
    /// | [`U64Be`](Self::U64Be) | 8, most significant first | |
    /// | [`Varint`](Self::Varint) | 1 to 10: 7 bits each, least significant first, the 8th set if more follow | "delimited" protocol buffers |
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum LengthFormat {
        /// Two bytes, most significant first.
        U16Be => "u16-be",
        /// Four bytes, most significant first.
        #[default]
        U32Be => "u32-be",
        /// Four bytes, least significant first.
        U32Le => "u32-le",
        /// Eight bytes, most significant first.
        U64Be => "u64-be",
        /// Unsigned LEB128 of at most ten bytes.
        Varint => "varint",
    }
}

impl LengthFormat {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::U16Be, Self::U32Be, Self::U32Le, Self::U64Be, Self::Varint];

    /// Decodes the header at the start of a message. `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError::Varint`] for a varint longer than any length.
    pub fn read(self, bytes: &[u8]) -> Result<Option<FrameHeader>, FrameError> {
        let fixed = |header_bytes: usize, body_bytes: Option<u64>| {
            Ok(body_bytes.map(|body_bytes| FrameHeader { header_bytes, body_bytes }))
        };
        match self {
            Self::U16Be => fixed(2, bytes.first_chunk().map(|it| u16::from_be_bytes(*it).into())),
            Self::U32Be => fixed(4, bytes.first_chunk().map(|it| u32::from_be_bytes(*it).into())),
            Self::U32Le => fixed(4, bytes.first_chunk().map(|it| u32::from_le_bytes(*it).into())),
            Self::U64Be => fixed(8, bytes.first_chunk().map(|it| u64::from_be_bytes(*it))),
            Self::Varint => varint(bytes),
        }
    }

    /// Writes the header of a message of `body_bytes` into `room` and returns the header's length; `None` if the format
    /// cannot express the length.
    pub fn write(self, body_bytes: u64, room: &mut [u8; 10]) -> Option<usize> {
        match self {
            Self::U16Be => put(room, &u16::try_from(body_bytes).ok()?.to_be_bytes()),
            Self::U32Be => put(room, &u32::try_from(body_bytes).ok()?.to_be_bytes()),
            Self::U32Le => put(room, &u32::try_from(body_bytes).ok()?.to_le_bytes()),
            Self::U64Be => put(room, &body_bytes.to_be_bytes()),
            Self::Varint => {
                let mut rest = body_bytes;
                for (index, place) in room.iter_mut().enumerate() {
                    let low = rest.to_le_bytes()[0] & 0x7f;
                    rest >>= 7;
                    *place = if rest == 0 { low } else { low | 0x80 };
                    if rest == 0 {
                        return Some(index + 1);
                    }
                }
                None
            }
        }
    }
}

fn put(room: &mut [u8; 10], bytes: &[u8]) -> Option<usize> {
    room[..bytes.len()].copy_from_slice(bytes);
    Some(bytes.len())
}

fn varint(bytes: &[u8]) -> Result<Option<FrameHeader>, FrameError> {
    let mut body_bytes = 0_u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // Of 64 bits, one is left for the tenth byte.
        if index == 9 && *byte > 1 {
            return Err(FrameError::Varint);
        }
        body_bytes |= bits << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some(FrameHeader { header_bytes: index + 1, body_bytes }));
        }
    }
    Ok(None)
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameHeader {
    /// The length of the header itself, in bytes.
    pub header_bytes: usize,
    /// The number of bytes that follow it.
    pub body_bytes: u64,
}

impl FrameHeader {
    /// Returns the bytes of header and body.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.body_bytes.saturating_add(self.header_bytes as u64)
    }
}

/// An invalid length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The message exceeds the relay's limit.
    #[error(
        "its length is {length} bytes, but only {max} are allowed: raise `message_bytes_max`, or check that both sides use \
         the same length format"
    )]
    TooLong {
        /// Bytes after the header.
        length: u64,
        /// The limit.
        max: u64,
    },
    /// A varint of more than ten bytes, or above 2^64 − 1.
    #[error(
        "its length is not a varint of 64 bits: check that both sides use the same length format"
    )]
    Varint,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: an encoded length decodes to itself, and never from fewer bytes. Method: random lengths in all
        /// formats, cut at each byte.
        #[test]
        fn headers_are_read_back(length in prop_oneof![0_u64..300, 65_000_u64..66_000, any::<u64>()]) {
            for format in LengthFormat::ALL {
                let mut room = [0xaa; 10];
                let Some(bytes) = format.write(length, &mut room) else { continue };
                let header = FrameHeader { header_bytes: bytes, body_bytes: length };
                prop_assert_eq!(format.read(&room), Ok(Some(header)));
                for cut in 0..bytes {
                    prop_assert_eq!(format.read(&room[..cut]), Ok(None));
                }
            }
        }

        /// Goal: no input causes a panic or a read past its end. Method: random bytes.
        #[test]
        fn random_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..16)) {
            for format in LengthFormat::ALL {
                if let Ok(Some(header)) = format.read(&bytes) {
                    prop_assert!(header.header_bytes <= bytes.len());
                }
            }
        }
    }

    /// Goal: a varint that is endless or too large is refused. Method: both.
    #[test]
    fn long_varints_are_refused() {
        assert_eq!(LengthFormat::Varint.read(&[0xff; 12]), Err(FrameError::Varint));
        assert_eq!(LengthFormat::Varint.read(&[0x80; 9]), Ok(None));
        let mut largest = [0xff; 10];
        largest[9] = 1;
        let header = FrameHeader { header_bytes: 10, body_bytes: u64::MAX };
        assert_eq!(LengthFormat::Varint.read(&largest), Ok(Some(header)));
        assert_eq!(LengthFormat::U16Be.write(65_536, &mut [0; 10]), None);
    }
}
