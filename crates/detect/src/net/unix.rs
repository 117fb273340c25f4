//! Unix socket specifics: paths, pairs, credentials.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::{ffi::OsStrExt, net},
    },
    path::Path,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, addr::SocketAddrLen,
        socket_with,
    },
};

use super::{
    datagram::Datagram,
    halves,
    listener::Listener,
    refused, simulated,
    socket::{self, DatagramSocket, ListenerSocket, Socket, StreamSocket, sealed::Sealed},
    stream::Stream,
};
pub use std::os::unix::net::SocketAddr;

pub use self::PeerCredentials as UCred;
pub use super::pipe;
use crate::{detectors::AsyncFd, network::NetworkSocket, server::Server};

/// A connection within the host. Methods shared with TCP connections are at [`Stream`].
pub type UnixStream = Stream<net::UnixStream>;

/// A socket that accepts [`UnixStream`]s. Methods shared with TCP listeners are at [`Listener`].
///
/// The socket file is not removed when it is dropped, nor before it is bound.
pub type UnixListener = Listener<net::UnixListener>;

/// A datagram socket within the host. Methods shared with UDP sockets are at [`Datagram`].
///
/// The socket file is not removed when it is dropped, nor before it is bound.
pub type UnixDatagram = Datagram<net::UnixDatagram>;

/// The read half of a borrowed stream.
pub type ReadHalf<'a> = halves::ReadHalf<'a, net::UnixStream>;

/// The write half of a borrowed stream.
pub type WriteHalf<'a> = halves::WriteHalf<'a, net::UnixStream>;

/// The read half of a stream.
pub type OwnedReadHalf = halves::OwnedReadHalf<net::UnixStream>;

/// The write half of a stream.
pub type OwnedWriteHalf = halves::OwnedWriteHalf<net::UnixStream>;

/// The error if the halves belong to different streams.
pub type ReuniteError = halves::ReuniteError<net::UnixStream>;

impl UnixListener {
    /// Listens at `path`, where it creates a file. A path that begins with a NUL byte is an abstract name, without a file
    /// [unix(7)]; this is so for all Unix sockets.
    ///
    /// # Errors
    /// The kernel's error, which names the path and the remedy: [`io::ErrorKind::AddrInUse`] if there already is a file,
    /// even one left by an earlier listener; [`io::ErrorKind::NotFound`] if there is no such folder;
    /// [`io::ErrorKind::PermissionDenied`]; [`io::ErrorKind::InvalidFilename`] for a path of more than 107 bytes. Also the
    /// errors of [`AsyncFd::new`](crate::AsyncFd::new).
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_on(&Server::current()?, path)
    }

    /// Like [`bind`](Self::bind), watched at `server`.
    ///
    /// # Errors
    /// Same as [`bind`](Self::bind).
    pub fn bind_on(server: &Server, path: impl AsRef<Path>) -> io::Result<Self> {
        let socket = UnixSocket::of_kind(Some(server), SocketType::STREAM)?;
        socket.bind(path)?;
        socket.listen_on(server, BACKLOG)
    }
}

impl UnixStream {
    /// Connects to the listener at `path`, on the current server. The kernel connects immediately:
    /// the future never waits.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// The kernel's error, which names the path and the remedy: [`io::ErrorKind::NotFound`] if there is no such file,
    /// [`io::ErrorKind::ConnectionRefused`] if no socket listens there, [`io::ErrorKind::PermissionDenied`] without the
    /// permission to write to its file. [`io::ErrorKind::WouldBlock`], alone, if the listener's queue is full, for which there
    /// is no readiness event: try again after a while. Also the errors of [`AsyncFd::new`](crate::AsyncFd::new).
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::connect_on(&Server::current()?, path).await
    }

    /// Like [`connect`](Self::connect), watched at `server`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect).
    pub async fn connect_on(server: &Server, path: impl AsRef<Path>) -> io::Result<Self> {
        let socket = UnixSocket::of_kind(Some(server), SocketType::STREAM)?;
        socket.connect_on(server, path.as_ref()).await
    }

    /// Creates two streams connected to each other.
    ///
    /// # Errors
    /// Out of descriptors; otherwise as [`AsyncFd::new`](crate::AsyncFd::new).
    pub fn pair() -> io::Result<(Self, Self)> {
        Self::pair_on(&Server::current()?)
    }

    /// Like [`pair`](Self::pair), watched at `server`.
    ///
    /// # Errors
    /// Same as [`pair`](Self::pair).
    pub fn pair_on(server: &Server) -> io::Result<(Self, Self)> {
        if let Some([(one, near), (other, far)]) = simulated::stream_pair(server)? {
            let stream = |name: OwnedFd, end| Self::simulated(server.readiness(), name.into(), end);
            return Ok((stream(one, near)?, stream(other, far)?));
        }
        let (one, other) = net::UnixStream::pair()?;
        Ok((Self::from_std_on(server, one)?, Self::from_std_on(server, other)?))
    }
}

