//! Table 1 of [bouge02, §4.1]: the time until a message is echoed, beside compute tasks.
//!
//! **Question.** Does the reaction depend on how many compute tasks run in the same runtime?
//!
//! **Prediction.** With compute tasks that yield every Q, and messages at times unrelated to that:
//! naive polling N·Q/2, since the echo task gets its turn once per cycle; enhanced polling Q/2, since
//! the scheduler looks at every switch and serves events first; blocking calls and the hybrid
//! flavor one wake-up, 10 to 60 µs, since the kernel puts the woken thread before the computing ones.
//!
//! **Method.** The server is a separate process, the client is this process, with one message in
//! flight over loopback TCP and pauses that spread over a whole cycle of the compute tasks. Criterion
//! times the exchange only, not the pause. Q = 1 ms here, a tenth of the paper's, so that a bench
//! takes seconds; `vigie-bench reaction` does the paper's 10 ms, with a real-time client. Clock:
//! `CLOCK_MONOTONIC`. Unit: time per round trip.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use vigie_bench::client::PingPong;
use vigie_bench::compute::YieldEvery;
use vigie_bench::server::ServerPlan;
use vigie_bench::system::System;

/// The quantum Q.
const QUANTUM: Duration = Duration::from_millis(1);

const SYSTEMS: [System; 5] = [
    System::VigieNaive,
    System::VigieEnhanced,
    System::VigieBlocking,
    System::Vigie,
    System::Tokio,
];

fn reaction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table-1");
    group.sample_size(10).warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(1_500));
    for compute in [0, 2, 10] {
        let cycle = QUANTUM * compute;
        for system in SYSTEMS {
            let plan = ServerPlan::new(system).compute(compute, YieldEvery::Step(QUANTUM));
            group.bench_function(BenchmarkId::new(system.name(), compute), |bencher| {
                let server = plan.start().expect("the server starts");
                let client = PingPong::new(server.address())
                    .spacing(Duration::from_micros(200), cycle.max(QUANTUM));
                let mut connections = client.open().expect("the server accepts");
                bencher.iter_custom(|count| {
                    (0..count)
                        .map(|_| connections.exchange().expect("every message is echoed"))
                        .sum()
                });
            });
        }
    }
    group.finish();
}

fn main() {
    vigie_bench::child::maybe_run_child();
    let mut criterion = Criterion::default().configure_from_args();
    reaction(&mut criterion);
    criterion.final_summary();
}
