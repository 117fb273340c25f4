//! The message engine of one rank as a detector.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use vigie_detect::{
    Armed, Bell, Cancel, Detector, EventStream, Handle, Instant, Interest, Key, Methods, Mode,
    Notice, RegisterError, Registration, Round, Server, Site, Submitted, WaitError,
    engine_lock::{Guard, Lock},
};

use super::Communicator;
use crate::{
    protocol::{Engine, EngineEvent, Pattern, RequestError, RequestId, Status},
    spin::Spin,
    vi::Provider,
};

/// What a wait on an endpoint is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// The request may have become ready: poll it.
    Request(RequestId),
    /// A message that fits, to be left where it is. So many ranks had failed before.
    Probe(Pattern, usize),
    /// Of the engine: connections, failures.
    Event,
    /// Nothing: keeps the engine at work while nobody waits.
    Background,
}

#[derive(Debug)]
pub(super) enum Found {
    Ready,
    Probed(Result<Status, RequestError>),
    Event(EngineEvent),
}

pub(super) struct Shared<P: Provider> {
    engine: Lock<Engine<P>>,
    /// Somebody waits for a request: the host has to be told what became ready elsewhere. Written under the
    /// handle's lock, before whoever waits looks once more; read under the engine's.
    has_waiters: AtomicBool,
    /// As `has_waiters`, for events and probes.
    has_others: AtomicBool,
    /// The host has armed the engine, and may sleep. Read and written under the engine's lock.
    is_asleep: AtomicBool,
    /// Until when it sleeps at most, in nanoseconds: what is due earlier it does not know of.
    asleep_until: AtomicU64,
    bell: OnceLock<Bell>,
    pub(super) spin: Spin,
    /// The context of the next communicator.
    contexts: AtomicU32,
}

impl<P: Provider> Shared<P> {
    /// Nothing behind the lock is left half done by a panic: of foreign code, only a sink runs inside.
    #[inline]
    fn lock(&self) -> Guard<'_, Engine<P>> {
        self.engine.lock()
    }

    /// Calls `f` with the engine, and sees to it that those whose requests became ready by it are told.
    #[inline]
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Engine<P>) -> T) -> T {
        let mut engine = self.lock();
        let worked = engine.worked();
        let result = f(&mut engine);
        if engine.has_ready() || self.is_asleep.load(Ordering::Relaxed) {
            self.tell(engine, worked);
        }
        result
    }

    /// Sees to it that the host looks, if it must. A host that is awake looks by itself before it sleeps,
    /// though not soon while tasks run.
    #[cold]
    fn tell(&self, mut engine: Guard<'_, Engine<P>>, worked: u64) {
        let mut must_look = engine.has_ready();
        if must_look && !self.has_waiters.load(Ordering::Relaxed) {
            // Whoever begins to wait now looks once more after that.
            engine.clear_ready();
            must_look = false;
        }
        if self.is_asleep.load(Ordering::Relaxed) {
            // What is left to do now was not there when the engine was armed: nobody would ring for it.
            must_look |= engine.has_silent_work()
                || next_time(&engine) < self.asleep_until.load(Ordering::Relaxed)
                || (self.has_others.load(Ordering::Relaxed)
                    && (engine.worked() != worked || engine.has_events()));
        }
        if !must_look {
            return;
        }
        drop(engine);
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    pub(super) fn next_context(&self) -> Option<u16> {
        u16::try_from(self.contexts.fetch_add(1, Ordering::Relaxed)).ok()
    }
}

/// When the engine has work that only time brings, in nanoseconds; the end of time if it has none.
fn next_time<P: Provider>(engine: &Engine<P>) -> u64 {
    engine.next_deadline().map_or(u64::MAX, Instant::as_nanos)
}

pub(super) struct Inner<P: Provider> {
    pub(super) shared: Arc<Shared<P>>,
    pub(super) handle: Handle<Watch<P>>,
    /// Keeps the engine at work.
    _background: EventStream<Watch<P>>,
}

/// The message engine of one rank, hosted by a detection server. Clones are the same endpoint; its
/// connections end with the last of them and of its communicators and requests.
pub struct Endpoint<P: Provider> {
    pub(super) inner: Arc<Inner<P>>,
}

impl<P: Provider> Endpoint<P> {
    /// Brings an engine to a detection server: [`Server::current`] inside a vigie runtime, or a host thread's
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn new(server: &Server, engine: Engine<P>) -> Result<Self, RegisterError> {
        let name = engine.nic().attributes().name;
        let descriptor = engine.descriptor().map(|descriptor| descriptor.try_clone_to_owned());
        let spin = Spin::among(engine.size());
        let shared = Arc::new(Shared {
            engine: Lock::new(engine),
            has_waiters: AtomicBool::new(false),
            has_others: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            asleep_until: AtomicU64::new(u64::MAX),
            bell: OnceLock::new(),
            spin,
            contexts: AtomicU32::new(1),
        });
        let watch = Watch {
            shared: Arc::clone(&shared),
            descriptor: descriptor.transpose(),
            site: None,
            is_armed: false,
            requests: BTreeMap::new(),
            others: Vec::new(),
            ready: Vec::new(),
        };
        let handle = server.register(watch, Registration::named(name))?;
        let background =
            handle.stream(Want::Background).map_err(|_| RegisterError::ServerClosed)?;
        Ok(Self { inner: Arc::new(Inner { shared, handle, _background: background }) })
    }