impl UnixStream {
    /// Returns who is at the other end: the process that connected, or that called `listen` or `socketpair`. In virtual time,
    /// user and group are 0, and there is no process.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn peer_cred(&self) -> io::Result<PeerCredentials> {
        if self.as_simulated().is_some() {
            return Ok(PeerCredentials { uid: 0, gid: 0, pid: 0 });
        }
        let rustix::net::UCred { pid, uid, gid } = rustix::net::sockopt::socket_peercred(self)?;
        Ok(PeerCredentials {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
            pid: pid.as_raw_nonzero().get(),
        })
    }
}

/// The process at the other end of a [`UnixStream`], as it was when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerCredentials {
    uid: u32,
    gid: u32,
    pid: i32,
}

impl PeerCredentials {
    /// Returns its user.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns its group.
    #[must_use]
    pub const fn gid(&self) -> u32 {
        self.gid
    }

    /// Returns its process, if that has a number in this namespace.
    #[must_use]
    pub const fn pid(&self) -> Option<i32> {
        if self.pid > 0 { Some(self.pid) } else { None }
    }
}

/// The first and the longest pause between attempts to send to a full queue.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(10)];

impl UnixDatagram {
    /// Binds a socket to `path`, where it creates a file.
    ///
    /// # Errors
    /// Same as [`UnixListener::bind`].
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_on(&Server::current()?, path)
    }

    /// Like [`bind`](Self::bind), watched at `server`.
    ///
    /// # Errors
    /// Same as [`UnixListener::bind`].
    pub fn bind_on(server: &Server, path: impl AsRef<Path>) -> io::Result<Self> {
        let socket = UnixSocket::of_kind(Some(server), SocketType::DGRAM)?;
        socket.bind(path)?;
        socket.datagram_on(server)
    }

    /// Creates a socket without an address, to send from.
    ///
    /// # Errors
    /// Out of descriptors; otherwise as [`AsyncFd::new`](crate::AsyncFd::new).
    pub fn unbound() -> io::Result<Self> {
        Self::unbound_on(&Server::current()?)
    }

    /// Like [`unbound`](Self::unbound), watched at `server`.
    ///
    /// # Errors
    /// Same as [`unbound`](Self::unbound).
    pub fn unbound_on(server: &Server) -> io::Result<Self> {
        UnixSocket::of_kind(Some(server), SocketType::DGRAM)?.datagram_on(server)
    }

    /// Creates two sockets connected to each other.
    ///
    /// # Errors
    /// Out of descriptors; otherwise as [`AsyncFd::new`](crate::AsyncFd::new).
    pub fn pair() -> io::Result<(Self, Self)> {
        Self::pair_on(&Server::current()?)
    }

    /// Like [`pair`](Self::pair), watched at `server`.
    ///
    /// # Errors
    /// Same as [`pair`](Self::pair).
    pub fn pair_on(server: &Server) -> io::Result<(Self, Self)> {
        if server.is_virtual() {
            let (one, other) = (Self::unbound_on(server)?, Self::unbound_on(server)?);
            if let (Some(near), Some(far)) = (&one.simulated, &other.simulated) {
                near.pair_with(far)?;
            }
            return Ok((one, other));
        }
        let (one, other) = net::UnixDatagram::pair()?;
        Ok((Self::from_std_on(server, one)?, Self::from_std_on(server, other)?))
    }

    /// Sets the destination of [`send`](Datagram::send), and the only sender to receive from. Does
    /// not wait.
    ///
    /// # Errors
    /// As [`UnixStream::connect`], without `WouldBlock`.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        match &self.simulated {
            None => connect(&self.fd, path.as_ref()),
            Some(simulated) => simulated.set_peer(simulated.find_name(name_of(path.as_ref()))?),
        }
    }

    /// Returns the address to which the socket is connected.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] if the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.simulated {
            None => self.fd.as_inner().peer_addr(),
            Some(simulated) => simulated::peer_address::<net::UnixDatagram>(simulated),
        }
    }

    /// Sends a datagram to the socket at `path`. Returns the number of bytes, which is all of them.
    ///
    /// While the receiver's queue is full, the kernel does not announce room to a sender that is not connected to it, so
    /// this tries again after 0.1 ms, and then after twice the last pause, at most 10 ms. [`connect`](Self::connect) and
    /// [`send`](Datagram::send) are told.
    ///
    /// # Cancel safety
    /// Cancel safe: the datagram is not sent unless this returns.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::NotFound`], [`io::ErrorKind::ConnectionRefused`]; the timer's.
    pub async fn send_to(&self, datagram: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let [mut pause, longest] = RETRY_PAUSES;
        loop {
            match self.try_send_to(datagram, &path) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            let server = Server::current()?;
            server.timers().wait(server.now() + pause).await?;
            pause = longest.min(pause * 2);
        }
    }

    /// Sends a datagram to the socket at `path`, if that can be done without waiting. Returns the
    /// number of bytes, which is all of them.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the receiver's queue is full; the kernel's error.
    pub fn try_send_to(&self, datagram: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        if let Some(simulated) = &self.simulated {
            let to = simulated.find_name(name_of(path.as_ref()))?;
            return simulated.send(datagram, Some(to));
        }
        let address = address_of(path.as_ref())?;
        Ok(rustix::net::sendto(&self.fd, datagram, SendFlags::NOSIGNAL, &address)?)
    }
}

