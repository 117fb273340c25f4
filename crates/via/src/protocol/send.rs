//! The sending side: first frames in the order of the calls, then data as credit and grants allow.

use std::{io::IoSlice, task::Poll};

use super::{
    MessageEngine, Payload, RequestError, RequestId, SendError, SendMode, SendState,
    envelope::{
        ENVELOPE_BYTES, Envelope, FLAG_ANNOUNCED, FLAG_KEY, FLAG_LAST, FLAG_READY,
        FLAG_SYNCHRONOUS, FrameKind, NO_REQUEST, OPENING_BYTES, Opening,
    },
    link::SendOutcome,
    payload::{SLICES_MAX, copy_range, gather, total},
    peer::{Peer, PeerLink},
    request::{RequestEntry, SendBody, SendPhase, SendRequest, SetMember},
    to_u64, to_usize,
};
use crate::{
    slots::SlotKey,
    vi::{CACHE_LINE, Provider},
};

/// The most completions that a poll takes.
const BUDGET: usize = 64;

/// Returns how much of a long message goes into a frame with `room` bytes: whole cache lines, so that the
/// next frame's data also begins at one.
const fn whole_lines(room: u64) -> u64 {
    room - room % (CACHE_LINE as u64)
}

/// The destination, label and mode of a message.
#[derive(Clone, Copy)]
pub(super) struct MessageRoute {
    pub(super) dest: u32,
    pub(super) context: u16,
    pub(super) tag: u32,
    pub(super) mode: SendMode,
}

/// Returns what the first frame of a message says that is not sent whole: its beginning follows, or nothing if the peer has
/// paused this side or reads the message from its memory.
fn first_frame(
    key: u64,
    send: &SendRequest,
    peer: &Peer,
    has_borrowed: bool,
) -> (Envelope, Opening) {
    let max = u64::from(peer.frame_bytes_max);
    let is_short = send.total + to_u64(ENVELOPE_BYTES) <= max;
    let remote = match &send.body {
        SendBody::Memory { key: Some(key), offset, .. }
            if !is_short && matches!(peer.link, PeerLink::Reliable(_)) =>
        {
            Some((key.0, *offset))
        }
        _ => None,
    };
    let has_bytes = match &send.body {
        SendBody::Borrowed => has_borrowed,
        SendBody::Owned(_) | SendBody::Kept(_) => true,
        SendBody::Memory { .. } => remote.is_none(),
    };
    let room = whole_lines(max - to_u64(ENVELOPE_BYTES + OPENING_BYTES));
    let is_sent = has_bytes && !peer.is_paused;
    let length = if is_sent { room.min(send.total).min(peer.window_out) } else { 0 };

    let mut head = Envelope {
        kind: FrameKind::First,
        flags: send.flags,
        context: send.context,
        tag: send.tag,
        id: 0,
        length: u32::try_from(length).unwrap_or_default(),
    };
    let mut opening = Opening { total: send.total, request: key, ..Opening::default() };
    if let Some((region, offset)) = remote {
        head.flags |= FLAG_KEY;
        (opening.key, opening.offset) = (region, offset);
    }
    if peer.is_paused {
        head.flags |= FLAG_ANNOUNCED;
        if send.total == 0 {
            head.flags |= FLAG_SYNCHRONOUS;
        }
    }
    (head, opening)
}

impl<P: Provider> MessageEngine<P> {
    /// Sends a message. A short message that finds credit has been sent when this returns; anything else
    /// becomes a request. Borrowed bytes that cannot be sent at once are copied if they are few; otherwise
    /// you pass them again to [`poll_send`](Self::poll_send).
    ///
    /// # Cost
    /// One copy, into the receiver's area.
    ///
    /// # Errors
    /// [`SendError`]; nothing was sent then.
    #[inline]
    pub fn send(
        &mut self,
        dest: u32,
        context: u16,
        tag: u32,
        mode: SendMode,
        payload: Payload<'_>,
    ) -> Result<SendState, SendError> {
        let route = MessageRoute { dest, context, tag, mode };
        let is_sent = mode != SendMode::Synchronous
            && match &payload {
                Payload::Borrowed(body) => self.send_at_once(route, body),
                Payload::Owned(bytes) => self.send_at_once(route, &[IoSlice::new(bytes)]),
                Payload::Kept(bytes) => self.send_at_once(route, &[IoSlice::new(bytes.as_ref())]),
                Payload::Memory { .. } | Payload::Region { .. } => false,
            };
        if is_sent {
            return Ok(SendState::Done);
        }
        self.begin_send(route, payload)
    }

