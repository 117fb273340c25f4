//! Many connections that send by the clock, beside tasks that compute.

use std::time::Duration;

use clap::Args;

use crate::client::Crowd;
use crate::compute::{YieldEvery, parse_duration};
use crate::error::BenchError;
use crate::report::{
    Amount, Column, REACTION, Repetition, Row, Show, SystemCase, Turn, WORK_PER_S, by_default,
};
use crate::schedulers::System;

/// Which systems answer how many connections, beside how many compute tasks.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("6s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct CrowdPlan {
    /// Number of connections.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Time between two messages of a connection.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    period: Duration,
    /// Number of tasks that compute.
    #[arg(long, default_value_t = 2)]
    compute: u32,
    /// Computation of each of these tasks between two yields: a time, or `never`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    yield_every: YieldEvery,
    #[command(flatten)]
    amount: Amount,
}

impl SystemCase for CrowdPlan {
    const CASE: &'static str = "crowd";
    const COLUMNS: &'static [Column] = &[
        ("samples", Show::Count("samples")),
        ("p50", Show::Time("p50_us")),
        ("p99", Show::Time("p99_us")),
        ("p99.9", Show::Time("p99.9_us")),
        ("max", Show::Time("max_us")),
        ("unanswered", Show::Count("unanswered_max")),
        ("million units / s", Show::Millions(WORK_PER_S)),
    ];

    fn amount(&self) -> &Amount {
        &self.amount
    }

    fn parameters(&self, row: Row) -> Row {
        row.parameter("connections", self.connections)
            .parameter("period_ms", self.period.as_secs_f64() * 1e3)
            .parameter("compute", self.compute)
            .parameter("yield_every", self.yield_every.to_string())
    }

    fn measure(&self, system: System, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, {} connections", self.connections));
        let plan = self.amount.server(system).compute(self.compute, self.yield_every);
        let mut server = plan.compute_last().connections(self.connections).start()?;
        let crowd = Crowd::new(server.address()).connections(self.connections);
        let crowd = crowd.period(self.period).span(self.amount.of_turn());
        let (echoes, spent) = server.spent(|| crowd.run())?;
        Ok(Repetition::new(echoes.priority)
            .samples(REACTION, echoes.samples)
            .figure("unanswered_max", echoes.unanswered as f64)
            .figure(WORK_PER_S, spent.work_per_s()))
    }

    fn title(&self) -> String {
        format!(
            "Reaction on {} connections with a message per {:?} each, beside {} compute tasks \
             (yield every {})",
            self.connections, self.period, self.compute, self.yield_every
        )
    }
}
