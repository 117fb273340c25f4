//! Messages of registered memory: the sender gives its key, and the receiver fetches them.

use super::{Engine, envelope::Control};
use crate::vi::Provider;

impl<P: Provider> Engine<P> {
    /// Fetches a message that is still in its sender's memory, now that its receiver is there.
    pub(super) fn want_remote(&mut self, key: u64) {
        let Some(message) = self.messages.get_mut(key) else { return };
        if message.remote.take().is_none() {
            return;
        }
        message.granted = message.total.min(u64::from(self.config.window_bytes));
        let grant = Control::Grant { request: message.sender, limit: message.granted };
        let rank = message.label.source;
        self.tell(rank, grant);
    }
}