    /// Calls `f` with the engine, under the endpoint's lock: for everything that does not wait.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut Engine<P>) -> T) -> T {
        self.inner.shared.with(f)
    }

    /// Returns the communicator of all ranks, in context 0. Each call returns the same context.
    #[must_use]
    pub fn communicator(&self) -> Communicator<P> {
        Communicator::new(Arc::clone(&self.inner), 0)
    }

    /// Waits for the next event of the engine: a connection that came about, was refused or asked for, and a
    /// rank that failed.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`WaitError`] when the server ends.
    pub async fn event(&self) -> Result<EngineEvent, WaitError> {
        match self.inner.handle.wait(Want::Event).await? {
            Found::Event(event) => Ok(event),
            other => unreachable!("invariant: {other:?} is no event"),
        }
    }
}

impl<P: Provider> Clone for Endpoint<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> fmt::Debug for Endpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("handle", &self.inner.handle).finish_non_exhaustive()
    }
}

/// The endpoint as a detector.
pub(super) struct Watch<P: Provider> {
    shared: Arc<Shared<P>>,
    descriptor: io::Result<Option<OwnedFd>>,
    site: Option<Site>,
    /// Armed just now: the poll that follows must not end that.
    is_armed: bool,
    requests: BTreeMap<RequestId, Key>,
    /// Waits for events and probes, oldest first.
    others: Vec<(Key, Want)>,
    /// Became ready, and not yet told.
    ready: Vec<RequestId>,
}

impl<P: Provider> Watch<P> {
    fn note_waiters(&self) {
        self.shared.has_waiters.store(!self.requests.is_empty(), Ordering::Relaxed);
        self.shared.has_others.store(!self.others.is_empty(), Ordering::Relaxed);
    }

    fn take_other(engine: &mut Engine<P>, want: Want) -> Option<Found> {
        match want {
            Want::Event => engine.event().map(Found::Event),
            Want::Probe(pattern, failure_count) => {
                let found = engine.probe(pattern).map(Ok);
                found
                    .or_else(|| engine.gave_up(&pattern, failure_count).map(Err))
                    .map(Found::Probed)
            }
            Want::Request(_) | Want::Background => None,
        }
    }
}

impl<P: Provider> Detector for Watch<P> {
    type Request = Want;
    type Event = Found;

    fn methods(&self) -> Methods {
        match &self.descriptor {
            Ok(None) => Methods::GROUP,
            _ => Methods::GROUP | Methods::NOTIFY,
        }
    }

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        match &self.descriptor {
            Ok(Some(descriptor)) => site.watch(descriptor.as_fd(), 0, Interest::Readable)?,
            Ok(None) => {}
            Err(error) => return Err(io::Error::new(error.kind(), error.to_string())),
        }
        let _ = self.shared.bell.set(site.bell());
        self.site = Some(site.clone());
        Ok(())
    }

    fn submit(&mut self, key: Key, want: &mut Want, _: Mode) -> Submitted<Found> {
        match *want {
            Want::Request(id) => {
                self.requests.insert(id, key);
                self.note_waiters();
                // The waiter polls its request once more, now that it is known here.
                Submitted::Pending
            }
            Want::Background => Submitted::Pending,
            // A look takes in whatever has come, also for others.
            other => match self.shared.with(|engine| Self::take_other(engine, other)) {
                Some(found) => Submitted::Ready(found),
                None => {
                    self.others.push((key, other));
                    self.note_waiters();
                    Submitted::Queued
                }
            },
        }
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.lock();
        // Arming looks by itself, and whoever is armed may sleep: progress would end that.
        if !std::mem::take(&mut self.is_armed)
            && let Some(site) = &self.site
        {
            engine.progress(site.now());
            shared.is_asleep.store(false, Ordering::Relaxed);
        }
        self.others.retain(|(key, want)| match Self::take_other(&mut engine, *want) {
            Some(found) => {
                round.complete(*key, found);
                false
            }
            None => true,
        });
        // Last: probes take in what has come for requests too.
        engine.take_ready(&mut self.ready);
        drop(engine);
        while !round.is_full()
            && let Some(id) = self.ready.pop()
        {
            if let Some(key) = self.requests.remove(&id) {
                round.complete(key, Found::Ready);
            }
        }
        if !self.ready.is_empty() {
            round.more();
        }
        self.note_waiters();
    }

    fn notified(&mut self, _: &[Notice], round: &mut Round<'_, Self>) {
        self.shared.lock().quiet();
        self.is_armed = false;
        self.poll(round);
    }

    fn arm(&mut self) -> io::Result<Armed> {
        let mut engine = self.shared.lock();
        let armed = engine.arm()?;
        self.is_armed = armed == Armed::Armed;
        self.shared.is_asleep.store(self.is_armed, Ordering::Relaxed);
        self.shared.asleep_until.store(next_time(&engine), Ordering::Relaxed);
        Ok(armed)
    }

    fn cancel(&mut self, key: Key, want: &mut Want) -> Cancel {
        match want {
            Want::Request(id) if self.requests.get(id) == Some(&key) => {
                self.requests.remove(id);
            }
            _ => self.others.retain(|(other, _)| *other != key),
        }
        self.note_waiters();
        Cancel::Released
    }

    fn unclaimed(&mut self, found: Found) -> Option<Found> {
        match found {
            Found::Event(event) => {
                self.shared.lock().give_back_event(event);
                None
            }
            Found::Ready | Found::Probed(_) => Some(found),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.shared.lock().next_deadline()
    }
}
