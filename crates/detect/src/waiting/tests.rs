//! Waits on a model of a machine, whose clock moves with its operations.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, Ordering as Order},
    task::{Wake, Waker},
};

use super::*;
use crate::{sync::Arc, testing::Simulation};

#[derive(Default)]
struct Model {
    now: u64,
    poll: u64,
    away: u64,
    /// The work of the present burst: polls, and how many times the core was yielded.
    polls: u64,
    yields: u64,
}

impl SpinBackend for Model {
    fn now(&mut self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn spin_once(&mut self) {
        self.now += self.poll;
        self.polls += 1;
    }

    fn yield_core(&mut self) {
        self.now += self.away + self.poll;
        self.yields += 1;
    }
}

fn waiter(count: u32, cores: u32) -> Waiter {
    let situation = WaitSituation::new(Peers { count, cores }, Costs::default());
    let waits = WaitHistory::new(&Adaptive::default(), &situation, 8);
    Waiter { learner: OwnLearner { waits, server: None }, attempt: Attempt::default() }
}

/// Goal: no poll of a task does more than one bounded burst, and it yields the core more than once only if the core was back in time. Method:
/// waits that find nothing, polled to their end; the time of each poll by the model's clock, for cores that come back early and
/// late.
#[test]
fn a_poll_is_one_burst() {
    const BOUND: u64 = 20_000;
    for (count, cores) in [(2, 2), (8, 2), (32, 2), (1_000, 2)] {
        for (poll, away) in [(40, 250), (400, 1_400), (40, 19_000), (40, 3_000_000)] {
            let mut waiter = waiter(count, cores);
            let mut model = Model { poll, away, ..Model::default() };
            loop {
                let begun = model.now;
                (model.polls, model.yields) = (0, 0);
                let outcome = waiter.run_burst(true, &mut || Probe::<()>::Pending, &mut model);
                let took = model.now - begun;
                let text = format!("{count} members, {poll}, {away}: {took} ns");
                // The first absence of the core cannot be predicted; and polls may take longer than the rest of the burst.
                let most = BOUND.max(away + poll) + 12 * poll;
                assert!(took <= most && (model.yields <= 1 || took <= BOUND + 12 * poll), "{text}");
                if let SpinOutcome::Sleep = outcome {
                    break;
                }
                // Other tasks of the executor run.
                model.now += 500;
            }
        }
    }
}

/// Goal: a burst that must be continued has woken its task, and one that is to sleep has not. Method: a waker that counts.
#[test]
fn a_pause_wakes() {
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let cx = Context::from_waker(&waker);
    let mut waiter = waiter(32, 2);
    let mut model = Model { poll: 40, away: 1_400, ..Model::default() };
    let (mut pauses, mut polls) = (0, 0);
    loop {
        let mut poll = || {
            polls += 1;
            Probe::<()>::Pending
        };
        if waiter.run_burst(true, &mut poll, &mut model).into_poll(&cx).is_ready() {
            break;
        }
        pauses += 1;
        assert_eq!(count.0.load(Order::Relaxed), pauses);
    }
    assert!(pauses > 0 && polls > pauses);
    assert_eq!(count.0.load(Order::Relaxed), pauses);
    // The first poll finds what is there, and no task is woken.
    waiter.begin();
    assert_eq!(waiter.poll_spin(&cx, || Some(7)), Poll::Ready(Some(7)));
    assert_eq!(count.0.load(Order::Relaxed), pauses);
}

/// Goal: bursts that find nothing are skipped, except for one now and then, and one that finds something brings them back. Method:
/// count the polls, at costs of two cores: on one core no burst is made.
#[test]
fn bursts_must_pay() {
    let spin_costs = SpinCosts { spin: Duration::from_micros(5), sleep: Duration::from_micros(20) };
    let balance = SpinBalance::optimistic(&spin_costs).balance().cast_unsigned();
    let bursts = Bursts { spin_costs, balance: AtomicU64::new(balance) };
    for _ in 0..20 {
        if bursts.spinning_pays() {
            assert!(!bursts.spin(|| false));
        }
    }
    let tried =
        (0..20 * SKIPS).filter(|_| bursts.spinning_pays() && !bursts.spin(|| false)).count();
    assert!((1..=40).contains(&tried), "{tried}");
    while !bursts.spinning_pays() {}
    for _ in 0..4 {
        assert!(bursts.spin(|| true));
    }
    assert!((0..4).all(|_| bursts.spinning_pays()));
}

/// One of several waiters in virtual time, with no other demand for the core.
fn shared(simulation: &Simulation, count: u32) -> SharedWaiter {
    SharedWaiter::among(simulation.server(), Peers { count, cores: 2 }, 8)
}

/// One burst of one of several waiters, which finds nothing. Returns how many times it polled, and whether it
/// is to sleep.
fn vain_burst(wait: &mut SharedWait<'_>, model: &mut Model) -> (u32, bool) {
    let mut polls = 0;
    let mut poll = || {
        polls += 1;
        Probe::<()>::Pending
    };
    let outcome = wait.run_burst(&mut poll, model);
    (polls, matches!(outcome, SpinOutcome::Sleep))
}

/// Goal: of several waiters at one place one spins, the others poll once and sleep; when that one has found something or is dropped,
/// the next one spins. Method: count the polls, for pairs and crowds.
#[test]
fn one_of_several_tries() {
    let simulation = Simulation::new(1);
    for count in [2, 32] {
        let shared = shared(&simulation, count);
        let mut model = Model { poll: 40, away: 19_000, ..Model::default() };
        let (mut first, mut second) = (shared.wait(), shared.wait());
        let (polls, sleeps) = vain_burst(&mut first, &mut model);
        assert!(polls > 1 && !sleeps, "{count}: {polls}");
        assert_eq!(vain_burst(&mut second, &mut model), (1, true), "{count}");
        drop(first);
        let mut third = shared.wait();
        assert!(!vain_burst(&mut third, &mut model).1, "{count}");
        assert_eq!(vain_burst(&mut shared.wait(), &mut model), (1, true));
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(third.poll_spin(&cx, || Probe::Ready(7)), Poll::Ready(Some(7)));
        assert!(!vain_burst(&mut shared.wait(), &mut model).1, "{count}");
    }
}

/// Goal: a wait that succeeds in its first step needs no clock. Method: a model without one, and waits that succeed at any poll of
/// that step.
#[test]
fn the_first_polls_need_no_clock() {
    struct Timeless;
    impl SpinBackend for Timeless {
        fn now(&mut self) -> Instant {
            panic!("the clock is read");
        }
        fn spin_once(&mut self) {}
        fn yield_core(&mut self) {
            panic!("the core is given away");
        }
    }
    let simulation = Simulation::new(1);
    let shared = shared(&simulation, 2);
    for found_at in 1..=9 {
        let mut polls = 0;
        let mut poll = || {
            polls += 1;
            Probe::from((polls == found_at).then_some(()))
        };
        let outcome = shared.wait().run_burst(&mut poll, &mut Timeless);
        assert!(matches!(outcome, SpinOutcome::Ready(())), "{found_at}");
    }
}

/// Goal: while something moves now and then, a wait continues, in bursts of bounded length; then it sleeps. Method: polls, one in
/// several of which moves something that takes 1 µs, even if recent waits had better slept at once.
#[test]
fn what_moves_is_waited_for() {
    const BOUND: u64 = 20_000;
    let simulation = Simulation::new(1);
    for (count, spinning_pays, every) in
        [(2, true, 1), (2, true, 7), (32, true, 1), (32, true, 7), (2, false, 1), (32, false, 1)]
    {
        let shared = shared(&simulation, count);
        if !spinning_pays {
            far_waits(&shared, 10);
        }
        let clock = Cell::new(0);
        let mut model = Timed(&clock);
        let (mut wait, mut polls, mut bursts) = (shared.wait(), 0_u64, 0);
        loop {
            let begun = clock.get();
            let mut poll = || {
                polls += 1;
                if polls < 10_000 && polls.is_multiple_of(every) {
                    clock.set(clock.get() + 1_000);
                    return Probe::<()>::Progress;
                }
                Probe::Pending
            };
            let outcome = wait.run_burst(&mut poll, &mut model);
            let took = clock.get() - begun;
            // One more step, and the progress in it.
            assert!(took <= BOUND + 8_000, "{count}, {spinning_pays}, {every}: {took} ns");
            bursts += 1;
            match outcome {
                SpinOutcome::Ready(()) => unreachable!("nothing is found"),
                SpinOutcome::Paused => {}
                SpinOutcome::Sleep => break,
            }
        }
        assert!((10_000..20_000).contains(&polls), "{count}, {spinning_pays}, {every}: {polls}");
        assert!(bursts > 10, "{count}, {spinning_pays}, {every}: {bursts}");
    }
}

/// A clock that polls advance too.
struct Timed<'a>(&'a Cell<u64>);

