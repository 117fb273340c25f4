//! The future events of the network.

use std::{cmp::Reverse, collections::BinaryHeap};

use slab::Slab;

use super::{
    node_id::NodeId,
    tcp::{Segment, SegmentKind},
    trace::TracedPacket,
    udp::UdpPacket,
};
use crate::clock::Instant;

#[derive(Clone)]
pub(super) enum Happening {
    Segment(Box<Segment>),
    Datagram(Box<UdpPacket>),
    /// Nothing has received the datagram of this socket.
    Unreachable(u64),
    Timer(u64),
}

impl Happening {
    /// Describes a packet; timers are none.
    pub(super) fn info(&self) -> Option<TracedPacket> {
        let (kind, from, to, size_bytes) = match self {
            Self::Segment(segment) => {
                (segment.kind.name(), segment.from, segment.to, segment.bytes.len())
            }
            Self::Datagram(packet) => ("UDP", packet.from, packet.to, packet.bytes.len()),
            Self::Unreachable(_) | Self::Timer(_) => return None,
        };
        Some(TracedPacket { kind, from, to, size_bytes })
    }
}

impl SegmentKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Syn => "SYN",
            Self::SynAck => "SYN-ACK",
            Self::Ack => "ACK",
            Self::Data => "data",
            Self::Fin => "FIN",
            Self::Probe => "probe",
            Self::Reset => "reset",
        }
    }
}

/// What is to happen, in order of time.
#[derive(Default)]
pub(super) struct EventQueue {
    /// The earliest first; events of the same time by their number.
    order: BinaryHeap<Reverse<EventPlace>>,
    events: Slab<(NodeId, Happening)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EventPlace {
    at: Instant,
    number: u64,
    /// The place of the event, which is moved once, while the heap sorts these.
    index: usize,
}

pub(super) struct NetworkEvent {
    pub(super) at: Instant,
    pub(super) number: u64,
    pub(super) node: NodeId,
    pub(super) happening: Happening,
}

impl EventQueue {
    pub(super) fn push(&mut self, NetworkEvent { at, number, node, happening }: NetworkEvent) {
        let index = self.events.insert((node, happening));
        self.order.push(Reverse(EventPlace { at, number, index }));
    }

    /// Returns the time of the first event.
    #[inline]
    pub(super) fn first_at(&self) -> Option<Instant> {
        self.order.peek().map(|Reverse(first)| first.at)
    }

    pub(super) fn first(&self) -> Option<(Instant, &Happening)> {
        let Reverse(first) = self.order.peek()?;
        Some((first.at, &self.events[first.index].1))
    }

    pub(super) fn pop(&mut self) -> Option<NetworkEvent> {
        let Reverse(EventPlace { at, number, index }) = self.order.pop()?;
        let (node, happening) = self.events.remove(index);
        Some(NetworkEvent { at, number, node, happening })
    }
}
