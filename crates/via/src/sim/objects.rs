//! The objects of a simulated NIC: memory, VIs, queues, requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vigie_detect::Notifier;

use super::network::SimEvent;
use crate::vi::{
    Attributes, Completion, CqId, LocalSegment, Memory, MemoryAttributes, MemoryHandle, NicEvent,
    Operation, ProtectionTag, Queue, RemoteKey, RemoteSegment, RequestId, Status, ViAttributes,
    ViEvent, ViId, ViState,
};

/// A NIC's index in its network.
pub(super) type NicIndex = usize;

/// A place in the agenda: a time, and an age.
pub(super) type AgendaKey = (u64, u64);

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ViEndpoint {
    pub(super) nic: NicIndex,
    pub(super) vi: ViId,
}

/// Identifies a connection attempt and the resulting connection; never reused.
pub(super) type ConnectionId = u64;

#[derive(Debug)]
pub(super) struct Nic {
    pub(super) attributes: Attributes,
    pub(super) next_id: u32,
    pub(super) memory: BTreeMap<MemoryHandle, SimRegion>,
    pub(super) keys: BTreeMap<RemoteKey, MemoryHandle>,
    pub(super) queues: BTreeMap<CqId, VecDeque<Completion>>,
    pub(super) vis: BTreeMap<ViId, SimVi>,
    pub(super) listening: BTreeSet<Vec<u8>>,
    /// Client-server requests that wait for the consumer's answer.
    pub(super) requests: BTreeMap<RequestId, Caller>,
    /// Peer-to-peer requests that wait for a VI of this NIC.
    pub(super) peer_requests: Vec<(Vec<u8>, Caller)>,
    pub(super) events: VecDeque<NicEvent>,
    /// When its link will have sent everything it was given.
    pub(super) busy_until: u64,
    pub(super) transmissions: u64,
    /// The number of the transmission at which it crashes.
    pub(super) crashes_at: Option<u64>,
    pub(super) has_crashed: bool,
    pub(super) is_frozen: bool,
    /// Events that occurred while it was frozen.
    pub(super) held: Vec<SimEvent>,
    /// Wakes its host, if it has one that sleeps.
    pub(super) bell: Option<Notifier>,
    /// Until when its host believes it may sleep: armed, and not woken since.
    pub(super) armed_until: Option<u64>,
}

impl Nic {
    pub(super) fn new(attributes: Attributes) -> Self {
        Self {
            attributes,
            next_id: 1,
            memory: BTreeMap::new(),
            keys: BTreeMap::new(),
            queues: BTreeMap::new(),
            vis: BTreeMap::new(),
            listening: BTreeSet::new(),
            requests: BTreeMap::new(),
            peer_requests: Vec::new(),
            events: VecDeque::new(),
            busy_until: 0,
            transmissions: 0,
            crashes_at: None,
            has_crashed: false,
            is_frozen: false,
            held: Vec::new(),
            bell: None,
            armed_until: None,
        }
    }

    /// Returns a new number. One sequence serves all names, so that no wrong name is valid by accident.
    pub(super) fn fresh(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Delivers a completion to its queue.
    pub(super) fn complete(&mut self, completion: Completion) {
        let Some(vi) = self.vis.get_mut(&completion.vi) else { return };
        let cq = match completion.queue {
            Queue::Send => vi.attributes.send_cq,
            Queue::Receive => vi.attributes.receive_cq,
        };
        match cq.and_then(|cq| self.queues.get_mut(&cq)) {
            Some(queue) => queue.push_back(completion),
            None => vi.side(completion.queue).push_back(completion),
        }
    }

    /// Returns whether an event or completion waits for the consumer.
    pub(super) fn has_news(&self) -> bool {
        !self.events.is_empty()
            || self.queues.values().any(|queue| !queue.is_empty())
            || self.vis.values().any(|vi| !vi.sent.is_empty() || !vi.received.is_empty())
    }

    /// Returns the memory that a segment refers to, for a VI with this tag.
    pub(super) fn local(
        &self,
        tag: ProtectionTag,
        segment: &LocalSegment,
    ) -> Result<&Memory, Status> {
        let registered = self.memory.get(&segment.memory).ok_or(Status::ProtectionError)?;
        if registered.attributes.tag != tag
            || !is_inside(&registered.memory, segment.offset, segment.length)
        {
            return Err(Status::ProtectionError);
        }
        Ok(&registered.memory)
    }

    /// Returns the memory that a peer reaches through `vi`.
    pub(super) fn remote(
        &self,
        vi: &SimVi,
        place: RemoteSegment,
        length: u64,
        access: Access,
    ) -> Result<&Memory, Status> {
        let denied = Status::RdmaProtectionError;
        let handle = self.keys.get(&place.key).ok_or(denied)?;
        let registered = self.memory.get(handle).ok_or(denied)?;
        let is_allowed = match access {
            Access::Write => registered.attributes.allows_write && vi.attributes.allows_write,
            Access::Read => registered.attributes.allows_read && vi.attributes.allows_read,
        };
        if !is_allowed
            || registered.attributes.tag != vi.attributes.tag
            || !is_inside(&registered.memory, place.offset, length)
        {
            return Err(denied);
        }
        Ok(&registered.memory)
    }
}

fn is_inside(memory: &Memory, offset: u64, length: u64) -> bool {
    let size = u64::try_from(memory.len()).unwrap_or(u64::MAX);
    offset.checked_add(length).is_some_and(|end| end <= size)
}

/// The kind of a peer's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
}

