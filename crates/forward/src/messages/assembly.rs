//! Messages that are being put together of packets.

use super::packet::{Header, Kind};

/// What a connection and a source have sent of a message so far. Packets of one source come in order, so that there is
/// one message at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    current: Option<Header>,
    /// Where the next piece begins.
    next: u32,
}

/// Where a piece is in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

impl Sequence {
    /// Takes the next data packet. The error tells what the peer did wrong.
    pub(super) fn take(
        &mut self,
        header: &Header,
        payload_max: u32,
        longest: u32,
    ) -> Result<Piece, &'static str> {
        debug_assert_eq!(header.kind, Kind::Data);
        if header.length > longest {
            return Err("a message longer than it was told to send");
        }
        let is_first = header.offset == 0;
        let fits = match &self.current {
            None => is_first,
            Some(first) => {
                !is_first
                    && header.offset == self.next
                    && (first.message, first.length, first.destination)
                        == (header.message, header.length, header.destination)
            }
        };
        if !fits {
            return Err("pieces of a message out of order");
        }
        let is_last = header.is_last(payload_max);
        if is_last {
            self.current = None;
        } else {
            self.current = Some(*header);
            self.next = header.offset + payload_max;
        }
        Ok(Piece { is_first, is_last })
    }

    /// Whether a message is in the middle.
    pub(super) const fn is_open(&self) -> bool {
        self.current.is_some()
    }
}
