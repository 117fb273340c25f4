use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use vigie_detect::Instant;

use super::*;
use crate::{
    packet::{ICMP, TCP, UDP, Verified},
    pipeline::Stage,
};

const START: Instant = Instant::from_nanos(0);
const INSIDE: Port = Port(0);
const OUTSIDE: Port = Port(1);
/// The external address.
const OWN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
const PEER: (Ipv4Addr, u16) = (Ipv4Addr::new(203, 0, 113, 1), 53);
const A: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 2), 5000);
const B: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 3), 6001);

/// A packet of UDP, TCP (with ACK alone), or an echo request, whose identifier is the first port.
fn packet(protocol: u8, ingress: Port, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Packet {
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    let transport = match protocol {
        TCP => [&ports[..], &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 4, 0, 0, 0, 0, 0]].concat(),
        UDP => [&ports[..], &[0, 12, 0, 0, 1, 2, 3, 4]].concat(),
        _ => [&[8, 0, 0, 0], &ports[..2], &[0, 1, 7, 7]].concat(),
    };
    ip(protocol, ingress, from.0, to.0, (5, 0), &transport)
}

fn ip(
    protocol: u8,
    ingress: Port,
    from: Ipv4Addr,
    to: Ipv4Addr,
    (number, fragment): (u16, u16),
    payload: &[u8],
) -> Packet {
    let length = u16::try_from(20 + payload.len()).unwrap();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend(length.to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend([from.octets(), to.octets()].concat());
    frame.extend(payload);
    let mut packet = Packet::new(ingress, &frame);
    packet.fill_checksums().unwrap();
    packet
}

fn ends(packet: &mut Packet) -> [(IpAddr, u16); 2] {
    let headers = packet.headers().unwrap();
    let tuple = NatTuple::of(&headers, packet.bytes()).unwrap();
    assert_eq!(packet.verify().unwrap(), Verified::Right);
    [tuple.source, tuple.destination].map(|end| (end.address, end.port))
}

fn ip_end((address, port): (Ipv4Addr, u16)) -> (IpAddr, u16) {
    (address.into(), port)
}

fn v4((address, port): (IpAddr, u16)) -> (Ipv4Addr, u16) {
    let IpAddr::V4(address) = address else { panic!("version 4") };
    (address, port)
}

fn nat() -> Nat {
    let table = NatTable::builder().seed(4).ports(2000, 2099).build();
    let external = OWN.into();
    Nat::new(table)
        .rule(NatRule::Destination {
            protocol: TCP,
            external: NatEndpoint::new(external, 80),
            internal: NatEndpoint::new(B.0.into(), 8080),
        })
        .rule(NatRule::Source {
            ingress: INSIDE,
            from: Prefix::new([10, 0, 0, 0].into(), 24).unwrap(),
            external,
        })
}

/// Sends a packet through. Returns its ends afterwards.
#[track_caller]
fn pass(stage: &mut Nat, mut packet: Packet) -> [(IpAddr, u16); 2] {
    assert_eq!(stage.process(&mut packet, START), Verdict::Pass);
    ends(&mut packet)
}

/// Goal: RFC 4787, REQ-1, REQ-3, REQ-4, REQ-8, RFC 5382, REQ-1, RFC 5508, REQ-1a: an inside end has one external end for all peers,
/// of its own and of its parity; the peers' addresses may use it from any port, others may not. Method: two peers and a
/// stranger, for each protocol.
#[test]
fn mappings_do_not_depend_on_peers() {
    for protocol in [UDP, TCP, ICMP] {
        let mut stage = nat();
        let other = (Ipv4Addr::new(203, 0, 113, 7), 99);
        let [first, _] = pass(&mut stage, packet(protocol, INSIDE, A, PEER));
        let [second, _] = pass(&mut stage, packet(protocol, INSIDE, A, other));
        assert_eq!(first, second);
        assert_eq!(first.1 % 2, A.1 % 2);
        let [of_b, _] = pass(&mut stage, packet(protocol, INSIDE, B, PEER));
        assert_ne!(first, of_b);
        if protocol == ICMP {
            continue;
        }
        for from in [PEER, (PEER.0, 7777), (other.0, 1)] {
            let [source, to] = pass(&mut stage, packet(protocol, OUTSIDE, from, v4(first)));
            assert_eq!((source, to), (ip_end(from), ip_end(A)));
            // The answer leaves by the same end.
            let [source, to] = pass(&mut stage, packet(protocol, INSIDE, A, from));
            assert_eq!((source, to), (first, ip_end(from)));
        }
        let stranger = (Ipv4Addr::new(203, 0, 113, 8), 53);
        let mut unwanted = packet(protocol, OUTSIDE, stranger, v4(first));
        assert_eq!(stage.process(&mut unwanted, START), Verdict::Drop(DropReason::NatUnknown));
    }
}

/// Goal: RFC 4787, REQ-2, REQ-7: all mappings of a host have one external address; an address of the hosts inside means these, never a peer outside.
/// Method: all protocols, several ports and peers, of two hosts; then packets between the hosts.
#[test]
fn a_host_has_one_external_address() {
    let mut stage = nat();
    for (number, from) in (0..20).flat_map(|number| [(number, A.0), (number, B.0)]) {
        for protocol in [UDP, TCP, ICMP] {
            let to = (Ipv4Addr::from([203, 0, 113, number]), 53);
            let sent = packet(protocol, INSIDE, (from, 3000 + u16::from(number)), to);
            let [source, _] = pass(&mut stage, sent);
            assert_eq!(source.0, OWN, "{from} {number} {protocol}");
        }
    }
    let flows = stage.table().len();
    for protocol in [UDP, TCP] {
        let ends = pass(&mut stage, packet(protocol, INSIDE, A, B));
        assert_eq!((ends, stage.table().len()), ([A, B].map(ip_end), flows));
    }
}

/// Goal: RFC 4787, REQ-10, RFC 5382, REQ-6: no payload is changed, at the ports of no protocol. Method: what FTP, SIP, TFTP and RTSP say of the sender's own
/// address and port, in both directions.
#[test]
fn payloads_are_left_alone() {
    let said = b"PORT 10,0,0,2,19,136\r\nContact: <sip:a@10.0.0.2:5000>\r\nTransport: RTP/AVP;client_port=5000-5001\r\n";
    for port in [21, 69, 554, 1720, 5060] {
        for protocol in [UDP, TCP] {
            let mut stage = nat();
            let with_payload = |ingress, from, to| {
                let short = packet(protocol, ingress, from, to);
                let headers = if protocol == TCP { 20 } else { 8 };
                let mut transport = short.bytes()[34..34 + headers].to_vec();
                if protocol == UDP {
                    transport[4..6]
                        .copy_from_slice(&u16::try_from(8 + said.len()).unwrap().to_be_bytes());
                }
                ip(protocol, ingress, from.0, to.0, (5, 0), &[&transport[..], said].concat())
            };
            let mut there = with_payload(INSIDE, A, (PEER.0, port));
            assert_eq!(stage.process(&mut there, START), Verdict::Pass);
            assert!(there.bytes().ends_with(said), "{port} {protocol}");
            let [source, _] = ends(&mut there);
            let mut back = with_payload(OUTSIDE, (PEER.0, port), v4(source));
            assert_eq!(stage.process(&mut back, START), Verdict::Pass);
            assert!(back.bytes().ends_with(said), "{port} {protocol}");
            assert_eq!(ends(&mut back), [ip_end((PEER.0, port)), ip_end(A)]);
            assert_eq!(stage.table().len(), 1, "nothing is opened for what is named");
        }
    }
}

/// Goal: RFC 5508, REQ-11: messages of ICMP that are neither echoes nor errors are dropped, from either side, and begin no flow. Method: every type.
#[test]
fn other_messages_are_dropped() {
    for kind in (0..=255).filter(|kind| ![0, 3, 4, 5, 8, 11, 12].contains(kind)) {
        for (ingress, from, to) in [(INSIDE, A.0, PEER.0), (OUTSIDE, PEER.0, OWN)] {
            let mut stage = nat();
            let mut message =
                ip(ICMP, ingress, from, to, (5, 0), &[kind, 0, 0, 0, 0, 7, 0, 1, 0, 0, 0, 0]);
            let before = message.clone();
            let verdict = stage.process(&mut message, START);
            assert!(matches!(verdict, Verdict::Drop(_)), "{kind}: {verdict:?}");
            assert_eq!((message, stage.table().len()), (before, 0), "{kind}");
        }
    }
}

/// Goal: RFC 4787, REQ-9, RFC 5382, REQ-8: hosts inside reach each other by external ends, and see each other so; by a
/// mapping, and by a published port. Method: there and back.
#[test]
fn inside_hosts_meet_by_external_ends() {
    for protocol in [UDP, TCP] {
        let mut stage = nat();
        let [of_b, _] = pass(&mut stage, packet(protocol, INSIDE, B, PEER));
        let [source, to] = pass(&mut stage, packet(protocol, INSIDE, A, v4(of_b)));
        assert_eq!(source.0, OWN);
        assert_eq!(to, ip_end(B));
        let [seen, back] = pass(&mut stage, packet(protocol, INSIDE, B, v4(source)));
        assert_eq!((seen, back), (of_b, ip_end(A)));
        // Towards outside, it is the same end.
        let [outside, _] = pass(&mut stage, packet(protocol, INSIDE, A, PEER));
        assert_eq!(outside, source);
        let mut nowhere = packet(protocol, INSIDE, A, (OWN, 1999));
        assert_eq!(stage.process(&mut nowhere, START), Verdict::Drop(DropReason::NatUnknown));
        // The mapping lives as long as the flow from inside, though its own has ended.
        let later = START + Duration::from_secs(200);
        for _ in 0..2 {
            let mut packet = packet(protocol, INSIDE, A, v4(of_b));
            assert_eq!(stage.process(&mut packet, later), Verdict::Pass);
        }
        stage.table().expire(START + Duration::from_secs(302));
        let external = NatEndpoint::new(of_b.0, of_b.1);
        let found = stage.table().internal(protocol, external, None);
        assert_eq!(found, Some(NatEndpoint::new(B.0.into(), B.1)));
        stage.table().expire(START + Duration::from_secs(20_000));
        assert_eq!((stage.table().len(), stage.table().usage().ports), (0, 0));
    }
    let mut stage = nat();
    let [source, to] = pass(&mut stage, packet(TCP, INSIDE, A, (OWN, 80)));
    assert_eq!((source.0, to), (OWN.into(), (B.0.into(), 8080)));
    let [seen, back] = pass(&mut stage, packet(TCP, INSIDE, (B.0, 8080), v4(source)));
    assert_eq!((seen, back), ((OWN.into(), 80), ip_end(A)));
}

/// The error about a packet, from `from`: port unreachable.
fn error(ingress: Port, from: Ipv4Addr, about: &Packet) -> Packet {
    let quoted = &about.bytes()[14..];
    let source: [u8; 4] = *quoted[12..].first_chunk().unwrap();
    let message = [&[3, 3, 0, 0, 0, 0, 0, 0], quoted].concat();
    ip(ICMP, ingress, from, source.into(), (9, 0), &message)
}

/// Goal: RFC 5508, REQ-3, REQ-4, REQ-5, REQ-7: errors reach the sender of what they quote, quoted as it was sent, from inside
/// too and between hosts inside; what comes from inside has the external source, whichever host sent it; wrong checksums
/// are not forwarded. Method: errors about packets of a flow to outside, of an answer, and of a flow between hosts inside.
#[test]
fn errors_find_their_sender() {
    let mut stage = nat();
    let [of_b, _] = pass(&mut stage, packet(UDP, INSIDE, B, PEER));
    let mut addresses = |mut error: Packet, original: &Packet| {
        assert_eq!(stage.process(&mut error, START), Verdict::Pass);
        assert_eq!(error.verify().unwrap(), Verified::Right);
        let headers = error.headers().unwrap();
        let quoted = &error.bytes()[headers.transport_at + 8..headers.end_at];
        assert_eq!(quoted, &original.bytes()[14..], "as it was sent");
        headers.addresses(error.bytes()).unwrap()
    };
    // From a router outside, about what B has sent.
    let router = Ipv4Addr::new(192, 0, 2, 1);
    let sent = packet(UDP, INSIDE, B, PEER);
    let left = packet(UDP, INSIDE, v4(of_b), PEER);
    let found = addresses(error(OUTSIDE, router, &left), &sent);
    assert_eq!(found, (router.into(), B.0.into()));
    // From B, and from a router before it, about what a peer has sent.
    let came = packet(UDP, OUTSIDE, PEER, v4(of_b));
    let passed = packet(UDP, OUTSIDE, PEER, B);
    for from in [B.0, Ipv4Addr::new(10, 0, 0, 254)] {
        let found = addresses(error(INSIDE, from, &passed), &came);
        assert_eq!(found, (OWN.into(), PEER.0.into()), "{from}");
    }
    // From B, about what A has sent to B's external end.
    let mut stage = nat();
    let [of_b, _] = pass(&mut stage, packet(UDP, INSIDE, B, PEER));
    let sent = packet(UDP, INSIDE, A, v4(of_b));
    let mut arrived = sent.clone();
    assert_eq!(stage.process(&mut arrived, START), Verdict::Pass);
    let good = error(INSIDE, B.0, &arrived);
    for at in [36, 42 + 10] {
        // The checksum of the message; that of the quoted header, with the message's own right again.
        let mut wrong = good.clone();
        wrong.bytes_mut()[at] ^= 1;
        if at > 42 {
            wrong.fill_checksums().unwrap();
        }
        let before = wrong.clone();
        assert_eq!(stage.process(&mut wrong, START), Verdict::Drop(DropReason::ChecksumWrong));
        assert_eq!(wrong, before);
    }
    let mut error = good;
    assert_eq!(stage.process(&mut error, START), Verdict::Pass);
    assert_eq!(error.verify().unwrap(), Verified::Right);
    let headers = error.headers().unwrap();
    assert_eq!(error.bytes()[42..], sent.bytes()[14..]);
    assert_eq!(headers.addresses(error.bytes()), Some((OWN.into(), A.0.into())));
}

/// The fragments of a datagram, in order.
fn fragments(number: u16, from: (Ipv4Addr, u16)) -> Vec<Packet> {
    let ports = [from.1.to_be_bytes(), PEER.1.to_be_bytes()].concat();
    let payload: Vec<u8> = (0..40).collect();
    let datagram = [&ports[..], &[0, 48, 0, 0], &payload].concat();
    let mut whole = ip(UDP, INSIDE, from.0, PEER.0, (number, 0), &datagram);
    whole.fragment(36).unwrap().unwrap()
}

/// Goal: RFC 4787, REQ-14: fragments are translated whatever their order; each that comes too early waits. Method: all orders of
/// three fragments; the source of each, and the datagram that they make.
#[test]
fn fragments_come_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut stage = nat();
        let pieces = fragments(7, A);
        let mut sent = Vec::new();
        for at in order {
            let mut piece = pieces[at].clone();
            match stage.process(&mut piece, START) {
                Verdict::Pass => sent.push(piece),
                Verdict::Hold => assert!(at > 0),
                other => panic!("{other:?}"),
            }
            while let Some((packet, verdict)) = stage.release(START) {
                assert_eq!(verdict, Verdict::Pass);
                sent.push(packet);
            }
        }
        assert_eq!(sent.len(), 3, "{order:?}");
        assert_eq!(stage.next_release(START), None);
        sent.sort_by_key(|piece| piece.bytes()[21]);
        for (sent, piece) in sent.iter_mut().zip(&pieces) {
            assert_eq!(sent.verify_header().unwrap(), Verified::Right);
            let headers = sent.headers().unwrap();
            assert_eq!(headers.addresses(sent.bytes()), Some((OWN.into(), PEER.0.into())));
            let skipped = if sent.bytes()[21] == 0 { 34 + 8 } else { 34 };
            assert_eq!(sent.bytes()[skipped..], piece.bytes()[skipped..]);
        }
    }
}

