//! The [`EngineHost`]: an engine at a detection server, with its waiters.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::{
    contract::Engine,
    engine_detector::{Asked, EngineDetector, EngineEvent},
    shared::{EngineShared, Polled},
};
use crate::{
    error::{RegisterError, WaitError},
    policy::{History, Strategy},
    server::{EventStream, Handle, Registration, Server, Wait},
    sync::{Arc, OnceLock},
};

/// An engine at a detection server: use it to call the engine and to wait for it. Clones share the engine, which is dropped
/// with the last of them and of their waits.
///
/// ```
/// use std::{collections::VecDeque, io};
/// use vigie_detect::{ArmOutcome, Engine, EngineHost, Registration, Server, EngineContext};
///
/// struct Mailbox(VecDeque<String>);
///
/// impl Engine for Mailbox {
///     type Request = ();
///     type Output = String;
///
///     fn take(&mut self, (): &()) -> Option<String> {
///         self.0.pop_front()
///     }
///
///     fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
///         Ok(ArmOutcome::Armed)
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let server = Server::spawn_thread()?;
/// let registration = Registration::named("mailbox");
/// let mailbox = EngineHost::new(server.server(), Mailbox(VecDeque::new()), registration)?;
/// let sender = mailbox.clone();
/// std::thread::spawn(move || sender.with(|mailbox| mailbox.0.push_back("hello".to_owned())));
/// assert_eq!(mailbox.wait(()).await?, "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cost
/// A call and a poll take one lock, which is biased to the thread that takes it most: that thread enters without an atomic
/// read-modify-write. A wait for what is already there takes two locks; one that sleeps does not allocate once as many have
/// waited before. A [`waiter`](Self::waiter) polls, and registers if it must sleep, in one hold of the engine's lock; each
/// one that sleeps may allocate, and is found in time logarithmic in their number.
///
/// # Lock order
/// Driver, handle, engine, slot. A host calls wakers once all of them are released. Calls and waiters by name take only the
/// engine's lock.
///
/// # Fork without exec
/// In a forked child waits end with [`WaitError::ServerClosed`], and everything may be dropped. Calls and polls are not allowed
/// there; check with [`is_inherited`](Self::is_inherited). A thread that the child does not have may have held the engine's lock
/// at the fork.
pub struct EngineHost<E: Engine> {
    shared: Arc<EngineShared<E>>,
    handle: Handle<EngineDetector<E>>,
    /// The request that keeps the engine working without waiters, and through which the server reports its
    /// end.
    background: Arc<OnceLock<EventStream<EngineDetector<E>>>>,
}

impl<E: Engine> EngineHost<E> {
    /// Registers an engine at a detection server: [`Server::current`] inside a vigie runtime, or
    /// the server of a [host thread](Server::spawn_thread) elsewhere.
    ///
    /// # Errors
    /// Those of [`Server::register`]; [`RegisterError::Attach`] if a descriptor cannot be watched.
    pub fn new(
        server: &Server,
        engine: E,
        registration: Registration,
    ) -> Result<Self, RegisterError> {
        let shared = Arc::new(EngineShared::new(registration.name, engine));
        let watch = EngineDetector::new(Arc::clone(&shared));
        let handle = server.register(watch, registration)?;
        Ok(Self { shared, handle, background: Arc::default() })
    }

    /// Calls `f` with the engine, under its lock, wakes the [waiters](Self::waiter) that it has served, and makes the server poll
    /// if there are waits for a request: for calls that may produce what those want.
    ///
    /// # Panics
    /// If `f` uses this host again: it has the engine itself.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        self.shared.with(f)
    }

    /// Like [`with`](Self::with), for calls that produce nothing that is waited for, but may give the engine work. The server must poll
    /// only if it has armed the engine since it last worked, since it may then be asleep and unaware of the new work. The engine can be
    /// more precise: see [`Engine::has_unannounced_work`] and [`Engine::has_new_events`].
    ///
    /// # Panics
    /// If `f` uses this host again: it has the engine itself.
    #[inline]
    pub fn post<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        self.shared.post(f)
    }

    /// Takes what `request` asks for if it is there: on this thread, without the server.
    #[inline]
    pub fn try_take(&self, request: &E::Request) -> Option<E::Output> {
        self.shared.try_take(request)
    }

    /// Waits for what `request` asks for. Several waiters with the same request each receive a
    /// different output.
    ///
    /// # Cancel safety
    /// Cancel safe if the engine takes back what was found for a waiter that left: see [`Engine::put_back`].
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&self, request: E::Request) -> EngineWait<'_, E> {
        EngineWait { wait: self.handle.wait(Asked::Request(request)) }
    }

    /// Waits for what `request` asks for repeatedly, from now until the returned stream is dropped. The engine must take
    /// back what does not fit in the stream: see [`Engine::put_back`].
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn events(&self, request: E::Request) -> Result<EngineEvents<E>, WaitError> {
        let stream = self.handle.stream(Asked::Request(request))?;
        Ok(EngineEvents { stream, _shared: Arc::clone(&self.shared) })
    }

    /// Returns a waiter that polls with its own buffers and is woken when the engine [names](Engine::served) it. Several waiters
    /// may share a name: all of them are woken.
    #[inline]
    pub const fn waiter(&self, name: u64) -> EngineWaiter<'_, E> {
        EngineWaiter { host: self, name, number: None }
    }

    /// Keeps the engine working from now on, even without waiters, until the host is dropped. The first
    /// [`waiter`](Self::waiter) that has to wait calls this if it has not been called before.
    ///
    /// # Errors
    /// [`WaitError`] when the server has ended, or the engine has failed.
    pub fn run_in_background(&self) -> Result<(), WaitError> {
        if self.background.get().is_some() {
            return Ok(());
        }
        let stream = self.handle.stream(Asked::Background)?;
        let waker = Waker::from(Arc::clone(&self.shared));
        if let Poll::Ready(Some(Err(error))) = stream.poll_event(&Context::from_waker(&waker)) {
            return Err(error);
        }
        // One is enough: the second is dropped.
        let _ = self.background.set(stream);
        Ok(())
    }

    /// Returns whether this is a forked child's copy, whose engine must not be called: its lock may have been held at the
    /// fork, in which case it is never released.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.shared.is_inherited()
    }

    /// Returns the number of waiters.
    #[must_use]
    pub fn waiter_count(&self) -> usize {
        let background = usize::from(self.background.get().is_some());
        // When the server ends, the background request ends like all others.
        let wants = self.handle.pending_count().saturating_sub(background);
        wants + self.shared.lock().waiters.len()
    }

    /// Returns the history of this engine's waits, and the present strategy.
    #[must_use]
    pub fn history(&self) -> (History, Strategy) {
        self.handle.history()
    }

    pub(crate) const fn handle(&self) -> &Handle<EngineDetector<E>> {
        &self.handle
    }
}

