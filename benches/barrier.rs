//! The cost of a barrier, of tasks on two workers and of threads.
//!
//! **Question.** How close is a barrier to the unavoidable cost of its members?
//!
//! **Prediction.** Of tasks: a wake-up and a poll of each, 100 to 200 ns together, shared by two workers, and one
//! exchange between these, 0.3 µs: 2 to 4 µs for 32. Of threads: two on two cores exchange one cache line twice,
//! 0.2 µs; beyond the number of cores, half of their number times a switch of the kernel, 1.5 µs: 6 µs for 8, 24
//! for 32.
//!
//! **Method.** All members enter barriers that follow on each other at once. Criterion chooses the number per sample;
//! rank 0 reads the clock once before and once after them. Clock: `CLOCK_MONOTONIC`. Unit: time per barrier. With
//! other programs on either core the figures say nothing. Beside peers, and of processes: `vigie-bench barrier`.

use std::error::Error;
use std::thread;
use std::time::Duration;

use criterion::Criterion;
use vigie_barrier::local::{TaskBarrier, ThreadBarrier};
use vigie_barrier::{BarrierError, Group};
use vigie_bench::clock;
use vigie_runtime::{Flavor, Runtime};

/// Numbers of members.
const MEMBERS: [u32; 3] = [2, 8, 32];

/// Threads that run tasks.
const WORKERS: usize = 2;

/// The time of `count` barriers of tasks.
fn tasks(runtime: &Runtime, group: Group, count: u64) -> Duration {
    let tasks: Vec<_> = TaskBarrier::new(group)
        .into_members()
        .map(|mut member| {
            runtime.spawn(async move {
                // All tasks are there.
                member.wait().await?;
                let start = clock::now();
                for _ in 0..count {
                    member.wait().await?;
                }
                Ok::<_, BarrierError>(start.elapsed())
            })
        })
        .collect();
    runtime.block_on(async {
        let mut longest = Duration::ZERO;
        for task in tasks {
            let elapsed = task.await.expect("no member panics").expect("no member leaves early");
            longest = longest.max(elapsed);
        }
        longest
    })
}

/// The time of `count` barriers of threads.
fn threads(group: Group, count: u64) -> Duration {
    let threads: Vec<_> = ThreadBarrier::new(group)
        .into_members()
        .map(|mut member| {
            thread::spawn(move || {
                member.wait()?;
                let start = clock::now();
                for _ in 0..count {
                    member.wait()?;
                }
                Ok::<_, BarrierError>(start.elapsed())
            })
        })
        .collect();
    let elapsed = threads
        .into_iter()
        .map(|thread| thread.join().expect("no member panics").expect("no member leaves early"));
    elapsed.max().unwrap_or_default()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    for (name, flavor) in [("user-level", Flavor::UserLevel), ("hybrid", Flavor::Hybrid)] {
        let runtime = Runtime::builder().flavor(flavor).workers(WORKERS).build()?;
        let mut benchmarks = criterion.benchmark_group(format!("barrier-tasks-{name}"));
        for members in MEMBERS {
            let group = Group::new(members)?;
            benchmarks.bench_function(members.to_string(), |bencher| {
                bencher.iter_custom(|count| tasks(&runtime, group, count));
            });
        }
        benchmarks.finish();
    }
    let mut benchmarks = criterion.benchmark_group("barrier-threads");
    for members in MEMBERS {
        let group = Group::new(members)?;
        benchmarks.bench_function(members.to_string(), |bencher| {
            bencher.iter_custom(|count| threads(group, count));
        });
    }
    benchmarks.finish();
    criterion.final_summary();
    Ok(())
}
