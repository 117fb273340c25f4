//! Tasks, and the schedulers that watch for events while they run them.
//!
//! ```
//! use std::time::Duration;
//! use vigie_runtime::{Runtime, spawn, time};
//!
//! let runtime = Runtime::builder().workers(2).build()?;
//! let answer = runtime.block_on(async {
//!     let task = spawn(async {
//!         time::sleep(Duration::from_millis(1)).await;
//!         42
//!     });
//!     time::timeout(Duration::from_secs(10), task).await
//! })??;
//! assert_eq!(answer, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The parts
//! - [`Runtime`] and its [builder](Runtime::builder): one of three flavors, user-level (one kernel
//!   thread runs everything), hybrid (workers that steal from each other) and kernel-level (a thread for
//!   each task, which may block).
//! - [`spawn`], [`spawn_local`], [`spawn_blocking`] and the [`JoinHandle`]: tasks, whose panics stay in
//!   them.
//! - [`time`]: sleeping, time-outs, periods.
//! - [`vigie_detect`]: what the schedulers watch; sockets are in `vigie_detect::net`.
//!
//! # Who does what
//! ```text
//!               ┌──────────── worker (or the one thread of the user-level flavor) ───────────┐
//!   switch ───▶ │ look due?  ──▶ Lookout::detect ──▶ wakers ──▶ reaction lane                │
//!               │ reaction lane, then compute lane, then other workers' ──▶ poll the task    │ ──▶ switch
//!               │ nothing to run ──▶ Lookout::park (one worker), or the thread's own sleep   │
//!               └────────────────────────────────────────────────────────────────────────────┘
//! ```
//! Whether a look is due is asked in units of time, not of polls: by default every 50 µs, at once when
//! a timer is over or another thread has rung. Tasks woken by events, and what they wake and spawn in
//! turn, run before tasks that compute; the latter keep a share of the time. A task whose poll was
//! longer than the quantum (1 ms) counts as computing until it has behaved for a while.
//!
//! # Cost and limits
//! A switch reads the clock once and makes no system call; it allocates nothing. Up to 1024 workers.
//!
//! A task that never yields holds its worker. While all workers are held so, nothing else runs. And if
//! the worker that was last in the wait point is held, nobody watches for events and timers before it
//! switches, even if another worker sleeps: no second wake-up is spent on each event to prevent that.
//!
//! # What this crate does not do
//! It has no I/O of its own, no reactor that is not a detector, and no `async` file system yet.

mod alarm;
mod blocking_pool;
mod builder;
mod checkpoint;
mod context;
mod flavor;
mod handle;
mod idle;
mod join;
mod kernel_help;
mod lane;
mod panics;
mod parker;
mod runtime;
mod spawn;
mod sync;
pub mod task;
mod task_cell;
pub mod time;
mod timerfd;

pub use builder::{BuildError, RuntimeBuilder};
pub use handle::{Handle, NoRuntime};
pub use join::{JoinError, JoinHandle};
pub use kernel_help::KernelHelp;
pub use runtime::{Runtime, ShutdownTimeout};
pub use spawn::{YieldNow, spawn, spawn_blocking, spawn_local, yield_now};
pub use vigie_detect::{Flavor, Reactivity};
