//! Parses the messages of the kernel's routing socket into events.

use std::{net::IpAddr, num::NonZeroU16};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage},
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteType, RouteVia,
    },
};
use vigie::forward::tables::Prefix;

use super::cache::{Address, Hop, Interface, Neighbour, NetlinkEvent, Route, Target};

/// The routing table with the kernel's own addresses.
const TABLE_LOCAL: u32 = 255;
const MESSAGE_HEADER_BYTES: usize = 16;
/// The kinds of messages about next hops with a number of their own, which the library does not know.
const NEXT_HOP_KINDS: std::ops::RangeInclusive<u16> = 104..=106;

/// A query to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DumpRequest {
    Interfaces,
    Addresses,
    Routes,
    Neighbours,
}

impl DumpRequest {
    pub(super) const ALL: [Self; 4] =
        [Self::Interfaces, Self::Addresses, Self::Routes, Self::Neighbours];

    /// Returns the bytes of a query for all entries.
    pub(super) fn bytes(self) -> Vec<u8> {
        let message = match self {
            Self::Interfaces => RouteNetlinkMessage::GetLink(LinkMessage::default()),
            Self::Addresses => RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            Self::Routes => RouteNetlinkMessage::GetRoute(RouteMessage::default()),
            Self::Neighbours => RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
        };
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }
}

/// The content of a packet from the kernel.
#[derive(Debug, Default)]
pub(super) struct ParsedPacket {
    pub(super) events: Vec<NetlinkEvent>,
    /// The answer is complete.
    pub(super) is_done: bool,
    /// The tables changed during the answer: it may be inconsistent.
    pub(super) is_inconsistent: bool,
    /// The kernel's refusal, as an errno.
    pub(super) refusal: Option<i32>,
    /// Messages that could not be parsed.
    pub(super) unreadable: u64,
}

/// Parses the messages of one packet. Routes of tables other than `table` and the local one are left out.
pub(super) fn read(mut bytes: &[u8], table: u32) -> ParsedPacket {
    let mut read = ParsedPacket::default();
    while let Some(length) = length_at(bytes) {
        let Some(message) = bytes.get(..length).filter(|_| length >= MESSAGE_HEADER_BYTES) else {
            read.unreadable += 1;
            return read;
        };
        let kind = message.get(4..).and_then(|bytes| bytes.first_chunk());
        if kind.is_some_and(|kind| NEXT_HOP_KINDS.contains(&u16::from_ne_bytes(*kind))) {
            read.events.push(NetlinkEvent::NextHops);
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            continue;
        }
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) {
            Ok(message) => {
                let (header, payload) = message.into_parts();
                read.is_inconsistent |= header.flags & NLM_F_DUMP_INTR != 0;
                match payload {
                    NetlinkPayload::InnerMessage(message) => {
                        read.events.extend(event_of(&message, table));
                    }
                    NetlinkPayload::Done(_) => read.is_done = true,
                    NetlinkPayload::Error(error) => {
                        read.refusal = error.code.map(|code| code.get().saturating_neg());
                    }
                    NetlinkPayload::Overrun(_) => read.is_inconsistent = true,
                    _ => {}
                }
            }
            Err(_) => read.unreadable += 1,
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    read
}

fn length_at(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()
}

fn event_of(message: &RouteNetlinkMessage, table: u32) -> Option<NetlinkEvent> {
    match message {
        RouteNetlinkMessage::NewLink(link) => interface_of(link).map(NetlinkEvent::Interface),
        RouteNetlinkMessage::DelLink(link) => {
            // Other families report something else: an interface that leaves its bridge is "deleted".
            let is_own = link.header.interface_family == AddressFamily::Unspec;
            is_own.then_some(NetlinkEvent::InterfaceGone(link.header.index))
        }
        RouteNetlinkMessage::NewAddress(address) => {
            Some(address_of(address).map_or(NetlinkEvent::Addresses, NetlinkEvent::Address))
        }
        RouteNetlinkMessage::DelAddress(_) => Some(NetlinkEvent::Addresses),
        RouteNetlinkMessage::NewRoute(route) => route_of(route, table).map(NetlinkEvent::Route),
        RouteNetlinkMessage::DelRoute(route) => route_of(route, table).map(NetlinkEvent::RouteGone),
        RouteNetlinkMessage::NewNeighbour(one) => neighbour_of(one).map(NetlinkEvent::Neighbour),
        RouteNetlinkMessage::DelNeighbour(one) => {
            neighbour_of(one).map(NetlinkEvent::NeighbourGone)
        }
        _ => None,
    }
}

fn interface_of(link: &LinkMessage) -> Option<Interface> {
    if link.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let flags = link.header.flags;
    let mut interface = Interface {
        index: link.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        is_up: flags.contains(LinkFlags::Up) && flags.contains(LinkFlags::Running),
        is_pair: false,
        vlan_of: None,
        is_headerless: matches!(
            link.header.link_layer_type,
            LinkLayerType::None | LinkLayerType::Tunnel
        ),
        is_without_tcx: false,
    };
    let mut begins_with_ip = false;
    let (mut is_vlan, mut is_elsewhere, mut lower) = (false, false, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::LinkInfo(infos) => {
                interface.is_pair = infos.contains(&LinkInfo::Kind(InfoKind::Veth));
                is_vlan = infos.contains(&LinkInfo::Kind(InfoKind::Vlan));
                begins_with_ip = [InfoKind::Tun, InfoKind::Wireguard, InfoKind::IpIp]
                    .into_iter()
                    .any(|kind| infos.contains(&LinkInfo::Kind(kind)));
            }
            LinkAttribute::Link(index) => lower = Some(*index),
            // Then the index is one of another network namespace.
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::Address(bytes) => interface.mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }
    interface.is_without_tcx = interface.is_headerless && !begins_with_ip;
    interface.vlan_of = lower.filter(|_| is_vlan && !is_elsewhere);
    Some(interface)
}

/// Parses an address that can be the source of ICMP errors, and ranks it: permanent before temporary, global before
/// link-local.
fn address_of(message: &AddressMessage) -> Option<Address> {
    let header = &message.header;
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    let of_scope = match header.scope {
        AddressScope::Link => 4,
        AddressScope::Host | AddressScope::Nowhere => return None,
        _ => 0,
    };
    if header.flags.intersects(unusable) {
        return None;
    }
    let is_second = header.flags.contains(AddressHeaderFlags::Secondary);
    let is_old = header.flags.contains(AddressHeaderFlags::Deprecated);
    let rank = of_scope + u8::from(is_second) + 2 * u8::from(is_old);
    let (mut own, mut of_peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link, the other attribute is the peer's.
            AddressAttribute::Local(address) => own = Some(*address),
            AddressAttribute::Address(address) => of_peer = Some(*address),
            _ => {}
        }
    }
    Some(Address { interface: header.index, address: own.or(of_peer)?, rank })
}

