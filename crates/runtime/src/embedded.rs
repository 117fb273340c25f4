//! A runtime whose tasks run in ticks of a foreign event loop.

use std::{
    error::Error,
    fmt,
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use crate::{handle::Scheduler, runtime::Runtime};

impl Runtime {
    /// Makes this runtime part of another library's event loop, which runs its tasks in [ticks](EmbeddedRuntime::tick): that of
    /// a GUI, of nginx, of a JavaScript engine, or tokio's.
    ///
    /// # Errors
    /// If the flavor is not [`UserLevel`](vigie_detect::Flavor::UserLevel): the others have threads of their own that run their
    /// tasks whatever the event loop does, and need no ticks.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use vigie_runtime::{Flavor, Runtime, time};
    ///
    /// let runtime = Runtime::builder().flavor(Flavor::UserLevel).build()?.embed()?;
    /// let task = runtime.spawn(time::sleep(Duration::from_millis(5)));
    /// loop {
    ///     runtime.tick();
    ///     // After the tick, which may have finished it: nothing else may come to end the sleep.
    ///     if task.is_finished() {
    ///         break;
    ///     }
    ///     // And the descriptors of the program's own.
    ///     poll(&mut [PollFd::new(&runtime, PollFlags::IN)], None)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn embed(self) -> Result<EmbeddedRuntime, NotEmbeddable> {
        match &self.handle().scheduler {
            Scheduler::UserLevel(_) => Ok(EmbeddedRuntime { runtime: self }),
            Scheduler::Hybrid(_) | Scheduler::KernelLevel(_) | Scheduler::Simulated(_) => {
                Err(NotEmbeddable)
            }
        }
    }
}

/// A [`Runtime`] whose tasks run in ticks of a foreign event loop. Created by [`Runtime::embed`].
///
/// The loop calls [`tick`](Self::tick) once at the beginning, and then whenever the descriptor ([`AsFd`]) is readable; it may
/// watch it level- or edge-triggered. Deadlines, spawning and waking on any thread make it readable too, so the loop needs no
/// time-out for it.
///
/// Nothing is detected and no task runs while the loop does not come round, so the reaction is the loop's.
#[derive(Debug)]
pub struct EmbeddedRuntime {
    runtime: Runtime,
}

impl EmbeddedRuntime {
    /// Polls for events and runs the tasks that are ready, without sleeping, for about one
    /// [quantum](crate::RuntimeBuilder::quantum) at most; if tasks are left, the descriptor is readable at once. Does nothing
    /// while another thread is inside [`block_on`](Runtime::block_on), which runs all tasks.
    ///
    /// A tick may change what the loop waits for (a task that finishes, a channel that fills): check that between the tick
    /// and the sleep.
    ///
    /// # Panics
    /// Inside a task or `block_on` of this runtime, and in a forked child of the process that created it.
    #[track_caller]
    pub fn tick(&self) {
        self.runtime.handle().tick();
    }
}

impl Deref for EmbeddedRuntime {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        &self.runtime
    }
}

impl AsFd for EmbeddedRuntime {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.runtime.server().poller_fd().expect("invariant: runtimes have a real poller")
    }
}

impl AsRawFd for EmbeddedRuntime {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// The error of [`Runtime::embed`] on a flavor whose tasks run on threads of their own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NotEmbeddable;

impl fmt::Display for NotEmbeddable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "only a runtime of the user-level flavor can be embedded: the threads of this one run its tasks without ticks",
        )
    }
}

impl Error for NotEmbeddable {}
