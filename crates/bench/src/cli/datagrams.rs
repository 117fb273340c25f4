//! Datagrams between processes, as a subcommand.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::host::machine::Machine;
use vigie_bench::messages::datagram::{
    BYTES_MAX, DatagramPlan, datagram_carrier, datagram_carriers,
};
use vigie_bench::messages::{Carrier, UnknownCarrier};
use vigie_bench::report::Report;

use super::output::{Output, duration, measure};

#[derive(Debug, Args)]
pub(super) struct Datagrams {
    /// Measure these systems only. Default: all; those over a veth pair need the right to make network
    /// namespaces, and are skipped without it.
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM,…", value_parser = this)]
    only: Vec<&'static dyn Carrier>,
    /// Sizes of datagrams in bytes. Default: from 1 to as many as fit into a packet.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BYTES_MAX))
    )]
    sizes: Vec<u32>,
    /// Time per system and measure.
    #[arg(long, value_name = "TIME", default_value = "150ms", value_parser = duration)]
    budget: Duration,
    /// Turns in which the budget is spent.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    pub(super) output: Output,
}

fn this(word: &str) -> Result<&'static dyn Carrier, UnknownCarrier> {
    datagram_carrier(word)
}

impl Datagrams {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let carriers = if self.only.is_empty() { datagram_carriers() } else { self.only };
        let mut plan = DatagramPlan::new(carriers, &self.sizes);
        plan.plan.budget = self.budget;
        plan.plan.rounds = self.rounds;
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        println!("\n{}", plan.tables(&outcome.rows));
        self.output.finish(Report::new(machine, self.output.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }
}