    /// As [`send`](Self::send) of contiguous borrowed bytes. This is the fastest way: address and length are
    /// passed in registers.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline(never)]
    pub fn send_bytes(
        &mut self,
        dest: u32,
        context: u16,
        tag: u32,
        mode: SendMode,
        bytes: &[u8],
    ) -> Result<SendState, SendError> {
        if self.send_headed(dest, context, tag, mode, bytes) {
            return Ok(SendState::Done);
        }
        self.send(dest, context, tag, mode, Payload::Borrowed(&[IoSlice::new(bytes)]))
    }

    /// Sends a message in one frame, if no message is before it and there is credit.
    fn send_at_once(&mut self, route: MessageRoute, body: &[IoSlice<'_>]) -> bool {
        let length = total(body);
        let Some((head, frame)) = self.head_at_once(route, length) else {
            return false;
        };
        let head = head.to_le_bytes();
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        gather(&head, body, 0, to_usize(length), &mut slices)
            .is_some_and(|count| self.frame_at_once(route.dest, &slices[..count], frame))
    }

    /// Returns the envelope of a message that may be sent at once, as a number, and the length of its frame.
    #[inline]
    pub(super) fn head_at_once(&self, route: MessageRoute, length: u64) -> Option<(u128, u32)> {
        let MessageRoute { dest, context, tag, mode } = route;
        let peer = self.peers.get(dest as usize)?;
        let frame = length + to_u64(ENVELOPE_BYTES);
        if !peer.is_clear() || frame > u64::from(peer.frame_bytes_max) {
            return None;
        }
        let (length, frame) = (u32::try_from(length).ok()?, u32::try_from(frame).ok()?);
        let flags = if mode == SendMode::Ready { FLAG_READY } else { 0 };
        let kind = FrameKind::Eager;
        let head = Envelope { kind, flags, context, tag, id: NO_REQUEST, length }.bits();
        Some((head, frame))
    }

    /// Sends a whole message as one frame, if there is credit.
    #[inline]
    fn frame_at_once(&mut self, dest: u32, slices: &[IoSlice<'_>], frame: u32) -> bool {
        let Some(peer) = self.peers.get_mut(dest as usize) else { return false };
        match peer.send_frame(&mut self.nic, &mut self.staging, self.now, slices, frame) {
            SendOutcome::Done => {
                self.counters.messages_sent += 1;
                true
            }
            SendOutcome::Blocked => false,
            SendOutcome::Fault(what) => {
                self.peer_fault(dest, what);
                false
            }
        }
    }

    pub(super) fn check_destination(&self, rank: u32) -> Result<(), SendError> {
        let size = self.size();
        let peer = self.peers.get(rank as usize).ok_or(SendError::NoSuchRank { rank, size })?;
        if let Some(reason) = peer.failed {
            return Err(SendError::PeerFailed { rank, reason });
        }
        if !peer.is_connected() && peer.address.is_none() {
            return Err(SendError::NotConnected { rank });
        }
        Ok(())
    }

    fn begin_send(
        &mut self,
        route: MessageRoute,
        payload: Payload<'_>,
    ) -> Result<SendState, SendError> {
        let MessageRoute { dest, context, tag, mode } = route;
        self.check_destination(dest)?;
        self.check_announced(dest)?;
        let is_synchronous = mode == SendMode::Synchronous;
        let mut request = SendRequest {
            peer: dest,
            context,
            tag,
            flags: match mode {
                SendMode::Synchronous => FLAG_SYNCHRONOUS,
                SendMode::Ready => FLAG_READY,
                SendMode::Standard | SendMode::Buffered => 0,
            },
            total: 0,
            sent: 0,
            limit: 0,
            body: SendBody::Borrowed,
            stage: SendPhase::Queued,
            is_matched: false,
            needs_match: is_synchronous,
            needs_finish: false,
            awaits_answer: false,
            is_detached: false,
            is_announced: false,
            is_invited: false,
            is_settled: false,
            is_pumped: false,
            buffered: 0,
            has_own_buffer: false,
            member: SetMember::NONE,
            result: None,
        };

        let borrowed = self.take_payload(&mut request, mode, payload)?;
        // The owner of a buffered send does not poll it.
        request.is_detached = mode == SendMode::Buffered;
        let key = self.requests.insert(RequestEntry::Send(Box::new(request)));
        self.begin(key, dest, borrowed);
        Ok(self.state_of(key))
    }

    /// Gives a request its bytes, or returns those that stay with the caller.
    fn take_payload<'a>(
        &mut self,
        request: &mut SendRequest,
        mode: SendMode,
        payload: Payload<'a>,
    ) -> Result<Option<&'a [IoSlice<'a>]>, SendError> {
        let mut borrowed = None;
        match payload {
            Payload::Borrowed(body) if mode == SendMode::Buffered => {
                let (bytes, has_own) = self.keep_buffered(request.context, body)?;
                request.has_own_buffer = has_own;
                request.total = to_u64(bytes.len());
                request.buffered = request.total;
                request.body = SendBody::Owned(bytes);
            }
            Payload::Borrowed(body) => {
                request.total = total(body);
                borrowed = Some(body);
            }
            Payload::Owned(bytes) => {
                request.total = to_u64(bytes.len());
                request.body = SendBody::Owned(bytes);
            }
            Payload::Kept(kept) if mode == SendMode::Buffered => {
                // Done at once, so that the owner may go.
                let body = [IoSlice::new(kept.as_ref())];
                let (bytes, has_own) = self.keep_buffered(request.context, &body)?;
                request.has_own_buffer = has_own;
                request.total = to_u64(bytes.len());
                request.buffered = request.total;
                request.body = SendBody::Owned(bytes);
            }
            Payload::Kept(kept) => {
                let bytes = kept.as_ref();
                request.total = to_u64(bytes.len());
                // As borrowed bytes: few are copied, so that a send in standard mode need not wait for its receive.
                request.body = if self.is_short(request.peer, request.total) {
                    SendBody::Owned(bytes.to_vec())
                } else {
                    SendBody::Kept(kept)
                };
            }
            Payload::Region { region, offset, length } => {
                if offset.checked_add(length).is_none_or(|end| end > to_u64(region.memory.len())) {
                    return Err(SendError::OutOfBounds { offset, length });
                }
                request.total = length;
                let (key, memory) = (Some(region.key), region.memory);
                request.body = SendBody::Memory { memory, offset, key, _registered: None };
            }
            Payload::Memory { memory, offset, length } => {
                if offset.checked_add(length).is_none_or(|end| end > to_u64(memory.len())) {
                    return Err(SendError::OutOfBounds { offset, length });
                }
                request.total = length;
                request.body = self.registered(request.peer, memory, offset, length);
            }
        }
        Ok(borrowed)
    }

