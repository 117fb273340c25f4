//! The basis of a group's plans: its costs, its cores, and the abilities of its transport.

use std::slice;

use crate::{
    algorithm::{Algorithm, AlgorithmError},
    group::Group,
    logp::{Advice, CoreAllocation, LogP, MeasuredCosts, candidates, plan},
};

/// The mode in which a member waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitMode {
    /// Polls in bursts for as long as a barrier costs if all sleep, then sleeps.
    #[default]
    Adaptive,
    /// Polls for as long as it waits: receiving is cheapest, but its processor is never free. Other threads and tasks
    /// run between two polls.
    Polling,
    /// Sleeps at once: the kernel announces each message, as interrupts did for the paper's library
    /// [eth-barrier, §5.1.1].
    Sleeping,
}

/// The planner's input, the same at all members.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannerInput {
    pub(super) costs: LogP,
    pub(super) is_measured: bool,
    pub(super) cores: CoreAllocation,
    pub(super) has_multicast: bool,
    pub(super) has_reduction: bool,
    pub(super) wait_mode: WaitMode,
}

impl PlannerInput {
    /// Chooses an algorithm.
    pub(super) fn plan(&self, group: Group) -> Result<Advice, AlgorithmError> {
        let mut all = candidates(group, &self.costs, self.has_multicast);
        // Only these count every value once, whatever the size.
        if self.has_reduction {
            all.retain(|algorithm| !matches!(algorithm, Algorithm::Dissemination { .. }));
        }
        plan(group, &self.costs, self.cores, &all)
    }

    /// Returns the expected time of an algorithm.
    pub(super) fn expect(
        &self,
        algorithm: Algorithm,
        group: Group,
    ) -> Result<Advice, AlgorithmError> {
        plan(group, &self.costs, self.cores, slice::from_ref(&algorithm))
    }

    /// Adopts the measured costs, and the cores that rank 0 reports.
    pub(super) fn learn(&mut self, measured: &MeasuredCosts, cores: CoreAllocation) {
        self.costs = match self.wait_mode {
            WaitMode::Adaptive | WaitMode::Polling => measured.costs(),
            WaitMode::Sleeping => measured.costs_asleep(),
        };
        self.is_measured = true;
        self.cores = cores;
    }
}