impl TryFrom<net::UnixStream> for UnixStream {
    type Error = io::Error;

    /// The same as `from_std`.
    fn try_from(socket: net::UnixStream) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

/// A Unix socket before it is connected or listens.
#[derive(Debug)]
pub struct UnixSocket {
    /// In virtual time: dropped first, since the descriptor is its name.
    simulated: Option<NetworkSocket>,
    fd: OwnedFd,
    kind: SocketType,
}

impl UnixSocket {
    /// Creates a socket for a stream or listener.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new_stream() -> io::Result<Self> {
        Self::of_kind(Server::current().ok().as_ref(), SocketType::STREAM)
    }

    /// Creates a socket for datagrams.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new_datagram() -> io::Result<Self> {
        Self::of_kind(Server::current().ok().as_ref(), SocketType::DGRAM)
    }

    fn of_kind(server: Option<&Server>, kind: SocketType) -> io::Result<Self> {
        if let Some(server) = server
            && let Some((fd, simulated)) = simulated::unix(server, kind)?
        {
            return Ok(Self { simulated: Some(simulated), fd, kind });
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, kind, flags, None)?;
        Ok(Self { simulated: None, fd, kind })
    }

    fn listen_on(self, server: &Server, backlog: u32) -> io::Result<UnixListener> {
        if let Some(simulated) = self.simulated {
            simulated.listen(backlog)?;
            return UnixListener::simulated(server, self.fd.into(), simulated);
        }
        rustix::net::listen(&self.fd, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        UnixListener::from_std_on(server, self.fd.into())
    }

    async fn connect_on(self, server: &Server, path: &Path) -> io::Result<UnixStream> {
        if let Some(simulated) = self.simulated {
            simulated.connect(simulated.find_name(name_of(path))?)?;
            return UnixStream::connected(server, self.fd.into(), Some(simulated)).await;
        }
        connect(&self.fd, path)?;
        UnixStream::watched_by(server.readiness(), self.fd.into())
    }

    fn datagram_on(self, server: &Server) -> io::Result<UnixDatagram> {
        match self.simulated {
            None => UnixDatagram::from_std_on(server, self.fd.into()),
            Some(_) => Ok(UnixDatagram {
                simulated: self.simulated,
                fd: AsyncFd::new_on(server, self.fd.into())?,
            }),
        }
    }

    fn require(&self, kind: SocketType, call: &str) -> io::Result<()> {
        if self.kind == kind {
            return Ok(());
        }
        let problem = format!("{call} is not for a socket of this kind");
        Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
    }

    /// Binds the socket to `path`, where it creates a file.
    ///
    /// # Errors
    /// Same as [`UnixListener::bind`].
    pub fn bind(&self, path: impl AsRef<Path>) -> io::Result<()> {
        match &self.simulated {
            None => bind(&self.fd, path.as_ref()),
            Some(simulated) => simulated.bind_name(name_of(path.as_ref())),
        }
    }

    /// Listens; up to `backlog` connections wait to be accepted, if `net.core.somaxconn` allows.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a socket for datagrams; the kernel's error.
    pub fn listen(self, backlog: u32) -> io::Result<UnixListener> {
        self.require(SocketType::STREAM, "`listen`")?;
        self.listen_on(&Server::current()?, backlog)
    }

    /// Connects to the listener at `path`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a socket for datagrams; otherwise as [`UnixStream::connect`].
    pub async fn connect(self, path: impl AsRef<Path>) -> io::Result<UnixStream> {
        self.require(SocketType::STREAM, "`connect`")?;
        self.connect_on(&Server::current()?, path.as_ref()).await
    }

    /// Makes it a socket that sends and receives datagrams.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a socket for streams; those of [`AsyncFd::new`](crate::AsyncFd::new).
    pub fn datagram(self) -> io::Result<UnixDatagram> {
        self.require(SocketType::DGRAM, "`datagram`")?;
        self.datagram_on(&Server::current()?)
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Sealed for net::UnixStream {}

impl Socket for net::UnixStream {
    type Address = SocketAddr;

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn simulated_address(_: std::net::SocketAddr, name: Option<Vec<u8>>) -> SocketAddr {
        named(name)
    }
}

impl StreamSocket for net::UnixStream {
    /// A read also ends where descriptors or credentials were sent along, with bytes behind them.
    const SHORT_READ_EMPTIES: bool = false;

    fn peer_address(&self) -> io::Result<SocketAddr> {
        self.peer_addr()
    }
}

impl TryFrom<net::UnixListener> for UnixListener {
    type Error = io::Error;

    /// The same as `from_std`.
    fn try_from(socket: net::UnixListener) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl Sealed for net::UnixListener {}

impl Socket for net::UnixListener {
    type Address = SocketAddr;

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn simulated_address(_: std::net::SocketAddr, name: Option<Vec<u8>>) -> SocketAddr {
        named(name)
    }
}

impl ListenerSocket for net::UnixListener {
    type Stream = net::UnixStream;

    fn accept_one(&self) -> io::Result<(net::UnixStream, SocketAddr)> {
        let (connection, address) = socket::accept(self)?;
        let stream = net::UnixStream::from(connection);
        // Clients seldom have a name. For those that do, std is asked, since rustix panics at a path
        // that fills its field [unix(7), "Pathname sockets"].
        let has_name = address.is_some_and(|address| address.addr_len() > UNNAMED_BYTES);
        let named = if has_name { stream.peer_addr().ok() } else { None };
        // A connection is not lost because of its name.
        let address = named.map_or_else(|| SocketAddr::from_pathname(""), Ok)?;
        Ok((stream, address))
    }
}

/// The number of connections that the kernel queues for a listener, if `net.core.somaxconn` allows.
const BACKLOG: u32 = 1024;

/// Returns a name as the simulated network knows it.
fn name_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Returns the address of a name of the simulated network.
fn named(name: Option<Vec<u8>>) -> SocketAddr {
    let name = name.unwrap_or_default();
    let address = match name.split_first() {
        Some((0, name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(OsStr::from_bytes(&name)),
    };
    address.expect("invariant: the name was checked when it was bound")
}

/// Returns the address of a path; of an abstract name, if it begins with a NUL byte.
fn address_of(path: &Path) -> Result<SocketAddrUnix, Errno> {
    match path.as_os_str().as_bytes().split_first() {
        Some((0, name)) => SocketAddrUnix::new_abstract_name(name),
        _ => SocketAddrUnix::new(path),
    }
}

fn bind(socket: impl AsFd, path: &Path) -> io::Result<()> {
    let bound = address_of(path).and_then(|address| rustix::net::bind(socket, &address));
    bound.map_err(|error| refused::bind_unix(path, error))
}

fn connect(socket: impl AsFd, path: &Path) -> io::Result<()> {
    let connected = address_of(path).and_then(|address| rustix::net::connect(socket, &address));
    connected.map_err(|error| refused::connect_unix(path, error))
}

/// The size of an address that consists only of its family.
const UNNAMED_BYTES: SocketAddrLen = 2;

impl TryFrom<net::UnixDatagram> for UnixDatagram {
    type Error = io::Error;

    /// The same as `from_std`.
    fn try_from(socket: net::UnixDatagram) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl Sealed for net::UnixDatagram {}

impl Socket for net::UnixDatagram {
    type Address = SocketAddr;

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn simulated_address(_: std::net::SocketAddr, name: Option<Vec<u8>>) -> SocketAddr {
        named(name)
    }
}

impl DatagramSocket for net::UnixDatagram {
    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }
}
