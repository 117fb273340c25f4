//! The loads beyond the paper's tables, as subcommands.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use vigie_bench::BenchError;
use vigie_bench::cases::container::ContainerPlan;
use vigie_bench::cases::crowd::CrowdPlan;
use vigie_bench::cases::echo::EchoPlan;
use vigie_bench::cases::fairness::FairnessPlan;
use vigie_bench::cases::periodic::PeriodicPlan;
use vigie_bench::cases::service::ServicePlan;
use vigie_bench::compute::YieldEvery;
use vigie_bench::host::machine::Machine;
use vigie_bench::report::{Outcome, Report};
use vigie_bench::system::System;

use super::output::{Common, duration, measure};

/// How much to measure; the case sets the defaults.
#[derive(Debug, Args)]
pub(super) struct Amount {
    /// Time per row of the table, at most.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) budget: Option<Duration>,
    /// Turns in which samples and budget are spent.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: Option<u32>,
    #[command(flatten)]
    pub(super) common: Common,
}

impl Amount {
    /// Shows the table of an outcome and writes the file.
    pub(super) fn finish(
        &self,
        machine: Machine,
        outcome: Outcome,
        table: &str,
    ) -> Result<ExitCode, BenchError> {
        println!("\n{table}");
        let report = Report::new(machine, self.common.output.seed, outcome);
        self.common.output.finish(report, &[])?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Sets the fields of a plan that all cases share, and those options of the case that were given.
macro_rules! plan {
    ($kind:ident, $amount:expr, $($field:ident = $value:expr),* $(,)?) => {{
        let common = &$amount.common;
        let mut plan = $kind::new(common.systems(&[System::Vigie, System::Threads]));
        plan.budget = $amount.budget.unwrap_or(plan.budget);
        plan.rounds = $amount.rounds.unwrap_or(plan.rounds);
        plan.workers = common.workers;
        $(plan.$field = $value;)*
        plan
    }};
}

#[derive(Debug, Args)]
pub(super) struct Periodic {
    /// How long the task sleeps.
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = duration)]
    rest: Duration,
    /// How long it computes.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = duration)]
    step: Duration,
    /// Messages per system, at most.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    pub(super) amount: Amount,
}

#[derive(Debug, Args)]
pub(super) struct Service {
    /// Clients whose requests compute.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// How long such a request computes.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = duration)]
    step: Duration,
    /// Messages on old and messages on new connections, per system, at most.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    pub(super) amount: Amount,
}

#[derive(Debug, Args)]
pub(super) struct Crowd {
    /// Connections.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Time between two messages of one connection.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    period: Duration,
    /// Compute tasks.
    #[arg(long, default_value_t = 2)]
    compute: u32,
    /// How often each compute task yields: a duration, or `never`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    yield_every: YieldEvery,
    #[command(flatten)]
    pub(super) amount: Amount,
}

#[derive(Debug, Args)]
pub(super) struct Fairness {
    /// Numbers of foreign processes, each of which computes on one thread.
    #[arg(long, value_delimiter = ',', value_name = "K,…", default_value = "1,3")]
    outside: Vec<u32>,
    /// Compute tasks of the server: as many as it has workers, or fewer.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    compute: u32,
    /// How often each compute task yields: a duration, or `never`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    yield_every: YieldEvery,
    #[command(flatten)]
    pub(super) amount: Amount,
}

#[derive(Debug, Args)]
pub(super) struct Container {
    /// Cores that the group may use.
    #[arg(long, default_value_t = 1.0)]
    quota: f64,
    /// Compute tasks.
    #[arg(long, default_value_t = 2)]
    compute: u32,
    /// How often each compute task yields: a duration, or `never`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    yield_every: YieldEvery,
    /// Messages per system, at most.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    pub(super) amount: Amount,
}

#[derive(Debug, Args)]
pub(super) struct Echo {
    /// Pause between an echo and the next message. Default: none.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pause: Option<Duration>,
    /// Messages per system, at most.
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    pub(super) amount: Amount,
}

impl Periodic {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let Self { rest, step, samples, amount } = self;
        let seed = amount.common.output.seed;
        let plan =
            plan!(PeriodicPlan, amount, rest = rest, step = step, samples = samples, seed = seed,);
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        let table = plan.tables(&outcome.rows);
        amount.finish(machine, outcome, &table)
    }
}

impl Service {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let Self { clients, step, samples, amount } = self;
        let seed = amount.common.output.seed;
        let plan = plan!(
            ServicePlan,
            amount,
            clients = clients,
            step = step,
            samples = samples,
            seed = seed,
        );
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        let table = plan.tables(&outcome.rows);
        amount.finish(machine, outcome, &table)
    }
}

impl Crowd {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let Self { connections, period, compute, yield_every, amount } = self;
        let plan = plan!(
            CrowdPlan,
            amount,
            connections = connections,
            period = period,
            compute = compute,
            yield_every = yield_every,
        );
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        let table = plan.tables(&outcome.rows);
        amount.finish(machine, outcome, &table)
    }
}

impl Fairness {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let Self { outside, compute, yield_every, amount } = self;
        let seed = amount.common.output.seed;
        let plan = plan!(
            FairnessPlan,
            amount,
            outside = outside,
            compute = compute,
            yield_every = yield_every,
            seed = seed,
        );
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        let table = plan.tables(&outcome.rows);
        amount.finish(machine, outcome, &table)
    }
}

impl Container {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let Self { quota, compute, yield_every, samples, amount } = self;
        let seed = amount.common.output.seed;
        let plan = plan!(
            ContainerPlan,
            amount,
            quota = quota,
            compute = compute,
            yield_every = yield_every,
            samples = samples,
            seed = seed,
        );
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        let table = plan.tables(&outcome.rows);
        amount.finish(machine, outcome, &table)
    }
}

impl Echo {
    pub(super) fn run(self, machine: Machine) -> Result<ExitCode, BenchError> {
        let Self { pause, samples, amount } = self;
        let seed = amount.common.output.seed;
        let pause = pause.unwrap_or_default();
        let plan = plan!(EchoPlan, amount, pause = pause, samples = samples, seed = seed);
        let outcome = measure(plan.cases(), |progress| plan.run(progress))?;
        let table = plan.tables(&outcome.rows);
        amount.finish(machine, outcome, &table)
    }
}
