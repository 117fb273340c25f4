//! Datagrams: each client has a session, with its own socket towards the upstream.
//!
//! ```text
//!   clients ──▶ listening socket ──▶ table: address → session ──▶ connected socket ──▶ upstream
//!           ◀──────────────────────────────── session's task ◀──────────────────────
//! ```
//!
//! A session expires when nothing has come from either side for a time. Datagrams that cannot be sent immediately are
//! dropped and counted, as in a router.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};
use vigie_detect::{Instant, Server, net::UdpSocket};

use super::{
    buffers::Buffers,
    counters::{Counter, counters},
    health::UpstreamHealth,
    relay::ConnectionTask,
    settings::BindError,
    sys::dropped_datagrams,
    wait::{Either, select, timeout_at},
};

/// The maximum length of a UDP datagram, rounded up.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// A session yields after this many datagrams.
const BATCH_MAX: usize = 64;

/// The maximum number of sessions that receive at the same time, one for each thread of an executor. A budget, not
/// memory in use.
const RECEIVING_MAX: usize = 256;

/// Builds a [`UdpRelay`].
#[derive(Clone, Debug)]
#[must_use = "`bind_on` makes the relay"]
pub struct UdpRelayBuilder {
    listen: SocketAddr,
    upstream: SocketAddr,
    expire_after: Duration,
    sessions_max: usize,
}

impl UdpRelayBuilder {
    vigie_detect::setters! {
        /// Sets the time without a datagram in either direction after which a session ends. Default 60 s; at least 1
        /// ms.
        expire_after: Duration,

        /// Sets the maximum number of sessions, at least 1; datagrams of further clients are dropped and counted.
        /// Default 4096. Each takes a descriptor.
        sessions_max: usize,
    }

    /// Binds the listening socket, watched by `server`, as are those of the sessions.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_on(self, server: &Server) -> Result<UdpRelay, BindError> {
        if self.sessions_max == 0 || self.expire_after < Duration::from_millis(1) {
            return Err(BindError::Sessions);
        }
        let cannot = |source| BindError::ListenUdp { address: self.listen, source };
        let socket = UdpSocket::bind_on(server, self.listen).map_err(cannot)?;
        let address = socket.local_addr().map_err(cannot)?;
        let health = UpstreamHealth::new(format_args!("udp:{}", self.upstream));
        let shared = UdpShared {
            server: server.clone(),
            socket,
            buffers: Buffers::new(2 * RECEIVING_MAX * DATAGRAM_BYTES_MAX),
            settings: self,
            sessions: Mutex::new(BTreeMap::new()),
            counters: UdpCounters::default(),
            listener_dropped: Mutex::new(0),
            health,
            draining: watch::Sender::new(None),
            emptied: Notify::new(),
        };
        Ok(UdpRelay { address, shared: Arc::new(shared) })
    }
}

/// A relay of datagrams, which forwards once [`serve`](Self::serve) is polled.
#[derive(Debug)]
#[must_use = "nothing is relayed before `serve` is polled"]
pub struct UdpRelay {
    address: SocketAddr,
    shared: Arc<UdpShared>,
}

/// A handle to observe and end a relay of datagrams. Clones refer to the same relay.
#[derive(Clone, Debug)]
pub struct UdpRelayHandle {
    shared: Arc<UdpShared>,
}

#[derive(Debug)]
struct UdpShared {
    server: Server,
    socket: UdpSocket,
    buffers: Buffers,
    settings: UdpRelayBuilder,
    sessions: Mutex<Sessions>,
    counters: UdpCounters,
    /// The kernel's count of drops at the listening socket, when last read.
    listener_dropped: Mutex<u32>,
    health: UpstreamHealth,
    draining: watch::Sender<Option<Instant>>,
    emptied: Notify,
}

type Sessions = BTreeMap<SocketAddr, Arc<UdpSession>>;

