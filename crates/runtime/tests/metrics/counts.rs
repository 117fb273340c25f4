//! Each number counts what it says. Times are only compared with each other.

use std::{sync::mpsc, time::Duration};

use vigie_detect::{clock::monotonic_now, detectors::doorbell::doorbell};
use vigie_runtime::{Flavor, Handle, Runtime, metrics::Metrics, task, yield_now};

use crate::{flavors::runtime, kit::guard::against_hang, settle};

fn here() -> Metrics {
    Handle::current().metrics()
}

fn polls(metrics: &Metrics) -> u64 {
    metrics.reaction.polls + metrics.compute.polls
}

/// Computes for longer than `time`.
fn hog(time: Duration) {
    let end = monotonic_now() + time;
    while monotonic_now() < end {
        std::hint::spin_loop();
    }
}

/// The flavors whose scheduler polls the tasks; on the third, the kernel lets them run.
const COUNTING: [Flavor; 2] = [Flavor::UserLevel, Flavor::Hybrid];

/// Goal: every poll is counted once, in one lane and on one thread, and yields are measured as made
/// ready by a task. Method: a task with a known number of polls, read from a second one after its end.
#[test]
fn polls_are_counted() {
    against_hang(|| {
        for flavor in COUNTING {
            let runtime = runtime(flavor);
            let metrics = runtime.block_on(async {
                let yields = vigie_runtime::spawn(async {
                    for _ in 0..100 {
                        yield_now().await;
                    }
                });
                yields.await.expect("no panic");
                // The poll that ended the task may not be counted yet on its worker.
                let handle = Handle::current();
                if flavor == Flavor::Hybrid {
                    settle::until(|| polls(&handle.metrics()) >= 101);
                }
                handle.metrics()
            });
            assert_eq!(metrics.flavor, flavor);
            assert_eq!(polls(&metrics), 101, "{metrics:?}");
            assert_eq!(metrics.threads.iter().map(|thread| thread.polls).sum::<u64>(), 101);
            assert_eq!(metrics.task_delay.count() + metrics.event_delay.count(), 101);
            assert!(metrics.task_delay.count() >= 100, "{metrics:?}");
            assert!(!(metrics.reaction.time + metrics.compute.time).is_zero());
        }
    });
}

/// Goal: polls of a thread inside `block_on` while another one drives are counted as well, and still is
/// when that thread is gone. Method: one thread drives until the other, with a local task of a known
/// number of polls and one long poll in it, has left its `block_on`; a third one enters later.
#[test]
fn polls_of_threads_that_wait_are_counted() {
    against_hang(|| {
        let builder = Runtime::builder().flavor(Flavor::UserLevel);
        let runtime = builder.long_poll(Duration::from_millis(20)).build().expect("a runtime");
        let (driving, drives) = mpsc::channel();
        let (left, has_left) = tokio::sync::oneshot::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                runtime.block_on(async {
                    driving.send(()).expect("the other one waits");
                    has_left.await.expect("it says so");
                });
            });
            drives.recv().expect("it drives");
            runtime.block_on(async {
                let local = vigie_runtime::spawn_local(async {
                    for _ in 0..100 {
                        yield_now().await;
                    }
                    hog(Duration::from_millis(25));
                });
                local.await.expect("no panic");
            });
            let metrics = runtime.handle().metrics();
            assert_eq!(polls(&metrics), 101, "{metrics:?}");
            assert_eq!(metrics.task_delay.count() + metrics.event_delay.count(), 101);
            assert_eq!((metrics.long_polls, metrics.latest_long_polls.len()), (1, 1));
            let of_threads: Vec<_> = metrics.threads.iter().map(|thread| thread.polls).collect();
            assert_eq!(of_threads, [0, 101]);
            left.send(()).expect("it waits");
        });
        std::thread::scope(|scope| {
            scope.spawn(|| runtime.block_on(async {}));
        });
        assert_eq!(polls(&runtime.handle().metrics()), 101);
    });
}

