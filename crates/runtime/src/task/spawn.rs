//! Spawning from inside a runtime.

use std::{
    future::Future,
    panic::Location,
    pin::Pin,
    task::{Context, Poll},
};

use super::local_set;
use crate::{
    flavor::{simulated, user_level},
    handle::{Handle, Scheduler},
    sync::Arc,
    task_cell::{JoinHandle, Label},
};

/// Spawns a task in the calling task's runtime.
///
/// # Panics
/// Panics outside any runtime; use [`Handle::current`] to check first.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let site = Location::caller();
    Handle::expect_current().spawn_at(site.into(), future)
}

/// Spawns a task that stays on this thread and therefore need not be `Send`: inside a
/// [`LocalSet`](super::LocalSet), or on the user-level flavor.
///
/// Inside a set, it is a task of the set. Otherwise it is polled while this thread is inside [`Runtime::block_on`](crate::Runtime::block_on), now or later,
/// whichever thread runs the other tasks meanwhile. If the runtime is dropped on another thread, the task's
/// future is leaked.
///
/// # Panics
/// Panics outside a `LocalSet` and outside a `block_on` of the user-level or the simulated flavor.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    spawn_local_at(Location::caller().into(), future)
}

#[track_caller]
pub(super) fn spawn_local_at<F>(label: Label, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (label, future) = match local_set::try_spawn(label, future) {
        Ok(handle) => return handle,
        Err(unspawned) => unspawned,
    };
    match &Handle::expect_current().scheduler {
        Scheduler::UserLevel(shared) if user_level::runs_here(Some(&**shared)) => {
            user_level::spawn_local(shared, label, future)
        }
        Scheduler::Simulated(shared) if simulated::runs_here(Some(&**shared)) => {
            simulated::spawn_local(shared, label, future)
        }
        _ => panic!(
            "`spawn_local` needs a `LocalSet` or a `block_on` of the user-level flavor around it"
        ),
    }
}

/// Runs a closure that may block, on a thread kept for such closures: see [`Handle::spawn_blocking`].
///
/// # Panics
/// Panics outside any runtime.
#[track_caller]
pub fn spawn_blocking<T, F>(work: F) -> JoinHandle<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let site = Location::caller();
    Handle::expect_current().spawn_blocking_at(site, work)
}

/// Spawns tasks with a name, which [metrics](crate::metrics) and log events show.
///
/// # Examples
/// ```
/// # let runtime = vigie_runtime::Runtime::builder().build()?;
/// # runtime.block_on(async {
/// use vigie_runtime::task;
///
/// let answer = task::Builder::new().name("adder").spawn(async { 40 + 2 }).await?;
/// assert_eq!(answer, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing before `spawn`"]
pub struct Builder {
    name: Option<Arc<str>>,
}

impl Builder {
    /// Returns a builder for a task without a name.
    pub const fn new() -> Self {
        Self { name: None }
    }

    /// Sets the name. Without one, the task is identified by the place where it was spawned. Names need not
    /// be unique. A name is kept until its task ends, and in the list of the latest long polls.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Spawns a task in the calling task's runtime, like [`spawn`].
    ///
    /// # Panics
    /// Panics outside any runtime.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let label = self.label(Location::caller());
        Handle::expect_current().spawn_at(label, future)
    }

    /// Spawns a task in the runtime of `handle`, from anywhere.
    #[track_caller]
    pub fn spawn_on<F>(self, future: F, handle: &Handle) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        handle.spawn_at(self.label(Location::caller()), future)
    }

    /// Spawns a task that stays on this thread, like [`spawn_local`].
    ///
    /// # Panics
    /// Panics outside a `LocalSet` and outside a `block_on` of the user-level or the simulated flavor.
    #[track_caller]
    pub fn spawn_local<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        spawn_local_at(self.label(Location::caller()), future)
    }

    fn label(self, site: &'static Location<'static>) -> Label {
        Label { name: self.name, ..site.into() }
    }
}

/// Lets other tasks run, and the scheduler poll for events if a poll pass is due.
///
/// # Cost
/// One task switch: no allocation, no system call. A task that yields repeatedly moves to the compute lane,
/// where it never precedes a task that an event has woken.
///
/// # Cancel safety
/// Cancel safe.
pub fn yield_now() -> YieldNow {
    YieldNow { has_yielded: false }
}

/// The future of [`yield_now`].
#[derive(Debug)]
#[must_use = "nothing is yielded before the future is polled"]
pub struct YieldNow {
    has_yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
