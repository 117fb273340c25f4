//! Detectors inside tokio: its tasks and its threads, our sockets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use vigie_detect::net::{TcpListener, TcpStream};
use vigie_detect::{Server, TokioHost};

use super::VigieHybrid;
use crate::error::Failure;
use crate::system::async_system::{AsyncSystem, BoxedTask, Sockets};
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

    fn block_on<F>(&self, future: F) -> F::Output
    where
        F: Future + Send,
        F::Output: Send,
    {
        let _entered = self.host.server().enter();
        self.tokio.block_on(future)
    }

    fn spawn<F>(future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        TokioMultiThread::spawn(future);
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        TokioMultiThread::spawner()
    }

    async fn call<F, T>(future: F) -> T
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
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

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        VigieHybrid::accept(listener).await
    }

    async fn connect(address: SocketAddr) -> io::Result<Self::Stream> {
        VigieHybrid::connect(address).await
    }

    async fn read(stream: &mut Self::Stream, buffer: &mut [u8]) -> io::Result<usize> {
        VigieHybrid::read(stream, buffer).await
    }

    async fn write_all(stream: &mut Self::Stream, bytes: &[u8]) -> io::Result<()> {
        VigieHybrid::write_all(stream, bytes).await
    }
}
