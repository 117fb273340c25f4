//! A connection, as one end sees it.

use std::collections::VecDeque;

use super::{
    congestion::{Nanos, RoundTrip},
    inbound::Inbound,
    outbound::Outbound,
    packet::{HEADER_BYTES, Header, RECEIPT_WORDS, narrow},
    path_search::PathSearch,
    secret::{PACKET_TAG_BYTES, Secret},
};
use crate::vi::RemoteSegment;

#[derive(Debug)]
pub(super) struct Connection<P> {
    /// This side's name of it, which comes with the peer's packets, and the peer's.
    pub(super) own: u64,
    pub(super) peer: u64,
    pub(super) path: P,
    /// The key of the tags of its packets, if they have tags.
    pub(super) key: Option<Secret>,
    pub(super) out: Outbound,
    pub(super) inbound: Inbound,
    /// The longest packet that is sent, in bytes, and how that is found out.
    pub(super) packet_bytes: usize,
    pub(super) search: PathSearch,
    /// The transfer of which a part has arrived.
    pub(super) incoming: Option<Incoming>,
    /// How many of the peer's descriptors have been carried out here.
    pub(super) carried_out: u64,
    /// Reads of the peer that are to be answered, in order.
    pub(super) answers: VecDeque<Answer>,
    /// Reads of this side that wait for their answers: their ordinals.
    pub(super) reads: VecDeque<u64>,
    /// Whether the next thing to send is an answer, where there is a choice.
    pub(super) answers_next: bool,
    pub(super) heard_at: Nanos,
    /// Since when something is under way that the peer would answer.
    pub(super) waiting_since: Option<Nanos>,
    pub(super) wants_ping: bool,
}

/// What has begun to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incoming {
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
    /// It failed, which an unreliable connection survives: the rest of it is of no use.
    Refused,
}

/// What answers a read of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) ordinal: u64,
    pub(super) place: RemoteSegment,
    pub(super) length: u64,
    pub(super) done: u64,
    pub(super) has_begun: bool,
}

/// What both sides have agreed on.
#[derive(Debug)]
pub(super) struct Terms<P> {
    pub(super) own: u64,
    pub(super) peer: u64,
    pub(super) path: P,
    pub(super) key: Option<Secret>,
    pub(super) is_reliable: bool,
    /// How many fragments either side takes.
    pub(super) own_window: u16,
    pub(super) peer_window: u16,
    pub(super) packet_bytes: usize,
    pub(super) round_trip: RoundTrip,
}

impl<P> Connection<P> {
    pub(super) fn new(terms: Terms<P>, now: Nanos) -> Self {
        let Terms { own, peer, path, key, is_reliable, packet_bytes, round_trip, .. } = terms;
        Self {
            own,
            peer,
            path,
            key,
            out: Outbound::new(is_reliable, terms.peer_window, packet_bytes, round_trip),
            inbound: Inbound::new(is_reliable, terms.own_window),
            packet_bytes,
            search: PathSearch::new(),
            incoming: None,
            carried_out: 0,
            answers: VecDeque::new(),
            reads: VecDeque::new(),
            answers_next: false,
            heard_at: now,
            waiting_since: None,
            wants_ping: false,
        }
    }

    fn overhead(&self) -> usize {
        HEADER_BYTES + if self.key.is_some() { PACKET_TAG_BYTES } else { 0 }
    }

    /// The most bytes of a fragment.
    pub(super) fn fragment_bytes(&self) -> usize {
        self.packet_bytes.saturating_sub(self.overhead())
    }

    /// The size of a packet with that much of a fragment.
    pub(super) fn size(&self, fragment: usize) -> usize {
        fragment + self.overhead()
    }

    /// A header with everything that is known on this side. Receipts take what room is left.
    pub(super) fn header(&mut self, transmission: u64, fragment: usize, now: Nanos) -> Header {
        let room = self.fragment_bytes().saturating_sub(fragment) / 8;
        let mut header = Header {
            id: self.peer,
            transmission: narrow(transmission),
            oldest: narrow(self.out.oldest()),
            wants_receipt: transmission != 0,
            ..Header::default()
        };
        self.inbound.tell(&mut header, room.min(RECEIPT_WORDS), now);
        header
    }

    /// Sends packets as long as the search has found.
    pub(super) fn follow_path(&mut self, window: impl FnOnce(usize) -> u16) {
        let bytes = self.search.known();
        if self.packet_bytes != bytes {
            self.packet_bytes = bytes;
            self.out.congestion.set_packet_bytes(bytes);
        }
        // The peer's packets take the same path back.
        self.inbound.set_window(window(self.search.expected()));
    }

    /// Something departs that the peer will answer.
    pub(super) fn note_departure(&mut self, now: Nanos) {
        self.waiting_since.get_or_insert(now);
    }

    /// When something is to be done, if nothing arrives.
    pub(super) fn deadline(&self, keep_alive: Nanos, dead_after: Nanos) -> Nanos {
        let silence = match self.waiting_since {
            Some(since) => since.max(self.heard_at).saturating_add(dead_after),
            None => self.heard_at.saturating_add(keep_alive),
        };
        let times = [self.out.deadline(), self.inbound.due(), self.search.deadline()];
        times.into_iter().flatten().fold(silence, Nanos::min)
    }
}
