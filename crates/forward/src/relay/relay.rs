//! The relay itself: accepting, limits, drain.

use std::{
    fs, io,
    os::fd::OwnedFd,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::Path,
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
    connection::{Acceptor, Connection, Unserved},
    counters::RelayStats,
    endpoint::Endpoint,
    error::RelayError,
    health::Health,
    means::Means,
    proxy::ProxyHeader,
    session::Session,
    settings::{RelayBuilder, Settings},
    upstream,
    wait::{First, at_most, first, is_exhausted, until},
};

/// A relay that listens, and relays once [`serve`](Self::serve) is polled.
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
    acceptor: Acceptor,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    /// A descriptor to be duplicated: a place for an upstream's.
    spare: OwnedFd,
    _file: Option<SocketFile>,
}

/// The task of one connection. It ends by itself. If it is dropped before, or panics, both peers get a reset.
pub type ConnectionTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a drain has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Connections that ended by themselves after the drain began.
    pub finished: u64,
    /// Connections that were cut off at the deadline.
    pub cut: u64,
}

/// Looks at a relay, and ends it. Clones are for the same relay.
#[derive(Clone, Debug)]
pub struct RelayHandle {
    shared: Arc<Shared>,
}

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) means: Means,
    /// Of each upstream, in their order.
    pub(super) healths: Vec<Arc<Health>>,
    /// Told when a connection has ended, and left its descriptors.
    pub(super) ended: Notify,
    emptied: Notify,
    /// Set before connections are told by `cut` to end, so that they need not ask at every poll.
    is_cutting: AtomicBool,
    cut: Notify,
    phase: watch::Sender<Phase>,
    places: Arc<Semaphore>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining(Instant),
}

/// How long accepting pauses for want of descriptors, unless a connection ends before.
const PAUSE: Duration = Duration::from_millis(100);

impl Relay {
    /// Returns a builder for a relay that listens on `listen`; port 0 lets the kernel choose one.
    pub fn builder(listen: impl Into<Endpoint>) -> RelayBuilder {
        RelayBuilder::new(listen.into())
    }

    pub(super) fn new(settings: Settings, server: &Server) -> io::Result<Self> {
        if let Some(path) = settings.listen.path() {
            remove_stale(path);
        }
        let acceptor = Acceptor::bind_on(server, &settings.listen)?;
        let file = settings.listen.path().map(|path| SocketFile(path.into()));
        let spare = eventfd(0, EventfdFlags::CLOEXEC)?;
        let endpoint = acceptor.endpoint()?;
        let means = Means::new(
            server.clone(),
            settings.memory_bytes_max,
            settings.pipes_max,
            settings.transfer,
        );
        let places = Arc::new(Semaphore::new(settings.connections_max.min(Semaphore::MAX_PERMITS)));
        let (ended, emptied) = (Notify::new(), Notify::new());
        let (is_cutting, cut) = (AtomicBool::new(false), Notify::new());
        let phase = watch::Sender::new(Phase::Serving);
        let healths = settings.upstreams.iter().map(|to| Arc::new(Health::new(to))).collect();
        let shared = Arc::new(Shared {
            settings,
            means,
            healths,
            ended,
            emptied,
            is_cutting,
            cut,
            phase,
            places,
        });
        Ok(Self { acceptor, endpoint, shared, spare, _file: file })
    }

    /// Returns where the relay listens.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns a handle for looking at the relay, and for ending it.
    #[must_use]
    pub fn handle(&self) -> RelayHandle {
        RelayHandle { shared: Arc::clone(&self.shared) }
    }

    /// Accepts connections, and gives each as a task to `spawn`, which lets an executor run it. Returns once the relay
    /// was [drained](RelayHandle::drain).
    ///
    /// Out of descriptors or memory, it pauses until a connection has ended; those that come meanwhile wait in the
    /// kernel's queue.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped, it accepts no more, and the connections go on.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] if the detection server was shut down.
    pub async fn serve(self, spawn: impl FnMut(ConnectionTask)) -> io::Result<Drained> {
        let mut phase = self.shared.phase.subscribe();
        let draining = drain_begun(&mut phase);
        if let First::Right(Err(error)) = first(draining, self.accept_all(spawn)).await {
            return Err(error);
        }
        // Who connects from here on is refused.
        let Self { acceptor, shared, _file: file, .. } = self;
        drop((acceptor, file));
        shared.drained().await
    }

