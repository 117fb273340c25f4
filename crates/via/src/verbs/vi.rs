//! A VI: its two queues of descriptors, and what the device's completions mean for them.
//!
//! The device completes the descriptors of a queue in order, so that the number of one tells how many are done.
//! Of sends it is asked for every sixteenth at least: one that is not signaled is done when a later one is.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use rdma_sys::ibv_wc_status as wc;
use vigie_detect::Instant;

use super::sys::{Domain, End, QueuePair, WorkCompletion};
use crate::vi::{
    Completion, CqId, LocalSegment, NicEvent, Operation, Queue, Reason, Reliability, Status,
    ViAttributes, ViId, ViState,
};

/// So many sends in a row may go unsignaled.
pub(super) const SILENT_MAX: u32 = 15;

/// Numbers of work requests: the link, one bit for the queue, and 31 bits that are counted up.
const RECEIVE_BIT: u64 = 1 << 31;
const COUNT_MASK: u32 = (1 << 31) - 1;

/// What completions and events go to.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) cqs: BTreeMap<u32, Cq>,
    pub(super) events: VecDeque<NicEvent>,
}

/// A completion queue of the consumer: what was taken from the device's queues that belong to it.
#[derive(Default)]
pub(super) struct Cq {
    pub(super) completions: VecDeque<Completion>,
    /// The device's queues.
    pub(super) queues: Vec<u32>,
    pub(super) vis: usize,
}

/// A send descriptor that the device has.
pub(super) struct Sent {
    pub(super) cookie: u64,
    pub(super) operation: Operation,
    pub(super) length: u64,
    pub(super) is_signaled: bool,
    /// What is wrong with it was seen here: the device was given something harmless in its place.
    pub(super) forced: Option<Status>,
}

/// A receive descriptor.
pub(super) struct Posted {
    pub(super) cookie: u64,
    pub(super) segments: Vec<LocalSegment>,
}

/// A queue pair, and how far it has come.
pub(super) struct Link {
    pub(super) pair: QueuePair,
    /// In the numbers of its work requests; never used twice.
    pub(super) name: u32,
    pub(super) own: End,
    pub(super) peer: Option<End>,
    first_send: u32,
    next_send: u32,
    first_receive: u32,
    next_receive: u32,
}

impl Link {
    pub(super) const fn new(pair: QueuePair, name: u32, own: End) -> Self {
        Self {
            pair,
            name,
            own,
            peer: None,
            first_send: 0,
            next_send: 0,
            first_receive: 0,
            next_receive: 0,
        }
    }

    /// Begins to count again, under another name.
    pub(super) const fn rename(&mut self, name: u32) {
        self.name = name;
        (self.first_send, self.next_send) = (0, 0);
        (self.first_receive, self.next_receive) = (0, 0);
    }

    /// Whether descriptors go to the device.
    pub(super) const fn is_active(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn send_number(&self) -> u64 {
        u64::from(self.name) << 32 | u64::from(self.next_send)
    }

    pub(super) const fn sent(&mut self) {
        self.next_send = (self.next_send + 1) & COUNT_MASK;
    }

    pub(super) fn receive_number(&self) -> u64 {
        u64::from(self.name) << 32 | RECEIVE_BIT | u64::from(self.next_receive)
    }

    pub(super) const fn posted(&mut self) {
        self.next_receive = (self.next_receive + 1) & COUNT_MASK;
    }
}

/// Takes the number of a work request apart: the link, the queue, the count.
pub(super) fn parts(number: u64) -> (u32, Queue, u32) {
    let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0);
    let queue = if number & RECEIVE_BIT == 0 { Queue::Send } else { Queue::Receive };
    (low(number >> 32), queue, low(number) & COUNT_MASK)
}

/// Why a VI is about to break. A later one is the better witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// The device has ended the queue pair by itself: a peer has reached for memory that it may not have.
    Access,
    /// A receive descriptor failed: what its sender is to be told.
    Receive(Told),
    /// A send descriptor failed.
    Send,
    /// The peer's NIC does not answer.
    Silence,
}

/// What the sender of a message is told of its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Nothing,
    TooLong,
    Unreachable,
}

impl Fault {
    pub(super) const fn reason(self) -> Reason {
        match self {
            Self::Silence => Reason::TransportFailed,
            Self::Access | Self::Receive(_) | Self::Send => Reason::DescriptorFailed,
        }
    }

    pub(super) const fn report(self) -> Option<Status> {
        match self {
            Self::Access => Some(Status::RdmaProtectionError),
            Self::Receive(Told::TooLong) => Some(Status::LengthError),
            Self::Receive(Told::Unreachable) => Some(Status::RemoteDescriptorError),
            Self::Receive(Told::Nothing) | Self::Send | Self::Silence => None,
        }
    }
}

/// Who a VI waits for that has not called yet.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) peer: [u8; 16],
    pub(super) discriminator: Vec<u8>,
    pub(super) greeting: Vec<u8>,
    pub(super) deadline: Instant,
}