impl SpinBackend for Timed<'_> {
    fn now(&mut self) -> Instant {
        Instant::from_nanos(self.0.get())
    }

    fn spin_once(&mut self) {
        self.0.set(self.0.get() + 40);
    }

    fn yield_core(&mut self) {
        self.0.set(self.0.get() + 1_400);
    }
}

/// Waits `count` times for 0.1 s each. Returns the number of polls.
fn far_waits(shared: &SharedWaiter, count: u32) -> u32 {
    (0..count).map(|_| slept_wait(shared, 100_000_000)).sum()
}

/// A wait that finds nothing and sleeps for `nanos`. Returns the number of polls.
fn slept_wait(shared: &SharedWaiter, nanos: u64) -> u32 {
    let mut model = Model { now: 1, poll: 40, away: 250, ..Model::default() };
    let (mut wait, mut polls) = (shared.wait(), 0);
    loop {
        let (more, sleeps) = vain_burst(&mut wait, &mut model);
        polls += more;
        if sleeps {
            wait.attempt.slept(&mut { shared }, Instant::from_nanos(model.now + nanos));
            return polls;
        }
    }
}

/// Goal: several waiters share what one has learnt: waits that are far apart sleep at once, and the first near ones make all spin again.
/// Method: runs of both, each wait by a different waiter.
#[test]
fn several_learn_together() {
    let simulation = Simulation::new(1);
    for count in [2, 8, 32] {
        let shared = shared(&simulation, count);
        far_waits(&shared, 10);
        assert_eq!(far_waits(&shared, 10), 10, "{count}: one poll each");
        let sleeps = (0..20).take_while(|_| slept_wait(&shared, 1_000) == 1).count();
        assert!(sleeps <= 5, "{count}: {sleeps} near waits are slept through");
        // In a pair, a lost spin is not repeated at once.
        assert!(count == 2 || slept_wait(&shared, 1_000) > 1, "{count}");
        // Longer than all sleeps one after the other: no try could have shortened it.
        let polls: Vec<_> = (0..20).map(|_| slept_wait(&shared, 10_000_000)).collect();
        assert_eq!(polls.last(), Some(&1), "{count}");
    }
}

