//! Interfaces without Ethernet headers: programs at tcx on live tun interfaces, and tap interfaces for those with headers. What is written to one
//! has been through the program when the call returns, and is then read from another. (A test run by bpf(2) has a header always.)

mod tun;

use std::io::Read;

use fastrand::Rng;
use socket2::{Domain, Protocol, Socket, Type};
use vigie_detect::Instant;
use vigie_forward::{
    bpf::AttachMode,
    nic::{CompileError, NicError, NicPipeline},
    packet::Port,
    pipeline::{BuiltinStage, Stage},
    stages::{RouteStage, Ttl},
    tables::{Fib, Interface, Route},
};
use vigie_via::link::{EtherType, Frame, HEADER_BYTES, Link, MacAddress};

use self::tun::{Headers, Tun, TunPacket};
use crate::{
    Seen, has, ip,
    namespace::{index, inside, run},
    reason, small,
    traffic::{
        PORTS, absent_bytes, borrowed, change_fib, frame, headerless, may_go_up, on_host,
        remove_headers, stages,
    },
};

/// Makes three interfaces, of which some have no Ethernet headers.
fn tuns(without: &[Port]) -> Vec<Tun> {
    // Without packets of the kernel's own, which would count.
    run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    let make = |port: &Port| {
        let headers = if without.contains(port) { Headers::Without } else { Headers::Ethernet };
        let name = format!("t{}", port.0);
        let tun = Tun::new(&name, headers);
        run(&format!("ip link set {name} mtu 65000 up"));
        tun
    };
    PORTS.iter().map(make).collect()
}

/// A socket that gets the packets of a protocol that a program has left, from their IP header on.
fn left_to_sockets(ether_type: u16) -> Socket {
    let protocol = Protocol::from(i32::from(ether_type.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).expect("a socket");
    socket.set_nonblocking(true).expect("set");
    socket
}

fn plain(bytes: &[u8]) -> TunPacket {
    TunPacket { offload: [0; 10], bytes: bytes.to_vec() }
}

fn received(mut socket: &Socket) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 70_000];
    let length = socket.read(&mut bytes).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

fn compare_live(seed: u64, without: &[Port], tuns: &[Tun], sockets: &[Socket], seen: &mut Seen) {
    let (mut host, fib) = stages(seed);
    // Its time is the kernel's own.
    if has(&host, |stock| matches!(stock, BuiltinStage::Meter(_))) {
        return;
    }
    let mut rng = Rng::with_seed(seed ^ 0x5eed);
    if let Some(fib) = &fib {
        remove_headers(&mut rng, fib, without);
    }
    let mut builder = NicPipeline::builder().config(small().headerless(without));
    for port in PORTS {
        builder = builder.port(port, index(&format!("t{}", port.0)));
    }
    let mut nic = match builder.start(&borrowed(&host)) {
        Ok(nic) => nic,
        Err(NicError::Compile(_)) => return,
        Err(error) => panic!("pipeline {seed}: {error}"),
    };
    seen.pipelines += 1;
    let translates = has(&host, |stock| matches!(stock, BuiltinStage::Nat(_)));
    for number in 0..60 {
        let ingress = PORTS[rng.usize(..3)];
        let mut frame = frame(&mut rng);
        let absent = absent_bytes(without, ingress);
        if absent > 0 {
            frame = headerless(&frame);
        }
        // The kernel takes tags off; and it loses a header alone that is redirected to an interface without.
        let is_tagged = [[0x81, 0], [0x88, 0xa8]].contains(&[frame[12], frame[13]]);
        let before = nic.counters().expect("counters");
        let arrives = plain(&frame[absent..]);
        if is_tagged
            || frame.len() == HEADER_BYTES
            || !tuns[usize::from(ingress.0)].arrive(&arrives)
        {
            continue;
        }
        let after = nic.counters().expect("counters");
        let made = on_host(&mut host, ingress, &frame, None, Instant::from_nanos(1_000_000_000));
        let left: Vec<_> = sockets.iter().filter_map(received).collect();
        let sent = tuns.iter().zip(PORTS).find_map(|(tun, port)| Some((port, tun.sent()?.bytes)));
        let said = || {
            format!(
                "pipeline {seed}, without {without:?}, packet {number} by {ingress} {frame:02x?}: {made:02x?}, {left:02x?}, {sent:02x?}"
            )
        };
        seen.packets += 1;
        if after.passed_up > before.passed_up {
            seen.went_up += 1;
            assert!(may_go_up(&frame, translates) || made.needs_host, "{}", said());
            if [[8, 0], [0x86, 0xdd]].contains(&[frame[12], frame[13]]) {
                assert_eq!(left, [&frame[HEADER_BYTES..]], "{}", said());
            }
        } else if let Some(dropped) = reason(&before, &after) {
            seen.dropped += 1;
            assert_eq!(made.dropped, Some(dropped), "{}", said());
            assert_eq!((left.len(), &sent), (0, &None), "{}", said());
        } else {
            seen.sent += 1;
            let to = made.port.unwrap_or_else(|| panic!("{}", said()));
            let bytes = made.bytes[absent_bytes(without, to)..].to_vec();
            assert_eq!((made.dropped, made.needs_host, left.len()), (None, false, 0), "{}", said());
            assert_eq!(sent, Some((to, bytes)), "{}", said());
        }
        if let Some(fib) = &fib
            && rng.bool()
        {
            change_fib(&mut rng, fib);
            nic.follow().expect("room");
        }
        nic.follow().expect("room");
    }
}

