//! A VI: its two queues of descriptors, and the meaning of the device's completions for them.
//!
//! The device completes the descriptors of a queue in order, so the number of one completion tells how
//! many are done. At least every sixteenth send is signaled: an unsignaled one is done when a later one
//! is.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use rdma_sys::ibv_wc_status as wc;
use vigie_detect::Instant;

use super::sys::{Domain, QpEndpoint, QueuePair, WorkCompletion};
use crate::vi::{
    Completion, CqId, DisconnectReason, LocalSegment, NicEvent, Operation, Queue, Reliability,
    Status, ViAttributes, ViId, ViState,
};

/// The most sends in a row that are not signaled.
pub(super) const UNSIGNALED_MAX: u32 = 15;

/// Work request numbers: the link, one bit for the queue, and a 31-bit counter.
const RECEIVE_BIT: u64 = 1 << 31;
const COUNT_MASK: u32 = (1 << 31) - 1;

/// The destination of completions and events.
#[derive(Default)]
pub(super) struct NicState {
    pub(super) cqs: BTreeMap<u32, Cq>,
    pub(super) events: VecDeque<NicEvent>,
}

/// A completion queue of the consumer: the completions taken from its device queues.
#[derive(Default)]
pub(super) struct Cq {
    pub(super) completions: VecDeque<Completion>,
    /// The device's queues.
    pub(super) queues: Vec<u32>,
    pub(super) vis: usize,
}

/// A send descriptor that was given to the device.
pub(super) struct InFlightSend {
    pub(super) cookie: u64,
    pub(super) operation: Operation,
    pub(super) length: u64,
    pub(super) is_signaled: bool,
    /// Its error, if it was found here: the device was given a harmless substitute.
    pub(super) forced: Option<Status>,
}

/// A receive descriptor.
pub(super) struct InFlightReceive {
    pub(super) cookie: u64,
    pub(super) segments: Vec<LocalSegment>,
}

/// A queue pair and its stage.
pub(super) struct QpConnection {
    pub(super) pair: QueuePair,
    /// Part of the numbers of its work requests; never reused.
    pub(super) name: u32,
    pub(super) own: QpEndpoint,
    pub(super) peer: Option<QpEndpoint>,
    first_send: u32,
    next_send: u32,
    first_receive: u32,
    next_receive: u32,
}

impl QpConnection {
    pub(super) const fn new(pair: QueuePair, name: u32, own: QpEndpoint) -> Self {
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

    /// Restarts the counters under another name.
    pub(super) const fn rename(&mut self, name: u32) {
        self.name = name;
        (self.first_send, self.next_send) = (0, 0);
        (self.first_receive, self.next_receive) = (0, 0);
    }

    /// Returns whether descriptors go to the device.
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

/// Splits the number of a work request into the link, the queue and the count.
pub(super) fn parts(number: u64) -> (u32, Queue, u32) {
    let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0);
    let queue = if number & RECEIVE_BIT == 0 { Queue::Send } else { Queue::Receive };
    (low(number >> 32), queue, low(number) & COUNT_MASK)
}

/// The reason why a VI is about to break. Later variants are more reliable evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ViFault {
    /// The device has ended the queue pair: a peer has accessed memory that it may not.
    Access,
    /// A receive descriptor failed; its sender is told why.
    Receive(ReceiveFault),
    /// A send descriptor failed.
    Send,
    /// The peer's NIC does not answer.
    Silence,
}

/// The fault of a descriptor that the sender of a message is told about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReceiveFault {
    Nothing,
    TooLong,
    Unreachable,
}

impl ViFault {
    pub(super) const fn reason(self) -> DisconnectReason {
        match self {
            Self::Silence => DisconnectReason::TransportFailed,
            Self::Access | Self::Receive(_) | Self::Send => DisconnectReason::DescriptorFailed,
        }
    }

