//! Echoes while nothing else runs: what a runtime's own path costs, in time and in processor time.
//!
//! The client spins, so that its own wake-up is not part of the figure; it needs a core for itself.

use std::time::Duration;

use crate::client::PingPong;
use crate::error::BenchError;
use crate::report::progress::Progress;
use crate::report::repetition::{REACTION, Repetition, in_repetitions};
use crate::report::show::{Show, table};
use crate::report::{Outcome, Row};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub const CASE: &str = "echo";

/// Key of the processor time per message.
pub(crate) const CPU_PER_MESSAGE: &str = "cpu_per_message_us";

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which systems echo how many messages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EchoPlan {
    /// The systems, in the order of the table.
    pub systems: Vec<System>,
    /// Pause between an echo and the next message; zero: none.
    pub pause: Duration,
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

impl EchoPlan {
    /// Plans 40 000 messages without a pause, in at most 6 s.
    #[must_use]
    pub const fn new(systems: Vec<System>) -> Self {
        Self {
            systems,
            pause: Duration::ZERO,
            samples: 40_000,
            budget: Duration::from_secs(6),
            rounds: 4,
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
            let row = Row::new(system, CASE).parameter("workers", self.workers);
            row.parameter("pause_us", self.pause.as_secs_f64() * 1e6)
        };
        let rows = self.systems.iter().map(row).collect();
        in_repetitions(rows, self.rounds, self.seed, progress, |_, row, seed, progress| {
            progress.case(format!("{}, idle but for the echo", row.system));
            let mut server = ServerPlan::new(row.runtime()?).workers(self.workers).start()?;
            let samples = self.samples.div_ceil(self.rounds);
            let before = server.usage()?;
            let echoes = PingPong::new(server.address())
                .samples(samples)
                .budget(self.budget / self.rounds)
                .spacing(self.pause, Duration::ZERO)
                .timeout(TIMEOUT)
                .seed(seed)
                .spinning()
                .run(&mut |done| progress.part(done, samples as usize))?;
            let spent = server.usage()?.since(before);
            Ok(Repetition::new(echoes.priority)
                .samples(REACTION, echoes.samples)
                .figure(CPU_PER_MESSAGE, spent.cpu_ns as f64 / 1e3 / echoes.sent as f64))
        })
    }

    /// Shows percentiles and processor time.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("samples", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
            ("p99.9", Show::Time("p99.9_us")),
            ("processor time / message", Show::Time(CPU_PER_MESSAGE)),
        ];
        let title = format!("Echo while nothing else runs, {:?} between messages", self.pause);
        table(&title, rows, &columns)
    }
}
