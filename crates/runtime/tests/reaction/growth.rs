//! Threads grow while each serving thread is caught, within the bound, and shrink again.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{clock::monotonic_now, net::UnixStream};
use vigie_runtime::{Runtime, time, yield_now};

use crate::{
    hogs::{Hogs, each_with, eventually, threads_named},
    kit::{child::in_child, guard::against_hang},
    settle,
};

/// Goal: when the tasks that serve events hog as well, others serve. Method: ten handlers that each hold
/// their thread until all ten are inside their polls, on one worker.
#[test]
fn handlers_that_hog() {
    against_hang(|| {
        const HANDLERS: usize = 10;
        let runtime = Runtime::builder().workers(1).build().expect("a runtime");
        let inside = Arc::new(AtomicUsize::new(0));
        let mut peers = Vec::new();
        for _ in 0..HANDLERS {
            let (stream, peer) = StdUnixStream::pair().expect("a pair of sockets");
            let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
            peers.push(peer);
            let inside = Arc::clone(&inside);
            runtime
                .spawn(async move {
                    stream.read_u8().await.expect("a byte");
                    inside.fetch_add(1, Ordering::SeqCst);
                    settle::until(|| inside.load(Ordering::SeqCst) == HANDLERS);
                    stream.write_u8(1).await.expect("open");
                })
                .detach();
        }
        for peer in &mut peers {
            peer.write_all(&[1]).expect("open");
        }
        for peer in &mut peers {
            peer.read_exact(&mut [0]).expect("answered");
        }
    });
}

/// Goal: there are never more reserve threads than the builder says, and they go when they have nothing
/// to do. Method: more hogs than threads; the threads of this process are counted by name.
#[test]
fn within_the_bound_and_back() {
    in_child("growth::within_the_bound_and_back", || {
        let name = "bounded-thread";
        let runtime = Runtime::builder()
            .workers(1)
            .thread_name(name)
            .reserve_threads(3)
            .reserve_keep_alive(Duration::from_millis(5))
            .build()
            .expect("a runtime");
        // The worker and the supervisor.
        let least = 2;
        settle::until(|| threads_named(name) == least);
        let hogs = Hogs::start(runtime.handle(), 20, 4);
        for _ in 0..50 {
            // One that has ended for lack of work may be in /proc for a moment longer, while its successor begins.
            eventually(|| threads_named(name) <= least + 3);
            thread::park_timeout(Duration::from_millis(1));
        }
        eventually(|| threads_named(name) == least + 3);
        drop(hogs);
        let done = runtime.spawn(async { yield_now().await });
        runtime.block_on(done).expect("no panic");
        // One may stay in the poller, until an idle worker takes its place.
        eventually(|| threads_named(name) <= least + 1);
    });
}

/// Returns how many reserve threads wait to be called, and how many were made.
fn spare_and_made(runtime: &Runtime) -> (usize, u64) {
    let reserve = runtime.handle().metrics().reserve.expect("the hybrid flavor has one");
    (reserve.spare, reserve.new_threads)
}

/// Goal: threads that replaced sleepers are kept for the next burst of them, which makes no thread. Method: tasks
/// that block on one lock, all at once, twice; in between as long as surplus threads of other kinds are kept for.
#[test]
fn substitutes_of_sleepers_are_kept() {
    const SLEEPERS: usize = 20;
    against_hang(|| {
        let runtime = Runtime::builder()
            .workers(1)
            .reserve_keep_alive(Duration::from_secs(3600))
            .build()
            .expect("a runtime");
        let burst = || {
            let lock = Arc::new(Mutex::new(()));
            let asleep = Arc::new(AtomicUsize::new(0));
            let held = lock.lock().expect("not poisoned");
            let tasks: Vec<_> = (0..SLEEPERS)
                .map(|_| {
                    let (lock, asleep) = (Arc::clone(&lock), Arc::clone(&asleep));
                    runtime.spawn(async move {
                        asleep.fetch_add(1, Ordering::SeqCst);
                        drop(lock.lock());
                    })
                })
                .collect();
            settle::until(|| asleep.load(Ordering::SeqCst) == SLEEPERS);
            drop(held);
            for task in tasks {
                runtime.block_on(task).expect("no panic");
            }
        };
        burst();
        // One of the sleepers had the worker's thread, one thread may be in the poller, and what was needed is
        // known as it was at the last call.
        eventually(|| spare_and_made(&runtime).0 >= SLEEPERS - 4);
        runtime.block_on(time::sleep(Duration::from_millis(100)));
        let (spare, made) = spare_and_made(&runtime);
        assert!(spare >= SLEEPERS - 4, "{spare} are left");
        burst();
        let again = spare_and_made(&runtime).1 - made;
        assert!(again <= 4, "{again} threads were made again");
    });
}

