//! Messages that no receive has matched: what is kept of them, who keeps it, how many there may be, and which of those that are only
//! announced are sent before a receive matches them.
//!
//! Both sides count a peer's announcements in the order of their frames, so that one control entry admits many: the receiver asks for the
//! next ones as soon as half of what it keeps has been received, and a flood that it takes in order arrives without a round trip for each
//! message.

use super::{
    MessageEngine, SendError,
    envelope::{Control, FLAG_READY, FLAG_SYNCHRONOUS},
    matching::{Label, NodeId, Pattern},
    payload::Sink,
    peer::Peer,
    request::{IncomingMessage, RequestEntry, SendBody, Status, UnmatchedKind},
    to_u64,
    unexpected::{Unexpected, UnexpectedEntry, WholeMessage},
};
use crate::{slots::SlotKey, vi::Provider};

impl<P: Provider> MessageEngine<P> {
    // ------------------------------------------------------------------ what is kept

    /// Returns the key of the first message that fits among those that no receive has matched. A whole one gets one now.
    pub(super) fn find_unexpected(&mut self, pattern: &Pattern) -> Option<u64> {
        let (node, entry) = self.unexpected.find(pattern)?;
        let label = entry.label;
        let (flags, sender, total) = match &entry.message {
            Unexpected::Begun { key, .. } => return Some(*key),
            Unexpected::Whole(whole) => (whole.flags(), whole.sender(), to_u64(whole.len())),
        };
        let mut message = IncomingMessage::new(label, flags, sender.into(), total);
        message.node = Some(node);
        message.counts_as = UnmatchedKind::Kept;
        message.parked = total;
        let key = self.messages.insert(message);
        let whole = self.unexpected.begin(node, key)?;
        self.messages.get_mut(key)?.park(whole.into_part());
        Some(key)
    }

    /// Takes a message that has arrived. `Some(None)`: the first that fits has not wholly arrived.
    #[expect(clippy::option_option, reason = "the first that fits may be there and not be whole")]
    pub(super) fn receive_unexpected<S: Sink + ?Sized>(
        &mut self,
        pattern: &Pattern,
        sink: &mut S,
    ) -> Option<Option<Status>> {
        let (node, entry) = self.unexpected.find(pattern)?;
        match entry.message {
            Unexpected::Whole(_) => self.receive_whole(node, sink).map(Some),
            Unexpected::Begun { key, .. } => self.receive_begun_whole(key, sink),
        }
    }

    fn receive_whole<S: Sink + ?Sized>(&mut self, node: NodeId, sink: &mut S) -> Option<Status> {
        let UnexpectedEntry { label, message: Unexpected::Whole(whole) } =
            self.unexpected.remove(node)?
        else {
            return None;
        };
        let (flags, sender, length) = (whole.flags(), whole.sender(), whole.len());
        self.unpark_of(label.source, UnmatchedKind::Kept, to_u64(length));
        let taken = whole.copy_to(sink);
        if length > 0 {
            self.has_taken(label.source);
        }
        if flags & FLAG_SYNCHRONOUS != 0 {
            self.queue_control(label.source, Control::Matched { request: sender.into() });
        }
        Some(Status::new(label, to_u64(length), taken < length))
    }

    /// Takes a message that has a key, if all of it has arrived.
    #[cold]
    #[expect(clippy::option_option, reason = "as its caller")]
    fn receive_begun_whole<S: Sink + ?Sized>(
        &mut self,
        key: u64,
        sink: &mut S,
    ) -> Option<Option<Status>> {
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

    /// Puts a whole message on the unexpected list.
    pub(super) fn keep_whole(
        &mut self,
        label: Label,
        flags: u8,
        whole: WholeMessage,
    ) -> Result<(), &'static str> {
        let length = to_u64(whole.len());
        self.unexpected.insert(label, Unexpected::Whole(whole));
        self.count_unexpected(flags);
        self.park(label.source, length)
    }

    pub(super) fn count_unexpected(&mut self, flags: u8) {
        self.counters.unexpected += 1;
        self.counters.ready_unexpected += u64::from(flags & FLAG_READY != 0);
    }

