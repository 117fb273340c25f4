//! The life of a runtime: it ends cleanly, whatever its tasks wait for and wherever it is dropped.

use std::{
    future::{Future, pending, poll_fn},
    os::unix::net::UnixStream as StdUnixStream,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use tokio::io::AsyncReadExt;
use vigie_detect::{
    detectors::{channel::channel, doorbell::doorbell},
    net::UnixStream,
};
use vigie_runtime::{Flavor, Handle, Runtime, spawn, spawn_blocking, time, yield_now};

use crate::{
    census::Census,
    flavors::{FLAVORS, runtime},
    kit::child::in_child,
    leftovers::alone_for_each_flavor,
    settle::until,
    tasks::{assert_cancelled, poll_once, run_until_polled},
};

const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Goal: a runtime that did nothing, or only its work, leaves nothing behind. Method: counts of
/// threads and descriptors; twice, should the first leave something that is reused.
#[test]
fn an_idle_runtime_leaves_nothing() {
    alone_for_each_flavor("shutdown::an_idle_runtime_leaves_nothing", |flavor| {
        for _ in 0..2 {
            drop(runtime(flavor));
            let runtime = runtime(flavor);
            let census = Census::default();
            let sum = runtime.block_on(async {
                let tasks: Vec<_> = (0..100)
                    .map(|n| {
                        let witness = census.witness();
                        spawn(async move {
                            let _witness = witness;
                            yield_now().await;
                            n
                        })
                    })
                    .collect();
                let mut sum = spawn_blocking(|| 1).await.expect("the closure ends");
                for task in tasks {
                    sum += task.await.expect("the task ends");
                }
                sum
            });
            assert_eq!(sum, 4951);
            assert_eq!(runtime.handle().live_task_count(), 0);
            census.assert_settled(flavor);
        }
    });
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One task for each thing that a task may wait for, none of which ever comes.
fn waiting_tasks(runtime: &Runtime) -> Vec<Boxed> {
    let (stream, peer) = StdUnixStream::pair().expect("a pair of sockets");
    let mut stream = UnixStream::from_std_on(runtime.server(), stream).expect("watched");
    let (button, bell) = doorbell(runtime.server()).expect("a doorbell");
    let (sender, receiver) = channel::<u8>(runtime.server(), 4).expect("a channel");
    let (their_sender, mut their_receiver) = tokio::sync::mpsc::channel::<u8>(1);
    let inner = runtime.spawn(pending::<()>());
    vec![
        Box::pin(pending()),
        Box::pin(async move {
            let _peer = peer;
            let _ = stream.read_u8().await;
        }),
        Box::pin(async move {
            let _button = button;
            let _ = bell.rung().await;
        }),
        Box::pin(async move {
            let _sender = sender;
            let _ = receiver.recv().await;
        }),
        Box::pin(async move {
            let _sender = their_sender;
            let _ = their_receiver.recv().await;
        }),
        Box::pin(time::sleep(A_YEAR)),
        Box::pin(async {
            let _ = time::timeout(A_YEAR, pending::<()>()).await;
        }),
        Box::pin(async {
            let mut ticks = time::interval(A_YEAR);
            ticks.tick().await;
            ticks.tick().await;
        }),
        Box::pin(async move {
            let _ = inner.await;
            // The tasks that it waits for may be cancelled first, and it is polled once more.
            pending().await
        }),
        Box::pin(async {
            let _ = spawn(spawn(pending::<()>())).await;
            pending().await
        }),
        Box::pin(async {
            loop {
                yield_now().await;
            }
        }),
    ]
}

/// Goal: whatever tasks wait for, a shutdown drops each once, and says so to the holders of their
/// handles. Method: a task for each kind of waiting, polled at least once; witnesses in them.
#[test]
fn pending_tasks_are_dropped_once() {
    alone_for_each_flavor("shutdown::pending_tasks_are_dropped_once", |flavor| {
        let runtime = runtime(flavor);
        let census = Census::default();
        let polled = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = waiting_tasks(&runtime)
            .into_iter()
            .map(|task| {
                let (witness, polled) = (census.witness(), Arc::clone(&polled));
                runtime.spawn(async move {
                    let _witness = witness;
                    polled.fetch_add(1, Ordering::SeqCst);
                    task.await;
                })
            })
            .collect();
        // One that is never polled on the user-level flavor, and perhaps on the other.
        run_until_polled(&runtime, &polled, tasks.len());
        let witness = census.witness();
        let unpolled = runtime.spawn(async move {
            let _witness = witness;
            pending::<()>().await;
        });
        assert_eq!(census.died(), 0);
        drop(runtime);
        census.assert_settled(flavor);
        for task in tasks {
            assert_cancelled(task);
        }
        assert_cancelled(unpolled);
    });
}

/// Goal: a waker that another thread keeps does no harm after the shutdown. Method: the thread wakes
/// again and again, before, during and after the drop.
#[test]
fn a_foreign_waker_outlives_the_runtime() {
    alone_for_each_flavor("shutdown::a_foreign_waker_outlives_the_runtime", |flavor| {
        let runtime = runtime(flavor);
        let census = Census::default();
        let (give, wakers) = mpsc::channel::<Waker>();
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                let waker = wakers.recv().expect("a waker");
                while !is_over.load(Ordering::SeqCst) {
                    waker.wake_by_ref();
                }
                waker.wake_by_ref();
                waker.wake();
            }
        });
        let witness = census.witness();
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let task = runtime.spawn(poll_fn(move |cx| {
            let _ = &witness;
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                give.send(cx.waker().clone()).expect("the thread waits");
            }
            Poll::<()>::Pending
        }));
        run_until_polled(&runtime, &polls, 3);
        drop(runtime);
        census.assert_settled(flavor);
        assert_cancelled(task);
        is_over.store(true, Ordering::SeqCst);
        thread.join().expect("it wakes in vain");
    });
}

