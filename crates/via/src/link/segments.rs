//! The work that a sender left to a network card, as the kernel tells it in front of a frame: `struct virtio_net_hdr`.

use thiserror::Error;

/// The length of the kernel's header.
pub(super) const OFFLOAD_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
/// Added to the kind if the first segment alone has the flag CWR.
const ECN: u8 = 0x80;

/// The transport whose segments a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentKind {
    /// TCP in IPv4.
    TcpV4,
    /// TCP in IPv6.
    TcpV6,
    /// UDP.
    Udp,
}

impl SegmentKind {
    const fn number(self) -> u8 {
        match self {
            Self::TcpV4 => 1,
            Self::TcpV6 => 4,
            Self::Udp => 5,
        }
    }
}

/// The reason why the kernel's header in front of a frame, or the frame behind it, describes no segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The header is cut off.
    #[error("the kernel's segment header has only {length} bytes")]
    Short {
        /// Its length.
        length: usize,
    },
    /// It names a kind of segments that is not known here.
    #[error("the kernel names an unknown kind of segments, {kind}")]
    Kind {
        /// The kind's number.
        kind: u8,
    },
    /// Segments of no bytes.
    #[error("the kernel says that segments have no bytes")]
    Empty,
    /// The frame has no room for the headers of its segments.
    #[error("the transport header at byte {transport_at} is outside the frame of {length} bytes")]
    Outside {
        /// The length of the frame in bytes.
        length: usize,
        /// The offset of the transport's header.
        transport_at: usize,
    },
}

/// The rule by which a frame of several segments is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameSegments {
    /// Their transport.
    pub kind: SegmentKind,
    /// The payload of each but the last, in bytes; not 0.
    pub size_bytes: u16,
    /// True if only the first segment may have the flag CWR of TCP.
    pub has_ecn: bool,
}

impl FrameSegments {
    /// Creates the description of segments of `size_bytes` of payload each.
    #[must_use]
    pub const fn new(kind: SegmentKind, size_bytes: u16) -> Self {
        Self { kind, size_bytes, has_ecn: false }
    }

    /// Reads the kernel's header, in the machine's byte order. `None` if the frame is a single packet.
    ///
    /// # Errors
    /// [`SegmentError`].
    #[inline]
    pub fn parse(header: &[u8]) -> Result<Option<Self>, SegmentError> {
        let Some([_, kind, _, _, low, high, ..]) = header.first_chunk::<OFFLOAD_BYTES>() else {
            return Err(SegmentError::Short { length: header.len() });
        };
        let has_ecn = kind & ECN != 0;
        let kind = match kind & !ECN {
            0 if !has_ecn => return Ok(None),
            1 => SegmentKind::TcpV4,
            4 => SegmentKind::TcpV6,
            5 if !has_ecn => SegmentKind::Udp,
            _ => return Err(SegmentError::Kind { kind: *kind }),
        };
        match u16::from_ne_bytes([*low, *high]) {
            0 => Err(SegmentError::Empty),
            size_bytes => Ok(Some(Self { kind, size_bytes, has_ecn })),
        }
    }
}

/// A frame of several segments, to be sent.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "what a link needs")]
pub struct SegmentedFrame<'a> {
    /// The frame. The field of the transport's checksum may hold anything.
    pub bytes: &'a [u8],
    /// The rule by which it is cut.
    pub segments: FrameSegments,
    /// The offset of the transport's header.
    pub transport_at: usize,
    /// The sum over the pseudo header, with the length of all segments together.
    pub pseudo_header_sum: u16,
}

/// A frame as the kernel takes it, in four parts.
#[derive(Debug)]
pub(super) struct SegmentParts<'a> {
    pub(super) header: [u8; OFFLOAD_BYTES],
    pub(super) front: &'a [u8],
    pub(super) checksum: [u8; 2],
    pub(super) rest: &'a [u8],
}

