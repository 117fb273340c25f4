//! Packets as datagrams, over UDP or over a raw link, with multicast where it works.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::BorrowedFd,
    task::Waker,
};

use vigie_detect::ArmOutcome;
use vigie_via::{
    auth,
    datagram::{DatagramError, NodeAddress, PolledDevice, UdpConfig},
    link::{Link, MacAddress},
};

use super::transport::Transport;
use crate::{
    group::Rank,
    packet::{GroupId, PACKET_BYTES_MAX},
    schedule::{Network, Target},
};

/// The number of datagrams taken in one poll: the packets of one barrier and the next one of some hundred members.
/// More stay in the kernel.
const BUFFERS: usize = 256;

/// The longest encoding of an address, in bytes.
const PEER_ADDRESS_BYTES_MAX: usize = 18;

/// The attachment of a member to one network, on which it reaches the others.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetworkAttachment {
    /// UDP, from an address of this host. Multicast needs an address that no other member of the group has.
    Udp(UdpConfig),
    /// Ethernet frames on an interface, one member per interface.
    Link(Box<Link>),
}

impl From<UdpConfig> for NetworkAttachment {
    fn from(config: UdpConfig) -> Self {
        Self::Udp(config)
    }
}

impl From<IpAddr> for NetworkAttachment {
    fn from(address: IpAddr) -> Self {
        Self::Udp(UdpConfig::new(address))
    }
}

impl From<Link> for NetworkAttachment {
    fn from(link: Link) -> Self {
        Self::Link(Box::new(link))
    }
}

/// The address of a member on one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerAddress {
    pub(super) node: NodeAddress,
    pub(super) port: u8,
}

impl PeerAddress {
    /// `6, address, port`, `4, address, port`, or `1, address, port`.
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = match self.node {
            NodeAddress::Ip(IpAddr::V4(address)) => [&[4], &address.octets()[..]].concat(),
            NodeAddress::Ip(IpAddr::V6(address)) => [&[6], &address.octets()[..]].concat(),
            NodeAddress::Mac(address) => [&[1], &address.0[..]].concat(),
            // There is no other kind yet; an unknown one is refused by the reader.
            _ => vec![0],
        };
        bytes.push(self.port);
        debug_assert!(bytes.len() <= PEER_ADDRESS_BYTES_MAX, "an address");
        bytes
    }

    /// Reads the address at the front, and returns the rest.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&kind, rest) = bytes.split_first()?;
        let (node, rest) = match kind {
            4 => {
                let (octets, rest) = rest.split_first_chunk::<4>()?;
                (NodeAddress::Ip(Ipv4Addr::from(*octets).into()), rest)
            }
            6 => {
                let (octets, rest) = rest.split_first_chunk::<16>()?;
                (NodeAddress::Ip(Ipv6Addr::from(*octets).into()), rest)
            }
            1 => {
                let (octets, rest) = rest.split_first_chunk::<6>()?;
                (NodeAddress::Mac(MacAddress(*octets)), rest)
            }
            _ => return None,
        };
        let (&port, rest) = rest.split_first()?;
        Some((Self { node, port }, rest))
    }
}

/// One network: a device, and the addresses of the members.
#[derive(Debug)]
struct NetworkDevice {
    device: PolledDevice,
    port: u8,
    /// By rank.
    peers: Vec<PeerAddress>,
    /// The address at which one datagram reaches all.
    group: Option<PeerAddress>,
}

/// Members on one or two networks.
#[derive(Debug)]
pub(super) struct DatagramTransport {
    own: Rank,
    devices: Vec<NetworkDevice>,
}

