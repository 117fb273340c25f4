//! Tasks that yield without end starve nothing: not injected tasks, nor sockets, timers, the main
//! future, or each other. Counted in switches on one thread; for more threads, that all is served.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Fixed, Frequency, Strategy,
    clock::{monotonic_now, thread_cpu_time},
    net::UnixStream,
};
use vigie_runtime::{Flavor, Handle, Runtime, spawn, time, yield_now};

use crate::{flavors::runtime, kit::guard::against_hang, settle};

/// Those that decide whose turn it is; on the kernel-level flavor, the kernel does.
const FLAVORS: [Flavor; 2] = [Flavor::UserLevel, Flavor::Hybrid];

/// Polls the sockets at every switch; one thread; no task is ever judged to be long.
fn single(flavor: Flavor) -> Runtime {
    let every = Frequency::Switches(1);
    Runtime::builder()
        .flavor(flavor)
        .workers(1)
        .reserve_threads(0)
        .quantum(Duration::from_secs(10))
        .reaction_slice(Duration::from_secs(3600))
        .readiness_policy(Fixed(Strategy::Sleep { every }))
        .build()
        .expect("a runtime")
}

/// Computes for longer than is remembered of a task, so that others have used less.
fn use_up_credit() {
    let used = thread_cpu_time();
    while thread_cpu_time().saturating_sub(used) < Duration::from_millis(25) {}
}

/// Tasks that yield until this is dropped.
struct Loops {
    is_over: Arc<AtomicBool>,
    switches: Arc<AtomicUsize>,
    count: usize,
}

impl Loops {
    fn start(handle: &Handle, count: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let switches = Arc::new(AtomicUsize::new(0));
        for _ in 0..count {
            let (is_over, switches) = (Arc::clone(&is_over), Arc::clone(&switches));
            handle
                .spawn(async move {
                    use_up_credit();
                    while !is_over.load(Ordering::SeqCst) {
                        switches.fetch_add(1, Ordering::SeqCst);
                        yield_now().await;
                    }
                })
                .detach();
        }
        Self { is_over, switches, count }
    }

