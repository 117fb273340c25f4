//! What the asynchronous layer asks beside the requests themselves.

use super::{Engine, EngineEvent, Pattern, Sink, Status};
use crate::vi::Provider;

impl<P: Provider> Engine<P> {
    /// Returns whether [`take_ready`](Self::take_ready) has something to say.
    #[inline]
    pub(crate) const fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// As [`receive_now`](Self::receive_now); `Some(None)` if the message that fits has begun to arrive and
    /// wants a receive of its own.
    #[inline]
    #[expect(clippy::option_option, reason = "nothing there, begun, or received")]
    pub(crate) fn receive_begun<S: Sink + ?Sized>(
        &mut self,
        pattern: Pattern,
        sink: &mut S,
    ) -> Option<Option<Status>> {
        match self.receive_now(pattern, sink) {
            None if self.unexpected.len() == 0 || self.unexpected.find(&pattern).is_none() => None,
            status => Some(status),
        }
    }

    /// Returns a number that changes with each completion taken and each frame of data sent.
    #[inline]
    pub(crate) const fn worked(&self) -> u64 {
        self.worked
    }

    /// Forgets what became ready: nobody waits.
    pub(crate) fn clear_ready(&mut self) {
        self.ready.clear();
    }

    /// Returns whether [`event`](Self::event) has something to say.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes an event back that nobody got.
    pub(crate) fn give_back_event(&mut self, event: EngineEvent) {
        self.events.push_front(event);
    }
}
