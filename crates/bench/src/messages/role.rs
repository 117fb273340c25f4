//! A rank's part, in a process of its own.

use super::own;
use super::ranks::RankPlan;
use super::stopwatch;
use crate::error::Failure;
use crate::process::print_result;

/// Runs a rank in this process.
pub(crate) fn play(plan: &RankPlan) -> Result<(), Failure> {
    plan.context.enter()?;
    let own = own(&plan.carrier).map_err(Failure::runtime)?;
    let mut rank = (own.open)(&plan.context)?;
    for &measure in &plan.measures {
        // The last operation once before it counts: connections are made when they are first needed, which `vigie-bench starts` measures.
        let measure_result = if plan.context.rank == 0 {
            rank.stop(measure)?;
            stopwatch::lead(&mut *rank, measure, plan.budget)?
        } else {
            rank.follow(measure)?;
            stopwatch::follow(&mut *rank, measure)?
        };
        print_result(&measure_result);
    }
    Ok(())
}
