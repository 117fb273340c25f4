use std::num::NonZeroU32;

use fastrand::Rng;
use vigie_detect::Instant;
use vigie_via::link::{EtherType, MacAddress};

use super::*;
use crate::{
    model::StageModel,
    packet::{Icmp, Ipv4, Ipv6, Port, Tag, UDP, Verified},
    pipeline::{DropReason, Pipeline, Verdict, conformance::frame},
    stages::{Nat, NatRule, RouteStage, StageFn, Ttl},
    tables::{CounterSnapshot, Fib, NatTable, Route},
};

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const SENDER: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const CAUSES: [ErrorCause; 4] = [
    ErrorCause::TimeExceeded,
    ErrorCause::NoRoute,
    ErrorCause::TooLong { mtu: 1400 },
    ErrorCause::HostUnreachable,
];
const OWN_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

fn own() -> Interface {
    Interface::new(OWN, 1500).ip(OWN_V4.into()).ip(OWN_V6.into())
}

/// Builds the frame of an IPv4 packet that may be fragmented.
fn v4(protocol: u8, ttl: u8, (from, to): ([u8; 4], [u8; 4]), payload: &[u8]) -> Packet {
    let [high, low] = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let header = [0x45, 0, high, low, 0x12, 0x34, 0x40, 0, ttl, protocol, 0, 0];
    let frame = [&OWN.0[..], &SENDER.0, &[8, 0], &header, &from, &to, payload].concat();
    let mut packet = Packet::new(Port(0), &frame);
    packet.fill_checksums().unwrap();
    packet
}

fn v6(protocol: u8, (from, to): (Ipv6Addr, Ipv6Addr), payload: &[u8]) -> Packet {
    let [high, low] = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let header = [0x60, 0, 0, 0, high, low, protocol, 1];
    let frame = [&OWN.0[..], &SENDER.0, &[0x86, 0xdd], &header, &from.octets(), &to.octets()];
    let mut packet = Packet::new(Port(0), &[&frame.concat(), payload].concat());
    packet.fill_checksums().unwrap();
    packet
}

/// Builds a UDP datagram with this many bytes of payload.
fn udp(bytes: usize) -> Vec<u8> {
    let [high, low] = u16::try_from(8 + bytes).unwrap().to_be_bytes();
    let mut datagram = vec![4, 0, 0, 9, high, low, 0, 0];
    datagram.extend((0..bytes).map(|at| at.to_le_bytes()[0]));
    datagram
}

const BETWEEN: ([u8; 4], [u8; 4]) = ([10, 0, 0, 2], [10, 9, 0, 1]);

fn between_v6() -> (Ipv6Addr, Ipv6Addr) {
    ("fd00::2".parse().unwrap(), "fd09::1".parse().unwrap())
}

/// Goal: each cause is reported as the standards say, to the packet's sender, with as much of it as is allowed. Method:
/// short and long packets of both versions, whose answers are read field by field.
#[test]
fn senders_are_told() {
    for (bytes, quoted_v4, quoted_v6) in [(0, 28, 48), (1400, 548, 1232)] {
        let words = [(11, 0, 0), (3, 0, 0), (3, 4, 1400), (3, 1, 0)];
        for (cause, (kind, code, word)) in CAUSES.into_iter().zip(words) {
            let mut packet = v4(UDP, 1, BETWEEN, &udp(bytes));
            packet.push_tag(Tag::of_vlan(7)).unwrap();
            let mut told = error_reply(&packet, cause, &own()).unwrap();
            assert_eq!(told.verify(), Ok(Verified::Right));
            let headers = told.headers().unwrap();
            assert_eq!((headers.tags, told.ingress(), told.len()), (1, Port(0), headers.end_at));
            assert_eq!(told.bytes()[..12], [SENDER.0, OWN.0].concat());
            let header = Ipv4::parse(&told.bytes()[headers.network_at..]).unwrap();
            assert_eq!((header.source(), header.destination()), (OWN_V4, BETWEEN.0.into()));
            assert_eq!((header.ttl(), header.protocol()), (64, ICMP));
            let message = Icmp::parse(header.payload()).unwrap();
            assert_eq!((message.kind(), message.code()), (kind, code));
            assert_eq!((message.identifier(), message.sequence()), (0, word));
            assert_eq!(message.payload(), &packet.bytes()[18..18 + quoted_v4]);
            assert!(header.total_bytes() <= 576);
        }
        let words = [(3, 0, 0), (1, 0, 0), (2, 0, 1400), (1, 3, 0)];
        for (cause, (kind, code, word)) in CAUSES.into_iter().zip(words) {
            let packet = v6(UDP, between_v6(), &udp(bytes));
            let mut told = error_reply(&packet, cause, &own()).unwrap();
            assert_eq!(told.verify(), Ok(Verified::Right));
            let header = Ipv6::parse(&told.bytes()[14..]).unwrap();
            assert_eq!((header.source(), header.destination()), (OWN_V6, between_v6().0));
            let message = Icmp::parse(header.payload()).unwrap();
            assert_eq!((message.kind(), message.code()), (kind, code));
            assert_eq!((message.identifier(), message.sequence()), (0, word));
            assert_eq!(message.payload(), &packet.bytes()[14..14 + quoted_v6]);
            assert!(header.total_bytes() <= 1280);
        }
    }
}

