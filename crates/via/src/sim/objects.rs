//! The objects of a simulated NIC: memory, VIs, queues, requests.

use std::collections::{BTreeMap, VecDeque};

use vigie_detect::{CallId, Instant, Notifier};

use super::packet::{Caller, ConnectionId, NicIndex, PacketBody, SimEvent, SimPacket, ViEndpoint};
use crate::vi::{
    Completion, NicAttributes, NicEvent, RequestId, Status, ViId,
    objects::{self, Objects, PostedReceive, ViCore},
};

#[derive(Debug)]
pub(super) struct Nic {
    pub(super) attributes: NicAttributes,
    pub(super) objects: Objects,
    pub(super) vis: BTreeMap<ViId, SimVi>,
    /// Client-server requests that wait for the consumer's answer.
    pub(super) requests: BTreeMap<RequestId, Caller>,
    /// Peer-to-peer requests that wait for a VI of this NIC.
    pub(super) peer_requests: Vec<(Vec<u8>, Caller)>,
    pub(super) events: VecDeque<NicEvent>,
    /// The time at which its link will have sent everything it was given.
    pub(super) busy_until: Instant,
    pub(super) transmissions: u64,
    /// The number of the transmission at which it crashes.
    pub(super) crashes_at: Option<u64>,
    pub(super) has_crashed: bool,
    pub(super) is_frozen: bool,
    /// Events that occurred while it was frozen.
    pub(super) held: Vec<SimEvent>,
    /// Wakes its host, if it has one that sleeps.
    pub(super) notifier: Option<Notifier>,
    /// The time until which its host believes it may sleep: armed, and not woken since.
    pub(super) armed_until: Option<Instant>,
}

impl Nic {
    pub(super) fn new(attributes: NicAttributes) -> Self {
        Self {
            attributes,
            objects: Objects::default(),
            vis: BTreeMap::new(),
            requests: BTreeMap::new(),
            peer_requests: Vec::new(),
            events: VecDeque::new(),
            busy_until: Instant::from_nanos(0),
            transmissions: 0,
            crashes_at: None,
            has_crashed: false,
            is_frozen: false,
            held: Vec::new(),
            notifier: None,
            armed_until: None,
        }
    }

    /// Delivers a completion to its queue.
    pub(super) fn complete(&mut self, completion: Completion) {
        if let Some(vi) = self.vis.get_mut(&completion.vi) {
            vi.core.complete(&mut self.objects, completion);
        }
    }

    /// Returns whether an event or completion waits for the consumer.
    pub(super) fn has_news(&self) -> bool {
        !self.events.is_empty()
            || self.objects.has_completions()
            || self.vis.values().any(|vi| vi.core.has_completions())
    }
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
    /// The number of packets of unreliable data that this end has sent.
    pub(super) sent: u64,
    /// The latest packet of unreliable data that arrived here, by the peer's count from 1.
    pub(super) newest: u64,
}

impl SimConnection {
    /// Makes a packet to the peer of the connection's end `from`.
    pub(super) const fn packet(&self, from: ViEndpoint, body: PacketBody) -> SimPacket {
        let Self { connection_id, peer, .. } = *self;
        SimPacket { from, to: peer.nic, vi: Some(peer.vi), connection_id, body }
    }
}

#[derive(Debug)]
pub(super) struct SimVi {
    pub(super) core: ViCore,
    pub(super) attempt: Option<ConnectAttempt>,
    /// The attempt's deadline.
    pub(super) expiry: Option<CallId>,
    pub(super) connection: Option<SimConnection>,
    pub(super) sends: VecDeque<PostedSend>,
    pub(super) receives: VecDeque<PostedReceive>,
    /// True if the departure of the next descriptor is scheduled.
    pub(super) is_departing: bool,
    /// True if a descriptor has failed, which breaks the connection once those before it are done.
    pub(super) is_halted: bool,
    /// The number of send descriptors that were ever posted.
    pub(super) posted_count: u64,
    /// The time at which the latest of its in-order packets arrives.
    pub(super) latest_arrival: Instant,
}

impl SimVi {
    pub(super) const fn new(core: ViCore) -> Self {
        Self {
            core,
            attempt: None,
            expiry: None,
            connection: None,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            is_departing: false,
            is_halted: false,
            posted_count: 0,
            latest_arrival: Instant::from_nanos(0),
        }
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.core.attributes.is_reliable()
    }

    /// Returns the slot of the send descriptor at `index`: its number among all that were posted, from 1.
    pub(super) fn slot_at(&self, index: usize) -> u64 {
        let later = self.sends.len().saturating_sub(index + 1);
        self.posted_count - u64::try_from(later).unwrap_or(u64::MAX)
    }

    /// Returns the index of the send descriptor with this slot, unless it has ended.
    pub(super) fn index_of(&self, slot: u64) -> Option<usize> {
        let later = usize::try_from(self.posted_count.checked_sub(slot)?).ok()?;
        self.sends.len().checked_sub(later + 1)
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

/// A posted send descriptor.
pub(super) type PostedSend = objects::PendingSend<SendStage>;
