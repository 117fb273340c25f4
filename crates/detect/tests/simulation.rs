//! The server in virtual time: what is polled when, a policy's decisions from a history, and that a run
//! is a function of its seed.

#![cfg(not(loom))]

#[expect(dead_code, reason = "these tests use a part of it")]
mod scripted;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    env,
    future::{Future, poll_fn},
    io,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use scripted::{Ask, Call, Order, Script, register};
use vigie_detect::{
    Adaptive, ArmOutcome, Arming, Clock, Detected, Engine, EngineContext, EngineHost, Fixed,
    Frequency, Instant, Methods, Notifier, Progress, Registration, Simulation, Strategy,
    VirtualClock, WaitError, detectors::doorbell::doorbell,
};

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// `SIM_SEED` is the first seed, `SIM_RUNS` their number.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SIM_SEED");
    let default = if first.is_some() { 1 } else { 64 };
    let runs = number("SIM_RUNS").unwrap_or(default);
    first.unwrap_or(0)..first.unwrap_or(0) + runs
}

/// Runs `test` with each seed; a failure names the one that replays it.
fn each_seed(name: &str, test: impl Fn(u64)) {
    struct Named<'a>(&'a str, u64);
    impl Drop for Named<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let Self(name, seed) = self;
                eprintln!(
                    "replay: SIM_SEED={seed} cargo test -p vigie-detect --test simulation {name}"
                );
            }
        }
    }
    for seed in seeds() {
        let _named = Named(name, seed);
        test(seed);
    }
}

