//! Blocking calls: the echo has a kernel thread of its own beside the workers of the tasks.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::VigieHybrid;
use crate::error::Failure;
use crate::system::async_system::{AsyncSystem, BoxedTask};
use crate::system::blocking_calls::{accept, serve_blocking};

/// "Using blocking system calls provides better performance […]. However, a two-level thread
/// scheduler is needed to correctly handle such calls" [bouge02, §4.1].
#[derive(Debug)]
pub(crate) struct VigieBlocking(VigieHybrid);

/// Runs `call` on a thread of the blocking pool.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    vigie_runtime::spawn_blocking(call).await.map_err(io::Error::other)
}

impl AsyncSystem for VigieBlocking {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn start(workers: usize) -> Result<Self, Failure> {
        VigieHybrid::start(workers).map(Self)
    }

    fn block_on<F>(&self, future: F) -> F::Output
    where
        F: Future + Send,
        F::Output: Send,
    {
        self.0.block_on(future)
    }

    fn spawn<F>(future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        VigieHybrid::spawn(future);
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        VigieHybrid::spawner()
    }

    fn call<F, T>(future: F) -> impl Future<Output = T> + Send
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        VigieHybrid::call(future)
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        VigieHybrid::yield_now()
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + Send {
        VigieHybrid::sleep(duration)
    }

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        let listener = listener.try_clone()?;
        blocking(move || accept(&listener)).await?
    }

    async fn connect(address: SocketAddr) -> io::Result<Self::Stream> {
        let stream = blocking(move || TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn read(stream: &mut Self::Stream, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = stream.try_clone()?;
        let mut own = vec![0; buffer.len()];
        let (count, own) =
            blocking(move || stream.read(&mut own).map(|count| (count, own))).await??;
        buffer[..count].copy_from_slice(&own[..count]);
        Ok(count)
    }

    async fn write_all(stream: &mut Self::Stream, bytes: &[u8]) -> io::Result<()> {
        let mut stream = stream.try_clone()?;
        let own = bytes.to_vec();
        blocking(move || stream.write_all(&own)).await?
    }

    fn spawn_echo(stream: Self::Stream) {
        vigie_runtime::spawn_blocking(move || serve_blocking(stream)).detach();
    }
}
