//! The subcommand `interrupts`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::interrupts::{ForeignCallsPlan, InterruptSource, InterruptsPlan};

use super::output::{duration, measure};

#[derive(Debug, Args)]
pub(super) struct Interrupts {
    /// Sleeps of each kind, for each source.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    calls: u32,
    /// Sleeps after a computation.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    mixed: u32,
    /// Time between two signals.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = duration)]
    period: Duration,
    /// Measure only the sources whose name contains this.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Measure no source, but this many foreign calls in tasks of the hybrid flavor, beside hogs (a minute for
    /// a million).
    #[arg(long, value_name = "N", conflicts_with_all = ["calls", "mixed", "period", "only"])]
    runtime: Option<u64>,
    /// Seed of the lengths of computations.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Interrupts {
    pub(super) fn run(self) -> Result<ExitCode, BenchError> {
        if let Some(calls) = self.runtime {
            let mut plan = ForeignCallsPlan::default();
            (plan.calls, plan.seed) = (calls, self.seed);
            let outcome = measure(1, |progress| plan.run(progress))?;
            println!("\n{}", plan.table(&outcome.rows));
            return Ok(ExitCode::SUCCESS);
        }
        let mut plan = InterruptsPlan::default();
        plan.calls = self.calls;
        plan.mixed = self.mixed;
        plan.period = self.period;
        plan.seed = self.seed;
        let sources =
            InterruptSource::ALL.into_iter().filter(|source| source.name().contains(&self.only));
        let rows: Vec<_> = sources.map(|source| (source, plan.run(source))).collect();
        println!("\n{}", plan.table(&rows));
        Ok(ExitCode::SUCCESS)
    }
}
