//! Claims ports, and connects the NICs that share an interface: abstract Unix sockets.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

use super::EtherError;
use crate::{auth::random, link::EtherType};

/// The first port tried if none is named.
const PORT_FIRST: u16 = 0xc000;

/// The number of ports that are tried.
const TRIES: u16 = 256;

/// The socket whose address claims this NIC's port.
#[derive(Debug)]
pub(super) struct Neighbours {
    socket: UnixDatagram,
    /// The common prefix of the names of all ports of this interface and protocol.
    prefix: String,
    port: u16,
}

impl Neighbours {
    /// Claims a port; 0 is any free port.
    pub(super) fn claim(index: u32, ether_type: EtherType, port: u16) -> Result<Self, EtherError> {
        let prefix = format!("vigie-ether/{index}/{ether_type}/");
        if port != 0 {
            return match bind(&prefix, port) {
                Ok(socket) => Ok(Self { socket, prefix, port }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    Err(EtherError::PortTaken { port, socket: format!("{prefix}{port}") })
                }
                Err(error) => Err(EtherError::kernel("acquiring a port")(error)),
            };
        }
        let first = random().map_err(EtherError::kernel("asking for random bytes"))?;
        let first = u16::from_ne_bytes(first);
        for at in 0..TRIES {
            let port = PORT_FIRST | first.wrapping_add(at);
            match bind(&prefix, port) {
                Ok(socket) => return Ok(Self { socket, prefix, port }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(EtherError::kernel("acquiring a port")(error)),
            }
        }
        Err(EtherError::NoPort)
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a packet to another port.
    pub(super) fn send(&self, port: u16, packet: &[u8]) -> io::Result<()> {
        let address = address(&self.prefix, port)?;
        loop {
            match self.socket.send_to_addr(packet, &address) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// Receives a packet: its length and source port. Packets that do not come from a port are dropped.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, u16)>> {
        /// The most foreign packets skipped per call.
        const SKIPPED_MAX: u32 = 64;
        for _ in 0..SKIPPED_MAX {
            match self.socket.recv_from(buffer) {
                Ok((count, from)) => {
                    if let Some(port) = self.port_of(&from) {
                        return Ok(Some((count, port)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn port_of(&self, from: &SocketAddr) -> Option<u16> {
        let digits = from.as_abstract_name()?.strip_prefix(self.prefix.as_bytes())?;
        let port: u16 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        // Only the canonical name stands for a port, not `+7` or `007`.
        (port != 0 && digits == port.to_string().as_bytes()).then_some(port)
    }
}

fn address(prefix: &str, port: u16) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{prefix}{port}"))
}

fn bind(prefix: &str, port: u16) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind_addr(&address(prefix, port)?)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of an interface that does not exist.
    const INDEX: u32 = 0xffff_fff0;

    fn claim(port: u16) -> Result<Neighbours, EtherError> {
        Neighbours::claim(INDEX, EtherType::EXPERIMENTAL_2, port)
    }

    /// Goal: a port has one owner at a time, reports that, and is free again after it; an automatic port
    /// is a free one. Method: claim a port again and again.
    #[test]
    fn a_port_has_one_owner() {
        let first = claim(0).unwrap();
        let port = first.port();
        assert!(port >= PORT_FIRST);
        let error = claim(port).unwrap_err();
        assert!(matches!(error, EtherError::PortTaken { port: taken, .. } if taken == port));
        assert!(error.to_string().contains(&format!("{port}")), "{error}");
        let others: Vec<_> = (0..20).map(|_| claim(0).unwrap()).collect();
        assert!(others.iter().all(|other| other.port() != port));
        drop(first);
        claim(port).unwrap();
    }

    /// Goal: neighbours hear each other, and no other sockets. Method: two ports, and sockets without a
    /// name, with another one, and with one that is almost a port's.
    #[test]
    fn only_neighbours_are_heard() {
        let (one, other) = (claim(0).unwrap(), claim(0).unwrap());
        one.send(other.port(), b"packet").unwrap();
        let mut buffer = [0; 100];
        assert_eq!(other.receive(&mut buffer).unwrap(), Some((6, one.port())));
        assert_eq!(&buffer[..6], b"packet");
        let to = address(&one.prefix, one.port()).unwrap();
        let names = ["stranger", &format!("{}007", one.prefix), &format!("{}+7", one.prefix)];
        for name in names {
            let name = SocketAddr::from_abstract_name(name).unwrap();
            let stranger = UnixDatagram::bind_addr(&name).unwrap();
            stranger.send_to_addr(b"rubbish", &to).unwrap();
        }
        UnixDatagram::unbound().unwrap().send_to_addr(b"rubbish", &to).unwrap();
        assert_eq!(one.receive(&mut buffer).unwrap(), None);
        let nobody = one.send(1, b"packet").unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::ConnectionRefused);
    }
}
