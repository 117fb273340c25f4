//! Messages in registered memory: the sender passes its key, and the receiver fetches them.

use super::{
    EngineError, MessageEngine,
    envelope::{Control, ENVELOPE_BYTES},
    payload::Sink,
    peer::{Peer, PeerLink},
    request::SendBody,
    to_u64, to_usize,
};
use crate::vi::{
    Memory, MemoryAttributes, MemoryHandle, ProtectionTag, Provider, RegistrationCache, ViError,
};

/// The most bytes that are copied before the sink is asked again.
const PIECE_BYTES: u64 = 1 << 20;

impl<P: Provider> MessageEngine<P> {
    /// Returns memory of at least `length` bytes from which peers take messages in one copy, where they can:
    /// see [`Payload::Memory`](super::Payload). It returns to the engine's pool when its last clone is
    /// dropped and what was sent from it has been taken. Its content is zero or left from earlier messages,
    /// to whatever rank. A rank to which a long message was sent from it may map it, and can then read what is written there
    /// later: a [loan](Self::loan) shares memory with its rank alone.
    ///
    /// # Cost
    /// With shared memory a new buffer costs a file, a mapping at each end and a page fault for each page; a
    /// pooled one costs none of that.
    ///
    /// # Errors
    /// The NIC's.
    pub fn buffer(&mut self, length: usize) -> Result<Memory, ViError> {
        let attributes = readable(self.pool_tag);
        self.registrations.buffer(&mut self.nic, length, attributes)
    }

    /// As [`buffer`](Self::buffer), for messages to one rank: no other one can ever map it.
    pub(super) fn buffer_for(&mut self, rank: u32, length: usize) -> Result<Memory, EngineError> {
        let attributes = readable(self.tag(rank)?);
        Ok(self.registrations.buffer(&mut self.nic, length, attributes)?)
    }

    /// Returns the registrations of memory that was [sent](super::Payload::Memory), and the pool of
    /// [buffers](Self::buffer).
    #[must_use]
    pub const fn registrations(&self) -> &RegistrationCache {
        &self.registrations
    }

    /// Deregisters memory, wherever it was registered. Messages sent from it that were not taken yet are sent
    /// as bytes instead.
    ///
    /// # Errors
    /// The NIC's.
    pub fn deregister(&mut self, handle: MemoryHandle) -> Result<(), ViError> {
        self.registrations.deregister(&mut self.nic, handle)
    }

    /// Deregisters everything that is kept registered but not in use. Returns the number of registrations.
    pub fn clear_registrations(&mut self) -> usize {
        self.registrations.clear(&mut self.nic)
    }

    /// Returns whether a message of `length` bytes to a rank takes more than a frame, and the rank may read
    /// this rank's memory.
    pub(super) fn is_read_by(&self, rank: u32, length: u64) -> bool {
        matches!(self.peers.get(rank as usize),
            Some(Peer { link: PeerLink::Reliable(_), frame_bytes_max, .. })
                if length + to_u64(ENVELOPE_BYTES) > u64::from(*frame_bytes_max))
    }

    /// Registers the memory that a message to a rank is sent from, if that is useful.
    pub(super) fn registered(
        &mut self,
        rank: u32,
        memory: Memory,
        offset: u64,
        length: u64,
    ) -> SendBody {
        // If that fails, the bytes are sent.
        let tag = self.is_read_by(rank, length).then(|| self.tag(rank).ok()).flatten();
        let registered = tag.and_then(|tag| {
            self.registrations.register(&mut self.nic, &memory, readable(tag)).ok()
        });
        let key = registered.as_ref().map(|registered| registered.region().key);
        SendBody::Memory { memory, offset, key, _registered: registered }
    }

    /// Fetches a message that is still in its sender's memory, now that its receiver is there: in one copy,
    /// if that memory is mapped here; otherwise the sender is asked to send it.
    pub(super) fn fetch<S: Sink + ?Sized>(&mut self, key: u64, sink: &mut S) {
        let Some(message) = self.messages.get(key) else { return };
        let Some((remote, offset)) = message.remote else { return };

        let rank = message.label.source;
        let vi = self.peers.get(rank as usize).and_then(|peer| peer.vi());
        let total = message.total;
        if let Some(memory) = vi.and_then(|vi| self.nic.window(vi, remote))
            && let Some(end) = offset.checked_add(total)
            && end <= to_u64(memory.len())
        {
            // The copy is made before the sender is told, which may then use its memory for something else.
            let is_truncated = !copy(&memory, offset, total, sink);
            self.counters.remote_reads += 1;
            self.has_taken(rank);
            self.finish_remote(key);

            if let Some(message) = self.messages.get_mut(key) {
                message.is_truncated = is_truncated;
                (message.arrived, message.consumed, message.granted) = (total, total, total);
            }
            return;
        }

        // The sender now sends the bytes in frames, for which it needs a first grant.
        let Some(message) = self.messages.get_mut(key) else { return };
        message.remote = None;
        message.granted = total.min(u64::from(self.config.window_bytes));
        let grant = Control::Grant { request: message.sender, limit: message.granted };
        self.queue_control(rank, grant);
    }
}

fn readable(tag: ProtectionTag) -> MemoryAttributes {
    MemoryAttributes { allows_read: true, ..MemoryAttributes::private(tag) }
}

/// Copies a message to a sink. Returns whether it took all.
fn copy<S: Sink + ?Sized>(memory: &Memory, from: u64, total: u64, sink: &mut S) -> bool {
    let mut done = 0;
    while done < total {
        let length = to_usize((total - done).min(PIECE_BYTES));
        let space = sink.chunk_mut_at(done, length);
        let length = space.len().min(length);
        if length == 0 || memory.read(from + done, &mut space[..length]).is_err() {
            return false;
        }
        done += to_u64(length);
    }
    true
}
