//! The cost of a wait for a socket while other workers wait for other sockets.
//!
//! **Question.** Do waits by the `async` methods slow down those of other workers, on other sockets?
//!
//! **Prediction.** No: a wait takes only its socket's own lock. `wait` is two uncontended locks (under 100 ns) with any
//! number of threads that have a core each. With a lock that all sockets share, two threads on two cores pass it and
//! what it protects back and forth at every wait, several hundred nanoseconds. In `datagrams` the kernel's part of a
//! message, 1 µs and more, hides most of either.
//!
//! **Method.** `wait`: each thread polls `readable` of its own sockets in turn, which have nothing to read, and drops
//! it; no host drives the server. `datagrams`: one task of each pair sends a datagram and receives the answer of the
//! other one, all pairs at once, on a hybrid runtime; both tasks block at every message. Criterion chooses how many
//! are a sample; the clock is read once before and once after them. Clock: `CLOCK_MONOTONIC`. Unit: time per wait of
//! one thread, with the slowest thread's time; time per datagram of all tasks together. With other programs on the
//! cores the figures say nothing.

use std::error::Error;
use std::future::Future;
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use vigie_bench::clock;
use vigie_detect::net::UnixDatagram;
use vigie_detect::{Flavor, Server};
use vigie_runtime::Runtime;

/// Sockets of each thread, and pairs of tasks.
const SOCKETS: usize = 64;

/// Numbers of threads that wait.
const THREADS: [usize; 3] = [1, 2, 4];

/// Threads that run tasks.
const WORKERS: [usize; 2] = [2, 4];

/// Pairs on which nothing is sent.
fn idle_pairs() -> io::Result<Vec<(UnixDatagram, UnixDatagram)>> {
    (0..SOCKETS)
        .map(|_| {
            let pair = UnixDatagram::pair()?;
            // A new socket is assumed to be ready.
            assert!(pair.0.try_recv(&mut [0]).is_err(), "nothing sent");
            Ok(pair)
        })
        .collect()
}

/// The time of `count` waits of each thread, each for its own sockets.
fn waits(pairs: &[Vec<(UnixDatagram, UnixDatagram)>], count: u64) -> Duration {
    let start_line = Barrier::new(pairs.len());
    thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .iter()
            .map(|mine| {
                let start_line = &start_line;
                scope.spawn(move || {
                    let mut context = Context::from_waker(Waker::noop());
                    start_line.wait();
                    let start = clock::now();
                    for ((socket, _), _) in mine.iter().cycle().zip(0..count) {
                        let wait = pin!(socket.readable());
                        assert!(black_box(wait.poll(&mut context)).is_pending(), "nothing sent");
                    }
                    start.elapsed()
                })
            })
            .collect();
        let elapsed = threads.into_iter().map(|thread| thread.join().expect("no wait panics"));
        elapsed.max().expect("there are threads")
    })
}

/// The time of `count` datagrams, half of them there and half of them back.
fn datagrams(runtime: &Runtime, count: u64) -> Duration {
    let rounds = count.div_ceil(2 * SOCKETS as u64);
    let task = |socket: UnixDatagram, is_first: bool| {
        runtime.spawn(async move {
            let mut byte = [0];
            for _ in 0..rounds {
                if is_first {
                    socket.send(&byte).await?;
                }
                socket.recv(&mut byte).await?;
                if !is_first {
                    socket.send(&byte).await?;
                }
            }
            Ok::<_, io::Error>(())
        })
    };
    let pairs = {
        let _entered = runtime.server().enter();
        idle_pairs().expect("descriptors are left")
    };
    let start = clock::now();
    let tasks: Vec<_> =
        pairs.into_iter().flat_map(|(one, other)| [task(other, false), task(one, true)]).collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("no task panics").expect("the peer is there");
        }
    });
    start.elapsed().mul_f64(count as f64 / (rounds * 2 * SOCKETS as u64) as f64)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("sockets");
    group.sample_size(20).warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_secs(1));
    for threads in THREADS {
        let server = Server::new(Flavor::Hybrid)?;
        let _entered = server.enter();
        let pairs = (0..threads).map(|_| idle_pairs()).collect::<io::Result<Vec<_>>>()?;
        group.bench_function(BenchmarkId::new("wait", threads), |bencher| {
            bencher.iter_custom(|count| waits(&pairs, count));
        });
    }
    for workers in WORKERS {
        let runtime = Runtime::builder().flavor(Flavor::Hybrid).workers(workers).build()?;
        group.bench_function(BenchmarkId::new("datagrams", workers), |bencher| {
            bencher.iter_custom(|count| datagrams(&runtime, count));
        });
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}
