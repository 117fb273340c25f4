//! Listeners: sockets that accept connections.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    task::{Context, Poll, ready},
};

use super::{
    socket::{self, ListenerSocket},
    stream::Stream,
};
use crate::{budget, builtin::Direction, server::Server, stock::AsyncFd};

/// A socket that accepts connections: [`TcpListener`](super::TcpListener) or
/// [`UnixListener`](super::UnixListener).
///
/// Any number of tasks may accept at once.
pub struct Listener<L: ListenerSocket> {
    fd: AsyncFd<L>,
}

impl<L: ListenerSocket> Listener<L> {
    socket::shared_methods!(L);

    /// Takes over a listening socket and puts it into non-blocking mode.
    ///
    /// # Errors
    /// Same as [`AsyncFd::new`].
    pub fn from_std(socket: L) -> io::Result<Self> {
        Self::from_std_on(&Server::current()?, socket)
    }

    /// Like [`from_std`](Self::from_std), on `server`.
    ///
    /// # Errors
    /// Same as [`AsyncFd::new`].
    pub fn from_std_on(server: &Server, socket: L) -> io::Result<Self> {
        Ok(Self { fd: AsyncFd::new_on(server, socket::unblocked(socket)?)? })
    }

    /// Returns the descriptor, for operations of other kinds.
    #[must_use]
    pub const fn as_async_fd(&self) -> &AsyncFd<L> {
        &self.fd
    }

    /// Returns the address on which it listens.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn local_addr(&self) -> io::Result<L::Address> {
        self.fd.as_inner().local_address()
    }

    /// Accepts a connection and returns it with its peer's address. The connection is watched at
    /// the listener's own server.
    ///
    /// Skips connections that failed before they could be accepted.
    ///
    /// # Cancel safety
    /// Cancel safe: a connection is either returned or still queued.
    ///
    /// # Errors
    /// The listener stays usable after every error. These are worth acting on:
    ///
    /// - Out of descriptors or memory (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`): the connection stays
    ///   queued, and the next call fails at once in the same way until something is freed. So wait a
    ///   while, or until one of your connections is closed, before you accept again; otherwise the
    ///   loop would be busy.
    /// - [`io::ErrorKind::NotConnected`]: the server was shut down; no later call can succeed.
    /// - If the connection cannot be watched (`ENOSPC`, when `max_user_watches` is reached), it is
    ///   closed.
    ///
    /// # Examples
    /// ```
    /// # use std::{io, time::Duration};
    /// use vigie_detect::net::TcpListener;
    ///
    /// async fn serve(listener: TcpListener) -> io::Result<()> {
    ///     loop {
    ///         match listener.accept().await {
    ///             Ok((stream, _address)) => drop(stream), // Spawn a task that serves it.
    ///             Err(error) if error.kind() == io::ErrorKind::NotConnected => return Err(error),
    ///             Err(error) => {
    ///                 eprintln!("cannot accept for the moment: {error}");
    ///                 tokio::time::sleep(Duration::from_millis(100)).await;
    ///             }
    ///         }
    ///     }
    /// }
    /// # let _ = serve;
    /// ```
    pub async fn accept(&self) -> io::Result<(Stream<L::Stream>, L::Address)> {
        let accepted = self.fd.async_io(Direction::Read, ListenerSocket::accept_one).await?;
        self.watch(accepted)
    }

    /// The poll-style [`accept`](Self::accept); one waiting task.
    ///
    /// # Errors
    /// Same as [`accept`](Self::accept).
    #[expect(clippy::type_complexity, reason = "it is what `accept` returns, polled")]
    pub fn poll_accept(
        &self,
        cx: &Context<'_>,
    ) -> Poll<io::Result<(Stream<L::Stream>, L::Address)>> {
        let accepted = ready!(self.fd.poll_io(Direction::Read, cx, ListenerSocket::accept_one))?;
        Poll::Ready(self.watch(accepted))
    }

    /// Accepts a connection that is already queued.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no connection; otherwise as
    /// [`accept`](Self::accept).
    pub fn try_accept(&self) -> io::Result<(Stream<L::Stream>, L::Address)> {
        self.watch(self.fd.try_io(Direction::Read, ListenerSocket::accept_one)?)
    }

    fn watch(
        &self,
        (socket, address): (L::Stream, L::Address),
    ) -> io::Result<(Stream<L::Stream>, L::Address)> {
        // Including the kernel's work for the connection, some 10 µs.
        budget::note_long();
        Ok((Stream::watched_by(self.fd.readiness(), socket)?, address))
    }
}

impl<L: ListenerSocket> AsFd for Listener<L> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<L: ListenerSocket> AsRawFd for Listener<L> {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl<L: ListenerSocket> fmt::Debug for Listener<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(self.fd.as_inner()).finish()
    }
}