    /// Returns whether a send that has just begun is already done.
    fn state_of(&mut self, key: u64) -> SendState {
        match self.requests.get_mut(key) {
            Some(RequestEntry::Send(send)) if send.is_detached => SendState::Done,
            Some(RequestEntry::Send(send)) if send.is_settled && send.result.is_none() => {
                send.is_detached = true;
                SendState::Done
            }
            Some(RequestEntry::Send(send)) if matches!(send.result, Some(Ok(()))) => {
                self.requests.remove(key);
                SendState::Done
            }
            Some(_) => SendState::Pending(RequestId(key)),
            None => SendState::Done,
        }
    }

    /// Sends the first frame of a request, or puts it at the end of the queue.
    fn begin(&mut self, key: u64, dest: u32, borrowed: Option<&[IoSlice<'_>]>) {
        let Some(peer) = self.peers.get(dest as usize) else { return };
        let (is_next, is_paused) = (peer.outbox.is_empty(), peer.is_paused);
        if is_paused && let Some(body) = borrowed {
            // It is only announced now.
            self.keep_if_short(key, dest, body);
        }

        let sent = if is_next { self.send_head(key, borrowed) } else { SendOutcome::Blocked };
        match sent {
            SendOutcome::Done => {
                // The engine has borrowed bytes only during this call.
                if let Some(body) = borrowed {
                    self.pump_borrowed(key, body);
                } else {
                    self.start_pump(key);
                    self.flush_peer(dest);
                }
            }
            SendOutcome::Blocked => {
                self.counters.blocked += 1;
                if let Some(body) = borrowed {
                    self.keep_if_short(key, dest, body);
                }
                if let Some(peer) = self.peers.get_mut(dest as usize) {
                    peer.outbox.push_back(key);
                }
                self.list(dest);
                // A rank that is not connected blocks too: it is called now.
                self.need(dest);
            }
            SendOutcome::Fault(what) => self.peer_fault(dest, what),
        }
    }

    /// Returns whether a message fits into one frame.
    fn is_short(&self, dest: u32, total: u64) -> bool {
        let max = self.peers.get(dest as usize).map_or(0, |peer| peer.frame_bytes_max);
        total + to_u64(ENVELOPE_BYTES) <= u64::from(max)
    }

    /// Copies borrowed bytes that must wait, if they fit into one frame.
    fn keep_if_short(&mut self, key: u64, dest: u32, body: &[IoSlice<'_>]) {
        let Some(RequestEntry::Send(send)) = self.requests.get(key) else { return };
        let is_short = self.is_short(dest, send.total);
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else { return };
        if matches!(send.body, SendBody::Borrowed) && is_short {
            let mut bytes = Vec::with_capacity(to_usize(send.total));
            copy_range(body, 0, to_usize(send.total), &mut bytes);
            send.body = SendBody::Owned(bytes);
        }
    }

    /// Sends one frame: an envelope (and opening), and `length` bytes of the body from `skip` on.
    pub(super) fn push_frame(
        &mut self,
        rank: u32,
        head: &[u8],
        body: &[IoSlice<'_>],
        skip: u64,
        length: usize,
    ) -> SendOutcome {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return SendOutcome::Blocked };
        let frame = u32::try_from(head.len() + length).unwrap_or(u32::MAX);
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        if let Some(count) = gather(head, body, skip, length, &mut slices) {
            return peer.send_frame(
                &mut self.nic,
                &mut self.staging,
                self.now,
                &slices[..count],
                frame,
            );
        }
        let mut scratch = Vec::with_capacity(length);
        copy_range(body, skip, length, &mut scratch);
        let slices = [IoSlice::new(head), IoSlice::new(&scratch)];
        peer.send_frame(&mut self.nic, &mut self.staging, self.now, &slices, frame)
    }

    /// Calls `act` with the bytes of a request, wherever they are, from the first unsent one on.
    fn with_body(
        &mut self,
        key: u64,
        borrowed: Option<&[IoSlice<'_>]>,
        length: usize,
        act: impl FnOnce(&mut Self, &[IoSlice<'_>], u64) -> SendOutcome,
    ) -> SendOutcome {
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else {
            return SendOutcome::Blocked;
        };
        let (skip, total) = (send.sent, send.total);
        if let Some(body) = borrowed {
            return act(self, body, skip);
        }

        // `act` borrows the whole engine, so the body leaves the request for that time.
        let body = std::mem::replace(&mut send.body, SendBody::Borrowed);
        let sent = match &body {
            SendBody::Owned(bytes) => act(self, &[IoSlice::new(bytes)], skip),
            SendBody::Kept(bytes) => match bytes.as_ref().get(..to_usize(total)) {
                Some(bytes) => act(self, &[IoSlice::new(bytes)], skip),
                None => SendOutcome::Fault("bytes to be sent that have become fewer"),
            },
            SendBody::Memory { memory, offset, .. } => {
                match memory.read_to_vec(offset + skip, length) {
                    Ok(bytes) => act(self, &[IoSlice::new(&bytes)], 0),
                    Err(_) => SendOutcome::Fault("memory that is too short"),
                }
            }
            SendBody::Borrowed => act(self, &[], 0),
        };

        if let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) {
            send.body = body;
        }
        sent
    }

    /// Sends the first frame of a message: all of it, its beginning, or the key of its memory; without any of its
    /// bytes if the peer has paused this side.
    fn send_head(&mut self, key: u64, borrowed: Option<&[IoSlice<'_>]>) -> SendOutcome {
        let Some(RequestEntry::Send(send)) = self.requests.get(key) else {
            return SendOutcome::Done;
        };
        let rank = send.peer;
        let Some(peer) = self.peers.get(rank as usize) else { return SendOutcome::Blocked };
        let max = u64::from(peer.frame_bytes_max);
        let is_short = send.total + to_u64(ENVELOPE_BYTES) <= max;
        let is_announced = peer.is_paused;
        if is_short && !is_announced {
            return self.send_whole(key, borrowed);
        }
        if is_announced && peer.announced_out >= peer.announced_out_max {
            return SendOutcome::Blocked;
        }

        let window = peer.window_out;
        let (mut head, opening) = first_frame(key, send, peer, borrowed.is_some());
        // Nothing will be granted of an empty message: it ends when it is matched.
        let is_empty = send.total == 0;
        let stream = self.peers.get_mut(rank as usize).filter(|_| !is_empty);
        let stream = stream.map(|peer| peer.open_stream());
        if stream == Some(None) {
            return SendOutcome::Blocked;
        }
        let stream = stream.flatten();
        head.id = stream.unwrap_or_default();

        let mut bytes = [0; ENVELOPE_BYTES + OPENING_BYTES];
        bytes[..ENVELOPE_BYTES].copy_from_slice(&head.encode());
        bytes[ENVELOPE_BYTES..].copy_from_slice(&opening.encode());
        let count = head.length as usize;
        let sent = self.with_body(key, borrowed, count, |engine, body, skip| {
            engine.push_frame(rank, &bytes, body, skip, count)
        });

        if sent == SendOutcome::Done {
            self.counters.messages_sent += 1;
            if let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) {
                let is_remote = head.has(FLAG_KEY);
                send.stage = stream.map_or(SendPhase::Sent, |stream| SendPhase::Open { stream });
                send.sent = u64::from(head.length);
                let is_held = is_remote || is_announced;
                send.limit = if is_held { 0 } else { window.min(send.total) };
                send.needs_finish = is_remote;
                send.needs_match |= is_empty;
                send.is_announced = is_announced;
            }
            if is_announced {
                self.announced(key, rank, is_short, !is_empty && !head.has(FLAG_KEY));
            }
        } else if let Some(peer) = self.peers.get_mut(rank as usize)
            && let Some(stream) = stream
        {
            peer.close_stream(stream);
        }
        sent
    }

    fn send_whole(&mut self, key: u64, borrowed: Option<&[IoSlice<'_>]>) -> SendOutcome {
        let Some(RequestEntry::Send(send)) = self.requests.get(key) else {
            return SendOutcome::Done;
        };
        let (rank, count) = (send.peer, to_usize(send.total));
        let head = Envelope {
            kind: FrameKind::Eager,
            flags: send.flags,
            context: send.context,
            tag: send.tag,
            id: if send.needs_match { key.index() } else { NO_REQUEST },
            length: u32::try_from(count).unwrap_or_default(),
        }
        .encode();
        let sent = self.with_body(key, borrowed, count, |engine, body, skip| {
            engine.push_frame(rank, &head, body, skip, count)
        });
        if sent == SendOutcome::Done {
            self.counters.messages_sent += 1;
            if let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) {
                send.stage = SendPhase::Sent;
                send.sent = send.total;
            }
            self.finish_send(key);
        }
        sent
    }

    /// Sends data of an open message as far as credit and grants allow. [`SendOutcome::Blocked`]: credit is lacking.
    fn send_data(&mut self, key: u64, borrowed: Option<&[IoSlice<'_>]>) -> SendOutcome {
        loop {
            let Some(RequestEntry::Send(send)) = self.requests.get(key) else {
                return SendOutcome::Done;
            };
            let SendPhase::Open { stream } = send.stage else { return SendOutcome::Done };
            let rank = send.peer;
            let Some(peer) = self.peers.get_mut(rank as usize) else { return SendOutcome::Done };
            let room = whole_lines(u64::from(peer.frame_bytes_max) - to_u64(ENVELOPE_BYTES));
            let length = send.allowed(peer.is_paused).saturating_sub(send.sent).min(room);
            if length == 0 {
                if send.sent < send.limit {
                    peer.paused.insert(key);
                }
                return SendOutcome::Done;
            }

            let is_last = send.sent + length == send.total;
            let head = Envelope {
                kind: FrameKind::Data,
                flags: if is_last { FLAG_LAST } else { 0 },
                context: send.context,
                tag: send.tag,
                id: stream,
                length: u32::try_from(length).unwrap_or_default(),
            }
            .encode();

            let count = to_usize(length);
            let sent = self.with_body(key, borrowed, count, |engine, body, skip| {
                engine.push_frame(rank, &head, body, skip, count)
            });
            if sent != SendOutcome::Done {
                return sent;
            }

            self.worked = self.worked.wrapping_add(1);
            if let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) {
                send.sent += length;
            }
            if is_last {
                self.close(key, rank, stream);
                return SendOutcome::Done;
            }
        }
    }

    /// Handles a message of which everything was sent, or whose memory was read.
    fn close(&mut self, key: u64, rank: u32, stream: u32) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.close_stream(stream);
        }
        if let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) {
            send.stage = SendPhase::Sent;
            send.needs_finish = false;
        }
        self.finish_send(key);
    }

    /// Ends a send if nothing remains to be done for it.
    pub(super) fn finish_send(&mut self, key: u64) {
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else { return };
        if send.stage != SendPhase::Sent
            || (send.needs_match && !send.is_matched)
            || send.needs_finish
            || send.awaits_answer
            || send.result.is_some()
        {
            return;
        }
        self.end_send(key, Ok(()));
    }

    /// Ends a send.
    pub(super) fn end_send(&mut self, key: u64, result: Result<(), RequestError>) {
        self.release_buffered(key);
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else { return };
        if std::mem::take(&mut send.is_settled) {
            self.held_bytes -= send.total;
            if let Some(peer) = self.peers.get_mut(send.peer as usize) {
                peer.settled -= 1;
            }
        }
        // The receiver counts an abandoned message until it is told.
        if !matches!(send.stage, SendPhase::Aborted { .. }) {
            self.answered(key);
        }
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else { return };
        send.body = SendBody::Borrowed;
        send.result = Some(result);
        if !send.is_detached {
            self.announce(key);
        } else if !matches!(send.stage, SendPhase::Aborted { .. }) {
            self.requests.remove(key);
        }
    }

    // ------------------------------------------------------------------ what waits

    pub(super) fn start_pump(&mut self, key: u64) {
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else { return };
        let (rank, is_own) = (send.peer, !matches!(send.body, SendBody::Borrowed));
        let is_open = matches!(send.stage, SendPhase::Open { .. }) && send.sent < send.limit;
        if !is_open {
            return;
        }
        if !is_own {
            self.announce(key);
        } else if !std::mem::replace(&mut send.is_pumped, true)
            && let Some(peer) = self.peers.get_mut(rank as usize)
        {
            peer.pumps.push_back(key);
            self.list(rank);
        }
    }

    /// Resumes the messages that had no grant while the peer had paused this side.
    pub(super) fn resume_sends(&mut self, rank: u32) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        for key in std::mem::take(&mut peer.paused) {
            self.start_pump(key);
        }
    }

