//! Reassembles packets that were longer than the frames of their interface.

use super::encap::{EtherPath, FragmentHeader};

/// The longest reassembled packet in bytes: no packet is longer.
const PACKET_BYTES_MAX: usize = 65_535;

/// The most incomplete packets, from different senders.
const INCOMPLETE_MAX: usize = 16;

/// A packet whose first fragments have arrived. Ethernet keeps frames in order: if one is missing, it is
/// lost, and so is the packet.
#[derive(Debug)]
struct PartialPacket {
    from: EtherPath,
    last: FragmentHeader,
    bytes: Vec<u8>,
}

/// The incomplete packets, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    incomplete: Vec<PartialPacket>,
}

impl Reassembly {
    /// Adds a fragment. Returns the packet if it is complete.
    pub(super) fn add(
        &mut self,
        from: EtherPath,
        encap: FragmentHeader,
        fragment: &[u8],
    ) -> Option<Vec<u8>> {
        let place = self.incomplete.iter().position(|one| one.from == from);
        let mut found = place.map(|place| self.incomplete.remove(place));
        if encap.fragment == 0 {
            found = Some(PartialPacket { from, last: encap, bytes: Vec::new() });
        } else {
            found = found.filter(|one| {
                one.last.fragment + 1 == encap.fragment
                    && (one.last.packet, one.last.fragments) == (encap.packet, encap.fragments)
                    && one.bytes.len() + fragment.len() <= PACKET_BYTES_MAX
            });
        }

        let mut packet = found?;
        packet.last = encap;
        packet.bytes.extend_from_slice(fragment);
        if encap.fragment + 1 == encap.fragments {
            return Some(packet.bytes);
        }
        if self.incomplete.len() == INCOMPLETE_MAX {
            self.incomplete.remove(0);
        }
        self.incomplete.push(packet);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::MacAddress;

    fn fragment(packet: u8, fragment: u8, fragments: u8) -> FragmentHeader {
        FragmentHeader { packet, fragment, fragments, to: 1, from: 2 }
    }

    /// Goal: packets are reassembled from their own fragments only. Method: two senders in turns, a lost
    /// fragment, one that comes twice, one of another packet, more than may be long.
    #[test]
    fn packets_are_put_together() {
        let [one, other] = [1, 2].map(|port| EtherPath::new(MacAddress([2; 6]), port));
        let mut fragments = Reassembly::default();
        assert_eq!(fragments.add(one, fragment(1, 0, 3), b"ab"), None);
        assert_eq!(fragments.add(other, fragment(1, 0, 2), b"x"), None);
        assert_eq!(fragments.add(one, fragment(1, 1, 3), b"cd"), None);
        assert_eq!(fragments.add(other, fragment(1, 1, 2), b"y"), Some(b"xy".to_vec()));
        assert_eq!(fragments.add(one, fragment(1, 2, 3), b"e"), Some(b"abcde".to_vec()));
        for wrong in [fragment(2, 2, 3), fragment(2, 0, 3), fragment(3, 1, 3), fragment(2, 1, 4)] {
            assert_eq!(fragments.add(one, fragment(2, 0, 3), b"ab"), None);
            assert_eq!(fragments.add(one, wrong, b"cd"), None);
            assert_eq!(fragments.add(one, fragment(2, 2, 3), b"ef"), None);
        }
        let long = vec![0; 40_000];
        assert_eq!(fragments.add(one, fragment(2, 0, 2), &long), None);
        assert_eq!(fragments.add(one, fragment(2, 1, 2), &long), None);
        assert!(fragments.incomplete.is_empty());
    }

    /// Goal: a sender of first fragments only takes bounded memory. Method: many ports.
    #[test]
    fn incomplete_packets_are_few() {
        let mut fragments = Reassembly::default();
        for port in 1..1000 {
            fragments.add(EtherPath::new(MacAddress([2; 6]), port), fragment(0, 0, 2), &[0; 100]);
        }
        assert_eq!(fragments.incomplete.len(), INCOMPLETE_MAX);
        assert_eq!(fragments.incomplete[0].from.port, 1000 - 16);
    }
}
