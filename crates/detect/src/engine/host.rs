//! The [`EngineHost`]: an engine at a detection server, and those who wait for it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::{
    contract::Engine,
    shared::{Looked, Shared},
    watch::{Asked, EngineEvent, EngineWatch},
};
use crate::{
    error::{RegisterError, WaitError},
    policy::{History, Strategy},
    server::{EventStream, Handle, Registration, Server, Wait},
    sync::{Arc, OnceLock},
};

/// An engine at a detection server: through it the engine is called, and waited for. Clones are the same one; the engine is
/// dropped with the last of them and of their waits.
///
/// ```
/// use std::{collections::VecDeque, io};
/// use vigie_detect::{Armed, Engine, EngineHost, Registration, Server, Turn};
///
/// struct Mailbox(VecDeque<String>);
///
/// impl Engine for Mailbox {
///     type Want = ();
///     type Found = String;
///
///     fn take(&mut self, (): &()) -> Option<String> {
///         self.0.pop_front()
///     }
///
///     fn arm(&mut self, _: &Turn<'_>) -> io::Result<Armed> {
///         Ok(Armed::Armed)
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
/// A call and a look take one lock, which leans to the thread that takes it most: that one enters without an atomic
/// read-modify-write. A wait for what is there already takes two, and one that sleeps allocates nothing once as many waited
/// before. A [`waiter`](Self::waiter) looks, and registers if it must sleep, in one hold of that lock; of those, each that
/// sleeps may allocate, and is found in the logarithm of their number.
///
/// # Lock order
/// Driver, handle, engine, slot. A host calls wakers once all of them are released. Calls and waiters by name take the engine's
/// alone.
///
/// # Fork without exec
/// In a forked child waits end in [`WaitError::ServerClosed`], and everything may be dropped. Calls and looks must not be made
/// there, which [`is_inherited`](Self::is_inherited) tells: the engine's lock may have been held at the fork, by a thread that the
/// child does not have.
pub struct EngineHost<E: Engine> {
    shared: Arc<Shared<E>>,
    handle: Handle<EngineWatch<E>>,
    /// The request that keeps the engine at work while nobody waits, and by which the server tells its end.
    background: Arc<OnceLock<EventStream<EngineWatch<E>>>>,
}

impl<E: Engine> EngineHost<E> {
    /// Brings an engine to a detection server: [`Server::current`] inside a vigie runtime, or a
    /// [host thread](Server::spawn_thread)'s elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`]; [`RegisterError::Attach`] if a descriptor cannot be watched.
    pub fn new(
        server: &Server,
        engine: E,
        registration: Registration,
    ) -> Result<Self, RegisterError> {
        let shared = Arc::new(Shared::new(engine));
        let watch = EngineWatch::new(Arc::clone(&shared));
        let handle = server.register(watch, registration)?;
        Ok(Self { shared, handle, background: Arc::default() })
    }

    /// Calls `f` with the engine, under its lock, wakes the [waiters](Self::waiter) that it has served, and makes the server look
    /// if anybody waits for a want: for calls that may bring what those want.
    ///
    /// # Panics
    /// If `f` uses this host again.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        self.shared.with(f)
    }

    /// Like [`with`](Self::with), for calls that bring nothing that is wanted, but may give the engine work: the server has to
    /// look only if it has armed the engine since it worked the last time, because it may sleep then, and knows nothing of that
    /// work. The engine can say more exactly whether there is any: see [`Engine::has_silent_work`] and [`Engine::has_news`].
    ///
    /// # Panics
    /// If `f` uses this host again.
    #[inline]
    pub fn post<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        self.shared.post(f)
    }

    /// Takes what `want` names if it is there: on this thread, without the server.
    #[inline]
    pub fn look(&self, want: &E::Want) -> Option<E::Found> {
        self.shared.look(want)
    }

    /// Waits for what `want` names. Of several waiters for the same, each gets another one.
    ///
    /// # Cancel safety
    /// Cancel safe as far as the engine takes back what was found for a waiter that left: see [`Engine::put_back`].
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&self, want: E::Want) -> EngineWait<'_, E> {
        EngineWait { wait: self.handle.wait(Asked::Want(want)) }
    }

    /// Waits for what `want` names again and again, at once and until what is returned is dropped. The engine must take
    /// back what finds no room in the stream: see [`Engine::put_back`].
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn events(&self, want: E::Want) -> Result<EngineEvents<E>, WaitError> {
        let stream = self.handle.stream(Asked::Want(want))?;
        Ok(EngineEvents { stream, _shared: Arc::clone(&self.shared) })
    }

    /// Returns a waiter that looks with buffers of its own, and is woken when the engine [names](Engine::served) it. Several may
    /// have one name: all of them are woken then.
    #[inline]
    pub const fn waiter(&self, name: u64) -> EngineWaiter<'_, E> {
        EngineWaiter { host: self, name, number: None }
    }

    /// Keeps the engine at work from now on, also while nobody waits, until the host is dropped. The first
    /// [`waiter`](Self::waiter) that has to wait does that, if nobody has done it before.
    ///
    /// # Errors
    /// [`WaitError`] when the server has ended, or the engine has failed.
    pub fn keep_at_work(&self) -> Result<(), WaitError> {
        if self.background.get().is_some() {
            return Ok(());
        }
        let stream = self.handle.stream(Asked::Background)?;
        let waker = Waker::from(Arc::clone(&self.shared));
        if let Poll::Ready(Some(Err(error))) = stream.poll_event(&Context::from_waker(&waker)) {
            return Err(error);
        }
        // One is enough: a second one is dropped.
        let _ = self.background.set(stream);
        Ok(())
    }

    /// Returns whether this is a forked child's copy, whose engine must not be called: its lock may have been held at the
    /// fork, and is then never released.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.shared.is_inherited()
    }

    /// Returns how many wait.
    #[must_use]
    pub fn waiter_count(&self) -> usize {
        let background = usize::from(self.background.get().is_some());
        // At the end that request is over like all others.
        let wants = self.handle.pending_count().saturating_sub(background);
        wants + self.shared.lock().waiters.len()
    }

    /// Returns what was seen of this engine so far, and the present strategy.
    #[must_use]
    pub fn history(&self) -> (History, Strategy) {
        self.handle.history()
    }

    pub(crate) const fn handle(&self) -> &Handle<EngineWatch<E>> {
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
    wait: Wait<EngineWatch<E>, &'a Handle<EngineWatch<E>>>,
}

