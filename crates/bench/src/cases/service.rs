//! A service of which some requests compute, each on a new connection, while others only want an echo.
//!
//! Two clients time echoes: one on a connection that has long been open, one on a new connection for
//! each message, whose time includes the opening.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::Args;

use super::BESIDE_THREADS;
use crate::client::{Echoes, PingPong, Requests};
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::report::{
    Amount, Case, Progress, REACTION, Repetition, Row, Show, THREADS_MAX, WORK_PER_S, by_default,
    table,
};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub(crate) const CASE: &str = "service";

/// Name of the samples on new connections; those on the old one are the row's own.
pub(crate) const NEW: &str = "new";

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often the threads of the server are counted: often enough to see each request that computes.
const COUNT_EVERY: Duration = Duration::from_millis(20);

/// Shortest pause between an echo and the next message, and the range over which pauses spread.
const SPACING: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(3)];

/// Which systems serve which requests.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("8s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct ServicePlan {
    /// Clients whose requests compute.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// How long such a request computes.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_duration)]
    step: Duration,
    /// Messages on old and messages on new connections, per system, at most.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    amount: Amount,
}

impl Case for ServicePlan {
    type Setting = System;

    fn rounds(&self) -> u32 {
        self.amount.rounds()
    }

    fn rows(&self) -> Vec<(System, Row)> {
        self.amount.rows(&BESIDE_THREADS, |system| {
            Row::new(system, CASE)
                .parameter("clients", self.clients)
                .parameter("step_ms", self.step.as_secs_f64() * 1e3)
        })
    }

    fn measure(
        &self,
        system: &System,
        seed: u64,
        progress: &Progress,
    ) -> Result<Repetition, BenchError> {
        progress.case(format!("{system}, as a service"));
        let plan = ServerPlan::new(*system).workers(self.amount.workers());
        let mut server = plan.service(self.step).start()?;
        let (address, process) = (server.address(), server.process());
        // Dropping it on any way out ends the clients.
        let mut requests = Requests { address, clients: self.clients }.start()?;
        let before = server.usage()?;
        let ping = PingPong::new(address)
            .samples(self.samples.div_ceil(self.amount.rounds()))
            .budget(self.amount.of_turn())
            .spacing(SPACING[0], SPACING[1])
            .timeout(TIMEOUT)
            .seed(seed);
        let (old, new, threads) = thread::scope(|scope| {
            let (over, is_over) = mpsc::channel::<()>();
            let count = scope.spawn(move || {
                let mut most = 0;
                while is_over.recv_timeout(COUNT_EVERY) == Err(RecvTimeoutError::Timeout) {
                    most = most.max(threads_of(process)?);
                }
                Ok::<_, BenchError>(most)
            });
            let fresh = ping.clone().on_new_connections();
            let new = scope.spawn(move || fresh.run(&mut |_| ()));
            let old = ping.run(&mut |_| ());
            let new = new.join().expect("invariant: a client run never panics");
            drop(over);
            (old, new, count.join().expect("invariant: counting never panics"))
        });
        let (old, new): (Echoes, Echoes) = (old?, new?);
        // Clients that have failed answer with their failure: without them nothing was measured.
        requests.usage()?;
        let spent = server.usage()?.since(before);
        Ok(Repetition::new(old.priority)
            .samples(REACTION, old.samples)
            .samples(NEW, new.samples)
            .figure(THREADS_MAX, f64::from(threads?))
            .figure(WORK_PER_S, spent.work_per_s()))
    }

    fn tables(&self, rows: &[Row]) -> String {
        let title = format!(
            "Reaction of a service, {} clients of which compute for {:?} per request",
            self.clients, self.step
        );
        let columns = [
            ("old: p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
            ("max", Show::Time("max_us")),
            ("new: p50", Show::Time("new_p50_us")),
            ("p99", Show::Time("new_p99_us")),
            ("max", Show::Time("new_max_us")),
            ("threads", Show::Count(THREADS_MAX)),
            ("million units / s", Show::Millions(WORK_PER_S)),
        ];
        table(&title, rows, &columns)
    }
}

/// Returns how many threads a process has.
fn threads_of(process: u32) -> Result<u32, BenchError> {
    let path = PathBuf::from(format!("/proc/{process}/status"));
    let text = fs::read_to_string(&path).map_err(|source| BenchError::File { path, source })?;
    Ok(threads_in(&text))
}

/// Finds the number of threads in a `status` file.
fn threads_in(status: &str) -> u32 {
    let count = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_found() {
        // Goal: the right line of the file. Method: a part of one, and this process.
        assert_eq!(threads_in("State:\tS (sleeping)\nThreads:\t17\nSigQ:\t0/6\n"), 17);
        assert!(threads_of(std::process::id()).unwrap() >= 1);
    }
}
