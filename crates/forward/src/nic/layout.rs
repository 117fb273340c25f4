//! The layout shared by programs and user space: maps, keys and values, counters.

use std::net::IpAddr;

use vigie_detect::Instant;
use vigie_via::link::MacAddress;

use crate::{
    bpf::{Assembler, MapId, MapKind, MapSpec, ProgramKind},
    packet::Port,
    pipeline::DropReason,
    tables::{BUCKETS, Interface, NatTuple, Prefix, Route},
};

/// The sizes of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapSizes {
    /// Ports, starting at 0.
    pub(super) ports: u16,
    /// Routes, for each version of IP.
    pub(super) routes: u32,
    /// Neighbours on the links themselves, for each version of IP, and routers.
    pub(super) neighbours: u32,
    /// Translated flows, for each version of IP.
    pub(super) flows: u32,
    /// Groups of hops.
    pub(super) groups: u32,
}

impl Default for MapSizes {
    fn default() -> Self {
        Self { ports: 16, routes: 1 << 16, neighbours: 1 << 13, flows: 1 << 16, groups: 256 }
    }
}

/// The maximum number of ports: each has a map of its own where copies are made.
pub const PORTS_MAX: u16 = 64;

/// The index of each counter, in words of 8 bytes.
pub(super) const RECEIVED_PACKETS: u32 = 0;
pub(super) const RECEIVED_BYTES: u32 = 1;
pub(super) const SENT_PACKETS: u32 = 2;
pub(super) const SENT_BYTES: u32 = 3;
pub(super) const PASSED_UP: u32 = 4;
pub(super) const DROPPED: u32 = 5;

/// The number of counters.
pub(super) fn counter_count() -> u32 {
    DROPPED + u32::try_from(DropReason::ALL.len()).unwrap_or(0)
}

pub(super) fn dropped(reason: DropReason) -> u32 {
    DROPPED + u32::try_from(reason.number()).unwrap_or(0)
}

/// The maps that a pipeline needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct MapRequirements {
    pub(super) routes: bool,
    pub(super) nat: bool,
    pub(super) meters: u32,
    /// The port for copies.
    pub(super) copies: Option<Port>,
}

/// The maps of a pipeline's programs, the same for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) needs: MapRequirements,
    pub(super) sizes: MapSizes,
    /// Whether programs note what recent packets led to.
    pub(super) has_recent: bool,
    pub(super) counters: usize,
    /// With XDP a map of interfaces, with tcx an array of their numbers.
    pub(super) ports: usize,
    pub(super) interfaces: usize,
    pub(super) hops: usize,
    pub(super) groups: usize,
    /// Packets and bytes of each hop of a group: those on the link of a port by the port, then the routers by their index.
    pub(super) hop_traffic: usize,
    pub(super) routes: [usize; 2],
    pub(super) neighbours: [usize; 2],
    /// What single routes to recent destinations led to.
    pub(super) recent: [usize; 2],
    /// The generations of routes and of flows: numbers that change when an entry changes or goes.
    pub(super) generations: usize,
    pub(super) flows: [usize; 2],
    /// Translations of recent packets of other protocols than TCP.
    pub(super) recent_flows: [usize; 2],
    pub(super) meters: usize,
    /// The first of the maps with two interfaces each, one map for every port: the port, and the one for copies.
    pub(super) pairs: usize,
    pub(super) specs: Vec<MapSpec>,
}

