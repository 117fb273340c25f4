//! What is to happen in the network.

use std::cmp::Ordering;

use super::{state::NodeId, tcp::Segment, udp::UdpPacket};
use crate::clock::Instant;

pub(super) enum Happening {
    Segment(Segment),
    Datagram(UdpPacket),
    /// Nothing has received the datagram of this socket.
    Unreachable(u64),
    Timer(u64),
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
