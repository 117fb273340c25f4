use std::{net::IpAddr, time::Duration};

use fastrand::Rng;
use proptest::prelude::*;
use vigie_detect::Instant;
use vigie_via::link::{EtherType, MacAddress};

use super::*;
use crate::{
    cost::Bandwidth,
    model::{Sees, StageModel, Writes},
    packet::{Packet, Port, Transport, UDP, Verified},
    pipeline::{
        DropReason, Stage, Verdict,
        conformance::{self, Violation},
    },
    tables::{Fib, Interface, NatEndpoint, NatTable, NatTuple, Prefix, Route},
};

const START: Instant = Instant::from_nanos(0);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn at(time: Duration) -> Instant {
    START + time
}

/// A UDP datagram over IPv4.
fn udp(ingress: Port, from: (&str, u16), to: (&str, u16)) -> Packet {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (ip(from.0), ip(to.0)) else {
        panic!("version 4")
    };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 32, 0, 5, 0, 0, 64, 17, 0, 0]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(from.1.to_be_bytes());
    frame.extend(to.1.to_be_bytes());
    frame.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    let mut packet = Packet::new(ingress, &frame);
    packet.fill_checksums().unwrap();
    packet
}

fn tuple(packet: &mut Packet) -> NatTuple {
    let headers = packet.headers().unwrap();
    NatTuple::of(&headers, packet.bytes()).unwrap()
}

fn fib() -> Fib {
    let fib = Fib::default();
    for (number, net) in [(0, "10.0.0.0/24"), (1, "10.0.1.0/24"), (2, "fd00::/8")] {
        let port = Port(number);
        let own = MacAddress([2, 0, 0, 0, 1, number.to_le_bytes()[0]]);
        fib.set_interface(port, Some(Interface::new(own, 1500)));
        fib.set_route(prefix(net), Some(Route::on_link(port)));
    }
    fib.set_neighbour(Port(1), ip("10.0.1.2"), Some(MacAddress([2, 0, 0, 0, 2, 1])));
    fib.set_route(prefix("0.0.0.0/0"), Some(Route::via(Port(1), ip("10.0.1.2"))));
    fib
}

fn nat(seed: u64) -> Nat {
    let table =
        NatTable::builder().seed(seed).flows_max(20).ports(5000, 5009).host_percent(100).build();
    Nat::new(table)
        .rule(NatRule::Destination {
            protocol: UDP,
            external: NatEndpoint::new(ip("10.0.1.1"), 80),
            internal: NatEndpoint::new(ip("10.0.0.2"), 8080),
        })
        .rule(NatRule::Source {
            ingress: Port(0),
            from: prefix("10.0.0.0/24"),
            external: ip("10.0.1.1"),
        })
}

#[test]
fn stock_stages_keep_the_contract() {
    // Goal: each stage passes the suite. Method: the suite, from several seeds.
    for seed in 0..4 {
        let count = 4_000;
        let rewrite = Rewrite::new().source_mac(MacAddress([9; 6])).source(ip("192.0.2.1"));
        conformance::check(|| rewrite, seed, count).unwrap();
        conformance::check(|| Ttl, seed, count).unwrap();
        conformance::check(|| Mirror::to(Port(3)).from(Port(1)), seed, count).unwrap();
        conformance::check(Checksum::verify, seed, count).unwrap();
        conformance::check(Checksum::fill, seed, count).unwrap();
        conformance::check(Checksum::verify_header, seed, count).unwrap();
        conformance::check(Filter::martians, seed, count).unwrap();
        let rate = Bandwidth::new(100_000).unwrap();
        conformance::check(|| Meter::new(rate, 2000).unwrap(), seed, count).unwrap();
        conformance::check(|| RouteStage::new(fib()), seed, count).unwrap();
        conformance::check(|| nat(seed), seed, count).unwrap();
        let rule = FilterRule::new(Action::Drop).protocol(17).destination_ports(81..=90);
        conformance::check(|| Filter::with_default(Action::Accept).rule(rule.clone()), seed, count)
            .unwrap();
    }
}

