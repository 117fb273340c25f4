//! Packets between simulated NICs, and the events that carry them.

use crate::vi::{DisconnectReason, RemoteSegment, Status, ViAttributes, ViId};

/// A NIC's index in its network.
pub(super) type NicIndex = usize;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ViEndpoint {
    pub(super) nic: NicIndex,
    pub(super) vi: ViId,
}

/// Identifies a connection attempt and the resulting connection; never reused.
pub(super) type ConnectionId = u64;

/// A caller that asks for a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) end: ViEndpoint,
    pub(super) connection_id: ConnectionId,
    pub(super) attributes: ViAttributes,
    pub(super) greeting: Vec<u8>,
}

/// A scheduled event.
#[derive(Debug)]
pub(super) enum SimEvent {
    /// The next send descriptor of a VI departs.
    Depart {
        nic: NicIndex,
        vi: ViId,
    },
    /// A frozen NIC resumes what it wanted to send.
    Leave(SimPacket),
    Arrive(SimPacket),
    /// The deadline of an attempt to connect.
    Expire {
        nic: NicIndex,
        vi: ViId,
        connection_id: ConnectionId,
    },
    /// A NIC notices that another NIC has crashed.
    PeerCrashed {
        nic: NicIndex,
        of: NicIndex,
    },
    Crash {
        nic: NicIndex,
    },
}

impl SimEvent {
    /// Returns the NIC that must be awake for it.
    pub(super) const fn nic(&self) -> NicIndex {
        match self {
            Self::Depart { nic, .. }
            | Self::Expire { nic, .. }
            | Self::PeerCrashed { nic, .. }
            | Self::Crash { nic } => *nic,
            Self::Leave(packet) => packet.from.nic,
            Self::Arrive(packet) => packet.to,
        }
    }

    /// Returns what the trace hash includes of it.
    pub(super) fn digest(&self) -> u64 {
        let (kind, detail) = match self {
            Self::Depart { vi, .. } => (1, u64::from(vi.0)),
            Self::Leave(packet) => (2, packet.connection_id),
            Self::Arrive(packet) => (3, packet.connection_id ^ (packet.body.size() << 20)),
            Self::Expire { connection_id, .. } => (4, *connection_id),
            Self::PeerCrashed { .. } => (5, 0),
            Self::Crash { .. } => (6, 0),
        };
        let nic = u64::try_from(self.nic()).unwrap_or(u64::MAX);
        kind ^ (nic << 8) ^ (detail << 24)
    }
}

/// A packet from one NIC to another.
#[derive(Clone, Debug)]
pub(super) struct SimPacket {
    pub(super) from: ViEndpoint,
    pub(super) to: NicIndex,
    /// The destination VI; `None` if the sender does not know one.
    pub(super) vi: Option<ViId>,
    pub(super) connection_id: ConnectionId,
    pub(super) body: PacketBody,
}

#[derive(Clone, Debug)]
pub(super) enum PacketBody {
    /// Requests a connection.
    Call { caller: Caller, discriminator: Vec<u8>, is_peer: bool },
    /// Answers a call with a VI.
    Agree { greeting: Vec<u8> },
    /// Confirms the answer: both are connected.
    Agreed,
    /// Ends an attempt or a connection.
    Over(DisconnectReason),
    /// A send (`place` is `None`) or an RDMA write.
    Data {
        slot: u64,
        /// The sender's count of unreliable data, from 1; 0 for reliable data.
        number: u64,
        place: Option<RemoteSegment>,
        bytes: Vec<u8>,
        immediate: Option<i32>,
        /// True if it is a duplicate made by the network.
        is_copy: bool,
    },
    /// Requests data.
    Read { slot: u64, place: RemoteSegment, length: u64 },
    /// The requested data, or the reason why there is none.
    Answer { slot: u64, result: Result<Vec<u8>, Status> },
    /// The outcome of a send or an RDMA write.
    Ack { slot: u64, status: Status },
}

/// The size of a packet besides its data, in bytes.
pub(super) const HEADER_BYTES: u64 = 32;

impl PacketBody {
    pub(super) fn size(&self) -> u64 {
        let bytes = match self {
            Self::Call { caller, discriminator, .. } => caller.greeting.len() + discriminator.len(),
            Self::Agree { greeting } => greeting.len(),
            Self::Data { bytes, .. } | Self::Answer { result: Ok(bytes), .. } => bytes.len(),
            _ => 0,
        };
        HEADER_BYTES.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    pub(super) const fn is_unreliable(&self) -> bool {
        matches!(self, Self::Data { number, .. } if *number > 0)
    }
}
