//! A rank's part, in a process of its own.

use super::names::own;
use super::ranks::RankPlan;
use super::stopwatch;
use crate::error::Failure;
use crate::process::say_found;

/// Plays a rank in this process.
pub(crate) fn play(plan: &RankPlan) -> Result<(), Failure> {
    plan.seat.enter()?;
    plan.seat.pin()?;
    let own = own(&plan.carrier).map_err(Failure::runtime)?;
    let mut rank = (own.open)(&plan.seat)?;
    for &measure in &plan.measures {
        let played = if plan.seat.rank == 0 {
            stopwatch::lead(&mut *rank, measure, plan.budget)?
        } else {
            stopwatch::follow(&mut *rank, measure)?
        };
        say_found(&played);
    }
    Ok(())
}
