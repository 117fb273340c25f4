//! Where calls run that block a thread, such as the lookup of a name.

use std::{fmt, io};

use super::Server;
use crate::sync::{OnceLock, thread};

/// A call that blocks.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What runs the blocking calls of a server.
#[derive(Default)]
pub(crate) struct BlockingExecutor(OnceLock<Box<dyn Fn(Job) + Send + Sync>>);

impl fmt::Debug for BlockingExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockingExecutor").field(&self.0.get().is_some()).finish()
    }
}

impl Server {
    /// Sets what runs calls that block a thread: lookups of names in [`net`](crate::net). Each is passed to `run`, which
    /// must not run it on a thread that drives the server, and drops it if it cannot run it. Without an executor each
    /// call has a thread of its own. The runtime of vigie sets its blocking pool.
    ///
    /// Returns whether this was the first time; later executors are ignored.
    pub fn set_blocking_executor(
        &self,
        run: impl Fn(Box<dyn FnOnce() + Send>) + Send + Sync + 'static,
    ) -> bool {
        self.owner.shared.blocking.0.set(Box::new(run)).is_ok()
    }

    /// Runs a call that blocks.
    ///
    /// # Errors
    /// The kernel's error, if it refuses a thread.
    pub(crate) fn run_blocking(&self, job: Job) -> io::Result<()> {
        match self.owner.shared.blocking.0.get() {
            Some(run) => {
                run(job);
                Ok(())
            }
            None => on_a_thread(job),
        }
    }
}

/// Runs a call on a thread of its own.
///
/// # Errors
/// The kernel's error, if it refuses one.
pub(crate) fn on_a_thread(job: Job) -> io::Result<()> {
    thread::Builder::new().name("vigie-blocking".to_owned()).spawn(job).map(drop)
}
