//! The hot paths allocate nothing once they are warm.
//!
//! Method: a global allocator that counts by thread. Each path runs a few times to warm up, then many
//! times while it counts.

#![expect(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    future::Future,
    io::Write,
    os::{fd::AsFd, unix::net::UnixStream},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use vigie_detect::{
    AsyncFd, Detected, Driver, Flavor, Instant, Server, Simulation,
    detectors::{channel::channel, doorbell::doorbell, readiness::Direction},
};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no thread-locals left and is not counted.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is the system allocator's, which keeps the contract; counting touches a
// thread-local cell without a destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's duties are passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are passed on unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's duties are passed on unchanged.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `path` until it is warm, then counts what it allocates in a thousand runs.
fn allocations(mut path: impl FnMut()) -> u64 {
    for _ in 0..300 {
        path();
    }
    let before = COUNT.get();
    for _ in 0..1000 {
        path();
    }
    COUNT.get() - before
}

struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

/// A server, its host, and a waker that lives outside the counted path.
struct Stage {
    server: Server,
    driver: Driver,
    waker: Waker,
}

impl Stage {
    fn new() -> Self {
        let server = Server::new(Flavor::UserLevel).expect("an epoll");
        Self { driver: server.driver(), server, waker: Waker::from(Arc::new(Nothing)) }
    }

    fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        std::pin::Pin::new(future).poll(&mut Context::from_waker(&self.waker))
    }
}

#[test]
fn the_count_counts() {
    assert!(allocations(|| drop(Box::new(1))) >= 1000);
}

#[test]
fn a_pass_without_events_allocates_nothing() {
    let mut stage = Stage::new();
    let (_button, _doorbell) = doorbell(&stage.server).expect("a doorbell");
    let count = allocations(|| {
        assert_eq!(stage.driver.detect(), Detected::Nothing);
        stage.driver.is_due(stage.server.now());
    });
    assert_eq!(count, 0);
}

#[test]
fn a_wait_for_an_event_that_is_there_allocates_nothing() {
    let mut stage = Stage::new();
    let (button, doorbell) = doorbell(&stage.server).expect("a doorbell");
    let count = allocations(|| {
        button.press();
        let mut wait = doorbell.rung();
        assert!(matches!(stage.poll(&mut wait), Poll::Ready(Ok(()))));
        drop(wait);
        stage.driver.detect();
    });
    assert_eq!(count, 0);
}

#[test]
fn a_wait_allocates_nothing() {
    let mut stage = Stage::new();
    let (button, doorbell) = doorbell(&stage.server).expect("a doorbell");
    let count = allocations(|| {
        let mut first = doorbell.rung();
        let mut second = doorbell.rung();
        assert!(stage.poll(&mut first).is_pending());
        assert!(stage.poll(&mut second).is_pending());
        button.press();
        button.press();
        assert_eq!(stage.driver.detect(), Detected::Events(2));
        assert!(matches!(stage.poll(&mut second), Poll::Ready(Ok(()))));
        assert!(matches!(stage.poll(&mut first), Poll::Ready(Ok(()))));
    });
    assert_eq!(count, 0);
}

#[test]
fn a_cancelled_wait_allocates_nothing() {
    let mut stage = Stage::new();
    let (button, doorbell) = doorbell(&stage.server).expect("a doorbell");
    let count = allocations(|| {
        let mut early = doorbell.rung();
        let mut late = doorbell.rung();
        assert!(stage.poll(&mut early).is_pending());
        assert!(stage.poll(&mut late).is_pending());
        drop(early);
        button.press();
        stage.driver.detect();
        // Its event was reported; it is given back, and taken by the next wait.
        drop(late);
        let mut next = doorbell.rung();
        assert!(matches!(stage.poll(&mut next), Poll::Ready(Ok(()))));
        drop(next);
        stage.driver.detect();
    });
    assert_eq!(count, 0);
}

#[test]
fn an_event_of_a_stream_allocates_nothing() {
    let mut stage = Stage::new();
    let (sender, receiver) = channel(&stage.server, 64).expect("a channel");
    let stream = receiver.stream(()).expect("a stream");
    let cx = Context::from_waker(&stage.waker);
    let count = allocations(|| {
        for value in 0..5 {
            sender.try_send(value).expect("room");
        }
        stage.driver.detect();
        for expected in 0..5 {
            let Poll::Ready(Some(Ok(Some(value)))) = stream.poll_event(&cx) else {
                panic!("an event is missing")
            };
            assert_eq!(value, expected);
        }
        assert!(stream.poll_event(&cx).is_pending());
    });
    assert_eq!(count, 0);
}

