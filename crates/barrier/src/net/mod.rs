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
//!
//! [`NetBuilder`] forms groups and has the example. A member answers for its process while that computes: the server that
//! hosts the barrier does it. Failures are those of the [member machine](crate::member); members that leave in order
//! fail no barrier that they have entered.
//! [`NetBarrier::measure`] finds the costs of the transport, by which the planner
//! chooses, and [`NetBarrier::report`] says what barriers should take and did take. `docs/design/barrier-net.md` says why it is made so.

mod barrier;
mod datagrams;
mod engine;
mod error;
mod faults;
mod formation;
mod leader;
mod leaving;
mod measure;
mod meeting;
mod messages;
mod plan;
mod probe;
mod transport;
mod watch;

pub use self::{
    barrier::{MulticastState, NetBarrier},
    datagrams::Interface,
    engine::NetCounters,
    error::FormationError,
    faults::Faults,
    formation::NetBuilder,
    measure::MeasureError,
    plan::Waiting,
    transport::Transport,
};

impl NetBarrier {
    /// Begins to form a group.
    pub const fn builder() -> NetBuilder {
        NetBuilder::new()
    }
}
