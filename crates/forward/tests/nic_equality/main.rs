//! The network processor does what the host does: the same program, interpreted, is compared with the host's stages.
//!
//! Random packets and pipelines, from one seed, for as long as `VIGIE_FUZZ_SECONDS` says, by default for about a
//! second. A failure prints the seed of the pipeline and the packet.
//!
//! Ten minutes: `VIGIE_FUZZ_SECONDS=600 cargo test --release -p vigie-forward --test nic_equality`.

mod recent;
#[path = "../traffic/mod.rs"]
mod traffic;

use std::{collections::BTreeSet, env, net::IpAddr, num::NonZeroU16, time::Duration};

use fastrand::Rng;
use proptest::prelude::*;
use vigie_detect::Instant;
use vigie_forward::{
    bpf::{AttachMode, ChecksumState, PacketBuffer},
    nic::{
        CompileError, Emulator, EmulatorError, EmulatorVerdict, Exceptions, FollowError, NicConfig,
        NicCounters,
    },
    packet::{Fragment, Headers, Network, Packet, Port, Sum, Transport},
    pipeline::{BuiltinStage, DropReason, Offload, Stage, Verdict},
    stages::{Nat, NatRule, RouteStage},
    tables::{Fib, HopGroup, Interface, NatEndpoint, NatFlow, NatTable, NatTuple, Route},
};
use vigie_via::link::MacAddress;

use crate::traffic::{
    Made, PORTS, absent_bytes, borrowed, change_fib, frame, headerless, may_go_up, on_host,
    remove_headers, stages,
};

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

