//! The kernel's own forwarding as the reference: the same packets through the same router, once forwarded by its kernel
//! and once by `vigie-forward`, on the host and by a program.

use std::{collections::BTreeSet, net::Ipv6Addr, thread, time::Duration};

use vigie::{
    forward::packet::{Packet, Port},
    via::link::{EtherType, Link, MacAddress},
};

use crate::{
    instance::{BOUND, Folder, counter},
    network::{Network, SERVER, call, calls_through, ip_frame, send_frames, with_network},
    paths::{forward, has_programs},
};

/// The last packet of each series has this number.
const LAST: u16 = u16::MAX;
/// Nothing follows the last packet after such a silence.
const SILENCE: Duration = Duration::from_millis(50);

/// A datagram whose source port is its number.
fn datagram(number: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("it fits");
    [&number.to_be_bytes()[..], &[30, 97], &length.to_be_bytes(), &[0, 0], payload].concat()
}

fn v4(to: MacAddress, ends: ([u8; 4], [u8; 4]), number: u16) -> Vec<u8> {
    ip_frame(to, ends, (17, number, 0), &datagram(number, b"v4"))
}

fn v6(to: MacAddress, (source, destination): (Ipv6Addr, Ipv6Addr), number: u16) -> Vec<u8> {
    let payload = datagram(number, b"v6");
    let mut frame = [&to.0[..], &[2, 0, 0, 0, 0, 0x99, 0x86, 0xdd, 0x60, 0, 0, 0, 0]].concat();
    frame.extend([u8::try_from(payload.len()).expect("short"), 17, 64]);
    frame.extend([source.octets(), destination.octets()].concat());
    frame.extend(payload);
    let mut packet = Packet::new(Port(0), &frame);
    packet.fill_checksums().expect("it is whole");
    packet.bytes().to_vec()
}

/// Which packets are the test's.
type IsWanted = fn(&[u8]) -> bool;

/// Sends frames from the client. Returns the wanted ones of the IP packets that arrive at the server, in order: at least so many,
/// since the last one, by a program, can overtake what a host that is kept from the processor still has.
fn arrivals(
    network: &Network,
    frames: &[Vec<u8>],
    is_wanted: IsWanted,
    at_least: usize,
) -> Vec<Vec<u8>> {
    let last = v4(network.address_of("ra"), ([10, 1, 0, 2], [10, 2, 0, 2]), LAST);
    let mut link = network.server.inside(|| {
        Link::builder("s0").ether_type(EtherType::ALL).receive_frames(1024).open().expect("a link")
    });
    let own = link.address();
    network.client.inside(|| send_frames("c0", frames.iter().cloned()));
    let mut heard = Vec::new();
    let (mut silent, mut has_ended) = (Duration::ZERO, false);
    let mut waited = Duration::ZERO;
    while !has_ended || silent < SILENCE || heard.len() < at_least {
        assert!(waited < BOUND, "{} of {at_least} packets, the last: {has_ended}", heard.len());
        let count = link
            .recv_each(64, |frame| {
                let bytes = frame.to_vec();
                let is_ip = matches!(bytes[12..14], [8, 0] | [0x86, 0xdd]);
                if bytes[..6] != own.0 || !is_ip {
                    return;
                }
                let is_last = bytes.get(34..36) == Some(&LAST.to_be_bytes());
                has_ended |= is_last;
                if !is_last && is_wanted(&bytes[14..]) {
                    heard.push(bytes[14..].to_vec());
                }
            })
            .expect("it is up");
        if count > 0 {
            silent = Duration::ZERO;
            continue;
        }
        if !has_ended {
            network.client.inside(|| send_frames("c0", std::iter::once(last.clone())));
        }
        let moment = Duration::from_millis(5);
        thread::park_timeout(moment);
        (silent, waited) = (silent + moment, waited + moment);
    }
    heard
}