impl<'a> SegmentedFrame<'a> {
    /// Describes it for the kernel.
    pub(super) fn parts(&self) -> Result<SegmentParts<'a>, SegmentError> {
        let FrameSegments { kind, size_bytes, has_ecn } = self.segments;
        if size_bytes == 0 {
            return Err(SegmentError::Empty);
        }
        let (frame, transport_at) = (self.bytes, self.transport_at);
        let outside = SegmentError::Outside { length: frame.len(), transport_at };
        let transport = frame.get(transport_at..).ok_or(outside)?;
        let (header_bytes, checksum_at) = match kind {
            SegmentKind::TcpV4 | SegmentKind::TcpV6 => {
                (usize::from(transport.get(12).ok_or(outside)? >> 4) * 4, 16_u16)
            }
            SegmentKind::Udp => (8, 6),
        };
        if header_bytes < usize::from(checksum_at) + 2 || transport.len() <= header_bytes {
            return Err(outside);
        }

        let wide = |value: usize| u16::try_from(value).map_err(|_| outside);
        let ecn = if has_ecn { ECN } else { 0 };
        let mut header = [0; OFFLOAD_BYTES];
        header[0] = NEEDS_CHECKSUM;
        header[1] = kind.number() | ecn;
        let words =
            [wide(transport_at + header_bytes)?, size_bytes, wide(transport_at)?, checksum_at];
        for (place, word) in header[2..].as_chunks_mut::<2>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }

        let (front, rest) = frame.split_at(transport_at + usize::from(checksum_at));
        let checksum = self.pseudo_header_sum.to_be_bytes();
        Ok(SegmentParts { header, front, checksum, rest: rest.get(2..).ok_or(outside)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every header is segments of a known kind, a single packet, or a typed error, and what is written is read back.
    /// Method: all kinds with sizes at the ends of their range, all shorter headers.
    #[test]
    fn headers_are_read_and_written() {
        for kind in 0..=u8::MAX {
            for size in [0, 1, 1448, u16::MAX] {
                let [low, high] = size.to_ne_bytes();
                let header = [1, kind, 66, 0, low, high, 34, 0, 16, 0];
                for length in 0..OFFLOAD_BYTES {
                    let error = SegmentError::Short { length };
                    assert_eq!(FrameSegments::parse(&header[..length]), Err(error));
                }
                let read = FrameSegments::parse(&header);
                match kind {
                    0 => assert_eq!(read, Ok(None)),
                    1 | 4 | 5 | 0x81 | 0x84 if size == 0 => {
                        assert_eq!(read, Err(SegmentError::Empty));
                    }
                    1 | 4 | 5 | 0x81 | 0x84 => {
                        let read = read.expect("it is known").expect("segments");
                        assert_eq!((read.size_bytes, read.has_ecn), (size, kind & 0x80 != 0));
                        let mut frame = [0; 80];
                        frame[34 + 12] = 0x80;
                        let frame = SegmentedFrame {
                            bytes: &frame,
                            segments: read,
                            transport_at: 34,
                            pseudo_header_sum: 0x1234,
                        };
                        let parts = frame.parts().expect("it has room");
                        assert_eq!(FrameSegments::parse(&parts.header), Ok(Some(read)));
                        assert_eq!((parts.header[1], parts.checksum), (kind, [0x12, 0x34]));
                    }
                    _ => assert_eq!(read, Err(SegmentError::Kind { kind })),
                }
            }
        }
    }

    /// Goal: no frame makes a header that points outside of it. Method: frames of all lengths up to a header's, with all
    /// lengths of a TCP header, and offsets inside and outside.
    #[test]
    fn headers_stay_inside_the_frame() {
        for kind in [SegmentKind::TcpV4, SegmentKind::TcpV6, SegmentKind::Udp] {
            for (length, at, words) in (0..90)
                .flat_map(|length| [0, 34, 54, usize::MAX].map(|at| (length, at)))
                .flat_map(|(length, at)| (0..16_u8).map(move |words| (length, at, words)))
            {
                let frame = SegmentedFrame {
                    bytes: &vec![words << 4; length],
                    segments: FrameSegments::new(kind, 9),
                    transport_at: at,
                    pseudo_header_sum: 0,
                };
                let Ok(SegmentParts { header, front, rest, .. }) = frame.parts() else { continue };
                assert_eq!(front.len() + 2 + rest.len(), length);
                let word =
                    |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
                assert!(word(2) < length && word(6) + word(8) + 2 <= word(2), "{header:?}");
            }
        }
    }
}