#[test]
fn the_suite_finds_breaches() {
    // Goal: each violation of the contract is found. Method: one of each kind.
    let closure = |model: StageModel, work: fn(&mut Packet, Instant) -> Verdict| {
        conformance::check(|| StageFn::new(model.clone(), work), 1, 500)
    };
    let reads = || StageModel::new("x").writes(Writes::No);
    let spoil = |packet: &mut Packet, _| {
        packet.bytes_mut().reverse();
        Verdict::Pass
    };
    assert!(matches!(closure(reads(), spoil), Err(Violation::Changed { .. })));
    let drop = |_: &mut Packet, _| Verdict::Drop(DropReason::User);
    assert!(matches!(closure(reads(), drop), Err(Violation::Dropped { .. })));
    let peeks = |packet: &mut Packet, _| match packet.bytes().last() {
        Some(last) if last & 1 != 0 => Verdict::Drop(DropReason::User),
        _ => Verdict::Pass,
    };
    assert!(matches!(closure(StageModel::new("x"), peeks), Err(Violation::Saw { .. })));
    let everything = StageModel::new("x").sees(Sees::Everything);
    assert_eq!(closure(everything, peeks), Ok(()));
    let mut number = 0;
    let counts = || {
        number += 1;
        let of = number;
        StageFn::new(StageModel::new("x"), move |_, _| Verdict::SetEgress(Port(of)))
    };
    assert!(matches!(conformance::check(counts, 1, 500), Err(Violation::Differs { .. })));
}

#[test]
fn translated_flows_come_back() {
    // Goal: outgoing packets have the external address with a port of its own, answers find their way back, and
    // checksums are right. Method: flows of several sources there and back.
    let mut stage = nat(7);
    let mut ports = std::collections::BTreeSet::new();
    for source in 0..10_u16 {
        let from = ("10.0.0.2", 1000 + source);
        let mut packet = udp(Port(0), from, ("10.0.1.2", 53));
        assert_eq!(stage.process(&mut packet, START), Verdict::Pass);
        assert_eq!(packet.verify().unwrap(), Verified::Right);
        let outside = tuple(&mut packet);
        assert_eq!(outside.source.address, ip("10.0.1.1"));
        assert_eq!(outside.destination, NatEndpoint::new(ip("10.0.1.2"), 53));
        assert!(ports.insert(outside.source.port), "a port of its own");
        let mut answer = udp(Port(1), ("10.0.1.2", 53), ("10.0.1.1", outside.source.port));
        assert_eq!(stage.process(&mut answer, START), Verdict::Pass);
        assert_eq!(answer.verify().unwrap(), Verified::Right);
        assert_eq!(tuple(&mut answer).destination, NatEndpoint::new(ip("10.0.0.2"), from.1));
        // Another host cannot use that port to get in.
        let mut other = udp(Port(1), ("10.0.1.9", 53), ("10.0.1.1", outside.source.port));
        assert_eq!(stage.process(&mut other, START), Verdict::Drop(DropReason::NatUnknown));
        // Used again, it is established, and not evicted.
        let mut again = udp(Port(0), from, ("10.0.1.2", 53));
        assert_eq!(stage.process(&mut again, START), Verdict::Pass);
        assert_eq!(tuple(&mut again), outside);
    }
    let mut eleventh = udp(Port(0), ("10.0.0.3", 1), ("10.0.1.2", 53));
    let before = eleventh.clone();
    assert_eq!(stage.process(&mut eleventh, START), Verdict::Drop(DropReason::NatPorts));
    assert_eq!(eleventh, before, "what is dropped is not changed");
    // After UDP's time-out all ports are free again.
    let later = at(Duration::from_secs(300));
    assert_eq!(stage.process(&mut eleventh, later), Verdict::Pass);
    stage.table().expire(later);
    assert_eq!(stage.table().len(), 1);
}

