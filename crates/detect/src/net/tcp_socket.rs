//! TCP sockets before they are connected or listen.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt},
};

use super::{
    refused, simulated,
    tcp::{TcpListener, TcpStream},
};
use crate::{network::NetworkSocket, server::Server};

/// A TCP socket that is not yet connected and does not listen, for options that must be set before.
///
/// It is in non-blocking mode and closed on exec. Nothing watches it until it becomes a [`TcpStream`] or
/// [`TcpListener`]. For options without a method here, it is [`AsFd`], as `socket2::SockRef` requires.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use vigie_detect::net::TcpSocket;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let host = vigie_detect::Server::spawn_thread()?;
/// # let _entered = host.server().enter();
/// let socket = TcpSocket::new_v4()?;
/// socket.set_reuseaddr(true)?;
/// socket.bind("127.0.0.1:0".parse()?)?;
/// let listener = socket.listen(128)?;
///
/// let socket = TcpSocket::new_v4()?;
/// socket.set_keepalive_time(Duration::from_secs(30))?;
/// let stream = socket.connect(listener.local_addr()?).await?;
/// # drop(stream);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TcpSocket {
    /// In virtual time: dropped first, since the descriptor is its name, which has its options.
    simulated: Option<NetworkSocket>,
    fd: OwnedFd,
}

