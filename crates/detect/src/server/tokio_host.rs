//! A server that a tokio runtime drives.

#![expect(
    unsafe_code,
    reason = "tokio registers a descriptor only on a promise that it stays open"
)]

use std::io;

use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
};

use super::{Server, embedded::EmbeddedDriver};
use crate::detector::Flavor;

/// A [`Server`] that a task of the current tokio runtime drives: created by [`Server::spawn_in_tokio`]. Dropping it shuts the
/// server down.
///
/// tokio's own threads detect the events, so an event takes one way and no switch to another thread: a little longer than for a
/// socket of tokio's. The task that drives is one of tokio's: a task that computes on its worker delays it as it delays all
/// others. [`HostThread`](super::HostThread) has a thread of its own instead.
#[derive(Debug)]
#[must_use = "dropping the host shuts its server down"]
pub struct TokioHost {
    server: Server,
    task: JoinHandle<()>,
}

impl Server {
    /// Creates a server, and a task of the current tokio runtime that drives it, so that tokio's tasks await any detector.
    ///
    /// # Errors
    /// Those of [`Server::new`], and if tokio cannot watch the descriptor.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without `enable_io`.
    ///
    /// # Examples
    /// ```
    /// use vigie_detect::{Server, detectors::channel::channel};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
    /// let host = Server::spawn_in_tokio()?;
    /// let (sender, receiver) = channel(host.server(), 8)?;
    /// std::thread::spawn(move || sender.try_send(42));
    /// assert_eq!(receiver.recv().await?, Some(42));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn_in_tokio() -> io::Result<TokioHost> {
        let server = Self::new(Flavor::UserLevel)?;
        let driver = server.embed();
        // SAFETY: the descriptor is the poller's, which the driver's server owns until both are dropped; it is always the same.
        let driver = unsafe { AsyncFd::register_with_interest(driver, Interest::READABLE) };
        let driver = driver.map_err(|error| error.into_parts().1)?;
        let task = tokio::spawn(drive(driver));
        Ok(TokioHost { server, task })
    }
}

/// Ticks until the server is shut down.
async fn drive(mut driver: AsyncFd<EmbeddedDriver>) {
    while let Ok(mut ready) = driver.readable_mut().await {
        if !ready.get_inner_mut().tick() {
            return;
        }
        // An event since then is a new edge, which tokio does not take for the one that is cleared.
        ready.clear_ready();
    }
}

impl TokioHost {
    /// Returns the server that the task drives.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }
}

impl Drop for TokioHost {
    fn drop(&mut self) {
        if self.server.is_inherited() {
            return;
        }
        self.server.shutdown();
        // It would end by itself, unless its runtime has.
        self.task.abort();
    }
}
