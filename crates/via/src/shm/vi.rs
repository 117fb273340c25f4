//! A VI: its two queues, the fate of their descriptors, and how it ends.

use std::collections::VecDeque;

use super::{
    attempt::ConnectAttempt,
    connection::{self, ShmConnection},
    posted::{PartialReceive, PostedReceive, PostedSend, ReadResponse, UnackedSend},
    table::RegionTable,
    wakeup::NicPage,
};
use crate::{
    slots::Slots,
    vi::{
        Completion, DisconnectReason, NicEvent, Queue, RemoteKey, Status, ViEvent, objects::ViCore,
    },
};

/// State shared by all VIs of a NIC.
#[derive(Debug)]
pub(super) struct NicState {
    pub(super) table: RegionTable,
    pub(super) cqs: Slots<Cq, u32>,
    pub(super) page: NicPage,
    pub(super) events: VecDeque<NicEvent>,
}

/// A completion queue. Its length is bounded by the descriptors that its VIs may hold.
#[derive(Debug, Default)]
pub(super) struct Cq {
    pub(super) completions: VecDeque<Completion>,
    pub(super) vi_count: usize,
}

#[derive(Debug)]
pub(super) struct ShmVi {
    pub(super) core: ViCore,
    pub(super) attempt: Option<ConnectAttempt>,
    pub(super) connection: Option<ShmConnection>,

    /// Send descriptors that are queued or in progress.
    pub(super) sends: VecDeque<PostedSend>,
    /// Send descriptors that wait for the peer's acknowledgement (reliable reception).
    pub(super) unacked: VecDeque<UnackedSend>,

    pub(super) receives: VecDeque<PostedReceive>,
    /// The message that has arrived in part.
    pub(super) arriving: Option<PartialReceive>,
    /// True if the rest of a message, or of a write, is to be dropped.
    pub(super) drops_send: bool,
    pub(super) drops_write: bool,
    /// The bytes of a write in several entries that are in place.
    pub(super) written: u64,
    /// The read that the peer waits for.
    pub(super) answer: Option<ReadResponse>,
    /// The memories into which headed writes are taken, and their lengths.
    pub(super) headed_writes: HeadedTargets,
}

/// At most two memories, and their lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadedTargets {
    first: Option<(RemoteKey, u64)>,
    second: Option<(RemoteKey, u64)>,
}

impl HeadedTargets {
    const NONE: Self = Self { first: None, second: None };

    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none() && self.second.is_none()
    }

    /// Returns the length of a memory, if it is one of these.
    #[inline]
    pub(super) fn length_of(&self, key: RemoteKey) -> Option<u64> {
        let both = [self.first, self.second].into_iter().flatten();
        both.filter(|(one, _)| *one == key).map(|(_, length)| length).next()
    }

    /// Adds a memory, if there is room.
    pub(super) fn add(&mut self, key: RemoteKey, length: u64) {
        if self.length_of(key).is_none() {
            let place = if self.first.is_none() { &mut self.first } else { &mut self.second };
            place.get_or_insert((key, length));
        }
    }

    pub(super) fn remove(&mut self, key: RemoteKey) {
        for place in [&mut self.first, &mut self.second] {
            place.take_if(|(one, _)| *one == key);
        }
    }
}

/// The reason why this side ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the connection must be broken"]
pub(super) enum BreakCause {
    /// The peer broke the rules.
    Fault(&'static str),
    /// The peer's descriptor cannot be carried out here.
    Refuse(Status),
    /// A descriptor of this side failed, which has been reported.
    Failed,
}

impl From<&'static str> for BreakCause {
    fn from(what: &'static str) -> Self {
        Self::Fault(what)
    }
}

impl ShmVi {
    pub(super) const fn new(core: ViCore) -> Self {
        Self {
            core,
            attempt: None,
            connection: None,
            sends: VecDeque::new(),
            unacked: VecDeque::new(),
            receives: VecDeque::new(),
            arriving: None,
            drops_send: false,
            drops_write: false,
            written: 0,
            answer: None,
            headed_writes: HeadedTargets::NONE,
        }
    }

    /// Delivers a completion to its queue.
    #[inline]
    pub(super) fn complete(&mut self, nic_state: &mut NicState, completion: Completion) {
        let cq = self.core.attributes.cq(completion.queue);
        let cq = cq.and_then(|cq| nic_state.cqs.get_mut(cq.0));
        self.core.deliver(cq.map(|cq| &mut cq.completions), completion);
    }

