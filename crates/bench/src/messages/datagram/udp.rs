//! Plain UDP sockets, read again and again: what vigie's datagrams over UDP are made of.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use super::polling::{TIMEOUT, has, polling};
use crate::error::Failure;
use crate::host::Arena;
use crate::host::namespaces;
use crate::messages::socket::{ReceiveMode, wait_posted};
use crate::messages::{Carrier, CarrierKind, Channel, RankContext, blocking};

/// Over the loopback interface.
pub(super) static SOCKET: Carrier = Carrier {
    name: "udp",
    label: "UDP socket, loopback",
    family: "udp",
    kind: CarrierKind::Peer,
    has,
    link_bytes: 0,
    is_remote: false,
    open: |context| blocking(Socket::open(context, ReceiveMode::Polling, |_| Ipv4Addr::LOCALHOST)),
    program: None,
};

/// Over a veth pair.
pub(super) static SOCKET_VETH: Carrier = Carrier {
    name: "udp-veth",
    label: "UDP socket, veth",
    is_remote: true,
    open: |context| blocking(Socket::open(context, ReceiveMode::Polling, namespaces::address)),
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
        context: &RankContext,
        receive_mode: ReceiveMode,
        address: impl Fn(u32) -> Ipv4Addr,
    ) -> Result<Self, Failure> {
        let cannot = |error| Failure::io("connecting ranks by UDP")(error);
        let arena = Arena::open(&context.memory)?;
        let socket = UdpSocket::bind((address(context.rank), 0)).map_err(cannot)?;
        let own = socket.local_addr().map_err(cannot)?;
        arena.post(context.rank, own.port().into());
        let port = u16::try_from(wait_posted(&arena, context.next())?).map_err(Failure::runtime)?;
        socket.connect(SocketAddr::from((address(context.next()), port))).map_err(cannot)?;
        socket.set_nonblocking(receive_mode == ReceiveMode::Polling).map_err(cannot)?;
        Ok(Self { socket })
    }
}

impl Channel for Socket {
    fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        polling(TIMEOUT, || match self.socket.send(message) {
            Ok(_) => Ok(Some(())),
            Err(error) => nothing_after(error),
        })
    }

    fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
        polling(TIMEOUT, || match self.socket.recv(message) {
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
