//! Clocks that jump, as after the pause of a virtual machine, and clocks that stand still: in virtual
//! time, where hours pass between two instructions.

#[expect(dead_code, reason = "these tests use a part of it")]
mod scripted;

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use scripted::{Ask, Author, Call, Order, Script, Scripted, register};
use vigie_detect::{
    Adaptive, Arming, Clock, Detected, Fixed, Frequency, Handle, Instant, Methods, Registration,
    Simulation, Strategy, WaitError, detectors::doorbell::doorbell,
};

const HOUR: Duration = Duration::from_secs(3600);

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// Notes its number when it is woken.
struct Noted {
    number: usize,
    log: Arc<Mutex<Vec<usize>>>,
}

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        self.log.lock().expect("not poisoned").push(self.number);
    }
}

/// Polls until nothing more is found. Returns how many poll passes found something.
fn poll_all(driver: &mut vigie_detect::Driver) -> usize {
    let mut passes = 0;
    while let Detected::Events(_) = driver.detect() {
        passes += 1;
        assert!(passes < 100_000, "events without end");
    }
    passes
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

/// Goal: a jump ends every timer that it passes, once, in the order of their deadlines, and no other.
/// Method: a thousand timers at random within twelve hours, and jumps at random, against a sorted list.
#[test]
fn a_jump_ends_what_it_passes_in_order() {
    for seed in 0..16 {
        let mut random = fastrand::Rng::with_seed(seed);
        let simulation = Simulation::new(seed);
        let clock = simulation.clock();
        let mut driver = simulation.server().driver();
        let log = Arc::default();
        let end_ns = u64::try_from((HOUR * 12).as_nanos()).expect("hours");
        let mut timers: Vec<_> = (0..1000)
            .map(|number| {
                let deadline = Instant::from_nanos(random.u64(1..end_ns));
                let wait = simulation.server().timers().wait_owned(deadline);
                let waker = Waker::from(Arc::new(Noted { number, log: Arc::clone(&log) }));
                (deadline, wait, waker)
            })
            .collect();
        for (_, wait, waker) in &mut timers {
            assert!(Pin::new(wait).poll(&mut Context::from_waker(waker)).is_pending());
        }
        let mut woken = vec![false; timers.len()];
        while clock.now() < Instant::from_nanos(end_ns) {
            let before = clock.now();
            clock.advance(Duration::from_secs(random.u64(1..20_000)));
            poll_all(&mut driver);
            let order = std::mem::take(&mut *log.lock().expect("not poisoned"));
            let deadlines: Vec<_> = order.iter().map(|&number| timers[number].0).collect();
            assert!(deadlines.is_sorted(), "seed {seed}: {deadlines:?}");
            assert!(deadlines.iter().all(|&due| before < due && due <= clock.now()), "seed {seed}");
            for number in order {
                assert!(!woken[number], "seed {seed}: timer {number} twice");
                woken[number] = true;
                let (_, wait, waker) = &mut timers[number];
                let polled = Pin::new(wait).poll(&mut Context::from_waker(waker));
                assert!(matches!(polled, Poll::Ready(Ok(()))), "seed {seed}: {polled:?}");
            }
            let lost = timers
                .iter()
                .zip(&woken)
                .filter(|((due, ..), woken)| (*due <= clock.now()) != **woken);
            assert_eq!(lost.count(), 0, "seed {seed}");
        }
        assert!(woken.iter().all(|&woken| woken), "seed {seed}");
    }
}

/// Goal: tasks that sleep, race and reset timers pass through jumps without a lost or early timer.
/// Method: a task that lets hours pass now and then, among the others.
#[test]
fn tasks_go_through_jumps() {
    for seed in 0..64 {
        let mut simulation = Simulation::new(seed);
        let clock = simulation.clock();
        let mut random = fastrand::Rng::with_seed(seed);
        let ended = Rc::new(Cell::new(0));
        for _ in 0..50 {
            let timers = simulation.server().timers().clone();
            let pauses: Vec<_> = (0..20).map(|_| micros(random.u64(0..2_000_000_000))).collect();
            let ended = Rc::clone(&ended);
            drop(simulation.spawn(async move {
                for pause in pauses {
                    let deadline = Instant::now() + pause;
                    // The other one is dropped, before or after the jump that passes it.
                    let mut far = timers.wait_owned(deadline + HOUR);
                    let mut near = timers.wait_owned(deadline);
                    poll_fn(|cx| match Pin::new(&mut far).poll(cx) {
                        Poll::Pending => Pin::new(&mut near).poll(cx),
                        ready => ready,
                    })
                    .await?;
                    assert!(Instant::now() >= deadline, "early");
                    ended.set(ended.get() + 1);
                }
                Ok::<_, WaitError>(())
            }));
        }
        let timers = simulation.server().timers().clone();
        let jumps: Vec<_> = (0..100).map(|_| random.u32(0..4)).collect();
        let seen = Rc::clone(&ended);
        let done = simulation.block_on(async move {
            for hours in jumps {
                clock.advance(HOUR * hours);
                timers.wait(Instant::now() + micros(10)).await?;
                switch().await;
            }
            while seen.get() < 50 * 20 {
                timers.wait(Instant::now() + HOUR).await?;
            }
            Ok::<_, WaitError>(())
        });
        assert!(matches!(done, Ok(Ok(()))), "seed {seed}: {done:?}");
        assert_eq!(ended.get(), 50 * 20, "seed {seed}");
    }
}

/// A scripted detector that is polled `every` so often, with one request that waits.
fn polled(simulation: &Simulation, every: Frequency) -> (Author, vigie_detect::Wait<Scripted>) {
    let registration = Registration::named("polled").policy(Fixed(Strategy::PollGroup { every }));
    let (author, handle) =
        register(simulation.server(), Script::default(), registration).expect("a handle");
    let mut wait = handle.wait_owned(Ask::new(1));
    let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    (author, wait)
}

fn polls(author: &Author) -> usize {
    author.calls().iter().filter(|call| **call == Call::Poll).count()
}

/// Goal: polls skipped by a jump are not made up for, and continue in their rhythm after it.
/// Method: a scheduler's loop of 10 µs per switch, with a jump of ten hours in the middle.
#[test]
fn missed_polls_are_left_out() {
    let simulation = Simulation::new(1);
    let (author, _wait) = polled(&simulation, Frequency::Time(micros(100)));
    let mut driver = simulation.server().driver();
    let clock = simulation.clock();
    let mut run = |count| {
        for _ in 0..count {
            clock.advance(micros(10));
            if driver.is_due(clock.now()) {
                assert_eq!(driver.detect(), Detected::Nothing);
            }
        }
        polls(&author)
    };
    run(100);
    let before = run(1000);
    assert!((99..=101).contains(&before), "{before} polls in 10 ms");
    simulation.clock().advance(HOUR * 10);
    assert_eq!(run(1), 1);
    let after = run(1000);
    assert!((99..=101).contains(&after), "{after} polls in 10 ms");
}

/// Goal: while the clock stands still, notifications and polls by switches still find events, and timers
/// wait; when it continues, timers end at their time, and time-driven polls continue. Method: both kinds
/// of handle, a doorbell and a timer on a stopped clock.
#[test]
fn a_clock_that_stands_still() {
    let simulation = Simulation::new(2);
    let clock = simulation.clock();
    clock.advance(HOUR);
    let mut driver = simulation.server().driver();
    let (by_time, _first) = polled(&simulation, Frequency::Time(micros(100)));
    let (by_switches, mut second) = polled(&simulation, Frequency::Switches(3));
    let (button, bell) = doorbell(simulation.server()).expect("a doorbell");
    let mut cx = Context::from_waker(Waker::noop());
    let mut ring = bell.wait_owned(());
    let mut timer = simulation.server().timers().wait_owned(clock.now() + micros(1));
    assert!(Pin::new(&mut ring).poll(&mut cx).is_pending());
    assert!(Pin::new(&mut timer).poll(&mut cx).is_pending());
    poll_all(&mut driver);
    polls(&by_time);
    polls(&by_switches);
    let mut run = |count: u32| {
        for _ in 0..count {
            if driver.is_due(clock.now()) {
                driver.detect();
            }
        }
    };
    run(3000);
    assert_eq!((polls(&by_switches), polls(&by_time)), (1000, 0));
    button.press();
    by_switches.script().orders.push_back(Order::Complete(1, 5));
    run(3);
    assert!(matches!(Pin::new(&mut ring).poll(&mut cx), Poll::Ready(Ok(_))));
    let told = Pin::new(&mut second).poll(&mut cx);
    assert!(matches!(&told, Poll::Ready(Ok(told)) if told.value == 5), "{told:?}");
    assert!(Pin::new(&mut timer).poll(&mut cx).is_pending());
    clock.advance(micros(1));
    run(1);
    assert!(matches!(Pin::new(&mut timer).poll(&mut cx), Poll::Ready(Ok(()))));
    clock.advance(micros(100));
    run(1);
    assert_eq!(polls(&by_time), 1);
}

/// Delivers `count` events to a handle of `simulation`, one every `interval`, and returns the policy's
/// decision.
fn train(
    simulation: &mut Simulation,
    (author, handle): &(Author, Handle<Scripted>),
    interval: Duration,
    count: u64,
) -> Strategy {
    let timers = simulation.server().timers().clone();
    let done = simulation.block_on(async {
        let stream = handle.stream(Ask::new(0))?;
        for value in 0..count {
            timers.wait(Instant::now() + interval).await?;
            author.order(Order::Emit(0, value));
            switch().await;
        }
        drop(stream);
        Ok::<_, WaitError>(())
    });
    assert!(matches!(done, Ok(Ok(()))), "{done:?}");
    handle.history().1
}

/// Goal: the effect of a jump on the averages does not push a policy out of its bounds, and is soon
/// forgotten. Method: a train of events, jumps of ten hours between two of them, then the same train; the
/// policy must return to its earlier decision.
#[test]
fn policies_come_back_after_a_jump() {
    let every = |strategy| match strategy {
        Strategy::PollGroup { every: Frequency::Time(every) } => every,
        other => panic!("{other}"),
    };
    let mut simulation = Simulation::new(3);
    let script = Script { methods: Methods::GROUP, arming: Arming::Permanent, ..Script::default() };
    let polled =
        register(simulation.server(), script, Registration::named("jumps")).expect("a handle");
    let limits = Adaptive::default();
    let before = every(train(&mut simulation, &polled, micros(80), 300));
    assert!(before < micros(15), "{before:?}");
    for jumps in 1..=20 {
        simulation.clock().advance(HOUR * 10);
        let spoilt = every(train(&mut simulation, &polled, micros(80), 2));
        assert!(spoilt <= limits.interval_max, "{spoilt:?} after {jumps} jumps");
    }
    let after = every(train(&mut simulation, &polled, micros(80), 300));
    assert!(after < micros(15), "{after:?} instead of {before:?}");
}

/// Goal: a jump does not spoil the account of polling before a sleep for good either. Method: timers
/// close together before and after jumps that fall into their sleeps.
#[test]
fn polling_first_comes_back_after_a_jump() {
    let mut simulation = Simulation::new(4);
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
    for _ in 0..10 {
        let (history, strategy) = waits(micros(4), 20);
        assert!(matches!(strategy, Strategy::PollThenSleep { .. }), "{strategy}: {history:?}");
        let (history, strategy) = waits(HOUR * 10, 20);
        assert!(matches!(strategy, Strategy::Sleep { .. }), "{strategy}: {history:?}");
    }
}

/// Goal: the end of time is handled. Method: a jump to the last instants of the clock, and all the way:
/// everything due ends, notifications are found, and nothing overflows.
#[test]
fn the_end_of_time() {
    for last in [Instant::from_nanos(u64::MAX - 1), Instant::MAX] {
        let simulation = Simulation::new(5);
        let clock = simulation.clock();
        let mut driver = simulation.server().driver();
        let timers = simulation.server().timers().clone();
        let mut cx = Context::from_waker(Waker::noop());
        let (by_time, _wait) = polled(&simulation, Frequency::Time(micros(100)));
        let mut due = timers.wait_owned(Instant::from_nanos(u64::MAX - 1));
        let mut never = timers.wait_owned(Instant::MAX);
        assert!(Pin::new(&mut due).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut never).poll(&mut cx).is_pending());
        poll_all(&mut driver);
        polls(&by_time);
        clock.advance_to(last);
        assert!(driver.is_due(clock.now()));
        poll_all(&mut driver);
        // At the very end every poll is due.
        assert!(polls(&by_time) >= 1);
        assert!(matches!(Pin::new(&mut due).poll(&mut cx), Poll::Ready(Ok(()))));
        // A saturated time means never, or now if this is the end; never the past.
        let mut later = timers.wait_owned(clock.now() + HOUR);
        for saturated in [&mut never, &mut later] {
            let is_over = Pin::new(saturated).poll(&mut cx).is_ready();
            assert!(!is_over || last == Instant::MAX);
        }
        let (button, bell) = doorbell(simulation.server()).expect("a doorbell");
        let mut ring = bell.wait_owned(());
        assert!(Pin::new(&mut ring).poll(&mut cx).is_pending());
        button.press();
        driver.detect();
        assert!(matches!(Pin::new(&mut ring).poll(&mut cx), Poll::Ready(Ok(_))));
    }
}
