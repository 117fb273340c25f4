//! A NIC whose completion queues are a detector: `nic.completion(cq).await`.
//!
//! A wait looks inline first, on the waiter's own thread, and for a short time again and again: what a
//! peer sends back at once costs no hand-over then. Only after that does the scheduler decide how to go on:
//! poll the NIC while nothing else runs, or arm it and sleep.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::Future,
    io,
};

use thiserror::Error;
use vigie_detect::{
    Armed, Engine, Instant, Notice, Progress, RegisterError, Server, Turn, WaitError,
    WatchedDescriptor,
};

use crate::{
    spin::SpinHost,
    vi::{Address, Completion, CqId, NicEvent, Provider, Reason, RequestId, ViError, ViId},
};

/// Why no connection came about.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer or the network said no.
    #[error("no connection: {0}")]
    Refused(Reason),
    /// The call itself failed.
    #[error(transparent)]
    Vi(#[from] ViError),
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// What a wait on a NIC is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Want {
    Completion(CqId),
    /// Of this VI's connection: connected, refused.
    Connection(ViId),
    /// Requests of peers, and connections that broke.
    Event,
}

#[derive(Debug)]
enum Found {
    Completion(Completion),
    Event(NicEvent),
}

/// A provider as an engine.
struct NicEngine<P> {
    provider: P,
    /// Events of connections that somebody waits for by their VI, and others.
    connections: BTreeMap<ViId, NicEvent>,
    connecting: Vec<ViId>,
    events: VecDeque<NicEvent>,
    /// Taken by a waiter that left.
    unclaimed: VecDeque<(CqId, Completion)>,
}

impl<P: Provider> NicEngine<P> {
    fn sort_events(&mut self) {
        while let Some(event) = self.provider.event() {
            match event {
                NicEvent::Connected { vi, .. } | NicEvent::Refused { vi, .. }
                    if self.connecting.contains(&vi) =>
                {
                    self.connections.insert(vi, event);
                }
                event => self.events.push_back(event),
            }
        }
    }
}

impl<P: Provider> Engine for NicEngine<P> {
    type Want = Want;
    type Found = Found;

    #[inline]
    fn take(&mut self, want: &Want) -> Option<Found> {
        match *want {
            Want::Completion(cq) => {
                if !self.unclaimed.is_empty()
                    && let Some(at) = self.unclaimed.iter().position(|(whose, _)| *whose == cq)
                {
                    return self.unclaimed.remove(at).map(|(_, found)| Found::Completion(found));
                }
                self.provider.poll(cq).map(Found::Completion)
            }
            Want::Connection(vi) => {
                self.sort_events();
                self.connections.remove(&vi).map(Found::Event)
            }
            Want::Event => {
                self.sort_events();
                self.events.pop_front().map(Found::Event)
            }
        }
    }

    fn put_back(&mut self, want: &Want, found: Found) -> Option<Found> {
        match (want, found) {
            (Want::Completion(cq), Found::Completion(found)) => {
                self.unclaimed.push_back((*cq, found));
                None
            }
            (_, Found::Event(event)) => {
                self.events.push_front(event);
                None
            }
            (_, found @ Found::Completion(_)) => Some(found),
        }
    }

    fn progress(&mut self, turn: &Turn<'_>) -> Progress {
        self.provider.progress(turn.now());
        Progress::Done
    }

    fn arm(&mut self, _: &Turn<'_>) -> io::Result<Armed> {
        self.provider.arm()
    }

    fn announced(&mut self, _: &[Notice]) {
        self.provider.quiet();
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        if let Some(descriptor) = self.provider.descriptor() {
            each(WatchedDescriptor::readable(descriptor));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.provider.next_deadline()
    }

    fn can_announce(&self) -> bool {
        self.provider.descriptor().is_some()
    }
}

/// A provider whose completions and events can be awaited. Clones are the same NIC; the provider is dropped
/// with the last of them and of their waits.
pub struct Nic<P: Provider> {
    host: SpinHost<NicEngine<P>>,
}

impl<P: Provider> Nic<P> {
    /// Brings a provider to a detection server: [`Server::current`] inside a vigie runtime, or a host thread's
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn new(server: &Server, provider: P) -> Result<Self, RegisterError> {
        let name = provider.attributes().name;
        let engine = NicEngine {
            provider,
            connections: BTreeMap::new(),
            connecting: Vec::new(),
            events: VecDeque::new(),
            unclaimed: VecDeque::new(),
        };
        Ok(Self { host: SpinHost::new(server, name, engine)? })
    }

