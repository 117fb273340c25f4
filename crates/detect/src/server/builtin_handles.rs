//! What the handles of the two built-in detectors offer beside waiting.

use std::{
    borrow::Borrow,
    io,
    os::fd::{BorrowedFd, RawFd},
    time::Duration,
};

use super::handle::{Handle, Wait};
use crate::{
    builtin::{Readiness, Source, Timers},
    detector::Interest,
    error::WaitError,
    sync::Arc,
};

impl<H: Borrow<Handle<Timers>>> Wait<Timers, H> {
    /// Sets the slack: how much later than the deadline the event may be reported to share a wake-up with
    /// others, apart from the delays of the machine. Default [`Adaptive::timer_slack`] of the server. Set
    /// after the first poll, it has no effect.
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
    /// [`AsyncFd`](crate::AsyncFd) sees to that.
    ///
    /// # Errors
    /// The kernel's: a closed descriptor, one that is watched already, or one that cannot be watched
    /// (`EPERM` for a regular file); [`io::ErrorKind::NotConnected`] if the server is shut down.
    pub fn watch(&self, descriptor: BorrowedFd<'_>, interest: Interest) -> io::Result<Arc<Source>> {
        self.with_detector(|readiness| readiness.watch(Some(descriptor), interest))
            .unwrap_or_else(|| Err(WaitError::ServerClosed.into()))
    }

    /// Makes a source that the threads which wait for it watch in their own wait points.
    pub(crate) fn leave_to_threads(&self) -> io::Result<Arc<Source>> {
        self.with_detector(|readiness| readiness.watch(None, Interest::Both))
            .unwrap_or_else(|| Err(WaitError::ServerClosed.into()))
    }

    /// Lets the server's wait point watch a source that threads have watched. Nothing happens if its
    /// owner has unwatched it, before which it does not close the descriptor.
    pub(crate) fn watch_from_now_on(&self, descriptor: RawFd, source: &Source) -> io::Result<()> {
        // A closed server has ended all waits already.
        self.with_detector(|readiness| readiness.watch_from_now_on(descriptor, source))
            .unwrap_or(Ok(()))
    }

    /// Watches a descriptor no more. Waits for it end in [`io::ErrorKind::NotConnected`]; streams of
    /// it bring no further event.
    pub fn unwatch(&self, descriptor: BorrowedFd<'_>, source: &Source) {
        // A closed server has ended all waits already.
        let bell = self.with_detector(|readiness| readiness.unwatch(descriptor, source)).flatten();
        if let Some(bell) = bell {
            bell.ring();
        }
    }
}
