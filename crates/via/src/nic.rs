//! A NIC whose completion queues are a detector: `nic.next_completion(cq).await`.
//!
//! A wait first polls inline, on the waiter's own thread, and repeats that for a short time, so an immediate
//! answer from a peer costs no hand-over. Only then does the scheduler decide how to continue: poll the NIC
//! while nothing else runs, or arm it and sleep.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::Future,
    io,
};

use thiserror::Error;
use vigie_detect::{
    ArmOutcome, Engine, EngineContext, Instant, Notifier, PollerEvent, Progress, RegisterError,
    Server, WaitError, WatchedDescriptor,
};

use crate::{
    spinning::SpinningHost,
    vi::{
        Completion, Connect, CqId, DisconnectReason, NicEvent, Provider, RequestId, ViError, ViId,
    },
};

/// The reason why a connection could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer or the network refused it.
    #[error("no connection: {0}")]
    Refused(DisconnectReason),
    /// The call itself failed.
    #[error(transparent)]
    Vi(#[from] ViError),
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// The purpose of a wait on a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NicRequest {
    Completion(CqId),
    /// Events of this VI's connection: connected, refused.
    Connection(ViId),
    /// Requests from peers, and connections that broke.
    Event,
}

#[derive(Debug)]
enum NicOutput {
    Completion(Completion),
    Event(NicEvent),
}

/// Makes a provider an engine.
struct NicEngine<P> {
    provider: P,
    /// Connection events of the VIs in `connecting`.
    connections: BTreeMap<ViId, NicEvent>,
    connecting: Vec<ViId>,
    events: VecDeque<NicEvent>,
    /// Completions taken by a waiter that was then dropped.
    unclaimed: VecDeque<(CqId, Completion)>,
}

impl<P: Provider> NicEngine<P> {
    fn sort_events(&mut self) {
        while let Some(event) = self.provider.next_event() {
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
    type Request = NicRequest;
    type Output = NicOutput;

    #[inline]
    fn take(&mut self, want: &NicRequest) -> Option<NicOutput> {
        match *want {
            NicRequest::Completion(cq) => {
                if !self.unclaimed.is_empty()
                    && let Some(at) = self.unclaimed.iter().position(|(queue, _)| *queue == cq)
                {
                    return self
                        .unclaimed
                        .remove(at)
                        .map(|(_, found)| NicOutput::Completion(found));
                }
                self.provider.poll_cq(cq).map(NicOutput::Completion)
            }
            NicRequest::Connection(vi) => {
                self.sort_events();
                self.connections.remove(&vi).map(NicOutput::Event)
            }
            NicRequest::Event => {
                self.sort_events();
                self.events.pop_front().map(NicOutput::Event)
            }
        }
    }

    fn put_back(&mut self, want: &NicRequest, found: NicOutput) -> Option<NicOutput> {
        match (want, found) {
            (NicRequest::Completion(cq), NicOutput::Completion(found)) => {
                self.unclaimed.push_back((*cq, found));
                None
            }
            (_, NicOutput::Event(event)) => {
                self.events.push_front(event);
                None
            }
            (_, found @ NicOutput::Completion(_)) => Some(found),
        }
    }

    fn progress(&mut self, context: &EngineContext<'_>) -> Progress {
        self.provider.progress(context.now());
        Progress::Done
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        self.provider.arm()
    }

    fn notified(&mut self, _: &[PollerEvent]) {
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
        self.provider.can_announce()
    }

    fn attach(&mut self, notifier: Notifier) -> io::Result<()> {
        self.provider.attach_notifier(notifier);
        Ok(())
    }
}

/// A provider whose completions and events can be awaited. Clones share one NIC; the provider is dropped with
/// the last clone and the last wait.
pub struct Nic<P: Provider> {
    host: SpinningHost<NicEngine<P>>,
}

impl<P: Provider> Nic<P> {
    /// Registers a provider with a detection server: [`Server::current`] inside a vigie runtime, a host
    /// thread's elsewhere.
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
        Ok(Self { host: SpinningHost::new(server, name, engine)? })
    }

    /// Calls `f` with the provider, under the NIC's lock. Use it for everything that does not wait.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        // `f` may have done work that others wait for.
        self.host.with(|engine| f(&mut engine.provider))
    }

    /// Like [`with`](Self::with), for calls that complete nothing that others wait for, such as posting
    /// descriptors.
    #[inline]
    pub fn post<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        // A posted descriptor may fail at once or wait for the peer; the provider announces either only to
        // those who have armed since.
        self.host.post(|engine| f(&mut engine.provider))
    }

    /// Waits for the next completion of a completion queue. Of several waiters, each gets a different one.
    ///
    /// # Cancel safety
    /// Cancel safe: a completion that arrived for a dropped wait goes to the next one.
    ///
    /// # Errors
    /// [`WaitError`] when the server ends.
    pub fn next_completion(
        &self,
        cq: CqId,
    ) -> impl Future<Output = Result<Completion, WaitError>> + '_ {
        let found = self.host.wait(NicRequest::Completion(cq));
        async move {
            match found.await? {
                NicOutput::Completion(completion) => Ok(completion),
                NicOutput::Event(_) => unreachable!("invariant: a wait gets what it wants"),
            }
        }
    }

    /// Waits for the next event that belongs to no [`connect`](Self::connect): a request from a peer, or a
    /// connection that broke.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`WaitError`] when the server ends.
    pub async fn next_event(&self) -> Result<NicEvent, WaitError> {
        match self.host.wait(NicRequest::Event).await? {
            NicOutput::Event(event) => Ok(event),
            NicOutput::Completion(_) => unreachable!("invariant: a wait gets what it wants"),
        }
    }

    /// Connects a VI to one that a peer offers under the discriminator, by the deadline. Returns the peer's
    /// greeting.
    ///
    /// # Cancel safety
    /// The connection may still be made after the future is dropped: [`Provider::disconnect`] the VI.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(&self, to: Connect<'_>) -> Result<Vec<u8>, ConnectError> {
        self.begin(to.vi, |nic| nic.connect(to))?;
        self.connected(to.vi).await
    }

    /// Connects a VI to a peer's VI while the peer does the same, by the deadline. Returns the peer's greeting.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect_peer(&self, to: Connect<'_>) -> Result<Vec<u8>, ConnectError> {
        self.begin(to.vi, |nic| nic.connect_peer(to))?;
        self.connected(to.vi).await
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
            // Events of earlier calls go to any waiter.
            engine.sort_events();
            connect(&mut engine.provider)?;
            engine.connecting.push(vi);
            Ok(())
        })
    }

    async fn connected(&self, vi: ViId) -> Result<Vec<u8>, ConnectError> {
        /// Lets later events of the VI go to any waiter again.
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
        match self.host.wait(NicRequest::Connection(vi)).await? {
            NicOutput::Event(NicEvent::Connected { greeting, .. }) => Ok(greeting),
            NicOutput::Event(NicEvent::Refused { reason, .. }) => {
                Err(ConnectError::Refused(reason))
            }
            other => unreachable!("invariant: {other:?} does not answer a connect"),
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
