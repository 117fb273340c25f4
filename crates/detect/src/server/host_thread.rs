//! A server on a thread of its own, for programs whose tasks another runtime runs.

use std::io;

use super::Server;
use crate::{detector::Flavor, sync::thread};

/// A thread that does nothing but turn a [`Server`]. Dropping it shuts the server down and joins the
/// thread; in a forked child, which does not have the thread, it does neither.
///
/// A wait looks inline first, on the waiter's own thread; only an event that is not there yet is left
/// to this thread, whose hop costs 25–45 µs on an idle machine.
#[derive(Debug)]
#[must_use = "dropping the host thread shuts its server down"]
pub struct HostThread {
    server: Server,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Makes a server and the thread that turns it, so that `handle.wait(..).await` works inside
    /// tokio, smol or a bare `block_on`.
    ///
    /// # Errors
    /// As [`Server::new`], and if no thread can be had.
    ///
    /// # Examples
    /// ```
    /// use vigie_detect::{Server, stock::channel::channel};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let host = Server::spawn_thread()?;
    /// let (sender, receiver) = channel(host.server(), 8)?;
    /// std::thread::spawn(move || sender.try_send("seen from the crow's nest"));
    /// assert_eq!(receiver.wait(()).await?, Some("seen from the crow's nest"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn_thread() -> io::Result<HostThread> {
        HostThread::spawn(Self::new(Flavor::KernelLevel)?)
    }
}

impl HostThread {
    /// Makes a thread that turns `server`, which is best of the kernel-level flavor: this thread has
    /// nothing else to run.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn spawn(server: Server) -> io::Result<Self> {
        let mut lookout = server.lookout();
        let hosted = server.clone();
        let thread = thread::Builder::new().name("vigie-lookout".to_owned()).spawn(move || {
            let _entered = hosted.enter();
            while !hosted.is_closed() {
                lookout.park(None);
            }
        })?;
        Ok(Self { server, thread: Some(thread) })
    }

    /// Returns the server that this thread turns.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }
}

impl Drop for HostThread {
    fn drop(&mut self) {
        if self.server.is_inherited() {
            // Not even detached: there is no such thread.
            std::mem::forget(self.thread.take());
            return;
        }
        self.server.shutdown();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // It cannot have panicked: callbacks and wakers are its only foreign code, and a panic of
            // a waker is all that could be reported here.
            drop(thread.join());
        }
    }
}
