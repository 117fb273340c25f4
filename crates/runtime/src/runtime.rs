//! A runtime: its life from `build` to the last thread's end.

use std::{fmt, future::Future, panic::Location};

use vigie_detect::Server;

use crate::{
    builder::RuntimeBuilder,
    flavor::{hybrid, kernel_level, user_level},
    handle::{Handle, Scheduler},
    join::JoinHandle,
    sync::thread,
};

/// Runs tasks. Dropping it cancels all of them and waits for its threads; closures on blocking threads
/// that have begun are waited for as well. A hybrid or kernel-level runtime that is dropped inside a task of
/// a hybrid or kernel-level runtime, its own or another, ends in the background instead.
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
}

impl Runtime {
    pub(crate) const fn new(handle: Handle, threads: Vec<thread::JoinHandle<()>>) -> Self {
        Self { handle, threads }
    }

    /// Returns a builder with the defaults: hybrid, one worker for each available core.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::new()
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
        self.handle.spawn_at(Location::caller(), future)
    }

    /// Runs a future to its end on the calling thread. On the user-level flavor, this runs all tasks
    /// too; a second thread that calls it waits for the first.
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

impl Drop for Runtime {
    fn drop(&mut self) {
        match &self.handle.scheduler {
            Scheduler::UserLevel(shared) => shared.shutdown(),
            Scheduler::Hybrid(shared) => {
                shared.shutdown();
                if hybrid::is_worker() || kernel_level::runs_here() {
                    // Perhaps one of our own, which cannot wait for itself: the last worker clears up.
                    drop(shared.pool().begin_shutdown());
                    return;
                }
                for thread in self.threads.drain(..) {
                    // Workers catch the panics of tasks; what is left would be a bug of ours.
                    if thread.join().is_err() {
                        tracing::error!("a worker panicked");
                    }
                }
                shared.pool().shutdown();
            }
            Scheduler::KernelLevel(shared) => {
                let in_background = hybrid::is_worker() || kernel_level::runs_here();
                shared.shutdown(in_background);
                if in_background {
                    return;
                }
                for thread in self.threads.drain(..) {
                    if thread.join().is_err() {
                        tracing::error!("the thread that hosts the server panicked");
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("handle", &self.handle).finish_non_exhaustive()
    }
}
