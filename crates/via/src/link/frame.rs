//! Parses frames defensively: anyone on the network may have written them.

use thiserror::Error;

use super::address::{EtherType, MacAddress};

/// Bytes in front of the payload: two addresses and the protocol.
pub const HEADER_BYTES: usize = 14;
/// Bytes of a VLAN tag, between the addresses and the protocol.
const TAG_BYTES: usize = 4;
/// The protocols that announce a tag: 802.1Q and 802.1ad.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// The reason why bytes are not an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// There are fewer bytes than a header has.
    #[error("a frame of {length} bytes is too short for a header")]
    Short {
        /// The length of the frame in bytes.
        length: usize,
    },
    /// It has more than two nested tags.
    #[error("a frame with more than two VLAN tags")]
    Tags,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EthernetHeader {
    /// The receiver's address.
    pub destination: MacAddress,
    /// The address that claims to have sent it.
    pub source: MacAddress,
    /// The innermost protocol.
    pub ether_type: EtherType,
    /// The outermost VLAN tag in the frame (priority, drop eligibility, number), if there is one. The kernel
    /// usually removes it: see [`Frame::tag`](super::Frame::tag).
    pub tag: Option<u16>,
    /// The offset of the payload, in bytes.
    pub payload_offset: usize,
}

impl EthernetHeader {
    /// Reads the header of a frame that begins with `bytes`.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let short = FrameError::Short { length: bytes.len() };
        let (destination, rest) = bytes.split_first_chunk::<6>().ok_or(short)?;
        let (source, mut rest) = rest.split_first_chunk::<6>().ok_or(short)?;
        let mut tag = None;
        let mut payload_offset = HEADER_BYTES;
        for _ in 0..=TAGS.len() {
            let (&ether_type, behind) = rest.split_first_chunk::<2>().ok_or(short)?;
            let ether_type = u16::from_be_bytes(ether_type);
            if !TAGS.contains(&ether_type) {
                return Ok(Self {
                    destination: MacAddress(*destination),
                    source: MacAddress(*source),
                    ether_type: EtherType(ether_type),
                    tag,
                    payload_offset,
                });
            }
            let (&control, behind) = behind.split_first_chunk::<2>().ok_or(short)?;
            tag.get_or_insert_with(|| u16::from_be_bytes(control));
            payload_offset += TAG_BYTES;
            rest = behind;
        }
        Err(FrameError::Tags)
    }

    /// Returns the bytes of a header without a tag.
    #[must_use]
    #[inline]
    pub fn bytes(
        destination: MacAddress,
        source: MacAddress,
        ether_type: EtherType,
    ) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..6].copy_from_slice(&destination.0);
        bytes[6..12].copy_from_slice(&source.0);
        bytes[12..].copy_from_slice(&ether_type.0.to_be_bytes());
        bytes
    }
}

/// Computes the checksum of a TCP or UDP packet that its sender has left to the network card, and writes it
/// into the frame. Returns whether there was one to compute: frames of other protocols, fragments and cut-off
/// frames do not change.
///
/// Between the two ends of a veth pair no card computes it, so a program that takes such a frame
/// ([`Checksum::Missing`](super::Checksum::Missing)) and passes it on elsewhere must do so.
pub fn complete_checksum(frame: &mut [u8]) -> bool {
    fill_in(frame).is_some()
}

fn fill_in(frame: &mut [u8]) -> Option<()> {
    let header = EthernetHeader::parse(frame).ok()?;
    let packet = frame.get_mut(header.payload_offset..)?;
    // The sum over addresses, protocol and length, and the offsets at which the transport header begins and
    // the packet ends.
    let (protocol, addresses, begin, end) = match header.ether_type {
        EtherType::IPV4 => {
            let begin = usize::from(packet.first()? & 0xf) * 4;
            let end = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]);
            if begin < 20 || fragment & 0x3fff != 0 {
                return None;
            }
            (*packet.get(9)?, 12..20, begin, end)
        }
        EtherType::IPV6 => {
            let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
            (*packet.get(6)?, 8..40, 40, 40 + length)
        }
        _ => return None,
    };

    let at = match protocol {
        6 => 16,
        17 => 6,
        _ => return None,
    };

    let addresses = sum(packet.get(addresses)?);
    let transport = packet.get_mut(begin..end)?;
    let length = u64::try_from(transport.len()).ok()?;
    transport.get_mut(at..at + 2)?.fill(0);
    let total = addresses + u64::from(protocol) + length + sum(transport);
    let folded = match !fold(total) {
        // For UDP, zero would mean that there is no checksum.
        0 if protocol == 17 => 0xffff,
        folded => folded,
    };
    transport.get_mut(at..at + 2)?.copy_from_slice(&folded.to_be_bytes());
    Some(())
}

