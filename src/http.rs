//! HTTP services on hyper 1: a server for tower services, such as a router of axum's, whose connections are tasks of
//! this runtime, and what hyper's own builders need.
//!
//! A handler may compute or block for as long as it takes: the other connections are served meanwhile, since the
//! scheduler detects their events ([flavors](crate::Flavor)).
//!
//! ```no_run
//! use std::convert::Infallible;
//! use hyper::{Request, Response, body::Incoming};
//! use vigie::{http, net::TcpListener};
//!
//! async fn hello(request: Request<Incoming>) -> Result<Response<String>, Infallible> {
//!     Ok(Response::new(format!("{} says hello", request.uri().path())))
//! }
//!
//! vigie::Runtime::builder().build()?.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:8080").await?;
//!     http::serve(listener, http::service_fn(hello)).await?;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With axum, the second argument is the `Router`. HTTP/1 and HTTP/2 (with prior knowledge, as gRPC uses it) are
//! served on the same port, and connections may be upgraded (WebSocket). For TLS, accept connections yourself and
//! give them to `hyper_util::server::conn::auto::Builder` with [`Executor`] and [`Timer`].

#[cfg(feature = "hyper-client")]
mod client;
mod connection;

use std::{
    collections::BTreeMap,
    error::Error,
    fmt,
    future::{self, Future, IntoFuture, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Request, Response,
    body::{Body, Incoming},
};
use hyper_util::{server::conn::auto, service::TowerToHyperService};
use tokio::sync::watch;
use tower_service::Service;
use vigie_detect::net::{Listener, ListenerSocket, Stream};

#[cfg(feature = "hyper-client")]
pub use self::client::{ClientStream, Connector, client};
use self::connection::ServerStream;
use crate::{
    Instant,
    task::{self, AbortHandle},
    time,
};

/// The time that a client may take to send the head of a request, unless set otherwise.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that connections may take to end after the shutdown has begun, unless set otherwise.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for which nothing is accepted after the kernel has refused to, for example for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The time between two warnings of that.
const WARNING_PAUSE: Duration = Duration::from_secs(10);

/// The most connections that are accepted after the shutdown has begun: more than wait in a queue of the usual length.
const LAST_ACCEPTED_MAX: u32 = 5_000;

/// The name of a connection's task begins so, and ends with the client's address. Warnings of long polls show it.
const TASK_NAME: &str = "http ";

/// Serves `service` on the connections that `listener` accepts, each in a task of the current runtime.
///
/// It runs until the future of [`with_graceful_shutdown`](Serve::with_graceful_shutdown) is ready, for ever by
/// default. A request has [`PeerAddress`] among its extensions.
///
/// # Bad clients
/// A client that sends the head of a request too slowly, or nothing at all, is cut off after the [`head_timeout`](Serve::head_timeout).
/// In HTTP/2, where heads of several requests may come at any time, a client that has sent nothing for that long is asked whether
/// it is still there, and has as long again to answer. Heads that are too large or malformed are answered with 431 or 400. Such
/// errors concern their connection alone and are logged with `tracing`. While the process has no descriptor left, connections
/// wait in the kernel's queue.
pub fn serve<L: ListenerSocket, S>(listener: Listener<L>, service: S) -> Serve<L, S> {
    Serve {
        listener,
        service,
        shutdown: future::pending(),
        head_timeout: HEAD_TIMEOUT,
        drain_timeout: DRAIN_TIMEOUT,
        half_close: false,
    }
}

/// A server, from [`serve`]: await it.
#[derive(Debug)]
#[must_use = "nothing is served before it is awaited"]
pub struct Serve<L: ListenerSocket, S, F = future::Pending<()>> {
    listener: Listener<L>,
    service: S,
    shutdown: F,
    head_timeout: Duration,
    drain_timeout: Duration,
    half_close: bool,
}

impl<L: ListenerSocket, S, F> Serve<L, S, F> {
    /// Begins to shut down when `signal` is ready: accepts no more connections than those that wait in the kernel's queue, answers
    /// the requests that have come to this host, and closes idle connections.
    pub fn with_graceful_shutdown<G: Future<Output = ()>>(self, signal: G) -> Serve<L, S, G> {
        let Self { listener, service, head_timeout, drain_timeout, half_close, .. } = self;
        Serve { listener, service, shutdown: signal, head_timeout, drain_timeout, half_close }
    }

    /// Sets how long a client may take to send the head of a request, from when one could begin: so an idle connection is closed
    /// after this time, too. Default 30 s.
    pub fn head_timeout(mut self, time: Duration) -> Self {
        self.head_timeout = time;
        self
    }

    /// Sets whether a client of HTTP/1 that has closed its sending side still gets the answer to its request. Default `false`: it is
    /// taken to have left, since a closed connection looks the same, and the handler's future is dropped, as by hyper and axum's own
    /// server. With `true` (for clients such as `nc -N`), the handlers of clients that have left run to their end.
    pub fn half_close(mut self, keep: bool) -> Self {
        self.half_close = keep;
        self
    }

    /// Sets how long connections may take to end after the shutdown has begun. Default 10 s. Those that are left are
    /// then cut off, and named by the error.
    pub fn drain_timeout(mut self, time: Duration) -> Self {
        self.drain_timeout = time;
        self
    }
}

/// The reason why a server has ended otherwise than by its graceful shutdown.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The runtime was shut down.
    Closed(io::Error),
    /// Some connections had not ended when the time to drain them was over, and were cut off.
    Undrained {
        /// The time that they had.
        time: Duration,
        /// The addresses of their clients.
        peers: Vec<String>,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => {
                f.write_str("the listener can accept no more, since its runtime has ended")
            }
            Self::Undrained { time, peers } => write!(
                f,
                "after {time:?}, {} connections had not ended and were cut off: {}",
                peers.len(),
                peers.join(", ")
            ),
        }
    }
}

