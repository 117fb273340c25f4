//! A runtime: its life from `build` to the last thread's end.

use std::{fmt, future::Future, mem, panic::Location, path::Path, process, time::Duration};

use thiserror::Error;
use vigie_detect::{Instant, Server, clock::monotonic_now};

use crate::{
    flavor::{hybrid, kernel_level, user_level},
    handle::{Handle, Scheduler},
    metrics::{self, MetricsSocket, ServeError},
    sync::thread,
    task_cell::JoinHandle,
};

/// Runs tasks. Dropping it cancels all of them and waits for its threads, and for closures on blocking
/// threads that have begun, for at most the builder's
/// [`shutdown_timeout`](crate::RuntimeBuilder::shutdown_timeout), 10 s by default. A hybrid or kernel-level
/// runtime that is dropped inside a task of a hybrid or kernel-level runtime, its own or another, ends
/// in the background instead.
///
/// A process that has forked without exec must not use the runtime in the child, where none of its threads
/// exist. Dropping it there leaks it, with a warning, and does not touch what the parent still uses. What the
/// child has inherited beside it may be dropped as well: handles, sockets, timers, futures, senders that wake
/// a task. Tasks are neither run nor dropped there.
///
/// # Examples
/// ```
/// use vigie_runtime::Runtime;
///
/// let runtime = Runtime::builder().workers(2).build()?;
/// let sum = runtime.block_on(async {
///     let tasks: Vec<_> = (1..=10).map(|n| vigie_runtime::spawn(async move { n * n })).collect();
///     let mut sum = 0;
///     for task in tasks {
///         sum += task.await?;
///     }
///     Ok::<_, vigie_runtime::JoinError>(sum)
/// })?;
/// assert_eq!(sum, 385);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a runtime ends when it is dropped"]
pub struct Runtime {
    handle: Handle,
    threads: Vec<thread::JoinHandle<()>>,
    /// The process that has made it.
    process: u32,
    is_ended: bool,
    /// Goes last: one may look on while the runtime ends.
    metrics_socket: Option<MetricsSocket>,
}

impl Runtime {
    pub(crate) fn new(handle: Handle, threads: Vec<thread::JoinHandle<()>>) -> Self {
        Self { handle, threads, process: process::id(), is_ended: false, metrics_socket: None }
    }

    pub(crate) fn serve_metrics(&mut self, path: &Path) -> Result<(), ServeError> {
        self.metrics_socket = Some(metrics::serve(&self.handle, path)?);
        Ok(())
    }

    /// Returns a reference for spawning from elsewhere.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the detection server of this runtime.
    #[must_use]
    pub fn server(&self) -> &Server {
        self.handle.server()
    }

    /// Spawns a task. On the user-level flavor it runs during [`block_on`](Self::block_on).
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn_at(Location::caller().into(), future)
    }

    /// Runs a future to its end on the calling thread. On the user-level flavor, this runs all tasks
    /// too; a thread that calls it meanwhile, a closure of [`spawn_blocking`](crate::spawn_blocking) for
    /// example, runs its own future and local tasks alone, and takes the rest over when the first one
    /// leaves.
    ///
    /// # Panics
    /// Panics if called inside a task of a vigie runtime, which it would stop: spawn instead.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            !hybrid::is_worker() && !user_level::runs_here(None) && !kernel_level::runs_here(),
            "`block_on` inside a task would stop its worker: spawn the future, or await it"
        );
        match &self.handle.scheduler {
            Scheduler::UserLevel(shared) => shared.block_on(future),
            Scheduler::Hybrid(shared) => shared.block_on(future),
            Scheduler::KernelLevel(shared) => shared.block_on(future),
        }
    }
}

/// Tasks or closures were still inside a poll when the time for the shutdown was over. Their threads were
/// left behind: they end after that poll.
#[derive(Debug, Error)]
#[error(
    "{} threads were still running when the time for the shutdown was over{}",
    threads,
    Sites(tasks)
)]
#[non_exhaustive]
pub struct ShutdownTimeout {
    /// How many threads did not end.
    pub threads: usize,
    /// Where the tasks inside long polls were spawned; closures on blocking threads are not named.
    pub tasks: Vec<&'static Location<'static>>,
}

