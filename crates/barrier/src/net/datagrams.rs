//! Packets as datagrams, over UDP or over a raw link, with multicast where it works.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::BorrowedFd,
    task::Waker,
};

use siphasher::sip::SipHasher24;
use vigie_via::{
    datagram::{DatagramError, Node, UdpSettings, Unhosted},
    link::{Link, MacAddress},
};

use super::transport::Transport;
use crate::{
    group::Rank,
    packet::{GroupId, PACKET_BYTES_MAX},
    schedule::{Network, Target},
};

/// Datagrams that one look takes in: the packets of one barrier and the next one of some hundred members. More stay in
/// the kernel.
const BUFFERS: usize = 256;

/// Longest encoding of an address, in bytes.
const PEER_BYTES_MAX: usize = 18;

/// By what a member reaches the others.
#[derive(Debug)]
#[non_exhaustive]
pub enum Interface {
    /// UDP, from an address of this host. Multicast needs one that no other member of the group has.
    Udp(UdpSettings),
    /// Ethernet frames on an interface, one member on each.
    Link(Box<Link>),
}

impl From<UdpSettings> for Interface {
    fn from(settings: UdpSettings) -> Self {
        Self::Udp(settings)
    }
}

impl From<IpAddr> for Interface {
    fn from(address: IpAddr) -> Self {
        Self::Udp(UdpSettings::new(address))
    }
}

impl From<Link> for Interface {
    fn from(link: Link) -> Self {
        Self::Link(Box::new(link))
    }
}

/// Where a member is on one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) node: Node,
    pub(super) port: u8,
}

impl Peer {
    /// `6, address, port`, `4, address, port`, or `1, address, port`.
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = match self.node {
            Node::Ip(IpAddr::V4(address)) => [&[4], &address.octets()[..]].concat(),
            Node::Ip(IpAddr::V6(address)) => [&[6], &address.octets()[..]].concat(),
            Node::Mac(address) => [&[1], &address.0[..]].concat(),
            // There is no other yet; what cannot be read is refused where it is read.
            _ => vec![0],
        };
        bytes.push(self.port);
        debug_assert!(bytes.len() <= PEER_BYTES_MAX, "an address");
        bytes
    }

    /// Reads the address at the front, and returns the rest.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&kind, rest) = bytes.split_first()?;
        let (node, rest) = match kind {
            4 => {
                let (octets, rest) = rest.split_first_chunk::<4>()?;
                (Node::Ip(Ipv4Addr::from(*octets).into()), rest)
            }
            6 => {
                let (octets, rest) = rest.split_first_chunk::<16>()?;
                (Node::Ip(Ipv6Addr::from(*octets).into()), rest)
            }
            1 => {
                let (octets, rest) = rest.split_first_chunk::<6>()?;
                (Node::Mac(MacAddress(*octets)), rest)
            }
            _ => return None,
        };
        let (&port, rest) = rest.split_first()?;
        Some((Self { node, port }, rest))
    }
}

/// One network: a device, and where the members are on it.
#[derive(Debug)]
struct Net {
    device: Unhosted,
    port: u8,
    /// By rank.
    peers: Vec<Peer>,
    /// Where one datagram reaches all.
    group: Option<Peer>,
}

/// Members on one or two networks.
#[derive(Debug)]
pub(super) struct Datagrams {
    own: Rank,
    nets: Vec<Net>,
}

impl Datagrams {
    /// Opens a port on each of the interfaces.
    pub(super) fn open(
        own: Rank,
        interfaces: Vec<Interface>,
        port: u8,
    ) -> Result<Self, DatagramError> {
        let open = |interface| {
            let mut device = match interface {
                Interface::Udp(settings) => Unhosted::over_udp(settings)?,
                Interface::Link(link) => Unhosted::over_link(*link),
            };
            device.acquire(port)?;
            let length = PACKET_BYTES_MAX.min(device.payload_max());
            for _ in 0..BUFFERS {
                // It takes four times as many.
                let _ = device.post(port, vec![0; length]);
            }
            Ok(Net { device, port, peers: Vec::new(), group: None })
        };
        let nets: Result<_, DatagramError> = interfaces.into_iter().map(open).collect();
        Ok(Self { own, nets: nets? })
    }

    /// Returns the longest packet in bytes.
    pub(super) fn packet_bytes_max(&self) -> usize {
        self.nets.iter().map(|net| net.device.payload_max()).min().unwrap_or(0)
    }

    /// Returns where this member is, for the others.
    pub(super) fn address(&self) -> Vec<u8> {
        let peer = |net: &Net| Peer { node: net.device.node(), port: net.port }.encode();
        self.nets.iter().flat_map(peer).collect()
    }