#[derive(Debug)]
struct UdpSession {
    client: SocketAddr,
    upstream: UdpSocket,
    /// When a datagram last passed, in nanoseconds of the server's clock. Raised by the two tasks that relay, read by
    /// the session's. Expiry is decided under the table's lock.
    last_move: AtomicU64,
    /// Whether anything has come from the upstream. Statistics only.
    is_answered: AtomicBool,
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
        /// How often a network reported that a datagram did not arrive.
        unreachable,
    }
}

impl UdpRelay {
    /// Returns a builder for a relay from `listen` to `upstream`; port 0 lets the kernel choose one.
    pub const fn builder(listen: SocketAddr, upstream: SocketAddr) -> UdpRelayBuilder {
        let (expire_after, sessions_max) = (Duration::from_secs(60), 4096);
        UdpRelayBuilder { listen, upstream, expire_after, sessions_max }
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
        let shared = &self.shared;
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let mut draining = shared.draining.subscribe();
        loop {
            let deadline = *draining.borrow_and_update();
            if deadline.is_some() && shared.counters.active.value() == 0 {
                return Ok(());
            }
            let changed = select(draining.changed(), shared.emptied.notified());
            let received = select(shared.socket.recv_from(&mut buffer), changed);
            let received = match deadline {
                None => Some(received.await),
                Some(deadline) => timeout_at(&shared.server, deadline, received).await?,
            };
            match received {
                None => return Ok(()),
                Some(Either::Right(_)) => {}
                Some(Either::Left(Ok((bytes, client)))) => {
                    shared.forward(client, &buffer[..bytes], deadline.is_some(), &mut spawn);
                }
                Some(Either::Left(Err(error))) if error.kind() == io::ErrorKind::NotConnected => {
                    return Err(error);
                }
                // An error about a datagram to a client that is gone.
                Some(Either::Left(Err(_))) => shared.counters.unreachable.add(1),
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

    /// Opens no more sessions, and ends the remaining ones after `time`.
    pub fn drain(&self, time: Duration) {
        self.shared.draining.send_replace(Some(self.shared.server.now() + time));
    }
}

impl UdpShared {
    /// Sends a client's datagram to the upstream, in its session.
    fn forward(
        self: &Arc<Self>,
        client: SocketAddr,
        datagram: &[u8],
        is_draining: bool,
        spawn: &mut impl FnMut(ConnectionTask),
    ) {
        let session = match self.session(client) {
            Some(session) => session,
            None if is_draining => return self.counters.refused.add(1),
            None => match self.open(client) {
                Ok(session) => {
                    let task = Arc::clone(self).answer(Arc::clone(&session));
                    spawn(Box::pin(task));
                    session
                }
                Err(error) => {
                    self.counters.refused.add(1);
                    tracing::debug!(%client, %error, "a session could not be opened");
                    return;
                }
            },
        };

        // An error about an earlier datagram is reported instead of sending this one.
        let mut sent = session.upstream.try_send(datagram);
        if let Err(error) = &sent
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            self.note_unreachable(error);
            sent = session.upstream.try_send(datagram);
        }

        match sent {
            Ok(_) => {
                self.counters.datagrams_up.add(1);
                self.counters.bytes_up.add(datagram.len() as u64);
            }
            Err(_) => self.counters.dropped.add(1),
        }
    }

    /// Returns the session of a client, and renews it.
    fn session(&self, client: SocketAddr) -> Option<Arc<UdpSession>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(&client)?;
        session.touch(self.server.now());
        Some(Arc::clone(session))
    }

    fn open(&self, client: SocketAddr) -> io::Result<Arc<UdpSession>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= self.settings.sessions_max {
            return Err(io::Error::other("there are as many sessions as `sessions_max` allows"));
        }
        let own: SocketAddr = match self.settings.upstream {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let upstream = UdpSocket::bind_on(&self.server, own)?;
        upstream.connect_to(self.settings.upstream)?;
        let last_move = AtomicU64::new(self.server.now().as_nanos());
        let is_answered = AtomicBool::new(false);
        let session = Arc::new(UdpSession { client, upstream, last_move, is_answered });
        sessions.insert(client, Arc::clone(&session));
        self.counters.opened.add(1);
        self.counters.active.add(1);
        Ok(session)
    }

    /// Sends the upstream's available datagrams to the client.
    fn back(&self, session: &UdpSession) {
        let Some(mut buffer) = self.buffers.take(DATAGRAM_BYTES_MAX) else {
            return self.counters.dropped.add(1);
        };
        for _ in 0..BATCH_MAX {
            match session.upstream.try_recv(&mut buffer) {
                Ok(bytes) => {
                    session.touch(self.server.now());
                    self.health.note_reached(|| self.server.now());
                    self.health.note_answered(|| self.server.now());
                    session.is_answered.store(true, Ordering::Relaxed);
                    match self.socket.try_send_to(&buffer[..bytes], session.client) {
                        Ok(_) => {
                            self.counters.datagrams_down.add(1);
                            self.counters.bytes_down.add(bytes as u64);
                        }
                        Err(_) => self.counters.dropped.add(1),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => self.note_unreachable(&error),
            }
        }
    }

    fn note_unreachable(&self, error: &io::Error) {
        self.counters.unreachable.add(1);
        self.health.note_unreachable(error, self.server.now());
    }

    /// Returns how many datagrams the kernel has dropped at all sockets so far.
    fn overflowed(&self) -> u64 {
        let mut last = self.listener_dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let now = dropped_datagrams(&self.socket);
        self.counters.overflowed.add(now.wrapping_sub(*last).into());
        *last = now;
        drop(last);
        // Under the lock, no session moves from one sum to the other meanwhile.
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let of_session =
            |session: &Arc<UdpSession>| u64::from(dropped_datagrams(&session.upstream));
        sessions.values().map(of_session).sum::<u64>() + self.counters.overflowed.value()
    }

    /// Removes a session from the table.
    fn remove(&self, sessions: &mut Sessions, session: &UdpSession) {
        sessions.remove(&session.client);
        self.counters.overflowed.add(dropped_datagrams(&session.upstream).into());
    }

    /// The session's task: sends the upstream's datagrams to the client, until it expires.
    async fn answer(self: Arc<Self>, session: Arc<UdpSession>) {
        let guard = Listed { shared: &self, session: &session };
        let mut draining = self.draining.subscribe();
        loop {
            let last_move = Instant::from_nanos(session.last_move.load(Ordering::Relaxed));
            let expiry = last_move + self.settings.expire_after;
            let end = draining.borrow_and_update().map_or(expiry, |deadline| deadline.min(expiry));
            let readable = select(session.upstream.readable(), draining.changed());
            match timeout_at(&self.server, end, readable).await {
                Ok(Some(Either::Left(Ok(())))) => self.back(&session),
                Ok(Some(Either::Left(Err(_)))) => return,
                Ok(Some(Either::Right(_))) => {}
                Ok(None) if guard.expire() => return,
                Ok(None) => {}
                Err(_) => return,
            }
        }
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
    fn expire(&self) -> bool {
        let shared = self.shared;
        let mut sessions = shared.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let last_move = Instant::from_nanos(self.session.last_move.load(Ordering::Relaxed));
        let now = shared.server.now();
        if shared.draining.borrow().is_some_and(|deadline| deadline <= now) {
            return true;
        }
        let is_over = last_move + shared.settings.expire_after <= now;
        if is_over {
            shared.remove(&mut sessions, self.session);
            shared.counters.expired.add(1);
            if !self.session.is_answered.load(Ordering::Relaxed) {
                shared.counters.unanswered.add(1);
                shared.health.note_silent(&"a client's session has expired", now);
            }
        }
        is_over
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut sessions = self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let client = &self.session.client;
        if sessions.get(client).is_some_and(|listed| Arc::ptr_eq(listed, self.session)) {
            self.shared.remove(&mut sessions, self.session);
        }
        drop(sessions);
        self.shared.counters.active.subtract(1);
        if self.shared.counters.active.value() == 0 {
            self.shared.emptied.notify_one();
        }
    }
}
