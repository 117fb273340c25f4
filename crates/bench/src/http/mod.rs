//! A service on hyper, as other people write them: [`hyper`](https://docs.rs/hyper) on vigie's sockets and on tokio's, under
//! [`wrk`](https://github.com/wg/wrk), and under more computation than the machine has cores for.
//!
//! | case | load | figure |
//! | --- | --- | --- |
//! | [`HELLO`] | `wrk` on as many connections as asked for, each request answered with a line | requests per second, processor time for each |
//! | [`OVERLOAD`] | requests that compute, more than the cores can do; pings on other connections | time since a ping was due |
//!
//! On vigie the handler computes where it stands, on tokio it calls `spawn_blocking`, as its documentation asks for.

mod client;
#[cfg(feature = "hyper")]
mod server;
mod wrk;

use std::net::SocketAddr;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use self::client::HttpClient;
use crate::compute::Pace;
use crate::error::{BenchError, Failure};
use crate::host::realtime::Priority;
use crate::process::{Child, Message, Role};
use crate::report::progress::Progress;
use crate::report::repetition::{REACTION, Repetition, in_repetitions};
use crate::report::show::{Show, table};
use crate::report::{Outcome, Row};
use crate::schedulers::System;

/// Name of the case in rows: requests in a closed loop, nothing else.
pub const HELLO: &str = "http hello";

/// Name of the case in rows: pings beside more computation than there are cores for.
pub const OVERLOAD: &str = "http overload";

/// Key of the requests that were answered, per second.
pub(crate) const PER_S: &str = "per_s";

/// Key of the server's processor time for each of them, in microseconds.
pub(crate) const CPU_US: &str = "cpu_us";

/// Key of the time within which 99 % were answered, by `wrk`.
pub(crate) const WRK_P99: &str = "wrk_p99_us";

/// Key of the computations that were answered, per second.
pub(crate) const COMPUTED_PER_S: &str = "computed_per_s";

/// Computations per second for each core: with the 200 ms that each takes, 1.2 times what the core can do.
const COMPUTATIONS_PER_CORE: u32 = 6;

/// How long a process may take to get ready.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Which systems serve which requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpPlan {
    /// The systems, in the order of the table: vigie's hybrid flavor and tokio.
    pub systems: Vec<System>,
    /// Connections of `wrk`.
    pub connections: u32,
    /// Pings per second, beside the computation.
    pub pings_per_s: u32,
    /// Requests per second that compute: six for each core, unless set otherwise.
    pub computations_per_s: u32,
    /// How long such a request computes, on a core of its own.
    pub step: Duration,
    /// Time per system and case. `wrk` takes whole seconds in each turn, so its share is rounded up.
    pub budget: Duration,
    /// Turns in which the time is spent, each with new processes.
    pub rounds: u32,
    /// Worker threads.
    pub workers: usize,
    /// Seed of all chance.
    pub seed: u64,
}

impl HttpPlan {
    /// Plans 50 connections of `wrk`; then 500 pings a second beside computations of 200 ms. Each second brings six of them
    /// for each core that this process may use, so twelve on two cores: a fifth more than the cores can do.
    #[must_use]
    pub fn new(systems: Vec<System>) -> Self {
        let cores = available_parallelism().map_or(1, NonZero::get);
        let cores = u32::try_from(cores).unwrap_or(u32::MAX);
        Self {
            systems,
            connections: 50,
            pings_per_s: 500,
            computations_per_s: COMPUTATIONS_PER_CORE.saturating_mul(cores),
            step: Duration::from_millis(200),
            budget: Duration::from_secs(20),
            rounds: 2,
            workers: 2,
            seed: 0,
        }
    }

    /// Returns how many cases [`run`](Self::run) measures, for its progress bar.
    #[must_use]
    pub fn cases(&self) -> usize {
        2 * self.systems.len() * self.rounds as usize
    }

