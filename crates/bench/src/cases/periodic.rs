//! One task that sleeps and computes in turn, while a worker is idle.
//!
//! The task that wakes up may be polled by the very thread that waited for events; a runtime in
//! which no other thread takes over the wait answers only when the task sleeps again (tokio, issue
//! 4730).

use std::time::Duration;

use clap::Args;

use crate::compute::{YieldEvery, parse_duration};
use crate::error::BenchError;
use crate::report::{Amount, Column, ECHO_COLUMNS, Repetition, Row, SystemCase, Turn, by_default};
use crate::schedulers::System;

/// The time limit of an echo beyond the task's own step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Which systems react to how many messages, beside which task.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("24s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct PeriodicPlan {
    /// Time for which the task sleeps.
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = parse_duration)]
    rest: Duration,
    /// Time for which it then computes.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_duration)]
    step: Duration,
    /// Limit of messages for each system.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    amount: Amount,
}

impl SystemCase for PeriodicPlan {
    const CASE: &'static str = "periodic";
    const COLUMNS: &'static [Column] = &ECHO_COLUMNS;

    fn amount(&self) -> &Amount {
        &self.amount
    }

    fn parameters(&self, row: Row) -> Row {
        row.parameter("rest_ms", self.rest.as_secs_f64() * 1e3)
            .parameter("step_ms", self.step.as_secs_f64() * 1e3)
    }

    fn measure(&self, system: System, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, beside a periodic task"));
        let plan = self.amount.server(system).compute(1, YieldEvery::Step(self.step));
        let server = plan.resting(self.rest).start()?;
        let client = self.amount.client(server.address(), self.samples, turn);
        Ok(Repetition::of(turn.run(&client.timeout(TIMEOUT + self.step * 4))?))
    }

    fn title(&self) -> String {
        format!("Reaction beside one task that sleeps {:?} and computes {:?}", self.rest, self.step)
    }
}
