//! The future events of the network.

use std::cmp::Ordering;

use super::{
    node_id::NodeId,
    tcp::{Segment, SegmentKind},
    trace::PacketInfo,
    udp::UdpPacket,
};
use crate::clock::Instant;

pub(super) enum Happening {
    Segment(Segment),
    Datagram(UdpPacket),
    /// Nothing has received the datagram of this socket.
    Unreachable(u64),
    Timer(u64),
}

impl Happening {
    /// Describes a packet; timers are none.
    pub(super) fn info(&self) -> Option<PacketInfo> {
        let (kind, from, to, size_bytes) = match self {
            Self::Segment(segment) => {
                (segment.kind.name(), segment.from, segment.to, segment.bytes.len())
            }
            Self::Datagram(packet) => ("UDP", packet.from, packet.to, packet.bytes.len()),
            Self::Unreachable(_) | Self::Timer(_) => return None,
        };
        Some(PacketInfo { kind, from, to, size_bytes })
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

pub(super) struct NetworkEvent {
    pub(super) at: Instant,
    /// Orders events of the same time.
    pub(super) number: u64,
    pub(super) node: NodeId,
    pub(super) happening: Happening,
}

impl PartialEq for NetworkEvent {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for NetworkEvent {}

impl PartialOrd for NetworkEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NetworkEvent {
    /// The earliest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}
