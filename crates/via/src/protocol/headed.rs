//! Frames whose envelope comes with their announcement, and whose bytes, if they are few, come in registers.
//!
//! Everything here is inlined into the calls of the consumer. A structure that is built field by field and passed by reference is copied
//! by wider loads, which wait for these stores; that took as long as all instructions of such a message.

use super::{
    MessageEngine, RequestId, SendMode, Status,
    envelope::{Control, ENVELOPE_BYTES, Envelope, FLAG_SYNCHRONOUS, FrameKind},
    incoming::{ArrivedFrame, DirectReceive, Origin, ReceiveInterest},
    link::rank_of,
    matching::{Label, Pattern},
    payload::Sink,
    peer::{Peer, PeerLink, reliable, reliable_mut},
    request::{ReceiveState, RequestEntry},
    send::MessageRoute,
    to_u64,
    unexpected::WholeMessage,
    waiting::Begun,
};
use crate::vi::{HeadedBody, HeadedPoll, HeadedWrite, Provider, SHORT_BODY_MAX};

/// Returns the frame of a write, from behind its head.
fn frame_of(rank: u32, write: &HeadedWrite) -> ArrivedFrame {
    match write.body {
        HeadedBody::Here(short) => {
            ArrivedFrame::new(rank, short.len(), Origin::Heap(short.to_vec()))
        }
        HeadedBody::InPlace(length) => {
            let origin = Origin::Area(u32::try_from(write.offset).unwrap_or(u32::MAX));
            let mut frame = ArrivedFrame::new(rank, ENVELOPE_BYTES + length as usize, origin);
            frame.skip(ENVELOPE_BYTES);
            frame
        }
    }
}

/// The fate of a headed write.
pub(super) enum HeadedOutcome {
    /// The caller has received the message.
    Received(Status),
    /// It was for others.
    Kept,
    /// It is not a whole message, or is to be read in place: see [`MessageEngine::arrived_in_place`].
    InPlace,
}

impl<P: Provider> MessageEngine<P> {
    /// Sends a message in one frame, if none is before it, there is credit, and the NIC can do it at once. Returns `false` if
    /// [`send`](Self::send) has to do it, or to say why it cannot be done.
    #[inline]
    pub(crate) fn send_headed(
        &mut self,
        dest: u32,
        context: u16,
        tag: u32,
        mode: SendMode,
        bytes: &[u8],
    ) -> bool {
        if mode == SendMode::Synchronous {
            return false;
        }
        let route = MessageRoute { dest, context, tag, mode };
        let Some((head, _)) = self.head_at_once(route, to_u64(bytes.len())) else { return false };
        let link = reliable_mut(&mut self.peers, dest);
        let is_sent = link.is_some_and(|link| link.send_headed(&mut self.nic, head, bytes));
        self.counters.messages_sent += u64::from(is_sent);
        is_sent
    }

    /// As [`receive_begun`](Self::receive_begun), if the message has arrived, or is whole and the next that does.
    #[inline(always)]
    pub(crate) fn receive_headed<S: Sink + ?Sized>(
        &mut self,
        pattern: &Pattern,
        sink: &mut S,
    ) -> Option<Begun> {
        if let Some(begun) = self.receive_kept(pattern, sink) {
            return Some(begun);
        }
        let write = self.poll_headed(pattern.source)?;
        match self.arrived_headed(write, ReceiveInterest::Begin(pattern), false, sink) {
            Ok(HeadedOutcome::Received(status)) => Some(Begun::Received(status)),
            Ok(HeadedOutcome::Kept) => None,
            Ok(HeadedOutcome::InPlace) => self.begin_in_place(write, pattern, sink),
            Err(what) => self.headed_fault(write, what),
        }
    }

    /// As [`poll_receive`](Self::poll_receive) of a posted receive, if the next that arrives is its message, and whole.
    #[inline(always)]
    pub(crate) fn receive_posted_headed<S: Sink + ?Sized>(
        &mut self,
        id: RequestId,
        sink: &mut S,
    ) -> Option<Status> {
        let Some(RequestEntry::Receive(receive)) = self.requests.get_mut(id.0) else {
            return None;
        };
        let (ReceiveState::Posted { .. }, source) = (receive.state, receive.pattern.source) else {
            return None;
        };
        receive.is_attended = true;
        let write = self.poll_headed(source)?;
        match self.arrived_headed(write, ReceiveInterest::Request(id.0), false, sink) {
            Ok(HeadedOutcome::Received(status)) => Some(status),
            Ok(HeadedOutcome::Kept) => None,
            Ok(HeadedOutcome::InPlace) => {
                let mut direct = DirectReceive::new(ReceiveInterest::Request(id.0), sink);
                self.arrived_in_place(write, &mut direct);
                direct.result
            }
            Err(what) => self.headed_fault(write, what),
        }
    }

