//! The shortest way through each thing that a runtime offers, on each flavor.

use std::{
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use vigie_detect::clock::monotonic_now;
use vigie_runtime::{
    BuildError, Flavor, Reactivity, Runtime, spawn, spawn_blocking, spawn_local, time, yield_now,
};

fn each_flavor(test: impl Fn(Runtime)) {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
        test(Runtime::builder().flavor(flavor).workers(2).build().expect("a runtime"));
    }
}

/// Goal: spawned tasks give their results. Method: sums over many tasks that yield.
#[test]
fn tasks_give_their_results() {
    each_flavor(|runtime| {
        let sum = runtime.block_on(async {
            let tasks: Vec<_> = (0..1000u64)
                .map(|n| {
                    spawn(async move {
                        for _ in 0..n % 7 {
                            yield_now().await;
                        }
                        n
                    })
                })
                .collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.await.expect("the task ends");
            }
            sum
        });
        assert_eq!(sum, 499_500);
        assert_eq!(runtime.handle().live_task_count(), 0);
    });
}

/// Goal: a panic stays in its task. Method: one panics, the others go on.
#[test]
fn a_panic_stays_in_its_task() {
    each_flavor(|runtime| {
        runtime.block_on(async {
            let bad = spawn(async { panic!("planted") });
            let good = spawn(async { 7 });
            let error = bad.await.expect_err("it panicked");
            assert!(error.is_panic());
            let text = format!("task {} panicked with message \"planted\"", error.id());
            assert_eq!(error.to_string(), text);
            assert_eq!(good.await.expect("untouched"), 7);
        });
    });
}

/// Goal: an aborted task is dropped and says so. Method: one that waits for ever, one that yields for
/// ever, one that has ended.
#[test]
fn abort() {
    each_flavor(|runtime| {
        runtime.block_on(async {
            let waits = spawn(std::future::pending::<()>());
            let spins = spawn(async {
                loop {
                    yield_now().await;
                }
            });
            let ended = spawn(async { 1 });
            while !ended.is_finished() {
                yield_now().await;
            }
            waits.abort();
            spins.abort();
            ended.abort();
            assert!(waits.await.expect_err("aborted").is_cancelled());
            let spun: Result<(), _> = spins.await;
            assert!(spun.expect_err("aborted").is_cancelled());
            assert_eq!(ended.await.expect("it had ended"), 1);
        });
    });
}

/// Goal: closures block on threads of their own. Method: more closures than workers wait for each
/// other.
#[test]
fn blocking_closures_do_not_stop_tasks() {
    each_flavor(|runtime| {
        runtime.block_on(async {
            let barrier = Arc::new(std::sync::Barrier::new(5));
            let closures: Vec<_> = (0..5)
                .map(|_| {
                    let barrier = Arc::clone(&barrier);
                    spawn_blocking(move || barrier.wait().is_leader())
                })
                .collect();
            let mut leaders = 0;
            for closure in closures {
                leaders += usize::from(closure.await.expect("the closure ends"));
            }
            assert_eq!(leaders, 1);
        });
    });
}

/// Goal: sleeps end in the order of their deadlines and never before, time-outs and periods work. Method: a task holds three
/// sleeps and polls the latest first, so that those which end earlier must have ended when it has, however late the task is
/// polled.
#[test]
fn time_passes() {
    each_flavor(|runtime| {
        runtime.block_on(async {
            let start = time::Instant::now();
            let sleepers = spawn(async move {
                let deadlines = [3, 2, 1].map(|n| start + Duration::from_millis(20 * n));
                let mut sleeps =
                    deadlines.map(|deadline| Some(Box::pin(time::sleep_until(deadline))));
                std::future::poll_fn(|context| {
                    for (sleep, deadline) in sleeps.iter_mut().zip(deadlines) {
                        if sleep.as_mut().is_some_and(|it| it.as_mut().poll(context).is_ready()) {
                            assert!(time::Instant::now() >= deadline);
                            *sleep = None;
                        }
                    }
                    let ended = sleeps.each_ref().map(Option::is_none);
                    assert!(ended.is_sorted(), "from the latest to the earliest: {ended:?}");
                    if ended[0] { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            });
            sleepers.await.expect("they end in order");
            let late = time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
            assert_eq!(
                late,
                Err(time::timeout(Duration::ZERO, std::future::pending::<()>())
                    .await
                    .expect_err("late"))
            );
            let mut ticks = time::interval(Duration::from_millis(1));
            let first = ticks.tick().await;
            assert_eq!(ticks.tick().await - first, Duration::from_millis(1));
        });
    });
}

/// Goal: tasks that are not `Send` run on the user-level flavor. Method: an `Rc`.
#[test]
fn local_tasks() {
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    let value = runtime.block_on(async {
        let shared = std::rc::Rc::new(std::cell::Cell::new(1));
        let inner = std::rc::Rc::clone(&shared);
        spawn_local(async move {
            yield_now().await;
            inner.set(inner.get() + 41);
        })
        .await
        .expect("it ends");
        shared.get()
    });
    assert_eq!(value, 42);
}

/// Goal: first come, first served: tasks have their turns in the order in which they became ready, also behind one that has used
/// up its share. Method: three tasks that yield, of which one computes for 30 ms first.
#[test]
fn tasks_are_served_as_they_come() {
    let builder = Runtime::builder().flavor(Flavor::UserLevel).first_come_first_served(true);
    let turns = Arc::new(Mutex::new(Vec::new()));
    builder.build().expect("a runtime").block_on(async {
        let tasks = [0, 1, 2].map(|number| {
            let turns = Arc::clone(&turns);
            spawn(async move {
                for turn in 0..4 {
                    turns.lock().unwrap().push(number);
                    let begin = monotonic_now();
                    while (turn, number) == (0, 0)
                        && monotonic_now() - begin < Duration::from_millis(30)
                    {}
                    yield_now().await;
                }
            })
        });
        for task in tasks {
            task.await.expect("the task ends");
        }
    });
    assert_eq!(*turns.lock().unwrap(), [0, 1, 2].repeat(4));
}

/// Goal: each reactivity serves tasks, timers and wake-ups on each flavor, and a bound out of range is
/// refused. Method: a short life of each; bounds inside and outside of the range.
#[test]
fn each_reactivity_works() {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid] {
        for reactivity in [Reactivity::LowCpu, Reactivity::Balanced, Reactivity::LowLatency] {
            let builder = Runtime::builder().flavor(flavor).workers(2);
            let runtime = builder.reactivity(reactivity).build().expect("a runtime");
            let slept = runtime.block_on(async {
                let tasks: Vec<_> = (1..=20_u64)
                    .map(|n| spawn(time::sleep(Duration::from_micros(5 * n))))
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
                spawn_blocking(|| 7).await.expect("no panic")
            });
            assert_eq!(slept, 7, "{flavor}, {reactivity}");
        }
    }
    let bound = |spin_max| Runtime::builder().workers(1).spin_max(spin_max).build();
    assert!(bound(Duration::ZERO).is_ok());
    assert!(bound(Duration::from_millis(10)).is_ok());
    let refused = bound(Duration::from_millis(11)).map(drop);
    assert!(matches!(refused, Err(BuildError::SpinMax { .. })), "{refused:?}");
}
