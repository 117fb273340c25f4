//! A server that an event loop of another library drives.

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use super::{
    Server,
    driver::{Detected, Driver},
};

/// The most poll passes of one tick, which go on while there is something to do. The rest is left to the next tick, so that a flood
/// of events does not keep the loop from its own work.
const PASSES_MAX: u32 = 4;

/// The host's side of a [`Server`] for an event loop that sleeps in a call of its own: tokio's, smol's, or that of a GUI, of
/// nginx, of a JavaScript engine. Created by [`Server::embed`].
///
/// The loop watches the descriptor ([`AsFd`]) for readability, level- or edge-triggered, and calls [`tick`](Self::tick) when it
/// is readable. Deadlines and notifications of other threads make it readable too, so the loop needs no other time-out. Waits
/// may be made and polled on any thread.
///
/// Compared with a [`HostThread`](super::HostThread), an event costs no switch to another thread; but nothing is detected
/// while the loop does not come round.
pub struct EmbeddedDriver {
    server: Server,
    driver: Driver,
}

impl Server {
    /// Makes this server part of another library's event loop. Only one thread at a time can drive a server: do not embed one
    /// that a [`HostThread`](super::HostThread) or a runtime drives.
    ///
    /// The best flavor is [`UserLevel`](crate::Flavor::UserLevel): one thread polls for the events of all.
    ///
    /// # Examples
    /// A loop around poll(2), as a GUI has one; the feature `tokio` has [`Server::spawn_in_tokio`] for tokio's.
    /// ```
    /// use std::{future::Future, pin::pin, task::{Context, Waker}};
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use vigie_detect::{Flavor, Server, detectors::channel::channel};
    ///
    /// let server = Server::new(Flavor::UserLevel)?;
    /// let mut driver = server.embed();
    /// let (sender, receiver) = channel(&server, 8)?;
    /// std::thread::spawn(move || sender.try_send(42));
    /// let mut wait = pin!(receiver.recv());
    /// let mut cx = Context::from_waker(Waker::noop());
    /// while wait.as_mut().poll(&mut cx).is_pending() {
    ///     // Beside the descriptors of the program's own.
    ///     poll(&mut [PollFd::new(&driver, PollFlags::IN)], None)?;
    ///     driver.tick();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If this is the server of a [`Simulation`](crate::Simulation), which has no descriptor.
    #[must_use]
    pub fn embed(&self) -> EmbeddedDriver {
        let driver = self.driver();
        assert!(driver.descriptor().is_some(), "a simulated server has no descriptor to watch");
        let mut embedded = EmbeddedDriver { server: self.clone(), driver };
        embedded.tick();
        embedded
    }
}

impl EmbeddedDriver {
    /// Delivers what has happened and wakes the tasks that wait for it, without sleeping; then the descriptor is not readable
    /// until there is more to do. Returns false if the server was [shut down](Server::shutdown): there is nothing to drive any
    /// more.
    ///
    /// # Cost
    /// Two system calls, a third if a deadline comes closer, and one lock for each handle that is polled.
    pub fn tick(&mut self) -> bool {
        for _ in 0..PASSES_MAX {
            self.driver.poll();
            if self.driver.announce_sleep(|| false) == Detected::Nothing {
                return !self.server.is_closed();
            }
        }
        self.driver.interrupt();
        !self.server.is_closed()
    }
}

impl AsFd for EmbeddedDriver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.descriptor().expect("invariant: checked by `Server::embed`")
    }
}

impl AsRawFd for EmbeddedDriver {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for EmbeddedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedDriver").finish_non_exhaustive()
    }
}
