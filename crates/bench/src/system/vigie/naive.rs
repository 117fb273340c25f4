//! Naive polling: the scheduler knows of no socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::{Setting, Vigie};
use crate::system::async_system::Sockets;
use crate::system::blocking_calls;

/// Sockets of the standard library, in non-blocking mode, so that nothing of the detection server takes part.
#[derive(Debug)]
pub(crate) enum PolledSockets {}

/// Tests again and again, with a yield after each test that finds nothing.
async fn test_until_ready<T>(mut test: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match test() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => vigie_runtime::yield_now().await,
            done => return done,
        }
    }
}

impl<S: Setting> Sockets for Vigie<S, PolledSockets> {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let (listener, address) = blocking_calls::listen()?;
        listener.set_nonblocking(true)?;
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
