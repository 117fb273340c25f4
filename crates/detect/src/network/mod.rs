//! The simulated network: what the kernel is to sockets in virtual time.
//!
//! ```text
//!  socket of net ──▶ NetworkSocket ──▶ Connection / Datagrams ──▶ packets ──▶ Link: cut, lost, or delayed
//!                                            ▲                                       │
//!  poller of a node ◀── readiness events ────┴──── arrival, timer ◀── event queue ◀──┘
//! ```
//! No thread, no clock and no descriptor is involved: time is an argument, and all chance comes from one generator.

mod congestion;
mod event;
mod handle;
mod link;
mod names;
mod node_id;
mod socket;
mod sockets;
mod state;
mod tcp;
mod trace;
mod udp;
mod unix;

pub use self::{
    event::CallId,
    handle::SimulatedNetwork,
    link::Link,
    node_id::NodeId,
    trace::{
        DropReason, NodeChange, TaskEnd, TraceDetail, TraceEvent, TraceEventKind, TraceLog,
        TracedPacket, TracedTask,
    },
};
pub(crate) use self::{handle::NetworkNode, socket::NetworkSocket};

/// Draws a number below `count`, which is not zero: the same one on machines with other words, where `Rng::usize` draws less.
///
/// # Panics
/// If `count` is zero.
#[must_use]
pub(crate) fn draw_below(random: &mut fastrand::Rng, count: usize) -> usize {
    let drawn = random.u64(..count as u64);
    usize::try_from(drawn).expect("invariant: less than a usize")
}
