//! The provider over UDP: VIs between hosts, without special privileges.
//!
//! A [`SoftwareNic`] on one UDP socket. If the kernel supports it, many packets of a transfer leave in
//! one call (UDP_SEGMENT) and arrive in one (UDP_GRO); this is tried when the socket is made.
//!
//! The socket listens only on the address that it is given. Its buffers bound the data in flight to it:
//! raise `net.core.rmem_max` for fast links.
//!
//! # Packet length
//! The NIC asks the kernel how long packets may be (`IP_MTU`) when a connection is established, when a
//! packet was too long, and when a peer is silent; the kernel keeps the value current from routers'
//! messages [rfc1191, §3]. The NIC then probes the length, so that paths on which no router reports
//! anything work too. Packets that were made for a longer path are fragmented by IP.
//!
//! # In virtual time
//! A NIC that is made inside a simulated runtime has a socket of the simulated network, whose packets have at most 1472 bytes. Its names come
//! from the simulation's seed.
//!
//! # Examples
//! ```
//! use vigie_via::{software_nic::{SoftwareNicConfig, Secret}, udp::Udp, vi::Provider};
//!
//! let secret = Secret::new([7; 16]); // of 16 random bytes that all ranks have been given
//! let mut server = Udp::bind("127.0.0.1:0".parse()?, secret.clone(), SoftwareNicConfig::default())?;
//! server.listen(b"greeter")?;
//! let client = Udp::bind("127.0.0.1:0".parse()?, secret, SoftwareNicConfig::default())?;
//! assert_ne!(client.address(), server.address());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod sockets;
mod sys;

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
};

use vigie_detect::{ArmOutcome, Instant, net::SimulatedUdp};

use self::sockets::SocketSet;
use crate::{
    auth::random,
    software_nic::{Gather, Path, Secret, SoftwareNic, SoftwareNicConfig, Wire},
};

/// The size requested for either buffer, in bytes; the kernel limits it to `net.core.rmem_max`.
const BUFFER_BYTES: usize = 4 << 20;

/// The most packets that the kernel takes in one call: UDP_MAX_SEGMENTS of old kernels.
const SEGMENTS_MAX: usize = 64;

/// The bytes that IP and UDP put before a packet.
const HEADERS_V4: usize = 20 + 8;
const HEADERS_V6: usize = 40 + 8;

/// The longest packet in virtual time: an Ethernet's.
const PACKET_BYTES_SIMULATED: usize = 1500 - HEADERS_V4;

/// The longest packet assumed if nothing is known [rfc9000, §14].
const PACKET_BYTES_UNKNOWN: usize = 1200;

/// A NIC over UDP.
pub type Udp = SoftwareNic<UdpWire>;

impl Udp {
    /// Makes a NIC on a socket at `address`, where peers reach it under exactly that address; port 0 is
    /// any free port. Only NICs with the same secret and configuration can connect.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a wildcard address (name the one that peers use);
    /// [`io::ErrorKind::AddrInUse`] and other errors from the kernel.
    pub fn bind(
        address: SocketAddr,
        secret: Secret,
        config: SoftwareNicConfig,
    ) -> io::Result<Self> {
        let wire = UdpWire::bind(address)?;
        Ok(Self::new(wire, secret, config, random()?))
    }
}

/// UDP sockets bound to one address, for a software NIC.
#[derive(Debug)]
pub struct UdpWire(Carrier);

#[derive(Debug)]
enum Carrier {
    Kernel { sockets: SocketSet, packets_max: usize },
    Simulated { socket: SimulatedUdp, address: SocketAddr },
}

impl UdpWire {
    /// Binds a socket.
    ///
    /// # Errors
    /// As [`Udp::bind`].
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        if address.ip().is_unspecified() {
            let what = "a NIC over UDP needs the address that its peers use, not any of this host";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if let Some(socket) = SimulatedUdp::bind(address)? {
            let address = socket.local_addr()?;
            return Ok(Self(Carrier::Simulated { socket, address }));
        }
        let socket = UdpSocket::bind(address)?;
        // Setting a segment length of zero is allowed exactly where setting any is.
        let cuts = sys::set_segment(socket.as_fd(), 0).is_ok();
        let packets_max = if cuts { SEGMENTS_MAX } else { 1 };
        Ok(Self(Carrier::Kernel { sockets: SocketSet::new(socket)?, packets_max }))
    }
}

impl Wire for UdpWire {
    type Path = SocketAddr;

    const NAME: &'static str = "udp";

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn path(&self) -> SocketAddr {
        match &self.0 {
            Carrier::Kernel { sockets, .. } => sockets.address(),
            Carrier::Simulated { address, .. } => *address,
        }
    }

    fn send(&mut self, to: SocketAddr, packets: &[u8], packet_bytes: usize) -> io::Result<()> {
        match &mut self.0 {
            Carrier::Kernel { sockets, .. } => {
                sockets.socket_to(to).send(to, packets, packet_bytes)
            }
            Carrier::Simulated { socket, .. } => {
                for packet in packets.chunks(packet_bytes) {
                    socket.send_to(packet, to)?;
                }
                Ok(())
            }
        }
    }

