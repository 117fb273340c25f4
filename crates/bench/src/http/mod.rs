//! A service on hyper, as other people write them: [`hyper`](https://docs.rs/hyper) on vigie's sockets and on tokio's, under
//! [`wrk`](https://github.com/wg/wrk), and under more computation than the machine has cores for.
//!
//! | case | load | figure |
//! | --- | --- | --- |
//! | [`HELLO`] | `wrk` on as many connections as asked for, each request answered with a line | requests per second, processor time for each |
//! | [`BUSY`] | the same, while clients keep the service busy with requests that compute in its tasks | time of a request |
//! | [`OVERLOAD`] | requests that compute, more than the cores can do; pings on other connections | time since a ping was due |
//!
//! Under [`OVERLOAD`], on vigie the handler computes where it stands, on tokio it calls `spawn_blocking`, as its documentation asks for.

mod client;
#[cfg(feature = "hyper")]
mod server;
mod wrk;

use std::net::SocketAddr;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

pub(crate) use self::client::HttpClient;
use crate::compute::{Pace, parse_duration};
use crate::error::{BenchError, Failure};
use crate::process::{Child, Role};
use crate::report::{Amount, Case, REACTION, Repetition, Row, Show, Turn, by_default, table};
use crate::schedulers::System;

/// Name of the case in rows: requests in a closed loop, nothing else.
pub(crate) const HELLO: &str = "http hello";

/// Name of the case in rows: requests in a closed loop, beside handlers that compute where they stand.
pub(crate) const BUSY: &str = "http busy";

/// Name of the case in rows: pings beside more computation than there are cores for.
pub(crate) const OVERLOAD: &str = "http overload";

/// Key of the requests that were answered, per second.
pub(crate) const PER_S: &str = "per_s";

/// Key of the server's processor time for each of them, in microseconds.
pub(crate) const CPU_US: &str = "cpu_us";

/// Key of the time within which 99 % were answered, by `wrk`.
pub(crate) const WRK_P99: &str = "wrk_p99_us";

/// Key of the computations that were answered, per second.
pub(crate) const COMPUTED_PER_S: &str = "computed_per_s";

/// Clients that keep the service busy, under [`BUSY`].
const BUSY_CLIENTS: u32 = 8;

/// Computations per second for each core: with the 200 ms that each takes, 1.2 times what the core can do.
const COMPUTATIONS_PER_CORE: u32 = 6;

/// Which systems serve which requests. `wrk` takes whole seconds in each turn, so its share of the time is rounded up.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("20s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct HttpPlan {
    /// Number of connections of `wrk`.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Number of pings per second.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pings: u32,
    /// Number of requests per second that compute [default: 6 for each core].
    #[arg(long)]
    computations: Option<u32>,
    /// Computation of each of these requests, on a core of its own.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_duration)]
    step: Duration,
    #[command(flatten)]
    amount: Amount,
}

impl HttpPlan {
    fn computations(&self) -> u32 {
        let cores = available_parallelism().map_or(1, NonZero::get);
        let cores = u32::try_from(cores).unwrap_or(u32::MAX);
        self.computations.unwrap_or_else(|| COMPUTATIONS_PER_CORE.saturating_mul(cores))
    }

    fn hello(&self, server: &mut Child, address: SocketAddr) -> Result<Repetition, BenchError> {
        let run = || wrk::run(address, self.connections, self.amount.of_turn());
        let (found, used) = server.spent(run)?;
        let requests = found.requests.max(1) as f64;
        Ok(Repetition::default()
            .figure(PER_S, found.per_s)
            .figure(CPU_US, used.cpu_ns as f64 / 1e3 / requests)
            .figure(WRK_P99, found.p99_us))
    }

    fn overload(&self, address: SocketAddr, seed: u64) -> Result<Repetition, BenchError> {
        let span = self.amount.of_turn();
        let client = HttpClient {
            address,
            pings_per_s: self.pings,
            computations_per_s: self.computations(),
            span,
            seed,
        };
        let (found, priority) = client.start()?;
        let computed = found.computations as f64 / span.as_secs_f64();
        Ok(Repetition::new(priority)
            .samples(REACTION, found.pings_ns.into_iter().collect())
            .figure(COMPUTED_PER_S, computed))
    }
}

impl Case for HttpPlan {
    /// A system, and its case.
    type Setting = (System, &'static str);

    fn rounds(&self) -> u32 {
        self.amount.rounds()
    }

    fn rows(&self) -> Vec<(Self::Setting, Row)> {
        let mut rows = Vec::new();
        for case in [HELLO, BUSY, OVERLOAD] {
            for system in self.amount.systems(&[System::Vigie]) {
                let mut row = Row::new(system, case).parameter("workers", self.amount.workers());
                if case == OVERLOAD {
                    row = row
                        .parameter("pings_per_s", self.pings)
                        .parameter("computations_per_s", self.computations());
                } else {
                    row = row.parameter("connections", self.connections);
                }
                if case != HELLO {
                    row = row.parameter("step_ms", self.step.as_secs_f64() * 1e3);
                }
                rows.push(((system, case), row));
            }
        }
        rows
    }

    fn measure(
        &self,
        &(system, case): &Self::Setting,
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, {case}"));
        let (workers, step) = (self.amount.workers(), self.step);
        let mut server =
            Child::start(&HttpServer { system, workers, step, pace: Pace::of_this_machine() })?;
        let (_, address, _) = server.listening()?;
        if case == OVERLOAD {
            return self.overload(address, turn.seed);
        }
        if case == BUSY {
            client::keep_busy(address, BUSY_CLIENTS);
        }
        self.hello(&mut server, address)
    }

    fn tables(&self, rows: &[Row]) -> String {
        let of = |case: &str| -> Vec<Row> {
            rows.iter().filter(|row| row.case == case).cloned().collect()
        };
        let hello = [
            ("requests/s", Show::Count(PER_S)),
            ("processor time / request", Show::Time(CPU_US)),
            ("p99", Show::Time(WRK_P99)),
        ];
        let busy = [("requests/s", Show::Count(PER_S)), ("p99", Show::Time(WRK_P99))];
        let overload = [
            ("pings", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
            ("p99.9", Show::Time("p99.9_us")),
            ("max", Show::Time("max_us")),
            ("computations / s", Show::Number(COMPUTED_PER_S)),
        ];
        let title = format!("hyper under wrk, {} connections", self.connections);
        let working =
            format!("{title}, while {BUSY_CLIENTS} clients keep it busy with {:?} each", self.step);
        let beside = format!(
            "hyper: {} pings/s beside {} computations of {:?} a second",
            self.pings,
            self.computations(),
            self.step
        );
        [
            table(&title, &of(HELLO), &hello),
            table(&working, &of(BUSY), &busy),
            table(&beside, &of(OVERLOAD), &overload),
        ]
        .join("\n")
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
        Err(Failure::unsupported(self.system, reason))
    }
}
