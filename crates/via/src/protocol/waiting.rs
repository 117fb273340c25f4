//! What the asynchronous layer asks beside the requests themselves.

use super::{
    Engine, EngineEvent, Pattern, RequestId, Sink, Status,
    incoming::{Direct, Want},
    matching::Label,
    receive::BUDGET,
    request::{ReceiveRequest, ReceiveState, Request},
};
use crate::vi::Provider;

/// How far a receive that looked for its message is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begun {
    /// It is done.
    Received(Status),
    /// Its message has begun to arrive, and the request gets the rest.
    Open(RequestId),
}

impl<P: Provider> Engine<P> {
    /// Returns whether [`take_ready`](Self::take_ready) has something to say.
    #[inline]
    pub(crate) const fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// As [`receive_now`](Self::receive_now); a message in several frames, of which the first has come, goes to
    /// `sink` from its beginning on, and its request with the same sink gets the rest.
    #[inline]
    pub(crate) fn receive_begun<S: Sink + ?Sized>(
        &mut self,
        pattern: Pattern,
        sink: &mut S,
    ) -> Option<Begun> {
        if self.unexpected.len() > 0
            && let Some(received) = self.receive_unexpected(&pattern, sink)
        {
            return Some(match received {
                Some(status) => Begun::Received(status),
                None => Begun::Open(self.post_receive(pattern)),
            });
        }
        let mut direct = Direct::new(Want::Begin(pattern), sink);
        for _ in 0..BUDGET {
            if !self.step(&mut direct) {
                self.flush();
                return None;
            }
            if let Some(status) = direct.result {
                return Some(Begun::Received(status));
            }
            if let Some(request) = direct.begun {
                return Some(Begun::Open(request));
            }
        }
        None
    }

    /// Makes a request for a message in several frames that begins, if the caller wants it.
    pub(super) fn begin_receive<S: Sink + ?Sized>(
        &mut self,
        label: Label,
        direct: &mut Direct<'_, S>,
    ) -> Option<u64> {
        let Want::Begin(pattern) = direct.want else { return None };
        if direct.result.is_some() || !pattern.matches(label) {
            return None;
        }
        let state = ReceiveState::Posted { node: 0 };
        let request = self.requests.insert(Request::Receive(ReceiveRequest { pattern, state }));
        direct.want = Want::Request(request);
        direct.begun = Some(RequestId(request));
        Some(request)
    }

    /// Returns whether a message that fits has arrived, or begun to.
    pub(crate) fn has_unexpected(&self, pattern: Pattern) -> bool {
        self.unexpected.len() > 0 && self.unexpected.find(&pattern).is_some()
    }

    /// Returns a number that changes with each completion taken and each frame of data sent.
    #[inline]
    pub(crate) const fn worked(&self) -> u64 {
        self.worked
    }

    /// Returns whether [`event`](Self::event) has something to say.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes an event back that nobody got.
    pub(crate) fn give_back_event(&mut self, event: EngineEvent) {
        self.events.push_front(event);
        self.events_told += 1;
    }
}