#[test]
fn forwarded_ports_lead_inside() {
    // Goal: a flow to an external endpoint goes inside, and its answers carry the external address. Method: there and
    // back, until the table is full.
    let mut stage = nat(8);
    let mut packet = udp(Port(1), ("10.0.1.7", 999), ("10.0.1.1", 80));
    assert_eq!(stage.process(&mut packet, START), Verdict::Pass);
    assert_eq!(tuple(&mut packet).destination, NatEndpoint::new(ip("10.0.0.2"), 8080));
    assert_eq!(packet.verify().unwrap(), Verified::Right);
    let mut answer = udp(Port(0), ("10.0.0.2", 8080), ("10.0.1.7", 999));
    assert_eq!(stage.process(&mut answer, START), Verdict::Pass);
    assert_eq!(tuple(&mut answer).source, NatEndpoint::new(ip("10.0.1.1"), 80));
    for source in 0..30 {
        // An answer that is not used again.
        let mut packet = udp(Port(1), ("10.0.1.8", source), ("10.0.1.1", 80));
        assert_eq!(stage.process(&mut packet, START), Verdict::Pass);
        assert!(stage.table().len() <= 20);
    }
    let mut packet = udp(Port(1), ("10.0.1.9", 1), ("10.0.7.1", 80));
    assert_eq!(stage.process(&mut packet, START), Verdict::Pass, "no rule means it");
}

#[test]
fn errors_are_about_the_packet_that_was_sent() {
    // Goal: an error that quotes a translated packet reaches the packet's sender, quoting the packet as sent, all
    // checksums right. Method: the quote of a packet that left, in an error from a router.
    let mut stage = nat(10);
    let sent = udp(Port(0), ("10.0.0.2", 5), ("10.0.7.7", 53));
    let mut left = sent.clone();
    assert_eq!(stage.process(&mut left, START), Verdict::Pass);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 56, 0, 5, 0, 0, 64, 1, 0, 0, 10, 0, 1, 2, 10, 0, 1, 1]);
    frame.extend([3, 4, 0, 0, 0, 0, 5, 0]);
    frame.extend(&left.bytes()[14..14 + 28]);
    let mut error = Packet::new(Port(1), &frame);
    error.fill_checksums().unwrap();
    assert_eq!(stage.process(&mut error, START), Verdict::Pass);
    assert_eq!(error.verify().unwrap(), Verified::Right);
    let headers = error.headers().unwrap();
    assert_eq!(headers.transport, Transport::Icmp);
    assert_eq!(headers.addresses(error.bytes()).unwrap().1, ip("10.0.0.2"));
    assert_eq!(error.bytes()[42..], sent.bytes()[14..42], "the quote, its checksums among it");
    frame[14 + 28 + 19] ^= 1;
    let mut about_nothing = Packet::new(Port(1), &frame);
    about_nothing.fill_checksums().unwrap();
    let verdict = stage.process(&mut about_nothing, START);
    assert_eq!(verdict, Verdict::Drop(DropReason::NatUnknown));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Goal: every translation can be undone: a translated packet is translated back to the original, as long as its
    /// flow lives, and ports are never shared; followers of the table agree. Method: random packets and times against
    /// the table's own entries.
    #[test]
    fn translation_can_be_undone(seed in any::<u64>()) {
        let mut rng = Rng::with_seed(seed);
        let mut stage = nat(seed);
        let mut feed = stage.table().follow();
        let mut copy = std::collections::BTreeSet::new();
        let mut now = START;
        for _ in 0..300 {
            now += Duration::from_secs(rng.u64(0..20));
            let mut packet = Packet::new(Port(rng.u16(0..2)), &conformance::frame(&mut rng));
            let before = packet.headers().ok().and_then(|h| NatTuple::of(&h, packet.bytes()));
            let verified = packet.verify();
            let verdict = stage.process(&mut packet, now);
            if let (Some(before), Verdict::Pass) = (before, verdict) {
                let after = tuple(&mut packet);
                if after != before {
                    let back = stage.table().peek(&after.reversed());
                    prop_assert_eq!(back, Some(before.reversed()));
                    prop_assert_eq!(packet.verify(), verified);
                }
            }
            while let Some(update) = feed.take() {
                use crate::tables::{NatChange, Update};
                match update {
                    Update::Snapshot(flows) => copy = flows.into_iter().collect(),
                    Update::Change(NatChange::Added(flow)) => prop_assert!(copy.insert(flow)),
                    Update::Change(NatChange::Removed(flow)) => prop_assert!(copy.remove(&flow)),
                }
            }
            let flows = stage.table().flows();
            prop_assert!(flows.len() <= 20);
            prop_assert_eq!(&copy, &flows.iter().copied().collect());
            let sources: Vec<_> = flows.iter().map(|flow| (flow.translated.protocol, flow.translated)).collect();
            for (number, one) in sources.iter().enumerate() {
                prop_assert!(!sources[..number].contains(one), "two flows say the same");
            }
        }
    }

    /// Goal: no more passes than rate and burst allow in any interval, and at least nine tenths of that under load.
    /// Method: packets of random lengths at random times.
    #[test]
    fn a_meter_keeps_its_rate(seed in any::<u64>(), rate in 10_000..1_000_000_000_u64) {
        let mut rng = Rng::with_seed(seed);
        let burst = 3_000;
        let rate = Bandwidth::new(rate).unwrap();
        let mut meter = Meter::new(rate, burst).unwrap();
        let mut now = START;
        let mut passed = 0;
        let mut offered = 0;
        let gap = rate.time(400).as_nanos();
        for _ in 0..2_000 {
            let mut packet = Packet::new(Port(0), &vec![0; rng.usize(60..1500)]);
            offered += packet.len();
            if meter.process(&mut packet, now) == Verdict::Pass {
                passed += packet.len();
            }
            let elapsed = now - START;
            let allowed = elapsed.as_secs_f64() * rate.bytes_per_s() as f64 + burst as f64;
            prop_assert!(passed as f64 <= allowed * 1.001 + 1.0, "{passed} in {elapsed:?}");
            now += Duration::from_nanos(rng.u64(0..2 * u64::try_from(gap).unwrap()));
        }
        let possible = (now - START).as_secs_f64() * rate.bytes_per_s() as f64;
        prop_assert!(passed as f64 >= 0.7 * possible.min(offered as f64), "{passed} of {possible}");
    }
}