/// Goal: threads that were called for events alone go soon, however long spares are kept. Method: tasks that
/// compute until as many threads are caught, and then end.
#[test]
fn threads_for_events_go_soon() {
    const CAUGHT: usize = 8;
    against_hang(|| {
        let runtime = Runtime::builder()
            .workers(1)
            .reserve_keep_alive(Duration::from_secs(3600))
            .build()
            .expect("a runtime");
        let hogs = Hogs::start(runtime.handle(), 2 * CAUGHT, CAUGHT);
        drop(hogs);
        runtime.block_on(runtime.spawn(async { yield_now().await })).expect("no panic");
        let serving = || runtime.handle().metrics().reserve.map_or(0, |reserve| reserve.serving);
        eventually(|| serving() <= 1 && spare_and_made(&runtime).0 <= 2);
    });
}

/// Goal: no reserve threads are made for polls that are short. Method: a thousand short tasks.
#[test]
fn none_without_need() {
    in_child("growth::none_without_need", || {
        let name = "without-need";
        let runtime = Runtime::builder()
            .workers(2)
            .thread_name(name)
            // So long that a busy machine makes no long poll of a short one.
            .long_poll(Duration::from_secs(1))
            .build()
            .expect("a runtime");
        for _ in 0..1000 {
            runtime.block_on(runtime.spawn(async { yield_now().await })).expect("no panic");
        }
        assert_eq!(threads_named(name), 3);
    });
}

/// Goal: ten thousand tasks that all hog at once are run, and events go on in between. Method: each
/// computes for longer than a long poll; a peer pings until they are done.
#[test]
fn ten_thousand_hogs_at_once() {
    against_hang(|| {
        let runtime = Runtime::builder()
            .workers(2)
            .long_poll(Duration::from_micros(20))
            .build()
            .expect("a runtime");
        let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
        let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
        runtime
            .spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    stream.write_u8(byte).await.expect("open");
                }
            })
            .detach();
        let left = Arc::new(AtomicUsize::new(10_000));
        for _ in 0..10_000 {
            let left = Arc::clone(&left);
            runtime
                .spawn(async move {
                    for _ in 0..2 {
                        let end = monotonic_now() + Duration::from_micros(40);
                        while monotonic_now() < end {}
                        yield_now().await;
                    }
                    left.fetch_sub(1, Ordering::SeqCst);
                })
                .detach();
        }
        while left.load(Ordering::SeqCst) > 0 {
            peer.write_all(&[1]).expect("open");
            peer.read_exact(&mut [0]).expect("echoed");
        }
    });
}

/// Goal: a refused thread is not a failure: events wait, and are served when a worker
/// switches. Method: no memory for the stack of another thread while a task hogs.
#[test]
fn without_threads() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    in_child("growth::without_threads", || {
        let present = getrlimit(Resource::As);
        // On a machine with other work the supervisor may have called a thread before the limit was set.
        let shows_something = (0..50).any(|_| {
            let runtime = Runtime::builder().workers(1).build().expect("a runtime");
            let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
            let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
            let echo = runtime.spawn(async move {
                let byte = stream.read_u8().await.expect("a byte");
                stream.write_u8(byte).await.expect("open");
            });
            let used = std::fs::read_to_string("/proc/self/statm").expect("mounted");
            let pages: u64 = used.split(' ').next().expect("a number").parse().expect("a number");
            let limit =
                Rlimit { current: Some(pages * 4096 + (1 << 20)), maximum: present.maximum };
            setrlimit(Resource::As, limit).expect("lower is allowed");
            let hogs = Hogs::start(runtime.handle(), 1, 1);
            peer.write_all(&[9]).expect("open");
            // Long enough for the supervisor to ask for a thread, many times.
            thread::park_timeout(Duration::from_millis(20));
            let had_no_thread = !echo.is_finished();
            drop(hogs);
            runtime.block_on(echo).expect("no panic");
            setrlimit(Resource::As, present).expect("as before");
            let _hogs = Hogs::start(runtime.handle(), 1, 1);
            runtime.block_on(runtime.spawn(async {})).expect("there are threads again");
            had_no_thread
        });
        assert!(shows_something, "there was a thread each time: this test shows nothing");
    });
}

/// Goal: new tasks do not wait for the end of computations once others of their type have been short, however many one task spawns
/// at once. Method: beside tasks that never yield, one spawns twelve that do nothing. Tasks of which nothing is known have a turn
/// each 2000 quanta, which is longer than the test may take.
#[test]
fn new_tasks_of_a_type_that_is_short() {
    against_hang(|| {
        each_with(|builder| builder.quantum(Duration::from_millis(20)), &mut |runtime| {
            let hogs = Hogs::everywhere(runtime);
            let spawns = runtime.spawn(async {
                let tasks: Vec<_> = (0..12).map(|_| vigie_runtime::spawn(async {})).collect();
                for task in tasks {
                    task.await.expect("it ends");
                }
            });
            runtime.block_on(spawns).expect("it ends");
            drop(hogs);
        });
    });
}
