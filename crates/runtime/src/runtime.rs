//! A runtime: from `build` to the end of its last thread.

use std::{
    collections::BTreeMap, error::Error, fmt, future::Future, mem, panic::Location, path::Path,
    process, time::Duration,
};

use vigie_detect::{Instant, Server, clock::monotonic_now};

use crate::{
    flavor::{hybrid, kernel_level, user_level::Shutdown},
    handle::{EnterGuard, Handle, Scheduler},
    metrics::{self, Metrics, MetricsSocket, ServeError},
    sync::thread,
    task_cell::{JoinHandle, TaskState},
    tokio_context::TokioRuntime,
};

/// Runs tasks. Dropping it cancels all tasks and waits for its threads, and for closures that have begun on
/// blocking threads, for at most the builder's [`shutdown_timeout`](crate::RuntimeBuilder::shutdown_timeout),
/// 10 s by default. If a hybrid or kernel-level runtime is dropped inside a task of a hybrid or kernel-level
/// runtime (itself or another), or a user-level one inside its own `block_on`, it shuts down in the background instead.
///
/// After a fork without exec, the child must not use the runtime: none of its threads exist there. Dropping
/// it in the child leaks it, logs a warning, and does not touch what the parent still uses. Whatever else the
/// child has inherited may be dropped as well: handles, sockets, timers, futures, senders that wake a task.
/// Tasks are neither run nor dropped in the child.
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
    /// The process that created the runtime.
    process: u32,
    is_ended: bool,
    tokio: Option<TokioRuntime>,
    /// Dropped last: metrics can be read while the runtime shuts down.
    metrics_socket: Option<MetricsSocket>,
}

impl Runtime {
    pub(crate) fn assemble(handle: Handle, threads: Vec<thread::JoinHandle<()>>) -> Self {
        Self {
            handle,
            threads,
            process: process::id(),
            is_ended: false,
            tokio: None,
            metrics_socket: None,
        }
    }

    pub(crate) fn keep_tokio(&mut self, tokio: TokioRuntime) {
        self.tokio = Some(tokio);
    }

    pub(crate) fn serve_metrics(&mut self, path: &Path) -> Result<(), ServeError> {
        self.metrics_socket = Some(metrics::serve(&self.handle, path)?);
        Ok(())
    }

    /// Returns a handle for spawning from elsewhere.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns what the runtime has done so far and what it is doing now: see [`Handle::metrics`].
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.handle.metrics()
    }

    /// Makes this the runtime of the calling thread until the guard is dropped: see [`Handle::enter`].
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Returns the detection server of this runtime.
    #[must_use]
    pub fn server(&self) -> &Server {
        self.handle.server()
    }

    /// Spawns a task. On the user-level flavor it runs during [`block_on`](Self::block_on).
    ///
    /// # Panics
    /// In a forked child of the process that created the runtime.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn_at(Location::caller().into(), future)
    }

    /// Runs a closure that may block: see [`Handle::spawn_blocking`].
    ///
    /// # Panics
    /// In a forked child of the process that created the runtime.
    #[track_caller]
    pub fn spawn_blocking<T, F>(&self, work: F) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.handle.spawn_blocking_at(Location::caller(), work)
    }

    /// Runs a future to completion on the calling thread. On the user-level flavor, this runs all tasks too.
    /// A second thread that calls it meanwhile, for example a closure of
    /// [`spawn_blocking`](crate::spawn_blocking), runs only its own future and local tasks, and takes over
    /// the other tasks when the first thread leaves.
    ///
    /// # Panics
    /// Panics if called inside a task of a vigie runtime, whose worker it would block: spawn instead. Panics in
    /// a forked child of the process that created the runtime.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }
}

/// Tasks or closures were still inside a poll when the shutdown timed out. Their threads were left behind and
/// end after that poll.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShutdownTimeout {
    /// The number of threads that did not end.
    pub threads: usize,
    /// The names of these threads, which tell what they are for: those of workers and of kernel-level tasks begin with the builder's
    /// [`thread_name`](crate::RuntimeBuilder::thread_name), blocking threads are called `vigie-blocking`. A thread of the program that is
    /// in the `block_on` of a user-level runtime is listed as `block_on`.
    pub thread_names: Vec<String>,
    /// The places at which the tasks inside long polls were spawned.
    pub tasks: Vec<&'static Location<'static>>,
    /// The places at which the closures were spawned that still run on blocking threads.
    pub closures: Vec<&'static Location<'static>>,
}