/// Goal: at a pair's endpoint, waits that sleep at once because another one spins there teach nothing about spinning. Method: many such
/// waits beside one that spins, and one after it.
#[test]
fn waits_that_do_not_try_lose_nothing() {
    let simulation = Simulation::new(1);
    let shared = shared(&simulation, 2);
    let mut model = Model { now: 1, poll: 40, away: 250, ..Model::default() };
    let mut trying = shared.wait();
    let (_, sleeps) = vain_burst(&mut trying, &mut model);
    assert!(!sleeps, "it goes on in its next burst");
    for _ in 0..20 {
        assert_eq!(slept_wait(&shared, 1_000), 1, "another one tries");
    }
    drop(trying);
    assert!(slept_wait(&shared, 1_000) > 1);
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Order::Relaxed);
    }
}

/// Goal: ranks in a ring that all sleep, so that a wait takes as long as all of them need to wake up, try again and so resume passing the
/// core on; ranks that wait as long for one peer, or for longer, do not. Method: waits that sleep for as long as all sleeps take, in groups
/// of several sizes.
#[test]
fn those_who_all_sleep_in_a_chain_try_again() {
    let simulation = Simulation::new(1);
    let one = Costs::default();
    let one = u64::try_from((one.sleep_cpu + one.wake_delay).as_nanos()).expect("short");
    for (count, sleeps, tries) in
        [(8, 16, true), (8, 40, false), (2, 16, false), (64, 64, true), (64, 300, false)]
    {
        let shared = shared(&simulation, count);
        for _ in 0..20 {
            slept_wait(&shared, sleeps * one);
        }
        assert_eq!(slept_wait(&shared, one) > 1, tries, "{count} peers, {sleeps} sleeps");
    }
}
