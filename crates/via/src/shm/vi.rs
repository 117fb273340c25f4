//! A VI: its two queues, what became of their descriptors, and how it ends.

use std::collections::VecDeque;

use super::{
    bell::Page,
    connecting::Attempt,
    link::{self, Link},
    receiver::{Answer, Arriving, PostedReceive},
    sender::{Posted, Unacknowledged},
    slots::Slots,
    table::Table,
};
use crate::vi::{
    Completion, CqId, NicEvent, Queue, Reason, Reliability, Status, ViAttributes, ViEvent, ViId,
    ViState,
};

/// What all VIs of a NIC share.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) table: Table,
    pub(super) cqs: Slots<Cq>,
    pub(super) page: Page,
    pub(super) events: VecDeque<NicEvent>,
}

/// A completion queue. Its length is bounded by the descriptors that its VIs may hold.
#[derive(Debug, Default)]
pub(super) struct Cq {
    pub(super) completions: VecDeque<Completion>,
    pub(super) vi_count: usize,
}

#[derive(Debug)]
pub(super) struct Vi {
    pub(super) id: ViId,
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    pub(super) attempt: Option<Attempt>,
    pub(super) link: Option<Link>,

    /// Send descriptors whose turn has not come or is not over.
    pub(super) sends: VecDeque<Posted>,
    /// Send descriptors that wait for the peer's word (reliable reception).
    pub(super) unacknowledged: VecDeque<Unacknowledged>,
    /// Those and all whose completion was not taken.
    pub(super) send_count: usize,
    sent: VecDeque<Completion>,

    pub(super) receives: VecDeque<PostedReceive>,
    /// The message that has arrived in part.
    pub(super) arriving: Option<Arriving>,
    /// Whether the rest of a message, or of a write, is to be dropped.
    pub(super) drops_send: bool,
    pub(super) drops_write: bool,
    /// How much of a write in several entries is in place.
    pub(super) written: u64,
    /// The read that the peer waits for.
    pub(super) answer: Option<Answer>,
    pub(super) receive_count: usize,
    received: VecDeque<Completion>,
}

/// How a connection ends from within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the connection must be broken"]
pub(super) enum End {
    /// The peer broke the rules.
    Fault(&'static str),
    /// The peer's descriptor cannot be carried out here.
    Refuse(Status),
    /// A descriptor of this side failed, and has said so.
    Failed,
}

impl From<&'static str> for End {
    fn from(what: &'static str) -> Self {
        Self::Fault(what)
    }
}

impl Vi {
    pub(super) fn new(id: ViId, attributes: ViAttributes) -> Self {
        Self {
            id,
            attributes,
            state: ViState::Idle,
            attempt: None,
            link: None,
            sends: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            send_count: 0,
            sent: VecDeque::new(),
            receives: VecDeque::new(),
            arriving: None,
            drops_send: false,
            drops_write: false,
            written: 0,
            answer: None,
            receive_count: 0,
            received: VecDeque::new(),
        }
    }

    #[inline]
    pub(super) fn is_reliable(&self) -> bool {
        self.attributes.reliability != Reliability::Unreliable
    }

    /// Goes to the next state; one that the diagram does not have is a mistake of this provider.
    pub(super) fn change(&mut self, event: ViEvent) {
        let next = self.state.after(event);
        debug_assert!(next.is_some(), "{event:?} in state {:?}", self.state);
        self.state = next.unwrap_or(ViState::Error);
    }

    // ------------------------------------------------------------------ completions

    const fn cq(&self, queue: Queue) -> Option<CqId> {
        match queue {
            Queue::Send => self.attributes.send_cq,
            Queue::Receive => self.attributes.receive_cq,
        }
    }

    /// Hands a completion to its queue.
    #[inline]
    pub(super) fn complete(&mut self, desk: &mut Desk, completion: Completion) {
        let cq = self.cq(completion.queue).and_then(|cq| desk.cqs.get_mut(cq.0));
        match (cq, completion.queue) {
            (Some(cq), _) => cq.completions.push_back(completion),
            (None, Queue::Send) => self.sent.push_back(completion),
            (None, Queue::Receive) => self.received.push_back(completion),
        }
    }

