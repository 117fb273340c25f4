//! The service: what a newcomer to hyper writes.

use std::convert::Infallible;
use std::process;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::HttpServer;
use super::client::{COMPUTE, HELLO_BODY, WORK};
use crate::compute::Pace;
use crate::error::Failure;
use crate::inside;
use crate::process::Message;
use crate::schedulers::System;
use crate::system::AsyncSystem;
use crate::system::tokio::TokioMultiThread;
use crate::system::vigie::VigieHybrid;

/// A runtime on whose sockets hyper runs.
trait HttpSystem: AsyncSystem<Stream: AsyncRead + AsyncWrite + Unpin> {
    /// Computes for as long as `step` takes on a core of its own, in the way that the runtime's documentation asks for.
    fn compute(pace: Pace, step: Duration) -> impl Future<Output = ()> + Send;
}

impl HttpSystem for VigieHybrid {
    async fn compute(pace: Pace, step: Duration) {
        pace.spend(step);
    }
}

impl HttpSystem for TokioMultiThread {
    async fn compute(pace: Pace, step: Duration) {
        let computed = tokio::task::spawn_blocking(move || pace.spend(step)).await;
        computed.expect("invariant: computing never panics");
    }
}

pub(super) fn serve(plan: &HttpServer) -> Result<(), Failure> {
    match plan.system {
        System::Vigie => serve_on::<VigieHybrid>(plan),
        System::Tokio => serve_on::<TokioMultiThread>(plan),
        other => Err(Failure::unsupported(
            other,
            "the service on hyper is written for `vigie` and `tokio`",
        )),
    }
}

fn serve_on<S: HttpSystem>(plan: &HttpServer) -> Result<(), Failure> {
    let HttpServer { workers, step, pace, .. } = *plan;
    let system = S::start(workers)?;
    system.block_on(async move {
        inside::take_note();
        let (listener, echo) = S::listen().map_err(Failure::io("listening on 127.0.0.1"))?;
        S::spawn(async move {
            loop {
                match S::accept(&listener).await {
                    Ok(stream) => S::spawn(async move {
                        let answer = service_fn(move |request| answer::<S>(request, pace, step));
                        let connection =
                            http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
                        // The client has closed the connection, or it is at its end.
                        let _ = connection.await;
                    }),
                    Err(error) => eprintln!("accepting: {error}"),
                }
            }
        });
        Message::Listening { process: process::id(), echo, control: None }.print();
        std::future::pending().await
    })
}

async fn answer<S: HttpSystem>(
    request: Request<Incoming>,
    pace: Pace,
    step: Duration,
) -> Result<Response<String>, Infallible> {
    match request.uri().path() {
        COMPUTE => S::compute(pace, step).await,
        WORK => pace.spend(step),
        _ => {}
    }
    Ok(Response::new(HELLO_BODY.to_owned()))
}