    #[inline(always)]
    fn poll_headed(&mut self, source: Option<u32>) -> Option<HeadedWrite> {
        let vi = match source {
            Some(rank) => Some(reliable(&self.peers, rank)?.vi),
            None => None,
        };
        match self.nic.poll_headed_write(self.cq, vi) {
            HeadedPoll::Write(write) => {
                self.worked = self.worked.wrapping_add(1);
                Some(write)
            }
            HeadedPoll::Nothing => {
                if let Some(link) = source.and_then(|rank| reliable(&self.peers, rank)) {
                    link.fetch_next();
                }
                None
            }
            HeadedPoll::Other => None,
        }
    }

    #[cold]
    fn headed_fault<T>(&mut self, write: HeadedWrite, what: &'static str) -> Option<T> {
        self.peer_fault(rank_of(write.cookie), what);
        None
    }

    #[cold]
    fn begin_in_place<S: Sink + ?Sized>(
        &mut self,
        write: HeadedWrite,
        pattern: &Pattern,
        sink: &mut S,
    ) -> Option<Begun> {
        let mut direct = DirectReceive::new(ReceiveInterest::Begin(pattern), sink);
        self.arrived_in_place(write, &mut direct);
        let received = direct.result.map(Begun::Received);
        received.or_else(|| direct.begun.map(Begun::Open))
    }

    /// Takes a headed write, which is usually a whole message. `has_result`: the caller has received another one meanwhile.
    #[inline(always)]
    pub(super) fn arrived_headed<S: Sink + ?Sized>(
        &mut self,
        write: HeadedWrite,
        interest: ReceiveInterest<'_>,
        has_result: bool,
        sink: &mut S,
    ) -> Result<HeadedOutcome, &'static str> {
        let rank = rank_of(write.cookie);
        let Some(Peer { link: PeerLink::Reliable(link), failed: None, is_touched, .. }) =
            self.peers.get_mut(rank as usize)
        else {
            return Ok(HeadedOutcome::InPlace);
        };
        let length = write.body.len() as usize;
        let is_whole = write.key == link.area.key
            && write.immediate.unsigned_abs() as usize == ENVELOPE_BYTES + length;
        let envelope = match Envelope::of_bits(write.head) {
            Some(envelope) if is_whole && envelope.kind == FrameKind::Eager => envelope,
            _ => return Ok(HeadedOutcome::InPlace),
        };
        if matches!(interest, ReceiveInterest::View(_)) {
            return Ok(HeadedOutcome::InPlace);
        }

        let found = link.find(write.immediate).ok_or("an impossible place or length")?;
        if u64::from(found.offset) != write.offset {
            return Err("a frame that is not where it should be");
        }
        if envelope.length as usize != length {
            return Err("a frame whose length is not the one announced");
        }
        let is_here = matches!(write.body, HeadedBody::Here(_));
        if is_here {
            // Nothing of it is in its place.
            link.reader.release();
        }
        link.note_length(if is_here { 0 } else { found.length });
        link.left_posted();
        if !std::mem::replace(is_touched, true) {
            self.touched.push(rank);
        }

