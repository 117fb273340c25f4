//! One task that sleeps and computes in turn, while a worker is idle.
//!
//! The task that wakes up may be polled by the very thread that waited for events; a runtime in
//! which no other thread takes over the wait answers only when the task sleeps again (tokio, issue
//! 4730).

use std::time::Duration;

use clap::Args;

use super::BESIDE_THREADS;
use crate::client::PingPong;
use crate::compute::{YieldEvery, parse_duration};
use crate::error::BenchError;
use crate::report::{
    Amount, Case, ECHO_COLUMNS, Progress, REACTION, Repetition, Row, by_default, table,
};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub(crate) const CASE: &str = "periodic";

/// Shortest pause between an echo and the next message, and the range over which pauses spread. It is
/// much less than a turn of the task, so that several messages meet each of its sleeps.
const SPACING: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(3)];

/// The time limit of an echo beyond the task's own step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Which systems react to how many messages, beside which task.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("24s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct PeriodicPlan {
    /// How long the task sleeps.
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = parse_duration)]
    rest: Duration,
    /// How long it computes.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_duration)]
    step: Duration,
    /// Messages per system, at most.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    amount: Amount,
}

impl Case for PeriodicPlan {
    type Setting = System;

    fn rounds(&self) -> u32 {
        self.amount.rounds()
    }

    fn rows(&self) -> Vec<(System, Row)> {
        self.amount.rows(&BESIDE_THREADS, |system| {
            Row::new(system, CASE)
                .parameter("rest_ms", self.rest.as_secs_f64() * 1e3)
                .parameter("step_ms", self.step.as_secs_f64() * 1e3)
        })
    }

    fn measure(
        &self,
        system: &System,
        seed: u64,
        progress: &Progress,
    ) -> Result<Repetition, BenchError> {
        progress.case(format!("{system}, beside a periodic task"));
        let plan = ServerPlan::new(*system).workers(self.amount.workers());
        let server = plan.compute(1, YieldEvery::Step(self.step)).resting(self.rest).start()?;
        let samples = self.samples.div_ceil(self.amount.rounds());
        let echoes = PingPong::new(server.address())
            .samples(samples)
            .budget(self.amount.of_turn())
            .spacing(SPACING[0], SPACING[1])
            .timeout(TIMEOUT + self.step * 4)
            .seed(seed)
            .run(&mut |done| progress.part(done, samples as usize))?;
        Ok(Repetition::new(echoes.priority).samples(REACTION, echoes.samples))
    }

    fn tables(&self, rows: &[Row]) -> String {
        let title = format!(
            "Reaction beside one task that sleeps {:?} and computes {:?}",
            self.rest, self.step
        );
        table(&title, rows, &ECHO_COLUMNS)
    }
}