    // ------------------------------------------------------------------ work

    /// Takes what has arrived and continues what waits. Returns whether anything was done.
    #[inline]
    pub(super) fn work(&mut self, nic_state: &mut NicState) -> bool {
        let has_received = self.receive(nic_state);
        if self.is_idle() {
            return has_received;
        }
        self.resume(nic_state) || has_received
    }

    /// As [`work`](Self::work), unless a headed write is next.
    pub(super) fn work_for_others(&mut self, nic_state: &mut NicState) -> bool {
        self.has_headed_write() || self.work(nic_state)
    }

    /// Returns whether nothing waits to be continued.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.sends.is_empty() && self.unacked.is_empty() && self.answer.is_none()
    }

    /// Continues what waits.
    fn resume(&mut self, nic_state: &mut NicState) -> bool {
        let before = self.position();
        let result = self
            .acknowledge(nic_state)
            .and_then(|()| self.answer(nic_state))
            .and_then(|()| self.pump(nic_state));
        if let Err(end) = result {
            self.end(nic_state, end);
            return true;
        }
        before != self.position()
    }

    /// Returns the progress of the sending side: unchanged if nothing was done.
    fn position(&self) -> (usize, usize, u64, u64) {
        let tail = self.connection.as_ref().map_or(0, |connection| connection.producer.tail());
        let copied = self.sends.front().map_or(0, PostedSend::copied);
        (self.unacked.len(), self.sends.len(), tail, copied)
    }

    // ------------------------------------------------------------------ the end

    /// Ends the connection from this side.
    #[cold]
    pub(super) fn end(&mut self, nic_state: &mut NicState, end: BreakCause) {
        let reason = match end {
            BreakCause::Fault(what) => DisconnectReason::PeerFault(what),
            BreakCause::Refuse(_) | BreakCause::Failed => DisconnectReason::DescriptorFailed,
        };
        if let (Some(connection), BreakCause::Refuse(status)) = (&mut self.connection, end) {
            connection.consumer.refuse(connection::refusal_of(status));
        }
        self.break_connection(nic_state, reason);
    }

    /// Breaks the connection and reports it.
    pub(super) fn break_connection(&mut self, nic_state: &mut NicState, reason: DisconnectReason) {
        self.close_connection(nic_state, reason);
        self.core.change(ViEvent::Break);
        nic_state.events.push_back(NicEvent::Broken { vi: self.core.id, reason });
    }

    /// Ends the connection, tells the peer why, and flushes what was posted.
    pub(super) fn close_connection(&mut self, nic_state: &mut NicState, reason: DisconnectReason) {
        self.attempt = None;
        let mut refusal = None;
        if self.connection.is_some() {
            // Complete what the peer has carried out. An impossible count is ignored.
            let _ = self.acknowledge(nic_state);
        }

        if let Some(mut connection) = self.connection.take() {
            // What was returned here is carried out, whatever follows.
            connection.publish_consumed();
            refusal = connection::status_of(connection.producer.refusal());
            connection.producer.write_close_reason(connection::close_reason_code(reason));
        }

        for waiting in std::mem::take(&mut self.unacked) {
            let status = refusal.take().unwrap_or(Status::TransportError);
            self.fail(nic_state, waiting.cookie, status);
        }

        for posted in std::mem::take(&mut self.sends) {
            let status = match posted.failure {
                Some(status) => status,
                None if posted.is_under_way() => refusal.take().unwrap_or(Status::TransportError),
                None => Status::Flushed,
            };
            self.fail(nic_state, posted.cookie, status);
        }

        self.answer = None;
        self.drops_send = false;
        self.drops_write = false;
        self.written = 0;
        if let Some(arriving) = self.arriving.take() {
            self.flush(nic_state, arriving.cookie);
        }
        for posted in std::mem::take(&mut self.receives) {
            self.flush(nic_state, posted.cookie);
        }
    }

    /// Reports a failed send descriptor, whether signaled or not.
    pub(super) fn fail(&mut self, nic_state: &mut NicState, cookie: u64, status: Status) {
        self.complete(nic_state, Completion::new(self.core.id, Queue::Send, cookie, status));
    }

    pub(super) fn flush(&mut self, nic_state: &mut NicState, cookie: u64) {
        let flushed = Completion::new(self.core.id, Queue::Receive, cookie, Status::Flushed);
        self.complete(nic_state, flushed);
    }
}
