//! vigie's datagrams: a port of each rank, looked at again and again.

use std::net::Ipv4Addr;
use std::time::Duration;

use vigie_detect::{HostThread, Server};
use vigie_via::datagram::{DatagramError, Device, NodeAddress, Port, UdpConfig};
use vigie_via::link::{BackEnd, Link, MacAddress};

use super::polling::{BYTES_MAX, TIMEOUT, WINDOW, has, polling};
use crate::clock::{now, sleep};
use crate::error::Failure;
use crate::host::Arena;
use crate::host::namespaces;
use crate::messages::socket::wait_posted;
use crate::messages::{Carrier, CarrierKind, Channel, RankContext, blocking};

/// Over UDP and the loopback interface.
pub(super) static UDP: Carrier = Carrier {
    name: "datagram-udp",
    label: "vigie, datagrams over UDP, loopback",
    family: "datagram",
    kind: CarrierKind::Vigie,
    has,
    link_bytes: 0,
    is_remote: false,
    open: |context| {
        let address = loopback(context.token);
        blocking(PortEndpoint::over_udp(context, |_| address))
    },
    program: None,
};

/// Over UDP and a veth pair.
pub(super) static UDP_VETH: Carrier = Carrier {
    name: "datagram-udp-veth",
    label: "vigie, datagrams over UDP, veth",
    is_remote: true,
    open: |context| blocking(PortEndpoint::over_udp(context, namespaces::address)),
    ..UDP
};

/// Over a link of AF_PACKET on a veth pair.
pub(super) static LINK: Carrier = Carrier {
    name: "datagram-link",
    label: "vigie, datagrams over a link (AF_PACKET), veth",
    is_remote: true,
    open: |context| blocking(PortEndpoint::over_link(context, BackEnd::PacketRings)),
    ..UDP
};

/// Over a link of AF_XDP on a veth pair.
pub(super) static XDP: Carrier = Carrier {
    name: "datagram-xdp",
    label: "vigie, datagrams over a link (AF_XDP), veth",
    is_remote: true,
    open: |context| blocking(PortEndpoint::over_link(context, BackEnd::Xdp)),
    ..UDP
};

/// How long the kernel may take to give a queue of AF_XDP free after its last owner has ended.
const QUEUE_PATIENCE: Duration = Duration::from_secs(5);

/// Tells addresses of Ethernet on the board from no address yet.
const IS_POSTED: u64 = 1 << 48;

/// One rank's port, and where the other one is.
#[derive(Debug)]
struct PortEndpoint {
    port: Port,
    to: NodeAddress,
    to_port: u8,
    // Those who serve it end with it.
    _device: Device,
    _host: HostThread,
}

/// An address of the loopback interface that no other run has: two may be under way at a time.
fn loopback(token: u64) -> Ipv4Addr {
    // The process of the parent is in the lower half, and has at most 22 bits.
    let [low, middle, high, ..] = token.to_le_bytes();
    Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low)
}

fn failed(error: DatagramError) -> Failure {
    Failure::runtime(error)
}

impl PortEndpoint {
    fn over_udp(context: &RankContext, address: impl Fn(u32) -> Ipv4Addr) -> Result<Self, Failure> {
        let arena = Arena::open(&context.memory)?;
        let host = Server::spawn_thread().map_err(Failure::io("starting a detection server"))?;
        let config = UdpConfig::new(address(context.rank).into());
        let device = Device::over_udp(host.server(), config).map_err(failed)?;
        let to = NodeAddress::Ip(address(context.next()).into());
        Self::open(context, &arena, host, device, || Ok((1, to)))
    }

    fn over_link(context: &RankContext, back_end: BackEnd) -> Result<Self, Failure> {
        let arena = Arena::open(&context.memory)?;
        let host = Server::spawn_thread().map_err(Failure::io("starting a detection server"))?;
        let link = open_link(back_end)?;
        let [a, b, c, d, e, f] = link.address().0;
        let own = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let device = Device::over_link(host.server(), link).map_err(failed)?;
        Self::open(context, &arena, host, device, || {
            Ok((IS_POSTED | own, NodeAddress::Mac(MacAddress([0; 6]))))
        })
    }

    /// Acquires the port, fills it with buffers, and finds the other rank. `own` gives the word that this one
    /// leaves on the board, and the other one's node if it need not be told.
    fn open(
        context: &RankContext,
        arena: &Arena,
        host: HostThread,
        device: Device,
        own: impl FnOnce() -> Result<(u64, NodeAddress), Failure>,
    ) -> Result<Self, Failure> {
        let number = |rank: u32| u8::try_from(rank).map_err(Failure::runtime);
        let port = device.acquire_port(number(context.rank)?).map_err(failed)?;
        for _ in 0..2 * WINDOW {
            let buffer = vec![0; usize::try_from(BYTES_MAX).map_err(Failure::runtime)?];
            port.post(buffer).map_err(Failure::runtime)?;
        }
        let (word, mut to) = own()?;
        arena.post(context.rank, word);
        let posted = wait_posted(arena, context.next())?;
        if let NodeAddress::Mac(address) = &mut to {
            let [_, _, a, b, c, d, e, f] = posted.to_be_bytes();
            *address = MacAddress([a, b, c, d, e, f]);
        }
        let to_port = number(context.next())?;
        Ok(Self { port, to, to_port, _device: device, _host: host })
    }
}

/// Opens the rank's end of the pair.
fn open_link(back_end: BackEnd) -> Result<Link, Failure> {
    let begun = now();
    loop {
        match Link::builder(namespaces::INTERFACE).back_end(back_end).open() {
            Err(error) if error.is_in_use() && begun.elapsed() < QUEUE_PATIENCE => {
                sleep(Duration::from_millis(1));
            }
            opened => return opened.map_err(Failure::runtime),
        }
    }
}

impl Channel for PortEndpoint {
    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        polling(TIMEOUT, || match self.port.try_send(self.to, self.to_port, message) {
            Ok(()) => Ok(Some(())),
            // The other end of the pair comes up a moment later.
            Err(DatagramError::Full | DatagramError::Down) => Ok(None),
            Err(error) => Err(failed(error)),
        })
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
        let received = polling(TIMEOUT, || self.port.try_recv().map_err(failed))?;
        let datagram = received.payload();
        if datagram.len() != message.len() {
            return Err(Failure::runtime(format!("a datagram of {} bytes", datagram.len())));
        }
        message.copy_from_slice(datagram);
        self.port.post(received.buffer).map_err(Failure::runtime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_loopback_addresses_of_their_own() {
        // Goal: two parents' runs do not meet. Method: the least and the largest process id.
        assert_eq!(loopback(7 << 32 | 1), Ipv4Addr::new(127, 64, 0, 1));
        assert_eq!(loopback((1 << 22) - 1), Ipv4Addr::new(127, 64 | 0x3f, 255, 255));
        assert_eq!(loopback(0x01_0203), Ipv4Addr::new(127, 65, 2, 3));
    }
}
