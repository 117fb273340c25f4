//! Datagrams: each client has a session, with its own socket towards the upstream.
//!
//! ```text
//!   clients ──▶ listening socket ──▶ table: address → session ──▶ connected socket ──▶ upstream
//!           ◀──────────────────────────────── session's task ◀──────────────────────
//! ```
//!
//! A session expires when nothing has come from either side for a time. Datagrams that cannot be sent immediately are
//! dropped and counted, as in a router. A session keeps its target, unless a network reports that it cannot be reached and there are
//! others: then the session ends, and the client's next datagram begins another one.

use std::{
    collections::BTreeMap,
    error::Error,
    io, mem,
    net::{self, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};
use vigie_detect::{Instant, Server, net::UdpSocket};

use super::{
    access::{Access, AccessList, AccessRule, SourcePermit, Sources, access_setters},
    balance::{Balance, Balancer},
    connection::unmapped,
    counters::{Counter, counters},
    error::listed,
    names, own_listener,
    proxy::AddressRange,
    record::{ConnectionEnd, ConnectionObserver, ConnectionRecord, observer_setter},
    relay::ConnectionTask,
    settings::{BindError, RESOLVE_EVERY, name_setter},
    sys::{ARRIVALS_MAX, dropped_datagrams},
    target::{EarlierTargets, Target, TargetStats, TargetUse, Targets},
    train::{Arrivals, Train, TrainSocket},
    upstream::{Upstream, are_weights},
    wait::{Either, is_exhausted, select, timeout_at, yield_now},
};

/// The longest time that datagrams wait in the listening socket's queue for names to be resolved for the first time.
const RESOLVE_FIRST_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a [`UdpRelay`].
#[derive(Clone, Debug)]
#[must_use = "`bind_on` makes the relay"]
pub struct UdpRelayBuilder {
    listen: SocketAddr,
    name: Option<Arc<str>>,
    earlier: EarlierTargets<SocketAddr>,
    listener: Option<UdpRelayListener>,
    upstreams: Vec<Upstream<SocketAddr>>,
    access: AccessList,
    per_source_max: Option<usize>,
    observer: Option<ConnectionObserver>,
    balance: Balance,
    resolve_every: Duration,
    expire_after: Duration,
    sessions_max: usize,
}

impl UdpRelayBuilder {
    name_setter!();

    /// Adds a further upstream: an address, or an [`Upstream`] with a weight.
    pub fn upstream(mut self, upstream: impl Into<Upstream<SocketAddr>>) -> Self {
        self.upstreams.push(upstream.into());
        self
    }

    access_setters! {
        /// Serves only clients in `network`, and in other networks that you add. Default: all. Datagrams of others are dropped, and counted as
        /// `denied`.
    }

    observer_setter!();

    vigie_detect::setters! {
        /// Sets the maximum number of sessions of one source, at least 1: an address of IPv4, or a network of 64 bits of IPv6. Datagrams
        /// that would begin further ones are dropped, and counted as `over_source_max`. Default: no limit.
        per_source_max: usize => Some,

        /// Sets the time between two attempts to resolve the [names](Upstream::named) of upstreams. Default 30 s; at least 1 ms.
        resolve_every: Duration,

        /// Sets how sessions are divided among the upstreams. Default [`Balance::First`]. Those that a network reports as
        /// unreachable are passed over.
        balance: Balance,

        /// Sets the time without a datagram in either direction after which a session ends. Default 60 s; at least 1
        /// ms.
        expire_after: Duration,

        /// Sets the maximum number of sessions, at least 1; datagrams of further clients are dropped and counted.
        /// Default 4096. Each takes a descriptor.
        sessions_max: usize,
    }

    /// Receives by the socket of another relay, which is to [hand it over](UdpRelayHandle::hand_over), instead of binding
    /// one. It stays with the server that watches it. Default: the relay has its own.
    pub fn listener(mut self, listener: UdpRelayListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Begins with what another relay knows: the health of targets with the same address, and the addresses of names. Both relays go on to
    /// learn of such targets together. Default: all targets are presumed to be available, and no address of a name is known.
    pub fn successor_of(mut self, earlier: &UdpRelayHandle) -> Self {
        let targets = earlier.shared.targets.list().to_vec();
        self.earlier = EarlierTargets { targets, has_health: true };
        self
    }

    /// Binds the listening socket, watched by `server`, as are those of the sessions.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_on(mut self, server: &Server) -> Result<UdpRelay, BindError> {
        let has_room = self.sessions_max > 0 && self.per_source_max != Some(0);
        if !has_room || self.expire_after < Duration::from_millis(1) {
            return Err(BindError::Sessions);
        }
        if !are_weights(&self.upstreams) {
            return Err(BindError::Weight);
        }
        if self.resolve_every < Duration::from_millis(1) {
            return Err(BindError::ResolveEvery);
        }
        let cannot = |source| BindError::ListenUdp { address: self.listen, source };
        let socket = match &self.listener {
            Some(UdpRelayListener(socket)) => Arc::clone(socket),
            None => {
                let socket = UdpSocket::bind_on(server, self.listen).map_err(cannot)?;
                Arc::new(TrainSocket::new(socket, server.is_virtual()))
            }
        };
        let address = socket.socket().local_addr().map_err(cannot)?;
        self.listener = None;
        let (is_receiving, receiving) = watch::channel(());
        let name = self.name.take().unwrap_or_else(|| format!("udp://{address}").into());
        let (of_relay, earlier) = ((&name, &self.upstreams[..]), mem::take(&mut self.earlier));
        let targets = Arc::new(Targets::new(of_relay, Arc::default(), &earlier));
        let access = Access::new(&self.access);
        let sources = Sources::new(self.per_source_max);
        let balancer = Balancer::new(self.balance, server.now().as_nanos());
        let shared = UdpShared {
            server: server.clone(),
            address,
            arrivals: Mutex::default(),
            settings: self,
            sessions: Mutex::new(BTreeMap::new()),
            counters: UdpCounters::default(),
            listener_dropped: Mutex::new(dropped_datagrams(socket.socket())),
            targets,
            balancer,
            access,
            sources,
            draining: watch::Sender::new(None),
            receiving: is_receiving,
            emptied: Notify::new(),
            socket,
        };
        Ok(UdpRelay { address, shared: Arc::new(shared), receiving })
    }
}

/// A relay of datagrams, which forwards once [`serve`](Self::serve) is polled.
#[derive(Debug)]
#[must_use = "nothing is relayed before `serve` is polled"]
pub struct UdpRelay {
    address: SocketAddr,
    shared: Arc<UdpShared>,
    /// Dropped when it receives nothing more from clients.
    receiving: watch::Receiver<()>,
}

/// The socket by which a relay receives from clients, for another relay that is to receive next: no datagram is refused in
/// between. Clones are the same socket. It is closed with the last of them, and of the relays that have it.
///
/// Between processes it passes as a descriptor: [`AsFd`], [`from_fd_on`](Self::from_fd_on).
#[derive(Clone, Debug)]
pub struct UdpRelayListener(Arc<TrainSocket>);

impl UdpRelayListener {
    /// Takes over a bound socket that another process has passed on, watched by `server`.
    ///
    /// # Errors
    /// It cannot be watched; [`io::ErrorKind::Unsupported`] in a simulation.
    pub fn from_fd_on(server: &Server, socket: OwnedFd) -> io::Result<Self> {
        server
            .refuse_in_simulation("descriptors of other processes", "bind a socket of its own")?;
        let socket = UdpSocket::from_std_on(server, net::UdpSocket::from(socket))?;
        Ok(Self(Arc::new(TrainSocket::new(socket, false))))
    }
}

impl AsFd for UdpRelayListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket().as_async_fd().as_inner().as_fd()
    }
}

