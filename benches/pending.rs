//! Table 2 of [bouge02, §4.2]: the time of a task with many switches, beside waiting tasks.
//!
//! **Question.** Does a task that switches often slow down with the number of tasks that wait for
//! messages?
//!
//! **Prediction.** With s steps of 5 µs and K waiting tasks: naive polling s·(5 µs + K·c), where c is a
//! failed read and a switch (about 0.5 µs); enhanced polling s·(5 µs + one poll of the group), whose cost
//! does not depend on K with epoll, where the paper's `select` grew by 1.5 % per task.
//!
//! **Method.** The server is a separate process, the client is this process: it starts the task
//! through a control connection and sends about 1000 messages a second to connections drawn at
//! random until the task is over. The time is the server's. s = 2000 here; `vigie-bench pending` does
//! 100 000, up to K = 10 000. Clock: `CLOCK_MONOTONIC`. Unit: time per task of 2000 steps.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use vigie_bench::client::PingPong;
use vigie_bench::server::ServerPlan;
use vigie_bench::system::System;

const STEPS: u32 = 2_000;
const STEP: Duration = Duration::from_micros(5);

const SYSTEMS: [System; 4] =
    [System::VigieNaive, System::VigieEnhanced, System::Vigie, System::Tokio];

fn pending(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table-2");
    group.sample_size(10).warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(1_500));
    for waiting in [1, 8, 64, 1_000] {
        for system in SYSTEMS {
            if system == System::VigieNaive && waiting > 64 {
                continue;
            }
            let plan = ServerPlan::new(system).connections(waiting).control();
            group.bench_function(BenchmarkId::new(system.name(), waiting), |bencher| {
                let server = plan.start().expect("the server starts");
                let control = server.control().expect("the plan asks for it");
                let client = PingPong::new(server.address())
                    .connections(waiting)
                    .spacing(Duration::from_micros(200), Duration::from_micros(1_600))
                    .until_completed(control, STEPS, STEP);
                let mut connections = client.open().expect("the server accepts");
                bencher.iter_custom(|count| {
                    let mut run = || connections.exchange_until_completed(&mut |_| ());
                    (0..count).map(|_| run().expect("the task ends")).sum()
                });
            });
        }
    }
    group.finish();
}

fn main() {
    vigie_bench::child::maybe_run_child();
    let mut criterion = Criterion::default().configure_from_args();
    pending(&mut criterion);
    criterion.final_summary();
}