/// Goal: a shutdown waits for the closure that runs and cancels the queued one. Method: one blocking
/// thread; the running closure is released once the queued one is seen to be cancelled, which only
/// the shutdown does.
#[test]
fn blocking_closures_at_shutdown() {
    alone_for_each_flavor("shutdown::blocking_closures_at_shutdown", |flavor| {
        let runtime = Runtime::builder()
            .flavor(flavor)
            .workers(2)
            .blocking_threads(1)
            .build()
            .expect("a runtime");
        let (queued, running) = (Census::default(), Census::default());
        let (release, released) = mpsc::channel::<()>();
        let (begin, has_begun) = mpsc::channel::<()>();
        let witness = running.witness();
        let first = runtime.handle().spawn_blocking(move || {
            let _witness = witness;
            begin.send(()).expect("the test waits");
            released.recv().expect("the test releases");
            7
        });
        has_begun.recv().expect("it begins");
        let witness = queued.witness();
        let second = runtime.handle().spawn_blocking(move || drop(witness));
        let releaser = thread::spawn({
            let queued = queued.clone();
            move || {
                until(|| queued.is_settled());
                release.send(()).expect("the closure waits");
            }
        });
        drop(runtime);
        running.assert_settled(flavor);
        queued.assert_settled(flavor);
        assert!(matches!(poll_once(first), Poll::Ready(Ok(7))), "it ran to its end");
        assert_cancelled(second);
        releaser.join().expect("it has released");
    });
}

/// Goal: spawning after the end cancels at once, and drops what was given once. Method: the kept
/// handle, for tasks and closures.
#[test]
fn spawn_after_the_end_is_cancelled() {
    alone_for_each_flavor("shutdown::spawn_after_the_end_is_cancelled", |flavor| {
        let runtime = runtime(flavor);
        let handle = runtime.handle().clone();
        drop(runtime);
        let census = Census::default();
        let (task, closure) = (census.witness(), census.witness());
        let task = handle.spawn(async move { drop(task) });
        let closure = handle.spawn_blocking(move || drop(closure));
        census.assert_settled(flavor);
        task.abort();
        assert!(task.is_finished());
        assert_cancelled(task);
        assert_cancelled(closure);
        assert_eq!(handle.live_task_count(), 0);
        assert!(handle.server().is_closed());
    });
}

/// Goal: a runtime dropped inside one of its own tasks ends in the background. Method: it is moved into
/// a task, beside another that waits; then both are gone, and its threads. Hybrid alone: for all flavors, inside
/// `block_on`, see `a_runtime_is_dropped_inside_its_own_task`.
#[test]
fn dropped_inside_its_own_task() {
    alone_for_each_flavor("shutdown::dropped_inside_its_own_task", |_| {
        let census = Census::default();
        let own = runtime(Flavor::Hybrid);
        let handle = own.handle().clone();
        let (witness, bystander) = (census.witness(), census.witness());
        handle
            .spawn(async move {
                let _bystander = bystander;
                pending::<()>().await;
            })
            .detach();
        handle
            .spawn(async move {
                let _witness = witness;
                drop(own);
                // Still running, for this poll; the next one never comes.
                yield_now().await;
                unreachable!("the task was cancelled");
            })
            .detach();
        until(|| census.is_settled());
    });
}

