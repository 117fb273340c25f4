//! The subcommand `interrupts`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::interrupts::{InterruptsPlan, Source};

use super::duration;

#[derive(Debug, Args)]
pub(super) struct Interrupts {
    /// Sleeps of each kind.
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
    /// Seed of the lengths of computations.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Interrupts {
    pub(super) fn run(self) -> ExitCode {
        let mut plan = InterruptsPlan::default();
        plan.calls = self.calls;
        plan.mixed = self.mixed;
        plan.period = self.period;
        plan.seed = self.seed;
        let sources = Source::ALL.into_iter().filter(|source| source.name().contains(&self.only));
        let rows: Vec<_> = sources.map(|source| (source, plan.run(source))).collect();
        println!("\n{}", plan.table(&rows));
        ExitCode::SUCCESS
    }
}
