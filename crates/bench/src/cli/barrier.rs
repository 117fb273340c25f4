//! Barriers, as a subcommand: live ones, and the simulated cluster.

mod live;
mod simulated;

use std::time::Duration;

use clap::Args;
use vigie_barrier::Algorithm;
use vigie_barrier::algorithm::AlgorithmError;

use super::options::Options;
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::report::Plan;

#[derive(Debug, Args)]
pub(super) struct Barrier {
    /// Simulate the paper's cluster of the year 2000 (eth-barrier in docs/papers.md), in virtual time: the results are the same
    /// on every machine.
    #[arg(long)]
    simulate: bool,
    /// Algorithms: shuffle-exchange, binary, ternary, concurrent, central, ternary-two-networks, dissemination-3, nomial-4,
    /// optimal-34500-7360 and the like. Default with --simulate: those of the paper's figures 5 to 10; over a network:
    /// concurrent, ternary, binary, dissemination, central. The planner's choice is always added.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", value_parser = algorithm)]
    algorithm: Vec<Algorithm>,
    /// Numbers of members, 1 to 1024. Default: 2, 8 and 32; with --simulate 2 to 32.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,…",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MEMBERS_MAX))
    )]
    members: Vec<u32>,
    /// Time by which one member enters each barrier later than the others. Default: 0.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    late: Option<Duration>,
    #[command(flatten)]
    live: live::Live,
    #[command(flatten)]
    simulated: simulated::Simulated,
}

/// Members of a barrier, at most.
const MEMBERS_MAX: u32 = 1024;

fn algorithm(name: &str) -> Result<Algorithm, AlgorithmError> {
    name.parse()
}

impl Options for Barrier {
    fn planned(self) -> Result<Box<dyn Plan>, BenchError> {
        Ok(if self.simulate { Box::new(simulated::plan(self)) } else { Box::new(live::plan(self)) })
    }
}

impl Barrier {
    fn members(&self, default: &[u32]) -> Vec<u32> {
        if self.members.is_empty() { default.to_vec() } else { self.members.clone() }
    }
}