/// Returns the sum of 16-bit words, the last of which may be half.
fn sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    let words: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    words + last.first().map_or(0, |&byte| u64::from(byte) << 8)
}

/// Adds the carries until none is left.
fn fold(mut sum: u64) -> u16 {
    loop {
        match u16::try_from(sum) {
            Ok(folded) => return folded,
            Err(_) => sum = (sum >> 16) + (sum & 0xffff),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    fn tagged(tags: &[u16]) -> Vec<u8> {
        let mut bytes = EthernetHeader::bytes(B, A, EtherType::EXPERIMENTAL_1).to_vec();
        for (index, tag) in tags.iter().enumerate() {
            let [kind, control] = [TAGS[0].to_be_bytes(), tag.to_be_bytes()];
            let at = 12 + index * TAG_BYTES;
            bytes.splice(at..at, [kind, control].concat());
        }
        bytes
    }

    /// Goal: headers with up to two tags are read, longer rows of tags and cut-off frames are errors. Method:
    /// every prefix of frames with 0 to 3 tags.
    #[test]
    fn headers_are_read_with_their_tags() {
        for tags in [&[][..], &[7], &[9, 7]] {
            let bytes = tagged(tags);
            let header = EthernetHeader::parse(&bytes).expect("a header");
            assert_eq!((header.destination, header.source), (B, A));
            assert_eq!(header.ether_type, EtherType::EXPERIMENTAL_1);
            assert_eq!(header.tag, tags.first().copied());
            assert_eq!(header.payload_offset, bytes.len());
            for length in 0..bytes.len() {
                assert_eq!(
                    EthernetHeader::parse(&bytes[..length]),
                    Err(FrameError::Short { length })
                );
            }
        }
        assert_eq!(EthernetHeader::parse(&tagged(&[1, 2, 3])), Err(FrameError::Tags));
    }

    /// Goal: the checksum is the one that a receiver accepts, and nothing else is touched. Method: packets
    /// whose sum over everything must fold to all ones afterwards, every prefix of them, and fragments.
    #[test]
    fn checksums_are_completed() {
        let mut v4 = EthernetHeader::bytes(B, A, EtherType::IPV4).to_vec();
        v4.extend([0x45, 0, 0, 31, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        v4.extend([0, 9, 0, 9, 0, 11, 0xab, 0xcd, 1, 2, 3]);
        let mut v6 = EthernetHeader::bytes(B, A, EtherType::IPV6).to_vec();
        v6.extend([0x60, 0, 0, 0, 0, 22, 6, 64]);
        v6.extend((0..32).chain(0..22));
        for (frame, addresses, begin) in [(v4, 26..34, 34), (v6, 22..54, 54)] {
            let mut done = frame.clone();
            // Ethernet pads short frames: bytes behind the packet do not count.
            done.extend([0xee; 7]);
            assert!(complete_checksum(&mut done));
            let transport = &done[begin..frame.len()];
            let protocol: u64 = if begin == 34 { 17 } else { 6 };
            let length = u64::try_from(transport.len()).expect("small");
            let total = sum(&done[addresses]) + protocol + length + sum(transport);
            assert_eq!(fold(total), 0xffff);
            for length in 0..frame.len() {
                let mut cut = frame[..length].to_vec();
                assert!(!complete_checksum(&mut cut), "{length}");
                assert_eq!(cut, frame[..length]);
            }
        }
    }
}
