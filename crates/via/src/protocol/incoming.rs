//! Handles what arrives.

use super::{
    MessageEngine, RequestError, RequestId,
    area::Hold,
    envelope::{
        Control, ENVELOPE_BYTES, Envelope, FLAG_ANNOUNCED, FLAG_KEY, FLAG_LAST, FLAG_SYNCHRONOUS,
        FrameKind, OPENING_BYTES, Opening,
    },
    matching::{Label, Pattern},
    payload::{Discard, Sink, put},
    peer::{reliable, reliable_mut},
    request::{IncomingMessage, MessagePart, ReceiveState, RequestEntry, Status, UnmatchedKind},
    state::UnattendedMessage,
    to_u64, to_usize,
    unexpected::{Unexpected, WholeMessage},
    view::View,
};
use crate::{
    slots::SlotKey,
    vi::{Provider, RemoteKey, SHORT_BODY_MAX, ShortBody},
};

/// The most heap that is reserved for a message before its bytes have come, in bytes.
const KEPT_AT_FIRST: u64 = 1 << 20;

/// Control entries that may wait for a peer, beside the answers to messages that it sent before it looks for any, and those of its messages
/// and requests under way.
pub(super) const CONTROLS_WAITING_MAX: usize = 1024;

/// The place of a frame.
#[derive(Debug)]
pub(super) enum Origin {
    /// In the peer's area on this side, from this offset on.
    Area(u32),
    Heap(Vec<u8>),
}

/// A frame that has arrived. Once its envelope is read, `start` and `length` are those of its payload.
#[derive(Debug)]
pub(super) struct ArrivedFrame {
    pub(super) rank: u32,
    origin: Origin,
    start: usize,
    length: usize,
}

impl ArrivedFrame {
    #[inline]
    pub(super) const fn new(rank: u32, length: usize, origin: Origin) -> Self {
        Self { rank, origin, start: 0, length }
    }

    /// Returns a frame that begins `start` bytes into `bytes`.
    pub(super) const fn behind(rank: u32, start: usize, bytes: Vec<u8>) -> Self {
        let length = bytes.len() - start;
        Self { rank, origin: Origin::Heap(bytes), start, length }
    }

    /// Cuts off the bytes that were read.
    #[inline]
    pub(super) const fn skip(&mut self, count: usize) {
        self.start += count;
        self.length -= count;
    }
}

/// The messages that the caller itself receives: their data goes straight to its sink. Patterns are borrowed: a copy is made by words
/// that are wider than the fields, and would wait for their stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveInterest<'a> {
    Nothing,
    /// Any message that fits and comes in one frame.
    Now(&'a Pattern),
    /// The same, to be read in place.
    View(&'a Pattern),
    /// Any message that fits: one in several frames becomes a request, which the caller is given.
    Begin(&'a Pattern),
    /// The message of this request.
    Request(u64),
}

impl ReceiveInterest<'_> {
    /// Returns whether a whole message with this label is the caller's, where `taker` is the posted receive that it matches. `has_result`:
    /// the caller has received another one.
    #[inline]
    pub(super) fn is_for(self, taker: Option<u64>, label: Label, has_result: bool) -> bool {
        match self {
            Self::Request(own) => taker == Some(own),
            Self::Now(pattern) | Self::View(pattern) | Self::Begin(pattern) => {
                taker.is_none() && !has_result && pattern.matches(label)
            }
            Self::Nothing => false,
        }
    }
}

/// The caller's own receive.
#[derive(Debug)]
pub(super) struct DirectReceive<'a, S: Sink + ?Sized> {
    pub(super) interest: ReceiveInterest<'a>,
    /// The rank whose message is awaited: what others have sent may be taken later.
    pub(super) source: Option<u32>,
    pub(super) sink: &'a mut S,
    pub(super) result: Option<Status>,
    pub(super) view: Option<View>,
    /// The request made for [`ReceiveInterest::Begin`].
    pub(super) begun: Option<RequestId>,
}

impl<'a, S: Sink + ?Sized> DirectReceive<'a, S> {
    #[inline]
    pub(super) const fn new(interest: ReceiveInterest<'a>, sink: &'a mut S) -> Self {
        let source = match interest {
            ReceiveInterest::Now(pattern)
            | ReceiveInterest::View(pattern)
            | ReceiveInterest::Begin(pattern) => pattern.source,
            ReceiveInterest::Nothing | ReceiveInterest::Request(_) => None,
        };
        Self { interest, source, sink, result: None, view: None, begun: None }
    }