/// An address of 4 or of 16 bytes.
pub(super) const ADDRESS_BYTES: [u32; 2] = [4, 16];
/// The number that a route to a group of hops has in place of a port.
pub(super) const GROUP: u32 = 1 << 16;
/// In the word of a bucket, the bits of its port; those of its router follow.
pub(super) const BUCKET_PORT_BITS: u32 = 8;
/// Two numbers: packets and bytes.
pub(super) const HOP_TRAFFIC_BYTES: u32 = 16;
/// The offset of the last packet's time in a translation.
pub(super) const USED_AT: [i16; 2] = [16, 40];
/// The offset of a word that is not 0 while packets of the flow may still be with the host: how many more go up at most.
pub(super) const HANDING_OVER_AT: [i16; 2] = [12, 36];
/// The same of a neighbour, on the link or among the routers.
pub(super) const NEIGHBOUR_HANDING_OVER_AT: i16 = 8;
/// The offset of the word that says whether the address of a router, or an interface, is there.
pub(super) const IS_THERE_AT: i16 = 12;
/// The value of that word for an interface without Ethernet headers.
pub(super) const HEADERLESS: i32 = 2;
/// The offset of the time of the last packet to a neighbour that passed up, or 0.
pub(super) const NEIGHBOUR_USED_AT: i16 = 16;
pub(super) const NEIGHBOUR_VALUE_BYTES: u32 = 24;
/// The time without a packet of such a flow to the host after which the program handles one: by then, the host has sent
/// all that it had.
pub(super) const HANDOVER_GAP_NS: i32 = 10_000_000;
/// The most packets of such a flow that go up. A flow without gaps would overrun the host, which loses more than an order.
const HANDOVER_PACKETS_MAX: u32 = 256;
pub(super) const FLOW_KEY_BYTES: [u32; 2] = [16, 40];
/// The offset of eight bytes of the last TCP segment: what it acknowledges, its flags, its window.
pub(super) const TCP_SEEN_AT: [i16; 2] = [24, 48];
/// The offset of these bytes in a TCP header.
pub(super) const TCP_SEEN_FROM: i16 = 8;
/// The indices of generations.
pub(super) const ROUTES: u32 = 0;
pub(super) const FLOWS: u32 = 1;
/// Entries for recent packets, on each processor.
pub(super) const RECENT_SLOTS: u32 = 1 << 10;
/// Of a recent destination, the offsets of port, MTU, the Ethernet addresses of its next hop and of the interface, and its address.
pub(super) const RECENT_PORT: i16 = 8;
pub(super) const RECENT_MTU: i16 = 12;
pub(super) const RECENT_HOP: i16 = 16;
pub(super) const RECENT_MAC: i16 = 24;
pub(super) const RECENT_ADDRESS: i16 = 32;
const RECENT_BYTES: [u32; 2] = [40, 48];
/// Of a recent packet's translation, the offsets of the tick at which it was noted, of what it becomes and of its key.
pub(super) const RECENT_TICK: i16 = 8;
pub(super) const RECENT_BECOMES: i16 = 16;
pub(super) const RECENT_KEY: [i16; 2] = [32, 56];
/// Then it is looked up again, so that the flow's time is 64 to 640 ms old at most.
pub(super) const RECENT_TICKS_MAX: i32 = 64;
pub(super) const FLOW_VALUE_BYTES: [u32; 2] = [32, 56];

/// Returns whether programs note recent packets. Not where a processor may reorder the loads of the generation and of the tables, nor where another program may
/// interrupt one on its processor: in kernels for real time.
fn has_recent() -> bool {
    cfg!(target_arch = "x86_64")
        && !rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT")
}

impl Layout {
    pub(super) fn new(needs: MapRequirements, sizes: MapSizes, kind: ProgramKind) -> Self {
        let has_recent = has_recent();
        let mut this = Self { needs, sizes, has_recent, ..Self::default() };
        let ports = u32::from(sizes.ports);
        this.counters = this.add(MapSpec::per_cpu_array(counter_count() * 8, 1));
        this.ports = this.add(match kind {
            ProgramKind::Xdp => MapSpec::devices(ports),
            _ => MapSpec::array(4, ports),
        });

        if needs.routes || needs.nat {
            this.generations = this.add(MapSpec::array(8, 2));
        }

        if needs.routes {
            this.interfaces = this.add(MapSpec::array(16, ports));
            this.hops = this.add(MapSpec::array(NEIGHBOUR_VALUE_BYTES, sizes.neighbours));
            let bucket_bytes = u32::try_from(BUCKETS * 4).unwrap_or(0);
            this.groups = this.add(MapSpec::array(bucket_bytes, sizes.groups));
            let hops = ports + sizes.neighbours;
            this.hop_traffic = this.add(MapSpec::per_cpu_array(HOP_TRAFFIC_BYTES, hops));
            for (version, bytes) in ADDRESS_BYTES.into_iter().enumerate() {
                let routes = MapSpec::new(MapKind::LpmTrie, 4 + bytes, 8, sizes.routes);
                this.routes[version] = this.add(routes);
                let neighbours = MapSpec::hash(4 + bytes, NEIGHBOUR_VALUE_BYTES, sizes.neighbours);
                this.neighbours[version] = this.add(neighbours);
                this.recent[version] = this.add_recent(RECENT_BYTES[version]);
            }
        }

        if needs.nat {
            for version in 0..2 {
                let (key, value) = (FLOW_KEY_BYTES[version], FLOW_VALUE_BYTES[version]);
                this.flows[version] = this.add(MapSpec::hash(key, value, sizes.flows * 2));
                let recent_bytes = u32::from(RECENT_KEY[version].unsigned_abs()) + key;
                this.recent_flows[version] = this.add_recent(recent_bytes);
            }
        }

        if needs.meters > 0 {
            this.meters = this.add(MapSpec::array(8, needs.meters));
        }

        if needs.copies.is_some() {
            this.pairs = this.specs.len();
            for _ in 0..sizes.ports {
                this.add(MapSpec::devices(2));
            }
        }

        this
    }

