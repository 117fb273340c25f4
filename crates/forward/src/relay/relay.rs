//! The relay itself: accepting, limits, drain.

use std::{
    error::Error,
    io, mem,
    net::SocketAddr,
    os::fd::OwnedFd,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use vigie_detect::{Instant, Server};

use super::{
    access::{Access, AccessRule, SourcePermit, Sources},
    balance::Balancer,
    check, connecting,
    counters::RelayStats,
    endpoint::Endpoint,
    error::RelayError,
    health::HeaderHealth,
    listener::RelayListener,
    names,
    peer_stream::{PeerStream, PendingClient},
    proxy::ProxyHeader,
    record::{ConnectionEnd, ConnectionRecord},
    resources::RelayResources,
    retries::Retries,
    session::Session,
    settings::{BindError, RelayBuilder},
    shared::{Drained, Opening, RelayShared, TargetGroup},
    target::{EarlierTargets, Target, TargetStats, TargetUse, Targets},
    upstream::Upstream,
    wait::{Either, is_exhausted, select, timeout},
};

/// A relay that listens, and forwards once [`serve`](Self::serve) is polled.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use vigie_detect::{Server, net::{TcpListener, TcpStream}};
/// use vigie_forward::relay::{Endpoint, Relay};
///
/// # tokio::runtime::Builder::new_multi_thread().build()?.block_on(async {
/// let host = Server::spawn_thread()?;
/// let server = host.server();
/// let upstream = TcpListener::bind_on(server, "127.0.0.1:0".parse()?)?;
///
/// let relay = Relay::builder(Endpoint::Tcp("127.0.0.1:0".parse()?))
///     .upstream(upstream.local_addr()?)
///     .idle_timeout(Some(Duration::from_secs(60)))
///     .bind_on(server)?;
/// let address = relay.endpoint().address().expect("it listens on TCP");
/// let handle = relay.handle();
/// let serving = tokio::spawn(relay.serve(|connection| drop(tokio::spawn(connection))));
///
/// let mut client = TcpStream::connect_on(server, address).await?;
/// client.write_all(b"sail ho").await?;
/// client.shutdown().await?;
/// let (mut served, _) = upstream.accept().await?;
/// let mut heard = String::new();
/// served.read_to_string(&mut heard).await?;
/// assert_eq!(heard, "sail ho");
/// drop((client, served));
///
/// handle.drain(Duration::from_secs(5));
/// assert_eq!(serving.await??.cut, 0);
/// assert_eq!(handle.stats().bytes_up, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is relayed before `serve` is polled"]
pub struct Relay {
    listener: RelayListener,
    shared: Arc<RelayShared>,
    /// A descriptor to duplicate as a placeholder for an upstream's.
    spare: OwnedFd,
    /// Dropped when it accepts no more.
    accepting: watch::Receiver<()>,
}

/// The task of one connection. It completes on its own. If it is dropped before, or panics, both peers get a reset. (Others
/// are tasks of the [checks](RelayBuilder::check) and of [names](super::Upstream::named), which end with the relay.)
pub type ConnectionTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A handle to observe and end a relay. Clones refer to the same relay.
#[derive(Clone, Debug)]
pub struct RelayHandle {
    shared: Arc<RelayShared>,
}

/// The time for which accepting pauses for lack of descriptors, unless a connection ends before.
const PAUSE: Duration = Duration::from_millis(100);

impl Relay {
    /// Returns a builder for a relay that listens on `listen`; port 0 lets the kernel choose one.
    pub fn builder(listen: impl Into<Endpoint>) -> RelayBuilder {
        RelayBuilder::new(listen.into())
    }

    fn new(mut settings: RelayBuilder, server: &Server) -> io::Result<Self> {
        let listener = match settings.listener.take() {
            Some(listener) => listener,
            None => RelayListener::bind_on(server, &settings.listen)?,
        };
        let name = settings.name.take();
        let name = name.unwrap_or_else(|| listener.endpoint().to_string().into());
        let spare = eventfd(0, EventfdFlags::CLOEXEC)?;
        let resources = RelayResources::new(
            server.clone(),
            settings.memory_bytes_max,
            settings.pipes_max,
            settings.transfer,
        )
        .of_relay(Arc::clone(&name));
        let permits =
            Arc::new(Semaphore::new(settings.connections_max.min(Semaphore::MAX_PERMITS)));
        let (ended, emptied) = (Notify::new(), Notify::new());
        let (is_cutting, cut) = (AtomicBool::new(false), Notify::new());
        let draining = watch::Sender::new(None);
        let (is_accepting, accepting) = watch::channel(());
        let targets_changed = Arc::default();
        let earlier = mem::take(&mut settings.earlier).for_relay(settings.check.is_some());
        let group = |upstreams: &[Upstream]| TargetGroup {
            targets: Arc::new(Targets::new(
                (&name, upstreams),
                Arc::clone(&targets_changed),
                &earlier,
            )),
            balancer: Balancer::new(settings.balance, server.now().as_nanos()),
            retries: Retries::new(settings.retries),
        };
        let groups = settings.groups().map(group).collect();
        let access = Access::new(&settings.access);
        let sources = Sources::new(settings.per_source_max);
        let shared = Arc::new(RelayShared {
            settings,
            resources,
            groups,
            targets_changed,
            access,
            sources,
            ended,
            emptied,
            is_cutting,
            cut,
            draining,
            accepting: is_accepting,
            listener: listener.downgrade(),
            own_address: listener.endpoint().address(),
            headers: HeaderHealth::new(name),
            permits,
        });

        Ok(Self { listener, shared, spare, accepting })
    }

    /// Returns the endpoint on which the relay listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.listener.endpoint()
    }

    /// Returns a handle to observe and end the relay.
    #[must_use]
    pub fn handle(&self) -> RelayHandle {
        RelayHandle { shared: Arc::clone(&self.shared) }
    }

    /// Accepts connections, and passes the task of each to `spawn`, which must run it on an executor. Returns once the
    /// relay has been [drained](RelayHandle::drain).
    ///
    /// If it runs out of descriptors or memory, it pauses until a connection has ended; new connections meanwhile wait
    /// in the kernel's queue.
    ///
    /// # Cancel safety
    /// Cancel safe: if dropped, no more connections are accepted, and existing ones continue.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] if the detection server was shut down.
    pub async fn serve(self, spawn: impl FnMut(ConnectionTask)) -> io::Result<Drained> {
        // The sender lives as long as its receivers.
        let mut draining = self.shared.draining.subscribe();
        let begun = draining.wait_for(Option::is_some);
        if let Either::Right(Err(error)) = select(begun, self.accept_all(spawn)).await {
            return Err(error);
        }
        // New connections are refused from here on, unless another relay has the listener.
        let Self { listener, shared, accepting, .. } = self;
        drop((listener, accepting));
        shared.drained().await
    }

    async fn accept_all(&self, mut spawn: impl FnMut(ConnectionTask)) -> io::Result<()> {
        let shared = &self.shared;
        let (_serving, serving) = watch::channel(());
        let server = &shared.resources.server;
        let groups = shared.groups.iter().map(|group| Arc::clone(&group.targets));
        let named: Vec<_> = groups.filter(|targets| targets.names().next().is_some()).collect();
        if !named.is_empty() {
            names::resolve_first(server, &named, shared.settings.setup_timeout).await?;
        }
        for targets in named {
            let (every, serving) = (shared.settings.resolve_every, serving.clone());
            spawn(Box::pin(names::follow(server.clone(), targets, every, serving)));
        }
        if let Some(config) = shared.settings.check.clone() {
            // Clients do not wait for it: targets are presumed healthy.
            spawn(Box::pin(check::watch(Arc::clone(shared), config, serving)));
        }
        loop {
            let permit = Arc::clone(&shared.permits).acquire_owned().await;
            let permit = permit.expect("invariant: the semaphore is never closed");
            let accepted = match self.spare.try_clone() {
                // Reserve the upstream's descriptor before the client takes one.
                Ok(reserved) => self.listener.accept().await.map(|client| (client, reserved)),
                Err(error) => Err(error),
            };
            match accepted {
                Ok((client, reserved)) => {
                    shared.resources.counters.accepted.add(1);
                    let guard = ActiveGuard::new(Arc::clone(shared), permit);
                    spawn(Box::pin(guard.relay(PendingClient::new(client), reserved)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Err(error),
                Err(error) => self.pause(&error).await?,
            }
        }
    }

    /// Waits until another attempt is worthwhile.
    async fn pause(&self, error: &io::Error) -> io::Result<()> {
        let shared = &self.shared;
        if shared.resources.counters.pauses.next() == 0 {
            if is_exhausted(error) {
                tracing::warn!(
                    relay = %shared.resources.relay, %error,
                    "accepting pauses; raise the hard limit of descriptors (`ulimit -Hn`), or lower `connections_max`"
                );
            } else {
                tracing::warn!(relay = %shared.resources.relay, %error, "accepting pauses");
            }
        }
        if is_exhausted(error) {
            shared.resources.pipes.close_free();
        }
        timeout(&shared.resources.server, PAUSE, shared.ended.notified()).await
    }
}

impl RelayBuilder {
    /// Listens, watched by the current server.
    ///
    /// # Errors
    /// As [`bind_on`](Self::bind_on), and [`vigie_detect::NoServer`] as an [`io::Error`].
    pub fn bind(self) -> Result<Relay, BindError> {
        let server = Server::current().map_err(|error| self.cannot_listen(error.into()))?;
        self.bind_on(&server)
    }

    /// Listens; the listener and all connections are watched by `server`. Takes over the path of a Unix socket whose
    /// listener is gone.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_on(self, server: &Server) -> Result<Relay, BindError> {
        self.validate()?;
        let endpoint = self.listen.clone();
        Relay::new(self, server).map_err(|source| BindError::Listen { endpoint, source })
    }

    /// Begins with what another relay knows: the health of targets with the same address (and, with TLS, the same name in their
    /// certificate), and the addresses of names. Both relays go on to learn of such targets together. If only the other relay has
    /// [checks](Self::check), the health of its targets is not used. Default: all targets are presumed to be available, and no address of
    /// a name is known.
    pub fn successor_of(mut self, earlier: &RelayHandle) -> Self {
        let RelayShared { settings, .. } = &*earlier.shared;
        let (targets, has_health) = (earlier.shared.targets(), settings.check.is_none());
        self.earlier = EarlierTargets { targets, has_health };
        self
    }

    fn cannot_listen(&self, source: io::Error) -> BindError {
        BindError::Listen { endpoint: self.listen.clone(), source }
    }
}

impl RelayHandle {
    /// Returns the relay's counters.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        self.shared.resources.counters.snapshot()
    }

    /// Returns the targets at this moment, in order: those of the relay, then those of routes.
    #[must_use]
    pub fn targets(&self) -> Vec<TargetStats> {
        let now = self.shared.resources.server.now();
        let of_group = |(index, group): (usize, &TargetGroup)| {
            let route = index.checked_sub(1);
            group.targets.stats(now).into_iter().map(move |target| TargetStats { route, ..target })
        };
        self.shared.groups.iter().enumerate().flat_map(of_group).collect()
    }

    /// Returns the rules of access in the order in which they are tried, those that deny first.
    #[must_use]
    pub fn access(&self) -> Vec<AccessRule> {
        self.shared.access.rules()
    }

    /// Returns the relay's listener, for another relay ([`RelayBuilder::listener`]); `None` once it is closed.
    #[must_use]
    pub fn listener(&self) -> Option<RelayListener> {
        self.shared.listener.upgrade()
    }

    /// [Drains](Self::drain), and waits until this relay accepts no more: new connections wait in the kernel's queue for
    /// the next relay that has the [`listener`](Self::listener). Connections that this one has accepted go on, by its own
    /// settings.
    ///
    /// Waits for [`Relay::serve`], which must be polled meanwhile, or the relay be dropped.
    ///
    /// # Cancel safety
    /// Cancel safe: the drain begins with the first poll, and goes on.
    pub async fn hand_over(&self, time: Duration) {
        self.drain(time);
        self.shared.accepting.closed().await;
    }

    /// Stops accepting, and cuts the remaining connections after `time`. Does not wait: [`Relay::serve`] returns at the
    /// end. A later call can only move the deadline forward.
    pub fn drain(&self, time: Duration) {
        let deadline = self.shared.resources.server.now() + time;
        self.shared.draining.send_if_modified(|until| {
            let is_sooner = until.is_none_or(|until| deadline < until);
            if is_sooner {
                *until = Some(deadline);
            }
            is_sooner
        });
    }
}

impl RelayShared {
    async fn relay(
        &self,
        mut client: PendingClient,
        reserved: OwnedFd,
        trace: &mut ConnectionTrace,
    ) -> Result<(), RelayError> {
        let cut_requested = pin!(self.cut_requested());
        let mut cutting = Cut { cut_requested, waker: None, is_cutting: &self.is_cutting };
        let connected = select(&mut cutting, self.connect(&mut client, reserved, trace)).await;
        let Either::Right(upstream) = connected else { return Err(RelayError::Cut) };
        if matches!(upstream, Err(RelayError::Denied(_) | RelayError::OverSourceMax { .. })) {
            // The client is reset.
            return upstream.map(drop);
        }
        let client = client.take();
        // A client without an upstream has received nothing, and sees an end of stream.
        let ((upstream, used), _source, first) = upstream?;
        self.resources.counters.bytes_up.add(first);
        trace.target = Some(Arc::clone(&used.target));
        let (framing, idle) = (self.settings.framing, self.settings.idle_timeout);
        let mut session = Session::new((client, upstream), framing, idle, &self.resources);
        session.report_to(Arc::clone(&used.target.health));
        // The session first: most wake-ups are for it.
        let ended = select(session.run(&self.resources), cutting).await;
        let (up, down) = session.moved_bytes();
        (trace.bytes_up, trace.bytes_down) = (up + first, down);
        match ended {
            Either::Left(ended) => ended,
            Either::Right(_) => {
                session.close(&RelayError::Cut, &self.resources);
                Err(RelayError::Cut)
            }
        }
    }

    /// Reads what must come first from the client, and connects to a target. Returns also how many of the client's bytes the target has got.
    async fn connect(
        &self,
        client: &mut PendingClient,
        reserved: OwnedFd,
        trace: &mut ConnectionTrace,
    ) -> Result<((PeerStream, TargetUse<Endpoint>), SourcePermit, u64), RelayError> {
        let connection = client.connection();
        let own = ProxyHeader::of(connection.addresses());
        trace.client = source_of(&own);
        let header = if self.is_trusted(connection) {
            let accepted = connecting::accept_header(self, connection).await;
            if let Err(RelayError::Proxy(error)) = &accepted {
                self.headers.note_refused(trace.client, error, self.resources.server.now());
            }
            match accepted? {
                // The sender itself.
                ProxyHeader::Local => own,
                header => header,
            }
        } else {
            own
        };
        trace.client = source_of(&header);
        let address = trace.client.map(|source| source.ip());
        let source = self.admit(address)?;
        #[cfg(feature = "tls")]
        let opening = match &self.settings.tls {
            Some(router) => super::tls::accept(self, router, client).await?,
            None => Opening::default(),
        };
        #[cfg(not(feature = "tls"))]
        let opening = Opening::default();
        let header = self.settings.sends_proxy.then_some(header);
        let opening = Opening { header, ..opening };
        let connected = connecting::connect(self, address, &opening, Some(reserved)).await?;
        Ok((connected, source, opening.first.len() as u64))
    }
}

const fn source_of(header: &ProxyHeader) -> Option<SocketAddr> {
    match header {
        ProxyHeader::Tcp { source, .. } => Some(*source),
        _ => None,
    }
}

/// What the record of a connection will say.
#[derive(Default)]
struct ConnectionTrace {
    client: Option<SocketAddr>,
    target: Option<Arc<Target<Endpoint>>>,
    bytes_up: u64,
    bytes_down: u64,
}

/// Waits until the relay cuts its connections. In a busy session it is polled with every message: only the cut wakes
/// `cut_requested`, so while the same waker waits there, checking the flag suffices.
struct Cut<'a, F> {
    cut_requested: Pin<&'a mut F>,
    waker: Option<Waker>,
    is_cutting: &'a AtomicBool,
}

