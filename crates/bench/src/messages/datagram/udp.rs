//! Plain UDP sockets, read again and again: what vigie's datagrams over UDP are made of.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use super::looking::{PATIENCE, has, looking};
use crate::error::Failure;
use crate::host::arena::Arena;
use crate::host::namespaces;
use crate::messages::blocking::{Blocking, Channel};
use crate::messages::carrier::Kind;
use crate::messages::ranks::Own;
use crate::messages::seat::Seat;
use crate::messages::socket::{Reading, meet};

/// Over the loopback interface.
pub(super) static SOCKET: Own = Own {
    name: "udp",
    label: "UDP socket, loopback",
    family: "udp",
    kind: Kind::Peer,
    has,
    link_bytes: 0,
    open: |seat| {
        Ok(Box::new(Blocking::new(Socket::open(seat, Reading::Polling, |_| Ipv4Addr::LOCALHOST)?)))
    },
};

/// Over a veth pair.
pub(super) static SOCKET_VETH: Own = Own {
    name: "udp-veth",
    label: "UDP socket, veth",
    open: |seat| {
        Ok(Box::new(Blocking::new(Socket::open(seat, Reading::Polling, namespaces::address)?)))
    },
    ..SOCKET
};

/// A socket that is connected to the other rank's.
#[derive(Debug)]
pub(in crate::messages) struct Socket {
    socket: UdpSocket,
}

impl Socket {
    /// `address` tells that of a rank.
    pub(in crate::messages) fn open(
        seat: &Seat,
        reading: Reading,
        address: impl Fn(u32) -> Ipv4Addr,
    ) -> Result<Self, Failure> {
        let cannot = |error| Failure::io("connecting ranks by UDP")(error);
        let arena = Arena::open(&seat.memory)?;
        let socket = UdpSocket::bind((address(seat.rank), 0)).map_err(cannot)?;
        let own = socket.local_addr().map_err(cannot)?;
        arena.post(seat.rank, own.port().into());
        let port = u16::try_from(meet(&arena, seat.next())?).map_err(Failure::runtime)?;
        socket.connect(SocketAddr::from((address(seat.next()), port))).map_err(cannot)?;
        socket.set_nonblocking(reading == Reading::Polling).map_err(cannot)?;
        Ok(Self { socket })
    }
}

impl Channel for Socket {
    fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        looking(PATIENCE, || match self.socket.send(message) {
            Ok(_) => Ok(Some(())),
            Err(error) => nothing_after(error),
        })
    }

    fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
        looking(PATIENCE, || match self.socket.recv(message) {
            Ok(length) if length == message.len() => Ok(Some(())),
            Ok(length) => Err(Failure::runtime(format!("a datagram of {length} bytes"))),
            Err(error) => nothing_after(error),
        })
    }
}

fn nothing_after(error: io::Error) -> Result<Option<()>, Failure> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        // The other rank is not there yet, or not any more: its parent tells.
        io::ErrorKind::ConnectionRefused => Ok(None),
        _ => Err(Failure::io("a datagram between ranks")(error)),
    }
}