impl fmt::Display for ShutdownTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, thread_names, tasks, closures } = self;
        let s = if *threads == 1 { "" } else { "s" };
        write!(f, "the shutdown timed out with {threads} thread{s} still running")?;
        list_each_once(f, ": ", thread_names, "threads")?;
        list_each_once(f, "; tasks spawned at ", tasks, "tasks")?;
        list_each_once(f, "; blocking closures spawned at ", closures, "closures")
    }
}

impl Error for ShutdownTimeout {}

/// The most different threads, or places, that a message names.
const NAMED_MAX: usize = 20;

/// Writes the items after an introduction, each one once, with the number of its occurrences; nothing if there are none. Of more than
/// [`NAMED_MAX`] items it writes the first ones.
fn list_each_once(
    f: &mut fmt::Formatter<'_>,
    introduction: &str,
    items: &[impl Ord + fmt::Display],
    plural: &str,
) -> fmt::Result {
    let mut counts = BTreeMap::<_, usize>::new();
    for item in items {
        *counts.entry(item).or_default() += 1;
    }
    let more = counts.len().saturating_sub(NAMED_MAX);
    for (index, (item, count)) in counts.into_iter().take(NAMED_MAX).enumerate() {
        write!(f, "{}{item}", if index == 0 { introduction } else { ", " })?;
        if count > 1 {
            write!(f, " ({count} {plural})")?;
        }
    }
    if more > 0 {
        write!(f, " and {more} more")?;
    }
    Ok(())
}

impl Runtime {
    /// Shuts the runtime down: cancels all tasks, and waits up to `timeout` for those inside a poll and for
    /// closures that have begun on blocking threads. Dropping the runtime does the same with the time [set in
    /// the builder](crate::RuntimeBuilder::shutdown_timeout), and logs the error with `tracing`.
    ///
    /// Inside a task of the hybrid or the kernel-level flavor it waits for nothing and returns `Ok`, even if the
    /// task belongs to another runtime: it may run on one of the threads that would have to end. The same holds inside
    /// [`block_on`](Self::block_on) of a user-level runtime itself, which cancels the tasks and goes on with its own future.
    ///
    /// Does nothing in a forked child: see [`Runtime`].
    ///
    /// # Errors
    /// [`ShutdownTimeout`] names the tasks and the closures that did not end. Their threads are left behind.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Result<(), ShutdownTimeout> {
        self.is_ended = true;
        self.end(timeout)
    }

    /// Shuts the runtime down without waiting: cancels all tasks, and leaves polls and closures that have begun to
    /// their threads, which end after them.
    pub fn shutdown_background(mut self) {
        self.is_ended = true;
        // Threads that are left are the point of it, and no error.
        let _ = self.end(Duration::ZERO);
    }

    fn end(&mut self, timeout: Duration) -> Result<(), ShutdownTimeout> {
        let deadline = monotonic_now() + timeout;
        let ended = self.end_until(deadline);
        // After our own tasks, whose sockets and timers it may watch.
        if let Some(tokio) = self.tokio.take() {
            tokio.shutdown(if self.leaves_threads() {
                Duration::ZERO
            } else {
                deadline - monotonic_now()
            });
        }
        ended
    }

    /// Returns whether this thread may be one of those that would have to end.
    fn leaves_threads(&self) -> bool {
        !matches!(self.handle.scheduler, Scheduler::UserLevel(_) | Scheduler::Simulated(_))
            && (hybrid::is_worker() || kernel_level::runs_here())
    }

    fn end_until(&mut self, deadline: Instant) -> Result<(), ShutdownTimeout> {
        if self.process != process::id() {
            self.leak();
            return Ok(());
        }

        let mut left = Vec::new();
        let mut tasks = Vec::new();
        let leaves_threads = self.leaves_threads();

        match &self.handle.scheduler {
            Scheduler::UserLevel(shared) => match shared.shutdown(deadline) {
                Shutdown::Over => {}
                Shutdown::GoesOn => {
                    drop(shared.pool.begin_shutdown());
                    return Ok(());
                }
                Shutdown::TimedOut => left.push("block_on".to_owned()),
            },
            Scheduler::Simulated(shared) => shared.shutdown(),
            Scheduler::Hybrid(shared) => {
                shared.shutdown();
                if leaves_threads {
                    // Possibly one of our own threads, which cannot wait for itself: the last worker cleans
                    // up.
                    drop(shared.pool.begin_shutdown());
                    return Ok(());
                }
                left.extend(join_until(mem::take(&mut self.threads), deadline));
                // The supervisor was among them: no reserve thread is created any more.
                left.extend(join_until(shared.take_reserve_threads(), deadline));
                if !left.is_empty() {
                    tasks = shared.polled_sites();
                }
            }
            Scheduler::KernelLevel(shared) => {
                shared.shutdown(leaves_threads);
                if leaves_threads {
                    return Ok(());
                }
                loop {
                    let threads = shared.take_threads();
                    if threads.is_empty() {
                        break;
                    }
                    left.extend(join_until(threads, deadline));
                }
                if left.is_empty() {
                    shared.cancel_all();
                } else {
                    // The last of those threads does.
                    shared.shutdown(true);
                }
                left.extend(join_until(shared.pool.begin_shutdown(), deadline));
                // A driver that is told too late is about to end, and has no task.
                let is_late = monotonic_now() >= deadline;
                shared.server.shutdown();
                let drivers = join_until(mem::take(&mut self.threads), deadline);
                left.extend(drivers.into_iter().filter(|_| !is_late));
            }
        }

        left.extend(join_until(self.handle.pool().begin_shutdown(), deadline));
        if left.is_empty() {
            return Ok(());
        }
        let mut closures = Vec::new();
        self.handle.pool().live().for_each(|_, info| {
            if info.state().0 == TaskState::Running {
                closures.push(info.site);
            }
        });
        Err(ShutdownTimeout { threads: left.len(), thread_names: left, tasks, closures })
    }
}