#[test]
fn packets_go_where_the_longest_prefix_says() {
    // Goal: ports, next hops and frame addresses follow the current table; packets that cannot be routed are dropped
    // with their reason. Method: destinations of each kind, and a change in between.
    let fib = fib();
    let mut stage = RouteStage::new(fib.clone());
    let mut go = |to: &str| {
        let mut packet = udp(Port(0), ("10.0.0.2", 5), (to, 53));
        let verdict = stage.process(&mut packet, START);
        (verdict, packet.bytes()[..12].to_vec())
    };
    let sent = [[2, 0, 0, 0, 2, 1], [2, 0, 0, 0, 1, 1]].concat();
    assert_eq!(go("10.0.1.2"), (Verdict::SetEgress(Port(1)), sent.clone()));
    assert_eq!(go("192.0.2.1"), (Verdict::SetEgress(Port(1)), sent));
    assert_eq!(go("10.0.1.3").0, Verdict::Drop(DropReason::NoNeighbour));
    fib.set_route(prefix("0.0.0.0/0"), None);
    assert_eq!(go("192.0.2.1").0, Verdict::Drop(DropReason::NoRoute));
    fib.set_interface(Port(1), Some(Interface::new(MacAddress([2; 6]), 31)));
    assert_eq!(go("10.0.1.2").0, Verdict::Fragment(Port(1), 31));
    let mut arp = Packet::new(Port(0), &[[2; 12].as_slice(), &[0x88, 0xb5]].concat());
    assert_eq!(stage.process(&mut arp, START), Verdict::Drop(DropReason::NotIp));
}