/// Goal: a runtime dropped inside one of its own closures ends there, and does not wait for itself.
/// Method: it is moved into a closure, beside a task that waits.
#[test]
fn dropped_inside_its_own_closure() {
    alone_for_each_flavor("shutdown::dropped_inside_its_own_closure", |flavor| {
        let census = Census::default();
        let own = runtime(flavor);
        let handle = own.handle().clone();
        let witness = census.witness();
        handle
            .spawn(async move {
                let _witness = witness;
                pending::<()>().await;
            })
            .detach();
        let (seen, closed) = (census.clone(), handle.clone());
        let closure = handle.spawn_blocking(move || {
            drop(own);
            seen.assert_settled("at once");
            closed.server().is_closed()
        });
        until(|| closure.is_finished());
        assert!(matches!(poll_once(closure), Poll::Ready(Ok(true))));
    });
}

/// Goal: a task that holds its own runtime among others does not end it. Method: the user-level
/// flavor, where `block_on` holds the runtime meanwhile.
#[test]
fn a_shared_runtime_ends_with_its_last_owner() {
    alone_for_each_flavor("shutdown::a_shared_runtime_ends_with_its_last_owner", |flavor| {
        let shared = Arc::new(runtime(flavor));
        let theirs = Arc::clone(&shared);
        let task = shared.spawn(async move { drop(theirs) });
        shared.block_on(task).expect("the task ends");
        assert!(!shared.server().is_closed());
        let server = shared.server().clone();
        drop(shared);
        assert!(server.is_closed());
    });
}

/// Goal: a runtime may be dropped in a task of another. Method: all pairs of flavors; both have
/// pending tasks, which are dropped once.
#[test]
fn dropped_inside_another_runtimes_task() {
    alone_for_each_flavor("shutdown::dropped_inside_another_runtimes_task", |outer_flavor| {
        for inner_flavor in FLAVORS {
            let census = Census::default();
            let outer = runtime(outer_flavor);
            let inner = runtime(inner_flavor);
            let polled = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&polled);
            let witness = census.witness();
            inner
                .spawn(async move {
                    let _witness = witness;
                    counted.fetch_add(1, Ordering::SeqCst);
                    time::sleep(A_YEAR).await;
                })
                .detach();
            run_until_polled(&inner, &polled, 1);
            let witness = census.witness();
            let task = outer.spawn(async move {
                let _witness = witness;
                drop(inner);
                yield_now().await;
                Handle::current().flavor()
            });
            assert_eq!(outer.block_on(task).expect("it ends"), outer_flavor);
            until(|| census.is_settled());
            // Once more as something that a cancelled task owns.
            let inner = runtime(inner_flavor);
            let witness = census.witness();
            inner
                .spawn(async move {
                    let _witness = witness;
                    pending::<()>().await;
                })
                .detach();
            let task = outer.spawn(async move {
                let _inner = inner;
                pending::<()>().await;
            });
            task.abort();
            outer.block_on(task).expect_err("aborted");
            until(|| census.is_settled());
        }
    });
}

/// Goal: a handle outlives its runtime, and tells how its task ended. Method: a task with a result, a
/// panic, a cancellation; handles dropped, asked, awaited in another runtime.
#[test]
fn join_handles_outlive_the_runtime() {
    alone_for_each_flavor("shutdown::join_handles_outlive_the_runtime", |flavor| {
        let runtime = runtime(flavor);
        let census = Census::default();
        let (output, kept) = (census.witness(), census.witness());
        let ended = runtime.spawn(async move { output });
        let forgotten = runtime.spawn(async move { kept });
        let panicked = runtime.spawn(async { panic!("planted: a task") });
        let waiting = runtime.spawn(pending::<()>());
        let (also_waiting, dropped) =
            (runtime.spawn(pending::<()>()), runtime.spawn(pending::<()>()));
        runtime.block_on(async {
            while !(ended.is_finished() && forgotten.is_finished() && panicked.is_finished()) {
                yield_now().await;
            }
        });
        drop(runtime);
        assert_eq!(census.died(), 0, "results wait for those who want them");
        drop((forgotten, dropped));
        assert_eq!(census.died(), 1);
        also_waiting.abort();
        let other = self::runtime(flavor);
        other.block_on(async {
            drop(ended.await.expect("it had ended"));
            let panicked: Result<(), _> = panicked.await;
            assert!(panicked.expect_err("it panicked").is_panic());
            assert!(waiting.await.expect_err("cancelled").is_cancelled());
            assert!(also_waiting.await.expect_err("cancelled").is_cancelled());
        });
        census.assert_settled(flavor);
    });
}