    /// Measures all systems in turns.
    ///
    /// # Errors
    /// Those of the processes. Without `wrk`, or the feature `hyper`, or for a system that serves no HTTP, the row says so.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let pace = Pace::measure();
        let hello = |&system| {
            Row::new(system, HELLO)
                .parameter("connections", self.connections)
                .parameter("workers", self.workers)
        };
        let overload = |&system| {
            Row::new(system, OVERLOAD)
                .parameter("pings_per_s", self.pings_per_s)
                .parameter("computations_per_s", self.computations_per_s)
                .parameter("step_ms", self.step.as_secs_f64() * 1e3)
                .parameter("workers", self.workers)
        };
        let rows = self.systems.iter().map(hello);
        let rows = rows.chain(self.systems.iter().map(overload)).collect();
        in_repetitions(rows, self.rounds, self.seed, progress, |_, row, seed, progress| {
            progress.case(format!("{}, {}", row.system, row.case));
            let plan =
                HttpServer { system: row.runtime()?, workers: self.workers, step: self.step, pace };
            let mut server = Child::start(&plan)?;
            let address = match server.next(TIMEOUT)? {
                Message::Listening { echo, .. } => echo,
                other => return Err(server.unexpected(&other)),
            };
            if row.case == HELLO {
                self.hello(row.runtime()?, &mut server, address)
            } else {
                self.overload(address, seed)
            }
        })
    }

    fn hello(
        &self,
        system: System,
        server: &mut Child,
        address: SocketAddr,
    ) -> Result<Repetition, BenchError> {
        let before = server.usage()?;
        let found = wrk::run(system, address, self.connections, self.budget / self.rounds)?;
        let used = server.usage()?.since(before);
        let requests = found.requests.max(1) as f64;
        Ok(Repetition::new(Priority::Ordinary { reason: "wrk is run as it is".to_owned() })
            .figure(PER_S, found.per_s)
            .figure(CPU_US, used.cpu_ns as f64 / 1e3 / requests)
            .figure(WRK_P99, found.p99_us))
    }

    fn overload(&self, address: SocketAddr, seed: u64) -> Result<Repetition, BenchError> {
        let span = self.budget / self.rounds;
        let client = HttpClient {
            address,
            pings_per_s: self.pings_per_s,
            computations_per_s: self.computations_per_s,
            span,
            seed,
        };
        let found = client.start()?;
        let computed = found.computations as f64 / span.as_secs_f64();
        Ok(Repetition::new(found.priority)
            .samples(REACTION, found.pings)
            .figure(COMPUTED_PER_S, computed))
    }

    /// Shows both cases.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
        let of = |case: &str| -> Vec<Row> {
            rows.iter().filter(|row| row.case == case).cloned().collect()
        };
        let hello = [
            ("requests/s", Show::Count(PER_S)),
            ("processor time / request", Show::Time(CPU_US)),
            ("p99", Show::Time(WRK_P99)),
        ];
        let overload = [
            ("pings", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
            ("p99.9", Show::Time("p99.9_us")),
            ("max", Show::Time("max_us")),
            ("computations / s", Show::Number(COMPUTED_PER_S)),
        ];
        let title = format!("hyper under wrk, {} connections", self.connections);
        let beside = format!(
            "hyper: {} pings/s beside {} computations of {:?} a second",
            self.pings_per_s, self.computations_per_s, self.step
        );
        [table(&title, &of(HELLO), &hello), table(&beside, &of(OVERLOAD), &overload)].join("\n")
    }
}

/// A server on hyper, in a process of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HttpServer {
    system: System,
    workers: usize,
    step: Duration,
    pace: Pace,
}

impl Role for HttpServer {
    const NAME: &'static str = "HTTP server";
}

impl HttpServer {
    /// Serves until the process is killed.
    #[cfg(feature = "hyper")]
    pub(crate) fn serve(&self) -> Result<(), Failure> {
        server::serve(self)
    }

    #[cfg(not(feature = "hyper"))]
    pub(crate) fn serve(&self) -> Result<(), Failure> {
        let reason = "vigie-bench was built without its feature `hyper`";
        Err(Failure::Unsupported { system: self.system.to_string(), reason: reason.to_owned() })
    }
}
