//! Echoes while nothing else runs: what a runtime's own path costs, in time and in processor time.
//!
//! The client spins, so that its own wake-up is not part of the figure; it needs a core for itself.

use std::time::Duration;

use clap::Args;

use super::BESIDE_THREADS;
use crate::client::PingPong;
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::report::{Amount, Case, Progress, REACTION, Repetition, Row, Show, by_default, table};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub(crate) const CASE: &str = "echo";

/// Key of the processor time per message.
pub(crate) const CPU_PER_MESSAGE: &str = "cpu_per_message_us";

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which systems echo how many messages.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("6s")), mut_arg("rounds", by_default("4")))]
pub(crate) struct EchoPlan {
    /// Pause between an echo and the next message. Default: none.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pause: Option<Duration>,
    /// Messages per system, at most.
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    amount: Amount,
}

impl EchoPlan {
    fn pause(&self) -> Duration {
        self.pause.unwrap_or_default()
    }
}

impl Case for EchoPlan {
    type Setting = System;

    fn rounds(&self) -> u32 {
        self.amount.rounds()
    }

    fn rows(&self) -> Vec<(System, Row)> {
        self.amount.rows(&BESIDE_THREADS, |system| {
            Row::new(system, CASE).parameter("pause_us", self.pause().as_secs_f64() * 1e6)
        })
    }

    fn measure(
        &self,
        system: &System,
        seed: u64,
        progress: &Progress,
    ) -> Result<Repetition, BenchError> {
        progress.case(format!("{system}, idle but for the echo"));
        let mut server = ServerPlan::new(*system).workers(self.amount.workers()).start()?;
        let samples = self.samples.div_ceil(self.amount.rounds());
        let before = server.usage()?;
        let echoes = PingPong::new(server.address())
            .samples(samples)
            .budget(self.amount.of_turn())
            .spacing(self.pause(), Duration::ZERO)
            .timeout(TIMEOUT)
            .seed(seed)
            .spinning()
            .run(&mut |done| progress.part(done, samples as usize))?;
        let spent = server.usage()?.since(before);
        Ok(Repetition::new(echoes.priority)
            .samples(REACTION, echoes.samples)
            .figure(CPU_PER_MESSAGE, spent.cpu_ns as f64 / 1e3 / echoes.sent as f64))
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("samples", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
            ("p99.9", Show::Time("p99.9_us")),
            ("processor time / message", Show::Time(CPU_PER_MESSAGE)),
        ];
        let title = format!("Echo while nothing else runs, {:?} between messages", self.pause());
        table(&title, rows, &columns)
    }
}
