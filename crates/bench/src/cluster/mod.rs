//! Barriers, measured by the method of [eth-barrier, §4.3]; so far those of the simulated cluster.

mod figure;
pub mod plot;
pub mod simulation;
mod tables;

pub(crate) use self::figure::{
    BarrierCase, ablation, crossing_us, gain, golden_difference, largest_ratio, mean_error,
    paper_error, recovery_cost, saved, times_slower,
};
