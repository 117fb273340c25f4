//! The processor time of forwarding a packet, without a network.
//!
//! **Question.** Which part of a packet's path over the host is the stages' work, and what do an address translation,
//! a route or a checksum over everything add? What does asking the planner cost, once per flow?
//!
//! **Prediction.** Reading the headers of a UDP packet: 15 to 30 ns. A rewrite of addresses adds a few, a route a walk
//! of the trie, 20 to 40 ns, a translation two look-ups and two corrections of checksums, 100 ns; a checksum over 1400
//! bytes 50 to 100 ns. A plan is some hundred integer operations: below 1 µs.
//!
//! **Method.** One packet is copied into a pipeline, goes through it, and is taken out; Criterion chooses how often.
//! Time is an argument of the pipeline and stands still. Clock: `CLOCK_MONOTONIC`. Unit: time per packet. Live paths and
//! their peers: `vigie-bench forward --live`, `--relay`, `--over`.

use std::error::Error;
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Duration;

use criterion::{BatchSize, Criterion};
use vigie_detect::Instant;
use vigie_forward::packet::{Packet, Port};
use vigie_forward::pipeline::Pipeline;
use vigie_forward::stages::{Checksum, Nat, NatRule, Rewrite, RouteStage, Ttl};
use vigie_forward::tables::{Fib, Interface, NatTable, Route};
use vigie_forward::{Bandwidth, Cost, Message, Node, StageModel};
use vigie_via::link::MacAddress;

const FROM: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const TO: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const SOURCE: [u8; 4] = [10, 9, 0, 2];
const DESTINATION: [u8; 4] = [10, 9, 1, 2];

/// A UDP packet with this many bytes of payload.
fn frame(payload: u16) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 3, 8, 0, 0x45, 0];
    frame.extend((28 + payload).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(SOURCE);
    frame.extend(DESTINATION);
    frame.extend([0x13, 0x88, 0x13, 0x89]);
    frame.extend((8 + payload).to_be_bytes());
    frame.resize(42 + usize::from(payload), 7);
    let mut packet = Packet::new(Port(0), &frame);
    packet.fill_checksums()?;
    Ok(packet.bytes().to_vec())
}

fn routes() -> Result<Fib, Box<dyn Error>> {
    let fib = Fib::default();
    for port in [Port(0), Port(1)] {
        fib.set_interface(port, Some(Interface::new(FROM, 1500)));
    }
    fib.set_route("10.9.1.0/24".parse()?, Some(Route::on_link(Port(1))));
    fib.set_neighbour(Port(1), IpAddr::from(DESTINATION), Some(TO));
    Ok(fib)
}

fn translation() -> Result<Nat, Box<dyn Error>> {
    let rule = NatRule::Source {
        ingress: Port(0),
        from: "10.9.0.0/24".parse()?,
        external: IpAddr::from([10, 9, 1, 77]),
    };
    Ok(Nat::new(NatTable::builder().build()).rule(rule))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    let now = Instant::from_nanos(1);
    let rewrite = || Rewrite::new().source_mac(FROM).destination_mac(TO).send(Port(1));
    let mut benchmarks = criterion.benchmark_group("forward-packet");
    for payload in [22, 1400] {
        let frame = frame(payload)?;
        let pipelines = [
            ("rewrite", Pipeline::builder().stage(rewrite())),
            ("route", Pipeline::builder().stage(Ttl::new()).stage(RouteStage::new(routes()?))),
            (
                "nat-route",
                Pipeline::builder()
                    .stage(translation()?)
                    .stage(Ttl::new())
                    .stage(RouteStage::new(routes()?)),
            ),
            ("verify-rewrite", Pipeline::builder().stage(Checksum::verify()).stage(rewrite())),
        ];
        for (name, builder) in pipelines {
            let mut pipeline = builder.build()?;
            benchmarks.bench_function(format!("{name}/{}", frame.len()), |bencher| {
                bencher.iter_batched(
                    || Packet::new(Port(0), &frame),
                    |packet| {
                        pipeline.offer(packet).expect("it is empty");
                        pipeline.run(now);
                        pipeline.take(Port(1)).expect("every stage lets it pass")
                    },
                    BatchSize::SmallInput,
                );
            });
        }
    }
    benchmarks.finish();
    let micros = Duration::from_micros;
    let node = Node::new(
        Cost::per_byte(Bandwidth::measured(2048, micros(15))?),
        Cost::per_byte(Bandwidth::measured(2048, micros(11))?),
    );
    let message = Message::cut(8192, 2048)?;
    let stages =
        [StageModel::new("nat").on_host(Cost::fixed(micros(1))).on_nic(Cost::fixed(micros(9)))];
    criterion.bench_function("forward-plan", |bencher| {
        bencher.iter(|| node.plan(black_box(message), black_box(&stages)));
    });
    criterion.final_summary();
    Ok(())
}
