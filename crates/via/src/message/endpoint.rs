//! The message engine of one rank, on its host.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use vigie_detect::{
    Armed, EngineHost, Instant, Notice, Progress, RegisterError, Registration, Server, Turn,
    WaitError, WatchedDescriptor,
};

use super::Communicator;
use crate::{
    protocol::{Engine, EngineEvent, Pattern, RequestError, RequestId, Status},
    spin::Spin,
    vi::Provider,
};

/// What a wait on an endpoint is for, but for requests: those are polled with their owners' buffers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// A message that fits, to be left where it is. So many ranks had failed before.
    Probe(Pattern, usize),
    /// Of the engine: connections, failures.
    Event,
}

#[derive(Debug)]
pub(super) enum Found {
    Probed(Result<Status, RequestError>),
    Event(EngineEvent),
}

/// The message engine as an engine of a detection server. Requests are served by their numbers.
pub(super) struct Hosted<P: Provider> {
    engine: Engine<P>,
    /// What the engine had done when it was armed.
    worked: u64,
    /// Empty between two calls.
    ready: Vec<RequestId>,
}

impl<P: Provider> Hosted<P> {
    #[inline]
    pub(super) const fn engine(&mut self) -> &mut Engine<P> {
        &mut self.engine
    }
}

impl<P: Provider> vigie_detect::Engine for Hosted<P> {
    type Want = Want;
    type Found = Found;

    fn take(&mut self, want: &Want) -> Option<Found> {
        let Self { engine, .. } = self;
        match *want {
            Want::Event => engine.event().map(Found::Event),
            Want::Probe(pattern, failure_count) => {
                let found = engine.probe(pattern).map(Ok);
                found
                    .or_else(|| engine.gave_up(&pattern, failure_count).map(Err))
                    .map(Found::Probed)
            }
        }
    }

    fn put_back(&mut self, _: &Want, found: Found) -> Option<Found> {
        match found {
            Found::Event(event) => {
                self.engine.give_back_event(event);
                None
            }
            Found::Probed(_) => Some(found),
        }
    }

    fn progress(&mut self, turn: &Turn<'_>) -> Progress {
        self.engine.progress(turn.now());
        Progress::Done
    }

    fn arm(&mut self, _: &Turn<'_>) -> io::Result<Armed> {
        let armed = self.engine.arm();
        self.worked = self.engine.worked();
        armed
    }

    fn announced(&mut self, _: &[Notice]) {
        self.engine.quiet();
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        if let Some(descriptor) = self.engine.descriptor() {
            each(WatchedDescriptor::readable(descriptor));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.engine.next_deadline()
    }

    fn can_announce(&self) -> bool {
        self.engine.descriptor().is_some()
    }

    fn served(&mut self, names: &mut Vec<u64>) {
        self.engine.take_ready(&mut self.ready);
        names.extend(self.ready.drain(..).map(|request| request.0));
    }

    #[inline]
    fn has_served(&self) -> bool {
        self.engine.has_ready()
    }

    fn has_silent_work(&self) -> bool {
        self.engine.has_silent_work()
    }

    fn has_news(&self) -> bool {
        self.engine.worked() != self.worked || self.engine.has_events()
    }
}

pub(super) struct Inner<P: Provider> {
    pub(super) host: EngineHost<Hosted<P>>,
    pub(super) spin: Spin,
    /// The context of the next communicator.
    contexts: AtomicU32,
}

impl<P: Provider> Inner<P> {
    /// Calls `f` with the engine, and sees to it that those whose requests became ready by it are told.
    #[inline]
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Engine<P>) -> T) -> T {
        self.host.post(|hosted| f(&mut hosted.engine))
    }

    /// As [`with`](Self::with), for what goes with its owner: a forked child's copy leaves it to the parent.
    pub(super) fn let_go(&self, f: impl FnOnce(&mut Engine<P>)) {
        if !self.host.is_inherited() {
            self.with(f);
        }
    }

    pub(super) fn next_context(&self) -> Option<u16> {
        u16::try_from(self.contexts.fetch_add(1, Ordering::Relaxed)).ok()
    }
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
        let registration = Registration::named(engine.nic().attributes().name);
        let spin = Spin::among(engine.size());
        let hosted = Hosted { engine, worked: 0, ready: Vec::new() };
        let host = EngineHost::new(server, hosted, registration)?;
        host.keep_at_work().map_err(|_| RegisterError::ServerClosed)?;
        Ok(Self { inner: Arc::new(Inner { host, spin, contexts: AtomicU32::new(1) }) })
    }

    /// Calls `f` with the engine, under the endpoint's lock: for everything that does not wait.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut Engine<P>) -> T) -> T {
        self.inner.with(f)
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
        match self.inner.host.wait(Want::Event).await? {
            Found::Event(event) => Ok(event),
            Found::Probed(_) => unreachable!("invariant: a wait gets what it wants"),
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
        f.debug_struct("Endpoint").field("host", &self.inner.host).finish_non_exhaustive()
    }
}
