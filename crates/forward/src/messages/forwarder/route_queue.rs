//! The queue to one destination.

use std::collections::VecDeque;

use vigie_via::vi::{Provider, ViId};

use crate::messages::error::MessagesError;
use crate::messages::packet::PacketHeader;
use crate::messages::port::{Arrival, NodePort};

/// An item to send, in order.
#[derive(Debug)]
pub(super) enum Outbound {
    /// A packet in its receive buffer.
    Passing(PacketHeader, Arrival),
    /// A packet without data.
    Mark(PacketHeader),
    /// A message from the program whose fragments from `header.offset` on are not yet sent.
    Message(PacketHeader, Vec<u8>),
}

/// The route to a destination.
#[derive(Debug)]
pub(super) struct RouteQueue {
    pub(super) connection: ViId,
    pub(super) is_open: bool,
    pub(super) is_gone: bool,
    pub(super) out: VecDeque<Outbound>,
}

/// Counts of one pump.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SentCounts {
    pub(super) packets: u64,
    /// Messages of the program sent completely, marks included.
    pub(super) messages: usize,
}

impl RouteQueue {
    pub(super) const fn new(connection: ViId) -> Self {
        Self { connection, is_open: false, is_gone: false, out: VecDeque::new() }
    }

    /// Sends as much as the sink has room for.
    pub(super) fn pump<P: Provider>(
        &mut self,
        port: &mut NodePort<P>,
    ) -> Result<SentCounts, MessagesError> {
        let mut departed = SentCounts::default();
        let payload_max = port.payload_bytes();
        while port.has_credit(self.connection) {
            let Some(out) = self.out.pop_front() else { break };
            match out {
                Outbound::Passing(header, arrival) => {
                    port.pass(self.connection, header, arrival)?
                }
                Outbound::Mark(header) => {
                    if !port.send(self.connection, header, &[])? {
                        self.out.push_front(Outbound::Mark(header));
                        break;
                    }
                }
                Outbound::Message(mut header, bytes) => {
                    let from = usize::try_from(header.offset).unwrap_or(usize::MAX);
                    let count = header.payload_bytes(payload_max).unwrap_or(0);
                    let end = from.saturating_add(usize::try_from(count).unwrap_or(0));
                    let is_sent =
                        port.send(self.connection, header, bytes.get(from..end).unwrap_or(&[]))?;
                    if !is_sent {
                        self.out.push_front(Outbound::Message(header, bytes));
                        break;
                    }
                    if header.is_last(payload_max) {
                        departed.messages += 1;
                    } else {
                        header.offset += payload_max;
                        self.out.push_front(Outbound::Message(header, bytes));
                    }
                }
            }
            departed.packets += 1;
        }

        Ok(departed)
    }
}
