//! A service of which some requests compute, each on a new connection, while others only want an echo.
//!
//! Two clients time echoes: one on a connection that has long been open, one on a new connection for
//! each message, whose time includes the opening.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::Args;

use crate::client::Requests;
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::host::threads_of;
use crate::report::{
    Amount, Column, Repetition, Row, Show, SystemCase, THREADS_MAX, Turn, WORK_PER_S, by_default,
};
use crate::schedulers::System;

/// Name of the samples on new connections; those on the old one are the row's own.
pub(crate) const NEW: &str = "new";

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often the threads of the server are counted: often enough to see each request that computes.
const COUNT_EVERY: Duration = Duration::from_millis(20);

/// Which systems serve which requests.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("8s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct ServicePlan {
    /// Number of clients whose requests compute.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// Computation of each of their requests.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_duration)]
    step: Duration,
    /// Limit of messages on open connections, and of messages on new ones, for each system.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    amount: Amount,
}

impl SystemCase for ServicePlan {
    const CASE: &'static str = "service";
    const COLUMNS: &'static [Column] = &[
        ("old: p50", Show::Time("p50_us")),
        ("p99", Show::Time("p99_us")),
        ("max", Show::Time("max_us")),
        ("new: p50", Show::Time("new_p50_us")),
        ("p99", Show::Time("new_p99_us")),
        ("max", Show::Time("new_max_us")),
        ("threads", Show::Count(THREADS_MAX)),
        ("million units / s", Show::Millions(WORK_PER_S)),
    ];

    fn amount(&self) -> &Amount {
        &self.amount
    }

    fn parameters(&self, row: Row) -> Row {
        row.parameter("clients", self.clients).parameter("step_ms", self.step.as_secs_f64() * 1e3)
    }

    fn measure(&self, system: System, turn: &Turn<'_>) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, as a service"));
        let mut server = self.amount.server(system).service(self.step).start()?;
        let (address, process) = (server.address(), server.process());
        // Dropping it on any way out ends the clients.
        let mut requests = Requests { address, clients: self.clients }.start()?;
        let ping = self.amount.client(server.address(), self.samples, turn).timeout(TIMEOUT);
        let both = || {
            thread::scope(|scope| {
                let (over, is_over) = mpsc::channel::<()>();
                let count = scope.spawn(move || {
                    let mut most = 0;
                    while is_over.recv_timeout(COUNT_EVERY) == Err(RecvTimeoutError::Timeout) {
                        most = most.max(threads_of(process));
                    }
                    most
                });
                let fresh = ping.clone().on_new_connections();
                let new = scope.spawn(move || fresh.run(&mut |_| ()));
                let old = ping.run(&mut |_| ());
                let new = new.join().expect("invariant: a client run never panics");
                drop(over);
                let threads = count.join().expect("invariant: counting never panics");
                Ok((old?, new?, threads))
            })
        };
        let ((old, new, threads), spent) = server.spent(both)?;
        // Clients that have failed answer with their failure: without them nothing was measured.
        requests.usage()?;
        Ok(Repetition::of(old)
            .samples(NEW, new.samples)
            .figure(THREADS_MAX, threads as f64)
            .figure(WORK_PER_S, spent.work_per_s()))
    }

    fn title(&self) -> String {
        format!(
            "Reaction of a service, {} clients of which compute for {:?} per request",
            self.clients, self.step
        )
    }
}
