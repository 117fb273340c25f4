//! An engine at a detection server whose waits first spin inline, then hand over.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    task::{Context, Poll, ready},
};

use vigie_detect::{
    Engine, EngineHost, EngineWait, RegisterError, Registration, Server, SharedWait, SharedWaiter,
    WaitError,
};

/// The usual number of peers whose answers are awaited.
const PEERS: u32 = 2;

/// Polls between two reads of the clock: about 1 µs.
const POLLS_PER_CLOCK_READ: u32 = 32;

/// After this many announcements in a row without a waiter, a host of links or datagrams stops asking for them: a
/// caller that polls without waiting would be disturbed by a host that polls too.
pub(crate) const UNCLAIMED_READINESS_MAX: u32 = 2;

/// An engine at a detection server whose waits first spin inline, then hand over. Clones share the engine; each learns
/// separately how long to spin.
pub(crate) struct SpinningHost<E: Engine> {
    host: EngineHost<E>,
    server: Server,
    waiter: SharedWaiter,
}

impl<E: Engine> SpinningHost<E> {
    pub(crate) fn new(
        server: &Server,
        name: &'static str,
        engine: E,
    ) -> Result<Self, RegisterError> {
        Ok(Self::of(EngineHost::new(server, engine, Registration::named(name))?, server))
    }

    fn of(host: EngineHost<E>, server: &Server) -> Self {
        let waiter = SharedWaiter::at(server, PEERS, POLLS_PER_CLOCK_READ);
        Self { host, server: server.clone(), waiter }
    }

    /// As [`EngineHost::wait`]. Cancel safe: output that arrived for it goes to other waits.
    #[inline]
    pub(crate) fn wait(&self, want: E::Request) -> SpinningWait<'_, E> {
        SpinningWait { host: &self.host, want, spin: self.waiter.wait(), wait: None }
    }
}

impl<E: Engine> Deref for SpinningHost<E> {
    type Target = EngineHost<E>;

    #[inline]
    fn deref(&self) -> &EngineHost<E> {
        &self.host
    }
}

impl<E: Engine> Clone for SpinningHost<E> {
    fn clone(&self) -> Self {
        Self::of(self.host.clone(), &self.server)
    }
}

impl<E: Engine> fmt::Debug for SpinningHost<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)
    }
}

/// A wait that spins inline before it hands over.
pub(crate) struct SpinningWait<'a, E: Engine> {
    host: &'a EngineHost<E>,
    want: E::Request,
    spin: SharedWait<'a>,
    /// Set once spinning is over.
    wait: Option<EngineWait<'a, E>>,
}

impl<E: Engine> Unpin for SpinningWait<'_, E> {}

impl<E: Engine> Future for SpinningWait<'_, E> {
    type Output = Result<E::Output, WaitError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { host, want, spin, wait } = self.get_mut();
        let wait = match wait {
            Some(wait) => wait,
            None => match ready!(spin.poll_spin(cx, || host.try_take(want).into())) {
                Some(found) => return Poll::Ready(Ok(found)),
                None => wait.insert(host.wait(want.clone())),
            },
        };
        let found = ready!(Pin::new(wait).poll(cx));
        spin.slept();
        Poll::Ready(found)
    }
}
