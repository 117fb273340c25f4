//! Barriers over the network: members of other processes and hosts.
//!
//! ```text
//!   NetBuilder ── bootstrap (world or address): addresses, name, key, trial of multicast
//!        │
//!   NetBarrier ── wait: polls, then sleeps
//!        │                                         │
//!      engine: member state machine ◀─▶ transport  │ async_engine: an engine of `detect`, driven by the scheduler
//!                                       datagrams (UDP, link; unicast and multicast) | messages
//! ```
//!
//! [`NetBuilder`] forms groups and has the example. While a member's process computes, the server that hosts the
//! barrier answers for it. Failures are those of the [member state machine](crate::member); members that leave in
//! order fail no barrier that they have entered. [`NetBarrier::measure`] finds the costs of the transport, by which
//! the planner chooses, and [`NetBarrier::report`] compares the expected and observed times of barriers.
//! `docs/design/barrier-net.md` has the reasons for this design.

mod async_engine;
mod barrier;
mod bootstrap;
mod datagrams;
mod engine;
mod error;
mod faults;
mod formation;
mod leader;
mod leaving;
mod measure;
mod messages;
mod plan;
mod probe;
mod transport;

pub use self::{
    barrier::{MulticastState, NetBarrier},
    datagrams::NetworkAttachment,
    engine::NetCounters,
    error::FormationError,
    faults::Faults,
    formation::NetBuilder,
    measure::MeasureError,
    plan::WaitMode,
    transport::Transport,
};

impl NetBarrier {
    /// Begins to form a group.
    pub const fn builder() -> NetBuilder {
        NetBuilder::new()
    }
}
