//! Allocations on the hot paths, counted by the global allocator of this binary.

#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    future::Future,
    io::{Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Notify,
};
use vigie_detect::{
    Server,
    detectors::doorbell::doorbell,
    net::{TcpListener, TcpStream, UnixStream},
};
use vigie_runtime::{Flavor, Runtime, spawn, time, yield_now};

use crate::{flavors::FLAVORS, kit::child::in_child};

struct Counting;

/// Allocations of this process, by whatever thread.
static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: each method hands its arguments to `System` unchanged and returns what that returns; the
// counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duties are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are those of `System::dealloc`, which made `pointer`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duties are those of `System::realloc`, which made `pointer`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rounds of steps that must allocate nothing, after the first, which warms up.
///
/// A worker may allocate once more later, when it has more to do at a time than ever before: the count
/// may not grow with the steps, but need not be zero at the second attempt already.
struct Rounds {
    what: &'static str,
    before: u64,
    counts: Vec<u64>,
}

impl Rounds {
    fn of(what: &'static str) -> Self {
        Self { what, before: COUNT.load(Ordering::Relaxed), counts: Vec::with_capacity(ATTEMPTS) }
    }

    /// Returns whether there is to be another round.
    ///
    /// # Panics
    /// Panics if all rounds have allocated.
    fn go_on(&mut self) -> bool {
        let now = COUNT.load(Ordering::Relaxed);
        let count = now - self.before;
        self.before = now;
        assert!(self.counts.len() < ATTEMPTS, "{}: allocations {:?}", self.what, self.counts);
        // The first call is before the first round, and the second after the one that warms up.
        let is_over = count == 0 && self.counts.len() > 1;
        self.counts.push(count);
        !is_over
    }
}

const ATTEMPTS: usize = 10;

/// Other programs can make any poll long, and new reserve threads would allocate then.
fn runtime(flavor: Flavor) -> Runtime {
    let builder = Runtime::builder().flavor(flavor).workers(2).reserve_threads(0);
    builder.build().expect("a runtime")
}

/// Runs `test` as a task on each flavor, in a process in which no other test allocates.
fn alone_for_each_flavor<F>(name: &str, test: fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    in_child(name, move || {
        for flavor in FLAVORS {
            let runtime = runtime(flavor);
            let task = runtime.spawn(test());
            runtime.block_on(task).unwrap_or_else(|error| panic!("{flavor}: {error}"));
        }
    });
}

/// Goal: the counter counts. Method: one allocation.
#[test]
fn the_allocator_counts() {
    let before = COUNT.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(0_u8)));
    assert!(COUNT.load(Ordering::Relaxed) > before);
}

/// Goal: a task switch allocates nothing. Method: yields, with other tasks that yield too.
#[test]
fn switches() {
    alone_for_each_flavor("allocations::switches", || async {
        let others: Vec<_> = (0..3)
            .map(|_| {
                spawn(async {
                    loop {
                        yield_now().await;
                    }
                })
            })
            .collect();
        let mut rounds = Rounds::of("a switch");
        while rounds.go_on() {
            for _ in 0..10_000 {
                yield_now().await;
            }
        }
        for other in others {
            other.abort();
            other.await.expect_err("aborted");
        }
    });
}

/// Goal: waking another task allocates nothing. Method: two tasks wake each other in turn.
#[test]
fn wakes() {
    alone_for_each_flavor("allocations::wakes", || async {
        let (ping, pong) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (their_ping, their_pong) = (Arc::clone(&ping), Arc::clone(&pong));
        let other = spawn(async move {
            loop {
                their_ping.notified().await;
                their_pong.notify_one();
            }
        });
        let mut rounds = Rounds::of("a wake-up and the answer");
        while rounds.go_on() {
            for _ in 0..10_000 {
                ping.notify_one();
                pong.notified().await;
            }
        }
        other.abort();
        other.await.expect_err("aborted");
    });
}

/// Goal: an echo over a socket allocates nothing. Method: Unix sockets to a thread, TCP between tasks.
#[test]
fn echoes() {
    alone_for_each_flavor("allocations::echoes", || async {
        let (stream, mut peer) = StdUnixStream::pair().expect("a pair of sockets");
        let mut stream = UnixStream::from_std(stream).expect("watched");
        let echo = thread::spawn(move || {
            let mut byte = [0; 1];
            while peer.read_exact(&mut byte).is_ok() {
                peer.write_all(&byte).expect("open");
            }
        });
        let mut rounds = Rounds::of("an echo from a thread");
        while rounds.go_on() {
            for _ in 0..1000 {
                stream.write_u8(1).await.expect("open");
                stream.read_u8().await.expect("open");
            }
        }
        drop(stream);
        echo.join().expect("no panic");

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let echo = spawn(async move {
            let (mut served, _) = listener.accept().await.expect("a client");
            let mut byte = [0; 1];
            while served.read_exact(&mut byte).await.is_ok() {
                served.write_all(&byte).await.expect("open");
            }
        });
        let mut client = TcpStream::connect(address).await.expect("connected");
        let mut rounds = Rounds::of("an echo from a task");
        while rounds.go_on() {
            for _ in 0..1000 {
                client.write_u8(1).await.expect("open");
                client.read_u8().await.expect("open");
            }
        }
        drop(client);
        echo.await.expect("no panic");
    });
}

/// Goal: a timer allocates nothing, whether it ends or is given up. Method: sleeps, time-outs that are
/// not needed, a period.
#[test]
fn timers() {
    alone_for_each_flavor("allocations::timers", || async {
        let short = Duration::from_micros(20);
        let mut rounds = Rounds::of("a sleep");
        while rounds.go_on() {
            for _ in 0..500 {
                time::sleep(short).await;
            }
        }
        let mut rounds = Rounds::of("an unneeded time-out");
        while rounds.go_on() {
            for _ in 0..5000 {
                let hour = Duration::from_secs(3600);
                time::timeout(hour, yield_now()).await.expect("in time");
            }
        }
        let mut ticks = time::interval(short);
        let mut rounds = Rounds::of("a tick");
        while rounds.go_on() {
            for _ in 0..500 {
                ticks.tick().await;
            }
        }
    });
}

/// Goal: waiting on a detector allocates nothing. Method: a doorbell that is pressed by another task.
#[test]
fn waits() {
    alone_for_each_flavor("allocations::waits", || async {
        let server = Server::current().expect("in a runtime");
        let (button, bell) = doorbell(&server).expect("a doorbell");
        let asked = Arc::new(Notify::new());
        let press = Arc::clone(&asked);
        let other = spawn(async move {
            loop {
                press.notified().await;
                button.press();
            }
        });
        let mut rounds = Rounds::of("a wait");
        while rounds.go_on() {
            for _ in 0..5000 {
                asked.notify_one();
                bell.rung().await.expect("it rings");
            }
        }
        other.abort();
        other.await.expect_err("aborted");
    });
}
