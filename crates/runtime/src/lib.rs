//! A runtime whose schedulers detect I/O events while they run tasks.
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
//! - [`Runtime`] and its [builder](Runtime::builder), with four flavors: user-level (one kernel thread runs
//!   everything), hybrid (work-stealing workers), kernel-level (a thread per task, which may block) and simulated
//!   (virtual time, in an order that a seed draws).
//! - [`spawn`], [`spawn_local`], [`spawn_blocking`] and the [`JoinHandle`]: tasks. A panic ends only its own
//!   task.
//! - [`time`]: sleeping, time-outs, periods.
//! - [`vigie_detect`]: what the schedulers watch; sockets are in `vigie_detect::net`.
//!
//! # How it works
//! ```text
//!               ┌──────────── worker (or the one thread of the user-level flavor) ───────────┐
//!   switch ───▶ │ pass due?  ──▶ Driver::detect ──▶ wakers ──▶ reaction lane                │
//!               │ reaction lane, then compute lane, then other workers' ──▶ poll the task    │ ──▶ switch
//!               │ nothing to run ──▶ Driver::park (one worker), or the thread's own sleep   │
//!               └────────────────────────────────────────────────────────────────────────────┘
//! ```
//! A worker polls for events by elapsed time, not by a count of polls: by default every 50 µs, and at once
//! when a timer has expired or another thread has sent a notification. Each task has a bucket of processor
//! time: 1 ms, refilled at a twentieth of a processor. A task that becomes ready with time left in its bucket
//! runs before tasks that have used theirs up; those run in the order in which they would finish if all of
//! them ran at once, and keep a share of the time.
//!
//! # Cost and limits
//! A switch reads the clock once and makes no system call; it allocates nothing. Up to 1024 workers.
//!
//! # Tasks that do not yield
//! They delay no other task's event. On the hybrid flavor, when every worker is inside a long poll (200 µs), a
//! reserve thread watches for events and runs the tasks that they wake; each of those that blocks its thread
//! in turn is relieved by one more reserve thread. Sockets, timers, channels and other wake-ups, and new
//! connections do not wait for such tasks. Only two things do: tasks that need a lock which the task holds, and
//! tasks that need its result. If all workers begin to compute at the same moment, the first event waits until
//! the runtime notices.
//!
//! # Tasks that block
//! On the hybrid flavor, a task that sleeps in the kernel (`thread::sleep`, a file, a `std::sync::Mutex`, a
//! blocking driver) costs a thread: another thread takes its place, for events and for computation, as long
//! as no more tasks block than there are [reserve threads](RuntimeBuilder::reserve_threads). The user-level
//! flavor has one thread, so long computations should call [`task::checkpoint`] now and then. On the
//! kernel-level flavor the kernel schedules the threads.
//!
//! # What this crate does not do
//! It has no sockets of its own, which are `vigie-detect`'s, and no reactor besides the detectors.

mod blocking_pool;
mod builder;
mod context;
mod dump;
mod embedded;
mod flavor;
pub mod fs;
mod handle;
pub mod io;
mod json;
mod kernel_help;
mod lane;
mod measure;
pub mod metrics;
mod options;
mod panics;
mod parking;
pub mod process;
mod refusal;
mod runtime;
pub mod signal;
pub mod simulation;
mod stack;
mod sync;
pub mod task;
mod task_cell;
pub mod time;
#[cfg_attr(not(feature = "tokio"), path = "no_tokio_context.rs")]
mod tokio_context;

pub use builder::{BuildError, RuntimeBuilder};
pub use embedded::{EmbeddedRuntime, NotEmbeddable};
pub use handle::{EnterGuard, Handle, NoRuntime};
pub use kernel_help::KernelHelp;
pub use runtime::{Runtime, ShutdownTimeout};
pub use task::{YieldNow, spawn, spawn_blocking, spawn_local, yield_now};
pub use task_cell::{JoinError, JoinHandle};
pub use vigie_detect::{Flavor, Reactivity};