pub(super) struct Vi {
    pub(super) id: ViId,
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    pub(super) domain: Arc<Domain>,
    /// The device's queues for completions of sends and of receives.
    pub(super) queues: [u32; 2],
    pub(super) sends: VecDeque<Sent>,
    pub(super) receives: VecDeque<Posted>,
    /// For those that are attached to no completion queue.
    pub(super) done: [VecDeque<Completion>; 2],
    pub(super) link: Option<Link>,
    pub(super) line: Option<u32>,
    pub(super) wish: Option<Wish>,
    /// Sends in a row that are not signaled at the device.
    pub(super) silent: u32,
    /// A descriptor that fails is under way: what is posted behind it is not carried out.
    pub(super) is_spoiled: bool,
    pub(super) fault: Option<Fault>,
    /// What the peer has said of a descriptor of this side, which the device will complete by then.
    pub(super) told: Option<(Status, Instant)>,
    /// The device has said that the peer could not take the first of `sends`, and not why, which the peer says
    /// by then. What else it completes is of no interest any more.
    pub(super) unclear: Option<Instant>,
}

impl Vi {
    pub(super) fn new(
        id: ViId,
        attributes: ViAttributes,
        domain: Arc<Domain>,
        queues: [u32; 2],
    ) -> Self {
        Self {
            id,
            attributes,
            state: ViState::Idle,
            domain,
            queues,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            done: [VecDeque::new(), VecDeque::new()],
            link: None,
            line: None,
            wish: None,
            silent: 0,
            is_spoiled: false,
            fault: None,
            told: None,
            unclear: None,
        }
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.attributes.reliability != Reliability::Unreliable
    }

    pub(super) const fn cq(&self, queue: Queue) -> Option<CqId> {
        match queue {
            Queue::Send => self.attributes.send_cq,
            Queue::Receive => self.attributes.receive_cq,
        }
    }

    pub(super) const fn done_mut(&mut self, queue: Queue) -> &mut VecDeque<Completion> {
        let [send, receive] = &mut self.done;
        match queue {
            Queue::Send => send,
            Queue::Receive => receive,
        }
    }

    /// Hands a completion to the consumer.
    fn tell(&mut self, desk: &mut Desk, completion: Completion) {
        let queue = completion.queue;
        let cq = self.cq(queue).and_then(|cq| desk.cqs.get_mut(&cq.0));
        match cq {
            Some(cq) => cq.completions.push_back(completion),
            None => self.done_mut(queue).push_back(completion),
        }
    }

    /// Ends a send descriptor.
    pub(super) fn tell_sent(&mut self, desk: &mut Desk, sent: &Sent, status: Status) {
        // An error is always told.
        if sent.is_signaled || !status.is_done() {
            let mut completion = Completion::new(self.id, Queue::Send, sent.cookie, status);
            completion.length = if status.is_done() { sent.length } else { 0 };
            self.tell(desk, completion);
        }
    }

    /// A send descriptor is done, and all before it. If the peer has to say how, it does until `deadline`.
    pub(super) fn take_sent(
        &mut self,
        desk: &mut Desk,
        count: u32,
        status: u32,
        deadline: Instant,
    ) {
        if self.unclear.is_some() {
            return;
        }
        let Some(link) = &mut self.link else { return };
        let before = count.wrapping_sub(link.first_send) & COUNT_MASK;
        if usize::try_from(before).map_or(true, |before| before >= self.sends.len()) {
            // No descriptor of this link.
            return;
        }
        link.first_send = (count + 1) & COUNT_MASK;
        for _ in 0..before {
            if let Some(sent) = self.sends.pop_front() {
                self.tell_sent(desk, &sent, Status::Done);
            }
        }
        let is_clear = status != wc::IBV_WC_REM_OP_ERR
            || self.told.is_some()
            || self.attributes.reliability != Reliability::ReliableReception;
        if !is_clear && self.sends.front().is_some_and(|sent| sent.forced.is_none()) {
            // Soft-RoCE says the same of a message that is too long and of a receive descriptor that is wrong.
            self.unclear = Some(deadline);
            return;
        }
        let Some(sent) = self.sends.pop_front() else { return };
        let ended = self.end_of(&sent, status);
        self.tell_sent(desk, &sent, ended);
        if status == wc::IBV_WC_WR_FLUSH_ERR {
            self.blame(Fault::Access);
        } else if status == wc::IBV_WC_RETRY_EXC_ERR && self.told.is_none() {
            self.blame(Fault::Silence);
        } else if !ended.is_done() && (status != wc::IBV_WC_SUCCESS || self.is_reliable()) {
            self.blame(Fault::Send);
        }
    }