fn has(stages: &[Box<dyn Stage>], what: impl Fn(&BuiltinStage<'_>) -> bool) -> bool {
    stages.iter().any(|stage| matches!(stage.offload(), Offload::Builtin(stock) if what(&stock)))
}

/// The outcomes so far, so that a test that covers nothing fails.
#[derive(Debug, Default)]
struct Seen {
    pipelines: u64,
    refused: u64,
    packets: u64,
    sent: u64,
    copied: u64,
    went_up: u64,
    translated: u64,
    fragmented: u64,
    /// Sent from a port without Ethernet headers to one with them, the other way round, and between two without.
    gained_header: u64,
    lost_header: u64,
    without_header: u64,
    /// With a checksum that the sender has left to the network card.
    left_to_card: u64,
    dropped: std::collections::BTreeMap<DropReason, u64>,
}

/// The reason counted between two times.
fn reason(before: &NicCounters, after: &NicCounters) -> Option<DropReason> {
    let differs = |reason: &&DropReason| before.traffic.of(**reason) != after.traffic.of(**reason);
    DropReason::ALL.iter().find(differs).copied()
}

/// Returns whether it is a UDP datagram without a checksum. Nothing in it makes up for a changed port, so the card's sum over it does not hold; receivers do
/// not read that sum.
fn lacks_checksum(frame: &[u8]) -> bool {
    let Ok(headers) = Headers::parse(frame) else { return false };
    let at = headers.transport_at + 6;
    headers.transport == Transport::Udp && frame[at..at + 2] == [0, 0]
}

const STATES: [ChecksumState; 4] = [
    ChecksumState::Complete,
    ChecksumState::None,
    ChecksumState::Unnecessary,
    ChecksumState::Partial,
];

/// Returns the frame as a sender leaves it whose network card computes checksums of TCP and UDP: there stands the sum over addresses, protocol and
/// length. `None` if it leaves none.
fn left_to_card(frame: &[u8]) -> Option<Vec<u8>> {
    let headers = Headers::parse(frame).ok()?;
    let Headers { network_at, transport_at, .. } = headers;
    let (protocol, at) = match headers.transport {
        Transport::Tcp => (6, 16),
        Transport::Udp if !lacks_checksum(frame) => (17, 6),
        _ => return None,
    };
    if headers.fragment != Fragment::Whole {
        return None;
    }
    let addresses = match headers.network {
        Network::Ipv4 => network_at + 12..network_at + 20,
        _ => network_at + 8..network_at + 40,
    };
    let length = u16::try_from(headers.end_at - transport_at).ok()?;
    let sum = Sum::ZERO.bytes(&frame[addresses]).word(protocol).word(length);
    let mut frame = frame.to_vec();
    frame[transport_at + at..][..2].copy_from_slice(&sum.folded().to_be_bytes());
    Some(frame)
}

/// Chooses the state of a packet's checksum, each in turn; and the packet as its sender leaves it to the card, if it does.
fn state_of(
    emulator: &Emulator,
    frame: &[u8],
    seen: &mut Seen,
) -> (ChecksumState, Option<Vec<u8>>) {
    let state = STATES[usize::try_from(seen.packets).expect("few") % STATES.len()];
    if state != ChecksumState::Partial {
        return (state, None);
    }
    let is_tcx = emulator.sum_change().is_some();
    match left_to_card(frame).filter(|_| is_tcx) {
        None => (ChecksumState::None, None),
        left => {
            seen.left_to_card += 1;
            (state, left)
        }
    }
}

/// Returns whether a network card's sum over a packet, before and after, holds: else the receiver's kernel complains.
fn is_sum_right((before, after): (&[u8], &[u8]), change: u16) -> bool {
    let sum = |packet: &[u8], change| match Sum::ZERO.bytes(packet).word(change).folded() {
        0xffff => 0,
        sum => sum,
    };
    sum(before, change) == sum(after, 0)
}

/// Compares one packet, a frame as the host has it also on a port without headers. Returns whether both sides saw the same time, including meters.
fn compare(
    emulator: &mut Emulator,
    host: &mut [Box<dyn Stage>],
    (ingress, frame, now, default_port): (Port, &[u8], Instant, Option<Port>),
    seen: &mut Seen,
) -> Result<bool, String> {
    compare_with(emulator, host, (ingress, frame, now, default_port), (&[], seen))
}

/// The same, with the ports that have no headers.
fn compare_with(
    emulator: &mut Emulator,
    host: &mut [Box<dyn Stage>],
    (ingress, frame, now, default_port): (Port, &[u8], Instant, Option<Port>),
    (headerless, seen): (&[Port], &mut Seen),
) -> Result<bool, String> {
    let translates = has(host, |stock| matches!(stock, BuiltinStage::Nat(_)));
    let before = emulator.counters().expect("counters");
    let absent = absent_bytes(headerless, ingress);
    let (state, left) = state_of(emulator, frame, seen);
    let given = left.as_deref().unwrap_or(frame);
    let mut packet = PacketBuffer::new(&given[absent..]).checksum(state);
    let verdict = emulator.process(ingress, &mut packet, now).map_err(|error| error.to_string())?;
    let after = emulator.counters().expect("counters");
    let made = on_host(host, ingress, frame, default_port, now);
    seen.packets += 1;
    let counted = after.traffic.received.bytes - before.traffic.received.bytes;
    if usize::try_from(counted) != Ok(frame.len()) {
        return Err(format!("{counted} bytes were counted of {}", frame.len()));
    }
    let Made { dropped, port, copy, bytes, needs_host } = &made;
    let said = || {
        format!("host: {made:?}\nprogram: {verdict:?}, {:?}, {packet:?}", reason(&before, &after))
    };
    match verdict {
        EmulatorVerdict::PassedUp => {
            seen.went_up += 1;
            if packet.frame() != &given[absent..] {
                return Err(format!("it did not go up as it came: {}", said()));
            }
            seen.fragmented += u64::from(made.needs_host);
            if !may_go_up(frame, translates) && !made.needs_host {
                return Err(format!("it went up: {}", said()));
            }
            return Ok(!has(host, |stock| matches!(stock, BuiltinStage::Meter(_))));
        }
        EmulatorVerdict::Sent { port: to, copy: with } => {
            seen.sent += 1;
            seen.copied += u64::from(with.is_some());
            seen.translated += u64::from(translates && packet.frame() != frame);
            let bytes = &left.and_then(|_| left_to_card(bytes)).unwrap_or_else(|| bytes.clone());
            let absent_there = absent_bytes(headerless, to);
            match (absent, absent_there) {
                (0, 0) => {}
                (_, 0) => seen.gained_header += 1,
                (0, _) => seen.lost_header += 1,
                (_, _) => seen.without_header += 1,
            }
            if *needs_host
                || dropped.is_some()
                || *port != Some(to)
                || *copy != with
                || packet.frame() != &bytes[absent_there..]
            {
                return Err(said());
            }
            if let Some(change) = emulator.sum_change()
                && state == ChecksumState::Complete
                && !lacks_checksum(frame)
                && !is_sum_right((&frame[14..], &packet.frame()[14 - absent_there..]), change)
            {
                return Err(format!("the sum over the packet is wrong: {change:#x}, {}", said()));
            }
        }
        EmulatorVerdict::Dropped | EmulatorVerdict::Copied(_) => {
            let with = if let EmulatorVerdict::Copied(to) = verdict { Some(to) } else { None };
            if *dropped != reason(&before, &after) || dropped.is_none() || *copy != with {
                return Err(said());
            }
            if let Some(reason) = dropped {
                *seen.dropped.entry(*reason).or_default() += 1;
            }
        }
        other => return Err(format!("{other:?}")),
    }
    Ok(true)
}

/// Compares some packets in one pipeline.
fn run(seed: u64, seen: &mut Seen) {
    let (mut host, fib) = stages(seed);
    // With and without a default port.
    let default_port = (!seed.is_multiple_of(3)).then_some(Port(2));
    let config =
        default_port.map_or_else(NicConfig::new, |port| NicConfig::new().default_port(port));
    // Every other program at tcx.
    let place = if seed.is_multiple_of(2) { AttachMode::Tcx } else { AttachMode::Native };
    // Of these, half with some ports without headers.
    let of_headers = seed / 4 % 8;
    let without: Vec<Port> =
        PORTS.into_iter().filter(|port| of_headers >> port.0 & 1 != 0).collect();
    let without = if seed.is_multiple_of(4) { without } else { Vec::new() };
    let config = config.headerless(&without);
    if let Some(fib) = &fib {
        remove_headers(&mut Rng::with_seed(seed), fib, &without);
    }
    let mut emulator = match Emulator::at(place, &borrowed(&host), &PORTS, &config) {
        Ok(emulator) => emulator,
        Err(EmulatorError::Compile(_)) => {
            seen.refused += 1;
            return;
        }
        Err(error) => panic!("pipeline {seed}: {error}"),
    };
    seen.pipelines += 1;
    let mut rng = Rng::with_seed(seed ^ 0x5eed);
    let mut now = Instant::from_nanos(1_000_000_000);
    for number in 0..60 {
        now += Duration::from_nanos(rng.u64(..50_000));
        let mut frame = frame(&mut rng);
        let ingress = PORTS[rng.usize(..3)];
        if without.contains(&ingress) {
            frame = headerless(&frame);
        }
        // Now and then the same packet again: flows that it begins are then known.
        for _ in 0..rng.usize(1..4) {
            let packet = (ingress, &frame[..], now, default_port);
            match compare_with(&mut emulator, &mut host, packet, (&without, seen)) {
                Ok(true) => {}
                Ok(false) => return,
                Err(said) => panic!(
                    "pipeline {seed}, packet {number}: {said}\n{frame:02x?}\n{:?}",
                    host.iter().map(|stage| format!("{:?}", stage.offload())).collect::<Vec<_>>()
                ),
            }
            emulator.follow().expect("room");
        }
        if let Some(fib) = &fib
            && rng.bool()
        {
            change_fib(&mut rng, fib);
            if rng.bool() {
                remove_headers(&mut rng, fib, &without);
            }
            emulator.follow().expect("room");
        }
    }
}

/// Goal: every packet that a program does not leave to the host has the same outcome there as on the host: bytes, port,
/// copy, reason; while routes, neighbours and flows change. Method: random pipelines and packets.
#[test]
fn programs_do_what_stages_do() {
    let first = number("VIGIE_FUZZ_SEED").unwrap_or(1) << 32;
    let end =
        number("VIGIE_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut seen = Seen::default();
    for seed in first.. {
        run(seed, &mut seen);
        if end.map_or(seed >= first + 400, |end| Instant::now() >= end) {
            break;
        }
    }
    println!("{seen:?}");
    assert!(
        seen.fragmented > 10
            && seen.sent > 100
            && seen.copied > 10
            && seen.went_up > 100
            && seen.translated > 20
            && seen.left_to_card > 1000
            && seen.gained_header.min(seen.lost_header).min(seen.without_header) > 20,
        "{seen:?}"
    );
    for reason in [
        DropReason::Malformed,
        DropReason::NotIp,
        DropReason::TtlExpired,
        DropReason::Filtered,
        DropReason::Metered,
        DropReason::NoRoute,
        DropReason::NoNeighbour,
        DropReason::NoPort,
        DropReason::TooLong,
        DropReason::ChecksumWrong,
        DropReason::Martian,
    ] {
        assert!(seen.dropped.contains_key(&reason), "no packet was dropped: {reason}; {seen:?}");
    }
}

/// Goal: XDP is refused where packets have no Ethernet header, and the error names the port. Method: both places.
#[test]
fn xdp_needs_headers() {
    let host: Vec<Box<dyn Stage>> = vec![Box::new(RouteStage::new(Fib::default()))];
    let config = NicConfig::new().headerless(&PORTS[1..]);
    let at = |place| Emulator::at(place, &borrowed(&host), &PORTS, &config);
    let refused = at(AttachMode::Generic).expect_err("there is no header");
    assert!(
        matches!(refused, EmulatorError::Compile(CompileError::Headerless { port: Port(1) })),
        "{refused}"
    );
    drop(at(AttachMode::Tcx).expect("it compiles"));
    let at_xdp = |config: &NicConfig| Emulator::new(&borrowed(&host), &PORTS, config);
    drop(at_xdp(&NicConfig::new().headerless(&[Port(5)])).expect("there is no such port"));
    let refused = at_xdp(&NicConfig::new().headerless(&[Port(64)])).expect_err("out of range");
    assert!(
        matches!(
            refused,
            EmulatorError::Compile(CompileError::InvalidSetting {
                name: "headerless",
                value: 64,
                ..
            })
        ),
        "{refused}"
    );
}

/// Goal: packets that are too long to get a header are exceptions, but only where some port has headers, and packets at the limit get one. Method:
/// packets around the limit, to a port with headers and to one without.
#[test]
fn packets_too_long_for_a_header_are_exceptions() {
    let fib = Fib::default();
    for (port, number) in PORTS.into_iter().zip(1_u8..) {
        fib.set_interface(port, Some(Interface::headerless(65_000)));
        let prefix = format!("10.{number}.0.0/16").parse().expect("a prefix");
        fib.set_route(prefix, Some(Route::on_link(port)));
    }
    let host: Vec<Box<dyn Stage>> = vec![Box::new(RouteStage::new(fib.clone()))];
    let long = |bytes: u16, to: u8| {
        let ends = [[10, 1, 0, 2], [10, to, 0, 2]].map(|end| (IpAddr::from(end), 80));
        let mut frame = segment(ends[0], ends[1], 0x10, 1, 1);
        frame.resize(14 + usize::from(bytes), 7);
        frame[16..18].copy_from_slice(&bytes.to_be_bytes());
        let mut packet = Packet::new(PORTS[0], &frame);
        packet.fill_checksums().expect("it is whole");
        packet.bytes().to_vec()
    };
    for (with_headers, exceptions) in [
        (true, Exceptions::PassUp),
        (true, Exceptions::Drop),
        (false, Exceptions::PassUp),
        (false, Exceptions::Drop),
    ] {
        let without = if with_headers { &PORTS[..2] } else { &PORTS[..] };
        if with_headers {
            let address = MacAddress([2, 0, 0, 0, 0, 1]);
            fib.set_interface(PORTS[2], Some(Interface::new(address, 65_000)));
            fib.set_neighbour(PORTS[2], [10, 3, 0, 2].into(), Some(address));
        } else {
            fib.set_interface(PORTS[2], Some(Interface::headerless(65_000)));
        }
        let config = NicConfig::new().headerless(without).exceptions(exceptions);
        let mut emulator =
            Emulator::at(AttachMode::Tcx, &borrowed(&host), &PORTS, &config).expect("it compiles");
        for (bytes, to) in [(15_500, 2), (15_501, 2), (15_500, 3), (15_501, 3), (60_000, 3)] {
            let mut packet = PacketBuffer::new(&long(bytes, to)[14..]);
            let verdict = emulator.process(PORTS[0], &mut packet, Instant::from_nanos(1));
            let is_exception = with_headers && bytes > 15_500;
            let expected = match exceptions {
                Exceptions::PassUp if is_exception => EmulatorVerdict::PassedUp,
                Exceptions::Drop if is_exception => EmulatorVerdict::Dropped,
                _ => EmulatorVerdict::Sent { port: PORTS[usize::from(to) - 1], copy: None },
            };
            assert_eq!(verdict.expect("no fault"), expected, "{bytes} to {to}, {with_headers}");
        }
        let dropped = emulator.counters().expect("counters").traffic.of(DropReason::TooLong);
        let expected = if with_headers && exceptions == Exceptions::Drop { 3 } else { 0 };
        assert_eq!(dropped, expected);
    }
}

/// Goal: an RST is judged by the segments that only the program has seen, and a forged one starts no short time-out; a
/// program translates between hosts inside as the host does. Method: a connection to a published port through its external end,
/// begun on the host; segments by the program; RSTs at the host, which learns of the segments afterwards.
#[test]
fn a_program_tells_what_it_saw_of_connections() {
    for (sequence, ends) in [(500_000_u32, true), (90_000_000, false)] {
        let table = NatTable::builder().seed(1).build();
        let [inside, external, server] =
            [[10, 0, 0, 2], [192, 0, 2, 1], [10, 0, 0, 3]].map(IpAddr::from);
        let published = NatEndpoint::new(external, 80);
        let nat = Nat::new(table.clone())
            .rule(NatRule::Destination {
                protocol: 6,
                external: published,
                internal: NatEndpoint::new(server, 8080),
            })
            .rule(NatRule::Source {
                ingress: PORTS[0],
                from: "10.0.0.0/24".parse().expect("a prefix"),
                external,
            });
        let mut host: Vec<Box<dyn Stage>> = vec![Box::new(nat)];
        let mut emulator =
            Emulator::new(&borrowed(&host), &PORTS, &NicConfig::default().default_port(PORTS[2]))
                .expect("it compiles");
        let mut now = Instant::from_nanos(1_000_000_000);
        let mut pass = |frame: &[u8], goes_up: bool| {
            now += Duration::from_millis(1);
            let mut seen = Seen::default();
            let packet = (PORTS[0], frame, now, Some(PORTS[2]));
            compare(&mut emulator, &mut host, packet, &mut seen).expect("the same");
            assert_eq!(seen.went_up, u64::from(goes_up));
            emulator.follow().expect("room");
            emulator.refresh(now, 10).expect("maps")
        };
        let there = |flags, number, acknowledged| {
            segment((inside, 5000), (external, 80), flags, number, acknowledged)
        };
        pass(&there(2, 1, 0), true);
        let flow = table.flows()[0];
        let back = flow.translated.reversed();
        let ends_back = [back.source, back.destination].map(|end| (end.address, end.port));
        let back = |flags, number, acknowledged| {
            segment(ends_back[0], ends_back[1], flags, number, acknowledged)
        };
        pass(&back(0x12, 70, 2), true);
        pass(&there(0x10, 2, 71), false);
        // The window moves on, and only the program has seen that when the RST comes.
        let timeout = || table.timeout_of(&flow.original).expect("it lives");
        let established = timeout();
        assert!(established > Duration::from_secs(7000));
        now += Duration::from_millis(1);
        let frame = there(0x10, 3, 499_900);
        let mut packet = PacketBuffer::new(&frame);
        drop(emulator.process(PORTS[0], &mut packet, now));
        let mut reset = Packet::new(PORTS[0], &back(4, sequence, 0));
        let _ = host[0].process(&mut reset, now);
        assert_eq!(timeout(), established);
        assert_eq!(emulator.refresh(now, 10).expect("maps"), 1);
        assert_eq!(timeout() < established, ends);
    }
}

/// Goal: with `asked_flows` a flow of the table reaches the program when it is asked for, in either direction, and not
/// before; one that has ended leaves it. Method: a segment before and after, at each place.
#[test]
fn flows_are_taken_over_when_asked_for() {
    let [inside, server, external] =
        ["10.0.0.2", "10.9.0.1", "192.0.2.1"].map(|text| text.parse::<IpAddr>().expect("one"));
    for place in [AttachMode::Native, AttachMode::Tcx] {
        for asks_by_answer in [false, true] {
            let (table, mut now) =
                (NatTable::builder().seed(3).build(), Instant::from_nanos(1_000_000_000));
            let original = NatTuple {
                protocol: 6,
                source: NatEndpoint::new(inside, 5000),
                destination: NatEndpoint::new(server, 80),
                is_echo_reply: false,
            };
            let translated = table.open(original, (Some(external), None), None, now).expect("room");
            let host: Vec<Box<dyn Stage>> = vec![Box::new(Nat::new(table.clone()))];
            let config = NicConfig::new().default_port(PORTS[2]).asked_flows();
            let emulator = Emulator::at(place, &borrowed(&host), &PORTS, &config);
            let mut emulator = emulator.expect("it compiles");
            let passes = |emulator: &mut Emulator, now| {
                let frame = segment((inside, 5000), (server, 80), 0x10, 2, 71);
                let verdict = emulator.process(PORTS[0], &mut PacketBuffer::new(&frame), now);
                verdict.expect("no fault") != EmulatorVerdict::PassedUp
            };
            assert!(!passes(&mut emulator, now));
            let flow = if asks_by_answer {
                NatFlow::new(translated.reversed(), original.reversed())
            } else {
                NatFlow::new(original, translated)
            };
            emulator.add_flow(&flow, now).expect("room");
            assert!(passes(&mut emulator, now));
            now += Duration::from_secs(100_000);
            assert_eq!(table.expire(now), 1);
            emulator.follow().expect("room");
            assert!(!passes(&mut emulator, now));
        }
    }
}

/// Goal: no datagram overtakes earlier ones of its flow that the host may still have. Method: a flow that is taken over
/// goes up while its datagrams come without a gap of 10 ms, and by the program after the first gap, at each place; one without gaps, too,
/// after a while.
#[test]
fn a_flow_is_taken_over_after_a_gap() {
    let [inside, server, external] =
        ["10.0.0.2", "10.9.0.1", "192.0.2.1"].map(|text| text.parse::<IpAddr>().expect("one"));
    let start = Instant::from_nanos(1_000_000_000);
    for place in [AttachMode::Native, AttachMode::Tcx] {
        let table = NatTable::builder().seed(3).build();
        let original = NatTuple {
            protocol: 17,
            source: NatEndpoint::new(inside, 5000),
            destination: NatEndpoint::new(server, 80),
            is_echo_reply: false,
        };
        let translated = table.open(original, (Some(external), None), None, start).expect("room");
        let host: Vec<Box<dyn Stage>> = vec![Box::new(Nat::new(table.clone()))];
        let config = NicConfig::new().default_port(PORTS[2]).asked_flows();
        let mut emulator =
            Emulator::at(place, &borrowed(&host), &PORTS, &config).expect("it compiles");
        let flow = NatFlow::new(original, translated);
        emulator.add_flow(&flow, start).expect("room");
        let mut frame = datagram(segment((inside, 5000), (server, 80), 0, 0, 0));
        let packet = PacketBuffer::new(&frame);
        let micros = [10, 20, 9000, 18_999, 28_998, 39_000, 39_001, 90_000];
        let by_program = micros.map(|micros| {
            // Asking again changes nothing.
            emulator.add_flow(&flow, start).expect("room");
            let now = start + Duration::from_micros(micros);
            let verdict = emulator.process(PORTS[0], &mut packet.clone(), now);
            verdict.expect("no fault") != EmulatorVerdict::PassedUp
        });
        assert_eq!(by_program, [false, false, false, false, false, true, true, true]);

        // Without a gap, the host gets a bounded number of packets.
        let without_gap = NatTuple { source: NatEndpoint::new(inside, 5001), ..original };
        let becomes = table.open(without_gap, (Some(external), None), None, start).expect("room");
        emulator.add_flow(&NatFlow::new(without_gap, becomes), start).expect("room");
        frame[35] += 1;
        let packet = PacketBuffer::new(&datagram(frame));
        let went_up = (0..1000).filter(|micros| {
            let now = start + Duration::from_micros(*micros);
            let verdict = emulator.process(PORTS[0], &mut packet.clone(), now);
            verdict.expect("no fault") == EmulatorVerdict::PassedUp
        });
        assert_eq!(went_up.count(), 255);
    }
}

/// Goal: no packet overtakes earlier ones to its neighbour that the host may still have. Method: a neighbour on the link and a router
/// that become known: packets go up while they come without a gap of 10 ms, and by the program after the first gap, at each place;
/// without gaps, too, after a while; segments of TCP do not go up; a neighbour that was known from the beginning, or only gets another address, is used at once, and so is
/// every one while no host holds packets.
#[test]
fn a_neighbour_is_taken_over_after_a_gap() {
    let ip = |text: &str| text.parse::<IpAddr>().expect("one");
    let on_link = (ip("10.9.0.1"), ip("10.9.0.1"));
    let by_router = (ip("10.8.0.1"), ip("10.9.0.7"));
    for place in [AttachMode::Native, AttachMode::Tcx] {
        for (to, neighbour) in [on_link, by_router] {
            let fib = Fib::default();
            fib.set_interface(PORTS[1], Some(Interface::new(MacAddress([2; 6]), 1500)));
            fib.set_route("10.9.0.0/24".parse().expect("one"), Some(Route::on_link(PORTS[1])));
            let router = Route::via(PORTS[1], ip("10.9.0.7"));
            fib.set_route("10.8.0.0/24".parse().expect("one"), Some(router));
            let host: Vec<Box<dyn Stage>> = vec![Box::new(RouteStage::new(fib.clone()))];
            let tcp = segment((ip("10.0.0.2"), 5000), (to, 80), 0x10, 2, 71);
            let udp = datagram(tcp.clone());
            let config = NicConfig::new().pass_up(&[DropReason::NoNeighbour]);
            let emulator = |config| {
                Emulator::at(place, &borrowed(&host), &PORTS, config).expect("it compiles")
            };
            let set = |emulator: &mut Emulator, mac: Option<u8>| {
                fib.set_neighbour(PORTS[1], neighbour, mac.map(|byte| MacAddress([byte; 6])));
                emulator.follow().expect("room");
            };
            let passes = |emulator: &mut Emulator, frame: &[u8], micros: &[u64]| {
                let mut verdict = |micros: &u64| {
                    let now = Instant::from_nanos(1_000_000_000 + micros * 1000);
                    let mut packet = PacketBuffer::new(frame);
                    let verdict = emulator.process(PORTS[0], &mut packet, now).expect("no fault");
                    verdict == EmulatorVerdict::Sent { port: PORTS[1], copy: None }
                };
                micros.iter().filter(|micros| verdict(micros)).copied().collect::<Vec<_>>()
            };
            let by_program =
                |emulator: &mut Emulator, micros: &[u64]| passes(emulator, &udp, micros);

            let mut all_at_once = emulator(&config);
            let held = config.clone().held_neighbours();
            let mut holder = RouteStage::new(fib.clone()).hold_unresolved();
            let mut packet = Packet::new(PORTS[0], &udp);
            assert_eq!(holder.process(&mut packet, Instant::from_nanos(0)), Verdict::Hold);
            let mut taking_over = emulator(&held);
            set(&mut all_at_once, Some(7));
            assert_eq!(by_program(&mut all_at_once, &[1, 2]), [1, 2]);
            set(&mut taking_over, Some(7));
            assert_eq!(passes(&mut taking_over, &tcp, &[80_000, 80_001]), [80_000, 80_001]);
            let micros = [90_000, 90_010, 99_000, 108_999, 119_000, 119_001, 190_000];
            assert_eq!(by_program(&mut taking_over, &micros), [119_000, 119_001, 190_000]);
            set(&mut taking_over, Some(8));
            assert_eq!(by_program(&mut taking_over, &[190_001]), [190_001]);
            assert_eq!(by_program(&mut emulator(&held), &[1, 2]), [1, 2]);

            // Without a gap, the host gets a bounded number of packets.
            set(&mut taking_over, None);
            set(&mut taking_over, Some(7));
            let micros: Vec<u64> = (200_000..201_000).collect();
            assert_eq!(by_program(&mut taking_over, &micros), micros[255..]);

            set(&mut taking_over, None);
            drop(holder);
            set(&mut taking_over, Some(7));
            assert_eq!(by_program(&mut taking_over, &[1, 2]), [1, 2]);
        }
    }
}

/// Goal: a flow takes the same hop by the host and by a program, all of its packets take it, and all fragments between two hosts take one; flows
/// are spread as the weights say; when a hop goes, only its flows move, and they return with it. Method: 400 flows of TCP and UDP, each of
/// several packets, over routes of three hops, at each place, of which one fails, then an interface goes; both return.
#[test]
#[expect(clippy::too_many_lines, reason = "hops go and return one after the other")]
fn flows_are_spread_over_hops() {
    let ip = |text: &str| text.parse::<IpAddr>().expect("one");
    let hops = [(0, "10.7.0.1", 3), (1, "10.7.1.1", 1), (1, "10.7.1.2", 2)];
    let hops = hops.map(|(port, via, weight)| {
        (Route::via(PORTS[port], ip(via)), NonZeroU16::new(weight).expect("positive"))
    });
    let fib = Fib::default();
    let interface = Interface::new(MacAddress([2; 6]), 1500);
    let interface = |is_there: bool| {
        let _ = fib.set_interface(PORTS[1], is_there.then_some(interface));
    };
    fib.set_interface(PORTS[0], Some(Interface::new(MacAddress([3; 6]), 1500)));
    interface(true);
    let macs = [1, 2, 3].map(|number| MacAddress([4, 0, 0, 0, 0, number]));
    let known = |number: usize| {
        let (hop, _) = hops[number];
        fib.set_neighbour(hop.port, hop.via.expect("a router"), Some(macs[number]));
    };
    (0..3).for_each(known);
    fib.set_hops("10.9.0.0/16".parse().expect("one"), &HopGroup::new(hops).expect("three"));
    let mut host: Vec<Box<dyn Stage>> = vec![Box::new(RouteStage::new(fib.clone()))];
    let mut emulators = [AttachMode::Native, AttachMode::Tcx].map(|place| {
        Emulator::at(place, &borrowed(&host), &PORTS, &NicConfig::new()).expect("it compiles")
    });
    let mut mac_of = |emulators: &mut [Emulator], frame: &[u8]| {
        let now = Instant::from_nanos(1_000_000_000);
        for emulator in emulators {
            emulator.follow().expect("room");
            let packet = (PORTS[2], frame, now, None);
            let same = compare(emulator, &mut host, packet, &mut Seen::default());
            assert!(same.is_ok(), "{}", same.unwrap_err());
        }
        let made = on_host(&mut host, PORTS[2], frame, None, now);
        assert!(made.port.is_some() && !made.needs_host, "{made:?}");
        let hop = macs.iter().position(|mac| mac.0 == made.bytes[..6]);
        hop.expect("one of the routers")
    };
    let frames: Vec<[Vec<u8>; 2]> = (0..400)
        .map(|number| {
            let ends = ((ip("10.0.0.2"), 5000 + number / 2), (ip("10.9.3.4"), 80));
            let [one, other] = [2, 0x10].map(|flags| segment(ends.0, ends.1, flags, 7, 9));
            if number % 2 == 0 { [one, other] } else { [datagram(one), datagram(other)] }
        })
        .collect();
    let mut all = |emulators: &mut [Emulator]| -> Vec<usize> {
        let hop_of = |[one, other]: &[Vec<u8>; 2]| {
            let hop = mac_of(emulators, one);
            assert_eq!(mac_of(emulators, other), hop, "a flow is divided");
            hop
        };
        frames.iter().map(hop_of).collect()
    };
    let first = all(&mut emulators);
    let shares = [0, 1, 2].map(|hop| first.iter().filter(|one| **one == hop).count());
    assert!((160..240).contains(&shares[0]) && (40..94).contains(&shares[1]), "{shares:?}");
    let mut without = |gone: &[usize], emulators: &mut [Emulator]| {
        let mut taken = [0; 3];
        for (before, after) in first.iter().zip(all(emulators)) {
            assert!(!gone.contains(&after));
            assert!(gone.contains(before) || *before == after, "another flow has moved");
            taken[after] += usize::from(*before != after);
        }
        taken
    };
    let router = hops[0].0;
    fib.fail_neighbour(router.port, router.via.expect("one"));
    let taken = without(&[0], &mut emulators);
    assert!(taken[1] > 20 && taken[2] > 60, "{taken:?}");
    known(0);
    assert_eq!(without(&[], &mut emulators), [0; 3]);
    interface(false);
    without(&[1, 2], &mut emulators);
    interface(true);
    assert_eq!(without(&[], &mut emulators), [0; 3]);

    let [mut by_host, mut by_programs] = [0; 2];
    for emulator in &mut emulators {
        emulator.count_hops().expect("it can be read");
        emulator.count_hops().expect("it can be read");
    }
    for traffic in fib.snapshot().hop_traffic() {
        assert!(hops.iter().any(|(hop, _)| *hop == traffic.hop));
        // Each packet was processed twice on the host beside two programs, and then once more.
        assert_eq!(traffic.host.packets, traffic.nic.packets * 3 / 2, "{traffic:?}");
        assert_eq!(traffic.host.bytes, traffic.nic.bytes * 3 / 2, "{traffic:?}");
        (by_host, by_programs) =
            (by_host + traffic.host.packets, by_programs + traffic.nic.packets);
    }
    assert_eq!((by_host, by_programs), (5 * 800 * 3, 5 * 800 * 2));

    // Fragments: the first ones with any ports, and later ones.
    let fragment = |port, word: u16| {
        let mut frame = datagram(segment((ip("10.0.0.2"), port), (ip("10.9.3.4"), 80), 0, 7, 9));
        frame[20..22].copy_from_slice(&word.to_be_bytes());
        let mut packet = Packet::new(PORTS[2], &frame);
        packet.fill_checksums().expect("it is whole");
        packet.bytes().to_vec()
    };
    let fragments = (5000..5100).flat_map(|port| [fragment(port, 0x2000), fragment(port, 3)]);
    let hops: BTreeSet<_> = fragments.map(|frame| mac_of(&mut emulators, &frame)).collect();
    assert_eq!(hops.len(), 1);
}

/// Goal: a program whose map of groups is full says so and takes no wrong way, and groups that are left make room. Method: one place, two groups.
#[test]
fn groups_of_hops_are_bounded() {
    let fib = Fib::default();
    let host: Vec<Box<dyn Stage>> = vec![Box::new(RouteStage::new(fib.clone()))];
    let config = NicConfig::new().hop_groups(1);
    let mut emulator = Emulator::new(&borrowed(&host), &PORTS, &config).expect("it compiles");
    let group = |last: u8| {
        let hops = [Route::on_link(PORTS[0]), Route::via(PORTS[1], [10, 0, 0, last].into())];
        HopGroup::new(hops.map(|hop| (hop, NonZeroU16::MIN))).expect("two")
    };
    let [one, other] = ["10.1.0.0/16", "10.2.0.0/16"].map(|text| text.parse().expect("one"));
    for number in 0..100 {
        fib.set_hops(one, &group(number));
        fib.set_hops(other, &group(number));
        emulator.follow().expect("the same group");
        fib.set_route(one, None);
        fib.set_route(other, None);
    }
    fib.set_hops(one, &group(1));
    fib.set_hops(other, &group(2));
    let full = emulator.follow().expect_err("no room");
    assert!(
        matches!(
            full,
            EmulatorError::Follow(FollowError::Full { table: "groups of hops", entries_max: 1 })
        ),
        "{full}"
    );
}

/// A datagram of UDP with the ends and the length of another IPv4 packet without options.
fn datagram(mut frame: Vec<u8>) -> Vec<u8> {
    frame[23] = 17;
    frame[38..40].copy_from_slice(&20_u16.to_be_bytes());
    let mut packet = Packet::new(PORTS[0], &frame);
    packet.fill_checksums().expect("it is whole");
    packet.bytes().to_vec()
}

/// A TCP segment without payload, with a window of 1024 bytes.
fn segment(
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    flags: u8,
    sequence: u32,
    acknowledged: u32,
) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.0, to.0) else { panic!("IPv4") };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 5, 0x40, 0, 64, 6, 0, 0]);
    frame.extend([source.octets(), destination.octets()].concat());
    frame.extend([from.1.to_be_bytes(), to.1.to_be_bytes()].concat());
    frame.extend([sequence.to_be_bytes(), acknowledged.to_be_bytes()].concat());
    frame.extend([0x50, flags, 4, 0, 0, 0, 0, 0]);
    let mut packet = Packet::new(PORTS[0], &frame);
    packet.fill_checksums().expect("it is whole");
    packet.bytes().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Goal: as above, for any bytes. Method: frames of random bytes, in random pipelines; shrinks.
    #[test]
    fn programs_do_what_stages_do_with_any_bytes(
        seed in 0_u64..2_000,
        mut frame in proptest::collection::vec(any::<u8>(), 14..120),
        ether_type in proptest::sample::select(vec![0x0800_u16, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x1234]),
    ) {
        frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
        let (mut host, _) = stages(seed);
        let emulator = Emulator::new(&borrowed(&host), &PORTS, &NicConfig::new());
        let Ok(mut emulator) = emulator else { return Ok(()) };
        let packet = (PORTS[0], &frame[..], Instant::from_nanos(1_000_000_000), None);
        let same = compare(&mut emulator, &mut host, packet, &mut Seen::default());
        prop_assert!(same.is_ok(), "{}", same.unwrap_err());
    }
}