/// Goal: no answer where it could cause errors, or reach others than one sender. Method: packets of each kind, each of
/// which differs in one point from one that is answered.
#[test]
fn nobody_is_told() {
    let told = |packet: &Packet, cause| error_reply(packet, cause, &own()).is_some();
    let plain = v4(UDP, 1, BETWEEN, &udp(0));
    assert!(told(&plain, ErrorCause::TimeExceeded));
    let changed = |at: usize, bytes: &[u8]| {
        let mut packet = plain.clone();
        packet.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        packet
    };
    // Frames to groups and broadcast, and from a group.
    for (at, bytes) in [(0, [0xff; 6]), (0, [1, 0, 0x5e, 0, 0, 1]), (6, [3, 0, 0, 0, 0, 1])] {
        assert!(!told(&changed(at, &bytes), ErrorCause::TimeExceeded));
    }
    // A later fragment; the first one counts.
    assert!(told(&changed(20, &[0x20, 0]), ErrorCause::TimeExceeded));
    assert!(!told(&changed(20, &[0x20, 1]), ErrorCause::TimeExceeded));
    // If fragmentation is allowed, expiry is reported, but not length.
    assert!(told(&changed(20, &[0, 0]), ErrorCause::TimeExceeded));
    assert!(!told(&changed(20, &[0, 0]), ErrorCause::TooLong { mtu: 1400 }));
    // Senders and receivers that are not a single host, and ourselves.
    for address in [[0; 4], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]]
    {
        assert!(!told(&changed(26, &address), ErrorCause::NoRoute), "{address:?}");
        assert!(!told(&changed(30, &address), ErrorCause::NoRoute), "{address:?}");
    }
    assert!(!told(&changed(26, &OWN_V4.octets()), ErrorCause::NoRoute));
    let ((from, to), group) = (between_v6(), "ff02::1".parse().unwrap());
    for between in [
        (Ipv6Addr::UNSPECIFIED, to),
        (Ipv6Addr::LOCALHOST, to),
        (group, to),
        (OWN_V6, to),
        (from, group),
    ] {
        assert!(!told(&v6(UDP, between, &udp(0)), ErrorCause::NoRoute), "{between:?}");
    }
    // Errors, and what may be one; echoes are not.
    for kind in 0..=255 {
        let is_known = matches!(kind, 0 | 8 | 9 | 10 | 13..=18 | 42 | 43);
        let message = [kind, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(told(&v4(ICMP, 1, BETWEEN, &message), ErrorCause::TimeExceeded), is_known);
        let is_known = kind >= 128 && kind != 137;
        let packet = v6(ICMPV6, (from, to), &message);
        assert_eq!(told(&packet, ErrorCause::TimeExceeded), is_known, "{kind}");
    }
    // No address of this version; and a frame that is not IP.
    let only_v6 = Interface::new(OWN, 1500).ip(OWN_V6.into());
    assert_eq!(error_reply(&plain, ErrorCause::NoRoute, &only_v6), None);
    assert!(!told(&changed(12, &[0x88, 0xb5]), ErrorCause::NoRoute));
}

