//! What programs note of recent packets, and how they mend checksums.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use vigie_detect::Instant;
use vigie_forward::{
    bpf::{AttachMode, ChecksumState, PacketBuffer},
    nic::{Emulator, EmulatorVerdict, NicConfig},
    packet::Packet,
    pipeline::Stage,
    stages::{Nat, NatRule, RouteStage},
    tables::{Fib, Interface, NatTable, Route},
};
use vigie_via::link::MacAddress;

use super::{STATES, Seen, compare, datagram, segment};
use crate::traffic::{PORTS, borrowed, on_host};

/// Goal: what is noted of one destination or flow is not taken for another's, also where there is room for fewer. Method: 1500 destinations, each with a
/// neighbour of its own, and 1500 flows to them; three packets of each, in turns, at each place.
#[test]
fn recent_packets_are_told_apart() {
    let external = IpAddr::from([192, 0, 2, 1]);
    for (place, translates) in [AttachMode::Native, AttachMode::Tcx]
        .into_iter()
        .flat_map(|place| [(place, false), (place, true)])
    {
        let fib = Fib::default();
        fib.set_interface(PORTS[1], Some(Interface::new(MacAddress([2; 6]), 1500)));
        let route = Route::on_link(PORTS[1]);
        fib.set_route("10.9.0.0/16".parse().expect("one"), Some(route));
        fib.set_route("fd00::/64".parse().expect("one"), Some(route));
        let to = |number: u16, is_v6: bool| {
            let [high, low] = number.to_be_bytes();
            let v6 = [0xfd00, 0, 0, 0, 0, 0, 0, number];
            if is_v6 { IpAddr::from(v6) } else { IpAddr::from([10, 9, high, low]) }
        };
        let both = || (1_u16..=1500).flat_map(|number| [(number, false), (number, true)]);
        for (number, is_v6) in both() {
            let [high, low] = number.to_be_bytes();
            let mac = MacAddress([2, 0, 0, u8::from(is_v6), high, low]);
            fib.set_neighbour(PORTS[1], to(number, is_v6), Some(mac));
        }
        let mut host: Vec<Box<dyn Stage>> = vec![Box::new(RouteStage::new(fib))];
        if translates {
            let from = "10.0.0.0/24".parse().expect("a prefix");
            let rule = NatRule::Source { ingress: PORTS[0], from, external };
            let table = NatTable::builder().seed(1).build();
            host.insert(0, Box::new(Nat::new(table).rule(rule)));
        }
        let emulator = Emulator::at(place, &borrowed(&host), &PORTS, &NicConfig::new());
        let (mut emulator, mut seen) = (emulator.expect("it compiles"), Seen::default());
        let mut now = Instant::from_nanos(1_000_000_000);
        for _ in 0..3 {
            for (number, is_v6) in both() {
                let frame = match to(number, is_v6) {
                    IpAddr::V6(to) => datagram_v6(to),
                    to => datagram(segment(([10, 0, 0, 2].into(), 5000), (to, 80), 0, 0, 0)),
                };
                now += Duration::from_micros(10);
                let packet = (PORTS[0], &frame[..], now, None);
                let compared = compare(&mut emulator, &mut host, packet, &mut seen);
                compared.unwrap_or_else(|said| panic!("{place:?}, {number}: {said}"));
            }
            emulator.follow().expect("room");
        }
        assert_eq!(seen.sent, if translates { 3000 } else { 9000 });
    }
}

/// Goal: a flow in use is seen in use, though not each of its packets notes its time; one that has ended is forgotten at once. Method: a datagram every
/// 50 ms, at each place; each second the program is asked.
#[test]
fn recent_flows_stay_in_use() {
    let [inside, server, external] =
        ["10.0.0.2", "10.9.0.1", "192.0.2.1"].map(|text| text.parse::<IpAddr>().expect("one"));
    for place in [AttachMode::Native, AttachMode::Tcx] {
        let from = "10.0.0.0/24".parse().expect("a prefix");
        let rule = NatRule::Source { ingress: PORTS[0], from, external };
        let table = NatTable::builder().seed(1).build();
        let mut host: Vec<Box<dyn Stage>> = vec![Box::new(Nat::new(table.clone()).rule(rule))];
        let config = NicConfig::new().default_port(PORTS[2]);
        let mut emulator =
            Emulator::at(place, &borrowed(&host), &PORTS, &config).expect("it compiles");
        let frame = datagram(segment((inside, 5000), (server, 80), 0, 0, 0));
        let mut seen = Seen::default();
        for number in 0..200 {
            let now = Instant::from_nanos(1_000_000_000) + Duration::from_millis(number * 50);
            let packet = (PORTS[0], &frame[..], now, Some(PORTS[2]));
            compare(&mut emulator, &mut host, packet, &mut seen).expect("the same");
            emulator.follow().expect("room");
            if number % 20 == 19 {
                assert_eq!(emulator.refresh(now, 10).expect("maps"), 1, "{place:?}, {number}");
            }
        }
        assert_eq!(seen.sent, 199);
        let now = Instant::from_nanos(1_000_000_000) + Duration::from_millis(199 * 50);
        assert_eq!(table.expire(now + Duration::from_secs(100_000)), 1);
        emulator.follow().expect("room");
        let verdict = emulator.process(PORTS[0], &mut PacketBuffer::new(&frame), now);
        assert_eq!(verdict.expect("no fault"), EmulatorVerdict::PassedUp);
    }
}

