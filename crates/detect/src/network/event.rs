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

pub(super) enum Happening {
    Segment(Box<Segment>),
    Datagram(Box<UdpPacket>),
    /// Nothing has received the datagram of this socket.
    Unreachable(u64),
    Timer(u64),
    /// Of no node.
    Call(PlannedCall),
}

/// A call that a device has planned which is no socket.
pub(super) struct PlannedCall {
    number: u64,
    digest: u64,
    /// `None` once it is cancelled.
    act: Option<Act>,
}

pub(super) type Act = Box<dyn FnOnce() + Send>;

/// A planned call, by which it can be cancelled.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    number: u64,
    index: usize,
}

impl Happening {
    /// Returns the same packet once more; `None` if it is none.
    pub(super) fn duplicate(&self) -> Option<Self> {
        match self {
            Self::Segment(segment) => Some(Self::Segment(segment.clone())),
            Self::Datagram(packet) => Some(Self::Datagram(packet.clone())),
            Self::Unreachable(_) | Self::Timer(_) | Self::Call(_) => None,
        }
    }

    /// Describes a packet; timers and calls are none.
    pub(super) fn info(&self) -> Option<TracedPacket> {
        let (kind, from, to, size_bytes) = match self {
            Self::Segment(segment) => {
                (segment.kind.name(), segment.from, segment.to, segment.bytes.len())
            }
            Self::Datagram(packet) => ("UDP", packet.from, packet.to, packet.bytes.len()),
            Self::Unreachable(_) | Self::Timer(_) | Self::Call(_) => return None,
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

impl PlannedCall {
    pub(super) const fn is_cancelled(&self) -> bool {
        self.act.is_none()
    }

    /// Returns what the trace notes of it, and what is to be called.
    pub(super) fn into_parts(self) -> (u64, Option<Act>) {
        (self.digest, self.act)
    }
}

/// The planned events, in order of time.
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

    /// Plans a call. `digest` is what the trace notes of it.
    pub(super) fn push_call(&mut self, at: Instant, number: u64, digest: u64, act: Act) -> CallId {
        let call = PlannedCall { number, digest, act: Some(act) };
        let index = self.events.insert((NodeId::FIRST, Happening::Call(call)));
        self.order.push(Reverse(EventPlace { at, number, index }));
        CallId { number, index }
    }

    /// Cancels a call, unless it was made: its place may be another event's by now.
    pub(super) fn cancel(&mut self, id: CallId) -> Option<Act> {
        match self.events.get_mut(id.index) {
            Some((_, Happening::Call(call))) if call.number == id.number => call.act.take(),
            _ => None,
        }
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
