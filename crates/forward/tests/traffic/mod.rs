//! Random packets and pipelines, and the output of the host's stages.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
};

use fastrand::Rng;
use vigie_detect::Instant;
use vigie_forward::{
    Bandwidth,
    packet::{Headers, Network, Packet, Port},
    pipeline::{DropReason, Stage, Verdict},
    stages::{
        Action, Checksum, Filter, FilterRule, Meter, Mirror, Nat, NatRule, Rewrite, RouteStage, Ttl,
    },
    tables::{Fib, HopGroup, Interface, NatEndpoint, NatTable, Prefix, Route},
};
use vigie_via::link::{EtherType, MacAddress};

pub(crate) const PORTS: [Port; 3] = [Port(0), Port(1), Port(2)];

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}

/// One of few addresses, so that tables and rules match some of them.
pub(crate) fn address(rng: &mut Rng, is_v6: bool) -> IpAddr {
    let last = rng.u8(..6);
    if rng.u8(..24) == 0 {
        return odd_address(rng, is_v6);
    }
    if is_v6 {
        let net = one_of(rng, &[0x2001_u16, 0xfd00]);
        Ipv6Addr::new(net, 0xdb8, 0, rng.u16(..2), 0, 0, 0, last.into()).into()
    } else {
        let net = one_of(rng, &[10_u8, 192]);
        Ipv4Addr::new(net, rng.u8(..2), 0, last).into()
    }
}