    /// Returns how many turns all of them have had.
    fn switches(&self) -> usize {
        self.switches.load(Ordering::SeqCst)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

fn for_each_flavor(test: fn(&Runtime)) {
    for flavor in FLAVORS {
        against_hang(move || test(&single(flavor)));
    }
}

/// What the threads outside have paid for is back after this time, for the next task's first polls.
const REFILLED: Duration = Duration::from_millis(4);

/// Goal: a task that another thread spawns has its turn before tasks that yield without end. Method: the thread reads the
/// number of switches after it has spawned, the task when it runs. The next one is spawned when there is credit for it:
/// without credit it would go before those that have used more, and the loops have not where other programs keep them from
/// the processor.
#[test]
fn injected_tasks_have_their_turn() {
    for_each_flavor(|runtime| {
        let loops = Loops::start(runtime.handle(), 5);
        thread::scope(|scope| {
            let outside = scope.spawn(|| {
                settle::until(|| loops.switches() > 1_000);
                for _ in 0..100 {
                    let begin = monotonic_now();
                    settle::until(|| monotonic_now() - begin > REFILLED);
                    let switches = Arc::clone(&loops.switches);
                    let (ran, has_run) = std::sync::mpsc::channel();
                    let task = runtime.handle().spawn(async move {
                        ran.send(switches.load(Ordering::SeqCst)).expect("the thread waits");
                    });
                    let spawned_at = loops.switches();
                    let ran_at = has_run.recv().expect("it runs");
                    drop(task);
                    // The one that runs, and one that was taken from its queue before.
                    let bound = spawned_at + 2;
                    assert!(ran_at <= bound, "spawned before {spawned_at}, ran at {ran_at}");
                }
            });
            runtime.block_on(async {
                while !outside.is_finished() {
                    yield_now().await;
                }
            });
        });
    });
}

/// Goal: a task that waits for a socket has its turn within the interval of poll passes, however many
/// tasks yield. Method: a poll pass at every switch; a task writes into the socket itself, and the reader must run
/// within two switches.
#[test]
fn sockets_are_polled() {
    for_each_flavor(|runtime| {
        let loops = Loops::start(runtime.handle(), 5);
        let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
        let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
        let switches = Arc::clone(&loops.switches);
        let reads = Arc::new(AtomicUsize::new(0));
        let count_reads = Arc::clone(&reads);
        runtime
            .spawn(async move {
                loop {
                    stream.read_u8().await.expect("open");
                    count_reads.store(switches.load(Ordering::SeqCst), Ordering::SeqCst);
                }
            })
            .detach();
        let switches = Arc::clone(&loops.switches);
        let enough = 10 * loops.count;
        let writer = runtime.spawn(async move {
            // Until all of them have used up their credit; then the count is not 0, either.
            while switches.load(Ordering::SeqCst) < enough {
                yield_now().await;
            }
            // So often the reader has credit for it.
            for _ in 0..50 {
                peer.write_all(&[1]).expect("there is room");
                let written_at = switches.load(Ordering::SeqCst);
                reads.store(0, Ordering::SeqCst);
                while reads.load(Ordering::SeqCst) == 0 {
                    yield_now().await;
                }
                let read_at = reads.load(Ordering::SeqCst);
                assert!(read_at <= written_at + 2, "written at {written_at}, read at {read_at}");
            }
        });
        runtime.block_on(writer).expect("in time");
    });
}

/// Goal: a timer is served at the first switch after its deadline. Method: at most one task that
/// computes begins a poll between the deadline and the sleeper's turn. The sleeper sleeps for long enough that it has credit
/// again: the loops have not used more where other programs keep them from the processor.
#[test]
fn timers_are_polled() {
    for_each_flavor(|runtime| {
        let late = Arc::new(AtomicUsize::new(0));
        let deadline_ns = Arc::new(std::sync::atomic::AtomicU64::new(u64::MAX));
        let is_over = Arc::new(AtomicBool::new(false));
        let begun = Arc::new(AtomicUsize::new(0));
        for _ in 0..5 {
            let (late, deadline_ns) = (Arc::clone(&late), Arc::clone(&deadline_ns));
            let (is_over, begun) = (Arc::clone(&is_over), Arc::clone(&begun));
            runtime
                .spawn(async move {
                    use_up_credit();
                    begun.fetch_add(1, Ordering::SeqCst);
                    while !is_over.load(Ordering::SeqCst) {
                        if monotonic_now().as_nanos() >= deadline_ns.load(Ordering::SeqCst) {
                            late.fetch_add(1, Ordering::SeqCst);
                        }
                        yield_now().await;
                    }
                })
                .detach();
        }
        let sleeper = runtime.spawn(async move {
            while begun.load(Ordering::SeqCst) < 5 {
                yield_now().await;
            }
            for _ in 0..50 {
                let deadline = monotonic_now() + REFILLED;
                let sleep = time::sleep_until(deadline);
                deadline_ns.store(deadline.as_nanos(), Ordering::SeqCst);
                sleep.await;
                deadline_ns.store(u64::MAX, Ordering::SeqCst);
                let late = late.swap(0, Ordering::SeqCst);
                assert!(late <= 1, "{late} polls began after the deadline");
            }
            is_over.store(true, Ordering::SeqCst);
        });
        runtime.block_on(sleeper).expect("in time");
    });
}

/// Goal: the main future neither starves tasks nor is starved by them. Method: both yield for as long
/// as the other has not had its turns.
#[test]
fn the_main_future_takes_turns() {
    for flavor in FLAVORS {
        for runtime in [single, runtime] {
            against_hang(move || {
                let runtime = runtime(flavor);
                let loops = Loops::start(runtime.handle(), 3);
                let turns = Arc::new(AtomicUsize::new(0));
                let counted = Arc::clone(&turns);
                let task = runtime.spawn(async move {
                    while counted.load(Ordering::SeqCst) < 1000 {
                        yield_now().await;
                    }
                });
                runtime.block_on(async {
                    while loops.switches() < 1000 || !task.is_finished() {
                        turns.fetch_add(1, Ordering::SeqCst);
                        yield_now().await;
                    }
                });
            });
        }
    }
}

/// Goal: with the defaults, on every flavor and with several workers, all is served while more tasks
/// than workers yield without end. Method: a thread echoes over a socket and spawns, tasks sleep and
/// wait for closures, a hundred times each.
#[test]
fn all_is_served_meanwhile() {
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = runtime(flavor);
            let _loops = Loops::start(runtime.handle(), 5);
            let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
            let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
            let echo = runtime.spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    stream.write_u8(byte).await.expect("open");
                }
            });
            let handle = runtime.handle().clone();
            let outside = thread::spawn(move || {
                for n in 0..100 {
                    let mut byte = [n];
                    peer.write_all(&byte).expect("open");
                    peer.read_exact(&mut byte).expect("the echo");
                    assert_eq!(byte, [n]);
                    let (ran, has_run) = std::sync::mpsc::channel();
                    handle.spawn(async move { ran.send(n).expect("the thread waits") }).detach();
                    assert_eq!(has_run.recv().expect("it runs"), n);
                }
            });
            runtime.block_on(async {
                for n in 0..100 {
                    time::sleep(Duration::from_micros(20)).await;
                    let closure = vigie_runtime::spawn_blocking(move || n);
                    assert_eq!(closure.await.expect("no panic"), n);
                    assert_eq!(spawn(async move { n }).await.expect("no panic"), n);
                }
                echo.await.expect("no panic");
            });
            outside.join().expect("all was served");
        });
    }
}
