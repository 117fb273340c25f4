//! Metrics and health over HTTP: `/metrics` for Prometheus, `/health` and `/health/targets` for load balancers and orchestrators.

mod exposition;
mod help;

use std::{convert::Infallible, future, io, os::fd::OwnedFd, rc::Rc, sync::Arc, time::Duration};

use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::sync::Semaphore;
use vigie::{
    JoinHandle,
    detect::net::{Listener, ListenerSocket},
    net::{TcpListener, UnixListener},
    spawn_local,
    time::{sleep, timeout},
};

use crate::{
    config::EndpointUri,
    journal::log,
    stats::{self, InstanceReport, RendezvousError, SocketGuard},
    takeover::Predecessor,
};

/// The type of the text that Prometheus reads.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Connections at a time; further ones wait in the kernel's queue. Each has one request.
const CONNECTIONS_MAX: usize = 16;
/// The time in which a client must have sent its request and taken the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of a request without its body, which is not read.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The time for which accepting pauses after a failure: descriptors may be short.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The listener that serves metrics, bound before rights are given up.
pub(crate) enum BoundMetrics {
    Tcp(std::net::TcpListener),
    /// With its file.
    Unix(std::os::unix::net::UnixListener, SocketGuard),
}

/// The reasons why metrics cannot be served.
#[derive(Debug, Error)]
#[error("metrics cannot be served at {endpoint}: {problem}")]
pub(crate) struct MetricsError {
    endpoint: String,
    problem: String,
}

/// Binds the endpoint.
pub(crate) fn bind(
    endpoint: &EndpointUri,
    predecessor: Option<&mut Predecessor>,
) -> Result<BoundMetrics, MetricsError> {
    let failed = |problem: String| MetricsError { endpoint: endpoint.to_string(), problem };
    let broken = |error: io::Error| failed(error.to_string());
    let is_beside = predecessor.is_some();
    let taken = predecessor.and_then(|predecessor| predecessor.metrics_listener(endpoint));
    let bound = match endpoint {
        EndpointUri::Tcp(address) => {
            let bind = || std::net::TcpListener::bind(address);
            let listener = taken.map_or_else(bind, |fd| Ok(fd.into())).map_err(|error| {
                let problem = error.to_string();
                failed(match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        problem + ": another process listens there; `ss -tlpn` lists them: end it, or take another port"
                    }
                    _ => problem,
                })
            })?;
            listener.set_nonblocking(true).map_err(broken)?;
            let at = listener.local_addr().map_err(broken)?;
            log(format!(
                "metrics at http://{at}/metrics; states at http://{at}/health and http://{at}/health/targets"
            ));
            BoundMetrics::Tcp(listener)
        }
        EndpointUri::Unix(path) => {
            let bound = if is_beside {
                stats::bind_beside(path)
            } else {
                stats::bind(Some(path)).map(|(listener, guard, _)| (listener, guard))
            };
            let (listener, guard) = bound.map_err(|error| match error {
                RendezvousError::InUse { .. } => failed("another process listens there".to_owned()),
                RendezvousError::Io { source, .. } => broken(source),
                _ => failed("there is a file that is not a socket".to_owned()),
            })?;
            log(format!("metrics at {endpoint}: /metrics, /health and /health/targets"));
            BoundMetrics::Unix(listener, guard)
        }
        _ => return Err(failed("it is not a stream".to_owned())),
    };
    Ok(bound)
}

/// Makes a report, on this thread.
type ReportFn = Rc<dyn Fn() -> InstanceReport>;

/// Metrics that are served, until the process ends, also while it drains; or until another process serves them.
pub(crate) struct ServedMetrics {
    /// Of a Unix socket.
    pub(crate) guard: Option<SocketGuard>,
    /// For a process that takes over, of TCP.
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) accepting: JoinHandle<()>,
}

/// Serves from now on.
pub(crate) fn serve(bound: BoundMetrics, report: ReportFn) -> io::Result<ServedMetrics> {
    Ok(match bound {
        BoundMetrics::Tcp(listener) => {
            let copy = listener.try_clone()?.into();
            let accepting = spawn_local(accept_all(TcpListener::from_std(listener)?, report));
            ServedMetrics { guard: None, listener: Some(copy), accepting }
        }
        BoundMetrics::Unix(listener, guard) => {
            let accepting = spawn_local(accept_all(UnixListener::from_std(listener)?, report));
            ServedMetrics { guard: Some(guard), listener: None, accepting }
        }
    })
}

async fn accept_all<L: ListenerSocket>(listener: Listener<L>, report: ReportFn)
where
    L::Stream: 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(REQUEST_BYTES_MAX);
    loop {
        let permit = Arc::clone(&room).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let report = Rc::clone(&report);
        let service = service_fn(move |request| {
            future::ready(Ok::<_, Infallible>(answer(&request, &*report)))
        });
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let served = async move {
            // Errors only concern this client.
            let _ = timeout(REQUEST_TIMEOUT, connection).await;
            drop(permit);
        };
        spawn_local(served).detach();
    }
}

fn answer(request: &Request<Incoming>, report: &dyn Fn() -> InstanceReport) -> Response<String> {
    let plain = |status, text: &str| respond(status, text.to_owned());
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    match request.uri().path() {
        "/metrics" => respond(StatusCode::OK, exposition::text(&report())),
        "/health" => health(&report(), StatusCode::OK),
        "/health/targets" => health(&report(), StatusCode::SERVICE_UNAVAILABLE),
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics, /health and /health/targets\n"),
    }
}

/// Answers whether all flows forward. `without_targets` is the status if they do, and some have no target that is available.
fn health(report: &InstanceReport, without_targets: StatusCode) -> Response<String> {
    let without = report.without_target();
    let (status, mut text) = match report.down.as_slice() {
        _ if report.is_draining() => (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned()),
        [] if without.is_empty() || without_targets == StatusCode::OK => {
            (StatusCode::OK, "ready\n".to_owned())
        }
        [] => (without_targets, String::new()),
        down => (StatusCode::SERVICE_UNAVAILABLE, format!("not forwarding: {}\n", down.join(", "))),
    };
    if !without.is_empty() {
        text += &format!("no target is available: {}\n", without.join(", "));
    }
    respond(status, text)
}

fn respond(status: StatusCode, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