    fn add_recent(&mut self, bytes: u32) -> usize {
        if !self.has_recent {
            return usize::MAX;
        }
        self.add(MapSpec::per_cpu_array(bytes, RECENT_SLOTS))
    }

    fn add(&mut self, spec: MapSpec) -> usize {
        self.specs.push(spec);
        self.specs.len() - 1
    }

    /// Adds all maps to a program.
    pub(super) fn put(&self, assembler: &mut Assembler) -> Vec<MapId> {
        self.specs.iter().map(|spec| assembler.map(*spec)).collect()
    }
}

/// 0 or 1: which of two maps an address of this version of IP is in.
pub(super) fn version(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(super) fn port_key(port: Port) -> [u8; 4] {
    u32::from(port.0).to_ne_bytes()
}

pub(super) fn route_key(prefix: Prefix) -> Vec<u8> {
    [u32::from(prefix.length_bits()).to_ne_bytes().to_vec(), octets(prefix.address())].concat()
}

/// The port, and the router's index among the hops, counted from 1; 0: directly connected.
pub(super) fn route_value(port: Port, hop: u32) -> Vec<u8> {
    [port_key(port), hop.to_ne_bytes()].concat()
}

/// The number of a group of hops.
pub(super) fn group_route_value(group: u32) -> Vec<u8> {
    [GROUP.to_ne_bytes(), group.to_ne_bytes()].concat()
}

/// A word for each bucket: its port, and its router as in [`route_value`]. A word is replaced as a whole.
pub(super) fn group_value(
    hops: impl Iterator<Item = Route>,
    router: impl Fn(&Route) -> u32,
) -> Vec<u8> {
    // Ports beyond the last one have no interface, as those that do not fit.
    let port = |hop: &Route| u32::from(hop.port.0).min((1 << BUCKET_PORT_BITS) - 1);
    hops.flat_map(|hop| (router(&hop) << BUCKET_PORT_BITS | port(&hop)).to_ne_bytes()).collect()
}

pub(super) fn neighbour_key(port: Port, address: IpAddr) -> Vec<u8> {
    [octets(address), port_key(port).to_vec()].concat()
}

/// The Ethernet address of an interface or none, its MTU, and whether it is present: [`HEADERLESS`] if it needs no neighbour.
pub(super) fn interface_value(interface: Option<Interface>) -> Vec<u8> {
    let is_there = interface.map_or(0, |one| if one.is_headerless { HEADERLESS } else { 1 });
    let mtu = interface.map_or(0, |one| u32::try_from(one.mtu).unwrap_or(u32::MAX));
    address_value(interface.map(|one| one.address), mtu, is_there)
}

fn address_value(mac: Option<MacAddress>, number: u32, is_there: i32) -> Vec<u8> {
    let mac = mac.unwrap_or(MacAddress([0; 6]));
    [&mac.0[..], &[0; 2], &number.to_ne_bytes(), &is_there.to_ne_bytes()].concat()
}

/// The Ethernet address of a neighbour or none, whether the host may still have packets for it, whether it is present, and room for the
/// time of a packet.
pub(super) fn neighbour_value(mac: Option<MacAddress>, is_handed_over: bool) -> Vec<u8> {
    let packets = if is_handed_over { HANDOVER_PACKETS_MAX } else { 0 };
    [address_value(mac, packets, i32::from(mac.is_some())), vec![0; 8]].concat()
}

pub(super) fn flow_key(tuple: &NatTuple) -> Vec<u8> {
    let mut key = ends(tuple);
    key.extend([tuple.protocol, u8::from(tuple.is_echo_reply), 0, 0]);
    key
}

/// The translated addresses and ports, padded, and room for what the program notes; with the time since which the host
/// hands the flow over, if it has packets of it.
pub(super) fn flow_value(becomes: &NatTuple, handed_over: Option<Instant>) -> Vec<u8> {
    let mut value = ends(becomes);
    let version = version(becomes.source.address);
    let bytes = usize::try_from(FLOW_VALUE_BYTES[version]).unwrap_or(0);
    value.resize(bytes, 0);
    if let Some(since) = handed_over {
        let mut write = |at: i16, bytes: &[u8]| {
            let places = value.iter_mut().skip(usize::from(at.unsigned_abs()));
            places.zip(bytes).for_each(|(place, byte)| *place = *byte);
        };
        write(HANDING_OVER_AT[version], &HANDOVER_PACKETS_MAX.to_ne_bytes());
        write(USED_AT[version], &since.as_nanos().to_ne_bytes());
    }
    value
}

fn ends(tuple: &NatTuple) -> Vec<u8> {
    let mut bytes = octets(tuple.source.address);
    bytes.extend(octets(tuple.destination.address));
    bytes.extend(tuple.source.port.to_be_bytes());
    bytes.extend(tuple.destination.port.to_be_bytes());
    bytes
}
