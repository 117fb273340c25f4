//! TCP specifics: binding, connecting, options.

use std::{io, net::SocketAddr, time::Duration};

use rustix::net::sockopt;

use super::{
    connect::first_connected,
    halves,
    listener::Listener,
    lookup::{self, ToSocketAddrs},
    socket::{self, ListenerSocket, Socket, StreamSocket, sealed::Sealed},
    stream::Stream,
    tcp_socket::TcpSocket,
};
use crate::server::Server;

/// A TCP connection. Methods shared with Unix connections are at [`Stream`].
pub type TcpStream = Stream<std::net::TcpStream>;

/// A socket that accepts [`TcpStream`]s. Methods shared with Unix listeners are at [`Listener`].
pub type TcpListener = Listener<std::net::TcpListener>;

/// The number of connections that the kernel queues for a listener, if `net.core.somaxconn` allows.
const BACKLOG: u32 = 1024;

/// The read half of a borrowed stream.
pub type ReadHalf<'a> = halves::ReadHalf<'a, std::net::TcpStream>;

/// The write half of a borrowed stream.
pub type WriteHalf<'a> = halves::WriteHalf<'a, std::net::TcpStream>;

/// The read half of a stream.
pub type OwnedReadHalf = halves::OwnedReadHalf<std::net::TcpStream>;

/// The write half of a stream.
pub type OwnedWriteHalf = halves::OwnedWriteHalf<std::net::TcpStream>;

/// The error if the halves belong to different streams.
pub type ReuniteError = halves::ReuniteError<std::net::TcpStream>;

impl TcpListener {
    /// Listens on `address`, or on the first of its addresses on which that is possible. With port 0 the kernel chooses
    /// one, which [`local_addr`](Listener::local_addr) returns. The address may be one on which a closed connection still
    /// lingers (`SO_REUSEADDR`). Up to 1024 connections wait to be accepted; [`TcpSocket`] sets other options.
    ///
    /// # Cancel safety
    /// Cancel safe. It waits only for the lookup of a name.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::AddrInUse`], [`io::ErrorKind::AddrNotAvailable`],
    /// [`io::ErrorKind::PermissionDenied`] for a port below 1024; the message of these names the address and the remedy. Also the errors of [`lookup_host`](super::lookup_host)
    /// and [`AsyncFd::new`](crate::AsyncFd::new).
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let server = Server::current()?;
        let addresses = lookup::resolve(Some(&server), &address).await?;
        lookup::first_of(addresses, |address| Self::bind_on(&server, address))
    }

    /// Like [`bind`](Self::bind), watched at `server`, and for an address that is known.
    ///
    /// # Errors
    /// Same as [`bind`](Self::bind), apart from the lookup.
    pub fn bind_on(server: &Server, address: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::for_address(server, address)?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen_on(server, BACKLOG)
    }

    /// Returns how many hops an IPv4 packet of an accepted connection may take.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(sockopt::ip_ttl(self)?)
    }

    /// Sets how many hops an IPv4 packet of an accepted connection may take, 1 to 255.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_ttl(self, hops)?)
    }
}

impl TcpStream {
    /// Connects to `address`, on the server that is current at the first poll. [`TcpSocket`] sets options before.
    ///
    /// A host with several addresses is tried as RFC 8305 says ("happy eyeballs"): IPv6 and IPv4 in turn, the next attempt
    /// as soon as the last one fails, or beside it after 250 ms; the first connection wins.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future abandons the connection.
    ///
    /// # Errors
    /// The kernel's error for the attempt that failed last: [`io::ErrorKind::ConnectionRefused`],
    /// [`io::ErrorKind::TimedOut`] after minutes, [`io::ErrorKind::AddrNotAvailable`] if no port is left. Also the errors of
    /// [`lookup_host`](super::lookup_host) and [`AsyncFd::new`](crate::AsyncFd::new).
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_on(&Server::current()?, address).await
    }

    /// Like [`connect`](Self::connect), watched at `server`.
    ///
    /// # Cancel safety
    /// Same as [`connect`](Self::connect).
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect).
    pub async fn connect_on(server: &Server, address: impl ToSocketAddrs) -> io::Result<Self> {
        let addresses = lookup::resolve(Some(server), &address).await?;
        first_connected(server, addresses, |address| async move {
            TcpSocket::for_address(server, address)?.connect_on(server, address).await
        })
        .await
    }

    /// Returns whether small writes are sent at once.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(sockopt::tcp_nodelay(self)?)
    }

    /// Sets whether small writes are sent at once (`TCP_NODELAY`), instead of being gathered until the
    /// peer acknowledges earlier ones. Default off.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(self, is_on)?)
    }

    /// Returns how many hops an IPv4 packet may take.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(sockopt::ip_ttl(self)?)
    }

    /// Sets how many hops an IPv4 packet may take, 1 to 255.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_ttl(self, hops)?)
    }

    /// Returns how long a closed connection keeps trying to deliver written data.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_linger(self)?)
    }

    /// Sets how long a closed connection keeps trying to deliver written data (`SO_LINGER`), in whole
    /// seconds, rounded up. Default `None`: as long as TCP does. Zero resets the connection and loses
    /// all undelivered data. A longer time makes the drop of the stream block its thread.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_linger(&self, time: Option<Duration>) -> io::Result<()> {
        if let Some(simulated) = self.as_simulated() {
            simulated.reset_on_drop(time == Some(Duration::ZERO));
        }
        Ok(sockopt::set_socket_linger(self, time)?)
    }
}

impl TryFrom<std::net::TcpStream> for TcpStream {
    type Error = io::Error;

    /// The same as `from_std`.
    fn try_from(socket: std::net::TcpStream) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl Sealed for std::net::TcpStream {}

impl Socket for std::net::TcpStream {
    type Address = SocketAddr;

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn simulated_address(address: SocketAddr, _: Option<Vec<u8>>) -> SocketAddr {
        address
    }
}

impl StreamSocket for std::net::TcpStream {
    /// A read also ends before urgent data, with bytes behind it; but the poller announces that
    /// (`EPOLLPRI`), and the source takes it into account.
    const SHORT_READ_EMPTIES: bool = true;

    fn peer_address(&self) -> io::Result<SocketAddr> {
        self.peer_addr()
    }
}

impl TryFrom<std::net::TcpListener> for TcpListener {
    type Error = io::Error;

    /// The same as `from_std`.
    fn try_from(socket: std::net::TcpListener) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl Sealed for std::net::TcpListener {}

impl Socket for std::net::TcpListener {
    type Address = SocketAddr;

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn simulated_address(address: SocketAddr, _: Option<Vec<u8>>) -> SocketAddr {
        address
    }
}

impl ListenerSocket for std::net::TcpListener {
    type Stream = std::net::TcpStream;

    fn accept_one(&self) -> io::Result<(std::net::TcpStream, SocketAddr)> {
        let (connection, address) = socket::accept(self)?;
        let stream = std::net::TcpStream::from(connection);
        let address = match address.map(SocketAddr::try_from) {
            Some(Ok(address)) => address,
            Some(Err(_)) | None => stream.peer_addr()?,
        };
        Ok((stream, address))
    }
}