/// Goal: whatever arrives, an answer is correct, quotes its packet, is as short as required, and is never answered
/// itself. Method: frames of all kinds, well-formed and not, from 64 seeds.
#[test]
fn answers_are_right_whatever_arrives() {
    let mut count = 0;
    for seed in 0..64 {
        let mut rng = Rng::with_seed(seed);
        for _ in 0..200 {
            let packet = Packet::new(Port(rng.u16(0..3)), &frame(&mut rng));
            let cause = CAUSES[rng.usize(0..CAUSES.len())];
            let Some(mut told) = error_reply(&packet, cause, &own()) else { continue };
            count += 1;
            assert_eq!(told.verify(), Ok(Verified::Right), "seed {seed}");
            let headers = told.headers().unwrap();
            let is_v4 = headers.network == Network::Ipv4;
            let most = if is_v4 { 576 } else { 1280 };
            assert!(headers.end_at - headers.network_at <= most, "seed {seed}");
            let quoted = &told.bytes()[headers.transport_at + ICMP_BYTES..headers.end_at];
            let its = Headers::parse(packet.bytes()).unwrap();
            let arrived = &packet.bytes()[its.network_at..its.end_at];
            assert!(arrived.starts_with(quoted), "seed {seed}");
            assert!(quoted.len() == arrived.len() || quoted.len() > 500, "seed {seed}");
            for cause in CAUSES {
                assert_eq!(error_reply(&told, cause, &own()), None, "seed {seed}");
            }
        }
    }
    assert!(count > 1000, "{count} answers");
}

/// The port of addresses outside the pipeline.
const ELSEWHERE: Port = Port(99);

/// A router between a network and one with an MTU of 1000 bytes.
fn fib() -> Fib {
    let fib = Fib::default();
    fib.set_interface(Port(0), Some(own()));
    let far = Interface::new(MacAddress([2, 0, 0, 0, 0, 3]), 1000).ip([10, 2, 0, 1].into());
    fib.set_interface(Port(1), Some(far));
    fib.set_route("10.0.0.0/24".parse().unwrap(), Some(Route::on_link(Port(0))));
    fib.set_route("10.2.0.0/24".parse().unwrap(), Some(Route::on_link(Port(1))));
    for own in ["10.0.0.1/32", "10.0.0.255/32", "10.2.0.1/32"] {
        fib.set_route(own.parse().unwrap(), Some(Route::on_link(ELSEWHERE)));
    }
    fib.set_neighbour(Port(0), [10, 0, 0, 2].into(), Some(SENDER));
    fib.set_neighbour(Port(1), [10, 2, 0, 2].into(), Some(MacAddress([2, 0, 0, 0, 0, 4])));
    fib
}

/// Passes packets through a pipeline, and returns what leaves by their ingress port.
#[track_caller]
fn answers_of(pipeline: &mut Pipeline, packet: Packet, now: Instant) -> Option<Packet> {
    let ingress = packet.ingress();
    pipeline.offer(packet).expect("room");
    assert_eq!(pipeline.run(now), 1);
    let told = pipeline.take(ingress);
    assert_eq!(pipeline.take(ingress), None);
    told
}

fn quoted(answer: &Packet) -> (u8, u8, u16, &[u8]) {
    let header = Ipv4::parse(&answer.bytes()[14..]).unwrap();
    let message = Icmp::parse(header.payload()).unwrap();
    (message.kind(), message.code(), message.sequence(), message.payload())
}

