//! The simulated network: what the kernel is to sockets in virtual time.
//!
//! ```text
//!  socket of net ──▶ NetworkSocket ──▶ Connection / Datagrams ──▶ packets ──▶ Link: cut, lost, or delayed
//!                                            ▲                                       │
//!  poller of a node ◀── readiness events ────┴──── arrival, timer ◀── event queue ◀──┘
//! ```
//! No thread, no clock and no descriptor is involved: time is an argument, and all chance comes from one generator.

mod event;
mod handle;
mod link;
mod socket;
mod sockets;
mod state;
mod tcp;
mod trace;
mod udp;

pub(crate) use self::{handle::NetworkNode, socket::NetworkSocket};
pub use self::{
    handle::SimulatedNetwork,
    link::Link,
    state::NodeId,
    trace::{
        DropReason, NodeChange, PacketInfo, TaskEnd, TraceDetail, TraceEvent, TraceEventKind,
        TraceLog, TracedTask,
    },
};
