//! Waits on a model of a machine, whose clock moves by what is done.

use std::{
    sync::atomic::{AtomicU32, Ordering as Order},
    task::{Wake, Waker},
};

use super::*;
use crate::sync::Arc;

#[derive(Default)]
struct Model {
    now: u64,
    look: u64,
    away: u64,
    /// What is done in the present poll: looks, and how often the core was given away.
    looks: u64,
    yields: u64,
}

impl World for Model {
    fn now(&mut self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn wait_a_little(&mut self) {
        self.now += self.look;
        self.looks += 1;
    }

    fn give_away(&mut self) {
        self.now += self.away + self.look;
        self.yields += 1;
    }
}

fn waiter(count: u32, cores: u32) -> Waiter {
    let situation = WaitSituation::new(Peers { count, cores }, Costs::default());
    let waits = Waits::new(&Adaptive::default(), &situation, 8);
    Waiter { waits, stage: None, began: None, server: None }
}

/// Goal: no poll does more than one bounded burst, and gives the core away more than once only if it was back in time. Method: waits
/// that find nothing, polled to their end; the time of each poll by the model's clock, for cores that come back early and late.
#[test]
fn a_poll_is_one_burst() {
    const BOUND: u64 = 20_000;
    for (count, cores) in [(2, 2), (8, 2), (32, 2), (1_000, 2)] {
        for (look, away) in [(40, 250), (400, 1_400), (40, 19_000), (40, 3_000_000)] {
            let mut waiter = waiter(count, cores);
            let mut model = Model { look, away, ..Model::default() };
            loop {
                let begun = model.now;
                (model.looks, model.yields) = (0, 0);
                let turn = waiter.turn(true, || None::<()>, &mut model);
                let took = model.now - begun;
                let text = format!("{count} members, {look}, {away}: {took} ns");
                // How long the core is away the first time, nobody knows before; and looks may be dearer than the rest of the burst.
                let most = BOUND.max(away + look) + 12 * look;
                assert!(took <= most && (model.yields <= 1 || took <= BOUND + 12 * look), "{text}");
                if let Turn::Sleep = turn {
                    break;
                }
                // Others of the executor run.
                model.now += 500;
            }
        }
    }
}

/// Goal: a poll that must be continued has woken its task, and one that is to sleep has not. Method: a waker that counts.
#[test]
fn a_pause_wakes() {
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Order::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let cx = Context::from_waker(&waker);
    let mut waiter = waiter(32, 2);
    let mut model = Model { look: 40, away: 1_400, ..Model::default() };
    let (mut pauses, mut looks) = (0, 0);
    loop {
        let look = || {
            looks += 1;
            None::<()>
        };
        if waiter.poll_in(&cx, look, &mut model).is_ready() {
            break;
        }
        pauses += 1;
        assert_eq!(count.0.load(Order::Relaxed), pauses);
    }
    assert!(pauses > 0 && looks > pauses);
    assert_eq!(count.0.load(Order::Relaxed), pauses);
    // What is there is found by the first look, and nobody is woken.
    waiter.begin();
    assert_eq!(waiter.poll_look(&cx, || Some(7)), Poll::Ready(Some(7)));
    assert_eq!(count.0.load(Order::Relaxed), pauses);
}

/// Goal: bursts that are in vain are left out, but for one now and then, and one that finds something brings them back. Method: count
/// the looks.
#[test]
fn bursts_must_pay() {
    let bursts = Bursts::new(2);
    for _ in 0..20 {
        if bursts.is_hopeful() {
            assert!(!bursts.look(|| false));
        }
    }
    let tried = (0..20 * SKIPS).filter(|_| bursts.is_hopeful() && !bursts.look(|| false)).count();
    assert!((1..=40).contains(&tried), "{tried}");
    while !bursts.is_hopeful() {}
    for _ in 0..4 {
        assert!(bursts.look(|| true));
    }
    assert!((0..4).all(|_| bursts.is_hopeful()));
}
