//! The receiving side: matching, and handing data to the caller that asks for it.

use std::{task::Poll, time::Duration};

use vigie_detect::Instant;

use super::{
    CancelState, MessageEngine, RequestError, RequestId, Status,
    envelope::Control,
    incoming::{DirectReceive, ReceiveInterest},
    matching::Pattern,
    payload::Sink,
    request::{MessagePart, ReceiveRequest, ReceiveState, RequestEntry, UnmatchedKind},
    to_usize,
};
use crate::vi::Provider;

/// The most completions that a poll takes.
pub(super) const BUDGET: usize = 64;

/// The time that the owner of a receive has to poll it, before the engine takes more of its message to the heap: long enough
/// for a task that was just woken, since its own copy is the better one.
pub(super) const UNATTENDED_AFTER: Duration = Duration::from_millis(1);

/// The longest time that a message may wait for its owner's poll while that rank's other messages are being received. The caller of many receives
/// polls them one after the other: without this, the engine would copy those at the end of the row to the heap first.
const PASSED_OVER_MAX: Duration = Duration::from_millis(50);

/// The beginning of a message that is taken to the heap.
struct Kept {
    bytes: Vec<u8>,
    limit: usize,
}

impl Sink for Kept {
    fn chunk_mut_at(&mut self, offset: u64, length: usize) -> &mut [u8] {
        let length = length.min(self.limit.saturating_sub(to_usize(offset)));
        self.bytes.chunk_mut_at(offset, length)
    }
}

impl<P: Provider> MessageEngine<P> {
    /// Receives a message that fits, if one has wholly arrived: straight from the area, if it is the next
    /// that arrives. Receives that were posted before come first.
    #[inline]
    pub fn try_recv<S: Sink + ?Sized>(&mut self, pattern: Pattern, sink: &mut S) -> Option<Status> {
        if self.unexpected.len() > 0
            && let Some(result) = self.receive_unexpected(&pattern, sink)
        {
            if result.is_none() {
                self.invite(&pattern);
            }
            return result;
        }
        let mut direct = DirectReceive::new(ReceiveInterest::Now(&pattern), sink);
        for _ in 0..BUDGET {
            let before = self.unexpected.len();
            if !self.step(&mut direct) {
                self.flush();
                return None;
            }
            if direct.result.is_some() {
                return direct.result;
            }
            // A message in several frames that fits cannot be received now, and neither can one behind it.
            if self.unexpected.len() > before && self.unexpected.find(&pattern).is_some() {
                return None;
            }
        }
        None
    }

