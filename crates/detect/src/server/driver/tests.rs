//! The result of a poll pass, and the length of a host's sleep: by hand, in virtual time.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Waker},
    time::Duration,
};

use super::*;
use crate::{
    Clock, Flavor, Server, VirtualClock,
    server::handle_inner::{BURST_POLLS, REST_AFTER, REST_OF_FLOOD},
};

/// Goal: a cancelled deadline does not end a sleep, and a remaining one does. Method: in virtual time, a host
/// with two timers prepares for a sleep after the earlier one was cancelled, and again after the other was.
#[test]
fn a_deadline_that_is_over_ends_no_sleep() {
    let server = Server::new_virtual(Flavor::UserLevel, Arc::new(VirtualClock::new()))
        .expect("a virtual server");
    let (mut driver, timers) = (server.driver(), server.timers());
    let at = |millis| Instant::from_nanos(0) + Duration::from_millis(millis);
    let mut cx = Context::from_waker(Waker::noop());
    let mut sleep = || {
        // The first sleep may be ended early by new handles.
        let _ = driver.detect();
        driver.prepare().expect("nothing has come")
    };
    {
        let mut late = pin!(timers.wait(at(9)));
        assert!(late.as_mut().poll(&mut cx).is_pending());
        {
            let mut early = pin!(timers.wait(at(2)));
            assert!(early.as_mut().poll(&mut cx).is_pending());
            assert_eq!(sleep(), Some(at(2)));
        }
        assert_eq!(sleep(), Some(at(9)));
        let mut again = pin!(timers.wait(at(5)));
        assert!(again.as_mut().poll(&mut cx).is_pending());
        assert_eq!(sleep(), Some(at(5)), "it is lowered again");
    }
    assert_eq!(sleep(), None);
}

/// Goal: a host that runs tasks does not poll for what a sleeping host was woken for, or will be. Method: a second host that sleeps, in
/// virtual time: a notification; a deadline at which the timer ends the sleep, and one that it misses.
#[test]
fn what_ends_a_sleep_is_left_to_the_sleeper() {
    let server = Server::new_virtual(Flavor::UserLevel, Arc::new(VirtualClock::new()))
        .expect("a virtual server");
    let mut driver = server.driver();
    let shared = Arc::clone(&driver.shared);
    let at = Instant::from_nanos;
    let _ = driver.detect();
    assert!(!driver.is_due(at(0)));
    shared.unpark();
    assert!(driver.is_due(at(0)), "no host was woken for it");
    let _ = driver.detect();

    let sleep = || {
        let _ = shared.park_state.begin_park();
    };
    sleep();
    shared.unpark();
    assert!(!driver.is_due(at(0)));
    shared.park_state.end_park();
    assert!(driver.is_due(at(0)), "the host that was woken has not polled yet");
    let _ = driver.detect();

    sleep();
    shared.next_deadline.store(100, Ordering::Relaxed);
    for (armed, is_due) in [(99, false), (100, false), (101, true), (u64::MAX, true)] {
        shared.armed.store(armed, Ordering::Relaxed);
        assert!(!driver.is_due(at(99)));
        assert_eq!(driver.is_due(at(100)), is_due, "{armed}");
    }
    shared.park_state.end_park();
    shared.armed.store(0, Ordering::Relaxed);
    assert!(driver.is_due(at(100)));
}

/// Goal: of many timers due at once, a poll pass fires some, the tasks that it woke run before the next pass, and a host
/// without tasks does not wait for it. Method: a thousand timers in virtual time; how many have fired after each
/// pass, and when the next one is due.
#[test]
fn timers_fire_a_few_at_a_time() {
    let (clock, due) = (Arc::new(VirtualClock::new()), Duration::from_millis(1));
    let server = Server::new_virtual(Flavor::UserLevel, Arc::clone(&clock) as Arc<_>)
        .expect("a virtual server");
    let (mut driver, timers) = (server.driver(), server.timers());
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits: Vec<_> = (0..1_000).map(|_| timers.wait(Instant::from_nanos(0) + due)).collect();
    assert!(waits.iter_mut().all(|wait| Pin::new(wait).poll(&mut cx).is_pending()));
    let _ = driver.detect();
    clock.advance(due + REST_AFTER);
    let mut left = timers.pending_count();
    let mut fire = |driver: &mut Driver| {
        let _ = driver.detect();
        let before = mem::replace(&mut left, timers.pending_count());
        before - left
    };
    let few = fire(&mut driver);
    assert!((1..=100).contains(&few), "{few}");
    for _ in 0..3 {
        assert!(!driver.is_due(clock.now()), "those that have fired go first");
        assert_eq!(driver.prepare(), Ok(Some(clock.now())), "no host sleeps meanwhile");
        clock.advance(REST_AFTER);
        assert!(driver.is_due(clock.now()));
        assert_eq!(fire(&mut driver), few);
    }
    while few == fire(&mut driver) {}
    assert_eq!(timers.pending_count(), 0);
    assert_eq!(driver.prepare(), Ok(None));
}

/// Goal: if timers fall due faster than they can be handled, even a host without tasks leaves the processor to others between full
/// polls; a poll that is not full ends that. Method: timers that are set repeatedly in virtual time, then fewer.
#[test]
fn a_flood_of_timers_leaves_time() {
    const TICK: Duration = Duration::from_nanos(1);
    let clock = Arc::new(VirtualClock::new());
    let server = Server::new_virtual(Flavor::UserLevel, Arc::clone(&clock) as Arc<_>)
        .expect("a virtual server");
    let (mut driver, timers) = (server.driver(), server.timers());
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits = Vec::new();
    let mut set = |count: usize| {
        let from = waits.len();
        waits.extend((0..count).map(|_| timers.wait(clock.now() + TICK)));
        assert!(waits[from..].iter_mut().all(|wait| Pin::new(wait).poll(&mut cx).is_pending()));
        clock.advance(TICK);
    };
    for round in 1..=2 * BURST_POLLS {
        set(100);
        let _ = driver.detect();
        let now = clock.now();
        let is_flood = round > BURST_POLLS;
        let rest = if is_flood { REST_OF_FLOOD } else { Duration::ZERO };
        assert_eq!(driver.prepare(), Ok(Some(now + rest)), "{round}");
        assert!(!driver.is_due(now));
        clock.advance(if is_flood { REST_OF_FLOOD } else { REST_AFTER });
        assert!(driver.is_due(clock.now()), "{round}");
    }
    while timers.pending_count() > 0 {
        let _ = driver.detect();
        clock.advance(REST_OF_FLOOD);
    }
    set(70);
    let _ = driver.detect();
    assert_eq!(driver.prepare(), Ok(Some(clock.now())), "a burst again");
}

/// Goal: a host that wants to sleep waits for another one that holds the driver's lock, also if that has no core for a while: else both might
/// sleep elsewhere. Method: the lock is held for as long as many attempts take, while no host sleeps.
#[test]
fn a_lock_that_is_held_for_long_is_waited_for() {
    let server = Server::new(Flavor::Hybrid).expect("a server");
    let (mut driver, until) = (server.driver(), server.now());
    let shared = Arc::clone(&driver.shared);
    let held = lock(&shared.driver);
    let (begun, begins) = std::sync::mpsc::channel();
    let host = std::thread::spawn(move || {
        begun.send(()).expect("the test waits");
        driver.park(Some(until))
    });
    begins.recv().expect("it begins");
    for _ in 0..10_000 {
        std::thread::yield_now();
    }
    assert!(!host.is_finished());
    drop(held);
    assert_ne!(host.join().expect("no panic"), Detected::Busy);
}