impl<E: Engine> Future for EngineWait<'_, E> {
    type Output = Result<E::Found, WaitError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = Pin::new(&mut self.get_mut().wait).poll(cx);
        ended.map_ok(EngineEvent::into_found)
    }
}

impl<E: Engine> fmt::Debug for EngineWait<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wait.fmt(f)
    }
}

/// What comes again and again: see [`EngineHost::events`].
#[must_use = "the engine is waited for only as long as this lives"]
pub struct EngineEvents<E: Engine> {
    stream: EventStream<EngineWatch<E>>,
    /// The engine lives as long.
    _shared: Arc<Shared<E>>,
}

impl<E: Engine> EngineEvents<E> {
    /// Waits for the next one; `None` is the end.
    ///
    /// # Cancel safety
    /// Cancel safe: what has come is either returned or still there.
    ///
    /// # Errors
    /// [`WaitError`], once; then this is at its end.
    pub async fn next(&mut self) -> Option<Result<E::Found, WaitError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Takes the next one, or leaves the waker of `cx` for it; one waker at a time. `Ready(None)` is the end.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn poll_next(&self, cx: &Context<'_>) -> Poll<Option<Result<E::Found, WaitError>>> {
        let next = self.stream.poll_event(cx);
        next.map(|next| next.map(|found| found.map(EngineEvent::into_found)))
    }
}

impl<E: Engine> fmt::Debug for EngineEvents<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

/// Who waits with buffers of its own: see [`EngineHost::waiter`].
#[must_use = "nothing is waited for before it is polled"]
pub struct EngineWaiter<'a, E: Engine> {
    host: &'a EngineHost<E>,
    name: u64,
    /// Its place among the waiters, from the first look on that found nothing. It may have been woken since.
    number: Option<u64>,
}

impl<E: Engine> EngineWaiter<'_, E> {
    /// Calls `look` with the engine, under its lock, and leaves the waker of `cx` in the same hold of that lock if it finds
    /// nothing: nothing can come in between.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken for a waiter but by its own look.
    ///
    /// # Errors
    /// [`WaitError`], if the look finds nothing.
    ///
    /// # Panics
    /// If `look` uses the host again. A panic in `look` is the caller's.
    pub fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        look: impl FnOnce(&mut E) -> Option<T>,
    ) -> Poll<Result<T, WaitError>> {
        let Self { host, name, number } = self;
        if host.is_inherited() {
            return Poll::Ready(Err(WaitError::ServerClosed));
        }
        // Before the look: the request takes the handle's lock, which comes before the engine's.
        if let Err(error) = host.keep_at_work() {
            return Poll::Ready(host.shared.post(look).ok_or(error));
        }
        match host.shared.look_or_wait((*name, number), cx.waker(), look) {
            Some(Looked::Found(found)) => Poll::Ready(Ok(found)),
            Some(Looked::Waits) => Poll::Pending,
            None => Poll::Ready(Err(host.handle.end())),
        }
    }

    /// Leaves the waker of `cx` if the last look found nothing and nobody has woken this waiter since. Returns whether that is so:
    /// then there is nothing to look for. Without a look: for those who are polled again and again for others' sake.
    #[inline]
    #[must_use = "whoever does not wait must look"]
    pub fn still_waits(&self, cx: &Context<'_>) -> bool {
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
