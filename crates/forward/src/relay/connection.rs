//! One type for TCP and Unix streams, and one for their listeners.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    task::{Context, Poll},
    time::Duration,
};

use rustix::pipe::{SpliceFlags, splice};
use vigie_detect::{
    Server,
    detectors::readiness::Direction,
    net::{TcpStream, UnixStream},
};

use super::{
    endpoint::Endpoint,
    pipes::Pipe,
    stream::RelayStream,
    sys::{set_low_water, unsent_bytes},
};

/// A connected stream: TCP or Unix.
#[derive(Debug)]
#[non_exhaustive]
pub enum Connection {
    /// A TCP stream.
    Tcp(TcpStream),
    /// A Unix socket, within the host.
    Unix(UnixStream),
}

impl Connection {
    /// Connects to `endpoint`, watched by `server`. Small writes are sent at once (`TCP_NODELAY`): a relay must not add
    /// the delay of Nagle's algorithm to that of the sender.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future abandons the connection.
    ///
    /// # Errors
    /// As [`TcpStream::connect`] and [`UnixStream::connect`].
    pub async fn connect_on(server: &Server, endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect_on(server, *address).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Endpoint::Unix(path) => Ok(Self::Unix(UnixStream::connect_on(server, path).await?)),
        }
    }

    /// Returns the addresses of both ends, the peer's first, if it is TCP and not reset. Those of IPv4 are IPv4 also if a dual-stack
    /// listener has accepted it.
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Tcp(stream) => {
                Some((unmapped(stream.peer_addr().ok()?), unmapped(stream.local_addr().ok()?)))
            }
            Self::Unix(_) => None,
        }
    }
}

/// Returns the IPv4 address that an IPv6 address stands for, or the address.
pub(super) fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        // With its scope.
        IpAddr::V6(_) => address,
    }
}

impl From<TcpStream> for Connection {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Connection {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

/// The same for both kinds of stream.
macro_rules! either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self {
            Self::Tcp($stream) => $call,
            Self::Unix($stream) => $call,
        }
    };
}

/// The flags with which bytes are spliced.
const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

impl RelayStream for Connection {
    fn poll_readable(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read_ready(cx))
    }

    fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => retry(|| stream.try_read(room), || stream.poll_read_ready(cx)))
    }

    fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => retry(|| stream.try_write(bytes), || stream.poll_write_ready(cx)))
    }

    fn wake_at(&self, bytes: usize) {
        // A Unix socket wakes its reader for each byte.
        if let Self::Tcp(stream) = self {
            set_low_water(stream, bytes);
        }
    }

    /// The pipe is empty, so only the socket can block.
    fn poll_fill(&self, cx: &Context<'_>, pipe: &Pipe, bytes: usize) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.as_async_fd().poll_io(Direction::Read, cx, |socket| {
            Ok(splice(socket, None, pipe.inlet(), None, bytes, FLAGS)?)
        }))
    }

    /// The pipe holds bytes, so only the socket can block.
    fn poll_empty(&self, cx: &Context<'_>, pipe: &Pipe, bytes: usize) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.as_async_fd().poll_io(Direction::Write, cx, |socket| {
            Ok(splice(pipe.outlet(), None, socket, None, bytes, FLAGS)?)
        }))
    }

    fn poll_finish(&self, _: &Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(either!(self, stream => stream.finish_writing()))
    }

    /// Makes dropping it reset the connection. Unix sockets have no reset: the peer sees an error only if bytes of its
    /// own were left unread here.
    fn reset(&self) {
        if let Self::Tcp(stream) = self {
            // A connection that has ended needs no reset.
            let _ = stream.set_linger(Some(Duration::ZERO));
        }
    }

    fn unsent_bytes(&self) -> usize {
        match self {
            Self::Tcp(stream) => match stream.simulated_unsent_bytes() {
                Some(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
                None => unsent_bytes(stream).unwrap_or(0),
            },
            // Written bytes are in the peer's queue, and no reset removes them.
            Self::Unix(_) => 0,
        }
    }

    fn can_splice(&self) -> bool {
        true
    }
}

/// Tries, and waits if the attempt would block. The attempt clears the readiness that it used up.
fn retry(
    mut attempt: impl FnMut() -> io::Result<usize>,
    ready: impl Fn() -> Poll<io::Result<()>>,
) -> Poll<io::Result<usize>> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::task::ready!(ready())?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => return Poll::Ready(ended),
        }
    }
}
