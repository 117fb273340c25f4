//! Many connections that send by the clock, beside tasks that compute.

use std::time::Duration;

use clap::Args;

use super::BESIDE_THREADS;
use crate::client::Crowd;
use crate::compute::{YieldEvery, parse_duration};
use crate::error::BenchError;
use crate::report::{
    Amount, Case, Progress, REACTION, Repetition, Row, Show, WORK_PER_S, by_default, table,
};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub(crate) const CASE: &str = "crowd";

/// Which systems answer how many connections, beside how many compute tasks.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("6s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct CrowdPlan {
    /// Connections.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Time between two messages of one connection.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    period: Duration,
    /// Compute tasks.
    #[arg(long, default_value_t = 2)]
    compute: u32,
    /// How often each compute task yields: a duration, or `never`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    yield_every: YieldEvery,
    #[command(flatten)]
    amount: Amount,
}

impl Case for CrowdPlan {
    type Setting = System;

    fn rounds(&self) -> u32 {
        self.amount.rounds()
    }

    fn rows(&self) -> Vec<(System, Row)> {
        self.amount.rows(&BESIDE_THREADS, |system| {
            Row::new(system, CASE)
                .parameter("connections", self.connections)
                .parameter("period_ms", self.period.as_secs_f64() * 1e3)
                .parameter("compute", self.compute)
                .parameter("yield_every", self.yield_every.to_string())
        })
    }

    fn measure(
        &self,
        system: &System,
        _seed: u64,
        progress: &Progress,
    ) -> Result<Repetition, BenchError> {
        progress.case(format!("{system}, {} connections", self.connections));
        let plan = ServerPlan::new(*system).workers(self.amount.workers());
        let plan = plan.compute(self.compute, self.yield_every).compute_last();
        let mut server = plan.connections(self.connections).start()?;
        let before = server.usage()?;
        let echoes = Crowd::new(server.address())
            .connections(self.connections)
            .period(self.period)
            .span(self.amount.of_turn())
            .run()?;
        let spent = server.usage()?.since(before);
        Ok(Repetition::new(echoes.priority)
            .samples(REACTION, echoes.samples)
            .figure("unanswered_max", echoes.unanswered as f64)
            .figure(WORK_PER_S, spent.work_per_s()))
    }

    fn tables(&self, rows: &[Row]) -> String {
        let title = format!(
            "Reaction on {} connections with a message per {:?} each, beside {} compute tasks \
             (yield every {})",
            self.connections, self.period, self.compute, self.yield_every
        );
        let columns = [
            ("samples", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
            ("p99.9", Show::Time("p99.9_us")),
            ("max", Show::Time("max_us")),
            ("unanswered", Show::Count("unanswered_max")),
            ("million units / s", Show::Millions(WORK_PER_S)),
        ];
        table(&title, rows, &columns)
    }
}
