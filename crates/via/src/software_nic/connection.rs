//! One end of a connection.

use std::collections::VecDeque;

use super::{
    congestion::{Nanos, RoundTrip},
    inbound::Inbound,
    mtu_discovery::MtuDiscovery,
    outbound::Outbound,
    packet::{ACK_WORDS, DataHeader, HEADER_BYTES, low_u32, trailer_bytes},
};
use crate::auth::Secret;
use crate::vi::RemoteSegment;

#[derive(Debug)]
pub(super) struct SoftwareConnection<P> {
    /// This side's name for the connection, carried in the peer's packets; then the peer's.
    pub(super) own: u64,
    pub(super) peer: u64,
    pub(super) path: P,
    /// The key for packet tags, if packets have tags.
    pub(super) key: Option<Secret>,
    pub(super) out: Outbound,
    pub(super) inbound: Inbound,
    /// The longest packet sent, in bytes, and the search that determines it.
    pub(super) packet_bytes: usize,
    pub(super) mtu_discovery: MtuDiscovery,
    /// The transfer that has arrived in part.
    pub(super) incoming: Option<IncomingTransfer>,
    /// The number of the peer's descriptors that were carried out here.
    pub(super) carried_out: u64,
    /// The peer's reads to be answered, in order.
    pub(super) answers: VecDeque<ReadResponse>,
    /// The ordinals of this side's reads that wait for answers.
    pub(super) reads: VecDeque<u64>,
    /// True if an answer is to be sent next where there is a choice.
    pub(super) answers_next: bool,
    pub(super) last_received_at: Nanos,
    /// The time since which a packet that the peer must answer has been in flight.
    pub(super) waiting_since: Option<Nanos>,
    pub(super) wants_ping: bool,
}

/// The kind of a transfer that is arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IncomingTransfer {
    pub(super) kind: IncomingKind,
    pub(super) length: u64,
    pub(super) done: u64,
    pub(super) immediate: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncomingKind {
    Send,
    Write(RemoteSegment),
    Answer,
    /// It failed on an unreliable connection, which survives; the rest is dropped.
    Refused,
}

/// The fewest probes before a silent peer is dead: a machine that was suspended must not lose all its peers.
pub(super) const PROBES_MIN: u32 = 3;

/// The answer to a read of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadResponse {
    pub(super) ordinal: u64,
    pub(super) place: RemoteSegment,
    pub(super) length: u64,
    pub(super) done: u64,
    pub(super) has_begun: bool,
}

/// The parameters that both sides have agreed on.
#[derive(Debug)]
pub(super) struct ConnectionParameters<P> {
    pub(super) own: u64,
    pub(super) peer: u64,
    pub(super) path: P,
    pub(super) key: Option<Secret>,
    pub(super) is_reliable: bool,
    /// The window of either side, in fragments.
    pub(super) own_window: u16,
    pub(super) peer_window: u16,
    pub(super) packet_bytes: usize,
    pub(super) round_trip: RoundTrip,
}

impl<P> SoftwareConnection<P> {
    pub(super) fn new(parameters: ConnectionParameters<P>, now: Nanos) -> Self {
        let ConnectionParameters {
            own,
            peer,
            path,
            key,
            is_reliable,
            packet_bytes,
            round_trip,
            ..
        } = parameters;
        Self {
            own,
            peer,
            path,
            key,
            out: Outbound::new(is_reliable, parameters.peer_window, packet_bytes, round_trip),
            inbound: Inbound::new(is_reliable, parameters.own_window),
            packet_bytes,
            mtu_discovery: MtuDiscovery::new(),
            incoming: None,
            carried_out: 0,
            answers: VecDeque::new(),
            reads: VecDeque::new(),
            answers_next: false,
            last_received_at: now,
            waiting_since: None,
            wants_ping: false,
        }
    }

    fn overhead(&self) -> usize {
        HEADER_BYTES + trailer_bytes(self.key.as_ref())
    }

    /// Returns the most bytes of a fragment.
    pub(super) fn fragment_bytes(&self) -> usize {
        self.packet_bytes.saturating_sub(self.overhead())
    }

    /// Returns the size of a packet with `fragment` bytes of a fragment.
    pub(super) fn size(&self, fragment: usize) -> usize {
        fragment + self.overhead()
    }

    /// Returns a header with all that this side knows. ACKs take the room that is left.
    pub(super) fn header(&mut self, packet_number: u64, fragment: usize, now: Nanos) -> DataHeader {
        let room = self.fragment_bytes().saturating_sub(fragment) / 8;
        let mut header = DataHeader {
            id: self.peer,
            packet_number: low_u32(packet_number),
            oldest: low_u32(self.out.oldest()),
            is_ack_eliciting: packet_number != 0,
            ..DataHeader::default()
        };
        self.inbound.write_ack(&mut header, room.min(ACK_WORDS), now);
        header
    }

    /// Adjusts the packet length to what the search has found.
    pub(super) fn follow_path(&mut self, window: impl FnOnce(usize) -> u16) {
        let bytes = self.mtu_discovery.known();
        if self.packet_bytes != bytes {
            self.packet_bytes = bytes;
            self.out.congestion.set_packet_bytes(bytes);
        }
        // The peer's packets are assumed to take the same path back.
        self.inbound.set_window(window(self.mtu_discovery.expected()));
    }

    /// Notes that something departs that the peer will answer.
    pub(super) fn note_departure(&mut self, now: Nanos) {
        self.waiting_since.get_or_insert(now);
    }

    /// Returns when to act if nothing arrives.
    pub(super) fn deadline(&self, keep_alive: Nanos, dead_after: Nanos) -> Nanos {
        let silence = match self.waiting_since {
            // The next probe comes first.
            Some(_) if self.out.probes() < PROBES_MIN => Nanos::MAX,
            Some(since) => since.max(self.last_received_at).saturating_add(dead_after),
            None => self.last_received_at.saturating_add(keep_alive),
        };
        let times = [self.out.deadline(), self.inbound.due(), self.mtu_discovery.deadline()];
        times.into_iter().flatten().fold(silence, Nanos::min)
    }
}