    pub(super) const fn nothing(sink: &'a mut S) -> Self {
        Self::new(ReceiveInterest::Nothing, sink)
    }
}

impl<P: Provider> MessageEngine<P> {
    /// Handles a frame. An error means that a peer broke the protocol.
    #[inline]
    pub(super) fn frame<S: Sink + ?Sized>(
        &mut self,
        mut arrival: ArrivedFrame,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        let mut head = [0; ENVELOPE_BYTES];
        self.read(&mut arrival, &mut head)?;
        let envelope = Envelope::decode(head).ok_or("an unknown kind of frame")?;
        let is_area = matches!(arrival.origin, Origin::Area(_));
        let rank = arrival.rank;
        let handled = if envelope.kind == FrameKind::Eager {
            self.eager(&envelope, &mut arrival, direct)
        } else {
            self.other_frame(&envelope, arrival, direct)
        };
        if is_area
            && envelope.kind != FrameKind::Reserved
            && direct.view.is_none()
            && let Some(link) = reliable_mut(&mut self.peers, rank)
        {
            link.reader.release();
        }
        handled
    }

    fn other_frame<S: Sink + ?Sized>(
        &mut self,
        envelope: &Envelope,
        mut arrival: ArrivedFrame,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        match envelope.kind {
            FrameKind::First => {
                let opening = self.opening(&mut arrival)?;
                self.first(envelope, &opening, arrival, direct)
            }
            FrameKind::Data => self.data(envelope, arrival, direct),
            FrameKind::Abort => self.abort(envelope.id, arrival.rank),
            FrameKind::Reserved => self.reserved(envelope, &arrival),
            FrameKind::Loaned => {
                let opening = self.opening(&mut arrival)?;
                self.loaned(envelope, &opening, arrival.rank, direct)
            }
            FrameKind::Eager => Err("a frame out of turn"),
        }
    }

