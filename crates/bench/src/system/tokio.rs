//! tokio, in both of its schedulers.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};

use super::async_system::{AsyncSystem, BoxedTask, Sockets, stream_calls};
use super::blocking_calls;
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

    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }

    fn spawn(future: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(future);
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        let handle = Handle::current();
        move |task| drop(handle.spawn(task))
    }

    async fn call<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
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
        let (listener, address) = blocking_calls::listen()?;
        listener.set_nonblocking(true)?;
        Ok((TcpListener::from_std(listener)?, address))
    }

    stream_calls!(TcpStream);
}
