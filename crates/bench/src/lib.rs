//! Workloads, peers and statistics that reproduce the measurements of vigie's papers.
//!
//! ```no_run
//! use std::time::Duration;
//! use vigie_bench::client::PingPong;
//! use vigie_bench::compute::YieldEvery;
//! use vigie_bench::server::ServerPlan;
//! use vigie_bench::system::System;
//!
//! fn main() -> Result<(), vigie_bench::BenchError> {
//!     vigie_bench::child::maybe_run_child();
//!     let hogs = YieldEvery::Step(Duration::from_micros(100));
//!     let server = ServerPlan::new(System::Vigie).compute(10, hogs).start()?;
//!     let echoes = PingPong::new(server.address()).samples(1_000).run(&mut |_done| ())?;
//!     println!("{:?}", echoes.samples.summary());
//!     Ok(())
//! }
//! ```
//!
//! # Where what is
//! - [`cli`]: the commands. Each has a plan, whose fields are its options, and gives rows, for tables, JSON and goals.
//! - [`PingPong`](client::PingPong): the external client, in a separate process.
//! - [`ServerPlan`](server::ServerPlan) and [`Server`](server::Server): a
//!   [`System`](system::System) under load, in a separate process.
//!   [`AsyncSystem`](system::AsyncSystem) is the interface of a runtime to the workload.
//! - [`messages`]: messages between processes of one host, compared with limits and peers.
//! - `reaction` and `pending`: Tables 1 and 2 of [bouge02, §4]; `cases`: loads beyond them, in which one task could
//!   delay another's event; `loads`: random mixes of behaviour, compared with kernel threads.
//! - `barrier` and `cluster`: barriers of tasks, threads, processes and hosts, and of the paper's cluster, in simulation.
//! - `forward`: the model of forwarding, compared with its simulation and its paper, and live.
//! - `goals`: the project's goals, which are data, checked by `vigie-bench goals`.
//!
//! # Who runs where
//! ```text
//!   vigie-bench (parent): plans, waits, tables          one thread, asleep while others measure
//!      │ starts                     │ starts
//!      ▼                            ▼
//!   server process  ◀── TCP ──▶  client process         SCHED_FIFO where allowed, one thread
//!   the system under test,       sends, times, reports
//!   compute tasks all the time
//!      │ some cases add
//!      ▼
//!   processes that compute, or that send requests which compute      ordinary priority
//! ```
//! Server and client are this program, started again: `main` calls
//! [`maybe_run_child`](child::maybe_run_child) first.
//!
//! # Limits
//! Everything runs on one host, over loopback TCP, with one message in flight except in
//! `crowd`. Systems are measured in turns (A B A B), so that a drift of the machine meets
//! them all; still, trust ratios from one run, not absolute times from two.
//!
//! # Features
//! `peers` (default): the peers that build cheaply. `hyper` (default): the service on hyper. tokio, plain threads
//! and a busy-polling epoll server are always there.

pub mod clock;
pub mod compute;
pub mod counting;
pub mod statistics;

mod schedulers;

mod error;
mod host;
mod inside;
mod report;
mod watch;

mod process;

mod background;
pub mod client;
pub mod server;

pub mod system;

mod mix;
mod workload;

mod runner;

mod cases;
mod drawn;
mod idle;
mod interrupts;
mod pending;
mod reaction;
mod repository;
mod switches;
mod timers;
pub mod turns;
mod virtual_time;
mod waits;
mod worlds;

mod soak;

mod barrier;
mod cluster;
mod files;
mod forward;
mod http;
mod loads;
pub mod messages;
mod slowdown;
mod starts;

mod goals;

pub mod child;
pub mod cli;

pub use self::error::{BenchError, Failure, Missing, ModelError};
pub use self::host::{Priority, Usage};
pub use self::watch::WatchError;