/// Goal: a router reports what it drops, with the MTU of the next hop, and quotes packets as they arrived, translated
/// or not; drops are counted as before. Method: a router that translates, and a packet for each reason.
#[test]
fn a_pipeline_answers() {
    let fib = fib();
    let rule = NatRule::Source {
        ingress: Port(0),
        from: "10.0.0.0/24".parse().unwrap(),
        external: [10, 2, 0, 9].into(),
    };
    let nat = Nat::new(NatTable::builder().build()).rule(rule);
    let mut pipeline = Pipeline::builder()
        .stage(nat)
        .stage(Ttl::new())
        .stage(RouteStage::new(fib.clone()))
        .icmp_errors(IcmpErrorSender::new(&fib))
        .build()
        .unwrap();
    let now = Instant::from_nanos(0);
    let far = (BETWEEN.0, [10, 2, 0, 2]);
    for (packet, expected) in [
        (v4(UDP, 1, far, &udp(8)), Some((11, 0, 0))),
        (v4(UDP, 9, BETWEEN, &udp(8)), Some((3, 0, 0))),
        (v4(UDP, 9, far, &udp(1200)), Some((3, 4, 1000))),
        // To the host beside it, and from one of its addresses.
        (v4(UDP, 1, (BETWEEN.0, [10, 2, 0, 1]), &udp(8)), None),
        (v4(UDP, 1, ([10, 0, 0, 255], far.1), &udp(8)), None),
        // No neighbour: it is resolved instead.
        (v4(UDP, 9, (BETWEEN.0, [10, 2, 0, 77]), &udp(8)), None),
    ] {
        let arrived = packet.bytes()[14..].to_vec();
        let told = answers_of(&mut pipeline, packet, now);
        assert_eq!(told.is_some(), expected.is_some());
        if let (Some(told), Some((kind, code, mtu))) = (told, expected) {
            let quoted = quoted(&told);
            assert_eq!((quoted.0, quoted.1, quoted.2), (kind, code, mtu));
            assert!(arrived.starts_with(quoted.3), "it is quoted as it arrived");
            assert_eq!(quoted.3.len(), arrived.len().min(548));
        }
    }
    let seen = pipeline.counters().snapshot();
    assert_eq!((seen.icmp_errors, seen.icmp_errors_suppressed, seen.sent.packets), (3, 0, 3));
    let reasons =
        [DropReason::TtlExpired, DropReason::NoRoute, DropReason::TooLong, DropReason::NoNeighbour];
    assert_eq!(reasons.map(|reason| seen.of(reason)), [3, 1, 1, 1]);
}

/// Goal: changes that stages made to a frame before they dropped it are not quoted: tags, addresses, ports. Method: a
/// stage that changes all of that before one that drops, and a frame with trailing padding.
#[test]
fn packets_are_quoted_as_they_arrived() {
    let fib = fib();
    let spoil = StageFn::new(StageModel::new("spoil"), |packet: &mut Packet, _| {
        packet.push_tag(Tag { ether_type: EtherType(0x8100), control: 3 }).expect("room");
        packet.set_source([9, 9, 9, 9].into()).expect("IP");
        packet.set_destination_port(77).expect("UDP");
        packet.set_destination_mac(MacAddress([4; 6]));
        Verdict::Drop(DropReason::TtlExpired)
    });
    let answers = IcmpErrorSender::new(&fib);
    let mut pipeline = Pipeline::builder().stage(spoil).icmp_errors(answers).build().unwrap();
    let mut packet = v4(UDP, 1, (BETWEEN.0, [10, 2, 0, 2]), &udp(3));
    let arrived = packet.bytes()[14..].to_vec();
    packet.resize(60);
    let told = answers_of(&mut pipeline, packet, Instant::from_nanos(0)).expect("an answer");
    assert_eq!(quoted(&told), (11, 0, 0, &arrived[..]));
    assert_eq!(told.bytes()[..14], [&SENDER.0[..], &OWN.0, &[8, 0]].concat());
}

/// Goal: each interface keeps to its rate and burst, and counts the answers that it suppresses; another interface is
/// not held back. Method: more than that in virtual time, at two ports.
#[test]
fn answers_are_limited() {
    let fib = fib();
    let answers = IcmpErrorSender::new(&fib).rate(NonZeroU32::new(10).unwrap());
    let stages = Pipeline::builder().stage(Ttl::new()).stage(RouteStage::new(fib));
    let mut pipeline = stages.icmp_errors(answers).build().unwrap();
    let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
    let mut told = |port: u16, now: Instant| {
        let (frame, mut packet) = (v4(UDP, 1, BETWEEN, &udp(0)), Packet::empty(64));
        packet.fill(Port(port), frame.len(), |bytes| bytes.copy_from_slice(frame.bytes()));
        answers_of(&mut pipeline, packet, now).is_some()
    };
    assert_eq!((0..30).filter(|_| told(0, at(5000))).count(), 10);
    assert!(told(1, at(5000)), "another interface has a bucket of its own");
    assert!(!told(0, at(5099)));
    assert!(told(0, at(5100)) && !told(0, at(5100)));
    // The length of the pause does not matter.
    assert_eq!((0..30).filter(|_| told(0, at(60_000))).count(), 10);
    let CounterSnapshot { icmp_errors, icmp_errors_suppressed, .. } =
        pipeline.counters().snapshot();
    assert_eq!((icmp_errors, icmp_errors_suppressed), (22, 42));
}

