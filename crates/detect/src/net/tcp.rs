//! TCP specifics: binding, connecting, options.

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

/// A TCP connection. Methods shared with Unix connections are at [`Stream`].
pub type TcpStream = Stream<std::net::TcpStream>;

/// A socket that accepts [`TcpStream`]s. Methods shared with Unix listeners are at [`Listener`].
pub type TcpListener = Listener<std::net::TcpListener>;

/// How many connections the kernel queues for a listener, if `net.core.somaxconn` allows.
const BACKLOG: i32 = 1024;

impl TcpListener {
    /// Listens on `address`. With port 0 the kernel chooses one, which
    /// [`local_addr`](Listener::local_addr) returns. The address may be one on which a closed
    /// connection still lingers (`SO_REUSEADDR`). Up to 1024 connections wait to be accepted.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::AddrInUse`], [`io::ErrorKind::AddrNotAvailable`],
    /// [`io::ErrorKind::PermissionDenied`] for a port below 1024. Also the errors of
    /// [`AsyncFd::new`](crate::AsyncFd::new).
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_on(&Server::current()?, address)
    }

    /// Like [`bind`](Self::bind), watched at `server`.
    ///
    /// # Errors
    /// Same as [`bind`](Self::bind).
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
    /// Cancel safe: dropping the future abandons the connection.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::ConnectionRefused`], [`io::ErrorKind::TimedOut`] after
    /// minutes, [`io::ErrorKind::AddrNotAvailable`] if no port is left. Also the errors of
    /// [`AsyncFd::new`](crate::AsyncFd::new).
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_on(&Server::current()?, address).await
    }

    /// Like [`connect`](Self::connect), watched at `server`.
    ///
    /// # Cancel safety
    /// Same as [`connect`](Self::connect).
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect).
    pub async fn connect_on(server: &Server, address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address)?;
        // Watched only once it connects: epoll reports a socket that does not as hung up.
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            // The kernel's code for "no port left"; waiting would not help.
            Err(Errno::AGAIN) => return Err(Errno::ADDRNOTAVAIL.into()),
            Err(error) => return Err(error.into()),
        }
        Self::connected(server, socket.into()).await
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
    /// A read also ends before urgent data, with bytes behind it; but the poller announces that
    /// (`EPOLLPRI`), and the source takes it into account.
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