impl Runtime {
    /// Leaves everything as it is, in a forked child: it would wait for threads that do not exist there, the
    /// locks that they held would never be released, and the poller is still shared with the parent, so
    /// whatever the child closes or removes there is gone for the parent too.
    fn leak(&mut self) {
        tracing::warn!(
            parent = self.process,
            "a runtime was inherited by fork: it is leaked in the child, where it has no threads"
        );
        // One extra reference, which keeps the count above zero.
        mem::forget(self.handle.clone());
        mem::take(&mut self.threads).into_iter().for_each(mem::forget);
        self.tokio.take().into_iter().for_each(TokioRuntime::leak);
    }
}

/// Joins the threads that end before `deadline`, but not the calling one. Returns the names of those that did not.
fn join_until(threads: Vec<thread::JoinHandle<()>>, deadline: Instant) -> Vec<String> {
    let mut left = Vec::new();
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
            left.push(thread.thread().name().unwrap_or("unnamed").to_owned());
        } else if thread.join().is_err() {
            // Threads catch the panics of tasks, so this would be a bug of ours.
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
        let timeout = self.handle.options().shutdown_timeout;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(names: &[&str], tasks: Vec<&'static Location<'static>>) -> ShutdownTimeout {
        let thread_names: Vec<_> = names.iter().map(ToString::to_string).collect();
        ShutdownTimeout { threads: names.len(), thread_names, tasks, closures: Vec::new() }
    }

    /// Goal: the error of a shutdown names each thread and each place once, with its number, and not too many. Method: none, one of
    /// each, several, and more threads than are named.
    #[test]
    fn threads_and_places_are_named_once() {
        let (here, there) = (Location::caller(), Location::caller());
        let text = "the shutdown timed out with 1 thread still running: w-0; tasks spawned at";
        assert_eq!(error(&["w-0"], vec![here]).to_string(), format!("{text} {here}"));

        let mut three = error(&["w", "v", "w"], vec![there, here, there]);
        three.closures = vec![there, there];
        let text = "the shutdown timed out with 3 threads still running: v, w (2 threads); tasks spawned at";
        let closures = "; blocking closures spawned at";
        let text = format!("{text} {here}, {there} (2 tasks){closures} {there} (2 closures)");
        assert_eq!(three.to_string(), text);

        let text = "the shutdown timed out with 1 thread still running: w";
        assert_eq!(error(&["w"], Vec::new()).to_string(), text);

        let names: Vec<_> = (0..NAMED_MAX + 3).map(|number| format!("w-{number:02}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let text = error(&names, Vec::new()).to_string();
        assert!(text.ends_with("w-18, w-19 and 3 more"), "{text}");
    }
}
