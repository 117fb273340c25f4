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
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use thiserror::Error;
use vigie_detect::{
    Armed, Bell, Detector, Handle, Instant, Interest, Key, Methods, Mode, Notice, RegisterError,
    Registration, Round, Server, Site, Submitted, Wait, WaitError,
    engine_lock::{Guard, Lock},
};

use crate::{
    spin::Spin,
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
    Completion(CqId, Completion),
    Event(NicEvent),
}

/// What the lock of a NIC guards.
struct Guarded<P> {
    provider: P,
    /// Events of connections that somebody waits for by their VI, and others.
    connections: BTreeMap<ViId, NicEvent>,
    connecting: Vec<ViId>,
    events: VecDeque<NicEvent>,
    /// Taken by a waiter that left.
    unclaimed: VecDeque<(CqId, Completion)>,
    /// The host has armed the NIC, and may sleep.
    is_asleep: bool,
}

impl<P: Provider> Guarded<P> {
    /// Takes what is wanted, if it is there.
    #[inline]
    fn take(&mut self, want: Want) -> Option<Found> {
        match want {
            Want::Completion(cq) => {
                if !self.unclaimed.is_empty()
                    && let Some(at) = self.unclaimed.iter().position(|(whose, _)| *whose == cq)
                {
                    return self
                        .unclaimed
                        .remove(at)
                        .map(|(_, found)| Found::Completion(cq, found));
                }
                self.provider.poll(cq).map(|found| Found::Completion(cq, found))
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

struct Shared<P> {
    guarded: Lock<Guarded<P>>,
    /// Somebody else's work may have made what a pending wait wants: the host has to look.
    has_waiters: AtomicBool,
    bell: std::sync::OnceLock<Bell>,
}

impl<P> Shared<P> {
    /// Nothing behind the lock is left half done by a panic: providers do not call foreign code.
    #[inline]
    fn lock(&self) -> Guard<'_, Guarded<P>> {
        self.guarded.lock()
    }

    /// Makes the host look, if anybody waits.
    fn tell(&self) {
        if self.has_waiters.load(Ordering::Relaxed)
            && let Some(bell) = self.bell.get()
        {
            bell.ring();
        }
    }
}

/// A provider whose completions and events can be awaited. Clones are the same NIC; the provider is dropped
/// with the last of them and of their waits.
pub struct Nic<P: Provider> {
    shared: Arc<Shared<P>>,
    handle: Handle<Watch<P>>,
    spin: Spin,
}

impl<P: Provider> Nic<P> {
    /// Brings a provider to a detection server: [`Server::current`] inside a vigie runtime, or a host thread's
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn new(server: &Server, provider: P) -> Result<Self, RegisterError> {
        let name = provider.attributes().name;
        let descriptor = provider.descriptor().map(|descriptor| descriptor.try_clone_to_owned());
        let guarded = Guarded {
            provider,
            connections: BTreeMap::new(),
            connecting: Vec::new(),
            events: VecDeque::new(),
            unclaimed: VecDeque::new(),
            is_asleep: false,
        };
        let shared = Arc::new(Shared {
            guarded: Lock::new(guarded),
            has_waiters: AtomicBool::new(false),
            bell: std::sync::OnceLock::new(),
        });
        let watch = Watch {
            shared: Arc::clone(&shared),
            descriptor: descriptor.transpose(),
            site: None,
            is_armed: false,
        };
        let handle = server.register(watch, Registration::named(name))?;
        Ok(Self { shared, handle, spin: Spin::default() })
    }

    /// Calls `f` with the provider, under the NIC's lock: for everything that does not wait.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        let mut guarded = self.shared.lock();
        let result = f(&mut guarded.provider);
        drop(guarded);
        // Work done here may have been what others wait for.
        self.shared.tell();
        result
    }

    /// Like [`with`](Self::with), for what completes nothing that others wait for: posting descriptors.
    #[inline]
    pub fn post<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        let mut guarded = self.shared.lock();
        let result = f(&mut guarded.provider);
        // What was posted may fail at once, or wait for the peer, which tells only those who have armed since.
        let must_look = std::mem::take(&mut guarded.is_asleep);
        drop(guarded);
        if must_look {
            self.shared.tell();
        }
        result
    }

    /// Waits for the next completion of a completion queue. With several waiters each gets another one.
    ///
    /// # Cancel safety
    /// Cancel safe: a completion that came in for a wait that was dropped goes to the next one.
    ///
    /// # Errors
    /// [`WaitError`] when the server ends.
    pub fn completion(&self, cq: CqId) -> impl Future<Output = Result<Completion, WaitError>> + '_ {
        let found = self.wait(Want::Completion(cq));
        async move {
            match found.await? {
                Found::Completion(_, completion) => Ok(completion),
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
        match self.wait(Want::Event).await? {
            Found::Event(event) => Ok(event),
            Found::Completion(..) => unreachable!("invariant: a wait gets what it wants"),
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
        let mut guarded = self.shared.lock();
        // What came of earlier calls is for everybody.
        guarded.sort_events();
        connect(&mut guarded.provider)?;
        guarded.connecting.push(vi);
        Ok(())
    }

    async fn connected(&self, vi: ViId) -> Result<Vec<u8>, ConnectError> {
        /// Later events of the VI are for everybody again.
        struct Forget<'a, P: Provider>(&'a Shared<P>, ViId);
        impl<P: Provider> Drop for Forget<'_, P> {
            fn drop(&mut self) {
                let mut guarded = self.0.lock();
                guarded.connecting.retain(|vi| *vi != self.1);
                if let Some(event) = guarded.connections.remove(&self.1) {
                    guarded.events.push_back(event);
                    drop(guarded);
                    self.0.tell();
                }
            }
        }
        let _forget = Forget(&self.shared, vi);
        match self.wait(Want::Connection(vi)).await? {
            Found::Event(NicEvent::Connected { greeting, .. }) => Ok(greeting),
            Found::Event(NicEvent::Refused { reason, .. }) => Err(ConnectError::Refused(reason)),
            other => unreachable!("invariant: {other:?} is no answer to a connect"),
        }
    }

    fn wait(&self, want: Want) -> Waiting<'_, P> {
        Waiting { nic: self, want, wait: None }
    }
}

