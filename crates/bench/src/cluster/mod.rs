//! Barriers, measured by the method of [eth-barrier, §4.3]; so far those of the simulated cluster.

mod figure;
pub(crate) mod plot;
pub(crate) mod simulation;
mod tables;

pub(crate) use self::figure::{golden_difference, mean_error, recovery_cost};
