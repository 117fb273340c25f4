//! The error of simulations, and the limit that it names.

use std::time::Duration;

use thiserror::Error;

use crate::cost::TIME_MAX;
use crate::model::Bus;

/// The maximum number of transfers and runs of algorithms in one simulation.
pub const STEPS_MAX: u64 = 50_000_000;

/// The reason why a simulation cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// There is nothing to forward.
    #[error("a flow without messages, or no flow: give each at least one")]
    NoMessages,
    /// Flows that require different nodes.
    #[error("a node has one bus, and the first flow's is {first:?}: give all flows the same")]
    TwoBuses {
        /// The bus of the first flow.
        first: Bus,
    },
    /// Costs that only live systems have.
    #[error(
        "hand-overs, idle times and shared processors are not simulated: leave them out of the parameters"
    )]
    UnsupportedCosts,
    /// An algorithm that is too slow to be intended.
    #[error("an algorithm of {time:?}: it must be at most {TIME_MAX:?}")]
    Algorithm {
        /// The value given.
        time: Duration,
    },
    /// Too many steps.
    #[error("{steps} steps are more than {STEPS_MAX}: simulate fewer messages, or larger packets")]
    TooLong {
        /// The steps that would be needed.
        steps: u64,
    },
}
