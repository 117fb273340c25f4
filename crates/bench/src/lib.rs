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
//! # Main types
//! - [`PingPong`](client::PingPong): the external client, in a separate process.
//! - [`ServerPlan`](server::ServerPlan) and [`Server`](server::Server): a
//!   [`System`](system::System) under load, in a separate process.
//!   [`AsyncSystem`](system::AsyncSystem) is the interface of a runtime to the workload.
//! - [`ReactionPlan`](reaction::ReactionPlan) and [`PendingPlan`](pending::PendingPlan): Tables 1 and 2
//!   of [bouge02, §4]; both give [`Row`](report::Row)s, for tables, JSON and goals.
//! - [`cases`]: loads beyond the paper's tables, in which one task could delay another's event.
//! - [`barrier`]: barriers of tasks, threads and processes of one host, compared with peers.
//! - [`timers`]: the cost of a fired timer, and its lateness.
//! - [`waits`]: how late an event is beside tasks that wait for peers.
//! - [`loads`]: random mixes of behaviour, compared with kernel threads.
//! - [`http`]: a service on hyper, under `wrk` and under too much computation.
//! - [`messages`]: messages between processes of one host, compared with limits and peers.
//! - [`cluster`]: barriers of the paper's cluster, in simulation.
//! - [`forward`]: the model of forwarding, compared with its simulation and its paper.
//! - [`GOALS`](goals::GOALS): the project's goals, checked by `vigie-bench goals`.
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
//! [`cases::crowd`]. Systems are measured in turns (A B A B), so that a drift of the machine meets
//! them all; still, trust ratios from one run, not absolute times from two.
//!
//! # Features
//! `peers` (default) brings the peers that build cheaply, at present `smol`; `hyper` (default) the service on hyper. tokio, plain threads
//! and a busy-polling epoll server are always there.

pub mod clock;
pub mod compute;
pub mod counting;
pub mod statistics;

pub mod schedulers;

pub mod error;
pub mod host;
mod inside;
pub mod report;
pub mod watch;

mod process;

mod background;
pub mod client;
pub mod server;

pub mod system;

pub mod mix;
pub mod workload;

mod runner;

pub mod cases;
pub mod idle;
pub mod interrupts;
pub mod pending;
pub mod reaction;
pub mod switches;
pub mod timers;
pub mod turns;
mod virtual_time;
pub mod waits;

pub mod soak;

pub mod barrier;
pub mod cluster;
pub mod forward;
pub mod http;
pub mod loads;
pub mod messages;
pub mod slowdown;

pub mod goals;

pub mod child;

pub use self::error::{BenchError, Failure, NoGroup};
pub use self::host::machine;
pub use self::host::realtime::Priority;
pub use self::host::usage::Usage;
pub use self::report::{progress, table};