/// Goal: RFC 4787, REQ-14a: fragments without a first one are dropped in time, never more are held than there is room for,
/// and a flood of them stops neither whole packets nor fragments in order, nor those of another sender out of order. Method:
/// thousands of late fragments.
#[test]
fn a_flood_of_fragments_stops_nothing() {
    let mut stage = nat();
    let mut dropped = 0;
    for number in 0..5000 {
        let mut late = fragments(number, A).remove(1);
        assert_eq!(stage.process(&mut late, START), Verdict::Hold);
        while let Some((_, verdict)) = stage.release(START) {
            assert_eq!(verdict, Verdict::Drop(DropReason::NatFragment));
            dropped += 1;
        }
        if number % 500 == 0 {
            let [source, _] = pass(&mut stage, packet(UDP, INSIDE, A, PEER));
            assert_eq!(source.0, OWN);
            for (at, mut piece) in fragments(6000 + number, A).into_iter().enumerate() {
                assert_eq!(stage.process(&mut piece, START), Verdict::Pass, "{at}");
            }
            let mut pieces = fragments(number, B);
            assert_eq!(stage.process(&mut pieces[1], START), Verdict::Hold);
            assert_eq!(stage.process(&mut pieces[0], START), Verdict::Pass);
            assert_eq!(stage.release(START).unwrap().1, Verdict::Pass);
        }
    }
    assert_eq!(dropped, 5000 - 64);
    let end = START + Duration::from_secs(2);
    assert_eq!(stage.next_release(START), Some(end));
    let late = std::iter::from_fn(|| stage.release(end)).count();
    assert_eq!(late, 64);
    assert_eq!(stage.next_release(end), None);
    // The first one is expected for a minute.
    let mut pieces = fragments(9, B);
    assert_eq!(stage.process(&mut pieces[0], START), Verdict::Pass);
    let minute = START + Duration::from_secs(60);
    assert_eq!(stage.process(&mut pieces[1], START + Duration::from_secs(59)), Verdict::Pass);
    assert_eq!(stage.process(&mut pieces[2], minute), Verdict::Hold);
}
