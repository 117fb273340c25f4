//! One task that sleeps and computes in turn, while a worker is idle.
//!
//! The task that wakes up may be polled by the very thread that waited for events; a runtime in
//! which no other thread takes over the wait answers only when the task sleeps again (tokio, issue
//! 4730).

use std::time::Duration;

use crate::client::PingPong;
use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::report::progress::Progress;
use crate::report::repetition::{REACTION, Repetition, in_repetitions};
use crate::report::show::{ECHO_COLUMNS, table};
use crate::report::{Outcome, Row};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub const CASE: &str = "periodic";

/// Shortest pause between an echo and the next message, and the range over which pauses spread. It is
/// much less than a turn of the task, so that several messages meet each of its sleeps.
const SPACING: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(3)];

/// The time limit of an echo beyond the task's own step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Which systems react to how many messages, beside which task.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeriodicPlan {
    /// The systems, in the order of the table.
    pub systems: Vec<System>,
    /// How long the task sleeps.
    pub rest: Duration,
    /// How long it computes.
    pub step: Duration,
    /// Messages per system, at most.
    pub samples: u32,
    /// Time per system, at most.
    pub budget: Duration,
    /// Turns in which samples and budget are spent, each with new processes.
    pub rounds: u32,
    /// Worker threads, where a system has a choice.
    pub workers: usize,
    /// Seed of all chance.
    pub seed: u64,
}

impl PeriodicPlan {
    /// Plans a task that sleeps for 20 ms and computes for 200 ms, and 2000 messages in at most 24 s.
    #[must_use]
    pub const fn new(systems: Vec<System>) -> Self {
        Self {
            systems,
            rest: Duration::from_millis(20),
            step: Duration::from_millis(200),
            samples: 2_000,
            budget: Duration::from_secs(24),
            rounds: 2,
            workers: 2,
            seed: 0,
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
            let row = Row::new(system, CASE).parameter("rest_ms", self.rest.as_secs_f64() * 1e3);
            row.parameter("step_ms", self.step.as_secs_f64() * 1e3)
                .parameter("workers", self.workers)
        };
        let rows = self.systems.iter().map(row).collect();
        in_repetitions(rows, self.rounds, self.seed, progress, |_, row, seed, progress| {
            progress.case(format!("{}, beside a periodic task", row.system));
            let plan = ServerPlan::new(row.runtime()?).workers(self.workers);
            let server = plan.compute(1, YieldEvery::Step(self.step)).resting(self.rest).start()?;
            let samples = self.samples.div_ceil(self.rounds);
            let echoes = PingPong::new(server.address())
                .samples(samples)
                .budget(self.budget / self.rounds)
                .spacing(SPACING[0], SPACING[1])
                .timeout(TIMEOUT + self.step * 4)
                .seed(seed)
                .run(&mut |done| progress.part(done, samples as usize))?;
            Ok(Repetition::new(echoes.priority).samples(REACTION, echoes.samples))
        })
    }

    /// Shows percentiles.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
        let title = format!(
            "Reaction beside one task that sleeps {:?} and computes {:?}",
            self.rest, self.step
        );
        table(&title, rows, &ECHO_COLUMNS)
    }
}
