//! The reasons why a simulation gives no times.

use thiserror::Error;

use crate::algorithm::AlgorithmError;
use crate::group::{Group, GroupError, Rank};
use crate::member::MemberError;

/// The reason why a simulation gave no times.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The group cannot exist.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The algorithm does not suit the group.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmError),
    /// Nothing would ever arrive.
    #[error("links of 0 Mb/s carry nothing: give a rate")]
    NoRate,
    /// The parts of L are longer than L.
    #[error(
        "L of {latency_ns} ns is less than DMA and two transmissions, {least_ns} ns: raise L or the rate"
    )]
    Latency {
        /// L.
        latency_ns: u64,
        /// The minimum L.
        least_ns: u64,
    },
    /// Collisions would not be noticed.
    #[error(
        "a hub's delay of {hub_delay_ns} ns is more than half a slot, {limit_ns} ns: collisions would go unnoticed"
    )]
    HubDelay {
        /// The delay.
        hub_delay_ns: u64,
        /// The maximum delay.
        limit_ns: u64,
    },
    /// There must be one network or two.
    #[error("nodes have one or two networks, not {count}")]
    NetworkCount {
        /// The number given.
        count: usize,
    },
    /// Too few or too many members.
    #[error("a group has 1 to {} members, not {count}", Group::SIZE_MAX)]
    Members {
        /// The number given.
        count: usize,
    },
    /// There is nothing to measure.
    #[error("there are no barriers to run: ask for at least one")]
    NoBarriers,
    /// The loss is not a probability.
    #[error("{loss} is not a probability: give 0 to 1")]
    Loss {
        /// The value given.
        loss: f64,
    },
    /// The member state machine refuses the schedule or the time to repeat.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The schedule uses a second network.
    #[error("the schedule uses a second network, but there is only one: give two")]
    NoNetwork,
    /// No event is left, but members are still in the barrier.
    #[error(
        "{} members wait for ever in barrier {epoch}, the first of them {}: {lost} frames were lost, {given_up} given up \
         after collisions; bare steps do not recover, the member machine does",
        waiting.len(), waiting.first().copied().unwrap_or(Rank(0))
    )]
    Stuck {
        /// The waiting members.
        waiting: Vec<Rank>,
        /// The barrier of the first of them, counted from 0.
        epoch: u32,
        /// Copies of frames that were lost.
        lost: u64,
        /// Frames that collided too often.
        given_up: u64,
    },
    /// A member left before another one had entered: the algorithm is wrong.
    #[error("member {} left barrier {epoch} before every member had entered it", rank.0)]
    Early {
        /// The member that left.
        rank: Rank,
        /// The barrier, counted from 0.
        epoch: u32,
    },
    /// A program could not go on.
    #[error("member {} failed: {reason}", rank.0)]
    Failed {
        /// The program's rank.
        rank: Rank,
        /// The reason it gave.
        reason: String,
    },
    /// The run does not end.
    #[error("the barriers have not ended within an hour of the simulation's time")]
    Endless,
}
