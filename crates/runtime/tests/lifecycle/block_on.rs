//! Entering a runtime: again and again, from several threads, and from where it is not allowed.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use vigie_runtime::{Flavor, spawn, time, yield_now};

use crate::{
    flavors::{FLAVORS, runtime},
    guard::against_hang,
};

fn for_each_flavor(test: fn(Flavor)) {
    against_hang(move || FLAVORS.into_iter().for_each(test));
}

/// Goal: a runtime can be entered again and again, and what was spawned before goes on. Method: a task
/// that needs both times; a main future that panics in between.
#[test]
fn block_on_twice() {
    for_each_flavor(|flavor| {
        let runtime = runtime(flavor);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = runtime.spawn(receiver);
        runtime.block_on(yield_now());
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                yield_now().await;
                panic!("planted: the main future");
            });
        }));
        assert!(panicked.is_err());
        runtime.block_on(async { sender.send(3).expect("the task waits") });
        let received = runtime.block_on(task).expect("the task ends");
        assert_eq!(received, Ok(3));
    });
}

/// Goal: several threads may be in `block_on`. Method: four threads, a hundred turns each; nobody
/// depends on another, since on the user-level flavor they take turns.
#[test]
fn block_on_from_several_threads() {
    for_each_flavor(|flavor| {
        let runtime = runtime(flavor);
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..100 {
                        let result = runtime.block_on(async {
                            let task = spawn(async move {
                                yield_now().await;
                                turn
                            });
                            time::sleep(Duration::from_micros(1)).await;
                            task.await
                        });
                        total.fetch_add(result.expect("it ends"), Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::SeqCst), 4 * 4950);
        assert_eq!(runtime.handle().live_task_count(), 0);
    });
}

/// Goal: `block_on` inside a task panics with its message, and the runtime survives. Method: from
/// tasks of either flavor, into the same runtime and into another.
#[test]
fn block_on_inside_a_task_panics() {
    for_each_flavor(|flavor| {
        let outer = Arc::new(runtime(flavor));
        for other in FLAVORS {
            for inner in [Arc::clone(&outer), Arc::new(runtime(other))] {
                let task = outer.spawn(async move { inner.block_on(async {}) });
                let error = outer.block_on(task).expect_err("it panicked");
                let message = "the task panicked: `block_on` inside a task would stop its worker";
                assert!(error.to_string().starts_with(message), "{error}");
            }
        }
        assert_eq!(outer.block_on(async { spawn(async { 4 }).await }).expect("it lives"), 4);
    });
}
