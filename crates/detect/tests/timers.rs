//! Timers with slack: never early, never later than allowed, and few wake-ups.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Waker},
    time::Duration,
};

use proptest::prelude::*;
use vigie_detect::{
    Detected, Flavor, Handle, Instant, Reactivity, Server, Simulation, Timers, Wait,
};

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

/// When each of the timers fired, in virtual time. Cancelled timers are dropped at their own time.
fn fire(seed: u64, reactivity: Reactivity, timers: &[Timer]) -> Vec<Option<Instant>> {
    let mut simulation = Simulation::with_policy(seed, reactivity);
    let fired = Rc::new(RefCell::new(vec![None; timers.len()]));
    for (index, &timer) in timers.iter().enumerate() {
        let (handle, fired) = (simulation.server().timers().clone(), Rc::clone(&fired));
        drop(simulation.spawn(async move {
            handle.wait(at(timer.begin)).await?;
            let mut wait = pin!(timer.wait(&handle));
            if let Some(given_up) = timer.given_up {
                let mut cx = Context::from_waker(Waker::noop());
                if wait.as_mut().poll(&mut cx).is_pending() {
                    // Dropped by the end of this, unless it fires at the same time.
                    handle.wait(at(given_up)).await?;
                }
                return Ok(());
            }
            wait.await?;
            fired.borrow_mut()[index] = Some(Instant::now());
            Ok::<_, vigie_detect::WaitError>(())
        }));
    }
    simulation.run(Duration::from_secs(10));
    let server = simulation.server();
    assert_eq!(server.timers().pending_count(), 0, "seed {seed}");
    fired.take()
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    /// When the wait begins, by a timer too; and then how long until its deadline, in microseconds.
    begin: u64,
    after: u64,
    slack: Option<u64>,
    given_up: Option<u64>,
}

impl Timer {
    fn wait(self, timers: &Handle<Timers>) -> Wait<Timers, &Handle<Timers>> {
        let wait = timers.wait(at(self.begin + self.after));
        match self.slack {
            Some(slack) => wait.slack(Duration::from_micros(slack)),
            None => wait,
        }
    }
}

