//! What the asynchronous layer asks beside the requests themselves.

use super::{Engine, EngineEvent};
use crate::vi::Provider;

impl<P: Provider> Engine<P> {
    /// Returns whether [`take_ready`](Self::take_ready) has something to say.
    #[inline]
    pub(crate) const fn has_ready(&self) -> bool {
        !self.ready.is_empty()
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

    /// Takes an event back that nobody got.
    pub(crate) fn give_back_event(&mut self, event: EngineEvent) {
        self.events.push_front(event);
    }
}