    pub(super) const fn report(self) -> Option<Status> {
        match self {
            Self::Access => Some(Status::RdmaProtectionError),
            Self::Receive(ReceiveFault::TooLong) => Some(Status::LengthError),
            Self::Receive(ReceiveFault::Unreachable) => Some(Status::RemoteDescriptorError),
            Self::Receive(ReceiveFault::Nothing) | Self::Send | Self::Silence => None,
        }
    }
}

/// A connect request that waits for the peer's call.
#[derive(Clone, Debug)]
pub(super) struct ConnectRequest {
    pub(super) peer: [u8; 16],
    pub(super) discriminator: Vec<u8>,
    pub(super) greeting: Vec<u8>,
    pub(super) deadline: Instant,
}

pub(super) struct VerbsVi {
    pub(super) id: ViId,
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    pub(super) domain: Arc<Domain>,
    /// The device's queues for completions of sends and of receives.
    pub(super) queues: [u32; 2],
    pub(super) sends: VecDeque<InFlightSend>,
    pub(super) receives: VecDeque<InFlightReceive>,
    /// Completions of queues that are attached to no completion queue.
    pub(super) done: [VecDeque<Completion>; 2],
    pub(super) link: Option<QpConnection>,
    pub(super) control: Option<u32>,
    pub(super) connect_request: Option<ConnectRequest>,
    /// Sends in a row that are not signaled at the device.
    pub(super) unsignaled_count: u32,
    /// A failing descriptor is in flight: descriptors posted behind it are not carried out.
    pub(super) is_spoiled: bool,
    pub(super) fault: Option<ViFault>,
    /// The status that the peer has reported for a descriptor of this side, and when the device must
    /// have completed it.
    pub(super) peer_report: Option<(Status, Instant)>,
    /// Set if the device has reported that the peer could not take the first of `sends`, but not why:
    /// when the peer must have reported that. Further completions are ignored.
    pub(super) unclear: Option<Instant>,
}

impl VerbsVi {
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
            control: None,
            connect_request: None,
            unsignaled_count: 0,
            is_spoiled: false,
            fault: None,
            peer_report: None,
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

    /// Delivers a completion to the consumer.
    fn push_completion(&mut self, nic_state: &mut NicState, completion: Completion) {
        let queue = completion.queue;
        let cq = self.cq(queue).and_then(|cq| nic_state.cqs.get_mut(&cq.0));
        match cq {
            Some(cq) => cq.completions.push_back(completion),
            None => self.done_mut(queue).push_back(completion),
        }
    }

    /// Completes a send descriptor.
    pub(super) fn complete_send(
        &mut self,
        nic_state: &mut NicState,
        sent: &InFlightSend,
        status: Status,
    ) {
        // An error is always reported.
        if sent.is_signaled || !status.is_done() {
            let mut completion = Completion::new(self.id, Queue::Send, sent.cookie, status);
            completion.length = if status.is_done() { sent.length } else { 0 };
            self.push_completion(nic_state, completion);
        }
    }

    /// A send descriptor and all before it are done. If the peer has to report its status, it has until
    /// `deadline`.
    pub(super) fn take_sent(
        &mut self,
        nic_state: &mut NicState,
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
            // Not a descriptor of this link.
            return;
        }

        link.first_send = (count + 1) & COUNT_MASK;
        for _ in 0..before {
            if let Some(sent) = self.sends.pop_front() {
                self.complete_send(nic_state, &sent, Status::Done);
            }
        }

        let is_clear = status != wc::IBV_WC_REM_OP_ERR
            || self.peer_report.is_some()
            || self.attributes.reliability != Reliability::ReliableReception;
        if !is_clear && self.sends.front().is_some_and(|sent| sent.forced.is_none()) {
            // Soft-RoCE reports the same error for a message that is too long and for an invalid receive
            // descriptor.
            self.unclear = Some(deadline);
            return;
        }