/// Options of a socket, each a pair of a getter and a setter.
macro_rules! options {
    ($($(#[doc = $doc:literal])+ $get:ident, $set:ident: $kind:ty = $read:path, $write:path;)+) => {$(
        #[doc = concat!("Returns what [`", stringify!($set), "`](Self::", stringify!($set), ") sets.")]
        ///
        /// # Errors
        /// The kernel's error.
        pub fn $get(&self) -> io::Result<$kind> {
            Ok($read(&self.fd)?)
        }

        $(#[doc = $doc])+
        ///
        /// # Errors
        /// The kernel's error.
        pub fn $set(&self, value: $kind) -> io::Result<()> {
            Ok($write(&self.fd, value)?)
        }
    )+};
}

impl TcpSocket {
    /// Creates a socket for IPv4.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new_v4() -> io::Result<Self> {
        Self::of_family(Server::current().ok().as_ref(), AddressFamily::INET)
    }

    /// Creates a socket for IPv6.
    ///
    /// # Errors
    /// Out of descriptors or memory; the kernel has no IPv6 ([`io::ErrorKind::Unsupported`] or `EAFNOSUPPORT`).
    pub fn new_v6() -> io::Result<Self> {
        Self::of_family(Server::current().ok().as_ref(), AddressFamily::INET6)
    }

    pub(super) fn for_address(server: &Server, address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        Self::of_family(Some(server), family)
    }

    fn of_family(server: Option<&Server>, family: AddressFamily) -> io::Result<Self> {
        if let Some(server) = server
            && let Some((fd, simulated)) = simulated::tcp(server)?
        {
            return Ok(Self { simulated: Some(simulated), fd });
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        Ok(Self { simulated: None, fd })
    }

    /// Refuses a server of another world than the socket's.
    fn require_world_of(&self, server: &Server) -> io::Result<()> {
        if self.simulated.is_some() == server.is_virtual() {
            return Ok(());
        }
        Err(simulated::unsupported("one of socket and server is simulated, the other is not"))
    }

    /// Hands the options on that are the network's, not the descriptor's.
    fn finished(
        simulated: Option<NetworkSocket>,
        fd: &OwnedFd,
    ) -> io::Result<Option<NetworkSocket>> {
        let Some(simulated) = simulated else { return Ok(None) };
        simulated.reset_on_drop(sockopt::socket_linger(fd)? == Some(Duration::ZERO));
        Ok(Some(simulated))
    }

    /// Takes over a socket that is not connected, for example one that `socket2` made, and puts it into non-blocking
    /// mode.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn from_std_stream(socket: std::net::TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { simulated: None, fd: socket.into() })
    }

    options! {
        /// Sets whether the address may be one on which a closed connection still lingers (`SO_REUSEADDR`). Default off;
        /// [`TcpListener::bind`] turns it on.
        reuseaddr, set_reuseaddr: bool = sockopt::socket_reuseaddr, sockopt::set_socket_reuseaddr;
        /// Sets whether several sockets may listen at one address, among which the kernel spreads connections
        /// (`SO_REUSEPORT`). Default off.
        reuseport, set_reuseport: bool = sockopt::socket_reuseport, sockopt::set_socket_reuseport;
        /// Sets whether an idle connection is probed (`SO_KEEPALIVE`). Default off.
        keepalive, set_keepalive: bool = sockopt::socket_keepalive, sockopt::set_socket_keepalive;
        /// Sets whether small writes are sent at once (`TCP_NODELAY`). Default off.
        nodelay, set_nodelay: bool = sockopt::tcp_nodelay, sockopt::set_tcp_nodelay;
        /// Sets how long a closed connection keeps trying to deliver written data (`SO_LINGER`), in whole seconds, rounded
        /// up. Default `None`: as long as TCP does. Zero resets the connection.
        linger, set_linger: Option<Duration> = sockopt::socket_linger, sockopt::set_socket_linger;
        /// Sets how long a connection is idle before it is probed (`TCP_KEEPIDLE`), in whole seconds. Default two hours.
        /// [`set_keepalive`](Self::set_keepalive) turns probing on.
        keepalive_time, set_keepalive_time: Duration = sockopt::tcp_keepidle, sockopt::set_tcp_keepidle;
        /// Sets the interval between probes (`TCP_KEEPINTVL`), in whole seconds. Default 75 s.
        keepalive_interval, set_keepalive_interval: Duration = sockopt::tcp_keepintvl, sockopt::set_tcp_keepintvl;
        /// Sets how many probes may stay without an answer (`TCP_KEEPCNT`). Default 9.
        keepalive_retries, set_keepalive_retries: u32 = sockopt::tcp_keepcnt, sockopt::set_tcp_keepcnt;
        /// Sets the IPv4 field of the type of service (`IP_TOS`). Default 0.
        tos_v4, set_tos_v4: u8 = sockopt::ip_tos, sockopt::set_ip_tos;
        /// Sets the IPv6 field of the traffic class (`IPV6_TCLASS`). Default 0.
        tclass_v6, set_tclass_v6: u32 = sockopt::ipv6_tclass, sockopt::set_ipv6_tclass;
    }

    /// Sets the size of the send buffer in bytes (`SO_SNDBUF`). The kernel doubles it, up to `net.core.wmem_max`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_send_buffer_size(&self, size: u32) -> io::Result<()> {
        if let Some(simulated) = &self.simulated {
            return simulated.buffers(|buffers| buffers.send = size.max(1) as usize);
        }
        Ok(sockopt::set_socket_send_buffer_size(&self.fd, size as usize)?)
    }

    /// Returns the size of the send buffer in bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        if let Some(simulated) = &self.simulated {
            return simulated.buffers(|buffers| u32::try_from(buffers.send).unwrap_or(u32::MAX));
        }
        let size = sockopt::socket_send_buffer_size(&self.fd)?;
        Ok(u32::try_from(size).unwrap_or(u32::MAX))
    }

    /// Sets the size of the receive buffer in bytes (`SO_RCVBUF`). The kernel doubles it, up to `net.core.rmem_max`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_recv_buffer_size(&self, size: u32) -> io::Result<()> {
        if let Some(simulated) = &self.simulated {
            return simulated.buffers(|buffers| buffers.receive = size.max(1) as usize);
        }
        Ok(sockopt::set_socket_recv_buffer_size(&self.fd, size as usize)?)
    }

    /// Returns the size of the receive buffer in bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn recv_buffer_size(&self) -> io::Result<u32> {
        if let Some(simulated) = &self.simulated {
            return simulated.buffers(|buffers| u32::try_from(buffers.receive).unwrap_or(u32::MAX));
        }
        let size = sockopt::socket_recv_buffer_size(&self.fd)?;
        Ok(u32::try_from(size).unwrap_or(u32::MAX))
    }

    /// Returns the address to which the socket is bound.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        if let Some(simulated) = &self.simulated {
            return simulated.local_addr();
        }
        let address = rustix::net::getsockname(&self.fd)?;
        Ok(SocketAddr::try_from(address)?)
    }

    /// Takes the socket's pending error.
    ///
    /// # Errors
    /// The kernel's error, if the socket no longer exists.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        super::socket::take_error(&self.fd)
    }

    /// Binds the socket to `address`; port 0 lets the kernel choose one.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::AddrInUse`], [`io::ErrorKind::AddrNotAvailable`],
    /// [`io::ErrorKind::PermissionDenied`] for a port below 1024; the message of these names the address and the remedy.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        if let Some(simulated) = &self.simulated {
            return simulated.bind(address).map_err(|error| refused::bind(address, error));
        }
        rustix::net::bind(&self.fd, &address).map_err(|error| refused::bind(address, error))
    }

    /// Connects to `address`, on the server that is current at the first poll.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future abandons the connection.
    ///
    /// # Errors
    /// Same as [`TcpStream::connect`].
    pub async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        self.connect_on(&Server::current()?, address).await
    }

    /// Like [`connect`](Self::connect), watched at `server`.
    ///
    /// # Cancel safety
    /// Same as [`connect`](Self::connect).
    ///
    /// # Errors
    /// Same as [`TcpStream::connect`].
    pub async fn connect_on(self, server: &Server, address: SocketAddr) -> io::Result<TcpStream> {
        self.require_world_of(server)?;
        if let Some(simulated) = Self::finished(self.simulated, &self.fd)? {
            simulated.connect(address)?;
            return TcpStream::connected(server, self.fd.into(), Some(simulated)).await;
        }
        // Watched only once it connects: epoll reports a socket that does not as hung up.
        match rustix::net::connect(&self.fd, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            // The kernel's code for "no port left"; waiting would not help.
            Err(Errno::AGAIN) => return Err(Errno::ADDRNOTAVAIL.into()),
            Err(error) => return Err(error.into()),
        }
        TcpStream::connected(server, self.fd.into(), None).await
    }

    /// Listens; up to `backlog` connections wait to be accepted, if `net.core.somaxconn` allows.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::AddrInUse`]. Also the errors of [`AsyncFd::new`](crate::AsyncFd::new).
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        self.listen_on(&Server::current()?, backlog)
    }

    /// Like [`listen`](Self::listen), watched at `server`.
    ///
    /// # Errors
    /// Same as [`listen`](Self::listen).
    pub fn listen_on(self, server: &Server, backlog: u32) -> io::Result<TcpListener> {
        self.require_world_of(server)?;
        if let Some(simulated) = self.simulated {
            simulated.listen(backlog)?;
            return TcpListener::simulated(server, self.fd.into(), simulated);
        }
        rustix::net::listen(&self.fd, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        TcpListener::from_std_on(server, self.fd.into())
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for TcpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl From<TcpSocket> for OwnedFd {
    fn from(socket: TcpSocket) -> Self {
        socket.fd
    }
}