impl DatagramTransport {
    /// Opens a port on each of the interfaces.
    pub(super) fn open(
        own: Rank,
        attachments: Vec<NetworkAttachment>,
        port: u8,
    ) -> Result<Self, DatagramError> {
        let open = |interface| {
            let mut device = match interface {
                NetworkAttachment::Udp(config) => PolledDevice::over_udp(config)?,
                NetworkAttachment::Link(link) => PolledDevice::over_link(*link),
            };
            device.acquire_port(port)?;
            let length = PACKET_BYTES_MAX.min(device.payload_max());
            for _ in 0..BUFFERS {
                // It accepts four times as many.
                let _ = device.post(port, vec![0; length]);
            }
            Ok(NetworkDevice { device, port, peers: Vec::new(), group: None })
        };
        let devices: Result<_, DatagramError> = attachments.into_iter().map(open).collect();
        Ok(Self { own, devices: devices? })
    }

    /// Returns the longest packet in bytes.
    pub(super) fn packet_bytes_max(&self) -> usize {
        self.devices.iter().map(|net| net.device.payload_max()).min().unwrap_or(0)
    }

    /// Returns this member's addresses, for the others.
    pub(super) fn address(&self) -> Vec<u8> {
        let peer =
            |net: &NetworkDevice| PeerAddress { node: net.device.node(), port: net.port }.encode();
        self.devices.iter().flat_map(peer).collect()
    }

    /// Learns the addresses of all members. Returns the rank whose address is missing or of another kind.
    pub(super) fn connect(&mut self, addresses: &[Vec<u8>]) -> Result<(), Rank> {
        for (rank, bytes) in (0..).map(Rank).zip(addresses) {
            let mut rest = &bytes[..];
            for net in &mut self.devices {
                let Some((peer, behind)) = PeerAddress::decode(rest) else { return Err(rank) };
                let is_alike = matches!(
                    (peer.node, net.device.node()),
                    (NodeAddress::Ip(IpAddr::V4(_)), NodeAddress::Ip(IpAddr::V4(_)))
                        | (NodeAddress::Ip(IpAddr::V6(_)), NodeAddress::Ip(IpAddr::V6(_)))
                        | (NodeAddress::Mac(_), NodeAddress::Mac(_))
                );
                if !is_alike || peer.node.is_group() {
                    return Err(rank);
                }
                net.peers.push(peer);
                rest = behind;
            }
            if !rest.is_empty() {
                return Err(rank);
            }
        }
        Ok(())
    }

    /// Returns why multicast cannot work with these addresses, if so: it needs the same port at all members, and
    /// separate nodes.
    pub(super) fn multicast_obstacle(&self) -> Option<&'static str> {
        for net in &self.devices {
            if net.peers.iter().any(|peer| peer.port != net.port) {
                return Some("the members have different ports: give all of them the same");
            }
            let nodes: BTreeSet<NodeAddress> = net.peers.iter().map(|peer| peer.node).collect();
            if nodes.len() != net.peers.len() {
                return Some(
                    "members share an address: give each of them one of its own (on one host, 127.0.0.2, 127.0.0.3, …)",
                );
            }
        }
        None
    }

    /// Joins the group of each network: `wanted`, or one derived from the name.
    pub(super) fn join(
        &mut self,
        id: GroupId,
        wanted: Option<NodeAddress>,
    ) -> Result<(), DatagramError> {
        for net in &mut self.devices {
            let like = net.device.node();
            let group = wanted.filter(|group| is_like(*group, like));
            let group = group.map_or_else(|| group_of(id, like), Ok)?;
            net.device.join_group(group)?;
            net.group = Some(PeerAddress { node: group, port: net.port });
        }
        Ok(())
    }

    /// Multicasts one packet to all on that network.
    pub(super) fn multicast_on(
        &mut self,
        index: usize,
        packet: &[u8],
    ) -> Result<(), DatagramError> {
        if let Some(net) = self.devices.get_mut(index)
            && let Some(group) = net.group
        {
            net.device.try_send(net.port, group.node, group.port, packet)?;
        }
        Ok(())
    }

    /// Passes every packet that is there to `take`, with its network, and whether it came by multicast.
    pub(super) fn receive_all(
        &mut self,
        mut take: impl FnMut(usize, bool, &[u8]),
    ) -> Result<(), DatagramError> {
        for (index, net) in self.devices.iter_mut().enumerate() {
            net.device.recv_each(net.port, |received| {
                take(index, received.is_multicast, received.payload());
            })?;
        }
        Ok(())
    }

    /// Called if no other member shares this one's node, where its multicasts would be looped back.
    pub(super) fn disable_loopback(&mut self) -> Result<(), DatagramError> {
        self.devices.iter_mut().try_for_each(|net| net.device.disable_loopback())
    }

    /// Returns how many networks there are.
    pub(super) const fn network_count(&self) -> usize {
        self.devices.len()
    }

    /// Sends to each member separately from now on.
    pub(super) fn use_unicast(&mut self) {
        for net in &mut self.devices {
            net.group = None;
        }
    }
}

