//! Datagrams over UDP in virtual time: as [`over_udp`](super::over_udp), on sockets of the simulated network.
//!
//! All ports share one descriptor. There is no multicast.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
};

use rustix::io::Errno;
use vigie_detect::net::SimulatedUdp;

use super::{
    HEADER_BYTES, Header, UdpConfig,
    batch::ReceivedHeader,
    error::{DatagramError, NodeAddress},
    over_udp::PortAddress,
    ports::{DatagramRoute, POLL_BATCH, Ports},
};

#[derive(Debug)]
pub(super) struct OverSimulated {
    config: UdpConfig,
    /// Has the descriptor; never bound.
    anchor: SimulatedUdp,
    sockets: BTreeMap<u8, SimulatedUdp>,
    /// For one datagram.
    room: Vec<u8>,
}

impl OverSimulated {
    /// Opens a device, if the current server is in virtual time.
    pub(super) fn open(config: UdpConfig) -> Result<Option<Self>, DatagramError> {
        let anchor = SimulatedUdp::open()
            .map_err(|error| DatagramError::kernel("opening a simulated socket", errno(&error)))?;
        let room = vec![0; usize::try_from(config.mtu).unwrap_or(0)];
        Ok(anchor.map(|anchor| Self { config, anchor, sockets: BTreeMap::new(), room }))
    }

    fn udp_port(&self, number: u8) -> u16 {
        self.config.base_port + u16::from(number)
    }

    pub(super) fn acquire(&mut self, number: u8) -> Result<(), DatagramError> {
        let udp_port = self.udp_port(number);
        let socket = self.anchor.bind_beside(SocketAddr::new(self.config.address, udp_port));
        let socket = socket.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                DatagramError::PortTaken { number, owner: None, udp_port: Some(udp_port) }
            }
            _ => DatagramError::kernel("binding to an address of the node", errno(&error)),
        })?;
        self.sockets.insert(number, socket);
        Ok(())
    }

    pub(super) fn release(&mut self, number: u8) {
        self.sockets.remove(&number);
    }

    pub(super) fn join(&self, _: NodeAddress) -> Result<(), DatagramError> {
        Err(DatagramError::kernel("joining a group in a simulation", Errno::OPNOTSUPP))
    }

    pub(super) const fn node(&self) -> NodeAddress {
        NodeAddress::Ip(self.config.address)
    }

    pub(super) fn payload_max(&self) -> usize {
        self.config.payload_max()
    }

    pub(super) fn send(&self, route: DatagramRoute, payload: &[u8]) -> Result<(), DatagramError> {
        let DatagramRoute { from_port, to, to_port } = route;
        let NodeAddress::Ip(address) = to else {
            return Err(DatagramError::WrongNode { node: to, wanted: "an address of IP" });
        };
        let too_long = || DatagramError::TooLong { length: payload.len(), max: self.payload_max() };
        let length = u16::try_from(payload.len()).map_err(|_| too_long())?;
        let own = self.sockets.get(&from_port).ok_or(DatagramError::Removed)?;
        let header = Header::new(from_port, to_port, length).bytes();
        let to = SocketAddr::new(address, self.udp_port(to_port));
        let sent = own.send_to(&[&header[..], payload].concat(), to);
        sent.map_err(|error| DatagramError::kernel("sending a datagram", errno(&error)))?;
        Ok(())
    }

    /// Takes in the datagrams of one port.
    pub(super) fn poll(&mut self, number: u8, ports: &mut Ports) -> Result<(), DatagramError> {
        let place = PortAddress { node: self.node(), base: self.config.base_port, number };
        let Some(socket) = self.sockets.get(&number) else { return Ok(()) };
        for _ in 0..POLL_BATCH {
            let (length, from) = match socket.recv_from(&mut self.room) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    return Err(DatagramError::kernel("receiving a datagram", errno(&error)));
                }
            };
            let mut received = ReceivedHeader { from: Some(from), length, ..ReceivedHeader::EMPTY };
            received.bytes.copy_from_slice(&self.room[..HEADER_BYTES]);
            match place.parse(&received, from) {
                None => ports.counters.malformed += 1,
                Some(incoming) => ports.deliver(&incoming, |place| {
                    place.copy_from_slice(&self.room[HEADER_BYTES..length]);
                    place.len()
                }),
            }
        }
        Ok(())
    }

    /// Returns whether something has arrived.
    pub(super) fn arm(&self) -> bool {
        self.sockets.values().any(SimulatedUdp::has_datagram)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.anchor.as_fd()
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}
