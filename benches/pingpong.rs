//! The cost of a message between two processes of one host, at the limits of the machine and in
//! vigie.
//!
//! **Question.** How close are vigie's messages to the machine's limit?
//!
//! **Prediction.** A message of 8 B is one cache line that moves from core to core: 40 to 60 ns between
//! two threads of a core, 100 to 150 ns between cores. A window of 64 hides most of that: the line is
//! written while others are on their way. A copied message costs a line's share of the bandwidth between
//! the cores, in and out.
//!
//! **Method.** Rank 0 is this process, on the first core that it may use; rank 1 is a separate process
//! on the second, which polls. Criterion chooses how many operations make a sample; the clock is read
//! once before and once after them. Clock: `CLOCK_MONOTONIC`. Unit: time per operation, which is a round
//! trip (twice the time one way) or a window of 64 messages. With other programs on either core the
//! figures say nothing. Beside peers: `vigie-bench pingpong`.

use std::error::Error;
use std::time::Duration;

use criterion::Criterion;
use vigie_bench::clock;
use vigie_bench::messages::partner::Partner;
use vigie_bench::messages::{CarrierKind, Measure, own_carriers};

const MEASURES: [(&str, Measure); 4] = [
    ("round-trip-8B", Measure::Latency { bytes: 8 }),
    ("round-trip-4KiB", Measure::Latency { bytes: 4_096 }),
    ("round-trip-256KiB", Measure::Latency { bytes: 262_144 }),
    ("window-of-64-8B", Measure::Window { bytes: 8, window: 64 }),
];

/// Performs `count` operations, in steps that the interface can count.
fn timed(partner: &mut Partner, count: u64) -> Duration {
    let start = clock::now();
    let mut left = count;
    while left > 0 {
        let step = u32::try_from(left).unwrap_or(u32::MAX);
        partner.perform(step).expect("the other process answers");
        left -= u64::from(step);
    }
    start.elapsed()
}

fn main() -> Result<(), Box<dyn Error>> {
    vigie_bench::child::maybe_run_child();
    let mut criterion = Criterion::default().configure_from_args();
    for (name, measure) in MEASURES {
        let mut group = criterion.benchmark_group(name);
        let systems = own_carriers().iter().filter(|own| own.kind != CarrierKind::Peer);
        for own in systems.filter(|own| (own.has)(measure)) {
            let mut partner = Partner::start(own, measure)?;
            group.bench_function(own.name, |bencher| {
                bencher.iter_custom(|count| timed(&mut partner, count));
            });
        }
        group.finish();
    }
    criterion.final_summary();
    Ok(())
}