impl<P: Provider> Clone for Nic<P> {
    fn clone(&self) -> Self {
        let handle = self.handle.clone();
        Self { shared: Arc::clone(&self.shared), handle, spin: Spin::default() }
    }
}

impl<P: Provider> fmt::Debug for Nic<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// A wait that looks inline before it hands over.
struct Waiting<'a, P: Provider> {
    nic: &'a Nic<P>,
    want: Want,
    wait: Option<Wait<Watch<P>, &'a Handle<Watch<P>>>>,
}

impl<P: Provider> Future for Waiting<'_, P> {
    type Output = Result<Found, WaitError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(wait) = &mut this.wait {
            return Pin::new(wait).poll(cx);
        }
        let nic = this.nic;
        if let Some(found) = nic.spin.until(|| nic.shared.lock().take(this.want)) {
            return Poll::Ready(Ok(found));
        }
        Pin::new(this.wait.insert(nic.handle.wait(this.want))).poll(cx)
    }
}

/// The NIC as a detector.
struct Watch<P: Provider> {
    shared: Arc<Shared<P>>,
    descriptor: io::Result<Option<OwnedFd>>,
    site: Option<Site>,
    /// Armed just now: the poll that follows must not end that.
    is_armed: bool,
}

impl<P: Provider> Watch<P> {
    fn note_waiters(&self, has_waiters: bool) {
        self.shared.has_waiters.store(has_waiters, Ordering::Relaxed);
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

    fn submit(&mut self, _: Key, want: &mut Want, _: Mode) -> Submitted<Found> {
        self.note_waiters(true);
        match self.shared.lock().take(*want) {
            Some(found) => Submitted::Ready(found),
            // A software NIC may have to work for what is wanted.
            None => Submitted::Queued,
        }
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        let shared = Arc::clone(&self.shared);
        let mut guarded = shared.lock();
        // Arming looks by itself, and whoever is armed may sleep: progress would end that.
        if !std::mem::take(&mut self.is_armed)
            && let Some(site) = &self.site
        {
            guarded.provider.progress(site.now());
            guarded.is_asleep = false;
        }
        let mut key = round.oldest();
        while let Some(waiter) = key {
            if round.is_full() {
                round.more();
                return;
            }
            let next = round.next_after(waiter);
            if let Some(want) = round.request_mut(waiter).copied()
                && let Some(found) = guarded.take(want)
            {
                round.complete(waiter, found);
            }
            key = next;
        }
        drop(guarded);
        self.note_waiters(round.oldest().is_some());
    }

    fn notified(&mut self, _: &[Notice], round: &mut Round<'_, Self>) {
        self.shared.lock().provider.quiet();
        self.is_armed = false;
        self.poll(round);
    }

    fn arm(&mut self) -> io::Result<Armed> {
        let mut guarded = self.shared.lock();
        let armed = guarded.provider.arm()?;
        self.is_armed = armed == Armed::Armed;
        guarded.is_asleep = self.is_armed;
        Ok(armed)
    }

    fn unclaimed(&mut self, found: Found) -> Option<Found> {
        let mut guarded = self.shared.lock();
        match found {
            Found::Completion(cq, found) => guarded.unclaimed.push_back((cq, found)),
            Found::Event(event) => guarded.events.push_front(event),
        }
        None
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.shared.lock().provider.next_deadline()
    }
}