/// Lets other tasks run.
async fn switch() {
    let mut has_run = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_run, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for one of two futures; the other is dropped.
async fn first<T>(a: impl Future<Output = T>, b: impl Future<Output = T>) -> T {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    poll_fn(|cx| match a.as_mut().poll(cx) {
        Poll::Pending => b.as_mut().poll(cx),
        ready => ready,
    })
    .await
}

mod time {
    use super::*;

    /// Goal: timers fire in the order of their deadlines and exactly at them, in whatever order
    /// they are set and cancelled. Method: random timers, some raced against shorter ones.
    #[test]
    fn timers_come_in_order_and_on_time() {
        each_seed("timers_come_in_order_and_on_time", |seed| {
            let mut simulation = Simulation::new(seed);
            let order = Rc::new(RefCell::new(Vec::new()));
            let mut expected = BTreeSet::new();
            let mut tasks = Vec::new();
            for index in 0..100 {
                let due = Instant::from_nanos(simulation.random().u64(1..50_000));
                let limit = Instant::from_nanos(simulation.random().u64(1..200_000));
                expected.insert(due.min(limit));
                let timers = simulation.server().timers().clone();
                let order = Rc::clone(&order);
                tasks.push(simulation.spawn(async move {
                    first(timers.wait(due), timers.wait(limit)).await?;
                    assert_eq!(Instant::now(), due.min(limit), "timer {index}");
                    order.borrow_mut().push(Instant::now());
                    Ok::<_, WaitError>(())
                }));
            }
            simulation
                .block_on(async {
                    for task in tasks {
                        task.await?;
                    }
                    Ok::<_, WaitError>(())
                })
                .expect("no deadlock")
                .expect("no error");
            let order = order.borrow();
            assert!(order.is_sorted());
            assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), expected);
            assert_eq!(Some(&simulation.now()), expected.last());
        });
    }

    /// Goal: no timer is set when all are gone, and a past one fires at once.
    #[test]
    fn past_deadlines_come_at_once() {
        let mut simulation = Simulation::new(1);
        let timers = simulation.server().timers().clone();
        simulation.clock().advance(micros(5));
        let waited = simulation.block_on(async {
            timers.wait(Instant::from_nanos(0)).await?;
            timers.wait(Instant::from_nanos(5000)).await
        });
        assert!(matches!(waited, Ok(Ok(()))), "{waited:?}");
        assert_eq!(simulation.now(), Instant::from_nanos(5000));
    }

    #[test]
    fn a_deadlock_is_reported_with_time_and_seed() {
        let mut simulation = Simulation::new(77);
        let timers = simulation.server().timers().clone();
        let (_button, bell) = doorbell(simulation.server()).expect("a doorbell");
        let deadlock = simulation
            .block_on(async {
                timers.wait(Instant::from_nanos(30)).await?;
                bell.rung().await
            })
            .expect_err("no one rings");
        assert_eq!((deadlock.seed, deadlock.now), (77, Instant::from_nanos(30)));
        let text = deadlock.to_string();
        assert!(text.contains("seed 77") && text.contains("30"), "{text}");
    }

    /// Goal: a request that is only polled for, and whose event never comes, is a deadlock too.
    #[test]
    fn polling_without_end_is_a_deadlock() {
        for every in [Frequency::Time(micros(10)), Frequency::Switches(1)] {
            let mut simulation = Simulation::new(5);
            let registration =
                Registration::named("polled").policy(Fixed(Strategy::PollGroup { every }));
            let (_author, handle) =
                register(simulation.server(), Script::default(), registration).expect("a handle");
            let waited = simulation.block_on(handle.wait(Ask::new(1)));
            assert!(waited.is_err(), "{waited:?}");
        }
    }

    /// Goal: one integer reproduces a run. Method: a busy simulation, twice; other seeds differ.
    #[test]
    fn a_run_is_a_function_of_its_seed() {
        fn run(seed: u64) -> (u64, Vec<(u64, Instant)>) {
            let mut simulation = Simulation::new(seed);
            let log = Rc::new(RefCell::new(Vec::new()));
            let (button, bell) = doorbell(simulation.server()).expect("a doorbell");
            for index in 0..20 {
                let pause = micros(simulation.random().u64(..50));
                let (bell, button) = (bell.clone(), button.clone());
                let timers = simulation.server().timers().clone();
                let log = Rc::clone(&log);
                drop(simulation.spawn(async move {
                    for _ in 0..3 {
                        timers.wait(Instant::now() + pause).await?;
                        if index % 2 == 0 {
                            button.press();
                        } else {
                            bell.rung().await?;
                        }
                        log.borrow_mut().push((index, Instant::now()));
                    }
                    Ok::<_, WaitError>(())
                }));
            }
            simulation.run(Duration::from_millis(1));
            let log = log.borrow().clone();
            (simulation.trace_hash(), log)
        }
        let mut traces = BTreeSet::new();
        for seed in seeds() {
            let first = run(seed);
            assert_eq!(first, run(seed), "seed {seed}");
            traces.insert(first.0);
        }
        assert_eq!(traces.len() as u64, seeds().end - seeds().start);
    }

    /// Goal: a detector's own deadline moves the clock, even a later one.
    #[test]
    fn detectors_have_deadlines() {
        let mut simulation = Simulation::new(9);
        let script = Script { arming: Arming::Permanent, ..Script::default() };
        let (author, handle) =
            register(simulation.server(), script, Registration::named("deadlines"))
                .expect("a handle");
        author.script().deadline = Some(Instant::from_nanos(700));
        let polled_at = Rc::new(RefCell::new(Vec::new()));
        let waited = simulation.block_on(async {
            let mut wait = handle.wait(Ask::new(1));
            let log = Rc::clone(&polled_at);
            let author = &author;
            poll_fn(move |cx| {
                let polls = author.calls().iter().filter(|call| **call == Call::Poll).count();
                if polls > 0 {
                    log.borrow_mut().push(Instant::now());
                }
                std::pin::Pin::new(&mut wait).poll(cx)
            })
            .await
        });
        // The deadline stays in the past, and nothing comes of it: it is polled in each pass, for
        // ever.
        assert!(waited.is_err(), "{waited:?}");
        assert!(simulation.now() >= Instant::from_nanos(700));
        let mut simulation = Simulation::new(9);
        let script = Script { arming: Arming::Permanent, ..Script::default() };
        let (author, handle) =
            register(simulation.server(), script, Registration::named("deadlines"))
                .expect("a handle");
        author.script().deadline = Some(Instant::from_nanos(700));
        author.script().orders.push_back(Order::Complete(1, 1));
        let waited = simulation.block_on(async {
            let told = handle.wait(Ask::new(1)).await;
            author.script().deadline = None;
            told
        });
        assert!(matches!(waited, Ok(Ok(_))), "{waited:?}");
        assert_eq!(simulation.now(), Instant::from_nanos(700));
    }
}

