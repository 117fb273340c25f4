//! Sets of local tasks.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::mpsc,
    thread,
    time::Duration,
};

use tokio::sync::oneshot;
use vigie_runtime::{
    Flavor, Runtime, spawn, spawn_local,
    task::{JoinSet, LocalSet},
    time::sleep,
    yield_now,
};

use crate::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
};

/// Goal: tasks of a set run on its thread on every flavor, wherever they are woken from, and keep what is not
/// `Send`. Method: tasks that wait for a timer, for each other, for a task of the runtime, and for a thread.
#[test]
fn a_set_runs_on_its_thread() {
    against_hang(|| {
        for flavor in FLAVORS {
            let runtime = runtime(flavor);
            let here = thread::current().id();
            let log = Rc::new(RefCell::new(Vec::new()));
            let set = LocalSet::new();
            let early = set.spawn_local({
                let log = Rc::clone(&log);
                async move { log.borrow_mut().push("early") }
            });
            let from_thread = set.block_on(&runtime, async {
                let (send, receive) = oneshot::channel();
                let waits = spawn_local({
                    let log = Rc::clone(&log);
                    async move {
                        sleep(Duration::from_millis(1)).await;
                        let value = spawn(async { 5 }).await.expect("it ends");
                        log.borrow_mut().push("waits");
                        send.send(value).expect("it is received");
                        assert_eq!(thread::current().id(), here);
                    }
                });
                assert_eq!(receive.await, Ok(5));
                waits.await.expect("it ends");
                let (send, receive) = oneshot::channel();
                let task = spawn_local(async move { (receive.await, thread::current().id()) });
                yield_now().await;
                thread::spawn(move || send.send(6)).join().expect("no panic").expect("received");
                task.await.expect("it ends")
            });
            assert_eq!(from_thread, (Ok(6), here), "{flavor}");
            runtime.block_on(early).expect("it has ended");
            assert_eq!(*log.borrow(), ["early", "waits"], "{flavor}");
        }
    });
}

/// Goal: awaiting the set waits for its tasks, those that they spawn included; a panic and an abort stay in
/// their task. Method: a task that spawns, one that panics, one that is aborted.
#[test]
fn a_set_ends_with_its_last_task() {
    against_hang(|| {
        for flavor in FLAVORS {
            let runtime = runtime(flavor);
            let set = LocalSet::new();
            let ended = Rc::new(Cell::new(0));
            let count = Rc::clone(&ended);
            let parent = set.spawn_local(async move {
                for _ in 0..200 {
                    let count = Rc::clone(&count);
                    spawn_local(async move {
                        yield_now().await;
                        count.set(count.get() + 1);
                    })
                    .detach();
                }
            });
            let panics = set.spawn_local(async { panic!("planned") });
            let aborted = set.spawn_local(std::future::pending::<()>());
            aborted.abort();
            runtime.block_on(set);
            assert_eq!(ended.get(), 200, "{flavor}");
            runtime.block_on(parent).expect("it ended");
            assert!(runtime.block_on(panics).expect_err("it panicked").is_panic());
            assert!(runtime.block_on(aborted).expect_err("it was aborted").is_cancelled());
        }
    });
}

/// Goal: dropping the set drops its tasks, there and then, and their handles say so. Method: a task that waits
/// for ever and owns something; a destructor that spawns.
#[test]
fn a_dropped_set_cancels_its_tasks() {
    against_hang(|| {
        struct Spawns(Rc<Cell<bool>>);
        impl Drop for Spawns {
            fn drop(&mut self) {
                let spawned = spawn_local(std::future::pending::<()>());
                self.0.set(spawned.is_finished());
            }
        }
        let runtime = runtime(Flavor::Hybrid);
        let (owned, refused) = (Rc::new(()), Rc::new(Cell::new(false)));
        let set = LocalSet::new();
        let held = (Rc::clone(&owned), Spawns(Rc::clone(&refused)));
        let task = set.spawn_local(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        set.block_on(&runtime, yield_now());
        assert_eq!(Rc::strong_count(&owned), 2);
        drop(set);
        assert_eq!(Rc::strong_count(&owned), 1);
        assert!(refused.get(), "a task that is spawned then is cancelled");
        assert!(runtime.block_on(task).expect_err("cancelled").is_cancelled());
    });
}

/// Goal: while a local task computes, the hybrid runtime serves the events of its other tasks. Method: the
/// local task waits, without yielding, for an answer that another task gives after a timer and a notification.
#[test]
fn events_are_served_beside_a_local_hog() {
    against_hang(|| {
        let runtime = runtime(Flavor::Hybrid);
        let value = LocalSet::new().block_on(&runtime, async {
            let (send, answer) = mpsc::channel();
            spawn(async move {
                sleep(Duration::from_millis(1)).await;
                send.send(7).expect("it is awaited");
            })
            .detach();
            spawn_local(async move { answer.recv().expect("it is sent") }).await
        });
        assert_eq!(value.expect("it ends"), 7);
    });
}

/// Goal: a join set collects local tasks of a set, and sets nest. Method: both, with tasks that are not `Send`.
#[test]
fn sets_combine() {
    against_hang(|| {
        let runtime = Runtime::builder().workers(1).build().expect("a runtime");
        let outer = LocalSet::new();
        let sum = outer.block_on(&runtime, async {
            let mut set = JoinSet::new();
            for n in 1..=3 {
                let n = Rc::new(n);
                set.spawn_local(async move { *n });
            }
            let inner = LocalSet::new();
            let n = Rc::new(10);
            set.spawn_local_on(async move { *n }, &inner);
            inner.run_until(async { set.join_all().await.into_iter().sum::<i32>() }).await
        });
        assert_eq!(sum, 16);
    });
}