    async fn accept_all(&self, mut spawn: impl FnMut(ConnectionTask)) -> io::Result<()> {
        let shared = &self.shared;
        loop {
            let permit = Arc::clone(&shared.places).acquire_owned().await;
            let permit = permit.expect("invariant: the semaphore is never closed");
            let accepted = match self.spare.try_clone() {
                // The upstream's place is kept before the client takes one.
                Ok(place) => self.acceptor.accept().await.map(|client| (client, place)),
                Err(error) => Err(error),
            };
            match accepted {
                Ok((client, place)) => {
                    shared.means.counters.accepted.add(1);
                    let guard = Active::new(Arc::clone(shared), permit);
                    spawn(Box::pin(guard.relay(Unserved::new(client), place)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Err(error),
                Err(error) => self.pause(&error).await?,
            }
        }
    }

    /// Waits until another attempt is worth it.
    async fn pause(&self, error: &io::Error) -> io::Result<()> {
        let shared = &self.shared;
        if shared.means.counters.pauses.next() == 0 {
            if is_exhausted(error) {
                tracing::warn!(
                    %error,
                    "accepting pauses; raise the limit of descriptors (`ulimit -n`), or lower `connections_max`"
                );
            } else {
                tracing::warn!(%error, "accepting pauses");
            }
        }
        if is_exhausted(error) {
            shared.means.pipes.close_free();
        }
        at_most(&shared.means.server, PAUSE, shared.ended.notified()).await
    }
}

impl RelayHandle {
    /// Returns what the relay has done so far.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        self.shared.means.counters.snapshot()
    }

    /// Returns what a byte of a raw stream has cost so far, in picoseconds of processor time: copied, and spliced.
    #[must_use]
    pub fn costs(&self) -> (Option<u64>, Option<u64>) {
        self.shared.means.chooser.costs()
    }

    /// Lets the relay accept no more, and cuts off the connections that are left after `time`. Waits for nothing:
    /// [`Relay::serve`] returns when it is over. A later call can only bring the end nearer.
    pub fn drain(&self, time: Duration) {
        let deadline = self.shared.means.server.now() + time;
        self.shared.phase.send_if_modified(|phase| {
            let is_sooner = match *phase {
                Phase::Serving => true,
                Phase::Draining(other) => deadline < other,
            };
            if is_sooner {
                *phase = Phase::Draining(deadline);
            }
            is_sooner
        });
    }
}

impl Shared {
    /// Waits for the connections that are left, and cuts them off at the deadline.
    async fn drained(&self) -> io::Result<Drained> {
        let counters = &self.means.counters;
        let (active, cut) = (counters.active.value(), counters.cut.value());
        let mut phase = self.phase.subscribe();
        loop {
            let Phase::Draining(deadline) = *phase.borrow_and_update() else { break };
            let waited = first(self.empty(), phase.changed());
            match until(&self.means.server, deadline, waited).await? {
                Some(First::Left(())) => break,
                // The deadline has moved.
                Some(First::Right(_)) => {}
                None => {
                    // Release: who is told next sees it (acquire, in `Cut::poll`).
                    self.is_cutting.store(true, Ordering::Release);
                    self.cut.notify_waiters();
                    self.empty().await;
                    break;
                }
            }
        }
        let cut = counters.cut.value() - cut;
        Ok(Drained { finished: active.saturating_sub(cut), cut })
    }

    /// Waits until no connection is left.
    async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.means.counters.active.value() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Waits until connections are cut off.
    async fn told(&self) {
        loop {
            let cut = self.cut.notified();
            if self.is_cutting.load(Ordering::Acquire) {
                return;
            }
            cut.await;
        }
    }

    async fn relay(&self, client: Unserved, place: OwnedFd) -> Result<(), RelayError> {
        let told = pin!(self.told());
        let mut cutting = Cut { told, waker: None, is_cutting: &self.is_cutting };
        let connected = first(&mut cutting, self.connect(client.client(), place)).await;
        let First::Right(upstream) = connected else { return Err(RelayError::Cut) };
        let client = client.take();
        // Who has no upstream has got nothing, and sees an end.
        let (upstream, health) = upstream?;
        let (framing, idle) = (self.settings.framing, self.settings.idle_timeout);
        let mut session = Session::new((client, upstream), framing, idle, &self.means);
        session.tells(health);
        // The session first: most wake-ups are its.
        let ended = first(session.run(&self.means), cutting).await;
        match ended {
            First::Left(ended) => ended,
            First::Right(_) => {
                session.tell(&RelayError::Cut, &self.means);
                Err(RelayError::Cut)
            }
        }
    }

    async fn connect(
        &self,
        client: &Connection,
        place: OwnedFd,
    ) -> Result<(Connection, Arc<Health>), RelayError> {
        let addresses = client.addresses();
        let own = ProxyHeader::of(addresses);
        let header = if self.is_trusted(client) {
            match upstream::accept_header(self, client).await? {
                // It speaks for itself.
                ProxyHeader::Local => own,
                header => header,
            }
        } else {
            own
        };
        let header = self.settings.sends_proxy.then_some(header);
        upstream::connect(self, header, Some(place)).await
    }

    fn is_trusted(&self, client: &Connection) -> bool {
        let trusted = &self.settings.trusted;
        match client {
            Connection::Unix(_) => !trusted.is_empty(),
            Connection::Tcp(stream) => stream
                .peer_addr()
                .is_ok_and(|peer| trusted.iter().any(|network| network.contains(peer.ip()))),
        }
    }

    fn count(&self, ended: &Result<(), RelayError>) {
        let counters = &self.means.counters;
        let counter = match ended {
            Ok(()) => &counters.finished,
            Err(RelayError::NoUpstream { .. }) => &counters.refused,
            Err(RelayError::Idle { .. }) => &counters.timed_out,
            Err(RelayError::Frame { .. } | RelayError::Proxy(_)) => &counters.malformed,
            Err(RelayError::Cut) => &counters.cut,
            Err(RelayError::Failed { .. } | RelayError::Torn { .. }) => &counters.reset,
        };
        counter.add(1);
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended before its time");
        }
    }
}

/// Waits for the beginning of a drain; the sender of phases lives as long as who waits here.
async fn drain_begun(phase: &mut watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
}

/// Waits for the relay to cut its connections off. Beside a busy session it is polled with every message: nothing but
/// the cut wakes `told`, so that while the same waker waits there, a look at the flag suffices.
struct Cut<'a, F> {
    told: Pin<&'a mut F>,
    waker: Option<Waker>,
    is_cutting: &'a AtomicBool,
}