mod frequency {
    use super::*;

    /// A polled detector with `count` requests, and the counter of its polls.
    fn polled(
        simulation: &Simulation,
        strategy: Strategy,
        count: u64,
    ) -> (scripted::Author, Vec<vigie_detect::Wait<scripted::Scripted>>) {
        let registration = Registration::named("polled").policy(Fixed(strategy));
        let (author, handle) =
            register(simulation.server(), Script::default(), registration).expect("a handle");
        (author, (0..count).map(|id| handle.wait_owned(Ask::new(id))).collect())
    }

    fn poll_once(waits: &mut [vigie_detect::Wait<scripted::Scripted>]) {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for wait in waits {
            assert!(std::pin::Pin::new(wait).poll(&mut cx).is_pending());
        }
    }

    /// Goal: polling in units of time. Method: a task that switches every 10 µs of virtual time for
    /// 100 ms, beside a handle that is polled every 100 µs.
    #[test]
    fn while_tasks_run_polls_follow_time() {
        each_seed("while_tasks_run_polls_follow_time", |seed| {
            for (strategy, is_group) in [
                (Strategy::PollGroup { every: Frequency::Time(micros(100)) }, true),
                (Strategy::CheckEach { every: Frequency::Time(micros(100)) }, false),
            ] {
                let mut simulation = Simulation::new(seed);
                let (author, mut waits) = polled(&simulation, strategy, 3);
                poll_once(&mut waits);
                author.calls();
                let clock = simulation.clock();
                let done = simulation.block_on(async {
                    for _ in 0..10_000 {
                        clock.advance(micros(10));
                        switch().await;
                    }
                });
                assert_eq!(done, Ok(()));
                let calls = author.calls();
                let count =
                    |wanted: &dyn Fn(&Call) -> bool| calls.iter().filter(|c| wanted(c)).count();
                let polls = count(&|call| *call == Call::Poll);
                let checks = count(&|call| matches!(call, Call::Check(_)));
                // The simulator runs a poll pass at every other switch, so a poll is up to a few switches late.
                let rounds = if is_group { polls } else { checks / 3 };
                assert!((700..=1000).contains(&rounds), "{strategy}: {rounds} rounds in 100 ms");
                assert_eq!(if is_group { checks } else { polls }, 0);
                assert_eq!(checks % 3, 0, "each request is checked in each round");
                assert!(
                    count(&|call| matches!(call, Call::Group(_))) <= 1,
                    "the set did not change"
                );
            }
        });
    }

    /// Goal: polling in units of switches, the paper's. Method: a scheduler's loop, with a clock that
    /// stands still.
    #[test]
    fn while_tasks_run_polls_follow_switches() {
        for every in [1u32, 2, 7, 61] {
            let simulation = Simulation::new(0);
            let strategy = Strategy::PollGroup { every: Frequency::Switches(every) };
            let (author, mut waits) = polled(&simulation, strategy, 2);
            poll_once(&mut waits);
            let mut driver = simulation.server().driver();
            // The first pass learns of the handle.
            driver.detect();
            author.calls();
            for _ in 0..every * 100 {
                if driver.is_due(simulation.now()) {
                    assert_eq!(driver.detect(), Detected::Nothing);
                }
            }
            let polls = author.calls().iter().filter(|call| **call == Call::Poll).count();
            assert_eq!(polls, 100, "every {every} switches");
        }
    }

    /// Goal: no requests, no polls.
    #[test]
    fn an_idle_handle_is_not_polled() {
        let mut simulation = Simulation::new(2);
        let every = Frequency::Time(micros(10));
        let (author, waits) = polled(&simulation, Strategy::PollGroup { every }, 0);
        simulation.run(Duration::from_millis(10));
        assert_eq!(author.calls(), []);
        drop(waits);
    }