fn route_of(message: &RouteMessage, table: u32) -> Option<Route> {
    let header = &message.header;

    // Clones are cached routes of single destinations.
    if header.flags.contains(RouteFlags::Cloned) || header.source_prefix_length != 0 {
        return None;
    }

    let mut of_table = u32::from(header.table);
    let (mut destination, mut metric, mut interface, mut gateway) = (None, 0, None, None);
    let mut hops: &[RouteNextHop] = &[];
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => of_table = *number,
            RouteAttribute::Destination(address) => destination = ip_of(address),
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => gateway = gateway_of(attribute),
            RouteAttribute::MultiPath(all) => hops = all,
            // A tunnel, which this forwarder does not support.
            RouteAttribute::EncapType(_) => return None,
            _ => {}
        }
    }

    if of_table != table && of_table != TABLE_LOCAL {
        return None;
    }

    let address = match (header.address_family, destination) {
        (AddressFamily::Inet | AddressFamily::Inet6, Some(address)) => address,
        (AddressFamily::Inet, None) => IpAddr::from([0; 4]),
        (AddressFamily::Inet6, None) => IpAddr::from([0; 16]),
        _ => return None,
    };

    let target = match header.kind {
        RouteType::Unicast => {
            // Whether they live is told by interfaces and neighbours: the kernel changes its flags silently.
            match hops.iter().filter_map(hop_of).collect::<Vec<_>>().as_slice() {
                [] if hops.is_empty() => Target::Via { interface: interface?, gateway },
                [] => return None,
                [Hop { interface, gateway, .. }] => {
                    Target::Via { interface: *interface, gateway: *gateway }
                }
                several => Target::Spread(several.into()),
            }
        }
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => {
            Target::Local
        }
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => Target::Discard,
        _ => return None,
    };

    let prefix = Prefix::new(address, header.destination_prefix_length).ok()?;
    Some(Route { is_of_other_table: of_table != TABLE_LOCAL, metric, target, prefix })
}

