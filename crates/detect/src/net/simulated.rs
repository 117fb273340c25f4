//! Sockets in the simulated network.
//!
//! Such a socket owns a real descriptor, which is never bound or connected: as a name by which the server's poller knows it,
//! for options that have no effect, and so that an operation that reaches it by another way fails in the kernel.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

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