/// A handle to observe and end a relay of datagrams. Clones refer to the same relay.
#[derive(Clone, Debug)]
pub struct UdpRelayHandle {
    shared: Arc<UdpShared>,
}

#[derive(Debug)]
struct UdpShared {
    address: SocketAddr,
    server: Server,
    socket: Arc<TrainSocket>,
    /// For the sessions that receive at the same time, one for each thread of an executor.
    arrivals: Mutex<Vec<Arrivals>>,
    settings: UdpRelayBuilder,
    sessions: Mutex<Sessions>,
    counters: UdpCounters,
    /// The kernel's count of drops at the listening socket, when last read.
    listener_dropped: Mutex<u32>,
    targets: Arc<Targets<SocketAddr>>,
    balancer: Balancer,
    access: Access,
    sources: Arc<Sources>,
    draining: watch::Sender<Option<UdpDrain>>,
    /// Closed once the relay receives nothing more from clients.
    receiving: watch::Sender<()>,
    emptied: Notify,
}

#[derive(Clone, Copy, Debug)]
struct UdpDrain {
    deadline: Instant,
    /// Whether another relay receives from the clients.
    is_handed_over: bool,
}

type Sessions = BTreeMap<SocketAddr, Arc<UdpSession>>;

#[derive(Debug)]
struct UdpSession {
    client: SocketAddr,
    used: TargetUse<SocketAddr>,
    _source: SourcePermit,
    upstream: TrainSocket,
    /// The time at which a datagram last passed, in nanoseconds of the server's clock. Raised by the two tasks that relay, read by
    /// the session's. Expiry is decided under the table's lock.
    last_move: AtomicU64,
    /// True if anything has come from the upstream. Statistics only.
    is_answered: AtomicBool,
    begin: Instant,
    /// Bytes in each direction. Statistics only.
    bytes_up: Counter,
    bytes_down: Counter,
    /// Whether it has left the table, since its target cannot be reached; its task is notified.
    is_over: AtomicBool,
    over: Notify,
}

