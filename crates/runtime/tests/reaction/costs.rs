//! The cost of threads whose tasks sleep in the kernel: figures to read, without assertions.
//!
//! `cargo test --release -p vigie-runtime --test reaction costs -- --ignored --nocapture --test-threads=1`

use std::{
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use vigie_detect::clock::monotonic_now;
use vigie_runtime::{Runtime, metrics::ReserveMetrics, time, yield_now};

use crate::kit::child::{command, is_child};

fn two_workers() -> Runtime {
    Runtime::builder().workers(2).build().expect("a runtime")
}

fn reserve(runtime: &Runtime) -> ReserveMetrics {
    runtime.handle().metrics().reserve.expect("the hybrid flavor has one")
}

/// Returns a figure of `/proc/self/status`, in KiB if it is memory.
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("mounted");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).expect("a number")
}

/// Runs `body` in a process of its own, whose memory no other test has used.
fn alone(test: &str, body: impl FnOnce()) {
    if is_child(test) {
        body();
        return;
    }
    let mut child = command(&[], test);
    let output = child.arg("--ignored").output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter(|line| line.starts_with('|')).for_each(|line| println!("{line}"));
}

/// Says what it takes to have `count` tasks blocked on one lock at the same time.
fn report_blocked(count: usize) {
    let runtime = two_workers();
    let lock = Arc::new(Mutex::new(()));
    let arrived = Arc::new(AtomicUsize::new(0));
    let held = lock.lock().unwrap_or_else(PoisonError::into_inner);
    let began = monotonic_now();
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let (lock, arrived) = (Arc::clone(&lock), Arc::clone(&arrived));
            runtime.spawn(async move {
                arrived.fetch_add(1, Ordering::SeqCst);
                drop(lock.lock());
            })
        })
        .collect();
    while arrived.load(Ordering::SeqCst) < count {
        thread::park_timeout(Duration::from_micros(100));
    }
    let took = monotonic_now() - began;
    let each = took.as_secs_f64() * 1e6 / count.max(1) as f64;
    // The name of the test stands on the line already.
    println!(
        "\n| {count} | {} | {:.1} | {:.0} | {:.1} | {each:.0} |",
        status("Threads"),
        status("VmRSS") as f64 / 1024.0,
        status("VmSize") as f64 / 1024.0,
        took.as_secs_f64() * 1e3,
    );
    drop(held);
    for task in tasks {
        runtime.block_on(task).expect("no panic");
    }
}

/// Goal: say what a process takes while no task is blocked. Method: two workers, nothing else.
#[test]
#[ignore = "measures, and judges nothing"]
fn memory_0() {
    println!(
        "| blocked tasks | threads | VmRSS MiB | VmSize MiB | until all block, ms | each, µs |"
    );
    alone("costs::memory_0", || report_blocked(0));
}

/// Goal: as above, of 60 blocked tasks. Method: as above.
#[test]
#[ignore = "measures, and judges nothing"]
fn memory_060() {
    alone("costs::memory_060", || report_blocked(60));
}

/// Goal: as above, of as many as there are threads for. Method: as above.
#[test]
#[ignore = "measures, and judges nothing"]
fn memory_512() {
    alone("costs::memory_512", || report_blocked(512));
}

/// For how long the threads are counted that are made.
const SPAN: Duration = Duration::from_secs(6);

/// How long a task blocks.
const BLOCK: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "it is what blocks")]
fn block() {
    thread::sleep(BLOCK);
}

/// Between two calls a task does nothing for so long, or for a random time of up to twice as much.
#[derive(Clone, Copy, Debug)]
enum Pause {
    None,
    /// All tasks block at the same time.
    Together(Duration),
    /// Each task blocks when it likes.
    Alone(Duration),
}

fn report_churn(count: usize, pause: Pause) {
    let runtime = two_workers();
    let calls = Arc::new(AtomicU64::new(0));
    for seed in 0..count {
        let calls = Arc::clone(&calls);
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let work = async move {
            let mut beat = match pause {
                Pause::Together(pause) => Some(time::interval(BLOCK + pause)),
                _ => None,
            };
            loop {
                match (pause, &mut beat) {
                    (_, Some(beat)) => drop(beat.tick().await),
                    (Pause::Alone(pause), _) => {
                        time::sleep(pause.mul_f64(2.0 * random.f64())).await;
                    }
                    _ => yield_now().await,
                }
                block();
                calls.fetch_add(1, Ordering::Relaxed);
            }
        };
        runtime.spawn(work).detach();
    }
    // The first threads are made for each load.
    runtime.block_on(time::sleep(Duration::from_secs(2)));
    let (made, done) = (reserve(&runtime).new_threads, calls.load(Ordering::Relaxed));
    let mut most = 0;
    let end = monotonic_now() + SPAN;
    while monotonic_now() < end {
        most = most.max(status("Threads"));
        runtime.block_on(time::sleep(Duration::from_millis(5)));
    }
    let made = (reserve(&runtime).new_threads - made) as f64 / SPAN.as_secs_f64();
    let done = (calls.load(Ordering::Relaxed) - done) as f64 / SPAN.as_secs_f64();
    println!("| {count} | {pause:?} | {made:.1} | {done:.0} | {most} |");
}

/// Goal: say how many threads are made a second while tasks block for 100 ms, again and again. Method: 60
/// and 500 tasks, with pauses of several kinds.
#[test]
#[ignore = "measures, and judges nothing"]
fn threads_made() {
    println!("| tasks that block | pause | threads made/s | calls/s | threads at most |");
    for count in [60, 500] {
        let millis = Duration::from_millis;
        for pause in [
            Pause::None,
            Pause::Alone(millis(20)),
            Pause::Alone(millis(100)),
            Pause::Alone(millis(900)),
            Pause::Together(millis(50)),
            Pause::Together(millis(400)),
            Pause::Together(millis(1900)),
        ] {
            report_churn(count, pause);
        }
    }
}
