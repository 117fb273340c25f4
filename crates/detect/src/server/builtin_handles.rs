//! Methods of the handles of the two built-in detectors, apart from waiting.

use std::{
    borrow::Borrow,
    io,
    os::fd::{BorrowedFd, RawFd},
    time::Duration,
};

use super::handle::{Handle, Wait};
use crate::{
    builtin::{IoSource, Readiness, Timers},
    detector::Interest,
    error::WaitError,
    sync::Arc,
};

impl<H: Borrow<Handle<Timers>>> Wait<Timers, H> {
    /// Sets the slack: how much later than the deadline the event may be reported in order to share a
    /// wake-up with others, apart from delays of the machine. Default: [`Adaptive::timer_slack`] of the
    /// server. Has no effect after the first poll.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use vigie_detect::{Instant, Simulation};
    ///
    /// let mut simulation = Simulation::new(0);
    /// let timers = simulation.server().timers().clone();
    /// simulation.block_on(async move {
    ///     let deadline = Instant::now() + Duration::from_secs(60);
    ///     timers.wait(deadline).slack(Duration::from_secs(1)).await
    /// })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`Adaptive::timer_slack`]: crate::Adaptive::timer_slack
    pub fn slack(mut self, slack: Duration) -> Self {
        self.before_submit = Some((Timers::set_next_slack, slack));
        self
    }
}

impl Handle<Readiness> {
    /// Watches a descriptor. It must stay open until [`unwatch`](Self::unwatch);
    /// [`AsyncFd`](crate::AsyncFd) ensures that.
    ///
    /// # Errors
    /// The kernel's error: a closed descriptor, one that is watched already, or one that cannot be
    /// watched
    /// (`EPERM` for a regular file); [`io::ErrorKind::NotConnected`] if the server is shut down.
    pub fn watch(
        &self,
        descriptor: BorrowedFd<'_>,
        interest: Interest,
    ) -> io::Result<Arc<IoSource>> {
        self.with_detector(|readiness| readiness.watch(descriptor, Some(interest)))
            .unwrap_or_else(|| Err(WaitError::ServerClosed.into()))
    }

    /// Creates a source that the waiting threads watch in their own pollers.
    pub(crate) fn leave_to_threads(&self, descriptor: BorrowedFd<'_>) -> io::Result<Arc<IoSource>> {
        self.with_detector(|readiness| readiness.watch(descriptor, None))
            .unwrap_or_else(|| Err(WaitError::ServerClosed.into()))
    }

    /// Makes the server's poller watch a source that threads have watched. Does nothing if its
    /// owner has unwatched it, which it does before it closes the descriptor.
    pub(crate) fn watch_from_now_on(&self, descriptor: RawFd, source: &IoSource) -> io::Result<()> {
        // A closed server has already ended all waits.
        self.with_detector(|readiness| readiness.watch_from_now_on(descriptor, source))
            .unwrap_or(Ok(()))
    }

    /// Stops watching a descriptor. Waits for it end with [`io::ErrorKind::NotConnected`]; streams
    /// of it deliver no further event.
    pub fn unwatch(&self, descriptor: BorrowedFd<'_>, source: &IoSource) {
        // A closed server has already ended all waits.
        let notifier =
            self.with_detector(|readiness| readiness.unwatch(descriptor, source)).flatten();
        if let Some(notifier) = notifier {
            notifier.notify();
        }
    }
}
