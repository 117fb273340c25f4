//! Metrics and health over HTTP: `/metrics` for Prometheus, `/health` for load balancers and orchestrators.

mod exposition;

use std::{convert::Infallible, io, rc::Rc};

use hyper::{Method, Request, Response, StatusCode, body::Incoming, header};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use vigie::{
    http,
    net::{TcpListener, UnixListener},
    spawn_local,
};

use crate::{
    config::EndpointUri,
    journal::log,
    stats::{self, InstanceReport, RendezvousError, SocketGuard},
};

/// The type of the text that Prometheus reads.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Requests that wait for the control thread; further ones wait in their connections.
const WAITING_MAX: usize = 16;

/// Where metrics are served, bound before rights are given up.
pub(crate) enum BoundMetrics {
    Tcp(std::net::TcpListener),
    /// With its file.
    Unix(std::os::unix::net::UnixListener, SocketGuard),
}

/// Why metrics cannot be served.
#[derive(Debug, Error)]
#[error("metrics cannot be served at {endpoint}: {problem}")]
pub(crate) struct MetricsError {
    endpoint: String,
    problem: String,
}

/// Binds the endpoint.
pub(crate) fn bind(endpoint: &EndpointUri) -> Result<BoundMetrics, MetricsError> {
    let failed = |problem: String| MetricsError { endpoint: endpoint.to_string(), problem };
    let broken = |error: io::Error| failed(error.to_string());
    let bound = match endpoint {
        EndpointUri::Tcp(address) => {
            let listener = std::net::TcpListener::bind(address).map_err(|error| {
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
            log(format!("metrics at http://{at}/metrics and http://{at}/health"));
            BoundMetrics::Tcp(listener)
        }
        EndpointUri::Unix(path) => {
            let (listener, guard, _) = stats::bind(Some(path)).map_err(|error| match error {
                RendezvousError::InUse { .. } => failed("another process listens there".to_owned()),
                RendezvousError::Io { source, .. } => broken(source),
                _ => failed("there is a file that is not a socket".to_owned()),
            })?;
            log(format!("metrics at {endpoint}"));
            BoundMetrics::Unix(listener, guard)
        }
        _ => return Err(failed("it is not a stream".to_owned())),
    };
    Ok(bound)
}

/// Asks the control thread for a report.
type ReportRequest = oneshot::Sender<InstanceReport>;

/// Serves until the process ends, also while it drains. `report` is called on this thread.
pub(crate) fn serve(
    bound: BoundMetrics,
    report: Rc<dyn Fn() -> InstanceReport>,
) -> io::Result<Option<SocketGuard>> {
    let (sender, mut requests) = mpsc::channel::<ReportRequest>(WAITING_MAX);
    // Connections are tasks that any thread may run, and the state is this thread's.
    spawn_local(async move {
        while let Some(request) = requests.recv().await {
            // A client that has left needs no report.
            let _ = request.send(report());
        }
    })
    .detach();
    let service = http::service_fn(move |request| answer(request, sender.clone()));
    // Neither ends before the process.
    let guard = match bound {
        BoundMetrics::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            spawn_local(async move { http::serve(listener, service).await }).detach();
            None
        }
        BoundMetrics::Unix(listener, guard) => {
            let listener = UnixListener::from_std(listener)?;
            spawn_local(async move { http::serve(listener, service).await }).detach();
            Some(guard)
        }
    };
    Ok(guard)
}

async fn answer(
    request: Request<Incoming>,
    reports: mpsc::Sender<ReportRequest>,
) -> Result<Response<String>, Infallible> {
    let (asked, report) = oneshot::channel();
    let plain = |status, text: &str| respond(status, text.to_owned());
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"));
    }
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/health") {
        return Ok(plain(StatusCode::NOT_FOUND, "there are /metrics and /health\n"));
    }
    // Without the control thread, the process ends.
    let ending = || plain(StatusCode::SERVICE_UNAVAILABLE, "ending\n");
    if reports.send(asked).await.is_err() {
        return Ok(ending());
    }
    let Ok(report) = report.await else { return Ok(ending()) };
    Ok(match path {
        "/metrics" => respond(StatusCode::OK, exposition::text(&report)),
        _ if report.is_draining() => plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        _ => plain(StatusCode::OK, "ready\n"),
    })
}

fn respond(status: StatusCode, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
