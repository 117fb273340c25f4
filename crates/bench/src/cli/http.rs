//! The subcommand `http`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::host::machine::Machine;
use vigie_bench::http::HttpPlan;
use vigie_bench::system::System;

use super::cases::Amount;
use super::output::{duration, measure};

#[derive(Debug, Args)]
pub(super) struct Http {
    /// Connections of `wrk`.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Pings per second.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pings: u32,
    /// Requests per second that compute [default: 6 for each core].
    #[arg(long)]
    computations: Option<u32>,
    /// How long such a request computes, on a core of its own.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = duration)]
    step: Duration,
    #[command(flatten)]
    pub(super) amount: Amount,
}

impl Http {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let Self { connections, pings, computations, step, amount } = self;
        let mut plan = HttpPlan::new(amount.common.systems(&[System::Vigie]));
        plan.budget = amount.budget.unwrap_or(plan.budget);
        plan.rounds = amount.rounds.unwrap_or(plan.rounds);
        plan.workers = amount.common.workers;
        plan.seed = amount.common.output.seed;
        (plan.connections, plan.pings_per_s) = (connections, pings);
        plan.computations_per_s = computations.unwrap_or(plan.computations_per_s);
        plan.step = step;
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        let table = plan.tables(&outcome.rows);
        amount.finish(machine, outcome, &table)
    }
}