/// Goal: RFC 5508, REQ-8: the sender of a flow for which there is no room is told that it is prohibited, quoting its packet as it
/// was sent. Method: a table whose only port is in use.
#[test]
fn a_refused_flow_is_told() {
    let fib = fib();
    let external = [10, 2, 0, 9].into();
    let from = "10.0.0.0/24".parse().unwrap();
    let table = NatTable::builder().ports(2000, 2000).build();
    let nat = Nat::new(table).rule(NatRule::Source { ingress: Port(0), from, external });
    let mut pipeline = Pipeline::builder()
        .stage(nat)
        .stage(Ttl::new())
        .stage(RouteStage::new(fib.clone()))
        .icmp_errors(IcmpErrorSender::new(&fib))
        .build()
        .unwrap();
    let now = Instant::from_nanos(0);
    let established = (BETWEEN.0, [10, 2, 0, 2]);
    assert!(answers_of(&mut pipeline, v4(UDP, 9, established, &udp(8)), now).is_none());
    while pipeline.take(Port(1)).is_some() {}
    let mut answer = v4(UDP, 9, ([10, 2, 0, 2], [10, 2, 0, 9]), &udp(8));
    answer.set_destination_port(2000).unwrap();
    answer.set_source_port(9).unwrap();
    let mut other = v4(UDP, 9, established, &udp(8));
    other.set_source_port(4321).unwrap();
    let sent = other.bytes()[14..].to_vec();
    // The first is evicted while it is unanswered; established, it stays. Its answer leaves where it came.
    assert!(answers_of(&mut pipeline, answer, now).is_some());
    assert!(answers_of(&mut pipeline, v4(UDP, 9, established, &udp(8)), now).is_none());
    let told = answers_of(&mut pipeline, other, now).expect("it is refused");
    let (kind, code, _, quoted) = quoted(&told);
    assert_eq!((kind, code, quoted), (3, 13, &sent[..]));
}

/// Goal: who sent packets to a neighbour that does not answer is told that the host is unreachable, for each packet that has waited, and
/// each is quoted as it was sent, translated or not; a packet for which there was no room to wait, and one whose neighbour answered, is
/// not told about. Method: more packets than may wait for one neighbour, and one for another, which is found; virtual time.
#[test]
fn waiting_in_vain_is_told() {
    for is_translated in [false, true] {
        let fib = fib();
        let rule = NatRule::Source {
            ingress: Port(0),
            from: "10.0.0.0/24".parse().unwrap(),
            external: [10, 2, 0, 9].into(),
        };
        let nat = Nat::new(NatTable::builder().build());
        let nat = if is_translated { nat.rule(rule) } else { nat };
        let mut pipeline = Pipeline::builder()
            .stage(nat)
            .stage(Ttl::new())
            .stage(RouteStage::new(fib.clone()).hold_unresolved())
            .icmp_errors(IcmpErrorSender::new(&fib))
            .build()
            .unwrap();
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let packet = |last: u8, port: u16| {
            let mut packet = v4(UDP, 9, ([10, 0, 0, 2], [10, 2, 0, last]), &udp(8));
            packet.set_source_port(port).unwrap();
            packet
        };
        for port in 0..110 {
            assert!(answers_of(&mut pipeline, packet(77, 1000 + port), at(0)).is_none());
        }
        assert!(answers_of(&mut pipeline, packet(78, 5), at(0)).is_none());
        fib.set_neighbour(Port(1), [10, 2, 0, 78].into(), Some(MacAddress([4; 6])));
        pipeline.run(at(2999));
        assert!(pipeline.take(Port(1)).is_some(), "its neighbour is known");
        assert!(pipeline.take(Port(0)).is_none(), "the others wait");
        pipeline.run(at(3000));
        for port in 10..110 {
            let told = pipeline.take(Port(0)).expect("an answer for each");
            let (kind, code, _, quoted) = quoted(&told);
            assert_eq!((kind, code), (3, 1));
            assert_eq!(quoted, &packet(77, 1000 + port).bytes()[14..]);
        }
        assert!(pipeline.take(Port(0)).is_none() && pipeline.take(Port(1)).is_none());
        let seen = pipeline.counters().snapshot();
        let reasons = [DropReason::NoNeighbour, DropReason::UnresolvedFull];
        assert_eq!(reasons.map(|reason| seen.of(reason)), [100, 10]);
        assert_eq!((seen.icmp_errors, seen.icmp_errors_suppressed), (100, 0));
    }
}
