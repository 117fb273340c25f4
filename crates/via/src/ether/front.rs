//! What stands in front of each packet or piece of one: eight bytes, which anybody on the network may have written.

use crate::{
    link::{self, MacAddress},
    software_nic::Path,
};

/// Bytes of it, behind the header of Ethernet.
pub(super) const FRONT_BYTES: usize = 8;

/// Where the port that a frame is for begins, from the beginning of the frame.
pub(super) const PORT_OFFSET: u32 = 14 + 4;

/// So many pieces a packet has at most.
pub(super) const PIECES_MAX: usize = 15;

const MAGIC: u8 = b'V';
const VERSION: u8 = 1;

/// Where a NIC over Ethernet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct EtherPath {
    /// The address of its interface.
    pub address: MacAddress,
    /// Its port there.
    pub port: u16,
}

impl EtherPath {
    /// Names a port of an interface.
    #[must_use]
    pub const fn new(address: MacAddress, port: u16) -> Self {
        Self { address, port }
    }
}

/// The address, then the port, the first byte of either first.
impl Path for EtherPath {
    fn to_bytes(&self) -> Vec<u8> {
        [&self.address.0[..], &self.port.to_be_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, high, low] = *<&[u8; 8]>::try_from(bytes).ok()?;
        let path = Self::new(MacAddress([a, b, c, d, e, f]), u16::from_be_bytes([high, low]));
        (!path.address.is_multicast() && path.port != 0).then_some(path)
    }
}

/// Which piece of a packet a frame has.
///
/// | bytes | what |
/// | --- | --- |
/// | 0 | `V` |
/// | 1 | version, 1 |
/// | 2 | number of the packet, if it is in pieces |
/// | 3 | number of the piece, and how many there are: four bits each |
/// | 4, 5 | port it is for, most significant byte first |
/// | 6, 7 | port it comes from |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Front {
    pub(super) packet: u8,
    pub(super) piece: u8,
    /// 1 to [`PIECES_MAX`], and more than `piece`.
    pub(super) pieces: u8,
    pub(super) to: u16,
    pub(super) from: u16,
}

impl Front {
    /// A packet in one piece.
    pub(super) const fn whole(to: u16, from: u16) -> Self {
        Self { packet: 0, piece: 0, pieces: 1, to, from }
    }

    pub(super) const fn bytes(self) -> [u8; FRONT_BYTES] {
        let [to, from] = [self.to.to_be_bytes(), self.from.to_be_bytes()];
        let pieces = self.piece << 4 | (self.pieces & 0xf);
        [MAGIC, VERSION, self.packet, pieces, to[0], to[1], from[0], from[1]]
    }

    /// Reads it, with the header of Ethernet before it. From whom it comes.
    #[inline]
    pub(super) fn parse(
        bytes: &[u8; link::HEADER_BYTES + FRONT_BYTES],
    ) -> Option<(Self, MacAddress)> {
        let ethernet = link::Header::parse(bytes).ok()?;
        let is_plain = ethernet.payload_offset == link::HEADER_BYTES;
        let is_for_one = !ethernet.destination.is_multicast() && !ethernet.source.is_multicast();
        let (_, front) = bytes.split_last_chunk::<FRONT_BYTES>()?;
        let [MAGIC, VERSION, packet, pieces, to @ .., e, f] = *front else { return None };
        let (piece, pieces) = (pieces >> 4, pieces & 0xf);
        let (to, from) = (u16::from_be_bytes(to), u16::from_be_bytes([e, f]));
        let is_sound = piece < pieces && from != 0;
        (is_plain && is_for_one && is_sound)
            .then_some((Self { packet, piece, pieces, to, from }, ethernet.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    fn frame(front: [u8; FRONT_BYTES]) -> [u8; 22] {
        let mut bytes = [0; 22];
        bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        bytes[6..12].copy_from_slice(&WHO.0);
        bytes[12..14].copy_from_slice(&[0x88, 0xb6]);
        bytes[14..].copy_from_slice(&front);
        bytes
    }

    /// Goal: what is written is read again. Method: all pieces, and the port at its place.
    #[test]
    fn fronts_are_read_as_written() {
        for pieces in 1..16 {
            for piece in 0..pieces {
                let front = Front { packet: 200, piece, pieces, to: 0x0102, from: 0xfffe };
                let bytes = frame(front.bytes());
                assert_eq!(Front::parse(&bytes), Some((front, WHO)));
                let offset = usize::try_from(PORT_OFFSET).unwrap();
                assert_eq!(bytes[offset..offset + 2], [1, 2]);
            }
        }
        let path = EtherPath::new(WHO, 0x1234);
        assert_eq!(EtherPath::from_bytes(&path.to_bytes()), Some(path));
    }

    /// Goal: rubbish is nothing, and no value makes it panic. Method: each byte of a good front takes all values; only
    /// those that may vary do; paths that nobody has, or of other lengths.
    #[test]
    fn rubbish_is_refused() {
        let good = Front::whole(7, 9).bytes();
        for at in 0..FRONT_BYTES {
            for value in 0..=255 {
                let mut bytes = good;
                bytes[at] = value;
                let may = match at {
                    0 => value == MAGIC,
                    1 => value == VERSION,
                    3 => value >> 4 < value & 0xf,
                    7 => value != 0,
                    _ => true,
                };
                assert_eq!(Front::parse(&frame(bytes)).is_some(), may, "{at}: {value}");
            }
        }
        let mut to_group = frame(good);
        to_group[0] |= 1;
        assert_eq!(Front::parse(&to_group), None);
        let mut tagged = frame(good);
        tagged[12..14].copy_from_slice(&[0x81, 0]);
        assert_eq!(Front::parse(&tagged), None);
        for bytes in [&[2; 7][..], &[2; 9], &[3, 0, 0, 0, 0, 0, 0, 1], &[2, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(EtherPath::from_bytes(bytes), None);
        }
    }
}
