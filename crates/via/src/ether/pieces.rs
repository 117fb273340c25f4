//! Puts packets together that were longer than the frames of their interface.

use super::front::{EtherPath, Front};

/// The longest packet that is put together, in bytes: as long as any is.
const PACKET_BYTES_MAX: usize = 65_535;

/// So many packets may be incomplete, of different senders.
const INCOMPLETE_MAX: usize = 16;

/// A packet whose first pieces are here. Ethernet keeps frames in order: if one is missing it is lost, and so is the
/// packet.
#[derive(Debug)]
struct Incomplete {
    from: EtherPath,
    last: Front,
    bytes: Vec<u8>,
}

/// The incomplete packets, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    incomplete: Vec<Incomplete>,
}

impl Pieces {
    /// Takes a piece. The packet, if it is complete.
    pub(super) fn add(&mut self, from: EtherPath, front: Front, piece: &[u8]) -> Option<Vec<u8>> {
        let place = self.incomplete.iter().position(|one| one.from == from);
        let mut found = place.map(|place| self.incomplete.remove(place));
        if front.piece == 0 {
            found = Some(Incomplete { from, last: front, bytes: Vec::new() });
        } else {
            found = found.filter(|one| {
                one.last.piece + 1 == front.piece
                    && (one.last.packet, one.last.pieces) == (front.packet, front.pieces)
                    && one.bytes.len() + piece.len() <= PACKET_BYTES_MAX
            });
        }
        let mut packet = found?;
        packet.last = front;
        packet.bytes.extend_from_slice(piece);
        if front.piece + 1 == front.pieces {
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

    fn piece(packet: u8, piece: u8, pieces: u8) -> Front {
        Front { packet, piece, pieces, to: 1, from: 2 }
    }

    /// Goal: packets come together from their pieces, and from nothing else. Method: two senders in turns, a lost piece,
    /// one that comes twice, one of another packet, more than may be long.
    #[test]
    fn packets_are_put_together() {
        let [one, other] = [1, 2].map(|port| EtherPath::new(MacAddress([2; 6]), port));
        let mut pieces = Pieces::default();
        assert_eq!(pieces.add(one, piece(1, 0, 3), b"ab"), None);
        assert_eq!(pieces.add(other, piece(1, 0, 2), b"x"), None);
        assert_eq!(pieces.add(one, piece(1, 1, 3), b"cd"), None);
        assert_eq!(pieces.add(other, piece(1, 1, 2), b"y"), Some(b"xy".to_vec()));
        assert_eq!(pieces.add(one, piece(1, 2, 3), b"e"), Some(b"abcde".to_vec()));
        for wrong in [piece(2, 2, 3), piece(2, 0, 3), piece(3, 1, 3), piece(2, 1, 4)] {
            assert_eq!(pieces.add(one, piece(2, 0, 3), b"ab"), None);
            assert_eq!(pieces.add(one, wrong, b"cd"), None);
            assert_eq!(pieces.add(one, piece(2, 2, 3), b"ef"), None);
        }
        let long = vec![0; 40_000];
        assert_eq!(pieces.add(one, piece(2, 0, 2), &long), None);
        assert_eq!(pieces.add(one, piece(2, 1, 2), &long), None);
        assert!(pieces.incomplete.is_empty());
    }

    /// Goal: whoever sends first pieces only takes bounded memory. Method: many ports.
    #[test]
    fn incomplete_packets_are_few() {
        let mut pieces = Pieces::default();
        for port in 1..1000 {
            pieces.add(EtherPath::new(MacAddress([2; 6]), port), piece(0, 0, 2), &[0; 100]);
        }
        assert_eq!(pieces.incomplete.len(), INCOMPLETE_MAX);
        assert_eq!(pieces.incomplete[0].from.port, 1000 - 16);
    }
}
