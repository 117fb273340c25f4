//! The operations that the asynchronous layer needs beside the requests themselves.

use super::{
    EngineEvent, MessageEngine, Pattern, RequestId, Sink, Status,
    incoming::{DirectReceive, ReceiveInterest},
    matching::Label,
    receive::BUDGET,
    request::{ReceiveRequest, ReceiveState, RequestEntry},
};
use crate::vi::Provider;

/// The state of a receive that has been polled for its message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begun {
    /// The receive is done.
    Received(Status),
    /// The message has begun to arrive; the request gets the rest.
    Open(RequestId),
}

impl<P: Provider> MessageEngine<P> {
    /// Returns whether [`take_ready`](Self::take_ready) would return any request.
    #[inline]
    pub(crate) const fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// As [`try_recv`](Self::try_recv), but a message in several frames of which the first has arrived
    /// goes to `sink` from its beginning on; poll its request with the same sink for the rest. Polls until `polls` polls have found nothing.
    #[inline]
    pub(crate) fn receive_begun<S: Sink + ?Sized>(
        &mut self,
        pattern: &Pattern,
        sink: &mut S,
        mut polls: u32,
    ) -> Option<Begun> {
        let mut direct = DirectReceive::new(ReceiveInterest::Begin(pattern), sink);
        let mut has_arrived = true;
        for _ in 0..BUDGET {
            if has_arrived && let Some(begun) = self.receive_kept(pattern, direct.sink) {
                return Some(begun);
            }
            has_arrived = self.step(&mut direct);
            if let Some(status) = direct.result {
                return Some(Begun::Received(status));
            }
            if let Some(request) = direct.begun {
                return Some(Begun::Open(request));
            }
            if !has_arrived {
                self.flush();
                polls = polls.saturating_sub(1);
                if polls == 0 {
                    return None;
                }
            }
        }
        None
    }

    /// Receives a message that has arrived or begun to, if one fits.
    #[inline(always)]
    pub(super) fn receive_kept<S: Sink + ?Sized>(
        &mut self,
        pattern: &Pattern,
        sink: &mut S,
    ) -> Option<Begun> {
        if self.unexpected.len() == 0 {
            return None;
        }
        Some(match self.receive_unexpected(pattern, sink)? {
            Some(status) => Begun::Received(status),
            // The message is not whole yet. It is the first that fits, so the new receive takes it.
            None => Begun::Open(self.post_receive(*pattern)),
        })
    }

    /// Makes a request for a message in several frames that begins to arrive, if the caller wants it.
    pub(super) fn begin_receive<S: Sink + ?Sized>(
        &mut self,
        label: Label,
        direct: &mut DirectReceive<'_, S>,
    ) -> Option<u64> {
        let ReceiveInterest::Begin(pattern) = direct.interest else { return None };
        if direct.result.is_some() || !pattern.matches(label) {
            return None;
        }
        let state = ReceiveState::Posted { node: 0 };
        let request =
            self.requests.insert(RequestEntry::Receive(ReceiveRequest::new(*pattern, state)));
        direct.interest = ReceiveInterest::Request(request);
        direct.begun = Some(RequestId(request));
        Some(request)
    }

    /// Returns whether a message that fits has arrived or begun to.
    pub(crate) fn has_unexpected(&mut self, pattern: Pattern) -> bool {
        self.unexpected.len() > 0 && self.unexpected.find(&pattern).is_some()
    }

    /// Returns a number that changes with each completion and each data frame.
    #[inline]
    pub(crate) const fn worked(&self) -> u64 {
        self.worked
    }

    /// Returns whether [`next_event`](Self::next_event) would return one.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Puts back an event that was taken for a waiter that has gone.
    pub(crate) fn give_back_event(&mut self, event: EngineEvent) {
        self.events.push_front(event);
        self.events_reported += 1;
    }
}
