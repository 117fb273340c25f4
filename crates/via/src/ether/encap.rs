//! The eight bytes in front of each packet or fragment. Any host on the network may have written them.

use crate::{
    link::{self, MacAddress},
    software_nic::Path,
};

/// Their length, behind the Ethernet header.
pub(super) const ENCAP_BYTES: usize = 8;

/// The smallest MTU of an interface, in bytes: a packet that every path must take, and its header.
pub const MTU_MIN: usize = 1200 + ENCAP_BYTES;

/// The offset of the destination port, from the beginning of the frame.
pub(super) const PORT_OFFSET: u32 = 14 + 4;

/// The most fragments of a packet.
pub(super) const FRAGMENTS_MAX: usize = 15;

const MAGIC: u8 = b'V';
const VERSION: u8 = 1;

/// The address of a NIC over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct EtherPath {
    /// The hardware address of its interface.
    pub address: MacAddress,
    /// Its port there.
    pub port: u16,
}

impl EtherPath {
    /// Makes the path to a port of an interface.
    #[must_use]
    pub const fn new(address: MacAddress, port: u16) -> Self {
        Self { address, port }
    }
}

/// The hardware address, then the port, each in network byte order.
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

/// The header of a frame: which fragment of which packet it holds.
///
/// | bytes | content |
/// | --- | --- |
/// | 0 | `V` |
/// | 1 | version, 1 |
/// | 2 | number of the packet, if it is fragmented |
/// | 3 | number of the fragment, and their count: four bits each |
/// | 4, 5 | destination port, most significant byte first |
/// | 6, 7 | source port |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentHeader {
    pub(super) packet: u8,
    pub(super) fragment: u8,
    /// 1 to [`FRAGMENTS_MAX`], and more than `fragment`.
    pub(super) fragments: u8,
    pub(super) to: u16,
    pub(super) from: u16,
}

impl FragmentHeader {
    /// Returns the header of an unfragmented packet.
    pub(super) const fn whole(to: u16, from: u16) -> Self {
        Self { packet: 0, fragment: 0, fragments: 1, to, from }
    }

    pub(super) const fn bytes(self) -> [u8; ENCAP_BYTES] {
        let [to, from] = [self.to.to_be_bytes(), self.from.to_be_bytes()];
        let fragments = self.fragment << 4 | (self.fragments & 0xf);
        [MAGIC, VERSION, self.packet, fragments, to[0], to[1], from[0], from[1]]
    }

    /// Parses it, together with the Ethernet header before it. Also returns the source.
    #[inline]
    pub(super) fn parse(
        bytes: &[u8; link::HEADER_BYTES + ENCAP_BYTES],
    ) -> Option<(Self, MacAddress)> {
        let ethernet = link::EthernetHeader::parse(bytes).ok()?;
        let is_plain = ethernet.payload_offset == link::HEADER_BYTES;
        let is_for_one = !ethernet.destination.is_multicast() && !ethernet.source.is_multicast();
        let (_, encap) = bytes.split_last_chunk::<ENCAP_BYTES>()?;
        let [MAGIC, VERSION, packet, fragments, to @ .., e, f] = *encap else { return None };
        let (fragment, fragments) = (fragments >> 4, fragments & 0xf);
        let (to, from) = (u16::from_be_bytes(to), u16::from_be_bytes([e, f]));
        let is_sound = fragment < fragments && from != 0;
        (is_plain && is_for_one && is_sound)
            .then_some((Self { packet, fragment, fragments, to, from }, ethernet.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    fn frame(encap: [u8; ENCAP_BYTES]) -> [u8; 22] {
        let mut bytes = [0; 22];
        bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        bytes[6..12].copy_from_slice(&WHO.0);
        bytes[12..14].copy_from_slice(&[0x88, 0xb6]);
        bytes[14..].copy_from_slice(&encap);
        bytes
    }

    /// Goal: what is written is read back. Method: all fragments, and the port at its place.
    #[test]
    fn headers_are_read_as_written() {
        for fragments in 1..16 {
            for fragment in 0..fragments {
                let encap =
                    FragmentHeader { packet: 200, fragment, fragments, to: 0x0102, from: 0xfffe };
                let bytes = frame(encap.bytes());
                assert_eq!(FragmentHeader::parse(&bytes), Some((encap, WHO)));
                let offset = usize::try_from(PORT_OFFSET).unwrap();
                assert_eq!(bytes[offset..offset + 2], [1, 2]);
            }
        }
        let path = EtherPath::new(WHO, 0x1234);
        assert_eq!(EtherPath::from_bytes(&path.to_bytes()), Some(path));
    }

    /// Goal: garbage is rejected, and no value causes a panic. Method: each byte of a valid header takes
    /// all values, and only those that may vary do; invalid paths, and paths of other lengths.
    #[test]
    fn rubbish_is_refused() {
        let good = FragmentHeader::whole(7, 9).bytes();
        for at in 0..ENCAP_BYTES {
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
                assert_eq!(FragmentHeader::parse(&frame(bytes)).is_some(), may, "{at}: {value}");
            }
        }
        let mut to_group = frame(good);
        to_group[0] |= 1;
        assert_eq!(FragmentHeader::parse(&to_group), None);
        let mut tagged = frame(good);
        tagged[12..14].copy_from_slice(&[0x81, 0]);
        assert_eq!(FragmentHeader::parse(&tagged), None);
        for bytes in [&[2; 7][..], &[2; 9], &[3, 0, 0, 0, 0, 0, 0, 1], &[2, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(EtherPath::from_bytes(bytes), None);
        }
    }
}