/// Shows where tasks were spawned, for an error.
struct Sites<'a>(&'a [&'static Location<'static>]);

impl fmt::Display for Sites<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, site) in self.0.iter().enumerate() {
            write!(f, "{}{site}", if index == 0 { "; tasks spawned at " } else { ", " })?;
        }
        Ok(())
    }
}

impl Runtime {
    /// Ends the runtime: cancels all tasks, and waits for at most `timeout` until those that are inside
    /// a poll, and closures on blocking threads that have begun, are over. Dropping the runtime does the
    /// same with the time that was [set in the builder](crate::RuntimeBuilder::shutdown_timeout), and reports
    /// the error to `tracing`.
    ///
    /// In a forked child nothing is ended: see [`Runtime`].
    ///
    /// # Errors
    /// [`ShutdownTimeout`] names the tasks that were not over. Their threads are left behind.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Result<(), ShutdownTimeout> {
        self.is_ended = true;
        self.end(timeout)
    }

    fn end(&mut self, timeout: Duration) -> Result<(), ShutdownTimeout> {
        if self.process != process::id() {
            self.leak();
            return Ok(());
        }
        let deadline = monotonic_now() + timeout;
        let mut left = 0;
        let mut tasks = Vec::new();
        match &self.handle.scheduler {
            Scheduler::UserLevel(shared) => shared.shutdown(),
            Scheduler::Hybrid(shared) => {
                shared.shutdown();
                if hybrid::is_worker() || kernel_level::runs_here() {
                    // Perhaps one of our own, which cannot wait for itself: the last worker clears up.
                    drop(shared.pool().begin_shutdown());
                    return Ok(());
                }
                left += join_until(mem::take(&mut self.threads), deadline);
                // The supervisor was among them: nobody makes a reserve thread any more.
                left += join_until(shared.take_reserve_threads(), deadline);
                if left > 0 {
                    tasks = shared.polled_sites();
                }
            }
            Scheduler::KernelLevel(shared) => {
                let in_background = hybrid::is_worker() || kernel_level::runs_here();
                shared.shutdown(in_background);
                if in_background {
                    return Ok(());
                }
                loop {
                    let threads = shared.take_threads();
                    if threads.is_empty() {
                        break;
                    }
                    left += join_until(threads, deadline);
                }
                if left == 0 {
                    shared.cancel_all();
                }
                left += join_until(shared.pool().begin_shutdown(), deadline);
                shared.server().shutdown();
                left += join_until(mem::take(&mut self.threads), deadline);
            }
        }
        left += join_until(self.handle.pool().begin_shutdown(), deadline);
        if left == 0 { Ok(()) } else { Err(ShutdownTimeout { threads: left, tasks }) }
    }
}

impl Runtime {
    /// Leaves everything as it is, in a forked child. Threads that are not there would be waited for, locks
    /// that they held would never be released, and the wait point is still the parent's: what is closed or
    /// removed there by the child is gone for the parent.
    fn leak(&mut self) {
        tracing::warn!(
            parent = self.process,
            "a runtime was inherited by fork: it is leaked in the child, where it has no threads"
        );
        // One reference more than are dropped.
        mem::forget(self.handle.clone());
        mem::take(&mut self.threads).into_iter().for_each(mem::forget);
    }
}

/// Joins the threads that end before `deadline`, but not the calling one. Returns how many did not.
fn join_until(threads: Vec<thread::JoinHandle<()>>, deadline: Instant) -> usize {
    let mut left = 0;
    for thread in threads {
        if thread.thread().id() == thread::current().id() {
            continue;
        }
        let mut pause = Duration::from_micros(20);
        while !thread.is_finished() && monotonic_now() < deadline {
            thread::park_timeout(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        if !thread.is_finished() {
            left += 1;
        } else if thread.join().is_err() {
            // Threads catch the panics of tasks; what is left would be a bug of ours.
            tracing::error!("a worker panicked");
        }
    }
    left
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        let timeout = self.handle.shutdown_timeout();
        if let Err(error) = self.end(timeout) {
            tracing::error!(%error, "a runtime was dropped");
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("handle", &self.handle).finish_non_exhaustive()
    }
}