    /// Goal: with nothing to run, a polled handle is polled at its frequency, and its event is
    /// found within one interval.
    #[test]
    fn with_nothing_to_run_polls_follow_time() {
        let mut simulation = Simulation::new(3);
        let strategy = Strategy::PollGroup { every: Frequency::Time(micros(40)) };
        let (author, mut waits) = polled(&simulation, strategy, 1);
        let timers = simulation.server().timers().clone();
        let happens = Instant::from_nanos(2_010_000);
        let script = author.clone();
        drop(simulation.spawn(async move {
            timers.wait(happens).await?;
            // Without a notification: only a poll can find it.
            script.script().orders.push_back(Order::Complete(0, 1));
            Ok::<_, WaitError>(())
        }));
        let wait = waits.pop().expect("one");
        let waited = simulation.block_on(wait);
        assert!(matches!(waited, Ok(Ok(_))), "{waited:?}");
        let late = simulation.now() - happens;
        assert!(late <= micros(40), "{late:?}");
        let polls = author.calls().iter().filter(|call| **call == Call::Poll).count();
        assert!((45..=60).contains(&polls), "{polls} polls in 2 ms");
    }

    /// Goal: a handle that is polled at every switch does not keep the clock from reaching its
    /// timers.
    #[test]
    fn polling_at_every_switch_lets_time_pass() {
        let mut simulation = Simulation::new(4);
        let strategy = Strategy::PollGroup { every: Frequency::Switches(1) };
        let (author, mut waits) = polled(&simulation, strategy, 1);
        let timers = simulation.server().timers().clone();
        let script = author.clone();
        drop(simulation.spawn(async move {
            timers.wait(Instant::from_nanos(1_000_000)).await?;
            script.script().orders.push_back(Order::Complete(0, 1));
            Ok::<_, WaitError>(())
        }));
        let wait = waits.pop().expect("one");
        let waited = simulation.block_on(wait);
        assert!(matches!(waited, Ok(Ok(_))), "{waited:?}");
        assert!(simulation.now() - Instant::from_nanos(1_000_000) <= micros(1));
    }

    /// Goal: a sleeping strategy costs no polls while nothing is announced, and arms before each sleep.
    #[test]
    fn sleeping_costs_no_polls() {
        let mut simulation = Simulation::new(6);
        let every = Frequency::Time(Duration::from_secs(1));
        let (author, mut waits) = polled(&simulation, Strategy::Sleep { every }, 1);
        let mut wait = waits.pop().expect("one");
        let timers = simulation.server().timers().clone();
        let waited = simulation.block_on(async {
            let sleep = async {
                for _ in 0..10 {
                    timers.wait(Instant::now() + micros(50)).await?;
                }
                author.order(Order::Complete(0, 8));
                std::future::pending::<Result<scripted::Told, WaitError>>().await
            };
            first(&mut wait, sleep).await
        });
        assert!(matches!(waited, Ok(Ok(scripted::Told { value: 8, .. }))), "{waited:?}");
        let calls = author.calls();
        let arms = calls.iter().filter(|call| **call == Call::Arm).count();
        let polls = calls.iter().filter(|call| **call == Call::Poll).count();
        // One poll after each arming, and those of the notifications.
        assert!((10..=14).contains(&arms), "{arms}: {calls:?}");
        assert!(polls <= arms + 3, "{polls} polls, {arms} times armed");
    }
}

mod adaptive {
    use super::*;

    /// The decision of [`Adaptive`] for a detector with `methods` whose events come every `interval`,
    /// after `count` of them and `idle` time without.
    fn decides(methods: Methods, interval: Duration, count: u32, idle: Duration) -> Strategy {
        let mut simulation = Simulation::new(8);
        let script = Script { methods, arming: Arming::Permanent, ..Script::default() };
        let (author, handle) =
            register(simulation.server(), script, Registration::named("adaptive"))
                .expect("a handle");
        let timers = simulation.server().timers().clone();
        let observed = handle.clone();
        let done = simulation.block_on(async move {
            let stream = handle.stream(Ask::new(0))?;
            let mut next = Instant::now();
            for value in 0..count {
                next += interval;
                timers.wait(next).await?;
                if methods == Methods::CHECK {
                    author.script().ready.insert(0, u64::from(value));
                } else {
                    author.order(Order::Emit(0, u64::from(value)));
                }
                switch().await;
            }
            if !idle.is_zero() {
                timers.wait(Instant::now() + idle).await?;
                // An order's notification without a request: a poll without an event.
                author.order(Order::Emit(1, 0));
                timers.wait(Instant::now() + micros(1)).await?;
            }
            drop(stream);
            Ok::<_, WaitError>(())
        });
        assert!(matches!(done, Ok(Ok(()))), "{done:?}");
        observed.history().1
    }