    /// Returns how a send descriptor ended.
    fn end_of(&mut self, sent: &Sent, status: u32) -> Status {
        if let Some(forced) = sent.forced {
            return forced;
        }
        let is_send = sent.operation == Operation::Send;
        let found = match status {
            wc::IBV_WC_SUCCESS => return Status::Done,
            wc::IBV_WC_LOC_LEN_ERR => return Status::LengthError,
            wc::IBV_WC_LOC_PROT_ERR | wc::IBV_WC_LOC_QP_OP_ERR => return Status::ProtectionError,
            wc::IBV_WC_REM_INV_REQ_ERR if is_send => Status::LengthError,
            wc::IBV_WC_REM_INV_REQ_ERR | wc::IBV_WC_REM_ACCESS_ERR => Status::RdmaProtectionError,
            wc::IBV_WC_REM_OP_ERR | wc::IBV_WC_RNR_RETRY_EXC_ERR => Status::RemoteDescriptorError,
            // The peer's answer was lost, but what it says beside it was not.
            wc::IBV_WC_RETRY_EXC_ERR | wc::IBV_WC_WR_FLUSH_ERR if self.told.is_some() => {
                self.told.map_or(Status::TransportError, |(status, _)| status)
            }
            wc::IBV_WC_WR_FLUSH_ERR => return Status::Flushed,
            _ => return Status::TransportError,
        };
        // It is the first that failed; the rest is flushed.
        self.told = None;
        let is_delivery = self.attributes.reliability == Reliability::ReliableDelivery;
        // What the peer's errors are is not told, but what was read did not come.
        if is_delivery && sent.operation != Operation::RdmaRead {
            return Status::TransportError;
        }
        found
    }

    /// The receive descriptor at the head is done. Of its own memory everything is in reach, or it is not.
    pub(super) fn take_received(
        &mut self,
        desk: &mut Desk,
        count: u32,
        completion: &WorkCompletion,
        is_reachable: bool,
    ) {
        if self.unclear.is_some() && completion.status != wc::IBV_WC_SUCCESS {
            return;
        }
        let Some(link) = &mut self.link else { return };
        if count != link.first_receive {
            return;
        }
        let is_flushed = completion.status == wc::IBV_WC_WR_FLUSH_ERR;
        let (status, fault) = match completion.status {
            wc::IBV_WC_SUCCESS => (Status::Done, None),
            wc::IBV_WC_LOC_LEN_ERR | wc::IBV_WC_REM_INV_REQ_ERR => {
                (Status::LengthError, Some(Fault::Receive(Told::TooLong)))
            }
            wc::IBV_WC_LOC_QP_OP_ERR if is_reachable => {
                (Status::LengthError, Some(Fault::Receive(Told::TooLong)))
            }
            wc::IBV_WC_LOC_PROT_ERR | wc::IBV_WC_LOC_QP_OP_ERR | wc::IBV_WC_LOC_ACCESS_ERR => {
                (Status::ProtectionError, Some(Fault::Receive(Told::Unreachable)))
            }
            // Not its own error: the message that would have consumed it was not let in.
            wc::IBV_WC_REM_ACCESS_ERR | wc::IBV_WC_WR_FLUSH_ERR => {
                (Status::Flushed, Some(Fault::Access))
            }
            _ => (Status::TransportError, Some(Fault::Receive(Told::Nothing))),
        };
        if let Some(fault) = fault {
            self.blame(fault);
        }
        if is_flushed && !self.is_reliable() {
            // It stays for the messages to come, once the queue pair works again.
            return;
        }
        if let Some(link) = &mut self.link {
            link.first_receive = (count + 1) & COUNT_MASK;
        }
        let Some(posted) = self.receives.pop_front() else { return };
        let mut told = Completion::new(self.id, Queue::Receive, posted.cookie, status);
        if status.is_done() {
            told.length = u64::from(completion.length);
            told.immediate = completion.immediate;
        }
        self.tell(desk, told);
    }

    pub(super) fn blame(&mut self, fault: Fault) {
        self.fault = self.fault.max(Some(fault));
    }

    /// Ends the send descriptors that are left. If the peer has said what befell one, that is the first.
    pub(super) fn flush_sends(&mut self, desk: &mut Desk) {
        if let Some(deadline) = self.unclear.take() {
            self.told.get_or_insert((Status::RemoteDescriptorError, deadline));
        }
        while let Some(sent) = self.sends.pop_front() {
            let ended = match self.told {
                Some(_) => self.end_of(&sent, wc::IBV_WC_WR_FLUSH_ERR),
                None => sent.forced.filter(|_| self.is_spoiled).unwrap_or(Status::Flushed),
            };
            self.tell_sent(desk, &sent, ended);
        }
    }

    /// Ends the receive descriptors that are left.
    pub(super) fn flush_receives(&mut self, desk: &mut Desk) {
        while let Some(posted) = self.receives.pop_front() {
            let status = Status::Flushed;
            self.tell(desk, Completion::new(self.id, Queue::Receive, posted.cookie, status));
        }
    }

    /// Forgets what belongs to a connection that has ended.
    pub(super) fn forget(&mut self) {
        self.wish = None;
        self.silent = 0;
        self.is_spoiled = false;
        self.fault = None;
        self.told = None;
        self.unclear = None;
    }
}