    /// Calls `f` with the provider, under the NIC's lock: for everything that does not wait.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        // Work done here may have been what others wait for.
        self.host.with(|engine| f(&mut engine.provider))
    }

    /// Like [`with`](Self::with), for what completes nothing that others wait for: posting descriptors.
    #[inline]
    pub fn post<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        // What was posted may fail at once, or wait for the peer, which tells only those who have armed since.
        self.host.post(|engine| f(&mut engine.provider))
    }

    /// Waits for the next completion of a completion queue. With several waiters each gets another one.
    ///
    /// # Cancel safety
    /// Cancel safe: a completion that came in for a wait that was dropped goes to the next one.
    ///
    /// # Errors
    /// [`WaitError`] when the server ends.
    pub fn completion(&self, cq: CqId) -> impl Future<Output = Result<Completion, WaitError>> + '_ {
        let found = self.host.wait(Want::Completion(cq));
        async move {
            match found.await? {
                Found::Completion(completion) => Ok(completion),
                Found::Event(_) => unreachable!("invariant: a wait gets what it wants"),
            }
        }
    }

    /// Waits for the next event that belongs to no [`connect`](Self::connect): a peer's request, or a
    /// connection that broke.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`WaitError`] when the server ends.
    pub async fn event(&self) -> Result<NicEvent, WaitError> {
        match self.host.wait(Want::Event).await? {
            Found::Event(event) => Ok(event),
            Found::Completion(_) => unreachable!("invariant: a wait gets what it wants"),
        }
    }

    /// Connects a VI to one that a peer offers under `discriminator`, within the time until `deadline`.
    /// Returns the peer's greeting.
    ///
    /// # Cancel safety
    /// A connection may come about after the future was dropped: [`Provider::disconnect`] the VI.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        &self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, ConnectError> {
        self.begin(vi, |nic| nic.connect(vi, address, discriminator, greeting, deadline))?;
        self.connected(vi).await
    }

    /// Connects a VI with a peer's that does the same for this one, within the time until `deadline`.
    /// Returns the peer's greeting.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect_peer(
        &self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, ConnectError> {
        self.begin(vi, |nic| nic.connect_peer(vi, address, discriminator, greeting, deadline))?;
        self.connected(vi).await
    }

    /// Accepts a request and waits until the VI is connected.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn accept(
        &self,
        request: RequestId,
        vi: ViId,
        greeting: &[u8],
    ) -> Result<(), ConnectError> {
        self.begin(vi, |nic| nic.accept(request, vi, greeting))?;
        self.connected(vi).await.map(drop)
    }

    fn begin(
        &self,
        vi: ViId,
        connect: impl FnOnce(&mut P) -> Result<(), ViError>,
    ) -> Result<(), ViError> {
        self.host.with(|engine| {
            // What came of earlier calls is for everybody.
            engine.sort_events();
            connect(&mut engine.provider)?;
            engine.connecting.push(vi);
            Ok(())
        })
    }

    async fn connected(&self, vi: ViId) -> Result<Vec<u8>, ConnectError> {
        /// Later events of the VI are for everybody again.
        struct Forget<'a, P: Provider>(&'a Nic<P>, ViId);
        impl<P: Provider> Drop for Forget<'_, P> {
            fn drop(&mut self) {
                self.0.host.with(|engine| {
                    engine.connecting.retain(|vi| *vi != self.1);
                    engine.events.extend(engine.connections.remove(&self.1));
                });
            }
        }
        let _forget = Forget(self, vi);
        match self.host.wait(Want::Connection(vi)).await? {
            Found::Event(NicEvent::Connected { greeting, .. }) => Ok(greeting),
            Found::Event(NicEvent::Refused { reason, .. }) => Err(ConnectError::Refused(reason)),
            other => unreachable!("invariant: {other:?} is no answer to a connect"),
        }
    }
}

impl<P: Provider> Clone for Nic<P> {
    fn clone(&self) -> Self {
        Self { host: self.host.clone() }
    }
}

impl<P: Provider> fmt::Debug for Nic<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").field("host", &self.host).finish_non_exhaustive()
    }
}
