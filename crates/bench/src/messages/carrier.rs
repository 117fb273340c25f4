//! Systems that carry messages: their kinds, and the roles of their ranks.

use std::time::Duration;

use thiserror::Error;

use super::{Carrier, Measure, MeasureResult};
use crate::error::{BenchError, Failure};

/// Name of vigie's message layer in results: `send` and `recv` of a communicator, awaited.
pub(crate) const VIGIE: &str = "vigie";

/// Name of vigie's Virtual Interface layer in results: RDMA write with immediate.
pub(crate) const VIGIE_VI: &str = "vigie-vi";

/// What sort of system carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no others")]
pub enum CarrierKind {
    /// vigie itself.
    Vigie,
    /// A limit of the machine: a few lines of our own, with nothing superfluous.
    Limit,
    /// A system of others, or the kernel's.
    Peer,
}

/// A system that can be measured now. Dropping it removes what was built for it.
pub(crate) trait Prepared {
    /// Takes all measures of `run`, in its order, in processes of their own that end with this call.
    ///
    /// # Errors
    /// Those of the processes.
    fn measure(&self, run: &Run) -> Result<Vec<MeasureResult>, BenchError>;
}

/// The roles of one rank.
///
/// Rank 0 leads: it alone looks at the clock, and calls [`perform`](Self::perform) until it has seen
/// enough, then [`stop`](Self::stop). The others [`follow`](Self::follow) it meanwhile. Ranks form a
/// ring: each sends to the next and receives from the one before; of two, these are the same.
///
/// A rank need not look whether its peers live: the parent ends all ranks of a run in which one fails
/// or says nothing for too long.
pub trait PingPong {
    /// Leads `count` operations of `measure` (round trips, windows, laps of the token) and returns when
    /// the last has come back.
    ///
    /// # Errors
    /// Those of the system.
    fn perform(&mut self, measure: Measure, count: u32) -> Result<(), Failure>;

    /// Tells all followers that `measure` is over, and returns when they know.
    ///
    /// # Errors
    /// Those of the system.
    fn stop(&mut self, measure: Measure) -> Result<(), Failure>;

    /// Plays a follower's part of `measure` until rank 0 stops it.
    ///
    /// # Errors
    /// Those of the system.
    fn follow(&mut self, measure: Measure) -> Result<(), Failure>;
}

/// Measures that the same ranks take one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The measures, in order.
    pub(crate) measures: Vec<Measure>,
    /// Time per measure.
    pub(crate) budget: Duration,
    /// Number of ranks: 2, or those of a ring.
    pub(crate) ranks: u32,
    /// The cores: of two ranks each has its own, more share them.
    pub(crate) cores: Vec<usize>,
}

impl Run {
    /// How long is waited for the next measure's result before the run is given up.
    pub(crate) fn timeout(&self) -> Duration {
        // With more ranks than cores, a single lap may take many times the budget.
        const SLACK: Duration = Duration::from_secs(30);
        self.budget * 4 + SLACK
    }

    /// The core of a rank, or all of them if there are more ranks than cores.
    pub(crate) fn cores_of(&self, rank: u32) -> Vec<usize> {
        let own = usize::try_from(rank).ok().and_then(|rank| self.cores.get(rank));
        match own {
            Some(&core) if self.ranks == 2 => vec![core],
            _ => self.cores.clone(),
        }
    }
}

/// An unknown system.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no carrier named {name:?}; there are {known}")]
pub(crate) struct UnknownCarrier {
    /// The given text.
    pub(crate) name: String,
    /// The known words.
    pub(crate) known: String,
}

impl UnknownCarrier {
    pub(crate) fn among(carriers: &[&Carrier], name: &str) -> Self {
        let known = carriers.iter().map(|carrier| carrier.name).collect::<Vec<_>>();
        Self { name: name.to_owned(), known: known.join(", ") }
    }
}