/// Goal: a task that an event woke is measured as such, and the handle that saw the event tells of
/// it, with its name and strategy. Method: a doorbell, pressed once a task waits.
#[test]
fn events_are_counted_for_their_handle() {
    against_hang(|| {
        for flavor in COUNTING {
            let runtime = runtime(flavor);
            let (button, bell) = doorbell(runtime.server()).expect("a doorbell");
            let handle = runtime.handle().clone();
            let find = move |metrics: &Metrics| {
                metrics.handles.iter().find(|report| report.name == "doorbell").cloned()
            };
            let presser = std::thread::spawn(move || {
                settle::until(|| find(&handle.metrics()).is_some_and(|bell| bell.pending == 1));
                let before = handle.metrics().event_delay.count();
                button.press();
                (button, before)
            });
            let (bell, metrics) = runtime.block_on(async {
                let waiting = vigie_runtime::spawn(async move {
                    bell.rung().await.expect("it rings");
                    (bell, here())
                });
                waiting.await.expect("no panic")
            });
            let (_button, before) = presser.join().expect("no panic");
            assert_eq!(metrics.event_delay.count(), before + 1);
            let report = find(&metrics).expect("it is registered");
            let detection = report.detection.expect("no callback hangs");
            assert_eq!((report.pending, detection.events, detection.hits), (0, 1, 1));
            assert!(detection.polls >= 1 && detection.strategy.to_string().contains("sleep"));
            assert!(metrics.detection.events >= 1);
            drop(bell);
        }
    });
}

/// Goal: a long poll is counted, and remembered with the task's name or its spawn site; a hog is told
/// apart from it. Method: one of each, whose length is a lower bound; short tasks beside them.
#[test]
fn long_polls_are_named() {
    against_hang(|| {
        for flavor in COUNTING {
            let builder = Runtime::builder().flavor(flavor).workers(1);
            let builder = builder.quantum(Duration::from_millis(100));
            let runtime = builder.long_poll(Duration::from_millis(20)).build().expect("a runtime");
            let (metrics, line) = runtime.block_on(async {
                let long = Duration::from_millis(25);
                let named = task::Builder::new().name("named").spawn(async move { hog(long) });
                named.await.expect("no panic");
                let line = line!() + 1;
                let unnamed = vigie_runtime::spawn(async { hog(Duration::from_secs(1)) });
                unnamed.await.expect("no panic");
                let handle = Handle::current();
                if flavor == Flavor::Hybrid {
                    settle::until(|| handle.metrics().hogs >= 1);
                }
                (handle.metrics(), line)
            });
            let latest = &metrics.latest_long_polls;
            let of_name = |name| latest.iter().find(move |poll| poll.name.as_deref() == name);
            let named = of_name(Some("named")).expect("it is remembered");
            assert!(named.duration >= Duration::from_millis(20), "{named:?}");
            let unnamed = latest.iter().find(|poll| poll.site.line() == line).expect("remembered");
            assert_eq!((unnamed.name.as_deref(), unnamed.site.file()), (None, file!()));
            assert!(unnamed.duration > named.duration || named.duration.as_secs() > 0);
            assert!(metrics.hogs >= 1 && metrics.long_polls > metrics.hogs, "{metrics:?}");
        }
    });
}

/// Goal: a hog is visible while it lasts, and that a reserve thread was called. Method: the only
/// worker is blocked until an event was served.
#[test]
fn a_hog_is_seen_while_it_lasts() {
    against_hang(|| {
        let runtime = Runtime::builder().workers(1).build().expect("a runtime");
        let (button, bell) = doorbell(runtime.server()).expect("a doorbell");
        let (served, is_served) = mpsc::channel::<()>();
        let (seen, is_seen) = mpsc::channel::<()>();
        let serving = runtime.spawn(async move {
            bell.rung().await.expect("it rings");
            served.send(()).expect("the hog waits");
        });
        let hog = task::Builder::new().name("the hog").spawn_on(
            async move {
                button.press();
                is_served.recv().expect("a reserve thread serves");
                is_seen.recv().expect("the test reads the metrics");
            },
            runtime.handle(),
        );
        let metrics = || runtime.handle().metrics();
        // Whichever thread runs it: where the machine stops the worker for long, a reserve thread comes for the other task first.
        let is_hog = |metrics: &Metrics| {
            let mut current = metrics.threads.iter().filter_map(|thread| thread.current.as_ref());
            current.any(|task| task.name.as_deref() == Some("the hog"))
        };
        settle::until(|| is_hog(&metrics()));
        settle::until(|| metrics().reserve.is_some_and(|reserve| reserve.new_threads >= 1));
        let during = metrics();
        seen.send(()).expect("the hog waits");
        runtime.block_on(async {
            serving.await.expect("no panic");
            hog.await.expect("no panic");
        });
        let reserve = during.reserve.expect("the hybrid flavor has some");
        assert!(reserve.calls >= 1 && reserve.new_threads >= 1 && reserve.limit == 512);
        assert!(reserve.serving + reserve.spare >= 1, "{reserve:?}");
        settle::until(|| !is_hog(&metrics()));
    });
}