    /// Counts a message of `bytes` that is kept for a peer, and tells the peer to pause when there is too much.
    pub(super) fn park(&mut self, rank: u32, bytes: u64) -> Result<(), &'static str> {
        let bytes_max = self.config.unexpected_bytes_max;
        let messages_max = u64::from(self.config.unexpected_messages_max);
        let heap = |bytes: u64, messages: u64| {
            bytes.saturating_add(messages * to_u64(size_of::<IncomingMessage>()))
        };
        // What the peer may have sent by the time it is told: each unit of the area may begin a message that
        // a window follows, but an honest peer stops messages without a grant.
        let overshoot = 4 * u64::from(self.config.area_bytes)
            + (u64::from(self.config.area_bytes) / 64)
                * (to_u64(size_of::<IncomingMessage>()) + u64::from(self.config.window_bytes));
        let Some(peer) = self.peers.get_mut(rank as usize) else { return Ok(()) };
        peer.parked_bytes += bytes;
        peer.parked_messages += 1;
        let most = heap(bytes_max, messages_max).saturating_add(overshoot);
        if heap(peer.parked_bytes, peer.parked_messages) > most {
            return Err("more messages than it was told to send");
        }
        let is_within = peer.parked_bytes <= bytes_max && peer.parked_messages <= messages_max;
        if is_within || std::mem::replace(&mut peer.has_paused, true) {
            return Ok(());
        }
        self.counters.pauses += 1;
        self.queue_control(rank, Control::Pause);
        // Messages that a receive takes continue nevertheless.
        let open: Vec<(u64, u64)> = self
            .messages
            .keys()
            .filter_map(|key| self.messages.get(key))
            .filter(|one| one.label.source == rank && one.request.is_some())
            .filter(|one| !one.has_all_arrived() && one.remote.is_none())
            .map(|one| (one.sender, one.granted))
            .collect();
        for (request, limit) in open {
            self.queue_control(rank, Control::Grant { request, limit });
        }
        Ok(())
    }

    /// Gives back the heap that a message counted for.
    pub(super) fn unpark(&mut self, key: u64) {
        let Some(message) = self.messages.get_mut(key) else { return };
        let (rank, parked) = (message.label.source, std::mem::take(&mut message.parked));
        let counted = std::mem::take(&mut message.counts_as);
        self.unpark_of(rank, counted, parked);
    }

    /// Gives back what a peer's message of these bytes counted for.
    #[inline]
    pub(super) fn unpark_of(&mut self, rank: u32, counted: UnmatchedKind, bytes: u64) {
        let bytes_max = self.config.unexpected_bytes_max;
        let messages_max = u64::from(self.config.unexpected_messages_max);
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        match counted {
            UnmatchedKind::Announced => peer.announced_in -= 1,
            UnmatchedKind::Kept => {
                peer.parked_bytes -= bytes;
                peer.parked_messages -= 1;
            }
            UnmatchedKind::Uncounted => return,
        }
        let is_half = |peer: &Peer| {
            peer.parked_bytes <= bytes_max / 2 && peer.parked_messages <= messages_max / 2
        };
        // Only the end of a kept message can make it half. So no announced one is admitted while its own answer is still to be told.
        if !(peer.has_paused && is_half(peer)) {
            return;
        }
        self.admit_announced(rank);
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        if is_half(peer) {
            peer.has_paused = false;
            self.queue_control(rank, Control::Resume);
        }
    }

    /// Gives a message back to its sender, if no receive has matched it. Returns whether it was here.
    pub(super) fn take_back(&mut self, rank: u32, request: u64) -> bool {
        let Some((node, entry)) = self.unexpected.sent_by(rank, request.index()) else {
            return false;
        };
        let key = match &entry.message {
            Unexpected::Begun { key, .. } => *key,
            Unexpected::Whole(whole) => {
                let length = to_u64(whole.len());
                self.unexpected.remove(node);
                self.unpark_of(rank, UnmatchedKind::Kept, length);
                return true;
            }
        };
        // A message in one frame carries only the index, which no other message has while it waits for its match.
        let short = u64::from(request.index());
        let Some(message) =
            self.messages.get_mut(key).filter(|one| one.sender == request || one.sender == short)
        else {
            return false;
        };
        message.node = None;
        let is_remote = message.remote.is_some();
        message.is_cancelled = !is_remote;
        self.unexpected.remove(node);
        self.unpark(key);
        if is_remote {
            // No data is under way; the sender closes the stream.
            self.messages.remove(key);
        } else {
            self.discard(key);
        }
        true
    }

    // ------------------------------------------------------------------ the sender

    /// Counts a message that was announced. A short one in standard mode is done for its owner, since a copy of it is
    /// kept here. `is_asked_for`: its bytes are sent when the peer asks for them.
    pub(super) fn announced(&mut self, key: u64, rank: u32, is_short: bool, is_asked_for: bool) {
        let free = self.config.held_bytes_max.saturating_sub(self.held_bytes);
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        peer.announced_out += 1;
        peer.announcements_out.add(is_asked_for.then_some(key));
        let requests = &self.requests;
        peer.announcements_out.prune(
            peer.announced_out,
            |key| matches!(requests.get(key), Some(RequestEntry::Send(send)) if send.is_announced),
        );
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else { return };
        if is_short
            && send.flags & FLAG_SYNCHRONOUS == 0
            && !send.is_detached
            && matches!(send.body, SendBody::Owned(_))
            && send.total <= free
        {
            send.is_settled = true;
            peer.settled += 1;
            self.held_bytes += send.total;
            self.announce(key);
        }
    }

    /// Notes that the peer has matched or admitted an announced message, or that it was taken back.
    pub(super) fn answered(&mut self, key: u64) {
        if let Some(RequestEntry::Send(send)) = self.requests.get_mut(key)
            && std::mem::take(&mut send.is_announced)
            && let Some(peer) = self.peers.get_mut(send.peer as usize)
        {
            peer.announced_out -= 1;
        }
    }

    pub(super) fn check_announced(&self, rank: u32) -> Result<(), SendError> {
        match self.peers.get(rank as usize) {
            Some(peer) if peer.is_paused => {
                let max = peer.announced_out_max;
                let waiting = to_u64(peer.outbox.len()) + u64::from(peer.announced_out);
                if waiting < u64::from(max) {
                    Ok(())
                } else {
                    Err(SendError::TooManyUnmatched { rank, max })
                }
            }
            _ => Ok(()),
        }
    }

    /// Sends the announced messages up to this one, which no receive has matched, as far as the peer takes them without a grant.
    pub(super) fn sends_admitted(&mut self, rank: u32, through: u64) -> Result<(), &'static str> {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return Ok(()) };
        if through > peer.announcements_out.count {
            return Err("more messages admitted than were announced");
        }
        let window = peer.window_out;
        while let Some(peer) = self.peers.get_mut(rank as usize)
            && let Some(key) = peer.announcements_out.next_through(through)
        {
            self.send_invited(rank, key, window);
        }
        self.flush_peer(rank);
        Ok(())
    }

    /// Sends an announced message that no receive has matched, up to `limit` bytes.
    pub(super) fn send_invited(&mut self, rank: u32, key: u64, limit: u64) {
        // It may have been matched before, or have ended.
        let Some(send) = self.send_of(rank, key).filter(|send| send.is_announced) else { return };
        send.is_invited = true;
        send.limit = send.limit.max(limit.min(send.total));
        self.answered(key);
        self.start_pump(key);
    }

    // ------------------------------------------------------------------ the receiver

    /// Counts a message that a peer has announced, and that no receive has matched if it has a key.
    pub(super) fn note_announced(&mut self, rank: u32, key: Option<u64>) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        peer.announcements_in.add(key);
        let messages = &self.messages;
        let waits =
            |key| messages.get(key).is_some_and(|one| one.counts_as == UnmatchedKind::Announced);
        peer.announcements_in.prune(peer.announced_in, waits);

        // It was announced before the peer heard that it may go on.
        if key.is_some() && !peer.has_paused {
            self.admit_announced(rank);
        }
    }

    /// Asks for the next announced messages of a peer that fit into what is kept before receives match them.
    pub(super) fn admit_announced(&mut self, rank: u32) {
        let window = u64::from(self.config.window_bytes);
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        let mut through = None;
        while let Some((number, key)) = peer.announcements_in.waiting.front().copied() {
            let message = self.messages.get_mut(key);
            if let Some(message) = message.filter(|one| one.counts_as == UnmatchedKind::Announced) {
                let limit = message.total.min(window);
                if peer.parked_bytes + limit > self.config.unexpected_bytes_max
                    || peer.parked_messages >= u64::from(self.config.unexpected_messages_max)
                {
                    break;
                }
                (message.granted, message.parked) = (limit, limit);
                message.counts_as = UnmatchedKind::Kept;
                peer.announced_in -= 1;
                peer.parked_bytes += limit;
                peer.parked_messages += 1;
                through = Some(number);
            }
            peer.announcements_in.waiting.pop_front();
        }
        let Some(through) = through else { return };
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        if let Some(Control::Admit { through: waiting }) = peer.controls.back_mut() {
            *waiting = through;
        } else {
            self.queue_control(rank, Control::Admit { through });
        }
    }
}

#[cfg(test)]
mod tests;
