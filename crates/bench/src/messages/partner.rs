//! Two ranks, one of them the calling process, for Criterion, which counts and times itself.

use super::rank_context::cores;
use super::ranks::{RankPlan, RunBootstrap, failed};
use super::{Carrier, Measure, PingPong};
use crate::error::BenchError;
use crate::process::Child;

/// Rank 0 in this process, rank 1 in a process of its own.
#[must_use = "dropping it ends the other process"]
pub struct Partner {
    rank: Box<dyn PingPong>,
    measure: Measure,
    // Ends with this.
    _follower: Child,
    _bootstrap: RunBootstrap,
}

impl std::fmt::Debug for Partner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partner").field("measure", &self.measure).finish_non_exhaustive()
    }
}

impl Partner {
    /// Starts the other process and connects to it. The calling thread stays on the first core that
    /// this process may use, the other process on the second.
    ///
    /// # Errors
    /// Those of the process, and of the system's rank here.
    pub fn start(own: &Carrier, measure: Measure) -> Result<Self, BenchError> {
        let bootstrap = RunBootstrap::new(own.link_bytes, 2).map_err(failed)?;
        let cores = cores();
        let core =
            |at: usize| cores.get(at).or_else(|| cores.first()).copied().into_iter().collect();
        let follower = Child::start(&RankPlan {
            carrier: own.name.to_owned(),
            context: bootstrap.context(1, core(1)),
            measures: vec![measure],
            budget: std::time::Duration::ZERO,
        })?;
        let context = bootstrap.context(0, core(0));
        context.enter().map_err(failed)?;
        let rank = (own.open)(&context).map_err(failed)?;
        Ok(Self { rank, measure, _follower: follower, _bootstrap: bootstrap })
    }

    /// Performs `count` operations: round trips, or windows.
    ///
    /// # Errors
    /// Those of the system.
    pub fn perform(&mut self, count: u32) -> Result<(), BenchError> {
        self.rank.perform(self.measure, count).map_err(failed)
    }
}
