//! By what a group plans: its costs, its cores, what its transport can do.

use std::slice;

use crate::{
    algorithm::Algorithm,
    group::Group,
    logp::{Advice, Cores, LogP, Measured, PlanError, candidates, plan},
};

/// How a member waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// It looks by itself for as long as it costs if all sleep, in bursts, and sleeps then.
    #[default]
    Adaptive,
    /// It looks by itself for as long as it waits: receiving costs it the least, and its processor is never free. It lets
    /// other threads and tasks run between two looks.
    Polling,
    /// It sleeps at once: each message is announced by the kernel, as those of the paper's library were by an
    /// interrupt [eth-barrier, §5.1.1].
    Sleeping,
}

/// What the planner is told; the same at all members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Basis {
    pub(super) costs: LogP,
    pub(super) is_measured: bool,
    pub(super) cores: Cores,
    pub(super) has_multicast: bool,
    pub(super) has_reduction: bool,
    pub(super) waiting: Waiting,
}

impl Basis {
    /// Chooses an algorithm.
    pub(super) fn plan(&self, group: Group) -> Result<Advice, PlanError> {
        let mut all = candidates(group, &self.costs, self.has_multicast);
        // Only these count every value once, whatever the size.
        if self.has_reduction {
            all.retain(|algorithm| !matches!(algorithm, Algorithm::Dissemination { .. }));
        }
        plan(group, &self.costs, self.cores, &all)
    }

    /// What an algorithm should take.
    pub(super) fn expect(&self, algorithm: Algorithm, group: Group) -> Result<Advice, PlanError> {
        plan(group, &self.costs, self.cores, slice::from_ref(&algorithm))
    }

    /// Takes what was measured, and the cores that rank 0 knows of.
    pub(super) fn learn(&mut self, measured: &Measured, cores: Cores) {
        self.costs = match self.waiting {
            Waiting::Adaptive | Waiting::Polling => measured.costs(),
            Waiting::Sleeping => measured.costs_asleep(),
        };
        self.is_measured = true;
        self.cores = cores;
    }
}