/// Goal: a flow that ended and began anew with another port is translated to that port, also when the program was told of more changes than are kept. Method: a
/// flow, 10 000 others that come and go, and the flow again, at each place.
#[test]
fn a_flow_that_begins_anew_has_its_new_port() {
    let external = IpAddr::from([192, 0, 2, 1]);
    for place in [AttachMode::Native, AttachMode::Tcx] {
        let from = "10.0.0.0/24".parse().expect("a prefix");
        let rule = NatRule::Source { ingress: PORTS[0], from, external };
        let table = NatTable::builder().seed(1).build();
        let mut host: Vec<Box<dyn Stage>> = vec![Box::new(Nat::new(table.clone()).rule(rule))];
        let config = NicConfig::new().default_port(PORTS[2]);
        let emulator = Emulator::at(place, &borrowed(&host), &PORTS, &config);
        let (mut emulator, mut seen) = (emulator.expect("it compiles"), Seen::default());
        let mut now = Instant::from_nanos(1_000_000_000);
        let frame = |inside: u8, port| {
            let ends = [(IpAddr::from([10, 0, 0, inside]), port), ([10, 9, 0, 1].into(), 80)];
            datagram(segment(ends[0], ends[1], 0, 0, 0))
        };
        let mut ports = Vec::new();
        for _ in 0..2 {
            let packet = (PORTS[0], &frame(2, 5000)[..], now, Some(PORTS[2]));
            let first = on_host(&mut host, packet.0, packet.1, packet.3, now);
            ports.push(first.bytes[34..36].to_vec());
            emulator.follow().expect("room");
            compare(&mut emulator, &mut host, packet, &mut seen).expect("the same");
            now += Duration::from_secs(100_000);
            assert_eq!(table.expire(now), 1);
            for number in 0..5000 {
                // Another host has the port of the first one meanwhile.
                let frame = frame(3, if number == 0 { 5000 } else { 6000 });
                let _ = on_host(&mut host, PORTS[0], &frame, Some(PORTS[2]), now);
                if number > 0 {
                    now += Duration::from_secs(400);
                    table.expire(now);
                }
            }
        }
        assert_ne!(ports[0], ports[1]);
        assert_eq!(seen.sent, 2);
    }
}

/// Goal: a translated datagram whose checksum would be 0, which means none, gets the other zero. Method: the payload that leads there, in each state of the
/// checksum and at each place.
#[test]
fn a_checksum_of_zero_is_the_other_zero() {
    let [inside, server, external] =
        ["10.0.0.2", "10.9.0.1", "192.0.2.1"].map(|text| text.parse::<IpAddr>().expect("one"));
    for place in [AttachMode::Native, AttachMode::Tcx] {
        let from = "10.0.0.0/24".parse().expect("a prefix");
        let rule = NatRule::Source { ingress: PORTS[0], from, external };
        let nat = Nat::new(NatTable::builder().seed(1).build()).rule(rule);
        let host: Vec<Box<dyn Stage>> = vec![Box::new(nat)];
        let config = NicConfig::new().default_port(PORTS[2]);
        let mut emulator =
            Emulator::at(place, &borrowed(&host), &PORTS, &config).expect("it compiles");
        let (now, mut host) = (Instant::from_nanos(1_000_000_000), host);
        let mut translated = |payload: u16, state| {
            let ends = [(inside, 5000), (server, 80)];
            let mut frame = segment(ends[0], ends[1], 0, 0, 0);
            frame[42..44].copy_from_slice(&payload.to_be_bytes());
            let frame = datagram(frame);
            let made = on_host(&mut host, PORTS[0], &frame, Some(PORTS[2]), now);
            emulator.follow().expect("room");
            let mut packet = PacketBuffer::new(&frame).checksum(state);
            let verdict = emulator.process(PORTS[0], &mut packet, now).expect("no fault");
            assert_eq!(verdict, EmulatorVerdict::Sent { port: PORTS[2], copy: None });
            assert_eq!(packet.frame(), made.bytes, "{place:?}, {state:?}");
            u16::from_be_bytes([packet.frame()[40], packet.frame()[41]])
        };
        for state in STATES.into_iter().filter(|state| *state != ChecksumState::Partial) {
            let checksum = translated(0, state);
            assert_eq!(translated(checksum, state), 0xffff, "{place:?}, {state:?}");
        }
    }
}

/// A UDP datagram of IPv6 without payload.
fn datagram_v6(to: Ipv6Addr) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 8, 17, 64]);
    frame.extend([[0; 16], to.octets()].concat());
    frame[22] = 0xfd;
    frame.extend([0x13, 0x88, 0, 80, 0, 8, 0, 0]);
    let mut packet = Packet::new(PORTS[0], &frame);
    packet.fill_checksums().expect("it is whole");
    packet.bytes().to_vec()
}
