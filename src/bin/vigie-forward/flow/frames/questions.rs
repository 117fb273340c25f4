//! Makes the kernel find out neighbours, by sending each an empty datagram: that needs no right.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    sync::{Mutex, PoisonError},
};

use vigie::forward::packet::Port;

/// The discard protocol: the receiver does not answer.
const DISCARD: u16 = 9;

/// The sockets, and the indices of the ports' interfaces, which link-local addresses need.
#[derive(Debug)]
pub(super) struct Questions {
    sockets: [Option<UdpSocket>; 2],
    indices: Mutex<BTreeMap<Port, u32>>,
}

impl Questions {
    pub(super) fn new() -> Self {
        let socket = |address: IpAddr| {
            let socket = UdpSocket::bind((address, 0)).ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        let sockets = [socket(Ipv4Addr::UNSPECIFIED.into()), socket(Ipv6Addr::UNSPECIFIED.into())];
        Self { sockets, indices: Mutex::default() }
    }

    pub(super) fn set_index(&self, port: Port, index: u32) {
        self.indices.lock().unwrap_or_else(PoisonError::into_inner).insert(port, index);
    }

    /// Asks for a neighbour. It never waits, and what cannot be sent is asked for again by a later packet.
    #[cold]
    pub(super) fn ask(&self, port: Port, address: IpAddr) {
        let (socket, to) = match address {
            IpAddr::V4(_) => (&self.sockets[0], SocketAddr::new(address, DISCARD)),
            IpAddr::V6(address) => {
                let indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner);
                let index = indices.get(&port).copied().unwrap_or(0);
                (&self.sockets[1], SocketAddrV6::new(address, DISCARD, 0, index).into())
            }
        };
        if let Some(socket) = socket {
            let _ = socket.send_to(&[], to);
        }
    }
}
