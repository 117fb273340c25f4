//! Blocking calls: the echo has a kernel thread of its own beside the workers of the tasks.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::{Setting, Vigie};
use crate::system::async_system::Sockets;
use crate::system::blocking_calls::{accept, listen, serve_blocking};

/// Sockets of the standard library, with calls that block.
#[derive(Debug)]
pub(crate) enum BlockingSockets {}

/// Runs `call` on a thread of the blocking pool.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    vigie_runtime::spawn_blocking(call).await.map_err(io::Error::other)
}

impl<S: Setting> Sockets for Vigie<S, BlockingSockets> {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        listen()
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
