//! Goals of the scheduler's own code in virtual time.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::report::figure::Figure;
use crate::virtual_time::{BROKEN, CASE, SEEDS};

/// The goals of the simulation.
pub(super) static GOALS: &[Goal] = &[Goal {
    area: Area::Simulation,
    case: "the scheduler in virtual time, loads and machines by seed",
    command: "vigie-bench goals simulation",
    figure: "seeds that break a check",
    bound: Bound::AtMost(0.0),
    samples_min: SEEDS,
    experiment: Experiment::Simulation,
    measure: |rows| {
        let row = rows.iter().find(|row| row.case == CASE)?;
        Some(Figure::new(row.figure(BROKEN)?, row.samples()))
    },
}];