/// Makes the network ready for packets of both versions, whose neighbours are known.
fn prepare(network: &Network) -> bool {
    for setting in ["conf/all/rp_filter", "conf/ra/rp_filter", "conf/rb/rp_filter"] {
        network.router.set(&format!("net/ipv4/{setting}"), "0");
    }
    let has_v6 = std::path::Path::new("/proc/net/if_inet6").exists();
    if has_v6 {
        for (host, name, address) in [
            (&network.client, "c0", "fd01::2/64"),
            (&network.router, "ra", "fd01::1/64"),
            (&network.router, "rb", "fd02::1/64"),
            (&network.server, "s0", "fd02::2/64"),
        ] {
            host.run(&format!("ip addr add {address} dev {name} nodad"));
        }
    }
    let text = network.server.run("ip -br link show dev s0");
    let server = text.split_whitespace().nth(2).expect("three columns").to_owned();
    for address in ["10.2.0.2", "fd02::2"].into_iter().take(1 + usize::from(has_v6)) {
        let router = &network.router;
        router.run(&format!("ip neigh replace {address} lladdr {server} dev rb nud permanent"));
    }
    has_v6
}

/// Returns what arrives when the router's kernel forwards.
fn by_kernel(
    network: &Network,
    has_v6: bool,
    frames: &[Vec<u8>],
    is_wanted: IsWanted,
) -> Vec<Vec<u8>> {
    let forwards = |is_on: &str| {
        network.router.set("net/ipv4/ip_forward", is_on);
        if has_v6 {
            network.router.set("net/ipv6/conf/all/forwarding", is_on);
        }
    };
    forwards("1");
    let heard = arrivals(network, frames, is_wanted, 0);
    forwards("0");
    heard
}

/// The paths to compare with the kernel's.
fn paths(test: &str) -> &'static [&'static str] {
    if has_programs(test) { &["af-packet", "xdp-generic", "tcx"] } else { &["af-packet"] }
}

fn sorted(packets: &[Vec<u8>]) -> BTreeSet<Vec<u8>> {
    packets.iter().cloned().collect()
}

/// Packets from both sides of each limit.
fn v4_addresses(to: MacAddress) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let server = [10, 2, 0, 2];
    for source in [
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 255, 255, 255],
        [1, 0, 0, 1],
        [10, 1, 0, 2],
        [126, 255, 255, 255],
        [127, 0, 0, 1],
        [127, 255, 255, 255],
        [128, 0, 0, 1],
        [169, 254, 1, 1],
        [192, 0, 2, 1],
        [223, 255, 255, 254],
        [224, 0, 0, 1],
        [239, 255, 255, 255],
        [240, 0, 0, 1],
        [255, 255, 255, 254],
        [255, 255, 255, 255],
    ] {
        frames.push(v4(to, (source, server), u16::try_from(frames.len()).expect("few") + 1));
    }
    frames
}

/// A packet with a right checksum and two with wrong ones, each without options and with some.
fn wrong_checksums(to: MacAddress) -> Vec<Vec<u8>> {
    let (mut frames, server) = (Vec::new(), [10, 2, 0, 2]);
    for (number, changed) in [(200, 0), (201, 1), (202, 0x8000)] {
        let mut frame = v4(to, ([10, 1, 0, 2], server), number);
        frame[24] ^= u16::to_be_bytes(changed)[0];
        frame[25] ^= u16::to_be_bytes(changed)[1];
        // With three words of options, too.
        let mut long = [&frame[..34], &[1; 12], &frame[34..]].concat();
        long[14] = 0x48;
        long[17] += 12;
        let mut packet = Packet::new(Port(0), &long);
        packet.fill_checksums().expect("it is whole");
        let mut long = packet.bytes().to_vec();
        long[44] ^= u16::to_be_bytes(changed)[0];
        long[45] ^= u16::to_be_bytes(changed)[1];
        frames.extend([frame, long]);
    }
    frames
}

