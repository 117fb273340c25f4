//! Many connections that send by the clock, beside tasks that compute.

use std::time::Duration;

use crate::client::Crowd;
use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::report::progress::Progress;
use crate::report::repetition::{REACTION, Repetition, WORK_PER_S, in_repetitions};
use crate::report::show::{Show, table};
use crate::report::{Outcome, Row};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub const CASE: &str = "crowd";

/// Which systems answer how many connections, beside how many compute tasks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CrowdPlan {
    /// The systems, in the order of the table.
    pub systems: Vec<System>,
    /// Connections.
    pub connections: u32,
    /// Time between two messages of one connection.
    pub period: Duration,
    /// Compute tasks.
    pub compute: u32,
    /// How often each compute task yields.
    pub yield_every: YieldEvery,
    /// How long messages are sent, per system.
    pub budget: Duration,
    /// Turns in which the budget is spent, each with new processes.
    pub rounds: u32,
    /// Worker threads, where a system has a choice.
    pub workers: usize,
}

impl CrowdPlan {
    /// Plans 1000 connections, a message per 100 ms on each, two compute tasks that yield every second,
    /// for 6 s.
    #[must_use]
    pub const fn new(systems: Vec<System>) -> Self {
        Self {
            systems,
            connections: 1_000,
            period: Duration::from_millis(100),
            compute: 2,
            yield_every: YieldEvery::Step(Duration::from_secs(1)),
            budget: Duration::from_secs(6),
            rounds: 2,
            workers: 2,
        }
    }

    /// Returns how many cases [`run`](Self::run) measures, for its progress bar.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.systems.len() * self.rounds as usize
    }

    /// Measures all systems in turns.
    ///
    /// # Errors
    /// Those of the processes. A system that does not react is not an error: its row says so.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let row = |&system| {
            Row::new(system, CASE)
                .parameter("connections", self.connections)
                .parameter("period_ms", self.period.as_secs_f64() * 1e3)
                .parameter("compute", self.compute)
                .parameter("yield_every", self.yield_every.to_string())
                .parameter("workers", self.workers)
        };
        let rows = self.systems.iter().map(row).collect();
        in_repetitions(rows, self.rounds, 0, progress, |_, row, _, progress| {
            progress.case(format!("{}, {} connections", row.system, self.connections));
            let plan = ServerPlan::new(row.runtime()?).workers(self.workers);
            let plan = plan.compute(self.compute, self.yield_every).compute_last();
            let mut server = plan.connections(self.connections).start()?;
            let before = server.usage()?;
            let echoes = Crowd::new(server.address())
                .connections(self.connections)
                .period(self.period)
                .span(self.budget / self.rounds)
                .run()?;
            let spent = server.usage()?.since(before);
            Ok(Repetition::new(echoes.priority)
                .samples(REACTION, echoes.samples)
                .figure("unanswered_max", echoes.unanswered as f64)
                .figure(WORK_PER_S, spent.work_per_s()))
        })
    }

    /// Shows percentiles.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
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
