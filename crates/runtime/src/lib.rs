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
//! a timer is over or another thread has rung. Each task has a bucket of processor time, 1 ms that
//! refills at a twentieth of a processor. A task that becomes ready with something in it goes before
//! tasks that have used theirs up; those run in the order in which they would be through if all of them
//! ran at once, and keep a share of the time.
//!
//! # Cost and limits
//! A switch reads the clock once and makes no system call; it allocates nothing. Up to 1024 workers.
//!
//! # Tasks that do not yield
//! delay no other task's event. On the hybrid flavor, when every worker is inside a long poll (200 µs), a
//! reserve thread watches for events and serves the tasks that they wake, and one more for each of those
//! that holds its thread in turn. What such tasks need not wait for: sockets, timers, channels and other
//! wake-ups, new connections. What they do wait for: a lock that the task holds, and the task itself.
//!
//! # Tasks that block
//! On the hybrid flavor, a task that sleeps in the kernel (`thread::sleep`, a file, a
//! `std::sync::Mutex`, a blocking driver) costs a thread: another thread takes its place, for events and
//! for computation, as long as no more tasks block than there are
//! [reserve threads](RuntimeBuilder::reserve_threads). On the user-level flavor there is one thread: long
//! computations should reach a [`task::checkpoint`] now and then. On the kernel-level flavor the kernel
//! takes turns.
//!
//! # What this crate does not do
//! It has no I/O of its own, no reactor that is not a detector, and no `async` file system yet.

mod blocking_pool;
mod builder;
mod context;
mod flavor;
mod handle;
mod kernel_help;
mod lane;
mod measure;
pub mod metrics;
mod options;
mod panics;
mod parking;
mod refusal;
mod runtime;
mod sync;
pub mod task;
mod task_cell;
pub mod time;

pub use builder::{BuildError, RuntimeBuilder};
pub use handle::{Handle, NoRuntime};
pub use kernel_help::KernelHelp;
pub use runtime::{Runtime, ShutdownTimeout};
pub use task::{YieldNow, spawn, spawn_blocking, spawn_local, yield_now};
pub use task_cell::{JoinError, JoinHandle};
pub use vigie_detect::{Flavor, Reactivity};