/// Goal: the verifier accepts programs for interfaces without Ethernet headers, and the kernel forwards by them what the host would, between all
/// kinds; what is left comes as it was. Method: random pipelines and packets on live interfaces, in each combination of three.
#[test]
fn packets_without_headers_are_forwarded_as_by_stages() {
    inside("headerless::packets_without_headers_are_forwarded_as_by_stages", || {
        let sockets = [0x0800, 0x86dd].map(left_to_sockets);
        let mut seen = Seen::default();
        let first = crate::number("VIGIE_FUZZ_SEED").unwrap_or(1) << 32;
        for bits in 1..8_u64 {
            let without: Vec<Port> =
                PORTS.into_iter().filter(|port| bits >> port.0 & 1 != 0).collect();
            let tuns = tuns(&without);
            for seed in (first + bits..first + 140).step_by(7) {
                compare_live(seed, &without, &tuns, &sockets, &mut seen);
            }
        }
        println!("{seen:?}");
        assert!(seen.sent > 100 && seen.dropped > 100 && seen.went_up > 50, "{seen:?}");
    });
}

/// Goal: XDP is named as the obstacle only where it alone is allowed; else the error is that of tcx. Method: an interface that is not there.
#[test]
fn the_error_is_that_of_the_last_place() {
    inside("headerless::the_error_is_that_of_the_last_place", || {
        let route = RouteStage::new(Fib::default());
        let start = |modes: &[AttachMode]| {
            let builder = NicPipeline::builder().config(small().headerless(&[Port(0)]));
            builder.port(Port(0), 999_999).attach_modes(modes).start(&[&route]).expect_err("none")
        };
        let error = start(&AttachMode::ALL);
        assert!(matches!(error, NicError::Attach { .. }), "{error}");
        let error = start(&[AttachMode::Native, AttachMode::Generic]);
        assert!(
            matches!(error, NicError::Compile(CompileError::Headerless { port: Port(0) })),
            "{error}"
        );
    });
}

/// The ports of [`router`] without headers.
const WITHOUT: [Port; 2] = [Port(0), Port(2)];

fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}

/// Sets the interfaces' MTU.
fn set_mtu(fib: &Fib, mtu: usize) {
    for port in PORTS {
        let with_headers = Interface::new(mac(1), mtu);
        let is_headerless = WITHOUT.contains(&port);
        let interface = if is_headerless { Interface::headerless(mtu) } else { with_headers };
        fib.set_interface(port, Some(interface));
    }
}

/// Routes 10.1.0.0/16 and fd00::1:0/112 to the first port, and so on.
fn router() -> Fib {
    let fib = Fib::default();
    set_mtu(&fib, 1500);
    for port in PORTS {
        let number = port.0 + 1;
        for prefix in [format!("10.{number}.0.0/16"), format!("fd00::{number}:0/112")] {
            fib.set_route(prefix.parse().expect("a prefix"), Some(Route::on_link(port)));
        }
    }
    for address in ["10.2.0.2", "fd00::2:2"] {
        fib.set_neighbour(Port(1), ip(address), Some(mac(2)));
    }
    fib
}

