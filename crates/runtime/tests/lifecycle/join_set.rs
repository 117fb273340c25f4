//! Sets of tasks, handles that abort, and threads that enter a runtime.

use std::{
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use vigie_runtime::{Flavor, Handle, spawn, task::JoinSet, time, yield_now};

use crate::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
    tasks::{assert_cancelled, poll_once},
};

/// Goal: a set gives each result once, in the order in which the tasks end, whatever the flavor; then `None`. Method: tasks that are let go
/// in another order than that of their making.
#[test]
fn results_come_in_the_order_of_ends() {
    against_hang(|| {
        for flavor in FLAVORS {
            let results = runtime(flavor).block_on(async {
                let mut set = JoinSet::new();
                let mut gates = Vec::new();
                for number in 0..5 {
                    let (gate, opened) = tokio::sync::oneshot::channel::<()>();
                    gates.push(Some(gate));
                    let _abort = set.spawn(async move { opened.await.map(|()| number) });
                }
                let mut results = Vec::new();
                for number in [3, 0, 4, 1, 2] {
                    gates[number].take().expect("once").send(()).expect("the task waits");
                    let result = set.join_next().await.expect("more tasks").expect("no panic");
                    results.push(result.expect("it was let go"));
                }
                assert!(set.is_empty());
                assert!(set.join_next().await.is_none());
                results
            });
            assert_eq!(results, [3, 0, 4, 1, 2], "{flavor:?}");
        }
    });
}

/// Goal: whatever end a task comes to, the set tells of it: a result, a panic, an abort, the end of the runtime. Method: one of each.
#[test]
fn every_end_is_told() {
    against_hang(|| {
        let runtime = runtime(Flavor::Hybrid);
        let mut set = JoinSet::new();
        runtime.block_on(async {
            let _abort = set.spawn(async { 1 });
            let _abort = set.spawn(async { panic!("planned") });
            let aborted = set.spawn(pending());
            aborted.abort();
            let _abort = set.spawn_blocking(|| 2);
            let (mut sum, mut panics, mut cancelled) = (0, 0, 0);
            for _ in 0..4 {
                match set.join_next().await.expect("four tasks") {
                    Ok(value) => sum += value,
                    Err(error) if error.is_panic() => panics += 1,
                    Err(error) => cancelled += u32::from(error.is_cancelled()),
                }
            }
            assert_eq!((sum, panics, cancelled), (3, 1, 1));
            assert!(aborted.is_finished());
            let _abort = set.spawn(pending());
        });
        drop(runtime);
        let left = set.try_join_next().expect("the task went with the runtime");
        assert!(left.is_err_and(|error| error.is_cancelled()));
    });
}

/// Goal: a result that a dropped `join_next` did not return stays in the set. Method: each `join_next` is polled once, and dropped.
#[test]
fn dropped_waits_lose_nothing() {
    against_hang(|| {
        let results = runtime(Flavor::Hybrid).block_on(async {
            let mut set: JoinSet<u32> = (0..100).map(|number| async move { number }).collect();
            let mut results = Vec::new();
            while !set.is_empty() {
                if let Poll::Ready(Some(result)) = poll_once(set.join_next()) {
                    results.push(result.expect("no panic"));
                }
                yield_now().await;
            }
            results.sort_unstable();
            results
        });
        assert_eq!(results, (0..100).collect::<Vec<_>>());
    });
}

/// Goal: the latest waker is woken by the next end, and by no more than is needed. Method: two wakers that count, by hand.
#[test]
fn the_latest_waker_is_woken() {
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    against_hang(|| {
        let runtime = runtime(Flavor::UserLevel);
        let _guard = runtime.enter();
        let mut set = JoinSet::new();
        let _abort = set.spawn(async { 7 });
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        for count in [&first, &second] {
            let waker = Waker::from(Arc::clone(count));
            assert!(set.poll_join_next(&mut Context::from_waker(&waker)).is_pending());
            assert!(set.try_join_next().is_none());
        }
        runtime.block_on(yield_now());
        assert_eq!(first.0.load(Ordering::SeqCst), 0);
        assert!(second.0.load(Ordering::SeqCst) > 0);
        assert!(set.try_join_next().is_some_and(|result| result.is_ok_and(|value| value == 7)));
    });
}