counters! {
    UdpCounters;
    /// The counters of a relay of datagrams.
    pub struct UdpRelayStats {
        /// Sessions opened.
        opened,
        /// Current sessions.
        active,
        /// Expired sessions.
        expired,
        /// Datagrams of clients that are denied, or not allowed.
        denied,
        /// Datagrams of sources that had as many sessions as they may.
        over_source_max,
        /// Datagrams dropped for lack of a session: too many, or no descriptors.
        refused,
        /// Expired sessions in which the upstream never answered.
        unanswered,
        /// Datagrams that the kernel dropped at the relay's sockets, on either side: their queues were full, or a
        /// checksum was wrong. Includes expired sessions; 0 before Linux 4.12.
        overflowed,
        /// Datagrams to the upstream.
        datagrams_up,
        /// Datagrams to clients.
        datagrams_down,
        /// Bytes to the upstream.
        bytes_up,
        /// Bytes to clients.
        bytes_down,
        /// Datagrams dropped because there was no room to send them.
        dropped,
        /// The number of times that a network reported that a datagram did not arrive.
        unreachable,
    }
}

impl UdpRelay {
    /// Returns a builder for a relay from `listen` to `upstream`; port 0 lets the kernel choose one.
    pub fn builder(
        listen: SocketAddr,
        upstream: impl Into<Upstream<SocketAddr>>,
    ) -> UdpRelayBuilder {
        let (expire_after, sessions_max) = (Duration::from_secs(60), 4096);
        UdpRelayBuilder {
            listen,
            name: None,
            earlier: EarlierTargets::default(),
            listener: None,
            upstreams: vec![upstream.into()],
            access: AccessList::default(),
            per_source_max: None,
            observer: None,
            balance: Balance::First,
            resolve_every: RESOLVE_EVERY,
            expire_after,
            sessions_max,
        }
    }

    /// Returns the address on which the relay listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a handle to observe and end the relay.
    #[must_use]
    pub fn handle(&self) -> UdpRelayHandle {
        UdpRelayHandle { shared: Arc::clone(&self.shared) }
    }

