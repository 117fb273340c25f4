//! Messages of registered memory: the sender gives its key, and the receiver fetches them.

use super::{Engine, envelope::Control, narrow, payload::Sink};
use crate::vi::{Memory, Provider};

/// The most that is copied before the sink is asked again, in bytes.
const PIECE_BYTES: u64 = 1 << 20;

impl<P: Provider> Engine<P> {
    /// Fetches a message that is still in its sender's memory, now that its receiver is there: in one copy,
    /// if that memory is mapped here; else the sender is asked to send it.
    pub(super) fn fetch<S: Sink + ?Sized>(&mut self, key: u64, sink: &mut S) {
        let Some(message) = self.messages.get(key) else { return };
        let Some((remote, offset)) = message.remote else { return };
        let rank = message.label.source;
        let vi = self.peers.get(rank as usize).and_then(|peer| peer.vi());
        let total = message.total;
        if let Some(memory) = vi.and_then(|vi| self.nic.window(vi, remote))
            && let Some(end) = offset.checked_add(total)
            && end <= super::wide(memory.len())
        {
            let is_truncated = !copy(&memory, offset, total, sink);
            self.counters.remote_reads += 1;
            self.finish_remote(key);
            if let Some(message) = self.messages.get_mut(key) {
                message.is_truncated = is_truncated;
                (message.arrived, message.consumed, message.granted) = (total, total, total);
            }
            return;
        }
        let Some(message) = self.messages.get_mut(key) else { return };
        message.remote = None;
        message.granted = total.min(u64::from(self.config.window_bytes));
        let grant = Control::Grant { request: message.sender, limit: message.granted };
        self.tell(rank, grant);
    }
}

/// Copies a message to a sink. Returns whether it took all.
fn copy<S: Sink + ?Sized>(memory: &Memory, from: u64, total: u64, sink: &mut S) -> bool {
    let mut done = 0;
    while done < total {
        let length = narrow((total - done).min(PIECE_BYTES));
        let space = sink.space(done, length);
        let length = space.len().min(length);
        if length == 0 || memory.read(from + done, &mut space[..length]).is_err() {
            return false;
        }
        done += super::wide(length);
    }
    true
}
