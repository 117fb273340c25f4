//! smol's executor, on threads of our own as its documentation shows.

use std::future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use smol::Executor;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};

use super::async_system::{AsyncSystem, BoxedTask, Sockets, stream_calls};
use crate::error::Failure;

/// One per process, as in `smol::spawn`, which reads its number of threads from the environment.
static EXECUTOR: Executor<'static> = Executor::new();

/// smol's executor.
#[derive(Debug)]
pub struct Smol(());

impl AsyncSystem for Smol {
    fn start(workers: usize) -> Result<Self, Failure> {
        for index in 0..workers {
            thread::Builder::new()
                .name(format!("smol-{index}"))
                .spawn(|| smol::block_on(EXECUTOR.run(future::pending::<()>())))
                .map_err(Failure::runtime)?;
        }
        Ok(Self(()))
    }

    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        smol::block_on(future)
    }

    fn spawn(future: impl Future<Output = ()> + Send + 'static) {
        EXECUTOR.spawn(future).detach();
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        |task| EXECUTOR.spawn(task).detach()
    }

    fn call<T: Send + 'static>(
        future: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = T> + Send {
        EXECUTOR.spawn(future)
    }

    async fn yield_now() {
        smol::future::yield_now().await;
    }

    async fn sleep(duration: Duration) {
        smol::Timer::after(duration).await;
    }
}

impl Sockets for Smol {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener = smol::Async::<std::net::TcpListener>::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.get_ref().local_addr()?;
        Ok((listener.into(), address))
    }

    stream_calls!(TcpStream);
}