    /// Relays clients' datagrams, and passes the task for the other direction of each session to `spawn`. Returns once
    /// the relay has been drained.
    ///
    /// # Cancel safety
    /// Cancel safe; sessions end when they expire.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] if the detection server was shut down.
    pub async fn serve(self, mut spawn: impl FnMut(ConnectionTask)) -> io::Result<()> {
        let Self { shared, receiving, .. } = self;
        let (shared, mut receiving) = (&shared, Some(receiving));
        let mut unsent = Unsent { shared, arrivals: Arrivals::new() };
        let mut draining = shared.draining.subscribe();
        let (_serving, serving) = watch::channel(());
        if shared.targets.names().next().is_some() {
            let (server, targets) = (&shared.server, &shared.targets);
            let resolved =
                names::resolve_first(server, std::slice::from_ref(targets), RESOLVE_FIRST_TIMEOUT);
            if let Either::Right(Err(error)) = select(draining.changed(), resolved).await {
                return Err(error);
            }
            let every = shared.settings.resolve_every;
            spawn(Box::pin(names::follow(server.clone(), Arc::clone(targets), every, serving)));
        }
        loop {
            let drain = *draining.borrow_and_update();
            let has_unsent = !unsent.arrivals.is_used_up();
            if drain.is_some() && shared.counters.active.value() == 0 && !has_unsent {
                return Ok(());
            }
            if drain.is_some_and(|drain| drain.is_handed_over) {
                receiving = None;
            }
            let receives = receiving.is_some();
            if !has_unsent {
                let changed = select(draining.changed(), shared.emptied.notified());
                let received = select(shared.readable(receives), changed);
                let received = match drain {
                    None => Some(received.await),
                    Some(drain) => timeout_at(&shared.server, drain.deadline, received).await?,
                };
                match received {
                    None => return Ok(()),
                    Some(Either::Right(_)) => continue,
                    Some(Either::Left(readable)) => readable?,
                }
            }
            let receiving = (receives, drain.is_some());
            if shared.forward_all(&mut unsent.arrivals, receiving, &mut spawn) {
                yield_now().await;
            }
        }
    }
}

impl UdpRelayHandle {
    /// Returns the relay's counters.
    #[must_use]
    pub fn stats(&self) -> UdpRelayStats {
        UdpRelayStats { overflowed: self.shared.overflowed(), ..self.shared.counters.snapshot() }
    }

    /// Returns the targets at this moment, in order.
    #[must_use]
    pub fn targets(&self) -> Vec<TargetStats> {
        self.shared.targets.stats(self.shared.server.now())
    }

    /// Returns the rules of access in the order in which they are tried, those that deny first.
    #[must_use]
    pub fn access(&self) -> Vec<AccessRule> {
        self.shared.access.rules()
    }

    /// Returns the socket by which the relay receives from clients, for another relay ([`UdpRelayBuilder::listener`]).
    #[must_use]
    pub fn listener(&self) -> UdpRelayListener {
        UdpRelayListener(Arc::clone(&self.shared.socket))
    }

    /// [Drains](Self::drain), and waits until this relay receives nothing more from clients: their datagrams wait in the
    /// kernel's queue for the next relay that has the [`listener`](Self::listener), where they begin new sessions. Until
    /// they end, sessions of this one pass on answers.
    ///
    /// Waits for [`UdpRelay::serve`], which must be polled meanwhile, or the relay be dropped.
    ///
    /// # Cancel safety
    /// Cancel safe: the drain begins with the first poll, and goes on.
    pub async fn hand_over(&self, time: Duration) {
        self.drain_until(time, true);
        self.shared.receiving.closed().await;
    }

    /// Opens no more sessions, and ends the remaining ones after `time`.
    pub fn drain(&self, time: Duration) {
        self.drain_until(time, false);
    }

    fn drain_until(&self, time: Duration, is_handed_over: bool) {
        let deadline = self.shared.server.now() + time;
        self.shared.draining.send_modify(|drain| {
            let was_handed_over = drain.is_some_and(|drain| drain.is_handed_over);
            let is_handed_over = is_handed_over || was_handed_over;
            *drain = Some(UdpDrain { deadline, is_handed_over });
        });
    }
}

impl UdpShared {
    /// Waits for clients' datagrams, unless another relay receives them: then for ever.
    async fn readable(&self, receives: bool) -> io::Result<()> {
        if receives { self.socket.socket().readable().await } else { std::future::pending().await }
    }

