//! The events of a simulation, and what nodes report of them.

use super::frame::{Frame, NodeIndex};

/// An event that happens at its time.
#[derive(Debug)]
pub(super) enum SimEvent<M> {
    /// The processor of a node has finished its task, unless that was interrupted: its task then has another number.
    Done { node: NodeIndex, generation: u64 },
    /// A frame is in the transmit memory of this NIC of its sender.
    Offer { nic: usize, frame: Frame<M> },
    /// The last bit of a frame is on its sender's link to a switch.
    Sent { node: NodeIndex },
    /// A switch may send the frame on.
    Forward { nic: usize, frame: Frame<M> },
    /// A frame is in the ring of a NIC, in the host's memory.
    Land { nic: usize, node: NodeIndex, message: M },
    /// An event on the wire of the hub that connects these NICs.
    Hub { nic: usize, what: HubEvent },
    /// A program asked to be called.
    Deadline { node: NodeIndex },
}

/// An event on the wire of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HubEvent {
    /// A station may try.
    Attempt(NodeIndex),
    /// The others begin to hear a station.
    Hear(NodeIndex),
    /// The others stop hearing it.
    Fade(NodeIndex),
    /// A station has sent a whole frame, unless its attempt with this number met a collision.
    Sent(NodeIndex, u64),
    /// A station has sent its jam.
    Jammed(NodeIndex),
}

/// A report of a node to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeReport {
    Entered,
    Exited,
    Failed(String),
}