/// Returns a hop, unless it leads into a tunnel.
fn hop_of(hop: &RouteNextHop) -> Option<Hop> {
    let is_tunnel = |attribute: &RouteAttribute| matches!(attribute, RouteAttribute::EncapType(_));
    if hop.attributes.iter().any(is_tunnel) {
        return None;
    }
    let gateway = hop.attributes.iter().find_map(gateway_of);
    // The kernel counts from 0.
    let weight = NonZeroU16::MIN.saturating_add(hop.hops.into());
    Some(Hop { interface: hop.interface_index, gateway, weight })
}

fn gateway_of(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip_of(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

const fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

fn neighbour_of(message: &NeighbourMessage) -> Option<Neighbour> {
    let header = &message.header;
    let is_ip = matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6);

    // A proxy entry is an address that this host answers for.
    if !is_ip || header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }

    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                address = Some(IpAddr::V4(*ip));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => {
                address = Some(IpAddr::V6(*ip));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }

    let is_valid = matches!(
        header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    Some(Neighbour {
        interface: header.ifindex,
        address: address?,
        mac: mac.filter(|_| is_valid),
        is_stale: header.state == NeighbourState::Stale,
        is_failed: header.state == NeighbourState::Failed,
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::{RouteLwEnCapType, RouteNextHopFlags};

    use super::*;

    fn bytes_of(message: RouteNetlinkMessage) -> Vec<u8> {
        let payload = NetlinkPayload::from(message);
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn route(table: u8, attributes: Vec<RouteAttribute>) -> Vec<u8> {
        let mut route = RouteMessage::default();
        route.header.address_family = AddressFamily::Inet;
        route.header.destination_prefix_length = 8;
        route.header.table = table;
        route.header.kind = RouteType::Unicast;
        route.attributes = attributes;
        bytes_of(RouteNetlinkMessage::NewRoute(route))
    }

    /// Goal: relevant routes are parsed, with all hops and their weights, except tunnels, and others are left out; a message about next hops
    /// is noticed. Method: one of each as the kernel writes it.
    #[test]
    fn routes_are_read() {
        let to = RouteAttribute::Destination(RouteAddress::Inet([10, 0, 0, 0].into()));
        let hop = |index: u32, weight: u8| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = index;
            hop.hops = weight - 1;
            hop.flags = RouteNextHopFlags::Dead;
            hop.attributes = vec![RouteAttribute::Gateway(IpAddr::from([9, 9, 9, 9]).into())];
            hop
        };
        let mut tunnel = hop(6, 1);
        tunnel.attributes.push(RouteAttribute::EncapType(RouteLwEnCapType::Mpls));
        let hops = vec![hop(4, 3), hop(5, 1), tunnel.clone()];
        let all = [
            route(254, vec![to.clone(), RouteAttribute::Oif(3), RouteAttribute::Priority(7)]),
            route(254, vec![to.clone(), RouteAttribute::MultiPath(hops)]),
            route(
                254,
                vec![to.clone(), RouteAttribute::MultiPath(vec![hop(5, 1), tunnel.clone()])],
            ),
            route(254, vec![to.clone(), RouteAttribute::MultiPath(vec![tunnel])]),
            [&20_u32.to_ne_bytes()[..], &104_u16.to_ne_bytes(), &[0; 14]].concat(),
            route(77, vec![to.clone(), RouteAttribute::Oif(3)]),
            route(0, vec![to, RouteAttribute::Oif(3), RouteAttribute::Table(1000)]),
        ]
        .concat();
        let prefix = "10.0.0.0/8".parse().unwrap();
        let via = |interface, gateway, metric| {
            let target = Target::Via { interface, gateway };
            NetlinkEvent::Route(Route { is_of_other_table: true, metric, target, prefix })
        };
        let gateway = Some([9, 9, 9, 9].into());
        let found = read(&all, 254);
        let hop = |interface, weight| {
            let weight = NonZeroU16::new(weight).unwrap();
            Hop { interface, gateway, weight }
        };
        let target = Target::Spread([hop(4, 3), hop(5, 1)].into());
        let spread = Route { is_of_other_table: true, metric: 0, target, prefix };
        let expected = [
            via(3, None, 7),
            NetlinkEvent::Route(spread),
            via(5, gateway, 0),
            NetlinkEvent::NextHops,
        ];
        assert_eq!(found.events, expected);
        assert_eq!(found.unreadable, 0);
        assert_eq!(read(&all, 1000).events, [NetlinkEvent::NextHops, via(3, None, 0)]);
    }

    /// Goal: programs are only for those interfaces without Ethernet headers that are known to begin with IP. Method: one message for each kind.
    #[test]
    fn kinds_of_interfaces_are_read() {
        let read_link = |layer, kind: Option<InfoKind>| {
            let mut link = LinkMessage::default();
            link.header.link_layer_type = layer;
            let info = kind.map(|kind| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
            link.attributes = info.into_iter().collect();
            let found = read(&bytes_of(RouteNetlinkMessage::NewLink(link)), 254);
            let [NetlinkEvent::Interface(interface)] = &found.events[..] else { panic!("one") };
            (interface.is_headerless, interface.is_without_tcx)
        };
        for (layer, kind, expected) in [
            (LinkLayerType::Ether, Some(InfoKind::Tun), (false, false)),
            (LinkLayerType::Ether, None, (false, false)),
            (LinkLayerType::None, Some(InfoKind::Tun), (true, false)),
            (LinkLayerType::None, Some(InfoKind::Wireguard), (true, false)),
            (LinkLayerType::Tunnel, Some(InfoKind::IpIp), (true, false)),
            (LinkLayerType::Tunnel, Some(InfoKind::Vti), (true, true)),
            (LinkLayerType::None, Some(InfoKind::Xfrm), (true, true)),
            (LinkLayerType::None, None, (true, true)),
        ] {
            assert_eq!(read_link(layer, kind.clone()), expected, "{layer:?} {kind:?}");
        }
    }

    /// Goal: our addresses are parsed and ranked; a tentative one is not used, and causes another query. Method: one of
    /// each as the kernel writes it.
    #[test]
    fn addresses_are_read() {
        let told = |scope, flags, attributes| {
            let mut message = AddressMessage::default();
            message.header.family = AddressFamily::Inet;
            (message.header.index, message.header.scope, message.header.flags) = (3, scope, flags);
            message.attributes = attributes;
            read(&bytes_of(RouteNetlinkMessage::NewAddress(message)), 254).events
        };
        let (own, peer) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let both = || vec![AddressAttribute::Address(peer), AddressAttribute::Local(own)];
        let found =
            |address, rank| [NetlinkEvent::Address(Address { interface: 3, address, rank })];
        let none = AddressHeaderFlags::empty();
        assert_eq!(told(AddressScope::Universe, none, both()), found(own, 0));
        assert_eq!(told(AddressScope::Link, AddressHeaderFlags::Secondary, both()), found(own, 5));
        let only = vec![AddressAttribute::Address(peer)];
        assert_eq!(told(AddressScope::Universe, none, only), found(peer, 0));
        for (scope, flags) in
            [(AddressScope::Universe, AddressHeaderFlags::Tentative), (AddressScope::Host, none)]
        {
            assert_eq!(told(scope, flags, both()), [NetlinkEvent::Addresses]);
        }
    }

    /// Goal: no bytes make the parser panic or loop. Method: random bytes, and valid messages with bytes changed, from
    /// 64 seeds.
    #[test]
    fn any_bytes_are_read_safely() {
        let to = RouteAttribute::Destination(RouteAddress::Inet([10, 0, 0, 0].into()));
        let mut neighbour = NeighbourMessage::default();
        neighbour.header.family = AddressFamily::Inet6;
        neighbour.header.state = NeighbourState::Stale;
        neighbour.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet6([1; 16].into())),
            NeighbourAttribute::LinkLayerAddress(vec![2; 6]),
        ];
        let neighbour = bytes_of(RouteNetlinkMessage::NewNeighbour(neighbour));
        let message = [route(254, vec![to, RouteAttribute::Oif(3)]), neighbour].concat();
        let found = read(&message, 254);
        assert!(matches!(
            found.events.as_slice(),
            [
                NetlinkEvent::Route(_),
                NetlinkEvent::Neighbour(Neighbour { mac: Some(_), is_stale: true, .. })
            ]
        ));
        for seed in 0..64 {
            let mut rng = fastrand::Rng::with_seed(seed);
            for _ in 0..200 {
                let mut bytes = message.repeat(rng.usize(1..3));
                for _ in 0..rng.usize(1..8) {
                    let at = rng.usize(..bytes.len());
                    bytes[at] = if rng.bool() { rng.u8(..) } else { rng.u8(..32) };
                }
                bytes.truncate(rng.usize(..=bytes.len()));
                let found = read(&bytes, 254);
                assert!(found.events.len() <= bytes.len() / MESSAGE_HEADER_BYTES, "seed {seed}");
            }
        }
    }
}