fn is_like(group: NodeAddress, node: NodeAddress) -> bool {
    matches!(
        (group, node),
        (NodeAddress::Mac(_), NodeAddress::Mac(_)) | (NodeAddress::Ip(_), NodeAddress::Ip(_))
    )
}

/// Returns the group's own address: of the block for private use [RFC 2365], or locally administered.
fn group_of(id: GroupId, like: NodeAddress) -> Result<NodeAddress, DatagramError> {
    // The name itself stays secret.
    let [a, b, c, d, e, ..] = auth::digest(&id.0.to_le_bytes()).to_le_bytes();
    match like {
        NodeAddress::Mac(_) => Ok(NodeAddress::Mac(MacAddress([0x03, a, b, c, d, e]))),
        NodeAddress::Ip(IpAddr::V4(_)) => {
            // 239.192.0.0/14.
            Ok(NodeAddress::Ip(Ipv4Addr::new(239, 192 | (a & 3), b, c).into()))
        }
        node => {
            Err(DatagramError::WrongNode { node, wanted: "an address of IP version 4 or Ethernet" })
        }
    }
}

fn failed(error: DatagramError) -> io::Error {
    match error {
        DatagramError::Kernel { source, .. } => source,
        error => io::Error::other(error),
    }
}

impl Transport for DatagramTransport {
    #[inline]
    fn send(&mut self, to: Target, network: Network, packet: &[u8]) -> io::Result<()> {
        let index = usize::from(network == Network::Second).min(self.devices.len() - 1);
        let Some(net) = self.devices.get_mut(index) else { return Ok(()) };
        let port = net.port;
        match (to, net.group) {
            (Target::Member(rank), _) => {
                let Some(peer) = net.peers.get(rank.index()) else { return Ok(()) };
                net.device.try_send(port, peer.node, peer.port, packet).map_err(failed)
            }
            (Target::Everyone, Some(group)) => {
                net.device.try_send(port, group.node, group.port, packet).map_err(failed)
            }
            (Target::Everyone, None) => {
                let mut result = Ok(());
                for (rank, peer) in (0..).map(Rank).zip(&net.peers) {
                    if rank != self.own
                        && let Err(error) = net.device.try_send(port, peer.node, peer.port, packet)
                    {
                        result = Err(failed(error));
                    }
                }
                result
            }
        }
    }

    #[inline]
    fn recv_each(&mut self, _: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.receive_all(|_, _, packet| take(packet)).map_err(failed)
    }

    fn arm(&mut self, _: &Waker) -> io::Result<ArmOutcome> {
        let mut is_ready = false;
        for net in &mut self.devices {
            is_ready |= net.device.arm()?.is_ready();
        }
        Ok(ArmOutcome::ready_if(is_ready))
    }

    fn descriptors(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.devices.iter().for_each(|net| each(net.device.descriptor()));
    }

    // `next_dead` keeps its default: an answer of a peer's kernel can be forged.

    fn shrink(&mut self, survivors: &[Rank]) {
        let place = survivors.iter().position(|rank| *rank == self.own);
        for net in &mut self.devices {
            let peers = std::mem::take(&mut net.peers);
            net.peers =
                survivors.iter().filter_map(|rank| peers.get(rank.index()).copied()).collect();
        }
        self.own = Rank(place.and_then(|place| u32::try_from(place).ok()).unwrap_or(self.own.0));
    }
}