fn v6_addresses(to: MacAddress) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();

    let server: Ipv6Addr = "fd02::2".parse().expect("an address");
    for (source, number) in [
        "::",
        "::1",
        "::2",
        "::ffff:10.1.0.2",
        "2001:db8::1",
        "fd01::2",
        "fe7f::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "feff::1",
        "ff00::1",
        "ff02::1",
        "ffff::1",
    ]
    .into_iter()
    .zip(300..)
    {
        let source = source.parse().expect("an address");
        frames.push(v6(to, (source, server), number));
    }

    frames
}

/// Goal: packets with addresses that no router forwards, and with wrong header checksums, are dropped and counted on
/// every path, and no others: as the kernel does, but for network zero. Method: sources and destinations at both sides of each limit, options
/// in the header, changed checksums; the same packets must arrive, byte for byte.
#[test]
fn what_the_kernel_refuses_is_refused() {
    let test = "reference::what_the_kernel_refuses_is_refused";
    with_network(test, |network| {
        let has_v6 = prepare(network);
        let to = network.address_of("ra");
        let mut frames = v4_addresses(to);
        let addresses = frames.len();
        frames.extend(wrong_checksums(to));
        if has_v6 {
            frames.extend(v6_addresses(to));
        }
        // The router's kernel talks to its neighbours by an address that it has made of its hardware's.
        let is_wanted = |packet: &[u8]| {
            packet[0] >> 4 != 6 || packet[8..10] != [0xfe, 0x80] || packet[19..21] != [0xff, 0xfe]
        };
        let mut expected = sorted(&by_kernel(network, has_v6, &frames, is_wanted));
        // Since Linux 5.3 the kernel forwards from the rest of network zero, which RFC 1812, §5.3.7, forbids.
        expected.retain(|packet| packet[0] >> 4 != 4 || packet[12] != 0);
        assert!(expected.len() > addresses / 2 && expected.len() < frames.len());
        for path in paths(test) {
            let folder = Folder::new();
            let router = forward(network, &folder, &["l3", "ra", "rb", "--path", path]);
            let found = sorted(&arrivals(network, &frames, is_wanted, expected.len()));
            let differ: Vec<_> = found.symmetric_difference(&expected).collect();
            assert!(differ.is_empty(), "{path}: {differ:02x?}");
            let stats = folder.path("stats");
            let of = |name| counter(&stats, "l3", name);
            let dropped = of("dropped: impossible address") + of("dropped: checksum wrong");
            assert_eq!(
                dropped,
                u64::try_from(frames.len() - expected.len()).expect("few"),
                "{path}"
            );
            assert_eq!(of("dropped: checksum wrong"), 4, "{path}");
            assert_eq!(router.end().code(), 0);
        }
    });
}

