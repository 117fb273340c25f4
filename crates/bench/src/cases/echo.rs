//! Echoes while nothing else runs: what a runtime's own path costs, in time and in processor time.
//!
//! The client spins, so that its own wake-up is not part of the figure; it needs a core for itself.

use std::time::Duration;

use clap::Args;

use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::report::{Amount, Column, Repetition, Row, Show, SystemCase, Turn, by_default};
use crate::schedulers::System;

/// Key of the processor time per message.
pub(crate) const CPU_PER_MESSAGE: &str = "cpu_per_message_us";

/// Which systems echo how many messages.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("6s")), mut_arg("rounds", by_default("4")))]
pub(crate) struct EchoPlan {
    /// Pause between an echo and the next message. Default: none.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pause: Option<Duration>,
    /// Limit of messages for each system.
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

impl SystemCase for EchoPlan {
    const CASE: &'static str = "echo";
    const COLUMNS: &'static [Column] = &[
        ("samples", Show::Count("samples")),
        ("p50", Show::Time("p50_us")),
        ("p99", Show::Time("p99_us")),
        ("p99.9", Show::Time("p99.9_us")),
        ("processor time / message", Show::Time(CPU_PER_MESSAGE)),
    ];

    fn amount(&self) -> &Amount {
        &self.amount
    }

    fn parameters(&self, row: Row) -> Row {
        row.parameter("pause_us", self.pause().as_secs_f64() * 1e6)
    }

    fn measure(&self, system: System, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, idle but for the echo"));
        let mut server = self.amount.server(system).start()?;
        let client = self.amount.client(server.address(), self.samples, turn);
        let client = client.spacing(self.pause(), Duration::ZERO).spinning();
        let (echoes, spent) = server.spent(|| turn.run(&client))?;
        let cpu_us = spent.cpu_ns as f64 / 1e3 / echoes.sent as f64;
        Ok(Repetition::of(echoes).figure(CPU_PER_MESSAGE, cpu_us))
    }

    fn title(&self) -> String {
        format!("Echo while nothing else runs, {:?} between messages", self.pause())
    }
}
