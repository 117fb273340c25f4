//! Naive polling: the scheduler knows of no socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::{FirstComeFirstServed, Vigie, VigieUserLevel};
use crate::error::Failure;
use crate::system::async_system::{AsyncSystem, BoxedTask};

/// "The listening server thread tests for a network event each time it is scheduled. If no event has
/// occurred, then it immediately yields control back" [bouge02, §4.1].
///
/// The sockets are the standard library's, in non-blocking mode, so that nothing of the detection
/// server takes part, and tasks are polled in the order in which they became ready, as in the paper.
#[derive(Debug)]
pub(crate) struct VigieNaive(Vigie<FirstComeFirstServed>);

/// Tests again and again, with a yield after each test that finds nothing.
async fn test_until_ready<T>(mut test: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match test() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => vigie_runtime::yield_now().await,
            done => return done,
        }
    }
}

impl AsyncSystem for VigieNaive {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn start(workers: usize) -> Result<Self, Failure> {
        Vigie::start(workers).map(Self)
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
        VigieUserLevel::spawn(future);
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        VigieUserLevel::spawner()
    }

    fn call<F, T>(future: F) -> impl Future<Output = T> + Send
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        VigieUserLevel::call(future)
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        VigieUserLevel::yield_now()
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + Send {
        VigieUserLevel::sleep(duration)
    }

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        let (stream, _) = test_until_ready(|| listener.accept()).await?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect(address: SocketAddr) -> io::Result<Self::Stream> {
        // On the loopback interface this never waits.
        let stream = TcpStream::connect(address)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn read(stream: &mut Self::Stream, buffer: &mut [u8]) -> io::Result<usize> {
        test_until_ready(|| stream.read(buffer)).await
    }

    async fn write_all(stream: &mut Self::Stream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = test_until_ready(|| stream.write(bytes)).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }
}
