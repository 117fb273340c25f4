//! What a look brings, and how long a host may sleep: by hand, in virtual time.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Waker},
    time::Duration,
};

use super::*;
use crate::{
    Clock, Flavor, Server, VirtualClock,
    server::inner::{BURST_ROUNDS, REST_AFTER, REST_OF_FLOOD},
};

/// Goal: what is over ends no sleep, and what is left does. Method: in virtual time, a host with two timers makes
/// ready for a sleep, after the earlier one was given up, and then the other one too.
#[test]
fn a_deadline_that_is_over_ends_no_sleep() {
    let server = Server::new_virtual(Flavor::UserLevel, Arc::new(VirtualClock::new()))
        .expect("a virtual server");
    let (mut lookout, timers) = (server.lookout(), server.timers());
    let at = |millis| Instant::from_nanos(0) + Duration::from_millis(millis);
    let mut cx = Context::from_waker(Waker::noop());
    let mut sleep = || {
        // The first one of all may be ended by handles that are new.
        let _ = lookout.detect();
        lookout.prepare().expect("nothing has come")
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

/// Goal: of many timers that are due at once, a look fires some, the tasks that it has woken run before the next one,
/// and a host without tasks does not wait for it. Method: a thousand timers in virtual time; how many have fired
/// after each look, and when the next one is due.
#[test]
fn timers_fire_a_few_at_a_time() {
    let (clock, due) = (Arc::new(VirtualClock::new()), Duration::from_millis(1));
    let server = Server::new_virtual(Flavor::UserLevel, Arc::clone(&clock) as Arc<_>)
        .expect("a virtual server");
    let (mut lookout, timers) = (server.lookout(), server.timers());
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits: Vec<_> = (0..1_000).map(|_| timers.wait(Instant::from_nanos(0) + due)).collect();
    assert!(waits.iter_mut().all(|wait| Pin::new(wait).poll(&mut cx).is_pending()));
    let _ = lookout.detect();
    clock.advance(due + REST_AFTER);
    let mut left = timers.pending_count();
    let mut fire = |lookout: &mut Lookout| {
        let _ = lookout.detect();
        let before = mem::replace(&mut left, timers.pending_count());
        before - left
    };
    let few = fire(&mut lookout);
    assert!((1..=100).contains(&few), "{few}");
    for _ in 0..3 {
        assert!(!lookout.is_due(clock.now()), "those that have fired go first");
        assert_eq!(lookout.prepare(), Ok(Some(clock.now())), "nobody sleeps meanwhile");
        clock.advance(REST_AFTER);
        assert!(lookout.is_due(clock.now()));
        assert_eq!(fire(&mut lookout), few);
    }
    while few == fire(&mut lookout) {}
    assert_eq!(timers.pending_count(), 0);
    assert_eq!(lookout.prepare(), Ok(None));
}

/// Goal: where timers fall due faster than they are seen to, also a host without tasks leaves the processor to others between full
/// rounds; with a round that is not full, that is over. Method: timers that are set again and again in virtual time, then fewer.
#[test]
fn a_flood_of_timers_leaves_time() {
    const TICK: Duration = Duration::from_nanos(1);
    let clock = Arc::new(VirtualClock::new());
    let server = Server::new_virtual(Flavor::UserLevel, Arc::clone(&clock) as Arc<_>)
        .expect("a virtual server");
    let (mut lookout, timers) = (server.lookout(), server.timers());
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits = Vec::new();
    let mut set = |count: usize| {
        let from = waits.len();
        waits.extend((0..count).map(|_| timers.wait(clock.now() + TICK)));
        assert!(waits[from..].iter_mut().all(|wait| Pin::new(wait).poll(&mut cx).is_pending()));
        clock.advance(TICK);
    };
    for round in 1..=2 * BURST_ROUNDS {
        set(100);
        let _ = lookout.detect();
        let now = clock.now();
        let is_flood = round > BURST_ROUNDS;
        let rest = if is_flood { REST_OF_FLOOD } else { Duration::ZERO };
        assert_eq!(lookout.prepare(), Ok(Some(now + rest)), "{round}");
        assert!(!lookout.is_due(now));
        clock.advance(if is_flood { REST_OF_FLOOD } else { REST_AFTER });
        assert!(lookout.is_due(clock.now()), "{round}");
    }
    while timers.pending_count() > 0 {
        let _ = lookout.detect();
        clock.advance(REST_OF_FLOOD);
    }
    set(70);
    let _ = lookout.detect();
    assert_eq!(lookout.prepare(), Ok(Some(clock.now())), "a burst again");
}
