//! Fuzz targets: frames, and pipelines that receive hostile frames.
//!
//! Each target starts from its corpus in `tests/corpus` and mutates, from one seed, for as long as `VIGIE_FUZZ_SECONDS`
//! says (by default for some seconds). Inputs that lead to a new outcome are kept for further mutation, and written to
//! `VIGIE_FUZZ_SAVE` if that names a folder. A failure prints the seed and the input.
//!
//! Ten minutes of each: `VIGIE_FUZZ_SECONDS=600 cargo test --release -p vigie-forward --test fuzz`.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{collections::BTreeSet, time::Duration};

use vigie_detect::Instant;
use vigie_forward::{
    Bandwidth,
    packet::{Ethernet, Fragment, Headers, Packet, Port, TAGS_MAX, Tag, UDP, Verified},
    pipeline::{Pipeline, Stage, Verdict},
    stages::{
        Action, Checksum, Filter, FilterRule, Meter, Mirror, Nat, NatRule, Rewrite, RouteStage, Ttl,
    },
    tables::{Fib, Interface, NatEndpoint, NatTable, Route},
};
use vigie_via::link::MacAddress;

use crate::kit::fuzz::fuzz;

/// Goal: no bytes make reading, changing or cutting frames fail badly, and changes keep right checksums right. Method:
/// mutated frames; each through every reader and editor, checksums verified before and after.
#[test]
fn frames_are_refused_or_understood() {
    let outcomes = fuzz("packet", 6_000, |input| {
        let mut packet = Packet::new(Port(0), input);
        let headers = match packet.headers() {
            Ok(headers) => headers,
            Err(error) => {
                if packet.verify().is_ok() || packet.fill_checksums().is_ok() {
                    return Err("what cannot be read was".to_owned());
                }
                let text = error.to_string();
                return Ok(text.chars().filter(|c| !c.is_ascii_digit()).collect());
            }
        };
        let ethernet = Ethernet::parse(input).map_err(|error| error.to_string())?;
        let (begin, end) = (headers.network_at, headers.end_at);
        if begin != ethernet.payload_at || headers.transport_at > end || end > input.len() {
            return Err(format!("places out of order: {headers:?}"));
        }
        if headers.tags < TAGS_MAX {
            packet.push_tag(Tag::of_vlan(5)).map_err(|error| error.to_string())?;
            packet.pop_tag().map_err(|error| error.to_string())?;
        }
        if packet.bytes() != input {
            return Err("tags changed more".to_owned());
        }
        for mtu in [0, 41, 100, 1500] {
            for mut piece in
                packet.cut_segments(mtu).map_err(|e| e.to_string())?.unwrap_or_default()
            {
                if piece.verify() != Ok(Verified::Right) || piece.len() > mtu + begin {
                    return Err(format!("a piece of {mtu} is wrong: {piece:?}"));
                }
            }
        }
        let before = packet.verify();
        // An ICMP message of zeros only, including the checksum, differs from a right one in the sign of zero, which an
        // incremental update cannot see (RFC 1624, §3): such an update is right.
        let is_nothing = input[headers.transport_at..end].iter().all(|byte| *byte == 0);
        let _ = packet.set_source([192, 0, 2, 1].into());
        let _ = packet.set_destination([0xfc; 16].into());
        let _ = packet.set_source_port(0xffff);
        let _ = packet.set_destination_port(0);
        let _ = packet.set_identifier(7);
        let _ = packet.decrement_ttl();
        let after = packet.verify();
        let is_kept = after == before || (is_nothing && after == Ok(Verified::Right));
        if !is_kept || Headers::parse(packet.bytes()) != Ok(headers) {
            return Err(format!("{before:?} before, {after:?} after"));
        }
        let _ = packet.complete_checksum();
        let _ = packet.fill_checksums();
        if packet.verify() == Ok(Verified::Wrong) {
            return Err("filled in, and wrong".to_owned());
        }
        let Headers { network, transport, fragment, tags, .. } = headers;
        Ok(format!("{network:?} {transport:?} {fragment:?} {tags} {before:?}"))
    });
    assert!(outcomes.len() >= 40, "{outcomes:?}");
}