        self.counters.messages_received += 1;
        let label = Label { context: envelope.context, source: rank, tag: envelope.tag };
        let taker = self.posted.take(label);
        if !interest.is_for(taker, label, has_result) {
            self.keep_headed(&envelope, label, write, taker)?;
            return Ok(HeadedOutcome::Kept);
        }
        let taken = match (sink.chunk_mut_at(0, length).get_mut(..length), write.body) {
            (Some(place), HeadedBody::Here(short)) => short.copy_to(place),
            (Some(place), HeadedBody::InPlace(_)) => {
                let at = write.offset + to_u64(ENVELOPE_BYTES);
                reliable(&self.peers, rank)
                    .filter(|link| link.area.memory.read(at, place).is_ok())
                    .map_or(0, |_| length)
            }
            (None, _) => self.scatter(rank, write, sink),
        };
        if !is_here && let Some(link) = reliable_mut(&mut self.peers, rank) {
            link.reader.release();
        }
        let status = self.end_direct(&envelope, label, taken, taker);
        self.return_credits(rank, false);
        Ok(HeadedOutcome::Received(status))
    }

    /// Moves a whole message to the heap.
    #[cold]
    fn keep_headed(
        &mut self,
        envelope: &Envelope,
        label: Label,
        write: HeadedWrite,
        taker: Option<u64>,
    ) -> Result<(), &'static str> {
        let rank = label.source;
        if let (HeadedBody::Here(short), None) = (write.body, taker) {
            let whole = WholeMessage::few(short, envelope.flags, envelope.id);
            let kept = self.keep_whole(label, envelope.flags, whole);
            self.return_credits(rank, false);
            return kept;
        }
        let mut arrival = frame_of(rank, &write);
        let kept = self.eager_to_heap(envelope, label, &mut arrival, taker);
        if let (HeadedBody::InPlace(_), Some(link)) =
            (write.body, reliable_mut(&mut self.peers, rank))
        {
            link.reader.release();
        }
        self.return_credits(rank, false);
        kept
    }

    /// Copies the bytes of a message to a sink that takes them in pieces or not at all. Returns how many it took.
    #[cold]
    fn scatter<S: Sink + ?Sized>(&self, rank: u32, write: HeadedWrite, sink: &mut S) -> usize {
        self.copy(&frame_of(rank, &write), sink, 0)
    }

    /// Takes a headed write, as the usual poll.
    #[inline]
    pub(super) fn take_headed<S: Sink + ?Sized>(
        &mut self,
        write: HeadedWrite,
        direct: &mut DirectReceive<'_, S>,
    ) {
        let has_result = direct.result.is_some();
        match self.arrived_headed(write, direct.interest, has_result, direct.sink) {
            Ok(HeadedOutcome::Received(status)) => direct.result = Some(status),
            Ok(HeadedOutcome::Kept) => {}
            Ok(HeadedOutcome::InPlace) => self.arrived_in_place(write, direct),
            Err(what) => self.peer_fault(rank_of(write.cookie), what),
        }
    }

    /// Takes a headed write that is not a whole message, or that is to be read in place: what came with it goes where it was sent.
    pub(super) fn arrived_in_place<S: Sink + ?Sized>(
        &mut self,
        write: HeadedWrite,
        direct: &mut DirectReceive<'_, S>,
    ) {
        let rank = rank_of(write.cookie);
        let Some(link) = reliable_mut(&mut self.peers, rank) else {
            // Only such links ask for writes with a head: the rank has failed.
            return;
        };
        link.left_posted();
        let mut bytes = [0; ENVELOPE_BYTES + SHORT_BODY_MAX];
        let (head, body) = bytes.split_at_mut(ENVELOPE_BYTES);
        head.copy_from_slice(&write.head.to_le_bytes());
        let count = match write.body {
            HeadedBody::Here(short) => short.copy_to(body),
            HeadedBody::InPlace(_) => 0,
        };
        let is_control = write.key == link.control.key;
        let region = if is_control { &link.control } else { &link.area };
        let written = region.memory.put(write.offset, &bytes[..ENVELOPE_BYTES + count]);
        self.touch(rank);
        let result = written
            .map_err(|_| "a frame outside the area")
            .and_then(|()| self.took(rank, write.immediate, direct));
        if let Err(what) = result {
            self.peer_fault(rank, what);
        }
    }

    /// Ends the caller's own receive of a whole message, of which its sink has taken `taken` bytes.
    #[inline(always)]
    pub(super) fn end_direct(
        &mut self,
        envelope: &Envelope,
        label: Label,
        taken: usize,
        taker: Option<u64>,
    ) -> Status {
        if let Some(own) = taker {
            self.requests.discard(own);
        }
        if envelope.has(FLAG_SYNCHRONOUS) {
            self.queue_control(label.source, Control::Matched { request: envelope.id.into() });
        }
        let is_truncated = taken < envelope.length as usize;
        Status::new(label, u64::from(envelope.length), is_truncated)
    }
}

#[cfg(test)]
mod tests;