    /// Sends control entries that wait for credit. Returns whether all were sent.
    pub(super) fn flush_controls(&mut self, rank: u32) -> bool {
        let mut sent = SendOutcome::Done;
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            while let Some(control) = peer.controls.front().copied() {
                sent = peer.send_control(&mut self.nic, &mut self.staging, self.now, control);
                if sent != SendOutcome::Done {
                    break;
                }
                peer.controls.pop_front();
            }
        }
        match sent {
            SendOutcome::Done => {}
            SendOutcome::Blocked => self.list(rank),
            SendOutcome::Fault(what) => self.peer_fault(rank, what),
        }
        sent == SendOutcome::Done
    }

    /// Sends what waits for a peer, as far as there is credit. Returns whether anything was sent.
    pub(super) fn flush_peer(&mut self, rank: u32) -> bool {
        let before = self.counters.messages_sent;
        if self.peers.get(rank as usize).is_none_or(|peer| peer.failed.is_some()) {
            return false;
        }

        let mut has_worked = !self.peers[rank as usize].controls.is_empty();
        has_worked &= self.flush_controls(rank);

        // Messages begin in the order of the calls: a blocked first frame stops all that are behind it.
        let mut sent = SendOutcome::Done;
        while sent == SendOutcome::Done
            && let Some(peer) = self.peers.get_mut(rank as usize)
            && peer.failed.is_none()
            && let Some(key) = peer.outbox.front().copied()
        {
            sent = self.send_head(key, None);
            if sent == SendOutcome::Done {
                self.peers[rank as usize].outbox.pop_front();
                self.start_pump(key);
            }
        }

        // A head that waits for earlier messages to be matched or sent does not lack the credit that those need.
        if sent == SendOutcome::Blocked
            && self.peers.get(rank as usize).is_some_and(|peer| !peer.takes_heads())
        {
            sent = SendOutcome::Done;
        }
        has_worked |= self.run_pumps(rank, &mut sent);
        if let SendOutcome::Fault(what) = sent {
            self.peer_fault(rank, what);
        }

        // Last, since it wakes the owners of borrowed bytes only if room is left.
        has_worked |= self.wake_stalled(rank);
        if self.peers.get(rank as usize).is_some_and(|peer| peer.has_work()) {
            self.list(rank);
        }
        has_worked | (before != self.counters.messages_sent)
    }

    fn run_pumps(&mut self, rank: u32, sent: &mut SendOutcome) -> bool {
        let mut has_worked = false;
        while *sent == SendOutcome::Done
            && let Some(peer) = self.peers.get_mut(rank as usize)
            && let Some(key) = peer.pumps.pop_front()
        {
            let aborted = match self.requests.get_mut(key) {
                Some(RequestEntry::Send(send)) => {
                    send.is_pumped = false;
                    match send.stage {
                        SendPhase::Aborted { stream } => Some(stream),
                        _ => None,
                    }
                }
                _ => None,
            };
            let before = self.progress_of(key);
            *sent = match aborted {
                Some(stream) => self.send_abort(key, rank, stream),
                None => self.send_data(key, None),
            };
            has_worked |= before != self.progress_of(key);

            // What found no credit stays in its place. A message that lacks only a grant leaves the list: the grant puts it back.
            if *sent != SendOutcome::Done
                && let Some(peer) = self.peers.get_mut(rank as usize)
            {
                peer.pumps.push_front(key);
                if let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) {
                    send.is_pumped = true;
                }
            }
        }
        has_worked
    }

    fn progress_of(&self, key: u64) -> Option<u64> {
        match self.requests.get(key)? {
            RequestEntry::Send(send) => Some(send.sent),
            RequestEntry::Receive(_) | RequestEntry::Set(_) => None,
        }
    }

    /// Tells the owners of borrowed bytes that there is credit again.
    fn wake_stalled(&mut self, rank: u32) -> bool {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return false };
        if peer.stalled.is_empty() || !peer.has_room(&self.staging) {
            return false;
        }
        self.ready.extend(peer.stalled.drain(..).map(RequestId));
        true
    }

    fn pump_borrowed(&mut self, key: u64, body: &[IoSlice<'_>]) {
        let Some(RequestEntry::Send(send)) = self.requests.get(key) else { return };
        let rank = send.peer;
        if !matches!((&send.body, send.stage), (SendBody::Borrowed, SendPhase::Open { .. })) {
            return;
        }
        match self.send_data(key, Some(body)) {
            SendOutcome::Done => {}
            SendOutcome::Blocked => {
                if let Some(peer) = self.peers.get_mut(rank as usize)
                    && !peer.stalled.contains(&key)
                {
                    peer.stalled.push(key);
                }
                self.list(rank);
            }
            SendOutcome::Fault(what) => self.peer_fault(rank, what),
        }
    }

    /// Continues a send. The owner of borrowed bytes passes the same bytes again; the engine keeps none of
    /// them.
    ///
    /// # Errors
    /// [`RequestError`]; the request has then ended.
    pub fn poll_send(
        &mut self,
        id: RequestId,
        body: Option<&[IoSlice<'_>]>,
    ) -> Poll<Result<(), RequestError>> {
        for _ in 0..BUDGET {
            let Some(RequestEntry::Send(send)) = self.requests.get(id.0) else {
                return Poll::Ready(Err(RequestError::Unknown));
            };
            if let Some(result) = send.result {
                if matches!(send.stage, SendPhase::Aborted { .. }) {
                    // The receiver must still be told of the end: until then, the request stays.
                    self.detach(id.0);
                } else {
                    self.requests.remove(id.0);
                }
                return Poll::Ready(result);
            }
            // The engine has a copy of a settled message: its owner need not wait for the receive.
            if send.is_settled {
                self.detach(id.0);
                return Poll::Ready(Ok(()));
            }
            if let Some(body) = body {
                self.pump_borrowed(id.0, body);
            }
            let is_ended = matches!(self.requests.get(id.0),
                Some(RequestEntry::Send(send)) if send.result.is_some());
            if !is_ended && !self.step_aside() && !self.flush() {
                return Poll::Pending;
            }
        }
        // There is more to do: the next poll finds it.
        self.announce(id.0);
        Poll::Pending
    }

    fn detach(&mut self, key: u64) {
        if let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) {
            send.is_detached = true;
        }
    }

    // ------------------------------------------------------------------ what the receiver says

    pub(super) fn send_of(&mut self, rank: u32, key: u64) -> Option<&mut SendRequest> {
        match self.requests.get_mut(key)? {
            RequestEntry::Send(send) if send.peer == rank => Some(send),
            _ => None,
        }
    }

    pub(super) fn send_matched(&mut self, rank: u32, key: u64) {
        // The message may have been abandoned since.
        let Some(send) = self.send_of(rank, key) else { return };
        send.is_matched = true;
        self.answered(key);
        self.finish_send(key);
    }

    pub(super) fn send_granted(&mut self, rank: u32, key: u64, limit: u64) {
        // The message may have ended since the grant was made.
        let Some(send) = self.send_of(rank, key) else { return };
        send.is_matched = true;
        if matches!(send.body, SendBody::Memory { .. }) {
            send.needs_finish = false;
        }
        send.limit = send.limit.max(limit.min(send.total));
        self.answered(key);
        self.finish_send(key);
        self.start_pump(key);
        self.flush_peer(rank);
    }

    pub(super) fn send_finished(&mut self, rank: u32, key: u64) -> Result<(), &'static str> {
        let send = self.send_of(rank, key).ok_or("the end of no message")?;
        let SendPhase::Open { stream } = send.stage else { return Err("the end of no message") };
        if !send.needs_finish {
            return Err("the end of no message");
        }
        send.is_matched = true;
        send.sent = send.total;
        self.answered(key);
        self.close(key, rank, stream);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