    fn opening(&self, arrival: &mut ArrivedFrame) -> Result<Opening, &'static str> {
        let mut bytes = [0; OPENING_BYTES];
        self.read(arrival, &mut bytes)?;
        Ok(Opening::decode(bytes))
    }

    /// Reads the next bytes of a frame.
    #[inline]
    fn read(&self, arrival: &mut ArrivedFrame, bytes: &mut [u8]) -> Result<(), &'static str> {
        if arrival.length < bytes.len() {
            return Err("a frame that is too short");
        }
        match &arrival.origin {
            Origin::Area(offset) => {
                let Some(link) = reliable(&self.peers, arrival.rank) else {
                    return Err("a frame without a link");
                };
                let at = u64::from(*offset) + to_u64(arrival.start);
                link.area.memory.read(at, bytes).map_err(|_| "a frame outside the area")?;
            }
            Origin::Heap(frame) => {
                bytes.copy_from_slice(&frame[arrival.start..arrival.start + bytes.len()]);
            }
        }
        arrival.skip(bytes.len());
        Ok(())
    }

    /// Copies a frame's payload to a sink. Returns how many bytes the sink took.
    #[inline]
    pub(super) fn copy<S: Sink + ?Sized>(
        &self,
        arrival: &ArrivedFrame,
        sink: &mut S,
        offset: u64,
    ) -> usize {
        let from = match &arrival.origin {
            Origin::Area(from) => u64::from(*from) + to_u64(arrival.start),
            Origin::Heap(frame) => {
                let end = arrival.start + arrival.length;
                return put(sink, offset, &frame[arrival.start..end]);
            }
        };
        let Some(link) = reliable(&self.peers, arrival.rank) else {
            return 0;
        };
        let mut done = 0;
        while done < arrival.length {
            let space = sink.chunk_mut_at(offset + to_u64(done), arrival.length - done);
            let length = space.len().min(arrival.length - done);
            if length == 0
                || link.area.memory.read(from + to_u64(done), &mut space[..length]).is_err()
            {
                break;
            }
            done += length;
        }
        done
    }

    /// Moves a frame's payload to the heap.
    fn take(&self, arrival: &mut ArrivedFrame) -> MessagePart {
        match &mut arrival.origin {
            Origin::Heap(bytes) => MessagePart::new(std::mem::take(bytes), arrival.start),
            Origin::Area(offset) => {
                let mut bytes = Vec::new();
                if let Some(link) = reliable(&self.peers, arrival.rank) {
                    let at = u64::from(*offset) + to_u64(arrival.start);
                    let read = link.area.memory.read_onto(at, arrival.length, &mut bytes);
                    debug_assert!(read.is_ok(), "found inside");
                }
                MessagePart::new(bytes, 0)
            }
        }
    }

    /// Handles a whole message. The frame is borrowed: a copy of it would wait for the last change to it.
    #[inline]
    fn eager<S: Sink + ?Sized>(
        &mut self,
        envelope: &Envelope,
        arrival: &mut ArrivedFrame,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        if arrival.length != envelope.length as usize {
            return Err("a frame whose length is not the one announced");
        }

        self.counters.messages_received += 1;
        let label = Label { context: envelope.context, source: arrival.rank, tag: envelope.tag };
        let taker = self.posted.take(label);
        let is_direct = direct.interest.is_for(taker, label, direct.result.is_some());
        if is_direct
            && let (ReceiveInterest::View(_), Origin::Area(offset)) =
                (direct.interest, &arrival.origin)
        {
            let at = u64::from(*offset) + to_u64(arrival.start);
            direct.view = self.view(arrival.rank, at, envelope.length);
        }

        if is_direct
            && (direct.view.is_some() || !matches!(direct.interest, ReceiveInterest::View(_)))
        {
            let taken = if direct.view.is_some() {
                arrival.length
            } else {
                self.copy(arrival, direct.sink, 0)
            };
            direct.result = Some(self.end_direct(envelope, label, taken, taker));
            return Ok(());
        }
        self.eager_to_heap(envelope, label, arrival, taker)
    }

    /// Makes a view of the frame found last: it stays in the area.
    fn view(&mut self, rank: u32, offset: u64, length: u32) -> Option<View> {
        let link = reliable_mut(&mut self.peers, rank)?;
        let hold = link.reader.hold();
        Some(View::new(rank, link.area.memory.clone(), offset, length, hold))
    }

    /// Reserves a piece of the area that will be filled later.
    fn reserved(
        &mut self,
        envelope: &Envelope,
        arrival: &ArrivedFrame,
    ) -> Result<(), &'static str> {
        let (Origin::Area(offset), true) =
            (&arrival.origin, arrival.length == envelope.length as usize)
        else {
            return Err("a reserved piece that does not exist");
        };
        if let Some(link) = reliable_mut(&mut self.peers, arrival.rank) {
            link.reserve(*offset, envelope.length + 16);
        }
        Ok(())
    }

    /// Handles a whole message that is in its reserved place.
    fn loaned<S: Sink + ?Sized>(
        &mut self,
        envelope: &Envelope,
        opening: &Opening,
        rank: u32,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        let (offset, hold): (u32, Hold) =
            self.reserved_at(rank, opening).ok_or("a message that lies nowhere")?;
        if opening.total != u64::from(envelope.length) {
            return Err("a message of another length than was announced");
        }
        let length = envelope.length as usize;
        let mut piece = ArrivedFrame::new(rank, ENVELOPE_BYTES + length, Origin::Area(offset));
        piece.skip(ENVELOPE_BYTES);
        // Its place is not the one read last, so it cannot be a view.
        let interest = direct.interest;
        if matches!(interest, ReceiveInterest::View(_)) {
            direct.interest = ReceiveInterest::Nothing;
        }
        let handled = self.eager(envelope, &mut piece, direct);
        direct.interest = interest;
        if let Some(link) = reliable_mut(&mut self.peers, rank) {
            link.reader.release_held(hold);
        }
        handled
    }

    pub(super) fn eager_to_heap(
        &mut self,
        envelope: &Envelope,
        label: Label,
        arrival: &mut ArrivedFrame,
        taker: Option<u64>,
    ) -> Result<(), &'static str> {
        let (flags, sender) = (envelope.flags, envelope.id);
        let Some(taker) = taker else {
            let whole = if arrival.length <= SHORT_BODY_MAX {
                let (mut bytes, length) = ([0; SHORT_BODY_MAX], arrival.length);
                self.read(arrival, &mut bytes[..length])?;
                ShortBody::new(&bytes[..length])
            } else {
                None
            };
            let whole = match whole {
                Some(body) => WholeMessage::few(body, flags, sender),
                None => {
                    let part = self.take(arrival);
                    WholeMessage::many(part.bytes, part.start, flags, sender)
                }
            };
            return self.keep_whole(label, flags, whole);
        };
        let mut message =
            IncomingMessage::new(label, flags, sender.into(), u64::from(envelope.length));
        message.park(self.take(arrival));
        self.arrange(message, Some(taker)).map(|_| ())
    }

    /// Gives the beginning of a message to the receive that takes it, or puts it on the unexpected list.
    fn arrange(
        &mut self,
        message: IncomingMessage,
        taker: Option<u64>,
    ) -> Result<u64, &'static str> {
        let (label, flags, sender) = (message.label, message.flags, message.sender.index());
        let key = self.messages.insert(message);
        if let Some(request) = taker {
            self.matched(key, request);
            self.announce(request);
            return Ok(key);
        }

        let node = self.unexpected.insert(label, Unexpected::Begun { key, sender });
        self.count_unexpected(flags);
        let Some(message) = self.messages.get_mut(key) else { return Ok(key) };
        message.node = Some(node);

        // The sender keeps the bytes of an announced message until they are granted: such messages are
        // limited by their number, not by the heap.
        if message.is_announced {
            message.counts_as = UnmatchedKind::Announced;
            let Some(peer) = self.peers.get_mut(label.source as usize) else { return Ok(key) };
            peer.announced_in += 1;
            if peer.announced_in > self.config.announced_messages_max {
                return Err("more messages announced than it may");
            }
            return Ok(key);
        }

        // The whole grant counts at once: the sender may use all of it before a receive comes.
        message.parked = message.granted;
        message.counts_as = UnmatchedKind::Kept;
        let parked = message.parked;
        self.park(label.source, parked)?;
        Ok(key)
    }

    /// Binds a message to a receive that fits: a synchronous sender is told, and a sender that was told to
    /// pause or has only announced the message gets its grant.
    pub(super) fn matched(&mut self, key: u64, request: u64) {
        let Some(message) = self.messages.get_mut(key) else { return };
        message.request = Some(request);
        let (rank, sender) = (message.label.source, message.sender);
        let is_synchronous = message.flags & FLAG_SYNCHRONOUS != 0;
        let is_remote = message.remote.is_some();
        // A message that is fetched needs no grant.
        let needs_grant = !message.has_all_arrived() && !is_remote;
        let is_held = needs_grant && message.is_announced && message.granted == 0;
        // What was asked for before comes in a pause, too.
        let is_invited = message.is_announced && message.granted > 0;
        if is_held {
            message.granted = message.total.min(u64::from(self.config.window_bytes));
        }
        let granted = message.granted;

        if let Some(RequestEntry::Receive(receive)) = self.requests.get_mut(request) {
            receive.state = ReceiveState::Matched { message: key };
        }

        if is_synchronous {
            self.queue_control(rank, Control::Matched { request: sender });
        }

        // A sender that was told to pause sends no more of a message until a grant says that it was matched, so the
        // grant is sent again even if the message has it already.
        let has_paused = self.peers.get(rank as usize).is_some_and(|peer| peer.has_paused);
        if needs_grant && (is_held || has_paused && !is_invited) {
            self.queue_control(rank, Control::Grant { request: sender, limit: granted });
        }

        // If the owner does not poll, the engine fetches the message after a while: the sender waits for that.
        if is_remote {
            self.unattended.push(UnattendedMessage::new(key));
        } else if needs_grant {
            self.grant(key);
        }
    }

    /// Handles the first frame of a message in several.
    fn first<S: Sink + ?Sized>(
        &mut self,
        envelope: &Envelope,
        opening: &Opening,
        arrival: ArrivedFrame,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        if arrival.length != envelope.length as usize || to_u64(arrival.length) > opening.total {
            return Err("a first frame whose length is not the one announced");
        }

        let rank = arrival.rank;
        let label = Label { context: envelope.context, source: rank, tag: envelope.tag };
        self.counters.messages_received += 1;

        let mut message =
            IncomingMessage::new(label, envelope.flags, opening.request, opening.total);
        message.granted = opening.total.min(u64::from(self.config.window_bytes));

        // A message that is only announced has no grant, and neither has one in its sender's memory: the check below
        // then refuses any bytes.
        message.is_announced = envelope.has(FLAG_ANNOUNCED);
        if message.is_announced {
            message.granted = 0;
        }
        if envelope.has(FLAG_KEY) {
            message.remote = Some((RemoteKey(opening.key), opening.offset));
            message.granted = 0;
        }
        if to_u64(arrival.length) > message.granted {
            return Err("more of a message than was granted");
        }

        let is_whole = to_u64(arrival.length) == opening.total;
        // Receives that were posted come before the caller's own.
        let taker = self.posted.take(label).or_else(|| self.begin_receive(label, direct));
        let (is_announced, is_empty) = (message.is_announced, message.total == 0);
        let has_bytes_there = is_announced && !is_empty && message.remote.is_none();
        let key = self.arrange(message, taker)?;
        if is_announced {
            self.note_announced(rank, (has_bytes_there && taker.is_none()).then_some(key));
        }

        // Later frames find their message by its stream; a whole message needs none.
        if !is_whole
            && !self.peers.get_mut(rank as usize).is_some_and(|p| p.set_stream(envelope.id, key))
        {
            return Err("a stream that is in use");
        }

        if let Some(message) = self.messages.get_mut(key) {
            message.stream = envelope.id;
        }

        // An announced message brings no bytes, and neither does one in its sender's memory.
        if arrival.length == 0 { Ok(()) } else { self.more(key, arrival, direct) }
    }

    /// Handles more of a message.
    fn data<S: Sink + ?Sized>(
        &mut self,
        envelope: &Envelope,
        arrival: ArrivedFrame,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        let Some(peer) = self.peers.get_mut(arrival.rank as usize) else { return Ok(()) };
        let key = peer.stream(envelope.id).ok_or("data of no message")?;
        let message = self.messages.get(key).ok_or("data of no message")?;
        let arrived = message.arrived + to_u64(arrival.length);
        if arrival.length != envelope.length as usize || arrival.length == 0 {
            return Err("a frame whose length is not the one announced");
        }
        if arrived > message.granted {
            return Err("more of a message than was granted");
        }
        if (arrived == message.total) != envelope.has(FLAG_LAST) {
            return Err("a message of another length than was announced");
        }
        if arrived == message.total {
            peer.set_stream(envelope.id, 0);
        }
        self.more(key, arrival, direct)
    }

    /// Takes data of a message: to the caller's sink if the message is the caller's own, otherwise to the
    /// heap.
    fn more<S: Sink + ?Sized>(
        &mut self,
        key: u64,
        arrival: ArrivedFrame,
        direct: &mut DirectReceive<'_, S>,
    ) -> Result<(), &'static str> {
        let Some(message) = self.messages.get(key) else { return Ok(()) };

        // Bytes on the heap come first: until they are drained, what arrives must join them there.
        let own = match direct.interest {
            ReceiveInterest::Request(own) => {
                message.request == Some(own) && message.parts.is_empty()
            }
            _ => false,
        };
        let length = to_u64(arrival.length);

        // The bytes of a discarded message count as consumed: without further grants, its send would never end.
        if own || message.is_discarded {
            let taken = if message.is_discarded {
                0
            } else {
                self.copy(&arrival, direct.sink, message.consumed)
            };
            if let Some(message) = self.messages.get_mut(key) {
                message.arrived += length;
                message.is_truncated |= taken < arrival.length;
            }

            self.consumed(key, length);
            if self.messages.get(key).is_some_and(|message| message.is_discarded) {
                self.end_discarded(key);
            } else {
                direct.result = direct.result.or_else(|| self.complete_receive(key));
            }
            return Ok(());
        }

        // A message without a receive gets no grant here: its sender stops at the end of the window.
        let request = message.request;
        self.keep(key, arrival);
        if let Some(request) = request {
            self.announce(request);
            self.grant(key);
        }
        Ok(())
    }

    /// Keeps a frame of a message on the heap: behind the bytes that are there, so that its receiver can have them without a copy.
    fn keep(&mut self, key: u64, mut arrival: ArrivedFrame) {
        let Some(message) = self.messages.get_mut(key) else { return };
        let receive = message.request.and_then(|request| match self.requests.get(request) {
            Some(RequestEntry::Receive(receive)) => Some(receive),
            _ => None,
        });

        // Bytes beyond the receive's limit are only counted, so that `arrived` still reaches the whole length.
        let limit = receive.map_or(u64::MAX, |receive| receive.limit);
        let room = to_usize(limit.saturating_sub(message.arrived)).min(arrival.length);

        let Origin::Area(offset) = arrival.origin else {
            let mut part = self.take(&mut arrival);
            part.clip(room);
            if let Some(message) = self.messages.get_mut(key) {
                message.park(part);
            }
            return;
        };

        let Some(link) = reliable(&self.peers, arrival.rank) else { return };
        // A message without a receive takes no more heap than what its sender may send.
        let ahead = if message.request.is_some() { KEPT_AT_FIRST } else { 0 };
        let first = to_usize(message.total.min(message.granted.max(ahead)).min(limit));

        let part = message.parts.part_to_fill(first);
        let read = link.area.memory.read_onto(
            u64::from(offset) + to_u64(arrival.start),
            room,
            &mut part.bytes,
        );
        debug_assert!(read.is_ok(), "found inside");

        part.beyond += arrival.length - room;
        message.arrived += to_u64(arrival.length);
    }

    /// Ends the receive of a message that has been wholly handed to its receiver.
    pub(super) fn complete_receive(&mut self, key: u64) -> Option<Status> {
        let message = self.messages.get(key)?;
        if message.consumed < message.total || message.error.is_some() {
            return None;
        }
        let (status, request) = (message.status(), message.request?);
        self.messages.remove(key);
        self.requests.remove(request);
        Some(status)
    }

    fn end_discarded(&mut self, key: u64) {
        if self.messages.get(key).is_some_and(|message| message.consumed == message.total) {
            self.messages.remove(key);
        }
    }

    /// Records that the receiver took `length` more bytes, and grants as many in their place.
    pub(super) fn consumed(&mut self, key: u64, length: u64) {
        if let Some(message) = self.messages.get_mut(key) {
            message.consumed += length;
            let rank = message.label.source;
            self.has_taken(rank);
            self.grant(key);
        }
    }

    /// Notes that bytes of a rank have been handed to their receivers.
    #[inline]
    pub(super) fn has_taken(&mut self, rank: u32) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.taken = peer.taken.wrapping_add(1);
        }
    }

    /// Grants more of a message, a window ahead of what its receiver has taken. A receive that is not polled takes
    /// everything: it waits on the heap.
    ///
    /// # Source
    /// MPI 5.0, section 3.5: a send that a posted receive matches completes.
    pub(super) fn grant(&mut self, key: u64) {
        let window = u64::from(self.config.window_bytes);
        let Some(message) = self.messages.get_mut(key) else { return };
        let is_attended = message.request.is_none_or(|request| {
            matches!(self.requests.get(request),
                Some(RequestEntry::Receive(receive)) if receive.is_attended)
        });
        let taken = if is_attended { message.consumed } else { message.arrived };
        if message.granted == message.total
            || message.remote.is_some()
            || message.is_cancelled
            || message.granted.saturating_sub(taken) > window / 2
        {
            if message.request.is_some()
                && message.arrived == message.granted
                && message.granted < message.total
                && message.remote.is_none()
            {
                // It goes on when its receive is polled, or after a while.
                self.unattended.push(UnattendedMessage::new(key));
            }
            return;
        }
        message.granted = message.total.min(taken.saturating_add(window));
        let grant = Control::Grant { request: message.sender, limit: message.granted };
        let rank = message.label.source;
        self.queue_control(rank, grant);
    }

    /// Handles a message that its sender abandoned.
    fn abort(&mut self, stream: u32, rank: u32) -> Result<(), &'static str> {
        let peer = self.peers.get_mut(rank as usize).ok_or("no such rank")?;
        let key = peer.stream(stream).ok_or("the end of no message")?;
        peer.set_stream(stream, 0);
        self.fail_message(key, RequestError::Aborted { rank });
        Ok(())
    }

    /// Ends a message that will get no more data.
    pub(super) fn fail_message(&mut self, key: u64, error: RequestError) {
        let Some(message) = self.messages.get_mut(key) else { return };
        message.error = Some(error);
        let (node, request) = (message.node.take(), message.request);
        self.unpark(key);
        if let Some(node) = node {
            self.unexpected.remove(node);
        }
        self.messages.remove(key);
        if let Some(request) = request
            && let Some(RequestEntry::Receive(receive)) = self.requests.get_mut(request)
        {
            receive.state = ReceiveState::Failed(error);
            self.announce(request);
        }
    }

    /// Sends a control entry, now or as soon as there is credit.
    pub(super) fn queue_control(&mut self, rank: u32, control: Control) {
        let answers = self.config.unexpected_messages_max as usize;
        let most = CONTROLS_WAITING_MAX + answers + 4 * self.kept();
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        if peer.failed.is_some() {
            return;
        }
        peer.controls.push_back(control);
        // An honest peer takes its entries, and each of its messages and requests under way has a few at
        // most.
        if peer.controls.len() > most {
            self.peer_fault(rank, "it takes no control entries and asks for more");
            return;
        }
        self.flush_controls(rank);
    }

    /// Handles a control entry.
    pub(super) fn control(&mut self, rank: u32, control: Control) -> Result<(), &'static str> {
        match control {
            Control::Matched { request } => {
                // A message in one frame is not abandoned before the answer; one in several may be.
                let key = match u32::try_from(request) {
                    Ok(index) => self.requests.key_at(index).ok_or("a match of no message")?,
                    Err(_) => request,
                };
                self.send_matched(rank, key);
                Ok(())
            }
            Control::Grant { request, limit } => {
                self.send_granted(rank, request, limit);
                Ok(())
            }
            Control::Invite { request, limit } => {
                self.send_invited(rank, request, limit);
                self.flush_peer(rank);
                Ok(())
            }
            Control::Admit { through } => self.sends_admitted(rank, through),
            Control::Unreserve { offset } => {
                if let Some(link) = reliable_mut(&mut self.peers, rank) {
                    let (_, _, hold) =
                        link.take_reserved(offset).ok_or("a piece that was not reserved")?;
                    link.reader.release_held(hold);
                }
                Ok(())
            }
            Control::Finished { request } => self.send_finished(rank, request),
            Control::Cancel { request } => {
                self.cancel_wanted(rank, request);
                Ok(())
            }
            Control::Cancelled { request, is_cancelled } => {
                self.cancel_answered(rank, request, is_cancelled)
            }
            Control::Pause | Control::Resume => {
                let Some(peer) = self.peers.get_mut(rank as usize) else { return Ok(()) };
                peer.is_paused = control == Control::Pause;
                if control == Control::Resume {
                    self.resume_sends(rank);
                }
                self.flush_peer(rank);
                Ok(())
            }
        }
    }

    /// Answers a sender that wants its message back: it gets it, unless a receive has matched it.
    fn cancel_wanted(&mut self, rank: u32, request: u64) {
        let is_cancelled = self.take_back(rank, request);
        self.queue_control(rank, Control::Cancelled { request, is_cancelled });
    }

    /// Discards what has arrived of a message and what will arrive.
    pub(super) fn discard(&mut self, key: u64) {
        let Some(message) = self.messages.get_mut(key) else { return };
        message.is_discarded = true;
        message.request = None;
        let remote = message.remote.take();
        let waiting: u64 = message.parts.drain().map(|part| to_u64(part.len())).sum();
        debug_assert_eq!(message.consumed + waiting, message.arrived);
        if remote.is_some() {
            self.finish_remote(key);
            self.messages.remove(key);
            return;
        }
        self.consumed(key, waiting);
        self.end_discarded(key);
    }

    /// Tells the sender that its memory is no longer needed.
    pub(super) fn finish_remote(&mut self, key: u64) {
        let Some(message) = self.messages.get_mut(key) else { return };
        message.remote = None;
        let (rank, sender, stream) = (message.label.source, message.sender, message.stream);
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.set_stream(stream, 0);
        }
        self.queue_control(rank, Control::Finished { request: sender });
    }

    /// Copies the part of a message that is on the heap to its receiver.
    pub(super) fn drain<S: Sink + ?Sized>(&mut self, key: u64, sink: &mut S) {
        let mut taken = 0;
        let Some(message) = self.messages.get_mut(key) else { return };
        for mut part in message.parts.drain() {
            let at = message.consumed + taken;
            let length = part.len();
            let kept = part.bytes.len() - part.start;
            let is_adopted = at == 0 && part.start == 0 && sink.adopt(&mut part.bytes);
            let done = if is_adopted { kept } else { put(sink, at, &part.bytes[part.start..]) };
            message.is_truncated |= done < length;
            taken += to_u64(length);
        }
        if taken > 0 {
            self.consumed(key, taken);
        }
    }

    /// Reads a frame that the caller does not want itself.
    pub(super) fn step_aside(&mut self) -> bool {
        self.step(&mut DirectReceive::nothing(&mut Discard))
    }
}

#[cfg(test)]
mod tests;
