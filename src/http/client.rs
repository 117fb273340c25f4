//! The client's side: connections of this runtime for hyper's pooled client.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Uri,
    body::Body,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::TokioIo,
};
use tower_service::Service;

use super::{Executor, Timer};
use crate::{net::TcpStream, time::timeout};

/// The time that a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates a client whose connections are sockets of the current runtime, and which keeps idle ones for later requests (for 90 s,
/// as many as there are). It speaks HTTP/1.1; cloning it is cheap, and clones share the connections.
///
/// For other settings, give a [`Connector`] to hyper's `Client::builder(Executor::default())`; for TLS, wrap it, for example in
/// `hyper_rustls::HttpsConnectorBuilder::new().….wrap_connector(Connector::new())`.
///
/// # Examples
/// ```no_run
/// # vigie::Runtime::builder().build()?.block_on(async {
/// let client = vigie::http::client::<String>();
/// let response = client.get("http://127.0.0.1:8080/health".parse()?).await?;
/// assert!(response.status().is_success());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn client<B>() -> Client<Connector, B>
where
    B: Body + Send,
    B::Data: Send,
{
    Client::builder(Executor).timer(Timer).pool_timer(Timer).build(Connector::new())
}

/// Connects to the host and port of a request's URI, as tower's services and hyper's client ask for it: port 80 unless another
/// is given. Names are resolved on the blocking pool, and all addresses tried ([`TcpStream::connect`]).
///
/// # Errors
/// A URI without a host; what connecting fails with; [`io::ErrorKind::TimedOut`] after 10 s.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Connector;

impl Connector {
    /// Creates one.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Service<Uri> for Connector {
    type Response = ClientStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<ClientStream>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let missing = || {
                let text = format!("{uri} has no host to connect to: give a whole URI");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            };
            let host = uri.host().ok_or_else(missing)?;
            // An address of IPv6 is in brackets there.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let is_secure = uri.scheme_str().is_some_and(|scheme| scheme == "https");
            let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
            let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await??;
            stream.set_nodelay(true)?;
            Ok(ClientStream(TokioIo::new(stream)))
        })
    }
}

/// A connection that a [`Connector`] has made.
#[derive(Debug)]
pub struct ClientStream(TokioIo<TcpStream>);

impl Connection for ClientStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
