//! The [`EngineHost`]: an engine at a detection server, and those who wait for it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    contract::Engine,
    lock::{Guard, Lock},
    watch::{EngineEvent, EngineWatch},
};
use crate::{
    detector::Bell,
    error::{RegisterError, WaitError},
    fork::ForkGeneration,
    policy::{History, Strategy},
    server::{EventStream, Handle, Registration, Server, Wait},
    sync::{Arc, AtomicBool, OnceLock, Ordering},
};

/// What the lock guards.
pub(super) struct Guarded<E> {
    pub(super) engine: E,
    /// The server has armed the engine, and may sleep: what changes now, it does not see.
    pub(super) is_asleep: bool,
}

/// What waiters and the detector have in common.
pub(super) struct Shared<E> {
    guarded: Lock<Guarded<E>>,
    /// Somebody waits. Set under the handle's lock before the waiter's own look; read after a call, once the engine is
    /// unlocked: either that look sees what the call did, or the call sees the waiter.
    has_waiters: AtomicBool,
    /// From the registration on.
    bell: OnceLock<Bell>,
    made: ForkGeneration,
}

impl<E> Shared<E> {
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, Guarded<E>> {
        self.guarded.lock()
    }

    pub(super) fn note_waiters(&self, has_waiters: bool) {
        self.has_waiters.store(has_waiters, Ordering::Relaxed);
    }

    pub(super) fn attach(&self, bell: Bell) {
        // A detector is attached once.
        let _ = self.bell.set(bell);
    }

    /// Returns whether this is a forked child, in which the lock may be held for ever.
    pub(super) fn is_inherited(&self) -> bool {
        self.made.is_inherited()
    }

    /// Makes the server look, if anybody waits.
    #[inline]
    fn tell(&self) {
        if self.has_waiters.load(Ordering::Relaxed)
            && let Some(bell) = self.bell.get()
        {
            bell.ring();
        }
    }
}

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
/// before.
///
/// # Lock order
/// Driver, handle, engine, slot. A host calls wakers once all of them are released.
///
/// # Fork without exec
/// In a forked child waits end in [`WaitError::ServerClosed`], and everything may be dropped. Calls and looks must not be made
/// there, which [`is_inherited`](Self::is_inherited) tells: the engine's lock may have been held at the fork, by a thread that the
/// child does not have.
pub struct EngineHost<E: Engine> {
    shared: Arc<Shared<E>>,
    handle: Handle<EngineWatch<E>>,
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
        let shared = Arc::new(Shared {
            guarded: Lock::new(Guarded { engine, is_asleep: false }),
            has_waiters: AtomicBool::new(false),
            bell: OnceLock::new(),
            made: ForkGeneration::current(),
        });
        let watch = EngineWatch::new(Arc::clone(&shared));
        let handle = server.register(watch, registration)?;
        Ok(Self { shared, handle })
    }

    /// Calls `f` with the engine, under its lock, and makes the server look if anybody waits: for calls that may bring what
    /// waiters want.
    ///
    /// # Panics
    /// If `f` uses this host again.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        let result = f(&mut self.shared.lock().engine);
        self.shared.tell();
        result
    }

    /// Like [`with`](Self::with), for calls that bring nothing that waiters want, but may give the engine work: the server
    /// has to look only if it has armed the engine since it worked the last time, because it may sleep then, and knows
    /// nothing of that work.
    ///
    /// # Panics
    /// If `f` uses this host again.
    #[inline]
    pub fn post<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        let mut guarded = self.shared.lock();
        let result = f(&mut guarded.engine);
        let must_look = std::mem::take(&mut guarded.is_asleep);
        drop(guarded);
        if must_look {
            self.shared.tell();
        }
        result
    }

    /// Takes what `want` names if it is there: on this thread, without the server.
    #[inline]
    pub fn look(&self, want: &E::Want) -> Option<E::Found> {
        self.shared.lock().engine.take(want)
    }

    /// Waits for what `want` names. Of several waiters for the same, each gets another one.
    ///
    /// # Cancel safety
    /// Cancel safe as far as the engine takes back what was found for a waiter that left: see [`Engine::put_back`].
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&self, want: E::Want) -> EngineWait<'_, E> {
        EngineWait { wait: self.handle.wait(want) }
    }

    /// Waits for what `want` names again and again, at once and until what is returned is dropped. The engine must take
    /// back what finds no room in the stream: see [`Engine::put_back`].
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn events(&self, want: E::Want) -> Result<EngineEvents<E>, WaitError> {
        let stream = self.handle.stream(want)?;
        Ok(EngineEvents { stream, _shared: Arc::clone(&self.shared) })
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
        self.handle.pending_count()
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
        Self { shared: Arc::clone(&self.shared), handle: self.handle.clone() }
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