    /// Grants the beginning of a message that was only announced, for a caller that wants it and posts no receive.
    #[cold]
    fn invite(&mut self, pattern: &Pattern) {
        let Some(key) = self.find_unexpected(pattern) else { return };
        let window = u64::from(self.config.window_bytes);
        let Some(message) = self.messages.get_mut(key) else { return };
        if message.counts_as != UnmatchedKind::Announced || message.remote.is_some() {
            return;
        }
        message.granted = message.total.min(window);
        let (request, limit, rank) = (message.sender, message.granted, message.label.source);
        message.counts_as = UnmatchedKind::Kept;
        message.parked = limit;
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.announced_in -= 1;
            peer.parked_bytes += limit;
            peer.parked_messages += 1;
        }
        self.queue_control(rank, Control::Invite { request, limit });
    }

    /// Binds a waiting message to a new receive.
    fn bind(&mut self, receive: ReceiveRequest, key: u64) -> u64 {
        let request = self.requests.insert(RequestEntry::Receive(receive));
        let message = self.messages.get_mut(key);
        let node = message.and_then(|message| {
            // Its sender may fail while it is told something: the receive fails with it.
            message.request = Some(request);
            message.node.take()
        });
        node.and_then(|node| self.unexpected.remove(node));
        self.unpark(key);
        self.matched(key, request);
        request
    }

    /// Posts a receive: the earliest message that fits belongs to it, now or when it arrives. One from any source fails at once, if none
    /// has arrived and a rank has failed that no such receive of its context has named yet: see [`peer_failed`](Self::peer_failed).
    pub fn post_receive(&mut self, pattern: Pattern) -> RequestId {
        self.post(pattern, u64::MAX, true)
    }

    /// As [`post_receive`](Self::post_receive), for a receive that takes at most `limit` bytes of its message, or that
    /// is not polled before its owner needs the message.
    #[inline]
    pub(crate) fn post_receive_as(
        &mut self,
        pattern: Pattern,
        limit: u64,
        is_attended: bool,
    ) -> RequestId {
        self.post(pattern, limit, is_attended)
    }

    fn post(&mut self, pattern: Pattern, limit: u64, is_attended: bool) -> RequestId {
        let receive = |state| {
            let receive = ReceiveRequest::new(pattern, state);
            ReceiveRequest { limit, is_attended, ..receive }
        };
        if let Some(key) = self.find_unexpected(&pattern) {
            return RequestId(self.bind(receive(ReceiveState::Matched { message: key }), key));
        }
        if self.not_to_wait(&pattern).is_some() {
            if let Some(key) = self.look_again(&pattern) {
                return RequestId(self.bind(receive(ReceiveState::Matched { message: key }), key));
            }
            if let Some(error) = self.not_to_wait(&pattern) {
                let failed = receive(ReceiveState::Failed(error));
                return RequestId(self.requests.insert(RequestEntry::Receive(failed)));
            }
        }
        let node = self.posted.next_node();
        let posted = || RequestEntry::Receive(receive(ReceiveState::Posted { node }));
        let request = self.requests.insert_with(posted);
        self.posted.post(pattern, request);
        pattern.source.into_iter().for_each(|rank| self.need(rank));
        RequestId(request)
    }

    /// Continues a receive: the data of its message that has arrived goes to `sink`, at its offset in the message.
    /// Pass the same sink to all polls of one request. Data of a message in several frames that arrives while its
    /// receive is not polled waits on the heap.
    ///
    /// # Errors
    /// [`RequestError`]; the request has then ended.
    #[inline]
    pub fn poll_receive<S: Sink + ?Sized>(
        &mut self,
        id: RequestId,
        sink: &mut S,
    ) -> Poll<Result<Status, RequestError>> {
        for _ in 0..BUDGET {
            let Some(RequestEntry::Receive(receive)) = self.requests.get_mut(id.0) else {
                return Poll::Ready(Err(RequestError::Unknown));
            };

            // From now on, grants follow what the owner takes, not what arrives.
            receive.is_attended = true;
            let source = receive.pattern.source;

            match receive.state {
                ReceiveState::Posted { .. } => {}
                ReceiveState::Failed(error) => {
                    let pattern = receive.pattern;
                    self.requests.remove(id.0);
                    self.tell(&pattern, error);
                    return Poll::Ready(Err(error));
                }
                ReceiveState::Matched { message } => {
                    // The bytes on the heap come before those that are still to arrive.
                    self.drain(message, sink);
                    if let Some(status) = self.complete_receive(message) {
                        return Poll::Ready(Ok(status));
                    }

                    self.fetch(message, sink);
                    if let Some(status) = self.complete_receive(message) {
                        return Poll::Ready(Ok(status));
                    }
                }
            }

            let mut direct = DirectReceive::new(ReceiveInterest::Request(id.0), sink);
            direct.source = source;
            if !self.step(&mut direct) && !self.flush() {
                return Poll::Pending;
            }

            if let Some(status) = direct.result {
                return Poll::Ready(Ok(status));
            }
        }
        // There is more to do: the next poll finds it.
        self.announce(id.0);
        Poll::Pending
    }

    /// Takes a receive back, unless a message was matched to it.
    pub fn cancel_receive(&mut self, id: RequestId) -> CancelState {
        let Some(RequestEntry::Receive(receive)) = self.requests.get(id.0) else {
            return CancelState::TooLate;
        };
        let ReceiveState::Posted { node } = receive.state else { return CancelState::TooLate };
        self.posted.remove(node);
        self.requests.remove(id.0);
        CancelState::Cancelled
    }

    /// Forgets a receive whose owner was dropped. A message matched to it is lost: the rest of it is
    /// discarded.
    pub fn drop_receive(&mut self, id: RequestId) {
        if self.cancel_receive(id) == CancelState::Cancelled {
            return;
        }
        if let Some(RequestEntry::Receive(receive)) = self.requests.remove(id.0)
            && let ReceiveState::Matched { message } = receive.state
        {
            self.discard(message);
        }
    }

    /// Returns the earliest message that fits and that no receive has matched, and leaves it in place: the
    /// next receive with that pattern gets it. Its `length` is that of the whole message.
    pub fn probe(&mut self, pattern: Pattern) -> Option<Status> {
        self.poll_unexpected(&pattern).and_then(|key| Some(self.messages.get(key)?.status()))
    }

    /// As [`probe`](Self::probe), but takes the message off the list: only the returned receive can get it.
    pub fn matched_probe(&mut self, pattern: Pattern) -> Option<(RequestId, Status)> {
        let key = self.poll_unexpected(&pattern)?;
        let status = self.messages.get(key)?.status();
        let receive = ReceiveRequest::new(pattern, ReceiveState::Matched { message: key });
        Some((RequestId(self.bind(receive, key)), status))
    }

    /// Takes more of the matched messages whose owners have not polled them for [`UNATTENDED_AFTER`]: a sender may wait
    /// for that. Returns whether there was any.
    pub(super) fn serve_unattended(&mut self, now: Instant) -> bool {
        if self.unattended.is_empty() {
            return false;
        }

        let (mut later, mut due) = (Vec::new(), Vec::new());
        for mut one in std::mem::take(&mut self.unattended) {
            let Some(message) = self.messages.get(one.message) else { continue };

            // A sender waits if its message is still in its memory, or if all that was granted has arrived.
            let is_short = message.arrived == message.granted && message.granted < message.total;
            if message.request.is_none() || !(message.remote.is_some() || is_short) {
                continue;
            }

            let taken = self.peers.get(message.label.source as usize).map_or(0, |peer| peer.taken);
            let found = *one.found.get_or_insert(now);
            let since = *one.since.get_or_insert(now);

            // Other messages of this rank were taken meanwhile: perhaps the owner polls many receives in a row.
            let is_passed_over = std::mem::replace(&mut one.taken, taken) != taken;
            if is_passed_over && found.saturating_add(PASSED_OVER_MAX) > now {
                one.since = Some(now);
            } else if is_passed_over && !due.is_empty() {
                // One at a time, as long as the owner takes the others itself.
                (one.since, one.found) = (Some(now), Some(now));
            } else if is_passed_over || since.saturating_add(UNATTENDED_AFTER) <= now {
                due.push(one.message);
                continue;
            }
            later.push(one);
        }

        self.unattended = later;
        let has_worked = !due.is_empty();
        for key in due {
            self.take_unattended(key);
        }
        has_worked
    }

    fn take_unattended(&mut self, key: u64) {
        let Some(request) = self.messages.get(key).and_then(|message| message.request) else {
            return;
        };
        let mut limit = u64::MAX;
        if let Some(RequestEntry::Receive(receive)) = self.requests.get_mut(request) {
            receive.is_attended = false;
            limit = receive.limit;
        }
        if self.messages.get(key).is_some_and(|message| message.remote.is_none()) {
            self.grant(key);
            return;
        }
        let mut kept = Kept { bytes: Vec::new(), limit: to_usize(limit) };
        self.fetch(key, &mut kept);
        let Some(message) = self.messages.get_mut(key) else { return };
        if message.has_all_arrived() {
            let beyond = to_usize(message.total) - kept.bytes.len();
            message.consumed = 0;
            message.parts.push(MessagePart { bytes: kept.bytes, start: 0, beyond });
            self.announce(request);
        }
    }

    fn poll_unexpected(&mut self, pattern: &Pattern) -> Option<u64> {
        for _ in 0..BUDGET {
            if let Some(key) = self.find_unexpected(pattern) {
                return Some(key);
            }
            if !self.step_aside() {
                break;
            }
        }
        self.flush();
        let found = self.find_unexpected(pattern);
        if let (None, Some(rank)) = (found, pattern.source) {
            self.need(rank);
        }
        found
    }
}