/// Goal: packets of 64 KiB and several segments pass whole between interfaces with and without headers, and their checksums stay the network
/// card's to compute; long ones without segments pass, too, and the host gets those that the kernel would give no header. Method: TCP of both
/// versions of IP, in both directions.
#[test]
fn segments_pass_whole_without_headers() {
    inside("headerless::segments_pass_whole_without_headers", || {
        let tuns = tuns(&WITHOUT);
        // Else the kernel takes its frames for others'.
        run("ip link set t1 address 02:00:00:00:00:01");
        let [tunnel, card, other] = [0, 1, 2].map(|at| &tuns[at]);
        let fib = router();
        let stages: [&dyn Stage; 2] = [&Ttl::new(), &RouteStage::new(fib.clone())];
        let mut builder = NicPipeline::builder().config(small().headerless(&WITHOUT).own_frames());
        for port in PORTS {
            builder = builder.port(port, index(&format!("t{}", port.0)));
        }
        let mut nic = builder.start(&stages).expect("started");
        assert_eq!(nic.attach_mode(Port(0)), Some(AttachMode::Tcx));

        for is_v6 in [false, true] {
            for (from, ingress, to, egress) in
                [(1, tunnel, 2, card), (2, card, 1, tunnel), (1, tunnel, 3, other)]
            {
                let packet = |tun: &Tun, macs: [u8; 2]| {
                    let ether_type = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
                    let header = [&mac(macs[0]).0[..], &mac(macs[1]).0, &ether_type].concat();
                    let header = if std::ptr::eq(tun, card) { header } else { Vec::new() };
                    (header.len(), segments((from, to), &header, is_v6))
                };
                assert!(ingress.arrive(&packet(ingress, [1, 2]).1));
                let got = egress.sent().expect("it passes");
                let (at, mut expected) = packet(egress, [2, 1]);
                decrement(&mut expected.bytes[at..]);
                let is_same = got.bytes == expected.bytes;
                assert!(is_same, "{from} to {to}: {:02x?}", &got.bytes[..100]);
                // Kind and length of segments; the place of the checksum that is left to the card.
                let said = |packet: &TunPacket| {
                    (packet.offload[..2].to_vec(), packet.offload[4..].to_vec())
                };
                assert_eq!(said(&got), said(&expected));
                assert_eq!(egress.sent(), None);
            }
        }

        set_mtu(&fib, 65_000);
        nic.follow().expect("room");
        for (to, egress) in [(2, card), (3, other)] {
            for (bytes, passes) in [(1400, true), (15_500, true), (15_501, false), (60_000, false)]
            {
                let before = nic.counters().expect("counters").passed_up;
                let mut long = segments((1, to), &[], false);
                long.bytes.truncate(bytes);
                let length = u16::try_from(bytes).expect("short");
                long.bytes[2..4].copy_from_slice(&length.to_be_bytes());
                assert!(tunnel.arrive(&plain(&long.bytes)));
                assert_eq!(egress.sent().is_some(), passes, "{bytes} to {to}");
                let went_up = nic.counters().expect("counters").passed_up - before;
                assert_eq!(went_up, u64::from(!passes), "{bytes} to {to}");
            }
        }
    });
}

/// A packet of TCP segments of 1400 bytes, with a checksum that the card is to complete.
fn segments((from, to): (u8, u8), front: &[u8], is_v6: bool) -> TunPacket {
    let address = |network: u8| match is_v6 {
        true => [&[0xfd; 1][..], &[0; 12], &[network, 0, 2]].concat(),
        false => vec![10, network, 0, 2],
    };
    let payload = 64_000_u16;
    let mut packet = if is_v6 {
        let mut header = vec![0x60, 0, 0, 0];
        header.extend((20 + payload).to_be_bytes());
        header.extend([6, 64]);
        header
    } else {
        let mut header = vec![0x45, 0];
        header.extend((40 + payload).to_be_bytes());
        header.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        header
    };
    packet.extend([address(from), address(to)].concat());
    if !is_v6 {
        let sum = vigie_forward::packet::Sum::ZERO.bytes(&packet).folded();
        packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
    }
    let transport_at = front.len() + packet.len();
    packet.extend([0x10, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 4, 0, 0x12, 0x34, 0, 0]);
    packet.resize(packet.len() + usize::from(payload), 7);
    let mut offload = [0; 10];
    // It needs a checksum; TCP of either version.
    (offload[0], offload[1]) = (1, if is_v6 { 4 } else { 1 });
    let words = [transport_at + 20, 1400, transport_at, 16];
    for (place, word) in offload[2..].chunks_mut(2).zip(words) {
        place.copy_from_slice(&u16::try_from(word).expect("short").to_ne_bytes());
    }
    TunPacket { offload, bytes: [front, &packet].concat() }
}