/// All stock stages that a router with translation has.
fn stages() -> Vec<Box<dyn Stage>> {
    let fib = Fib::default();
    for port in [0, 1] {
        let own = MacAddress([2, 0, 0, 0, 1, u8::try_from(port).expect("small")]);
        fib.set_interface(Port(port), Some(Interface::new(own, 1500)));
        let net = format!("10.0.{port}.0/24").parse().expect("a prefix");
        fib.set_route(net, Some(Route::on_link(Port(port))));
        for host in 0..8 {
            let address = [10, 0, u8::try_from(port).expect("small"), host].into();
            fib.set_neighbour(Port(port), address, Some(MacAddress([4; 6])));
        }
    }
    let external = "10.0.1.1".parse().expect("an address");
    let internal = "10.0.0.2".parse().expect("an address");
    let nat = Nat::new(NatTable::builder().flows_max(8).ports(5000, 5003).seed(1).build())
        .rule(NatRule::Destination {
            protocol: UDP,
            external: NatEndpoint::new(external, 80),
            internal: NatEndpoint::new(internal, 8080),
        })
        .rule(NatRule::Source {
            ingress: Port(0),
            from: "10.0.0.0/24".parse().expect("a prefix"),
            external,
        });
    let rate = Bandwidth::new(1_000_000).expect("a rate");
    let rule = FilterRule::new(Action::Drop).destination_ports(53..=53).protocol(6);
    vec![
        Box::new(Filter::with_default(Action::Accept).rule(rule)),
        Box::new(nat),
        Box::new(Ttl),
        Box::new(Mirror::to(Port(2)).from(Port(1))),
        Box::new(Rewrite::new().source_mac(MacAddress([6; 6]))),
        Box::new(RouteStage::new(fib)),
        Box::new(Checksum::verify()),
        Box::new(Meter::new(rate, 3000).expect("a meter")),
    ]
}

/// Goal: for any input, stages return a verdict and keep right checksums right, and a pipeline loses nothing that it
/// does not count. Method: scripts of mutated frames through all stock stages, alone and in a pipeline.
#[test]
fn pipelines_take_anything() {
    let outcomes = fuzz("pipeline", 400, |input| {
        let mut alone = stages();
        let mut builder = Pipeline::builder().input_packets(8).output_packets(4);
        for stage in stages() {
            builder = builder.boxed(stage);
        }
        let mut pipeline = builder.build().map_err(|error| error.to_string())?;
        let mut now = Instant::from_nanos(0);
        let mut rest = input;
        let mut said = BTreeSet::new();
        while let [port, delta, high, low, more @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low])).min(more.len());
            let (frame, behind) = more.split_at(length);
            rest = behind;
            now += Duration::from_secs(u64::from(*delta));
            let mut packet = Packet::new(Port(u16::from(port % 3)), frame);
            let before = packet.verify();
            let is_whole = packet.headers().is_ok_and(|h| h.fragment == Fragment::Whole);
            for stage in &mut alone {
                let verdict = stage.process(&mut packet, now);
                if let Verdict::Drop(reason) = verdict {
                    said.insert(reason.name());
                    break;
                }
                if is_whole && packet.verify() != before {
                    return Err(format!("{before:?} before {}", stage.model()));
                }
            }
            // Ports that are never emptied hold it up.
            let _ = pipeline.offer(Packet::new(Port(u16::from(port % 3)), frame));
            pipeline.run(now);
            if delta % 2 == 0 {
                let _ = pipeline.take(Port(1));
            }
        }
        let counted = pipeline.counters().snapshot();
        let inside = i64::try_from(pipeline.waiting()).expect("few");
        let [received, sent, dropped] =
            [counted.received.packets, counted.sent.packets, counted.dropped_total()]
                .map(|count| i64::try_from(count).expect("few"));
        // A mirror's copies leave in addition to the received packets.
        if sent + dropped + inside < received {
            return Err(format!("something is missing: {counted}, {inside} inside"));
        }
        Ok(format!("{said:?}"))
    });
    assert!(outcomes.len() >= 20, "{outcomes:?}");
}