impl Error for ServeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Closed(error) => Some(error),
            _ => None,
        }
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

impl<L, S, F, B> IntoFuture for Serve<L, S, F>
where
    L: ListenerSocket,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    F: Future<Output = ()> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Output = Result<(), ServeError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<L, S, F, B> Serve<L, S, F>
where
    L: ListenerSocket,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    F: Future<Output = ()>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    async fn run(self) -> Result<(), ServeError> {
        let Self { listener, service, shutdown, head_timeout, drain_timeout, half_close } = self;
        let mut builder = auto::Builder::new(Executor);
        builder.http1().timer(Timer).header_read_timeout(head_timeout).half_close(half_close);
        // The head of a request in HTTP/2 has no limit of its own: a client is asked whether it is still there.
        builder.http2().timer(Timer);
        builder.http2().keep_alive_interval(head_timeout).keep_alive_timeout(head_timeout);
        let (begin_shutdown, _) = watch::channel(());
        let open = OpenConnections::default();
        let (opened, shutdown_begins) = (open.clone(), begin_shutdown.clone());
        let serve = move |(stream, peer)| {
            let stream = ServerStream::new(stream, head_timeout);
            let service = WithPeer { service: TowerToHyperService::new(service.clone()), peer };
            let name = Arc::<str>::from(format!("{TASK_NAME}{:?}", service.peer));
            let entry = opened.enter(Arc::clone(&name));
            let unread = Arc::clone(stream.unread());
            let connection = builder.serve_connection_with_upgrades(stream, service).into_owned();
            let connection = connection::serve(connection, unread, shutdown_begins.subscribe());
            let id = entry.id;
            let task = task::Builder::new().name(name).spawn(async move {
                let _entry = entry;
                if let Err(error) = connection.await {
                    tracing::debug!(error, "a connection has failed");
                }
            });
            opened.set_abort(id, task.abort_handle());
            task.detach();
        };

        let mut shutdown = pin!(shutdown);
        let mut refusals = Refusals::default();
        while let Some(accepted) = unless(shutdown.as_mut(), listener.accept()).await {
            match accepted {
                Ok(accepted) => serve(accepted),
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    return Err(ServeError::Closed(error));
                }
                Err(error) => {
                    if let Some(times) = refusals.add(Instant::now()) {
                        tracing::warn!(%error, times, "no connection is accepted for the moment");
                    }
                    time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        accept_last(listener).for_each(serve);

        // A message to those that are there, and none to later ones: so all of them must be.
        begin_shutdown.send_replace(());
        match time::timeout(drain_timeout, begin_shutdown.closed()).await {
            Ok(()) => Ok(()),
            Err(_elapsed) => {
                let peers = open.cut_off();
                if peers.is_empty() {
                    return Ok(());
                }
                Err(ServeError::Undrained { time: drain_timeout, peers })
            }
        }
    }
}

/// Accepts the connections that wait in the kernel's queue: closing the listener would reset them, and some have sent a request.
fn accept_last<L: ListenerSocket>(
    listener: Listener<L>,
) -> impl Iterator<Item = (Stream<L::Stream>, L::Address)> {
    // Watched anew, it is tried before the scheduler has heard of a connection.
    let listener = listener.watched_anew();
    (0..LAST_ACCEPTED_MAX).map_while(move |_| listener.as_ref().ok()?.try_accept().ok())
}

/// The refusals of the kernel to accept since that was last said.
#[derive(Default)]
struct Refusals {
    said_at: Option<Instant>,
    unsaid: u32,
}

impl Refusals {
    /// Returns how many have come since the last time that this was not `None`, if it is time to say so.
    fn add(&mut self, now: Instant) -> Option<u32> {
        self.unsaid += 1;
        if self.said_at.is_some_and(|at| now.saturating_duration_since(at) < WARNING_PAUSE) {
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// Awaits `work`, unless `end` is ready first.
async fn unless<T>(mut end: Pin<&mut impl Future>, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// The connections that have not ended.
#[derive(Clone, Default)]
struct OpenConnections(Arc<Mutex<OpenList>>);

#[derive(Default)]
struct OpenList {
    next_id: u64,
    /// By number: the name of the connection's task, and the handle that aborts it.
    open: BTreeMap<u64, (Arc<str>, Option<AbortHandle>)>,
}

impl OpenConnections {
    fn lock(&self) -> MutexGuard<'_, OpenList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, task_name: Arc<str>) -> OpenConnection {
        let mut connections = self.lock();
        let id = connections.next_id;
        connections.next_id += 1;
        connections.open.insert(id, (task_name, None));
        OpenConnection { id, all: self.clone() }
    }

    fn set_abort(&self, id: u64, abort: AbortHandle) {
        if let Some((_, place)) = self.lock().open.get_mut(&id) {
            *place = Some(abort);
        }
    }

    /// Aborts the connections, and returns their peers.
    fn cut_off(&self) -> Vec<String> {
        let open = std::mem::take(&mut self.lock().open);
        let cut = open.into_values().map(|(task_name, abort)| {
            abort.inspect(AbortHandle::abort);
            task_name.trim_start_matches(TASK_NAME).to_owned()
        });
        cut.collect()
    }
}

/// Leaves the open connections when it is dropped.
struct OpenConnection {
    id: u64,
    all: OpenConnections,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let left = self.all.lock().open.remove(&self.id);
        drop(left);
    }
}

/// The address of the client, an extension of each request: `request.extensions().get::<PeerAddress<SocketAddr>>()`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "it is an address with a name")]
pub struct PeerAddress<A>(pub A);

/// A service whose requests know their client.
struct WithPeer<S, A> {
    service: TowerToHyperService<S>,
    peer: A,
}

impl<S, A, R> hyper::service::Service<Request<R>> for WithPeer<S, A>
where
    S: Service<Request<R>> + Clone,
    A: Clone + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = <TowerToHyperService<S> as hyper::service::Service<Request<R>>>::Future;

    fn call(&self, mut request: Request<R>) -> Self::Future {
        request.extensions_mut().insert(PeerAddress(self.peer.clone()));
        hyper::service::Service::call(&self.service, request)
    }
}

/// Makes a tower service of an `async fn` from requests to responses.
pub const fn service_fn<F>(answer: F) -> ServiceFn<F> {
    ServiceFn(answer)
}

/// A service, from [`service_fn`].
#[derive(Clone, Copy)]
pub struct ServiceFn<F>(F);

impl<F, R, T, E, O> Service<R> for ServiceFn<F>
where
    F: FnMut(R) -> O,
    O: Future<Output = Result<T, E>>,
{
    type Response = T;
    type Error = E;
    type Future = O;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> O {
        (self.0)(request)
    }
}

impl<F> fmt::Debug for ServiceFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceFn").finish_non_exhaustive()
    }
}