impl<F: Future<Output = ()>> Future for Cut<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let will_be_told = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if will_be_told && !self.is_cutting.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        let polled = self.told.as_mut().poll(cx);
        self.waker = Some(cx.waker().clone());
        polled
    }
}

/// Counts a connection for as long as its task lives, however that ends.
struct Active {
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

impl Active {
    fn new(shared: Arc<Shared>, permit: OwnedSemaphorePermit) -> Self {
        shared.means.counters.active.add(1);
        Self { shared, _permit: permit }
    }

    async fn relay(self, client: Unserved, place: OwnedFd) {
        // Both connections are closed when this returns, and only then it counts as ended.
        let ended = self.shared.relay(client, place).await;
        self.shared.count(&ended);
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.shared.means.counters.active.subtract(1);
        self.shared.ended.notify_one();
        if self.shared.means.counters.active.value() == 0 {
            self.shared.emptied.notify_waiters();
        }
    }
}

/// The file of a Unix socket that we listen on; removed with the relay.
#[derive(Debug)]
struct SocketFile(std::path::PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, path = %self.0.display(), "a socket's file could not be removed");
        }
    }
}

/// Removes the file of a socket on which nobody listens any more.
fn remove_stale(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let is_stale = || {
        UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if is_socket && is_stale() && fs::remove_file(path).is_ok() {
        tracing::info!(path = %path.display(), "the file of a listener that is gone was removed");
    }
}