impl<F: Future<Output = ()>> Future for Cut<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let will_be_woken = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if will_be_woken && !self.is_cutting.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        let polled = self.cut_requested.as_mut().poll(cx);
        self.waker = Some(cx.waker().clone());
        polled
    }
}

/// Counts a connection as active while its task lives, however that ends.
struct ActiveGuard {
    shared: Arc<RelayShared>,
    begin: Instant,
    _permit: OwnedSemaphorePermit,
}

impl ActiveGuard {
    fn new(shared: Arc<RelayShared>, permit: OwnedSemaphorePermit) -> Self {
        shared.resources.counters.active.add(1);
        let begin = shared.resources.server.now();
        Self { shared, begin, _permit: permit }
    }

    async fn relay(self, client: PendingClient, reserved: OwnedFd) {
        // Both connections are closed when this returns, and only then does it count as ended.
        let mut trace = ConnectionTrace::default();
        let ended = self.shared.relay(client, reserved, &mut trace).await;
        self.shared.count(&ended);
        if let Some(observer) = &self.shared.settings.observer {
            observer.note(&ConnectionRecord {
                client: trace.client,
                target: trace.target.as_ref().map(|target| target.name.as_str()),
                duration: self.shared.resources.server.now() - self.begin,
                bytes_up: trace.bytes_up,
                bytes_down: trace.bytes_down,
                end: ConnectionEnd::of(&ended),
                error: ended.as_ref().err().map(|error| error as &(dyn Error + 'static)),
            });
        }
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.shared.resources.counters.active.subtract(1);
        self.shared.ended.notify_one();
        if self.shared.resources.counters.active.value() == 0 {
            self.shared.emptied.notify_waiters();
        }
    }
}
