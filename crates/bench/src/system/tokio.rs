//! tokio, in both of its schedulers.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};

use super::async_system::{AsyncSystem, BoxedTask, Sockets};
use crate::error::Failure;

/// tokio's work-stealing scheduler.
pub type TokioMultiThread = Tokio<MultiThread>;

/// tokio's scheduler on the calling thread alone.
pub type TokioCurrentThread = Tokio<CurrentThread>;

/// tokio with the scheduler that `S` stands for.
pub struct Tokio<S> {
    runtime: Runtime,
    scheduler: PhantomData<fn() -> S>,
}

impl<S> fmt::Debug for Tokio<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokio").field("runtime", &self.runtime).finish()
    }
}

/// A scheduler of tokio.
pub trait Scheduler: 'static {
    /// Returns the builder of a runtime with this scheduler.
    fn builder(workers: usize) -> Builder;
}

/// Names tokio's multi-thread scheduler.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum MultiThread {}

impl Scheduler for MultiThread {
    fn builder(workers: usize) -> Builder {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(workers);
        builder
    }
}

/// Names tokio's current-thread scheduler.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "it has no value, and will not get one")]
pub enum CurrentThread {}

impl Scheduler for CurrentThread {
    fn builder(_workers: usize) -> Builder {
        Builder::new_current_thread()
    }
}

impl<S: Scheduler> AsyncSystem for Tokio<S> {
    fn start(workers: usize) -> Result<Self, Failure> {
        let runtime = S::builder(workers).enable_all().build().map_err(Failure::runtime)?;
        Ok(Self { runtime, scheduler: PhantomData })
    }

    fn block_on<F>(&self, future: F) -> F::Output
    where
        F: Future + Send,
        F::Output: Send,
    {
        self.runtime.block_on(future)
    }

    fn spawn<F>(future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(future);
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        let handle = Handle::current();
        move |task| drop(handle.spawn(task))
    }

    async fn call<F, T>(future: F) -> T
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        tokio::spawn(future).await.expect("invariant: a task of the workload never panics")
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }
}

impl<S: Scheduler> Sockets for Tokio<S> {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((TcpListener::from_std(listener)?, address))
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect(address: SocketAddr) -> io::Result<Self::Stream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn read(stream: &mut Self::Stream, buffer: &mut [u8]) -> io::Result<usize> {
        stream.read(buffer).await
    }

    async fn write_all(stream: &mut Self::Stream, bytes: &[u8]) -> io::Result<()> {
        stream.write_all(bytes).await
    }
}
