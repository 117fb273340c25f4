//! Detectors inside tokio: its tasks and its threads, our sockets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_detect::{Server, TokioHost};

use super::VigieHybrid;
use crate::error::Failure;
use crate::system::async_system::{AsyncSystem, BoxedTask, Sockets, stream_calls};
use crate::system::tokio::TokioMultiThread;

/// tokio's multi-thread scheduler, one of whose tasks drives a detection server.
#[derive(Debug)]
pub struct VigieInTokio {
    tokio: TokioMultiThread,
    host: TokioHost,
}

impl AsyncSystem for VigieInTokio {
    fn start(workers: usize) -> Result<Self, Failure> {
        let tokio = TokioMultiThread::start(workers)?;
        let host = tokio.block_on(async { Server::spawn_in_tokio() }).map_err(Failure::runtime)?;
        Ok(Self { tokio, host })
    }

    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        let _entered = self.host.server().enter();
        self.tokio.block_on(future)
    }

    fn spawn(future: impl Future<Output = ()> + Send + 'static) {
        TokioMultiThread::spawn(future);
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        TokioMultiThread::spawner()
    }

    async fn call<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
        TokioMultiThread::call(future).await
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        TokioMultiThread::yield_now()
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + Send {
        TokioMultiThread::sleep(duration)
    }
}

impl Sockets for VigieInTokio {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        VigieHybrid::listen()
    }

    stream_calls!(TcpStream);
}