/// Goal: packets that are too long for the way out are cut as the kernel cuts them, with and without options, and fragments
/// again; those that forbid it are not. Method: a short MTU on the way out; packets of lengths around its multiples; what
/// arrives must be the same, byte for byte, and for each packet in order.
#[test]
fn long_packets_are_cut_as_by_the_kernel() {
    let test = "reference::long_packets_are_cut_as_by_the_kernel";
    with_network(test, |network| {
        let has_v6 = prepare(network);
        network.router.run("ip link set dev rb mtu 576");
        let to = network.address_of("ra");
        let mut frames = Vec::new();
        for length in [1, 547, 548, 549, 555, 556, 557, 1104, 1105, 1112, 1113, 1465, 1472] {
            for fragment in [0, 0x2000, 0x2007, 0x0007, 0x4000] {
                for words in [0_u8, 2] {
                    let length = length - usize::from(words) * 4 * usize::from(length > 8);
                    let number = u16::try_from(frames.len()).expect("few") + 1;
                    let payload: Vec<u8> = (0..=255)
                        .cycle()
                        .take(length & if fragment & 0x2000 != 0 { !7 } else { !0 })
                        .collect();
                    let ends = ([10, 1, 0, 2], [10, 2, 0, 2]);
                    let frame = ip_frame(to, ends, (99, number, fragment), &payload);
                    // A stream identifier, which is copied, and no other.
                    let options: &[u8] = if words > 0 { &[136, 4, 1, 2, 1, 1, 1, 0] } else { &[] };
                    let mut frame = [&frame[..34], options, &frame[34..]].concat();
                    frame[14] += words;
                    let length = u16::try_from(frame.len() - 14).expect("it fits");
                    frame[16..18].copy_from_slice(&length.to_be_bytes());
                    let mut packet = Packet::new(Port(0), &frame);
                    packet.fill_checksums().expect("it is whole");
                    frames.push(packet.bytes().to_vec());
                }
            }
        }
        // A protocol that nobody here speaks, and no answers.
        let is_wanted = |packet: &[u8]| packet[9] == 99;
        // Those that a program forwards overtake those that it leaves to the host.
        let by_number = |mut packets: Vec<Vec<u8>>| {
            packets.sort_by_key(|packet| [packet[4], packet[5]]);
            packets
        };
        let expected = by_number(by_kernel(network, has_v6, &frames, is_wanted));
        assert!(expected.len() > frames.len());
        for path in paths(test) {
            let folder = Folder::new();
            let router = forward(network, &folder, &["l3", "ra", "rb", "--path", path]);
            let found = by_number(arrivals(network, &frames, is_wanted, expected.len()));
            let differs = found.iter().zip(&expected).position(|(one, other)| one != other);
            let pair = differs.map(|at| (&found[at], &expected[at]));
            assert!(differs.is_none() && found.len() == expected.len(), "{path}: {pair:02x?}");
            assert!(counter(&folder.path("stats"), "l3", "dropped: longer than the MTU") > 0);
            assert_eq!(router.end().code(), 0);
        }
    });
}

/// Goal: the first packet to an unknown neighbour is not lost, and a neighbour that changes its address without a word is
/// noticed, as the kernel notices it. Method: calls that are answered at the first try after the router has forgotten its
/// neighbours; then the server takes another address, and calls are answered again.
#[test]
fn neighbours_are_found_and_confirmed() {
    neighbours("neighbours_are_found_and_confirmed", "af-packet");
}

/// Goal: as above, with a program behind the drivers. Method: the same.
#[test]
fn neighbours_beside_a_generic_program() {
    neighbours("neighbours_beside_a_generic_program", "xdp-generic");
}

/// Goal: as above, with a program at the kernel's traffic control. Method: the same.
#[test]
fn neighbours_beside_a_tcx_program() {
    neighbours("neighbours_beside_a_tcx_program", "tcx");
}

fn neighbours(test: &str, path: &str) {
    let test = format!("reference::{test}");
    with_network(&test, |network| {
        if !paths(&test).contains(&path) {
            return;
        }
        // The kernel confirms twenty times as often as by default.
        for (setting, value) in [
            ("base_reachable_time_ms", "1500"),
            ("delay_first_probe_time", "1"),
            ("ucast_solicit", "1"),
        ] {
            network.router.set(&format!("net/ipv4/neigh/rb/{setting}"), value);
        }
        let folder = Folder::new();
        let router = forward(network, &folder, &["l3", "ra", "rb", "--path", path]);
        let port = network.echo();
        for number in 0..5 {
            network.router.run("ip neigh flush dev ra; ip neigh flush dev rb");
            let caller = network.caller();
            caller.set_read_timeout(Some(BOUND)).expect("a socket");
            let question = format!("call-{number}");
            assert!(calls_through(&caller, SERVER, port, &question), "{question}");
        }
        assert_eq!(counter(&folder.path("stats"), "l3", "dropped: no neighbour"), 0);
        network.server.run("ip link set dev s0 address 02:00:00:00:00:77");
        call(&network.caller(), SERVER, port);
        assert_eq!(router.end().code(), 0);
    });
}