fn timers() -> impl Strategy<Value = Vec<Timer>> {
    let slack = prop_oneof![Just(None), Just(Some(0)), (1u64..400).prop_map(Some)];
    let given_up = prop_oneof![3 => Just(None), 1 => (0u64..4000).prop_map(Some)];
    let timer = (0u64..2000, 0u64..2000, slack, given_up);
    let timer =
        timer.prop_map(|(begin, after, slack, given_up)| Timer { begin, after, slack, given_up });
    prop::collection::vec(timer, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Goal: no timer fires early, none later than its slack allows while the host is free, and each one
    /// waited for fires. Method: random timers, some cancelled, with random slack or the server's, against
    /// what their numbers allow. Their start is a timer of the same server, and may be as late.
    #[test]
    fn timers_fire_within_their_slack(
        seed: u64,
        timers in timers(),
        reactivity in prop_oneof![Just(Reactivity::LowCpu), Just(Reactivity::Balanced), Just(Reactivity::LowLatency)],
    ) {
        let default = u64::try_from(reactivity.timer_slack().as_micros()).expect("a short time");
        for (timer, fired) in timers.iter().zip(fire(seed, reactivity, &timers)) {
            let due = timer.begin + timer.after;
            match fired {
                None => prop_assert!(timer.given_up.is_some(), "{timer:?} has not fired"),
                Some(fired) => {
                    let latest = (due + timer.slack.unwrap_or(default)).max(timer.begin + default);
                    prop_assert!(at(due) <= fired && fired <= at(latest), "{timer:?} at {fired:?}");
                }
            }
        }
    }
}

/// Goal: timers close to one another share a wake-up, as many as slack allows, and none are delayed without
/// slack. Method: a hundred timers, ten microseconds apart; the number of distinct times at which they
/// fire.
#[test]
fn wake_ups_are_shared() {
    let wake_ups = |reactivity, slack| {
        let timers: Vec<_> = (1..=100)
            .map(|index| Timer { begin: 0, after: index * 10, slack, given_up: None })
            .collect();
        fire(7, reactivity, &timers).into_iter().collect::<BTreeSet<_>>().len()
    };
    assert_eq!(wake_ups(Reactivity::LowLatency, None), 100);
    assert_eq!(wake_ups(Reactivity::Balanced, Some(0)), 100);
    // Six within 50 µs, both ends included.
    assert_eq!(wake_ups(Reactivity::Balanced, None), 17);
    assert_eq!(wake_ups(Reactivity::LowLatency, Some(50)), 17);
    assert_eq!(wake_ups(Reactivity::LowCpu, None), 1);
}

/// Goal: a lone timer is not delayed, whatever its slack. Method: one after another.
#[test]
fn a_timer_that_is_alone_is_exact() {
    let timers = [100, 5_000, 12_000].map(|after| Timer {
        begin: 0,
        after,
        slack: Some(2_000),
        given_up: None,
    });
    let expected = timers.map(|timer| Some(at(timer.after)));
    assert_eq!(fire(1, Reactivity::Balanced, &timers), expected);
}

/// Goal: a deadline that has passed is ready at the first poll, and leaves nothing behind. Method: now, and
/// the past, in virtual time.
#[test]
fn the_past_is_ready_at_once() {
    let mut simulation = Simulation::new(1);
    simulation.run(Duration::from_millis(1));
    let timers = simulation.server().timers().clone();
    let mut cx = Context::from_waker(Waker::noop());
    for deadline in [at(0), at(1), simulation.now()] {
        assert!(Pin::new(&mut timers.wait(deadline)).poll(&mut cx).is_ready());
    }
    assert_eq!(timers.pending_count(), 0);
    assert!(Pin::new(&mut timers.wait(at(1_001))).poll(&mut cx).is_pending());
}

/// Goal: there is no bound of 2^20 timers. Method: more of them, all waiting, then fired.
#[test]
#[ignore = "takes half a gigabyte and, unoptimised, some ten seconds"]
fn more_than_a_million_timers() {
    let count = (1 << 20) + 10;
    let mut simulation = Simulation::new(1);
    let timers = simulation.server().timers().clone();
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits: Vec<_> = (0..count).map(|index| timers.wait_owned(at(1 + index % 7))).collect();
    for wait in &mut waits {
        assert!(Pin::new(wait).poll(&mut cx).is_pending());
    }
    assert_eq!(timers.pending_count(), waits.len());
    // Each poll reports a limited number; ask for the next one.
    simulation.run(Duration::from_millis(1));
    while timers.pending_count() > 0 {
        simulation.run(Duration::from_micros(1));
    }
    for wait in &mut waits {
        assert!(Pin::new(wait).poll(&mut cx).is_ready());
    }
}

/// Goal: a host woken by a deadline does not notify itself because another deadline is pending, which would
/// cost a write and a useless poll. Method: sleep until the first of two deadlines; then nothing asks for a
/// poll.
#[test]
fn a_deadline_rings_for_nobody() {
    let server = Server::new(Flavor::UserLevel).expect("an epoll");
    let mut driver = server.driver();
    let now = server.now();
    // Not so soon that it has passed before it is waited for.
    let [soon, late] = [Duration::from_millis(100), Duration::from_secs(3600)];
    let mut waits = [soon, late].map(|time| Box::pin(server.timers().wait_owned(now + time)));
    let mut context = Context::from_waker(Waker::noop());
    for wait in &mut waits {
        assert!(wait.as_mut().poll(&mut context).is_pending());
    }
    // What was submitted, and the first poll, may notify.
    while driver.park(None) != Detected::Events(1) {}
    assert!(waits[0].as_mut().poll(&mut context).is_ready());
    assert!(!server.has_announced_events(server.now()));
}