    const NOTIFIED: Methods = Methods::NOTIFY;

    #[test]
    fn it_sleeps_where_events_are_rare() {
        let notified = NOTIFIED | Methods::GROUP;
        let strategy = decides(notified, Duration::from_millis(1), 100, Duration::ZERO);
        assert!(matches!(strategy, Strategy::Sleep { .. }), "{strategy}");
        // It does so before it has seen anything, too.
        let strategy = decides(notified, micros(1), 1, Duration::ZERO);
        assert!(matches!(strategy, Strategy::Sleep { .. }), "{strategy}");
    }

    /// Goal: polling first is a bet on the time that an idle host waits, and on nothing else. Method:
    /// timers close together, then far apart; and equally close events that the host's own tasks
    /// cause.
    #[test]
    fn it_polls_first_where_an_idle_host_waits_shortly() {
        let mut simulation = Simulation::new(8);
        let timers = simulation.server().timers().clone();
        let mut waits = |distance: Duration, count: u32| {
            let handle = timers.clone();
            let done = simulation.block_on(async move {
                for _ in 0..count {
                    handle.wait(Instant::now() + distance).await?;
                }
                Ok::<_, WaitError>(())
            });
            assert!(matches!(done, Ok(Ok(()))), "{done:?}");
            timers.history()
        };
        let spin_max = Adaptive::default().spin_max;
        let (history, strategy) = waits(micros(4), 3);
        assert!(
            matches!(strategy, Strategy::PollThenSleep { spin, .. } if spin == spin_max),
            "{strategy}: {history:?}"
        );
        assert_eq!(history.idle_wait(), Some(micros(4)));
        let (history, strategy) = waits(Duration::from_millis(1), 20);
        assert!(matches!(strategy, Strategy::Sleep { .. }), "{strategy}: {history:?}");
        let (history, strategy) = waits(micros(4), 20);
        assert!(matches!(strategy, Strategy::PollThenSleep { .. }), "{strategy}: {history:?}");
        let strategy = decides(NOTIFIED | Methods::GROUP, micros(50), 2000, Duration::ZERO);
        assert!(matches!(strategy, Strategy::Sleep { .. }), "{strategy}");
    }

    #[test]
    fn it_polls_what_cannot_announce_as_often_as_events_come() {
        let limits = Adaptive::default();
        for methods in [Methods::GROUP, Methods::CHECK] {
            let every = |strategy| match strategy {
                Strategy::PollGroup { every: Frequency::Time(every) } => {
                    assert_eq!(methods, Methods::GROUP);
                    every
                }
                Strategy::CheckEach { every: Frequency::Time(every) } => {
                    assert_eq!(methods, Methods::CHECK);
                    every
                }
                other => panic!("{other}"),
            };
            let frequent = every(decides(methods, micros(80), 300, Duration::ZERO));
            assert!((micros(5)..=micros(12)).contains(&frequent), "{frequent:?}");
            let rare = every(decides(methods, Duration::from_millis(20), 20, Duration::ZERO));
            assert_eq!(rare, limits.interval_max);
            // A handle that has become quiet is polled ever less, within the bound.
            let quiet = every(decides(methods, micros(80), 300, Duration::from_millis(2)));
            assert!(quiet > frequent && quiet <= limits.interval_max, "{quiet:?}");
            let asleep = every(decides(methods, micros(80), 300, Duration::from_secs(1)));
            assert_eq!(asleep, limits.interval_max);
        }
    }

