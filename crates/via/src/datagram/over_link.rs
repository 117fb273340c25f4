//! Datagrams in Ethernet frames. The kernel arbitrates the ports through addresses of abstract Unix sockets,
//! which belong to the network namespace, like the interface, and vanish with their process.

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
    error::{DatagramError, NodeAddress},
    ports::{DatagramRoute, IncomingDatagram, POLL_BATCH, Ports},
};
use crate::link::{self, Link, MacAddress};

const ENCAP_BYTES: usize = link::HEADER_BYTES + HEADER_BYTES;

#[derive(Debug)]
pub(super) struct OverLink {
    link: Link,
    /// The sockets whose addresses mark a port as ours.
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
                // Lets other processes ask for the owner.
                listen(&socket, 1).map_err(failed)?;
                Ok(socket)
            }
            Err(Errno::ADDRINUSE) => {
                let asking = make()?;
                let owner = connect(&asking, &address)
                    .and_then(|()| socket_peercred(&asking))
                    .ok()
                    .map(|owner| owner.pid.as_raw_nonzero().get());
                Err(DatagramError::PortTaken { number, owner, udp_port: None })
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

    pub(super) fn join(&mut self, group: NodeAddress) -> Result<(), DatagramError> {
        Ok(self.link.join_group(mac(group)?)?)
    }

    pub(super) fn node(&self) -> NodeAddress {
        NodeAddress::Mac(self.link.address())
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
        route: DatagramRoute,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        let to = mac(route.to)?;
        let length = u16::try_from(payload.len()).map_err(|_| DatagramError::TooLong {
            length: payload.len(),
            max: self.payload_max(),
        })?;
        let header = Header::new(route.from_port, route.to_port, length).bytes();
        Ok(self.link.send(to, &[&header, payload])?)
    }

    pub(super) fn flush(&mut self) -> Result<(), DatagramError> {
        Ok(self.link.flush()?)
    }

    #[inline]
    pub(super) fn poll(&mut self, ports: &mut Ports) -> Result<(), DatagramError> {
        if self.link.is_removed() {
            return Err(DatagramError::Removed);
        }
        self.link.recv_each(POLL_BATCH, |frame| {
            let mut received_header = [0; ENCAP_BYTES];
            let count = frame.read(0, &mut received_header);
            let Some(incoming) = parse(&received_header[..count], frame.len()) else {
                ports.counters.malformed += 1;
                return;
            };
            ports.deliver(&incoming, |place| frame.read(ENCAP_BYTES, place));
        })?;
        Ok(())
    }

    /// Prepares for sleep. Returns whether something may be there.
    pub(super) fn arm(&mut self, awaits_room: bool) -> Result<bool, DatagramError> {
        self.link.poll_monitor()?;
        // While the interface is down, only the news that it is up again makes room.
        let awaits_room = awaits_room || self.link.has_unsent();
        self.link.await_room(awaits_room && self.link.is_up())?;
        Ok(self.link.is_removed() || self.link.is_ready())
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.descriptor()
    }
}

fn mac(node: NodeAddress) -> Result<MacAddress, DatagramError> {
    match node {
        NodeAddress::Mac(address) => Ok(address),
        node @ NodeAddress::Ip(_) => {
            Err(DatagramError::WrongNode { node, wanted: "an address of Ethernet" })
        }
    }
}

/// Reads the header of a frame of `total` bytes.
#[inline]
pub(super) fn parse(received_header: &[u8], total: usize) -> Option<IncomingDatagram> {
    let ethernet = link::EthernetHeader::parse(received_header).ok()?;
    if ethernet.payload_offset != link::HEADER_BYTES {
        return None;
    }
    let rest = received_header.get(link::HEADER_BYTES..)?;
    let header = Header::parse(rest, total.saturating_sub(link::HEADER_BYTES)).ok()?;
    Some(IncomingDatagram {
        from: NodeAddress::Mac(ethernet.source),
        from_port: header.from,
        to_port: header.to,
        is_multicast: ethernet.destination.is_multicast(),
        length: usize::from(header.length),
    })
}
