//! What is TCP's own: binding, connecting, options.

use std::{io, net::SocketAddr, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt},
};

use super::{
    listener::Listener,
    socket::{self, ListenerSocket, Socket, StreamSocket, sealed::Sealed},
    stream::Stream,
};
use crate::server::Server;

/// A TCP connection. What it shares with Unix ones is at [`Stream`].
pub type TcpStream = Stream<std::net::TcpStream>;

/// A socket that brings [`TcpStream`]s. What it shares with Unix ones is at [`Listener`].
pub type TcpListener = Listener<std::net::TcpListener>;

/// How many connections the kernel queues for a listener, if `net.core.somaxconn` allows.
const BACKLOG: i32 = 1024;

impl TcpListener {
    /// Listens on `address`; port 0 lets the kernel choose one, which
    /// [`local_addr`](Listener::local_addr) tells. The address may be one that a closed connection
    /// still lingers at (`SO_REUSEADDR`). Up to 1024 connections wait to be accepted.
    ///
    /// # Errors
    /// The kernel's: [`io::ErrorKind::AddrInUse`], [`io::ErrorKind::AddrNotAvailable`],
    /// [`io::ErrorKind::PermissionDenied`] for a port below 1024. As
    /// [`AsyncFd::new`](crate::AsyncFd::new).
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_on(&Server::current()?, address)
    }

    /// Like [`bind`](Self::bind), watched at `server`.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_on(server: &Server, address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Self::from_std_on(server, socket.into())
    }
}

impl TcpStream {
    /// Connects to `address`, on the server that is current at the first poll.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future gives the connection up.
    ///
    /// # Errors
    /// The kernel's: [`io::ErrorKind::ConnectionRefused`], [`io::ErrorKind::TimedOut`] after minutes,
    /// [`io::ErrorKind::AddrNotAvailable`] if no port is left. As
    /// [`AsyncFd::new`](crate::AsyncFd::new).
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_on(&Server::current()?, address).await
    }

    /// Like [`connect`](Self::connect), watched at `server`.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_on(server: &Server, address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address)?;
        // Watched only once it connects: epoll announces a socket that does not as hung up.
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            // The kernel's word for having no port left, which is not to be waited for.
            Err(Errno::AGAIN) => return Err(Errno::ADDRNOTAVAIL.into()),
            Err(error) => return Err(error.into()),
        }
        Self::connected(server, socket.into()).await
    }

    /// Returns whether small writes are sent at once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(sockopt::tcp_nodelay(self)?)
    }

    /// Sets whether small writes are sent at once (`TCP_NODELAY`), instead of being gathered until the
    /// peer acknowledges earlier ones. Default off.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(self, is_on)?)
    }

    /// Returns how many hops an IPv4 packet may take.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(sockopt::ip_ttl(self)?)
    }

    /// Sets how many hops an IPv4 packet may take, 1 to 255.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_ttl(self, hops)?)
    }

    /// Returns how long a closed connection tries to deliver what was written.
    ///
    /// # Errors
    /// The kernel's.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_linger(self)?)
    }

    /// Sets how long a closed connection tries to deliver what was written (`SO_LINGER`), in whole
    /// seconds, rounded up. Default `None`: as long as TCP does. Zero resets the connection, with all
    /// that was not delivered lost. Anything longer makes the drop of the stream block its thread.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_linger(&self, time: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(self, time)?)
    }
}

fn new_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?)
}

impl Sealed for std::net::TcpStream {}

impl Socket for std::net::TcpStream {
    type Address = SocketAddr;

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }
}

impl StreamSocket for std::net::TcpStream {
    /// A read also ends before urgent data, with bytes behind them; but the wait point announces those
    /// (`EPOLLPRI`), and the source knows what to do.
    const SHORT_READ_EMPTIES: bool = true;

    fn peer_address(&self) -> io::Result<SocketAddr> {
        self.peer_addr()
    }
}

impl Sealed for std::net::TcpListener {}

impl Socket for std::net::TcpListener {
    type Address = SocketAddr;

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
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
