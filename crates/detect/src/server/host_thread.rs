//! A server on its own thread, for programs whose tasks run in another runtime.

use std::io;

use super::{Server, refuse_in_simulation};
use crate::{detector::Flavor, sync::thread};

/// A thread that only drives a [`Server`]. Dropping it shuts the server down and joins the thread;
/// in a forked child, which does not have the thread, it does neither.
///
/// A wait first polls inline, on the waiter's own thread. This thread handles only events that are
/// not there yet; the hop to it costs 25–45 µs on an idle machine.
#[derive(Debug)]
#[must_use = "dropping the host thread shuts its server down"]
pub struct HostThread {
    server: Server,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Creates a server and the thread that drives it, so that `handle.wait(..).await` works inside
    /// tokio, smol or a bare `block_on`.
    ///
    /// # Errors
    /// Those of [`Server::new`], and if no thread can be created.
    ///
    /// # Examples
    /// ```
    /// use vigie_detect::{Server, detectors::channel::channel};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let host = Server::spawn_thread()?;
    /// let (sender, receiver) = channel(host.server(), 8)?;
    /// std::thread::spawn(move || sender.try_send("seen from the crow's nest"));
    /// assert_eq!(receiver.recv().await?, Some("seen from the crow's nest"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn_thread() -> io::Result<HostThread> {
        HostThread::spawn(Self::new(Flavor::KernelLevel)?)
    }
}

impl HostThread {
    /// Creates a thread that drives `server`. The kernel-level flavor is best here: this thread has
    /// nothing else to run.
    ///
    /// # Errors
    /// If no thread can be created; [`io::ErrorKind::Unsupported`] inside a simulation.
    pub fn spawn(server: Server) -> io::Result<Self> {
        refuse_in_simulation("threads", "the simulation drives its servers")?;
        let mut driver = server.driver();
        let hosted = server.clone();
        let thread = thread::Builder::new().name("vigie-driver".to_owned()).spawn(move || {
            let _entered = hosted.enter();
            while !hosted.is_closed() {
                driver.park(None);
            }
        })?;
        Ok(Self { server, thread: Some(thread) })
    }

    /// Returns the server that this thread drives.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }
}

impl Drop for HostThread {
    fn drop(&mut self) {
        if self.server.is_inherited() {
            // Not even detached: the child has no such thread.
            std::mem::forget(self.thread.take());
            return;
        }
        self.server.shutdown();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // It cannot have panicked: callbacks and wakers are its only foreign code, and only a
            // waker's panic could be reported here.
            drop(thread.join());
        }
    }
}
