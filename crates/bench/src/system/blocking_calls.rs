//! Connections by blocking calls, on kernel threads.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Stack of a thread: ten thousand of them must fit.
pub(crate) const STACK_BYTES: usize = 128 * 1024;

/// Echoes by blocking calls, until the peer closes or fails.
pub(crate) fn serve_blocking(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    loop {
        let Ok(count @ 1..) = stream.read(&mut buffer) else { return };
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Listens on a free port of the loopback interface.
pub(crate) fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Accepts one connection and turns Nagle's algorithm off on it.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