#[test]
fn rules_mean_what_they_say() {
    // Goal: each condition of a rule counts, and the first matching rule decides. Method: one rule for each condition,
    // on a packet that meets all and one that misses it.
    let packet = || udp(Port(1), ("10.0.0.2", 5), ("10.0.1.2", 53));
    let meets = |rule: FilterRule| {
        let mut filter = Filter::with_default(Action::Accept).rule(rule);
        filter.process(&mut packet(), START) == Verdict::Drop(DropReason::Filtered)
    };
    let drop = || FilterRule::new(Action::Drop);
    for (rule, is_met) in [
        (drop(), true),
        (drop().ingress(Port(1)), true),
        (drop().ingress(Port(0)), false),
        (drop().ether_type(EtherType::IPV4), true),
        (drop().ether_type(EtherType::IPV6), false),
        (drop().source(prefix("10.0.0.0/24")), true),
        (drop().source(prefix("10.0.1.0/24")), false),
        (drop().destination(prefix("10.0.1.2")), true),
        (drop().destination(prefix("::/0")), false),
        (drop().protocol(17), true),
        (drop().protocol(6), false),
        (drop().source_ports(5..=5), true),
        (drop().source_ports(6..=9), false),
        (drop().destination_ports(0..=53), true),
        (drop().destination_ports(54..=99), false),
    ] {
        assert_eq!(meets(rule.clone()), is_met, "{rule:?}");
    }
    let accept_first = Filter::with_default(Action::Drop)
        .rule(FilterRule::new(Action::Accept).protocol(17))
        .rule(drop().ingress(Port(1)));
    assert_eq!(accept_first.clone().process(&mut packet(), START), Verdict::Pass);
}

#[test]
fn hops_are_counted_down() {
    // Goal: the TTL is decremented with a right checksum, and a packet at its last hop is dropped unchanged. Method:
    // all values.
    for ttl in 0..=255_u8 {
        let mut packet = udp(Port(0), ("10.0.0.2", 5), ("10.0.1.2", 53));
        packet.bytes_mut()[22] = ttl;
        packet.fill_checksums().unwrap();
        let verdict = Ttl.process(&mut packet, START);
        if ttl <= 1 {
            assert_eq!(verdict, Verdict::Drop(DropReason::TtlExpired));
            assert_eq!(packet.bytes()[22], ttl);
        } else {
            assert_eq!((verdict, packet.bytes()[22]), (Verdict::Pass, ttl - 1));
            assert_eq!(packet.verify().unwrap(), Verified::Right);
        }
    }
}

#[test]
fn packets_wait_for_their_neighbour() {
    // Goal: packets to an unknown neighbour leave in order once it is known, changed as if they had come then; those that
    // wait for too long or have no room are dropped; others pass meanwhile, and each has one verdict. Method: two unknown
    // neighbours, one of which becomes known.
    let fib = fib();
    let mut stage = RouteStage::new(fib.clone()).hold_unresolved();
    let packet = |to: &str, port| udp(Port(0), ("10.0.0.2", port), (to, 53));
    assert_eq!(stage.next_release(START), None);
    for port in 0..150 {
        let mut one = packet("10.0.1.3", port);
        assert_eq!(stage.process(&mut one, START), Verdict::Hold);
        let wanted = (port == 0).then(|| (Port(1), ip("10.0.1.3")));
        assert_eq!(stage.wanted(), wanted);
        assert_eq!(stage.process(&mut packet("10.0.1.4", port), START), Verdict::Hold);
        assert_eq!(stage.wanted().is_some(), port == 0);
        assert_eq!(
            stage.process(&mut packet("10.0.1.2", port), START),
            Verdict::SetEgress(Port(1))
        );
    }
    assert!(stage.next_release(START).is_some());
    for port in 0..50 {
        for to in ["10.0.1.3", "10.0.1.4"] {
            let (mut lost, verdict) = stage.release(START).unwrap();
            assert_eq!(verdict, Verdict::Drop(DropReason::UnresolvedFull));
            assert_eq!(tuple(&mut lost).source.port, port);
            assert_eq!(tuple(&mut lost).destination.address, ip(to));
        }
    }
    assert!(stage.release(START).is_none());
    fib.set_neighbour(Port(1), ip("10.0.1.3"), Some(MacAddress([7; 6])));
    let late = at(Duration::from_millis(2999));
    for port in 50..150 {
        let (mut sent, verdict) = stage.release(late).unwrap();
        assert_eq!(verdict, Verdict::SetEgress(Port(1)));
        assert_eq!(tuple(&mut sent).source.port, port);
        assert_eq!(sent.bytes()[..6], [7; 6]);
    }
    assert!(stage.release(late).is_none());
    for _ in 0..100 {
        let (_, verdict) = stage.release(at(Duration::from_secs(3))).unwrap();
        assert_eq!(verdict, Verdict::Drop(DropReason::NoNeighbour));
    }
    assert!(stage.release(at(Duration::from_secs(9))).is_none());
    assert_eq!(stage.next_release(START), None);
    // Never more than so many, however many neighbours there are.
    for number in 0..3000_u32 {
        let to = format!("192.0.{}.{}", number >> 8, number & 255);
        fib.set_route(prefix(&to), Some(Route::on_link(Port(1))));
        assert_eq!(stage.process(&mut packet(&to, 1), START), Verdict::Hold);
    }
    let dropped = std::iter::from_fn(|| stage.release(START)).count();
    assert_eq!(dropped, 3000 - 1024);
}

