//! A service of which some requests compute, each on a new connection, while others only want an echo.
//!
//! Two clients time echoes: one on a connection that has long been open, one on a new connection for
//! each message, whose time includes the opening.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::client::{Echoes, PingPong, Requests};
use crate::error::BenchError;
use crate::report::progress::Progress;
use crate::report::repetition::{REACTION, Repetition, THREADS_MAX, WORK_PER_S, in_repetitions};
use crate::report::show::{Show, table};
use crate::report::{Outcome, Row};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub const CASE: &str = "service";

/// Name of the samples on new connections; those on the old one are the row's own.
pub(crate) const NEW: &str = "new";

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often the threads of the server are counted: often enough to see each request that computes.
const COUNT_EVERY: Duration = Duration::from_millis(20);

/// Shortest pause between an echo and the next message, and the range over which pauses spread.
const SPACING: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(3)];

/// Which systems serve which requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServicePlan {
    /// The systems, in the order of the table.
    pub systems: Vec<System>,
    /// Clients that send requests which compute, one after another each.
    pub clients: u32,
    /// How long such a request computes.
    pub step: Duration,
    /// Messages of each of the two clients that time echoes, per system, at most.
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

impl ServicePlan {
    /// Plans eight clients whose requests compute for 200 ms, and 2000 messages in at most 8 s.
    #[must_use]
    pub const fn new(systems: Vec<System>) -> Self {
        Self {
            systems,
            clients: 8,
            step: Duration::from_millis(200),
            samples: 2_000,
            budget: Duration::from_secs(8),
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
    /// Those of the processes, and [`BenchError::File`] if the server's `/proc` files cannot be read.
    /// A system that does not react is not an error: its row says so.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let row = |&system| {
            let row = Row::new(system, CASE).parameter("clients", self.clients);
            row.parameter("step_ms", self.step.as_secs_f64() * 1e3)
                .parameter("workers", self.workers)
        };
        let rows = self.systems.iter().map(row).collect();
        in_repetitions(rows, self.rounds, self.seed, progress, |_, row, seed, progress| {
            progress.case(format!("{}, as a service", row.system));
            self.measure(row.runtime()?, seed)
        })
    }

    fn measure(&self, system: System, seed: u64) -> Result<Repetition, BenchError> {
        let plan = ServerPlan::new(system).workers(self.workers);
        let mut server = plan.service(self.step).start()?;
        let (address, process) = (server.address(), server.process());
        // Dropping it on any way out ends the clients.
        let mut requests = Requests { address, clients: self.clients }.start()?;
        let before = server.usage()?;
        let ping = PingPong::new(address)
            .samples(self.samples.div_ceil(self.rounds))
            .budget(self.budget / self.rounds)
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

    /// Shows percentiles on old and new connections, threads, and the work of the requests.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
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