    /// Sends what is left in `arrivals`, and then what it receives, for some time. Returns whether more may be there.
    fn forward_all(
        self: &Arc<Self>,
        arrivals: &mut Arrivals,
        (receives, is_draining): (bool, bool),
        spawn: &mut impl FnMut(ConnectionTask),
    ) -> bool {
        let end = self.server.now() + POLL_TIME;
        // What is left came before the drain.
        let (mut left, mut refuses) = (ARRIVALS_MAX, false);
        loop {
            let is_in_time = arrivals.each_train(|train, client| {
                if let Some(client) = client {
                    self.forward(client, train, refuses, spawn);
                }
                self.server.now() < end
            });
            if !is_in_time || left == 0 {
                return true;
            }
            if !receives {
                return false;
            }
            match self.socket.try_receive(arrivals, ARRIVALS_MAX) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // An error about a datagram to a client that is gone.
                Err(_) => self.counters.unreachable.add(1),
            }
            (left, refuses) = (left.saturating_sub(arrivals.len().max(1)), is_draining);
        }
    }

    /// Sends a client's datagrams to the upstream, in its session, unless it has none and `refuses` says that no more begin.
    fn forward(
        self: &Arc<Self>,
        client: SocketAddr,
        train: Train<'_>,
        refuses: bool,
        spawn: &mut impl FnMut(ConnectionTask),
    ) {
        let Some(mut session) = self.session_for(client, refuses, spawn) else { return };
        // An error about an earlier datagram is reported instead of sending this one.
        let mut sent = session.upstream.try_send(train, None);
        if let (0, _, Some(error)) = &sent
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            sent = if self.note_unreachable(&session, error) {
                let Some(next) = self.session_for(client, refuses, spawn) else { return };
                session = next;
                session.upstream.try_send(train, None)
            } else {
                session.upstream.try_send(train, None)
            };
        }

        let (count, bytes, _) = sent;
        self.counters.datagrams_up.add(count as u64);
        self.counters.bytes_up.add(bytes as u64);
        session.bytes_up.add(bytes as u64);
        self.counters.dropped.add((train.count() - count) as u64);
    }

    /// Returns the session of a client, opened if need be. `None` if there can be none, which is counted.
    fn session_for(
        self: &Arc<Self>,
        client: SocketAddr,
        refuses: bool,
        spawn: &mut impl FnMut(ConnectionTask),
    ) -> Option<Arc<UdpSession>> {
        if let Some(session) = self.session(client) {
            return Some(session);
        }
        if let Err(refused) = self.access.admit(Some(client.ip())) {
            self.counters.denied.add(1);
            self.note_refused(client, ConnectionEnd::Denied, Some(&refused));
            return None;
        }
        let Some(source) = self.sources.admit(Some(client.ip())) else {
            self.counters.over_source_max.add(1);
            self.note_refused(client, ConnectionEnd::OverSourceMax, None);
            return None;
        };
        let opened = if refuses {
            Err(io::Error::other("the relay is draining"))
        } else {
            self.open(client, source)
        };
        match opened {
            Ok(session) => {
                spawn(Box::pin(Arc::clone(self).answer(Arc::clone(&session))));
                Some(session)
            }
            Err(error) => {
                self.counters.refused.add(1);
                self.note_refused(client, ConnectionEnd::Refused, Some(&error));
                tracing::debug!(%client, %error, "a session could not be opened");
                None
            }
        }
    }

    /// Observes a client that gets no session.
    fn note_refused(
        &self,
        client: SocketAddr,
        end: ConnectionEnd,
        error: Option<&(dyn Error + 'static)>,
    ) {
        let Some(observer) = &self.settings.observer else { return };
        observer.note(&ConnectionRecord {
            client: Some(unmapped(client)),
            target: None,
            duration: Duration::ZERO,
            bytes_up: 0,
            bytes_down: 0,
            end,
            error,
        });
    }

    /// Observes a session that has ended.
    fn note_ended(&self, session: &UdpSession, end: ConnectionEnd) {
        let Some(observer) = &self.settings.observer else { return };
        observer.note(&ConnectionRecord {
            client: Some(unmapped(session.client)),
            target: Some(&session.used.target.name),
            duration: self.server.now() - session.begin,
            bytes_up: session.bytes_up.value(),
            bytes_down: session.bytes_down.value(),
            end,
            error: None,
        });
    }

    /// Returns the session of a client, and renews it.
    fn session(&self, client: SocketAddr) -> Option<Arc<UdpSession>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(&client)?;
        session.touch(self.server.now());
        Some(Arc::clone(session))
    }

    fn open(&self, client: SocketAddr, source: SourcePermit) -> io::Result<Arc<UdpSession>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= self.settings.sessions_max {
            return Err(io::Error::other("there are as many sessions as `sessions_max` allows"));
        }
        let now = self.server.now();
        let (used, upstream) = self.connect(client, now)?;
        let session = Arc::new(UdpSession {
            client,
            used,
            _source: source,
            upstream,
            last_move: AtomicU64::new(now.as_nanos()),
            is_answered: AtomicBool::new(false),
            begin: now,
            bytes_up: Counter::default(),
            bytes_down: Counter::default(),
            is_over: AtomicBool::new(false),
            over: Notify::new(),
        });
        sessions.insert(client, Arc::clone(&session));
        self.counters.opened.add(1);
        self.counters.active.add(1);
        Ok(session)
    }

    /// Returns a socket that is connected to the first target of the policy's order that the kernel knows a way to.
    fn connect(
        &self,
        client: SocketAddr,
        now: Instant,
    ) -> io::Result<(TargetUse<SocketAddr>, TrainSocket)> {
        let mut attempts = Vec::new();
        for target in self.balancer.order(&self.targets.list(), Some(client.ip()), now) {
            // Its answer, or a report of the network, decides a trial.
            let _ = target.availability().choose(now);
            match self.connect_to(&target) {
                Ok(upstream) => {
                    target.counters.connections.add(1);
                    return Ok((TargetUse::of(&target), upstream));
                }
                Err(error) if is_exhausted(&error) => return Err(error),
                Err(error) => {
                    target.failed(&error, now);
                    attempts.push((target.name.clone(), error));
                }
            }
        }
        Err(io::Error::other(format!("no target is reachable: {}", listed(&attempts))))
    }

    fn connect_to(&self, target: &Target<SocketAddr>) -> io::Result<TrainSocket> {
        let depends_on_host =
            own_listener::depends_on_host(&self.server, self.address, target.address)?;
        let own: SocketAddr = match target.address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let upstream = UdpSocket::bind_on(&self.server, own)?;
        // That sends nothing.
        upstream.connect_to(target.address)?;
        if depends_on_host && own_listener::is_own_end(upstream.local_addr()?, target.address) {
            return Err(own_listener::refusal(self.address));
        }
        Ok(TrainSocket::new(upstream, self.server.is_virtual()))
    }

    /// Sends the upstream's available datagrams to the client, for some time. Returns whether more may be there.
    fn back(&self, session: &Arc<UdpSession>) -> bool {
        let kept = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut arrivals = kept.unwrap_or_else(Arrivals::new);
        let has_more = self.back_all(session, &mut arrivals);
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(arrivals);
        has_more
    }

    fn back_all(&self, session: &Arc<UdpSession>, arrivals: &mut Arrivals) -> bool {
        let end = self.server.now() + POLL_TIME;
        for _ in 0..ARRIVALS_MAX / ANSWERS_MAX {
            match session.upstream.try_receive(arrivals, ANSWERS_MAX) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if self.note_unreachable(session, &error) => return false,
                Err(_) => continue,
            }
            let now = self.server.now();
            session.touch(now);
            let health = &session.used.target.health;
            health.note_reached(|| now);
            health.note_answered(|| now);
            session.is_answered.store(true, Ordering::Relaxed);
            arrivals.each_train(|train, _| {
                let (count, bytes, _) = self.socket.try_send(train, Some(session.client));
                self.counters.datagrams_down.add(count as u64);
                self.counters.bytes_down.add(bytes as u64);
                session.bytes_down.add(bytes as u64);
                self.counters.dropped.add((train.count() - count) as u64);
                true
            });
            if self.server.now() >= end {
                break;
            }
        }
        true
    }

    /// Records that a session's target cannot be reached. Returns whether that ends the session, since there are other targets.
    fn note_unreachable(&self, session: &Arc<UdpSession>, error: &io::Error) -> bool {
        self.counters.unreachable.add(1);
        session.used.target.failed(error, self.server.now());
        let is_own = |target: &Arc<_>| Arc::ptr_eq(target, &session.used.target);
        if self.targets.list().iter().all(is_own) {
            return false;
        }
        // First: who finds it unlisted under the lock sees this.
        session.is_over.store(true, Ordering::Relaxed);
        self.unlist(session);
        session.over.notify_one();
        true
    }

    /// Removes a session from the table, unless the client has another one there.
    fn unlist(&self, session: &Arc<UdpSession>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.get(&session.client).is_some_and(|listed| Arc::ptr_eq(listed, session)) {
            self.remove(&mut sessions, session);
        }
    }

    /// Returns how many datagrams the kernel has dropped at all sockets so far.
    fn overflowed(&self) -> u64 {
        let mut last = self.listener_dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let now = dropped_datagrams(self.socket.socket());
        self.counters.overflowed.add(now.wrapping_sub(*last).into());
        *last = now;
        drop(last);
        // Under the lock, no session moves from one sum to the other meanwhile.
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let of_session =
            |session: &Arc<UdpSession>| u64::from(dropped_datagrams(session.upstream.socket()));
        sessions.values().map(of_session).sum::<u64>() + self.counters.overflowed.value()
    }

    /// Removes a session from the table.
    fn remove(&self, sessions: &mut Sessions, session: &UdpSession) {
        sessions.remove(&session.client);
        self.counters.overflowed.add(dropped_datagrams(session.upstream.socket()).into());
    }

    /// The session's task: sends the upstream's datagrams to the client, until it expires.
    async fn answer(self: Arc<Self>, session: Arc<UdpSession>) {
        let end = {
            let guard = Listed { shared: &self, session: &session };
            self.answer_all(&session, &guard).await
        };
        self.note_ended(&session, end);
    }

    async fn answer_all(
        self: &Arc<Self>,
        session: &Arc<UdpSession>,
        guard: &Listed<'_>,
    ) -> ConnectionEnd {
        let mut draining = self.draining.subscribe();
        loop {
            let last_move = Instant::from_nanos(session.last_move.load(Ordering::Relaxed));
            let expiry = last_move + self.settings.expire_after;
            let end =
                draining.borrow_and_update().map_or(expiry, |drain| drain.deadline.min(expiry));
            let changed = select(draining.changed(), session.over.notified());
            let readable = select(session.upstream.socket().readable(), changed);
            match timeout_at(&self.server, end, readable).await {
                _ if session.is_over.load(Ordering::Relaxed) => return ConnectionEnd::TargetReset,
                Ok(Some(Either::Left(Ok(())))) => {
                    if self.back(session) {
                        yield_now().await;
                    }
                }
                Ok(Some(Either::Right(_))) => {}
                Ok(None) => {
                    if let Some(end) = guard.expire() {
                        return end;
                    }
                }
                // The detection server was shut down.
                Ok(Some(Either::Left(Err(_)))) | Err(_) => return ConnectionEnd::Cut,
            }
        }
    }
}