#[test]
fn a_wait_for_a_timer_allocates_nothing() {
    let mut stage = Stage::new();
    let timers = stage.server.timers().clone();
    let count = allocations(|| {
        let mut short = timers.wait(stage.server.now() + Duration::from_nanos(1));
        let mut long = timers.wait(stage.server.now() + Duration::from_secs(3600));
        assert!(stage.poll(&mut long).is_pending());
        while stage.poll(&mut short).is_pending() {
            stage.driver.detect();
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn a_sleep_allocates_nothing() {
    let mut stage = Stage::new();
    let (button, doorbell) = doorbell(&stage.server).expect("a doorbell");
    let timers = stage.server.timers().clone();
    let count = allocations(|| {
        let mut timer = timers.wait(stage.server.now() + Duration::from_micros(20));
        let mut ring = doorbell.rung();
        assert!(stage.poll(&mut ring).is_pending());
        while stage.poll(&mut timer).is_pending() {
            stage.driver.park(None);
        }
        button.press();
        stage.driver.park(None);
        assert!(matches!(stage.poll(&mut ring), Poll::Ready(Ok(()))));
    });
    assert_eq!(count, 0);
}

#[test]
fn readiness_allocates_nothing() {
    let mut stage = Stage::new();
    let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
    near.set_nonblocking(true).expect("non-blocking mode");
    let near = AsyncFd::new_on(&stage.server, near).expect("a watched descriptor");
    let read = |near: &UnixStream| {
        let mut byte = [0];
        rustix::io::read(near.as_fd(), &mut byte).map_err(std::io::Error::from)
    };
    let count = allocations(|| {
        // By its reusable slot, and by a wait.
        let cx = Context::from_waker(&stage.waker);
        assert!(near.poll_io(Direction::Read, &cx, read).is_pending());
        far.write_all(&[1]).expect("room for a byte");
        assert!(matches!(stage.driver.detect(), Detected::Events(_)));
        assert!(matches!(near.poll_io(Direction::Read, &cx, read), Poll::Ready(Ok(1))));

        let mut waiting = pin!(near.async_io(Direction::Read, read));
        let mut cx = Context::from_waker(&stage.waker);
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        far.write_all(&[2]).expect("room for a byte");
        assert!(matches!(stage.driver.detect(), Detected::Events(_)));
        assert!(matches!(waiting.as_mut().poll(&mut cx), Poll::Ready(Ok(1))));
    });
    assert_eq!(count, 0);
}

/// Goal: the same for several waits at once; and the first one beside a poll-style one never needs memory. Method: count
/// the first use of a descriptor, and later ones with more waits.
#[test]
fn waits_beside_each_other_allocate_nothing() {
    let mut stage = Stage::new();
    let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
    near.set_nonblocking(true).expect("non-blocking mode");
    let near = AsyncFd::new_on(&stage.server, near).expect("a watched descriptor");
    let read = |near: &UnixStream| {
        let mut byte = [0];
        rustix::io::read(near.as_fd(), &mut byte).map_err(std::io::Error::from)
    };
    let waker = stage.waker.clone();
    let mut cx = Context::from_waker(&waker);
    let before = COUNT.get();
    {
        let mut first = pin!(near.async_io(Direction::Read, read));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(near.poll_io(Direction::Read, &cx, read).is_pending());
    }
    assert_eq!(COUNT.get() - before, 0);
    let count = allocations(|| {
        let mut first = pin!(near.async_io(Direction::Read, read));
        let mut second = pin!(near.async_io(Direction::Read, read));
        {
            let mut dropped = pin!(near.async_io(Direction::Read, read));
            for waiting in [first.as_mut(), dropped.as_mut(), second.as_mut()] {
                assert!(waiting.poll(&mut cx).is_pending());
            }
        }
        far.write_all(&[1, 2]).expect("room for two bytes");
        assert!(matches!(stage.driver.detect(), Detected::Events(_)));
        for waiting in [first.as_mut(), second.as_mut()] {
            assert!(matches!(waiting.poll(&mut cx), Poll::Ready(Ok(1))));
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn a_wait_in_virtual_time_allocates_nothing() {
    let mut simulation = Simulation::new(1);
    let timers = simulation.server().timers().clone();
    let count = simulation.block_on(async {
        for _ in 0..300 {
            timers.wait(Instant::now() + Duration::from_millis(1)).await?;
        }
        let before = COUNT.get();
        for _ in 0..1000 {
            timers.wait(Instant::now() + Duration::from_millis(1)).await?;
        }
        Ok::<_, vigie_detect::WaitError>(COUNT.get() - before)
    });
    assert_eq!(count.expect("timers come").expect("timers do not fail"), 0);
}
