//! Datagrams in Ethernet frames. The kernel arbitrates the ports by addresses of abstract Unix sockets, which
//! belong to the network namespace as the interface does, and vanish with their process.

use std::{
    collections::BTreeMap,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
        sockopt::socket_peercred,
    },
};

use super::{
    HEADER_BYTES, Header,
    engine::{Incoming, LOOK, Ports},
    error::{DatagramError, Node},
};
use crate::link::{self, Link, MacAddress};

const FRONT_BYTES: usize = link::HEADER_BYTES + HEADER_BYTES;

#[derive(Debug)]
pub(super) struct OverLink {
    link: Link,
    /// The sockets whose addresses say that a port is ours.
    claims: BTreeMap<u8, OwnedFd>,
}

impl OverLink {
    pub(super) const fn new(link: Link) -> Self {
        Self { link, claims: BTreeMap::new() }
    }

    fn claim(&self, number: u8) -> Result<OwnedFd, DatagramError> {
        let failed = |error: Errno| DatagramError::kernel("acquiring a port", error);
        let name =
            format!("vigie-datagram/{}/{}/{number}", self.link.index(), self.link.ether_type());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
        let make = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)
        };
        let socket = make()?;
        match bind(&socket, &address) {
            Ok(()) => {
                // So that others can ask who it is.
                listen(&socket, 1).map_err(failed)?;
                Ok(socket)
            }
            Err(Errno::ADDRINUSE) => {
                let asking = make()?;
                let owner = connect(&asking, &address)
                    .and_then(|()| socket_peercred(&asking))
                    .ok()
                    .map(|owner| owner.pid.as_raw_nonzero().get());
                Err(DatagramError::PortTaken { number, owner })
            }
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) fn acquire(&mut self, number: u8) -> Result<(), DatagramError> {
        let claim = self.claim(number)?;
        self.claims.insert(number, claim);
        Ok(())
    }

    pub(super) fn release(&mut self, number: u8) {
        self.claims.remove(&number);
    }

    pub(super) fn join(&mut self, group: Node) -> Result<(), DatagramError> {
        Ok(self.link.join(mac(group)?)?)
    }

    pub(super) fn node(&self) -> Node {
        Node::Mac(self.link.address())
    }

    pub(super) fn payload_max(&self) -> usize {
        self.link.payload_max().saturating_sub(HEADER_BYTES)
    }

    pub(super) fn dropped(&mut self) -> Result<u64, DatagramError> {
        Ok(self.link.statistics()?.dropped)
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        from_port: u8,
        to: Node,
        to_port: u8,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        let to = mac(to)?;
        let length = u16::try_from(payload.len()).map_err(|_| DatagramError::TooLong {
            length: payload.len(),
            max: self.payload_max(),
        })?;
        let header = Header::new(from_port, to_port, length).bytes();
        Ok(self.link.send(to, &[&header, payload])?)
    }

    pub(super) fn flush(&mut self) -> Result<(), DatagramError> {
        Ok(self.link.flush()?)
    }

    #[inline]
    pub(super) fn look(&mut self, ports: &mut Ports) -> Result<(), DatagramError> {
        if self.link.is_removed() {
            return Err(DatagramError::Removed);
        }
        self.link.receive(LOOK, |frame| {
            let mut front = [0; FRONT_BYTES];
            let count = frame.read(0, &mut front);
            let Some(incoming) = parse(&front[..count], frame.len()) else {
                ports.counters.malformed += 1;
                return;
            };
            ports.deliver(&incoming, |place| frame.read(FRONT_BYTES, place));
        })?;
        Ok(())
    }

    /// Prepares for sleep. Returns whether something may be there.
    pub(super) fn arm(&mut self, awaits_room: bool) -> Result<bool, DatagramError> {
        self.link.look()?;
        // While it is down, nothing but the news that it is up again makes room.
        let awaits_room = awaits_room || self.link.has_unsent();
        self.link.await_room(awaits_room && self.link.is_up())?;
        Ok(self.link.is_removed() || self.link.is_ready())
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.descriptor()
    }
}

fn mac(node: Node) -> Result<MacAddress, DatagramError> {
    match node {
        Node::Mac(address) => Ok(address),
        node @ Node::Ip(_) => {
            Err(DatagramError::WrongNode { node, wanted: "an address of Ethernet" })
        }
    }
}

/// Reads the front of a frame of `total` bytes.
#[inline]
pub(super) fn parse(front: &[u8], total: usize) -> Option<Incoming> {
    let ethernet = link::Header::parse(front).ok()?;
    if ethernet.payload_offset != link::HEADER_BYTES {
        return None;
    }
    let rest = front.get(link::HEADER_BYTES..)?;
    let header = Header::parse(rest, total.saturating_sub(link::HEADER_BYTES)).ok()?;
    Some(Incoming {
        from: Node::Mac(ethernet.source),
        from_port: header.from,
        to_port: header.to,
        is_multicast: ethernet.destination.is_multicast(),
        length: usize::from(header.length),
    })
}