    /// Learns where all members are. Returns the rank whose address is of another kind or none.
    pub(super) fn connect(&mut self, addresses: &[Vec<u8>]) -> Result<(), Rank> {
        for (rank, bytes) in (0..).map(Rank).zip(addresses) {
            let mut rest = &bytes[..];
            for net in &mut self.nets {
                let Some((peer, behind)) = Peer::decode(rest) else { return Err(rank) };
                let is_alike = matches!(
                    (peer.node, net.device.node()),
                    (Node::Ip(IpAddr::V4(_)), Node::Ip(IpAddr::V4(_)))
                        | (Node::Ip(IpAddr::V6(_)), Node::Ip(IpAddr::V6(_)))
                        | (Node::Mac(_), Node::Mac(_))
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

    /// Returns why multicast cannot work with these addresses, if so: one port of all, and a node for each.
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        for net in &self.nets {
            if net.peers.iter().any(|peer| peer.port != net.port) {
                return Some("the members have different ports: give all of them the same");
            }
            let nodes: BTreeSet<Node> = net.peers.iter().map(|peer| peer.node).collect();
            if nodes.len() != net.peers.len() {
                return Some(
                    "members share an address: give each of them one of its own (on one host, 127.0.0.2, 127.0.0.3, …)",
                );
            }
        }
        None
    }

    /// Joins the group of each network: `wanted`, or one that is made of the name.
    pub(super) fn join(&mut self, id: GroupId, wanted: Option<Node>) -> Result<(), DatagramError> {
        for net in &mut self.nets {
            let like = net.device.node();
            let group = wanted.filter(|group| is_like(*group, like));
            let group = group.map_or_else(|| group_of(id, like), Ok)?;
            net.device.join(group)?;
            net.group = Some(Peer { node: group, port: net.port });
        }
        Ok(())
    }

    /// Sends one packet to all by multicast on that network.
    pub(super) fn multicast_on(
        &mut self,
        index: usize,
        packet: &[u8],
    ) -> Result<(), DatagramError> {
        if let Some(net) = self.nets.get_mut(index)
            && let Some(group) = net.group
        {
            net.device.try_send(net.port, group.node, group.port, packet)?;
        }
        Ok(())
    }

    /// Gives every packet that is there to `take`, with the network by which it came, and whether by multicast.
    pub(super) fn take_all(
        &mut self,
        mut take: impl FnMut(usize, bool, &[u8]),
    ) -> Result<(), DatagramError> {
        for (index, net) in self.nets.iter_mut().enumerate() {
            net.device.receive_each(net.port, |received| {
                take(index, received.is_multicast, received.payload());
            })?;
        }
        Ok(())
    }

    /// No other member is where this one's multicasts would come back to.
    pub(super) fn quiet_loop(&mut self) -> Result<(), DatagramError> {
        self.nets.iter_mut().try_for_each(|net| net.device.quiet_loop())
    }

    /// Returns how many networks there are.
    pub(super) const fn networks(&self) -> usize {
        self.nets.len()
    }

    /// Sends to each member by itself from now on.
    pub(super) fn use_unicast(&mut self) {
        for net in &mut self.nets {
            net.group = None;
        }
    }
}

fn is_like(group: Node, node: Node) -> bool {
    matches!((group, node), (Node::Mac(_), Node::Mac(_)) | (Node::Ip(_), Node::Ip(_)))
}

/// Returns the group's own address: of the block for private use [RFC 2365], or locally administered.
fn group_of(id: GroupId, like: Node) -> Result<Node, DatagramError> {
    let [a, b, c, d, e, ..] = hash(id).to_le_bytes();
    match like {
        Node::Mac(_) => Ok(Node::Mac(MacAddress([0x03, a, b, c, d, e]))),
        Node::Ip(IpAddr::V4(_)) => {
            // 239.192.0.0/14.
            Ok(Node::Ip(Ipv4Addr::new(239, 192 | (a & 3), b, c).into()))
        }
        node => {
            Err(DatagramError::WrongNode { node, wanted: "an address of IP version 4 or Ethernet" })
        }
    }
}

/// The name itself is told to nobody.
fn hash(id: GroupId) -> u64 {
    SipHasher24::new_with_keys(0, 0).hash(&id.0.to_le_bytes())
}

fn failed(error: DatagramError) -> io::Error {
    match error {
        DatagramError::Kernel { source, .. } => source,
        error => io::Error::other(error),
    }
}

impl Transport for Datagrams {
    #[inline]
    fn send(&mut self, to: Target, network: Network, packet: &[u8]) -> io::Result<()> {
        let index = usize::from(network == Network::Second).min(self.nets.len() - 1);
        let Some(net) = self.nets.get_mut(index) else { return Ok(()) };
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
    fn receive(&mut self, _: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.take_all(|_, _, packet| take(packet)).map_err(failed)
    }

    fn arm(&mut self, _: &Waker) -> io::Result<bool> {
        let mut is_ready = false;
        for net in &mut self.nets {
            is_ready |= net.device.arm()?;
        }
        Ok(is_ready)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.nets.iter().map(|net| net.device.descriptor()).collect()
    }

    fn next_dead(&mut self) -> Option<Rank> {
        // Silence alone tells: an answer of a peer's kernel can be forged.
        None
    }

    fn shrink(&mut self, survivors: &[Rank]) {
        let place = survivors.iter().position(|rank| *rank == self.own);
        for net in &mut self.nets {
            let peers = std::mem::take(&mut net.peers);
            net.peers =
                survivors.iter().filter_map(|rank| peers.get(rank.index()).copied()).collect();
        }
        self.own = Rank(place.and_then(|place| u32::try_from(place).ok()).unwrap_or(self.own.0));
    }
}
