//! What waits to leave for one destination.

use std::collections::VecDeque;

use vigie_via::vi::{Provider, ViId};

use crate::messages::error::MessagesError;
use crate::messages::packet::Header;
use crate::messages::port::{Arrival, Port};

/// What leaves, in order.
#[derive(Debug)]
pub(super) enum Out {
    /// A packet in the buffer in which it has arrived.
    Passing(Header, Arrival),
    /// A packet without data.
    Mark(Header),
    /// A message of the program, of which the pieces from `header.offset` on have not left.
    Message(Header, Vec<u8>),
}

/// The way to a destination.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) hop: ViId,
    pub(super) is_open: bool,
    pub(super) is_gone: bool,
    pub(super) out: VecDeque<Out>,
}

/// What left in one go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Departed {
    pub(super) packets: u64,
    /// Messages of the program that have left completely, marks included.
    pub(super) messages: usize,
}

impl Route {
    pub(super) const fn new(hop: ViId) -> Self {
        Self { hop, is_open: false, is_gone: false, out: VecDeque::new() }
    }

    /// Sends what the sink has room for.
    pub(super) fn pump<P: Provider>(
        &mut self,
        port: &mut Port<P>,
    ) -> Result<Departed, MessagesError> {
        let mut departed = Departed::default();
        let payload_max = port.payload_bytes();
        while port.has_credit(self.hop) {
            let Some(out) = self.out.pop_front() else { break };
            match out {
                Out::Passing(header, arrival) => port.pass(self.hop, header, arrival)?,
                Out::Mark(header) => {
                    if !port.send(self.hop, header, &[])? {
                        self.out.push_front(Out::Mark(header));
                        break;
                    }
                }
                Out::Message(mut header, bytes) => {
                    let from = usize::try_from(header.offset).unwrap_or(usize::MAX);
                    let count = header.payload_bytes(payload_max).unwrap_or(0);
                    let end = from.saturating_add(usize::try_from(count).unwrap_or(0));
                    let is_sent =
                        port.send(self.hop, header, bytes.get(from..end).unwrap_or(&[]))?;
                    if !is_sent {
                        self.out.push_front(Out::Message(header, bytes));
                        break;
                    }
                    if header.is_last(payload_max) {
                        departed.messages += 1;
                    } else {
                        header.offset += payload_max;
                        self.out.push_front(Out::Message(header, bytes));
                    }
                }
            }
            departed.packets += 1;
        }
        Ok(departed)
    }
}