        let Some(sent) = self.sends.pop_front() else { return };
        let ended = self.end_of(&sent, status);
        self.complete_send(nic_state, &sent, ended);
        if status == wc::IBV_WC_WR_FLUSH_ERR {
            self.record_fault(ViFault::Access);
        } else if status == wc::IBV_WC_RETRY_EXC_ERR && self.peer_report.is_none() {
            self.record_fault(ViFault::Silence);
        } else if !ended.is_done() && (status != wc::IBV_WC_SUCCESS || self.is_reliable()) {
            self.record_fault(ViFault::Send);
        }
    }

    /// Returns the status with which a send descriptor ended.
    fn end_of(&mut self, sent: &InFlightSend, status: u32) -> Status {
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
            // The peer's reply was lost, but its report over the control connection was not.
            wc::IBV_WC_RETRY_EXC_ERR | wc::IBV_WC_WR_FLUSH_ERR if self.peer_report.is_some() => {
                self.peer_report.map_or(Status::TransportError, |(status, _)| status)
            }
            wc::IBV_WC_WR_FLUSH_ERR => return Status::Flushed,
            _ => return Status::TransportError,
        };

        // The first one failed; the rest is flushed.
        self.peer_report = None;
        let is_delivery = self.attributes.reliability == Reliability::ReliableDelivery;
        // This level does not reveal the peer's errors, but data that was read is known to be missing.
        if is_delivery && sent.operation != Operation::RdmaRead {
            return Status::TransportError;
        }
        found
    }

    /// Completes the first receive descriptor. `is_reachable`: whether all of its own memory is accessible.
    pub(super) fn take_received(
        &mut self,
        nic_state: &mut NicState,
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
                (Status::LengthError, Some(ViFault::Receive(ReceiveFault::TooLong)))
            }
            wc::IBV_WC_LOC_QP_OP_ERR if is_reachable => {
                (Status::LengthError, Some(ViFault::Receive(ReceiveFault::TooLong)))
            }
            wc::IBV_WC_LOC_PROT_ERR | wc::IBV_WC_LOC_QP_OP_ERR | wc::IBV_WC_LOC_ACCESS_ERR => {
                (Status::ProtectionError, Some(ViFault::Receive(ReceiveFault::Unreachable)))
            }
            // Not its own error: the message that would have consumed it was rejected.
            wc::IBV_WC_REM_ACCESS_ERR | wc::IBV_WC_WR_FLUSH_ERR => {
                (Status::Flushed, Some(ViFault::Access))
            }
            _ => (Status::TransportError, Some(ViFault::Receive(ReceiveFault::Nothing))),
        };

        if let Some(fault) = fault {
            self.record_fault(fault);
        }
        if is_flushed && !self.is_reliable() {
            // It stays for later messages, once the queue pair works again.
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

        self.push_completion(nic_state, told);
    }

    pub(super) fn record_fault(&mut self, fault: ViFault) {
        self.fault = self.fault.max(Some(fault));
    }

    /// Flushes the remaining send descriptors. A status reported by the peer is that of the first.
    pub(super) fn flush_sends(&mut self, nic_state: &mut NicState) {
        if let Some(deadline) = self.unclear.take() {
            self.peer_report.get_or_insert((Status::RemoteDescriptorError, deadline));
        }
        while let Some(sent) = self.sends.pop_front() {
            let ended = match self.peer_report {
                Some(_) => self.end_of(&sent, wc::IBV_WC_WR_FLUSH_ERR),
                None => sent.forced.filter(|_| self.is_spoiled).unwrap_or(Status::Flushed),
            };
            self.complete_send(nic_state, &sent, ended);
        }
    }

    /// Flushes the remaining receive descriptors.
    pub(super) fn flush_receives(&mut self, nic_state: &mut NicState) {
        while let Some(posted) = self.receives.pop_front() {
            let status = Status::Flushed;
            self.push_completion(
                nic_state,
                Completion::new(self.id, Queue::Receive, posted.cookie, status),
            );
        }
    }

    /// Clears what belongs to a connection that has ended.
    pub(super) fn forget(&mut self) {
        self.connect_request = None;
        self.unsignaled_count = 0;
        self.is_spoiled = false;
        self.fault = None;
        self.peer_report = None;
        self.unclear = None;
    }
}