/// Goal: a spawn that panics leaves the set as it was. Method: spawns outside a runtime, then one inside.
#[test]
fn a_spawn_that_panics_changes_nothing() {
    against_hang(|| {
        let mut set = JoinSet::new();
        for _ in 0..2 {
            let spawn = AssertUnwindSafe(|| set.spawn(async { 1 }));
            assert!(catch_unwind(spawn).is_err(), "no runtime is here");
        }
        assert!(set.is_empty() && set.try_join_next().is_none());
        runtime(Flavor::Hybrid).block_on(async {
            let (_one, _other) = (set.spawn(async { 2 }), set.spawn(async { 3 }));
            let mut sum = 0;
            while let Some(result) = set.join_next().await {
                sum += result.expect("no panic");
            }
            assert_eq!(sum, 5);
        });
    });
}

/// Goal: a set tells of local tasks, also if they are leaked, since another thread has dropped the runtime. Method: one that ends, and one that waits
/// for ever.
#[test]
fn leaked_local_tasks_are_told_of() {
    against_hang(|| {
        let mut set = JoinSet::new();
        let runtime = runtime(Flavor::UserLevel);
        runtime.block_on(async {
            let (_one, _other) = (set.spawn_local(async { 1 }), set.spawn_local(pending()));
            assert!(set.join_next().await.is_some_and(|result| result.is_ok_and(|one| one == 1)));
        });
        thread::spawn(move || drop(runtime)).join().expect("no panic");
        let left = set.try_join_next().expect("the task is over");
        assert!(left.is_err_and(|error| error.is_cancelled()));
        assert!(set.is_empty());
    });
}

/// Goal: dropping a set ends its tasks, and detaching lets them go on. Method: tasks that wait for a message, which one of two sets leaves alone.
#[test]
fn sets_end_or_leave_their_tasks() {
    against_hang(|| {
        let runtime = runtime(Flavor::Hybrid);
        let (told, tells) = mpsc::channel();
        let mut senders = Vec::new();
        let mut set = JoinSet::new();
        for detaches in [false, true] {
            let (sender, receiver) = tokio::sync::oneshot::channel::<&str>();
            senders.push(sender);
            let told = told.clone();
            let task =
                async move { told.send(receiver.await.expect("a message")).expect("a test") };
            let _abort = set.spawn_on(task, runtime.handle());
            if detaches {
                set.detach_all();
                assert!(set.is_empty());
            } else {
                drop(std::mem::take(&mut set));
            }
        }
        let detached = senders.pop().expect("two");
        runtime.block_on(async {
            // Its receiver goes with the task's future.
            senders.pop().expect("one").closed().await;
        });
        detached.send("still here").expect("the task waits");
        assert_eq!(tells.recv(), Ok("still here"));
    });
}

/// Goal: a task can be aborted once its handle is detached, and both ends are seen. Method: a task that waits for ever, and one that ends.
#[test]
fn detached_tasks_can_be_aborted() {
    against_hang(|| {
        let runtime = runtime(Flavor::Hybrid);
        let (task, ended) = (runtime.spawn(pending::<()>()), runtime.spawn(async {}));
        let (abort, over) = (task.abort_handle(), ended.abort_handle());
        task.detach();
        runtime.block_on(ended).expect("no panic");
        assert!(over.is_finished() && !abort.is_finished());
        over.abort();
        abort.clone().abort();
        runtime.block_on(async {
            while !abort.is_finished() {
                time::sleep(Duration::from_millis(1)).await;
            }
        });
        let task = runtime.spawn(pending::<()>());
        let abort = task.abort_handle();
        drop(runtime);
        assert!(abort.is_finished());
        abort.abort();
        assert_cancelled(task);
    });
}

/// Goal: a plain thread that has entered a runtime can do there what tasks can, and cannot afterwards; guards nest. Method: two runtimes.
#[test]
fn plain_threads_enter() {
    against_hang(|| {
        let (outer, inner) = (runtime(Flavor::Hybrid), runtime(Flavor::KernelLevel));
        let flavor = || Handle::try_current().map(|handle| handle.flavor()).ok();
        assert_eq!(flavor(), None);
        {
            let _outer = outer.enter();
            assert_eq!(flavor(), Some(Flavor::Hybrid));
            {
                let _inner = inner.handle().enter();
                assert_eq!(flavor(), Some(Flavor::KernelLevel));
            }
            let task = spawn(async { 1 });
            let mut timer = pin!(time::sleep(Duration::ZERO));
            assert!(poll_once(timer.as_mut()).is_ready());
            assert!(matches!(outer.block_on(task), Ok(1)));
        }
        assert_eq!(flavor(), None);
    });
}