/// A poll begins no train after this time. While polls take longer than 75 µs, the scheduler keeps a second thread in the poller, and each datagram
/// would wake it.
const POLL_TIME: Duration = Duration::from_micros(40);

/// The most messages that a session receives at once: all of them are sent before its poll ends.
const ANSWERS_MAX: usize = 16;

/// Datagrams that were received and not sent yet. Those that are dropped with it are counted.
struct Unsent<'a> {
    shared: &'a UdpShared,
    arrivals: Arrivals,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.shared.counters.dropped.add(self.arrivals.left_count() as u64);
    }
}

impl UdpSession {
    fn touch(&self, now: Instant) {
        self.last_move.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }
}

/// A session that is in the table while its task lives.
struct Listed<'a> {
    shared: &'a UdpShared,
    session: &'a Arc<UdpSession>,
}

impl Listed<'_> {
    /// Removes the session from the table, unless a datagram has come meanwhile.
    fn expire(&self) -> Option<ConnectionEnd> {
        let shared = self.shared;
        let mut sessions = shared.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let last_move = Instant::from_nanos(self.session.last_move.load(Ordering::Relaxed));
        let now = shared.server.now();
        if shared.draining.borrow().is_some_and(|drain| drain.deadline <= now) {
            return Some(ConnectionEnd::Cut);
        }
        if self.session.is_over.load(Ordering::Relaxed) {
            return Some(ConnectionEnd::TargetReset);
        }
        let is_over = last_move + shared.settings.expire_after <= now;
        if is_over {
            shared.remove(&mut sessions, self.session);
            shared.counters.expired.add(1);
            if !self.session.is_answered.load(Ordering::Relaxed) {
                shared.counters.unanswered.add(1);
                self.session.used.target.health.note_silent(&"a client's session has expired", now);
            }
        }
        is_over.then_some(ConnectionEnd::Idle)
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.shared.unlist(self.session);
        self.shared.counters.active.subtract(1);
        if self.shared.counters.active.value() == 0 {
            self.shared.emptied.notify_one();
        }
    }
}