#[derive(Debug)]
pub(super) struct SimRegion {
    pub(super) memory: Memory,
    pub(super) attributes: MemoryAttributes,
    pub(super) key: RemoteKey,
}

/// A caller that asks for a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) end: ViEndpoint,
    pub(super) connection_id: ConnectionId,
    pub(super) attributes: ViAttributes,
    pub(super) greeting: Vec<u8>,
}

/// The stage of a connection attempt.
#[derive(Clone, Debug)]
pub(super) enum ConnectAttempt {
    /// This side has called: the answer will name this connection.
    Called { connection_id: ConnectionId, to: NicIndex },
    /// This side waits for the same call from the other NIC.
    Rendezvous {
        connection_id: ConnectionId,
        to: NicIndex,
        discriminator: Vec<u8>,
        greeting: Vec<u8>,
    },
    /// This side has answered, and waits for the caller to confirm.
    Agreed { connection_id: ConnectionId, peer: ViEndpoint, greeting: Vec<u8> },
}

impl ConnectAttempt {
    pub(super) const fn connection_id(&self) -> ConnectionId {
        match self {
            Self::Called { connection_id, .. }
            | Self::Rendezvous { connection_id, .. }
            | Self::Agreed { connection_id, .. } => *connection_id,
        }
    }

    pub(super) const fn other(&self) -> NicIndex {
        match self {
            Self::Called { to, .. } | Self::Rendezvous { to, .. } => *to,
            Self::Agreed { peer, .. } => peer.nic,
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimConnection {
    pub(super) connection_id: ConnectionId,
    pub(super) peer: ViEndpoint,
    /// How many packets of unreliable data this end has sent.
    pub(super) sent: u64,
    /// The latest packet of unreliable data that arrived here, by the peer's count from 1.
    pub(super) newest: u64,
}

#[derive(Debug)]
pub(super) struct SimVi {
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    pub(super) attempt: Option<ConnectAttempt>,
    /// The place of the attempt's deadline in the agenda.
    pub(super) expiry: Option<AgendaKey>,
    pub(super) connection: Option<SimConnection>,
    pub(super) sends: VecDeque<PostedSend>,
    pub(super) receives: VecDeque<PostedReceive>,
    /// Posted send descriptors whose completion was not taken; an unsignaled one counts until it is done.
    pub(super) sends_held: usize,
    pub(super) receives_held: usize,
    pub(super) sent: VecDeque<Completion>,
    pub(super) received: VecDeque<Completion>,
    /// Whether the departure of the next descriptor is scheduled.
    pub(super) is_departing: bool,
    /// Whether a descriptor has failed, which breaks the connection once those before it are done.
    pub(super) is_halted: bool,
    pub(super) next_slot: u64,
    /// When the latest of its in-order packets arrives.
    pub(super) latest_arrival: u64,
}

impl SimVi {
    pub(super) fn new(attributes: ViAttributes) -> Self {
        Self {
            attributes,
            state: ViState::Idle,
            attempt: None,
            expiry: None,
            connection: None,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            sends_held: 0,
            receives_held: 0,
            sent: VecDeque::new(),
            received: VecDeque::new(),
            is_departing: false,
            is_halted: false,
            next_slot: 0,
            latest_arrival: 0,
        }
    }

    pub(super) fn side(&mut self, queue: Queue) -> &mut VecDeque<Completion> {
        match queue {
            Queue::Send => &mut self.sent,
            Queue::Receive => &mut self.received,
        }
    }

    /// A completion was taken: its place in the queue is free.
    pub(super) fn release(&mut self, queue: Queue) {
        let held = match queue {
            Queue::Send => &mut self.sends_held,
            Queue::Receive => &mut self.receives_held,
        };
        *held = held.saturating_sub(1);
    }

    /// Moves to the next state. A transition that the diagram does not have is a bug of this provider.
    pub(super) fn change(&mut self, event: ViEvent) {
        let next = self.state.after(event);
        debug_assert!(next.is_some(), "{:?} in state {:?}", event, self.state);
        self.state = next.unwrap_or(ViState::Error);
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.attributes.reliability != crate::vi::Reliability::Unreliable
    }
}

/// The stage of a send descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStage {
    Waiting,
    /// Its data is in flight.
    Departed,
    /// It has ended; those before it may not have.
    Over(Status),
}

#[derive(Debug)]
pub(super) struct PostedSend {
    pub(super) slot: u64,
    pub(super) operation: Operation,
    pub(super) cookie: u64,
    pub(super) immediate: Option<i32>,
    pub(super) is_signaled: bool,
    pub(super) remote: Option<RemoteSegment>,
    pub(super) data: PostedData,
    /// Known once it departs.
    pub(super) length: u64,
    pub(super) stage: SendStage,
}

#[derive(Clone, Debug)]
pub(super) enum PostedData {
    Segments(Vec<LocalSegment>),
    Inline(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct PostedReceive {
    pub(super) cookie: u64,
    pub(super) segments: Vec<LocalSegment>,
}