/// Spawns hyper's futures as tasks of the current runtime.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Executor;

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        crate::spawn(future).detach();
    }
}

/// hyper's time-outs, on the timers of the current runtime.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Timer;

impl hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(HyperSleep(time::sleep(duration)))
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(HyperSleep(time::sleep_until(deadline.into())))
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn hyper::rt::Sleep>>, deadline: std::time::Instant) {
        match sleep.as_mut().downcast_mut_pin::<HyperSleep>() {
            Some(mut sleep) => sleep.0.reset(deadline.into()),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

struct HyperSleep(time::Sleep);

impl Future for HyperSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl hyper::rt::Sleep for HyperSleep {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the first refusal is said at once, and a later one only after the pause, with those in between. Method: times by hand.
    #[test]
    fn refusals_are_said_rarely() {
        let mut refusals = Refusals::default();
        let begin = Instant::now();
        assert_eq!(refusals.add(begin), Some(1));
        for number in 1..200 {
            assert_eq!(refusals.add(begin + ACCEPT_PAUSE * number), None, "{number}");
        }
        assert_eq!(refusals.add(begin + WARNING_PAUSE), Some(200));
        assert_eq!(refusals.add(begin + WARNING_PAUSE + ACCEPT_PAUSE), None);
        assert_eq!(refusals.add(begin + 2 * WARNING_PAUSE), Some(2));
    }
}
