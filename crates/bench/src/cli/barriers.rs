//! Barriers of members on one host, as a subcommand.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::barriers::{BarrierPlan, Laps, Over, PEERS};
use vigie_bench::compute::ParseDurationError;
use vigie_bench::machine::Machine;
use vigie_bench::report::Report;

use super::{Output, duration, measure};

#[derive(Debug, Args)]
pub(super) struct Barrier {
    /// What the members are: tasks on two workers, threads, processes over shared memory (shm), or
    /// processes in network namespaces on a bridge over UDP with multicast (udp) or raw Ethernet
    /// (ether), which needs root.
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", default_value = "tasks,threads,shm")]
    over: Vec<Over>,
    /// Numbers of members.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,…",
        default_value = "2,8,32",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    members: Vec<u32>,
    /// Peers to measure in the same run: openmpi (with each of its algorithms), mpich, std, hurdles,
    /// pthread, tokio; one that is not on this machine is skipped, and the table says how to get it.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PEER,…",
        value_parser = clap::builder::PossibleValuesParser::new(PEERS),
        default_value = "openmpi,mpich,std,hurdles,pthread,tokio"
    )]
    peers: Vec<String>,
    /// Dummy loop between two barriers; 0 for barriers that follow on each other at once.
    #[arg(long, value_name = "TIME", default_value = "30us", value_parser = pause)]
    dummy: Duration,
    /// Skewed arrival: each member's loop is longer by this much than that of the member before.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = pause)]
    skew: Duration,
    /// The last member sleeps so long before each barrier; 0: it is not late.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = pause)]
    late: Duration,
    /// Time per system and number of members.
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = duration)]
    budget: Duration,
    /// Turns in which the budget is spent.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Algorithms over a network, beside the planner's choice: concurrent, ternary, binary, dissemination,
    /// central; by default all.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    algorithm: Vec<String>,
    #[command(flatten)]
    pub(super) output: Output,
}

/// A duration, or none at all.
fn pause(text: &str) -> Result<Duration, ParseDurationError> {
    if text == "0" { Ok(Duration::ZERO) } else { duration(text) }
}

impl Barrier {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let laps = self.members.iter().map(|&members| {
            let mut laps = Laps::new(members);
            laps.budget = self.budget;
            laps.dummy = self.dummy;
            laps.skew = self.skew;
            laps.late = self.late;
            laps
        });
        let mut plan = BarrierPlan::new(self.over, laps.collect());
        plan.peers = self.peers;
        plan.rounds = self.rounds;
        plan.algorithms = self.algorithm;
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        println!("\n{}", plan.tables(&outcome.rows));
        self.output.finish(Report::new(machine, self.output.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }
}