    /// Goal: a polled event is found within an eighth of its waiter's waiting time, or the shortest
    /// interval. Method: events at random distances, the delays of their detection.
    #[test]
    fn polled_events_are_not_found_late() {
        each_seed("polled_events_are_not_found_late", |seed| {
            let mut simulation = Simulation::new(seed);
            let script = Script { methods: Methods::GROUP, ..Script::default() };
            let (author, handle) =
                register(simulation.server(), script, Registration::named("polled"))
                    .expect("a handle");
            let distances: Vec<_> =
                (0..50).map(|_| micros(simulation.random().u64(600..3000))).collect();
            let timers = simulation.server().timers().clone();
            let happened = Rc::new(Cell::new(Instant::from_nanos(0)));
            let happens = Rc::clone(&happened);
            let script = author.clone();
            drop(simulation.spawn(async move {
                for (distance, id) in distances.into_iter().zip(0..) {
                    timers.wait(Instant::now() + distance).await?;
                    happens.set(Instant::now());
                    script.script().orders.push_back(Order::Complete(id, id));
                }
                Ok::<_, WaitError>(())
            }));
            let done = simulation.block_on(async {
                for id in 0..50 {
                    handle.wait(Ask::new(id)).await?;
                    let late = Instant::now() - happened.get();
                    assert!(late <= Adaptive::default().interval_max, "{late:?}");
                }
                Ok::<_, WaitError>(())
            });
            assert!(matches!(done, Ok(Ok(()))), "{done:?}");
        });
    }

    #[test]
    fn the_virtual_clock_is_shared() {
        let simulation = Simulation::new(1);
        let clock: Arc<VirtualClock> = simulation.clock();
        clock.advance(micros(3));
        assert_eq!(simulation.now(), clock.now());
        assert_eq!(simulation.server().now(), clock.now());
    }
}

/// The shared state of engines that pass a token down, from one to the one before.
#[derive(Default)]
struct Chain {
    /// How many have not had it.
    left: AtomicUsize,
    notifiers: Mutex<Vec<Notifier>>,
}

/// One of them.
struct Passing {
    chain: Arc<Chain>,
    index: usize,
    /// Whether it passes the token on when it is armed, rather than when it works.
    is_late: bool,
}

impl Passing {
    fn has_it(&self) -> bool {
        self.chain.left.load(Ordering::Relaxed) == self.index + 1
    }

    fn pass(&self) {
        if self.has_it()
            && let Some(index) = self.index.checked_sub(1)
        {
            self.chain.left.store(self.index, Ordering::Relaxed);
            self.chain.notifiers.lock().expect("no panic")[index].notify();
        }
    }
}

impl Engine for Passing {
    type Request = ();
    type Output = ();

    fn take(&mut self, (): &()) -> Option<()> {
        self.has_it().then_some(())
    }

    fn progress(&mut self, _: &EngineContext<'_>) -> Progress {
        if !self.is_late {
            self.pass();
        }
        Progress::Done
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        if self.is_late {
            self.pass();
        } else if self.has_it() && self.index > 0 {
            return Ok(ArmOutcome::Ready);
        }
        Ok(ArmOutcome::Armed)
    }

    fn attach(&mut self, bell: Notifier) -> io::Result<()> {
        self.chain.notifiers.lock().expect("no panic").push(bell);
        Ok(())
    }
}

/// Goal: a notification takes no time and ends a sleep, even one notified while others were armed for it. Method: engines notify each
/// other in a row, as they work and as they are armed, beside a timer that fires much later; measure when the first one has what the last
/// one received.
#[test]
fn notifications_take_no_time() {
    const ENGINES: usize = 40;
    for is_late in [false, true] {
        each_seed("notifications_take_no_time", |seed| {
            let mut simulation = Simulation::new(seed);
            let server = simulation.server().clone();
            let chain = Arc::new(Chain::default());
            let hosts: Vec<_> = (0..ENGINES)
                .map(|index| {
                    let passing = Passing { chain: Arc::clone(&chain), index, is_late };
                    let registration = Registration::named("passing");
                    EngineHost::new(&server, passing, registration).expect("a host")
                })
                .collect();
            hosts.iter().for_each(|host| host.run_in_background().expect("a server"));
            let timers = server.timers().clone();
            let found = simulation.block_on(async move {
                timers.wait(Instant::from_nanos(1_000_000)).await.expect("a server");
                let far = timers.wait(Instant::from_nanos(3_000_000_000));
                let found = async {
                    hosts[ENGINES - 1].with(|passing| {
                        passing.chain.left.store(ENGINES, Ordering::Relaxed);
                    });
                    hosts[0].wait(()).await.expect("a server");
                    Instant::now()
                };
                let (found, far) = tokio::join!(found, far);
                far.expect("a server");
                found
            });
            assert_eq!(found, Ok(Instant::from_nanos(1_000_000)), "{is_late}");
        });
    }
}