/// Decrements the hop limit, as a router does.
fn decrement(packet: &mut [u8]) {
    if packet[0] >> 4 == 6 {
        packet[7] -= 1;
    } else {
        packet[8] -= 1;
        packet[10..12].fill(0);
        let sum = vigie_forward::packet::Sum::ZERO.bytes(&packet[..20]).folded();
        packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
    }
}

/// A packet of TCP without payload.
fn small_packet(is_v6: bool) -> Vec<u8> {
    let mut packet = segments((1, 2), &[], is_v6).bytes;
    let (length, (at, field)) = if is_v6 { (60, (4, 20_u16)) } else { (40, (2, 40)) };
    packet[at..at + 2].copy_from_slice(&field.to_be_bytes());
    packet.truncate(length);
    packet
}

/// Returns what the links have received.
fn frames(links: &mut [Link]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for link in links {
        let take = |frame: &Frame<'_>| {
            let mut bytes = vec![0; frame.len()];
            frame.read(0, &mut bytes);
            frames.push(bytes);
        };
        link.recv_each(64, take).expect("it is up");
    }
    frames
}

/// Goal: a packet of which the kernel says another version of IP than its first bits do is as malformed to a program as to the host; where it says neither
/// version, the program leaves it to the kernel, whose sockets of IP the host reads get none. Method: packets of both versions under each protocol, cut to
/// all short lengths, too.
#[test]
fn packets_are_what_the_kernel_says() {
    inside("headerless::packets_are_what_the_kernel_says", || {
        run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        let (tun, out) = (Tun::with_protocol("t0"), Tun::new("t1", Headers::Without));
        run("ip link set t0 up; ip link set t1 up");
        let fib = Fib::default();
        for port in &PORTS[..2] {
            fib.set_interface(*port, Some(Interface::headerless(1500)));
        }
        for prefix in ["10.2.0.0/16", "fd00::2:0/112"] {
            fib.set_route(prefix.parse().expect("a prefix"), Some(Route::on_link(Port(1))));
        }
        let mut host: Vec<Box<dyn Stage>> =
            vec![Box::new(Ttl::new()), Box::new(RouteStage::new(fib))];
        let versions = [EtherType::IPV4, EtherType::IPV6];
        let mut links = versions.map(|version| {
            let link = Link::builder("t0").ether_type(version).adds_headers();
            link.open().expect("a link")
        });
        let packets = [small_packet(false), small_packet(true)];
        let mut seen = Seen::default();
        for ether_type in [0x0800, 0x86dd, 0x0806, 0x1234] {
            for packet in &packets {
                for length in [1, 4, 8, 19, 20, 28, 39, packet.len()] {
                    let packet = &packet[..length];
                    let mut by_host = Vec::new();
                    if tun.arrive_as(ether_type, packet) {
                        for frame in frames(&mut links) {
                            let now = Instant::from_nanos(1_000_000_000);
                            let made = on_host(&mut host, Port(0), &frame, None, now);
                            by_host.push((made.dropped, made.port));
                        }
                    }
                    let stages = borrowed(&host);
                    let builder = NicPipeline::builder().config(small().headerless(&PORTS[..2]));
                    let builder = builder.port(Port(0), index("t0")).port(Port(1), index("t1"));
                    let nic = builder.start(&stages).expect("started");
                    let before = nic.counters().expect("counters");
                    let is_taken = tun.arrive_as(ether_type, packet);
                    let after = nic.counters().expect("counters");
                    drop(nic);
                    drop(frames(&mut links));
                    seen.packets += 1;
                    let said = || format!("{ether_type:#x}, {packet:02x?}: {by_host:?}");
                    let is_ip = versions.contains(&EtherType(ether_type));
                    assert_eq!(by_host.len(), usize::from(is_taken && is_ip), "{}", said());
                    let Some((dropped, port)) = by_host.first() else { continue };
                    assert_eq!(*dropped, reason(&before, &after), "{}", said());
                    let sent = out.sent();
                    assert_eq!(sent.is_some(), *port == Some(Port(1)), "{}", said());
                    let is_its_version = (packet[0] >> 4 == 6) == (ether_type == 0x86dd);
                    seen.sent += u64::from(sent.is_some());
                    seen.dropped += u64::from(dropped.is_some());
                    assert!(sent.is_none() || is_its_version, "{}", said());
                }
            }
        }
        assert!(seen.sent == 2 && seen.dropped > 20, "{seen:?}");
    });
}
