//! The receiving side: matching, and handing data to the caller that asks for it.

use std::task::Poll;

use super::{
    CancelState, MessageEngine, RequestError, RequestId, Status,
    envelope::{Control, FLAG_SYNCHRONOUS},
    incoming::{DirectReceive, ReceiveInterest},
    matching::Pattern,
    payload::Sink,
    request::{ReceiveRequest, ReceiveState, RequestEntry},
};
use crate::vi::Provider;

/// The most completions that a poll takes.
pub(super) const BUDGET: usize = 64;

impl<P: Provider> MessageEngine<P> {
    /// Receives a message that fits, if one has wholly arrived: straight from the area, if it is the next
    /// that arrives. Receives that were posted before come first.
    #[inline]
    pub fn receive_now<S: Sink + ?Sized>(
        &mut self,
        pattern: Pattern,
        sink: &mut S,
    ) -> Option<Status> {
        if self.unexpected.len() > 0
            && let Some(result) = self.receive_unexpected(&pattern, sink)
        {
            return result;
        }
        let mut direct = DirectReceive::new(ReceiveInterest::Now(pattern), sink);
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

    /// Takes a message that has arrived. `Some(None)`: the first that fits has not wholly arrived.
    #[cold]
    #[expect(clippy::option_option, reason = "the first that fits may be there and not be whole")]
    pub(super) fn receive_unexpected<S: Sink + ?Sized>(
        &mut self,
        pattern: &Pattern,
        sink: &mut S,
    ) -> Option<Option<Status>> {
        let (_, key) = self.unexpected.find(pattern)?;
        if !self.messages.get(key).is_some_and(|message| message.has_all_arrived()) {
            return Some(None);
        }
        if let Some(node) = self.messages.get_mut(key).and_then(|message| message.node.take()) {
            self.unexpected.remove(node);
        }
        self.unpark(key);
        self.drain(key, sink);
        let message = self.messages.remove(key)?;
        if message.flags & FLAG_SYNCHRONOUS != 0 {
            self.queue_control(message.label.source, Control::Matched { request: message.sender });
        }
        Some(Some(message.status()))
    }

    /// Binds a waiting message to a new receive.
    fn bind(&mut self, pattern: Pattern, key: u64) -> u64 {
        let state = ReceiveState::Matched { message: key };
        let request =
            self.requests.insert(RequestEntry::Receive(ReceiveRequest { pattern, state }));
        if let Some(node) = self.messages.get_mut(key).and_then(|message| message.node.take()) {
            self.unexpected.remove(node);
        }
        self.unpark(key);
        self.matched(key, request);
        request
    }

    /// Posts a receive: the earliest message that fits belongs to it, now or when it arrives.
    pub fn post_receive(&mut self, pattern: Pattern) -> RequestId {
        if let Some((_, key)) = self.unexpected.find(&pattern) {
            return RequestId(self.bind(pattern, key));
        }
        if let Some(error) = self.hopeless(&pattern) {
            let state = ReceiveState::Failed(error);
            return RequestId(
                self.requests.insert(RequestEntry::Receive(ReceiveRequest { pattern, state })),
            );
        }
        let state = ReceiveState::Posted { node: 0 };
        let request =
            self.requests.insert(RequestEntry::Receive(ReceiveRequest { pattern, state }));
        let node = self.posted.post(pattern, request);
        if let Some(RequestEntry::Receive(receive)) = self.requests.get_mut(request) {
            receive.state = ReceiveState::Posted { node };
        }
        RequestId(request)
    }

    /// Continues a receive: what has arrived of its message goes to `sink`, at its offset in the message.
    /// Pass the same sink to all polls of one request. A message in several frames arrives only as fast as
    /// its receive is polled.
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
            let Some(RequestEntry::Receive(receive)) = self.requests.get(id.0) else {
                return Poll::Ready(Err(RequestError::Unknown));
            };
            match receive.state {
                ReceiveState::Posted { .. } => {}
                ReceiveState::Failed(error) => {
                    self.requests.remove(id.0);
                    return Poll::Ready(Err(error));
                }
                ReceiveState::Matched { message } => {
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
            if !self.step(&mut direct) && !self.flush() {
                return Poll::Pending;
            }
            if let Some(status) = direct.result {
                return Poll::Ready(Ok(status));
            }
        }
        // There is more to do: the next poll finds it.
        self.ready.push(id);
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
        self.look(&pattern).and_then(|key| Some(self.messages.get(key)?.status()))
    }

    /// As [`probe`](Self::probe), but takes the message off the list: only the returned receive can get it.
    pub fn matched_probe(&mut self, pattern: Pattern) -> Option<(RequestId, Status)> {
        let key = self.look(&pattern)?;
        let status = self.messages.get(key)?.status();
        Some((RequestId(self.bind(pattern, key)), status))
    }

    fn look(&mut self, pattern: &Pattern) -> Option<u64> {
        for _ in 0..BUDGET {
            if let Some((_, key)) = self.unexpected.find(pattern) {
                return Some(key);
            }
            if !self.step_aside() {
                break;
            }
        }
        self.flush();
        self.unexpected.find(pattern).map(|(_, key)| key)
    }
}
