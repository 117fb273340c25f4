//! Entering a runtime: again and again, from several threads, and from where it is not allowed.

use std::{
    future::{Future, poll_fn},
    io::Write,
    mem,
    os::unix::net::UnixStream as StdUnixStream,
    panic::{self, AssertUnwindSafe},
    pin::{Pin, pin},
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tokio::io::AsyncReadExt;
use vigie_detect::net::UnixStream;
use vigie_runtime::{Flavor, spawn, spawn_blocking, time, yield_now};

use crate::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
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

/// Goal: several threads may be in `block_on`. Method: four threads, a hundred calls each; none
/// depends on another, since on the user-level flavor they take turns.
#[test]
fn block_on_from_several_threads() {
    for_each_flavor(|flavor| {
        let runtime = runtime(flavor);
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for call in 0..100 {
                        let result = runtime.block_on(async {
                            let task = spawn(async move {
                                yield_now().await;
                                call
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

/// Goal: a closure on a blocking thread may enter its own runtime, while the thread that waits for the
/// closure is inside `block_on`. Method: the closure awaits a timer, a task and a wake-up by the main
/// future.
#[test]
fn block_on_inside_spawn_blocking() {
    for_each_flavor(|flavor| {
        let runtime = Arc::new(runtime(flavor));
        let inner = Arc::clone(&runtime);
        let (send, receive) = tokio::sync::oneshot::channel();
        let sum = runtime.block_on(async move {
            let closure = spawn_blocking(move || {
                inner.block_on(async move {
                    time::sleep(Duration::from_micros(1)).await;
                    let task = spawn(async {
                        yield_now().await;
                        40
                    });
                    receive.await.expect("the main future sends") + task.await.expect("it ends")
                })
            });
            yield_now().await;
            send.send(2).expect("the closure waits");
            closure.await
        });
        assert_eq!(sum.expect("no panic"), 42, "{flavor}");
    });
}

/// Goal: when a thread leaves `block_on` on which the runtime ran, one of those that are inside it too
/// takes over. Method: each of four threads leaves only when it is told to by a task that the next thread
/// awaits; the timers and tasks of the last one need a host until the end.
#[test]
fn block_on_is_taken_over() {
    for_each_flavor(|flavor| {
        let runtime = Arc::new(runtime(flavor));
        let entered = Arc::new(Barrier::new(4));
        let (mut tell, mut told) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let (send, receive) = tokio::sync::oneshot::channel::<()>();
            tell.push(send);
            told.push(receive);
        }
        let mut tell = tell.into_iter();
        // The first is told by this thread, each further one by its predecessor.
        let first = tell.next().expect("there are four");
        let threads: Vec<_> = told
            .into_iter()
            .map(|told| {
                let next = tell.next();
                let (runtime, entered) = (Arc::clone(&runtime), Arc::clone(&entered));
                thread::spawn(move || {
                    let mut is_inside = false;
                    let mut told = pin!(told);
                    runtime.block_on(async {
                        poll_fn(|cx| {
                            let polled = told.as_mut().poll(cx);
                            if !mem::replace(&mut is_inside, true) {
                                entered.wait();
                            }
                            polled
                        })
                        .await
                        .expect("the predecessor tells");
                        time::sleep(Duration::from_micros(1)).await;
                        spawn(yield_now()).await.expect("it ends");
                    });
                    if let Some(next) = next {
                        next.send(()).expect("it waits");
                    }
                })
            })
            .collect();
        first.send(()).expect("it waits");
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

/// Goal: a thread that sleeps inside `block_on` takes over although nothing wakes its own future. Method:
/// the thread awaits a byte, which is sent when the one that had entered first has left; many times, since
/// it may take the place before it sleeps.
#[test]
fn a_sleeping_thread_takes_over() {
    for_each_flavor(|flavor| {
        let runtime = Arc::new(runtime(flavor));
        for _ in 0..50 {
            let (told, is_reported) = mpsc::channel();
            let (leave, leaves) = tokio::sync::oneshot::channel::<()>();
            let enter = |future: Pin<Box<dyn Future<Output = ()> + Send>>| {
                let (runtime, told) = (Arc::clone(&runtime), told.clone());
                let mut future = future;
                let thread = thread::spawn(move || {
                    runtime.block_on(poll_fn(|cx| {
                        let polled = future.as_mut().poll(cx);
                        let _ = told.send(());
                        polled
                    }));
                });
                is_reported.recv().expect("it is inside");
                thread
            };
            let first = enter(Box::pin(async { leaves.await.expect("it is told to leave") }));
            let (near, mut far) = StdUnixStream::pair().expect("a pair of sockets");
            let second = enter(Box::pin(async {
                let mut near = UnixStream::from_std(near).expect("watched");
                assert_eq!(near.read_u8().await.expect("a byte"), 6);
            }));
            leave.send(()).expect("it waits");
            first.join().expect("no panic");
            far.write_all(&[6]).expect("room");
            second.join().expect("no panic");
        }
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
                let message = "panicked with message \"`block_on` inside a task, or inside another";
                assert!(error.to_string().contains(message), "{error}");
            }
        }
        assert_eq!(outer.block_on(async { spawn(async { 4 }).await }).expect("it lives"), 4);
    });
}
