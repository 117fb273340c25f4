//! Sockets in the simulated network.
//!
//! Such a socket owns a real descriptor, which is never bound or connected: as a name by which the server's poller knows it,
//! for options that have no effect, and so that an operation that reaches it by another way fails in the kernel.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::socket::Socket;
use crate::{
    network::{NetworkNode, NetworkSocket},
    server::Server,
};

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
    let Some(node) = server.network_node() else { return Ok(None) };
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

fn open(
    server: &Server,
    name: impl FnOnce() -> io::Result<OwnedFd>,
    open: impl FnOnce(&NetworkNode, i32) -> NetworkSocket,
) -> io::Result<Option<(OwnedFd, NetworkSocket)>> {
    let Some(node) = server.network_node() else { return Ok(None) };
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