/// Goal: whichever thread spawns or wakes while the runtime ends, no task is left in between: each is dropped
/// by the time that the drop returns, or at once. Method: two threads spawn and wake without pause
/// while the runtime is dropped, many times over.
#[test]
fn spawning_and_waking_race_with_the_shutdown() {
    in_child("shutdown::spawning_and_waking_race_with_the_shutdown", || {
        for round in 0..60 {
            let flavor = FLAVORS[round % FLAVORS.len()];
            let census = Census::default();
            let builder = Runtime::builder().flavor(flavor).workers(2).task_threads(64);
            let runtime = builder.build().expect("a runtime");
            let handle = runtime.handle().clone();
            let wakers = wakers_of_tasks(&runtime, &census, 4);
            let [is_over, is_spawning, is_waking] = [const { AtomicBool::new(false) }; 3];
            let tasks = thread::scope(|scope| {
                let spawner = scope.spawn(|| {
                    let mut tasks = Vec::new();
                    while !is_over.load(Ordering::SeqCst) {
                        let witness = census.witness();
                        tasks.push(handle.spawn(async move {
                            let _witness = witness;
                            pending::<()>().await;
                        }));
                        is_spawning.store(true, Ordering::SeqCst);
                    }
                    tasks
                });
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        wakers.iter().for_each(Waker::wake_by_ref);
                        is_waking.store(true, Ordering::SeqCst);
                    }
                });
                for is_running in [&is_spawning, &is_waking] {
                    until(|| is_running.load(Ordering::SeqCst));
                }
                drop(runtime);
                is_over.store(true, Ordering::SeqCst);
                spawner.join().expect("it spawns in vain")
            });
            assert_eq!(handle.live_task_count(), 0, "round {round}, {flavor}");
            tasks.into_iter().for_each(assert_cancelled);
            census.assert_settled(format_args!("round {round}, {flavor}"));
        }
    });
}

/// Spawns tasks that wait for nothing, and returns the wakers that they were polled with.
fn wakers_of_tasks(runtime: &Runtime, census: &Census, count: usize) -> Vec<Waker> {
    let (give, wakers) = mpsc::channel();
    for _ in 0..count {
        let (witness, give) = (census.witness(), give.clone());
        runtime
            .spawn(poll_fn(move |cx| {
                let _ = &witness;
                // The test takes the first of each task.
                let _ = give.send(cx.waker().clone());
                Poll::<()>::Pending
            }))
            .detach();
    }
    runtime.block_on(async {
        let mut taken = Vec::new();
        while taken.len() < count {
            yield_now().await;
            taken.extend(wakers.try_iter());
        }
        taken
    })
}

/// Goal: a runtime that is dropped inside its own task does not wait for itself: it cancels its other tasks, and the future
/// of `block_on` goes on. Method: on each flavor, a task that drops it beside one that waits for ever.
#[test]
fn a_runtime_is_dropped_inside_its_own_task() {
    for flavor in FLAVORS {
        let runtime = runtime(flavor);
        let (handle, census) = (runtime.handle().clone(), Census::default());
        let witness = census.witness();
        let other = handle.spawn(async move {
            let _witness = witness;
            pending::<()>().await;
        });
        let (sender, is_dropped) = tokio::sync::oneshot::channel::<()>();
        handle.spawn(async move { drop((runtime, sender)) }).detach();
        handle.block_on(async {
            is_dropped.await.expect_err("it is dropped, and not used");
            yield_now().await;
        });
        until(|| census.is_settled());
        until(|| other.is_finished());
    }
}

/// Goal: a user-level runtime that is dropped while another thread runs it waits for that thread no longer than it may.
/// Method: a thread in `block_on` that ends after the shutdown has given up.
#[test]
fn a_runtime_is_dropped_while_another_thread_runs_it() {
    let runtime = runtime(Flavor::UserLevel);
    let handle = runtime.handle().clone();
    let census = Census::default();
    let witness = census.witness();
    handle
        .spawn(async move {
            let _witness = witness;
            pending::<()>().await;
        })
        .detach();
    let (begun, has_begun) = mpsc::channel();
    let (sender, is_over) = tokio::sync::oneshot::channel::<()>();
    let driver = thread::spawn(move || {
        handle.block_on(async {
            begun.send(()).expect("received");
            is_over.await.expect("sent");
        });
    });
    has_begun.recv().expect("it runs");
    let error = runtime.shutdown_timeout(Duration::from_millis(20)).expect_err("it is run");
    assert!(error.to_string().contains("1 thread"), "{error}");
    until(|| census.is_settled());
    sender.send(()).expect("it waits");
    driver.join().expect("no panic");
}
