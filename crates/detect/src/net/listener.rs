//! Listeners: sockets that accept connections.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    task::{Context, Poll, ready},
};

use super::{
    simulated,
    socket::{self, ListenerSocket, Socket},
    stream::Stream,
};
use crate::{
    budget, builtin::Direction, detectors::AsyncFd, network::NetworkSocket, server::Server,
};

/// A connection of the kernel, or the name and the connection of a simulated one; and its peer.
type Accepted<L> = (<L as ListenerSocket>::Stream, Option<NetworkSocket>, <L as Socket>::Address);

/// A socket that accepts connections: [`TcpListener`](super::TcpListener) or
/// [`UnixListener`](super::UnixListener).
///
/// Any number of tasks may accept at once.
pub struct Listener<L: ListenerSocket> {
    /// In virtual time: dropped first, since the descriptor is its name.
    simulated: Option<NetworkSocket>,
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
        let fd = AsyncFd::new_on(server, socket::unblocked(socket)?)?;
        Ok(Self { simulated: None, fd })
    }

    /// Takes over a listener of the simulated network, known by `name`.
    pub(super) fn simulated(
        server: &Server,
        name: L,
        simulated: NetworkSocket,
    ) -> io::Result<Self> {
        Ok(Self { simulated: Some(simulated), fd: AsyncFd::new_on(server, name)? })
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
        match &self.simulated {
            None => self.fd.as_inner().local_address(),
            Some(simulated) => simulated::local_address::<L::Stream>(simulated),
        }
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
        let accepted = self.fd.async_io(Direction::Read, |socket| self.accept_one(socket)).await?;
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
        let accept = |socket: &L| self.accept_one(socket);
        let accepted = ready!(self.fd.poll_io(Direction::Read, cx, accept))?;
        Poll::Ready(self.watch(accepted))
    }

    /// Watches it anew, at the same server: the next [`try_accept`](Self::try_accept) asks the kernel, even if no connection was
    /// announced.
    ///
    /// # Errors
    /// Same as [`AsyncFd::new`].
    pub fn watched_anew(self) -> io::Result<Self> {
        let Self { simulated, fd } = self;
        let readiness = fd.readiness().clone();
        Ok(Self { simulated, fd: AsyncFd::watched_by(&readiness, fd.into_inner())? })
    }

    /// Accepts a connection that is already queued.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no connection; otherwise as
    /// [`accept`](Self::accept).
    pub fn try_accept(&self) -> io::Result<(Stream<L::Stream>, L::Address)> {
        self.watch(self.fd.try_io(Direction::Read, |socket| self.accept_one(socket))?)
    }

    fn accept_one(&self, socket: &L) -> io::Result<Accepted<L>> {
        let Some(simulated) = &self.simulated else {
            let (socket, address) = socket.accept_one()?;
            return Ok((socket, None, address));
        };
        let name = simulated::tcp_name()?;
        let (connection, address) = simulated.accept(name.as_raw_fd())?;
        let address = simulated::address::<L::Stream>(&connection, address);
        Ok((name.into(), Some(connection), address))
    }

    fn watch(
        &self,
        (socket, simulated, address): Accepted<L>,
    ) -> io::Result<(Stream<L::Stream>, L::Address)> {
        // Including the kernel's work for the connection, some 10 µs.
        budget::note_long();
        let stream = match simulated {
            None => Stream::watched_by(self.fd.readiness(), socket)?,
            Some(simulated) => Stream::simulated(self.fd.readiness(), socket, simulated)?,
        };
        Ok((stream, address))
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
        match &self.simulated {
            None => f.debug_tuple("Listener").field(self.fd.as_inner()).finish(),
            Some(simulated) => f.debug_tuple("Listener").field(simulated).finish(),
        }
    }
}
