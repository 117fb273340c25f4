//! Reassembly of messages from packets.

use super::packet::{PacketHeader, PacketKind};

/// The part of a message that a source has sent so far over one connection. Packets of one source come in order, so that at most
/// one message is incomplete.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reassembly {
    current: Option<PacketHeader>,
    /// The start of the next fragment.
    next: u32,
}

/// The position of a fragment in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentPosition {
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

impl Reassembly {
    /// Takes the next data packet. The error says what the peer did wrong.
    pub(super) fn take(
        &mut self,
        header: &PacketHeader,
        payload_max: u32,
        longest: u32,
    ) -> Result<FragmentPosition, &'static str> {
        debug_assert_eq!(header.kind, PacketKind::Data);
        if header.length > longest {
            return Err("a message longer than the announced limit");
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
            return Err("fragments of a message out of order");
        }

        let is_last = header.is_last(payload_max);
        if is_last {
            self.current = None;
        } else {
            self.current = Some(*header);
            self.next = header.offset + payload_max;
        }

        Ok(FragmentPosition { is_first, is_last })
    }

    /// Returns whether a message is incomplete.
    pub(super) const fn is_open(&self) -> bool {
        self.current.is_some()
    }
}
