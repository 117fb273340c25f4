//! The subcommand `waits`.

use std::process::ExitCode;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::host::machine::Machine;
use vigie_bench::report::Report;
use vigie_bench::waits::WaitsPlan;

use super::output::{Output, measure};

#[derive(Debug, Args)]
pub(super) struct Waits {
    /// Events of each row and turn.
    #[arg(long, default_value_t = 1_000)]
    events: usize,
    /// Turns; percentiles are of all events of a row.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: Output,
}

impl Waits {
    pub(super) const fn output(&self) -> &Output {
        &self.output
    }

    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let mut plan = WaitsPlan::default();
        plan.events = self.events;
        plan.rounds = self.rounds;
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        println!("\n{}", plan.tables(&outcome.rows));
        self.output.finish(Report::new(machine, self.output.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }
}
