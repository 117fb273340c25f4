//! The simulated cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use vigie_barrier::cluster::paper::Case;
use vigie_barrier::cluster::{Arrival, Medium};

use super::Barrier;
use crate::cluster::simulation::{ParameterSet, SimulationPlan};
use crate::compute::parse_duration;

#[derive(Debug, Args)]
#[group(requires = "simulate")]
#[command(next_help_heading = "With --simulate")]
pub(super) struct Simulated {
    /// Networks to simulate, with --algorithm.
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        value_name = "NETWORK,…",
        default_value = "switch,hub"
    )]
    network: Vec<SimulatedNetwork>,
    /// Sets of costs. Default: calibrated; without --algorithm, calibrated and bare.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "SET,…")]
    parameters: Vec<ParameterSet>,
    /// Let members recover lost frames, as the library's members do, instead of only sending the algorithm's steps.
    #[arg(long)]
    recovery: bool,
    /// Time after which a member asks for a missing frame.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10ms", requires = "recovery")]
    repeat_after: Duration,
    /// Probability, 0 to 1, that a receiver loses a frame; above 0, use --recovery.
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    loss: f64,
    /// Each member enters after a random delay of up to this. Default: no delay.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "late")]
    spread: Option<Duration>,
    /// Number of barriers of a run.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    barriers: u32,
    /// Number of seeds, over which times are averaged where they depend on chance.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// Simulate what the goals need.
    #[arg(long, hide = true, conflicts_with = "algorithm")]
    for_goals: bool,
    /// Draw each figure as SVG, to files whose names begin like this one.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SimulatedNetwork {
    /// A store-and-forward switch, or two.
    Switch,
    /// A CSMA/CD repeater hub, or two.
    Hub,
}

impl From<SimulatedNetwork> for Medium {
    fn from(network: SimulatedNetwork) -> Self {
        match network {
            SimulatedNetwork::Switch => Self::Switch,
            SimulatedNetwork::Hub => Self::Hub,
        }
    }
}

pub(super) fn plan(barrier: Barrier) -> SimulationPlan {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut plan = planned(&barrier);
    let Barrier { simulated, late, .. } = barrier;
    plan.barriers = simulated.barriers;
    plan.seeds = simulated.seeds;
    plan.loss = simulated.loss;
    plan.repeat_after = simulated.recovery.then_some(simulated.repeat_after);
    if let Some(most) = simulated.spread {
        plan.arrival = Arrival::Spread(nanoseconds(most));
    } else if let Some(late) = late {
        plan.arrival = Arrival::OneLate(nanoseconds(late));
    }
    plan.plot = simulated.plot;
    plan
}

/// The paper's figures, or what was asked for.
fn planned(barrier: &Barrier) -> SimulationPlan {
    let Simulated { network, parameters, for_goals, .. } = &barrier.simulated;
    if *for_goals {
        return SimulationPlan::goals();
    }
    let sets = parameters.clone();
    if barrier.algorithm.is_empty() {
        let figures = SimulationPlan::figures();
        if sets.is_empty() {
            return figures;
        }
        let is_first = |(_, set): &&(Case, ParameterSet)| *set == ParameterSet::Calibrated;
        let mut cases = Vec::new();
        for (mut case, _) in figures.cases.iter().filter(is_first).copied() {
            case.figure = 0;
            cases.extend(sets.iter().map(|set| (case, *set)));
        }
        return SimulationPlan::new(cases);
    }
    let sets = if sets.is_empty() { vec![ParameterSet::Calibrated] } else { sets };
    let mut cases = Vec::new();
    for algorithm in &barrier.algorithm {
        for medium in network {
            for members in barrier.members(&[2, 4, 8, 16, 32]) {
                let case = Case::new(0, *algorithm, members, (*medium).into());
                cases.extend(sets.iter().map(|set| (case, *set)));
            }
        }
    }
    SimulationPlan::new(cases)
}