#[test]
fn later_packets_wait_behind_earlier_ones() {
    // Goal: a packet does not overtake those that still wait for its neighbour, on the link or a router, after that has become known; it
    // does not wait once they have left, and neither do packets to others. Method: packets that come before the neighbour is
    // known, before the first is released, and between two of them.
    let fib = fib();
    fib.set_route(prefix("10.7.0.0/16"), Some(Route::via(Port(1), ip("10.0.1.9"))));
    for (to, other, neighbour) in
        [("10.0.1.3", "10.0.1.3", "10.0.1.3"), ("10.7.0.1", "10.7.0.2", "10.0.1.9")]
    {
        let mut stage = RouteStage::new(fib.clone()).hold_unresolved();
        let packet = |to: &str, port| udp(Port(0), ("10.0.0.2", port), (to, 53));
        for port in 0..3 {
            assert_eq!(stage.process(&mut packet(to, port), START), Verdict::Hold);
        }
        fib.set_neighbour(Port(1), ip(neighbour), Some(MacAddress([7; 6])));
        let sent = Verdict::SetEgress(Port(1));
        assert_eq!(stage.process(&mut packet("10.0.1.2", 9), START), sent);
        assert_eq!(stage.process(&mut packet(other, 3), START), Verdict::Hold);
        for port in 0..6 {
            if port < 2 {
                assert_eq!(stage.process(&mut packet(to, 4 + port), START), Verdict::Hold);
            }
            let (mut released, verdict) = stage.release(START).unwrap();
            assert_eq!((tuple(&mut released).source.port, verdict), (port, sent));
        }
        assert!(stage.release(START).is_none());
        assert_eq!(stage.process(&mut packet(to, 6), START), sent);
        assert_eq!(stage.held_packets(), 0);
    }
}

#[test]
fn long_packets_are_cut_or_told() {
    // Goal: IPv4 packets that are too long leave in fragments, with the frame's addresses, through a pipeline too, unless
    // they forbid it. Method: a short MTU, and both flags.
    let fib = fib();
    fib.set_interface(Port(1), Some(Interface::new(MacAddress([5; 6]), 28)));
    let mut pipeline = crate::pipeline::Pipeline::builder()
        .stage(Ttl::new())
        .stage(RouteStage::new(fib))
        .build()
        .unwrap();
    let packet = |flags: u8| {
        let mut packet = udp(Port(0), ("10.0.0.2", 5), ("10.0.1.2", 53));
        packet.bytes_mut()[20] = flags;
        packet.fill_checksums().unwrap();
        packet
    };
    pipeline.offer(packet(0x40)).unwrap();
    pipeline.offer(packet(0)).unwrap();
    pipeline.run(START);
    assert_eq!(pipeline.counters().snapshot().of(DropReason::TooLong), 1);
    let whole = packet(0);
    let mut payload = Vec::new();
    for more in [0x20, 0] {
        let mut fragment = pipeline.take(Port(1)).unwrap();
        assert_eq!(fragment.verify_header().unwrap(), Verified::Right);
        assert_eq!(fragment.bytes()[..12], [2, 0, 0, 0, 2, 1, 5, 5, 5, 5, 5, 5]);
        assert_eq!((fragment.bytes()[20], fragment.bytes()[22]), (more, 63));
        payload.extend_from_slice(&fragment.bytes()[34..]);
    }
    assert_eq!(payload, whole.bytes()[34..]);
    assert!(pipeline.take(Port(1)).is_none());
}
