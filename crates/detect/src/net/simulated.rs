//! Sockets in the simulated network.
//!
//! Such a socket owns a real descriptor, which is never bound or connected: as a name by which the server's poller knows it,
//! for options that have no effect, and so that an operation that reaches it by another way fails in the kernel.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use tokio::io::ReadBuf;

use super::socket::Socket;
use crate::{
    network::{NetworkNode, NetworkSocket},
    server::{Server, refuse_in_simulation},
    sync::Arc,
};

/// A UDP socket of the simulated network without a detector of its own, for [engines](crate::Engine), which watch its descriptor.
#[doc(hidden)]
#[derive(Debug)]
pub struct SimulatedUdp {
    /// Dropped first, since the descriptor is its name.
    socket: NetworkSocket,
    name: Arc<OwnedFd>,
}

impl SimulatedUdp {
    /// Opens a socket that is not bound, if the current server is in virtual time.
    ///
    /// # Errors
    /// The kernel's, which has no descriptor left.
    pub fn open() -> io::Result<Option<Self>> {
        let Ok(server) = Server::current() else { return Ok(None) };
        let Some((name, socket)) = udp(&server)? else { return Ok(None) };
        // The host of an engine watches a duplicate.
        socket.name_duplicates(sockopt::socket_cookie(&name)?, name.as_raw_fd());
        Ok(Some(Self { socket, name: Arc::new(name) }))
    }

    /// Binds a socket, if the current server is in virtual time.
    ///
    /// # Errors
    /// As for [`UdpSocket::bind`](super::UdpSocket::bind).
    pub fn bind(address: SocketAddr) -> io::Result<Option<Self>> {
        let opened = Self::open()?;
        opened.map(|it| it.socket.bind(address).map(|()| it)).transpose()
    }

    /// Binds another socket, with the same descriptor: arrivals at each of them are announced there.
    ///
    /// # Errors
    /// As for [`UdpSocket::bind`](super::UdpSocket::bind).
    pub fn bind_beside(&self, address: SocketAddr) -> io::Result<Self> {
        let socket = NetworkSocket::udp_beside(&self.socket)?;
        socket.bind(address)?;
        Ok(Self { socket, name: Arc::clone(&self.name) })
    }

    /// Returns whether a datagram has arrived.
    #[must_use]
    pub fn has_datagram(&self) -> bool {
        self.socket.has_datagram()
    }

    /// Returns the address to which it is bound.
    ///
    /// # Errors
    /// If the node has crashed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// As for [`UdpSocket::try_send_to`](super::UdpSocket::try_send_to).
    pub fn send_to(&self, datagram: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.socket.send(datagram, Some(address))
    }

    /// Receives a datagram: the number of bytes that fit into `room`, and the sender.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none.
    pub fn recv_from(&self, room: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.receive(&mut ReadBuf::new(room), false)
    }
}

impl AsFd for SimulatedUdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.name.as_fd()
    }
}

/// Opens a TCP socket, if `server` is in virtual time.
pub(super) fn tcp(server: &Server) -> io::Result<Option<(OwnedFd, NetworkSocket)>> {
    open(server, tcp_name, NetworkSocket::tcp)
}

/// Opens a UDP socket, if `server` is in virtual time.
pub(super) fn udp(server: &Server) -> io::Result<Option<(OwnedFd, NetworkSocket)>> {
    // A real UDP socket would send without being connected.
    open(server, || name(AddressFamily::UNIX, SocketType::DGRAM), NetworkSocket::udp)
}

/// Opens a Unix socket, if `server` is in virtual time.
pub(super) fn unix(
    server: &Server,
    kind: SocketType,
) -> io::Result<Option<(OwnedFd, NetworkSocket)>> {
    let is_datagram = kind == SocketType::DGRAM;
    let open_it = if is_datagram { NetworkSocket::unix_datagram } else { NetworkSocket::tcp };
    open(server, || name(AddressFamily::UNIX, kind), open_it)
}

/// Opens two Unix streams that are connected, if `server` is in virtual time.
pub(super) fn stream_pair(server: &Server) -> io::Result<Option<[(OwnedFd, NetworkSocket); 2]>> {
    let Some(node) = node_of(server)? else { return Ok(None) };
    let unix = || name(AddressFamily::UNIX, SocketType::STREAM);
    let (one, other) = (unix()?, unix()?);
    let [near, far] = NetworkSocket::stream_pair(node, [one.as_raw_fd(), other.as_raw_fd()]);
    Ok(Some([(one, near), (other, far)]))
}

/// Returns the address of a socket's own end.
pub(super) fn local_address<S: Socket>(socket: &NetworkSocket) -> io::Result<S::Address> {
    Ok(address::<S>(socket, socket.local_addr()?))
}

/// Returns the address of a socket's other end.
pub(super) fn peer_address<S: Socket>(socket: &NetworkSocket) -> io::Result<S::Address> {
    Ok(address::<S>(socket, socket.peer_addr()?))
}

pub(super) fn address<S: Socket>(socket: &NetworkSocket, address: SocketAddr) -> S::Address {
    S::simulated_address(address, socket.name_of(address))
}

/// Returns the place in the network of a server in virtual time. Refuses another server's sockets inside a simulation.
fn node_of(server: &Server) -> io::Result<Option<&NetworkNode>> {
    let node = server.network_node();
    if node.is_none() {
        refuse_in_simulation(
            "sockets at a server of the kernel's events",
            "open them at `Server::current()`",
        )?;
    }
    Ok(node)
}

fn open(
    server: &Server,
    name: impl FnOnce() -> io::Result<OwnedFd>,
    open: impl FnOnce(&NetworkNode, i32) -> NetworkSocket,
) -> io::Result<Option<(OwnedFd, NetworkSocket)>> {
    let Some(node) = node_of(server)? else { return Ok(None) };
    let name = name()?;
    let socket = open(node, name.as_raw_fd());
    Ok(Some((name, socket)))
}

/// Returns a descriptor that stands for a TCP connection.
pub(super) fn tcp_name() -> io::Result<OwnedFd> {
    name(AddressFamily::INET, SocketType::STREAM)
}

fn name(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
    Ok(socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?)
}

/// The error where a simulated socket cannot stand for a real one, or the other way round.
pub(super) fn unsupported(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}
