//! The executor of calls that block a thread, such as the lookup of a name.

use std::{fmt, io};

use crate::sync::{OnceLock, thread};

/// A call that blocks.
pub(crate) type BlockingCall = Box<dyn FnOnce() + Send>;

/// The function that runs the blocking calls of a server.
#[derive(Default)]
pub(crate) struct BlockingExecutor(OnceLock<Box<dyn Fn(BlockingCall) + Send + Sync>>);

impl fmt::Debug for BlockingExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockingExecutor").field(&self.0.get().is_some()).finish()
    }
}

impl BlockingExecutor {
    /// Sets what runs the calls; returns whether this was the first time.
    pub(crate) fn set(&self, run: impl Fn(BlockingCall) + Send + Sync + 'static) -> bool {
        self.0.set(Box::new(run)).is_ok()
    }

    /// Runs a call that blocks.
    ///
    /// # Errors
    /// The kernel's error, if it refuses a thread.
    pub(crate) fn run(&self, call: BlockingCall) -> io::Result<()> {
        match self.0.get() {
            Some(run) => {
                run(call);
                Ok(())
            }
            None => on_a_thread(call),
        }
    }
}

/// Runs a call on a thread of its own.
///
/// # Errors
/// The kernel's error, if it refuses one.
pub(crate) fn on_a_thread(call: BlockingCall) -> io::Result<()> {
    thread::Builder::new().name("vigie-blocking".to_owned()).spawn(call).map(drop)
}
