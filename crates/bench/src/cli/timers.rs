//! The subcommand `timers`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::host::machine::Machine;
use vigie_bench::report::Report;
use vigie_bench::system::System;
use vigie_bench::timers::TimersPlan;

use super::output::{Common, Output, duration, measure};

#[derive(Debug, Args)]
pub(super) struct Timers {
    /// Time for each row and turn.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    time: Duration,
    /// Turns; figures are medians over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

impl Timers {
    pub(super) const fn output(&self) -> &Output {
        &self.common.output
    }

    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let own = [System::Vigie, System::VigieUserLevel];
        let mut plan = TimersPlan::new(self.common.systems(&own));
        plan.time = self.time;
        plan.rounds = self.rounds;
        plan.workers = self.common.workers;
        plan.seed = self.common.output.seed;
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        println!("\n{}", plan.tables(&outcome.rows));
        self.common.output.finish(Report::new(machine, plan.seed, outcome), &[])?;
        Ok(ExitCode::SUCCESS)
    }
}