/// One at or beside the edges of those that are not routed.
fn odd_address(rng: &mut Rng, is_v6: bool) -> IpAddr {
    if is_v6 {
        let first = one_of(rng, &[0_u16, 0xfe7f, 0xfe80, 0xfebf, 0xfec0, 0xfeff, 0xff00, 0xffff]);
        let mapped = one_of(rng, &[0, 0xffff, 0xfffe]);
        Ipv6Addr::new(first, 0, 0, 0, 0, mapped, rng.u16(..2), rng.u16(..3)).into()
    } else {
        let first = one_of(rng, &[0, 1, 126, 127, 128, 169, 223, 224, 239, 240, 255]);
        let rest = one_of(rng, &[0, 255]);
        Ipv4Addr::new(first, rest, rest, one_of(rng, &[rest, 1])).into()
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn port(rng: &mut Rng) -> u16 {
    1000 + rng.u16(..4)
}

/// A TCP, UDP, ICMP or other payload of a packet, without its checksum.
fn transport(rng: &mut Rng, is_v6: bool) -> (u8, Vec<u8>) {
    let payload = rng.usize(..40);
    let mut ports = Vec::new();
    ports.extend(port(rng).to_be_bytes());
    ports.extend(port(rng).to_be_bytes());
    let (protocol, mut bytes) = match rng.u8(..8) {
        0..3 => {
            let mut bytes = vec![0; 20];
            rng.fill(&mut bytes);
            bytes[..4].copy_from_slice(&ports);
            bytes[12] = 5 << 4;
            // Mostly no flag that the host must see.
            bytes[13] = if rng.u8(..4) == 0 { rng.u8(..) } else { 0x10 };
            (6, bytes)
        }
        3..6 => {
            let length = u16::try_from(8 + payload).expect("short");
            (17, [&ports[..], &length.to_be_bytes(), &[0, 0]].concat())
        }
        6 => {
            let kinds = if is_v6 { [128, 129, 1] } else { [8, 0, 3] };
            let kind = one_of(rng, &kinds);
            let identifier = port(rng).to_be_bytes();
            let protocol = if is_v6 { 58 } else { 1 };
            (protocol, vec![kind, 0, 0, 0, identifier[0], identifier[1], 0, 1])
        }
        _ => (rng.u8(..), vec![0; 8]),
    };
    let at = bytes.len();
    bytes.resize(at + payload, 0);
    rng.fill(&mut bytes[at..]);
    (protocol, bytes)
}

/// Mostly a sufficient hop limit.
fn hops(rng: &mut Rng) -> u8 {
    if rng.u8(..8) == 0 { rng.u8(..3) } else { rng.u8(3..) }
}

fn v4(rng: &mut Rng) -> Vec<u8> {
    let (protocol, transport) = transport(rng, false);
    let options = if rng.u8(..4) == 0 { rng.usize(1..11) * 4 } else { 0 };
    let mut header = vec![0_u8; 20 + options];
    rng.fill(&mut header[20..]);
    let words = u8::try_from(header.len() / 4).expect("few");
    header[0] = 0x40 | words;
    let length = u16::try_from(header.len() + transport.len()).expect("short");
    header[2..4].copy_from_slice(&length.to_be_bytes());
    let fragment = match rng.u8(..6) {
        0 => 0x2000,
        1 => rng.u16(..),
        _ => 0x4000,
    };
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header[8] = hops(rng);
    header[9] = protocol;
    header[12..16].copy_from_slice(&octets(address(rng, false)));
    header[16..20].copy_from_slice(&octets(address(rng, false)));
    [header, transport].concat()
}

fn v6(rng: &mut Rng) -> Vec<u8> {
    let (mut protocol, mut payload) = transport(rng, true);
    if rng.u8(..6) == 0 {
        let extension = one_of(rng, &[0, 43, 44, 51, 60, 135]);
        let mut header = vec![protocol, 0, 0, rng.u8(..2), 0, 0, 0, 9];
        header.extend(payload);
        (protocol, payload) = (extension, header);
    }
    let length = u16::try_from(payload.len()).expect("short").to_be_bytes();
    let mut header = vec![0x60, 0, 0, 0, length[0], length[1], protocol, hops(rng)];
    header.extend(octets(address(rng, true)));
    header.extend(octets(address(rng, true)));
    [header, payload].concat()
}

/// A frame: mostly well formed, sometimes cut, padded or with changed bytes; never shorter than a header.
pub(crate) fn frame(rng: &mut Rng) -> Vec<u8> {
    let mut frame = vec![0; 12];
    rng.fill(&mut frame);
    for _ in 0..one_of(rng, &[0, 0, 0, 0, 1, 2, 3]) {
        frame.extend(one_of(rng, &[0x8100_u16, 0x88a8]).to_be_bytes());
        frame.extend(rng.u16(..).to_be_bytes());
    }
    let (ether_type, payload) = match rng.u8(..10) {
        0..5 => (0x0800, v4(rng)),
        5..8 => (0x86dd, v6(rng)),
        8 => {
            let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
            arp.resize(28, 7);
            (0x0806, arp)
        }
        _ => (rng.u16(..), vec![1; rng.usize(..60)]),
    };
    frame.extend(u16::to_be_bytes(ether_type));
    frame.extend(payload);
    if rng.u8(..8) != 0 {
        let mut packet = Packet::new(PORTS[0], &frame);
        let _ = packet.fill_checksums();
        frame = packet.bytes().to_vec();
    }
    match rng.u8(..8) {
        0 => frame.truncate(rng.usize(14..=frame.len())),
        1 => frame.resize(frame.len() + rng.usize(..20), 0),
        2 => {
            for _ in 0..rng.usize(1..4) {
                // Headers, mostly.
                let at = rng.usize(12..frame.len().min(64));
                frame[at] = rng.u8(..);
            }
        }
        _ => {}
    }
    frame
}

/// The same packet as a host's link has it from an interface without Ethernet headers.
pub(crate) fn headerless(frame: &[u8]) -> Vec<u8> {
    let mut packet = frame[14..].to_vec();
    if packet.is_empty() {
        packet.push(0x45);
    }
    let ether_type: u16 = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    [&[0; 12], &ether_type.to_be_bytes()[..], &packet].concat()
}

/// The bytes before a packet that an interface does not carry: those of the header that it does not have.
pub(crate) fn absent_bytes(headerless: &[Port], port: Port) -> usize {
    if headerless.contains(&port) { 14 } else { 0 }
}

/// Makes a port one without Ethernet headers in the table, too.
pub(crate) fn remove_headers(rng: &mut Rng, fib: &Fib, headerless: &[Port]) {
    for port in headerless {
        fib.set_interface(*port, Some(Interface::headerless(one_of(rng, &[1500, 60, 48]))));
    }
}

fn mac(rng: &mut Rng) -> MacAddress {
    MacAddress([2, rng.u8(..), rng.u8(..), rng.u8(..), 0, rng.u8(..)])
}

fn prefix(rng: &mut Rng, is_v6: bool) -> Prefix {
    let bits = match rng.u8(..3) {
        0 => rng.u8(..=32),
        1 if is_v6 => rng.u8(..=128),
        _ => 8,
    };
    Prefix::new(address(rng, is_v6), bits).expect("a prefix")
}

fn rewrite(rng: &mut Rng) -> Rewrite {
    let mut rewrite = Rewrite::new();
    let is_v6 = rng.bool();
    if rng.bool() {
        rewrite = rewrite.source_mac(mac(rng)).destination_mac(mac(rng));
    }
    if rng.u8(..3) == 0 {
        rewrite = rewrite.source(address(rng, is_v6));
    }
    if rng.u8(..3) == 0 {
        rewrite = rewrite.destination(address(rng, is_v6));
    }
    if rng.bool() { rewrite.send(one_of(rng, &PORTS)) } else { rewrite }
}

fn rule(rng: &mut Rng) -> FilterRule {
    let mut rule = FilterRule::new(if rng.bool() { Action::Accept } else { Action::Drop });
    let is_v6 = rng.bool();
    if rng.u8(..4) == 0 {
        rule = rule.ingress(one_of(rng, &PORTS));
    }
    if rng.u8(..4) == 0 {
        rule = rule.ether_type(EtherType(one_of(rng, &[0x0800, 0x86dd, 0x0806, 0x88cc])));
    }
    if rng.u8(..3) == 0 {
        rule = rule.source(prefix(rng, is_v6));
    }
    if rng.u8(..3) == 0 {
        rule = rule.destination(prefix(rng, is_v6));
    }
    if rng.u8(..3) == 0 {
        rule = rule.protocol(one_of(rng, &[6, 17, 1, 58]));
    }
    if rng.u8(..3) == 0 {
        rule = rule.source_ports(1000..=1000 + rng.u16(..4));
    }
    if rng.u8(..3) == 0 {
        rule = rule.destination_ports(1000 + rng.u16(..4)..=1003);
    }
    rule
}

/// Routes, with and without routers; some neighbours are known.
pub(crate) fn fib(rng: &mut Rng) -> Fib {
    let fib = Fib::default();
    for port in &PORTS[..rng.usize(1..=3)] {
        let mtu = one_of(rng, &[1500, 60, 48]);
        fib.set_interface(*port, Some(Interface::new(mac(rng), mtu)));
    }
    for _ in 0..40 {
        change_fib(rng, &fib);
    }
    fib
}

fn hop(rng: &mut Rng, is_v6: bool) -> Route {
    let port = one_of(rng, &PORTS);
    if rng.bool() { Route::via(port, address(rng, is_v6)) } else { Route::on_link(port) }
}

/// One change of routes, of several hops too, neighbours, or the interface of a port.
pub(crate) fn change_fib(rng: &mut Rng, fib: &Fib) {
    let is_v6 = rng.bool();
    let port = one_of(rng, &PORTS);
    let is_gone = rng.u8(..6) == 0;
    match rng.u8(..16) {
        0..4 => fib.set_route(prefix(rng, is_v6), (!is_gone).then_some(hop(rng, is_v6))),
        4..8 => {
            let weight = |rng: &mut Rng| NonZeroU16::new(rng.u16(1..5)).expect("positive");
            let hops: Vec<_> = (0..rng.u8(1..5)).map(|_| (hop(rng, is_v6), weight(rng))).collect();
            fib.set_hops(prefix(rng, is_v6), &HopGroup::new(hops).expect("few"));
        }
        8..14 => {
            let mac = mac(rng);
            fib.set_neighbour(port, address(rng, is_v6), (!is_gone).then_some(mac));
        }
        14 => fib.fail_neighbour(port, address(rng, is_v6)),
        _ => {
            let interface = Interface::new(mac(rng), one_of(rng, &[1500, 60, 48]));
            fib.set_interface(port, (!is_gone).then_some(interface));
        }
    }
}

fn nat(rng: &mut Rng) -> Nat {
    let table = NatTable::builder().flows_max(64).ports(2000, 2040).seed(rng.u64(..)).build();
    let mut nat = Nat::new(table);
    for _ in 0..rng.u8(1..4) {
        let is_v6 = rng.bool();
        nat = if rng.bool() {
            let external = address(rng, is_v6);
            nat.rule(NatRule::Source {
                ingress: one_of(rng, &PORTS),
                from: prefix(rng, is_v6),
                external,
            })
        } else {
            let mut end = || NatEndpoint::new(address(rng, is_v6), port(rng));
            let (external, internal) = (end(), end());
            nat.rule(NatRule::Destination { protocol: one_of(rng, &[6, 17]), external, internal })
        };
    }
    nat
}

/// A random sequence of stages. The same seed makes the same sequence, with tables of its own.
pub(crate) fn stages(seed: u64) -> (Vec<Box<dyn Stage>>, Option<Fib>) {
    let rng = &mut Rng::with_seed(seed);
    let mut row: Vec<Box<dyn Stage>> = Vec::new();
    let mut routes = None;
    for _ in 0..rng.usize(1..6) {
        match rng.u8(..10) {
            9 if rng.bool() => row.push(Box::new(Filter::martians())),
            9 => row.push(Box::new(Checksum::verify_header())),
            0 | 1 => row.push(Box::new(rewrite(rng))),
            2 | 3 => row.push(Box::new(Ttl::new())),
            4 if rng.bool() => row.push(Box::new(Mirror::to(one_of(rng, &PORTS)))),
            4 => row.push(Box::new(Mirror::to(one_of(rng, &PORTS)).from(one_of(rng, &PORTS)))),
            5 => {
                let rate = Bandwidth::new(rng.u64(1_000..2_000_000_000)).expect("a rate");
                let meter = Meter::new(rate, rng.u64(64..400)).expect("a burst");
                row.push(Box::new(meter));
            }
            6 => {
                let otherwise = if rng.bool() { Action::Accept } else { Action::Drop };
                let filter = (0..rng.u8(..5))
                    .fold(Filter::with_default(otherwise), |all, _| all.rule(rule(rng)));
                row.push(Box::new(filter));
            }
            7 => row.push(Box::new(nat(rng))),
            _ if routes.is_none() => {
                let fib = fib(rng);
                row.push(Box::new(RouteStage::new(fib.clone())));
                routes = Some(fib);
            }
            _ => {}
        }
    }
    (row, routes)
}

pub(crate) fn borrowed(stages: &[Box<dyn Stage>]) -> Vec<&dyn Stage> {
    stages.iter().map(|stage| &**stage).collect()
}

/// The host's output for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) dropped: Option<DropReason>,
    pub(crate) port: Option<Port>,
    pub(crate) copy: Option<Port>,
    pub(crate) bytes: Vec<u8>,
    /// Whether only the host can do it: in fragments, or later.
    pub(crate) needs_host: bool,
}

/// Sends a packet through stages of the host, one after the other.
pub(crate) fn on_host(
    stages: &mut [Box<dyn Stage>],
    ingress: Port,
    frame: &[u8],
    otherwise: Option<Port>,
    now: Instant,
) -> Made {
    let mut packet = Packet::new(ingress, frame);
    let (mut port, mut copy, mut needs_host) = (otherwise, None, false);
    for stage in stages {
        match stage.process(&mut packet, now) {
            Verdict::Pass => {}
            Verdict::SetEgress(to) => port = Some(to),
            Verdict::Copy(to) => copy = Some(to),
            Verdict::Drop(reason) => {
                let bytes = packet.bytes().to_vec();
                return Made { dropped: Some(reason), port: None, copy, bytes, needs_host };
            }
            Verdict::Fragment(to, _) => (port, needs_host) = (Some(to), true),
            Verdict::Hold => {
                return Made {
                    dropped: None,
                    port: None,
                    copy,
                    bytes: Vec::new(),
                    needs_host: true,
                };
            }
            other => panic!("{other:?}"),
        }
    }
    let dropped = if port.is_none() { Some(DropReason::NoPort) } else { None };
    Made { dropped, port, copy, bytes: packet.bytes().to_vec(), needs_host }
}

/// Whether a program may leave a packet to the host: extension headers, and, if flows are translated, everything of IP.
pub(crate) fn may_go_up(frame: &[u8], translates: bool) -> bool {
    let Ok(headers) = Headers::parse(frame) else {
        // Extension headers are not read: errors in them, or behind, are for the host to report.
        return frame.windows(2).any(|bytes| bytes == [0x86, 0xdd]);
    };
    let has_extensions =
        headers.network == Network::Ipv6 && headers.transport_at > headers.network_at + 40;
    has_extensions || translates && headers.is_ip()
}
