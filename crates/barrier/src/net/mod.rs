//! Barriers over the network: members of other processes and hosts.
//!
//! ```text
//!   NetBuilder ── meeting (world or address): addresses, name, key, trial of multicast
//!        │
//!   NetBarrier ── wait: looks by itself, then sleeps
//!        │                                   │
//!      engine: member machine ◀─▶ transport  │ watch: the engine as a detector, hosted by the scheduler
//!                                 datagrams (UDP, link; unicast and multicast) | messages
//! ```

mod barrier;
mod datagrams;
mod engine;
mod error;
mod faults;
mod formation;
mod meeting;
mod messages;
mod transport;
mod watch;

pub use self::{
    barrier::{MulticastState, NetBarrier},
    datagrams::Interface,
    engine::NetCounters,
    error::FormationError,
    faults::Faults,
    formation::NetBuilder,
    transport::Transport,
};

impl NetBarrier {
    /// Begins to form a group.
    pub const fn builder() -> NetBuilder {
        NetBuilder::new()
    }
}