    /// Takes a completion of a queue that is attached to no completion queue.
    pub(super) fn take(&mut self, queue: Queue) -> Option<Completion> {
        let completion = match queue {
            Queue::Send => self.sent.pop_front(),
            Queue::Receive => self.received.pop_front(),
        }?;
        self.release(queue);
        Some(completion)
    }

    /// A completion was taken: its descriptor's place is free.
    #[inline]
    pub(super) fn release(&mut self, queue: Queue) {
        let count = match queue {
            Queue::Send => &mut self.send_count,
            Queue::Receive => &mut self.receive_count,
        };
        *count = count.saturating_sub(1);
    }

    pub(super) fn has_completions(&self) -> bool {
        !self.sent.is_empty() || !self.received.is_empty()
    }

    // ------------------------------------------------------------------ work

    /// Takes what has come and goes on with what waits. Returns whether anything was done.
    #[inline]
    pub(super) fn work(&mut self, desk: &mut Desk) -> bool {
        let has_received = self.receive(desk);
        if self.sends.is_empty() && self.unacknowledged.is_empty() && self.answer.is_none() {
            return has_received;
        }
        self.go_on(desk) || has_received
    }

    /// Goes on with what waits.
    fn go_on(&mut self, desk: &mut Desk) -> bool {
        let before = self.position();
        let result =
            self.acknowledge(desk).and_then(|()| self.answer(desk)).and_then(|()| self.pump(desk));
        if let Err(end) = result {
            self.end(desk, end);
            return true;
        }
        before != self.position()
    }

    /// Says how far the sending side is: unchanged if nothing was done.
    fn position(&self) -> (usize, usize, u64, u64) {
        let tail = self.link.as_ref().map_or(0, |link| link.producer.tail());
        let copied = self.sends.front().map_or(0, Posted::copied);
        (self.unacknowledged.len(), self.sends.len(), tail, copied)
    }

    // ------------------------------------------------------------------ the end

    /// Ends the connection from within.
    #[cold]
    pub(super) fn end(&mut self, desk: &mut Desk, end: End) {
        let reason = match end {
            End::Fault(what) => Reason::PeerFault(what),
            End::Refuse(_) | End::Failed => Reason::DescriptorFailed,
        };
        if let (Some(link), End::Refuse(status)) = (&mut self.link, end) {
            link.consumer.refuse(link::refusal_of(status));
        }
        self.break_off(desk, reason);
    }

    /// Breaks the connection and says so.
    pub(super) fn break_off(&mut self, desk: &mut Desk, reason: Reason) {
        self.part(desk, reason);
        self.change(ViEvent::Break);
        desk.events.push_back(NicEvent::Broken { vi: self.id, reason });
    }

    /// Ends the connection, tells the peer why, and flushes what was posted.
    pub(super) fn part(&mut self, desk: &mut Desk, reason: Reason) {
        self.attempt = None;
        let mut refusal = None;
        if self.link.is_some() {
            // What the peer has carried out is done. A count that cannot be says nothing.
            let _ = self.acknowledge(desk);
        }
        if let Some(link) = self.link.take() {
            refusal = link::status_of(link.producer.refusal());
            link.producer.say_goodbye(link::goodbye_of(reason));
        }
        for waiting in std::mem::take(&mut self.unacknowledged) {
            let status = refusal.take().unwrap_or(Status::TransportError);
            self.fail(desk, waiting.cookie, status);
        }
        for posted in std::mem::take(&mut self.sends) {
            let status = match posted.failure {
                Some(status) => status,
                None if posted.is_under_way() => refusal.take().unwrap_or(Status::TransportError),
                None => Status::Flushed,
            };
            self.fail(desk, posted.cookie, status);
        }
        self.answer = None;
        self.drops_send = false;
        self.drops_write = false;
        self.written = 0;
        if let Some(arriving) = self.arriving.take() {
            self.flush(desk, arriving.cookie);
        }
        for posted in std::mem::take(&mut self.receives) {
            self.flush(desk, posted.cookie);
        }
    }

    /// A send descriptor failed: that is always told.
    pub(super) fn fail(&mut self, desk: &mut Desk, cookie: u64, status: Status) {
        self.complete(desk, Completion::new(self.id, Queue::Send, cookie, status));
    }

    pub(super) fn flush(&mut self, desk: &mut Desk, cookie: u64) {
        let flushed = Completion::new(self.id, Queue::Receive, cookie, Status::Flushed);
        self.complete(desk, flushed);
    }
}