impl<E: Engine> Clone for EngineHost<E> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            handle: self.handle.clone(),
            background: Arc::clone(&self.background),
        }
    }
}

impl<E: Engine> fmt::Debug for EngineHost<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHost").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// The future of [`EngineHost::wait`].
#[must_use = "nothing is waited for before the future is polled"]
pub struct EngineWait<'a, E: Engine> {
    wait: Wait<EngineDetector<E>, &'a Handle<EngineDetector<E>>>,
}

impl<E: Engine> Future for EngineWait<'_, E> {
    type Output = Result<E::Output, WaitError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = Pin::new(&mut self.get_mut().wait).poll(cx);
        ended.map_ok(EngineEvent::into_output)
    }
}

impl<E: Engine> fmt::Debug for EngineWait<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wait.fmt(f)
    }
}

/// A stream of outputs: see [`EngineHost::events`].
#[must_use = "the engine is waited for only as long as this lives"]
pub struct EngineEvents<E: Engine> {
    stream: EventStream<EngineDetector<E>>,
    /// Keeps the engine alive.
    _shared: Arc<EngineShared<E>>,
}

impl<E: Engine> EngineEvents<E> {
    /// Waits for the next output; `None` is the end.
    ///
    /// # Cancel safety
    /// Cancel safe: an output is either returned or still there.
    ///
    /// # Errors
    /// [`WaitError`], once; then the stream is at its end.
    pub async fn next(&mut self) -> Option<Result<E::Output, WaitError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Takes the next output, or registers the waker of `cx`, replacing an earlier one. `Ready(None)` is the
    /// end.
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub fn poll_next(&self, cx: &Context<'_>) -> Poll<Option<Result<E::Output, WaitError>>> {
        let next = self.stream.poll_event(cx);
        next.map(|next| next.map(|output| output.map(EngineEvent::into_output)))
    }
}

impl<E: Engine> fmt::Debug for EngineEvents<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

/// A waiter with its own buffers: see [`EngineHost::waiter`].
#[must_use = "nothing is waited for before it is polled"]
pub struct EngineWaiter<'a, E: Engine> {
    host: &'a EngineHost<E>,
    name: u64,
    /// Its place among the waiters, set by the first poll that found nothing. It may have been woken since.
    number: Option<u64>,
}

impl<E: Engine> EngineWaiter<'_, E> {
    /// Calls `take` with the engine, under its lock, and registers the waker of `cx` in the same hold of that lock if `take`
    /// returns `None`: nothing can come in between.
    ///
    /// # Cancel safety
    /// Cancel safe: only a waiter's own poll takes anything for it.
    ///
    /// # Errors
    /// [`WaitError`], if `take` returns `None`.
    ///
    /// # Panics
    /// If `take` uses the host again. A panic in `take` is the caller's.
    pub fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        take: impl FnOnce(&mut E) -> Option<T>,
    ) -> Poll<Result<T, WaitError>> {
        let Self { host, name, number } = self;
        if host.is_inherited() {
            return Poll::Ready(Err(WaitError::ServerClosed));
        }
        // Before `take`: the request takes the handle's lock, which comes before the engine's.
        if let Err(error) = host.run_in_background() {
            return Poll::Ready(host.shared.post(take).ok_or(error));
        }
        match host.shared.poll_or_register((*name, number), cx.waker(), take) {
            Some(Polled::Ready(output)) => Poll::Ready(Ok(output)),
            Some(Polled::Waits) => Poll::Pending,
            None => Poll::Ready(Err(host.handle.end())),
        }
    }

    /// Registers the waker of `cx` if the last poll found nothing and this waiter has not been woken since. Returns whether that
    /// is so: if it is, there is nothing to poll for. Does not call the engine: for waiters that are often polled for others' sake.
    #[inline]
    #[must_use = "a waiter that no longer waits must poll"]
    pub fn renew_waker(&self, cx: &Context<'_>) -> bool {
        self.number.is_some()
            && !self.host.is_inherited()
            && self.host.shared.renew(self.name, self.number, cx.waker())
    }
}

impl<E: Engine> Drop for EngineWaiter<'_, E> {
    fn drop(&mut self) {
        if self.number.is_some() && !self.host.is_inherited() {
            self.host.shared.leave(self.name, &mut self.number);
        }
    }
}

impl<E: Engine> fmt::Debug for EngineWaiter<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineWaiter").field("name", &self.name).finish_non_exhaustive()
    }
}