    fn send_gathered(
        &mut self,
        to: SocketAddr,
        packets: &Gather,
        packet_bytes: usize,
    ) -> io::Result<()> {
        if let Carrier::Kernel { sockets, .. } = &mut self.0 {
            return sockets.socket_to(to).send_gathered(to, packets, packet_bytes);
        }
        let mut bytes = Vec::with_capacity(packets.len());
        packets.copy_onto(&mut bytes)?;
        self.send(to, &bytes, packet_bytes)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        match &mut self.0 {
            Carrier::Kernel { sockets, .. } => sockets.receive(buffer),
            Carrier::Simulated { socket, .. } => match socket.recv_from(buffer) {
                Ok(found) => Ok(Some(found)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    fn packets_max(&self) -> usize {
        match &self.0 {
            Carrier::Kernel { packets_max, .. } => *packets_max,
            Carrier::Simulated { .. } => 1,
        }
    }

    fn packet_bytes(&mut self, to: SocketAddr) -> usize {
        match &self.0 {
            Carrier::Kernel { sockets, .. } => {
                route_bytes(sockets.address().ip(), to).unwrap_or(PACKET_BYTES_UNKNOWN)
            }
            Carrier::Simulated { .. } => PACKET_BYTES_SIMULATED,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Carrier::Kernel { sockets, .. } => Some(sockets.descriptor()),
            Carrier::Simulated { socket, .. } => Some(socket.as_fd()),
        }
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        match &mut self.0 {
            Carrier::Kernel { sockets, .. } => sockets.arm(),
            Carrier::Simulated { socket, .. } => Ok(ArmOutcome::ready_if(socket.has_datagram())),
        }
    }
}

/// Asks the kernel how long UDP packets on the path to an address may be.
fn route_bytes(from: IpAddr, to: SocketAddr) -> io::Result<usize> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    let (bytes, headers) = if to.is_ipv4() {
        (rustix::net::sockopt::ip_mtu(&socket)?, HEADERS_V4)
    } else {
        (rustix::net::sockopt::ipv6_mtu(&socket)?, HEADERS_V6)
    };
    Ok(usize::try_from(bytes).unwrap_or(PACKET_BYTES_UNKNOWN).saturating_sub(headers))
}

/// An IP address, then the port, each with its most significant byte first.
impl Path for SocketAddr {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = match self.ip() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        bytes.extend(self.port().to_be_bytes());
        if let Self::V6(address) = self {
            bytes.extend(address.scope_id().to_be_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if let Ok([a, b, c, d, high, low]) = <[u8; 6]>::try_from(bytes) {
            return Some(Self::from(([a, b, c, d], u16::from_be_bytes([high, low]))));
        }
        let (address, rest) = bytes.split_first_chunk::<16>()?;
        let [high, low, scope @ ..] = <[u8; 6]>::try_from(rest).ok()?;
        let port = u16::from_be_bytes([high, low]);
        let scope = u32::from_be_bytes(scope);
        Some(Self::V6(std::net::SocketAddrV6::new((*address).into(), port, 0, scope)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: addresses come back as they were given. Method: both kinds, and garbage.
    #[test]
    fn addresses_are_read_as_written() {
        for text in ["127.0.0.1:80", "10.1.2.3:65535", "[::1]:80", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(SocketAddr::from_bytes(&address.to_bytes()), Some(address));
        }
        for length in (0..30).filter(|length| ![6, 22].contains(length)) {
            assert_eq!(SocketAddr::from_bytes(&vec![1; length]), None);
        }
    }

    /// Goal: the socket is bound no wider than asked. Method: ask for the wildcard address.
    #[test]
    fn any_address_is_refused() {
        for text in ["0.0.0.0:0", "[::]:0"] {
            let found = UdpWire::bind(text.parse().expect("an address"));
            let error = found.expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    /// Goal: a port that is taken is reported. Method: bind twice.
    #[test]
    fn a_port_is_taken_once() {
        let first = UdpWire::bind("127.0.0.1:0".parse().expect("an address")).expect("free");
        let error = UdpWire::bind(first.path()).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    /// Goal: packets arrive whole, whatever the kernel glues, cuts or refuses to cut. Method: batches of
    /// several lengths between two sockets, taken apart by length.
    #[test]
    fn batches_arrive_whole() {
        let any = || "127.0.0.1:0".parse().expect("an address");
        let (mut one, mut other) =
            (UdpWire::bind(any()).expect("a socket"), UdpWire::bind(any()).expect("a socket"));
        let to = other.path();
        for (packet_bytes, length) in [(1000, 5500), (100, 100), (1300, 2600), (2000, 1)] {
            let sent: Vec<u8> =
                (0..length).map(|at| u8::try_from(at % 251).expect("small")).collect();
            one.send(to, &sent, packet_bytes).expect("sent");
            let mut found = Vec::new();
            let mut buffer = vec![0; 1 << 16];
            while let Some((count, from)) = other.recv(&mut buffer).expect("readable") {
                assert_eq!(from, one.path());
                found.extend_from_slice(&buffer[..count]);
            }
            assert_eq!(found, sent);
        }
        assert!(one.packet_bytes(to) > 1200);
    }
}
