//! Local tasks, and the thread that they belong to.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    sync::{Arc, Barrier},
    task::Poll,
    thread,
};

use tokio::sync::oneshot;
use vigie_runtime::{Flavor, spawn, spawn_local, yield_now};

use crate::{flavors::runtime, kit::guard::against_hang};

/// Goal: a local task survives that its runtime runs on another thread meanwhile, and is polled by its own
/// thread alone. Method: it waits, and another one is ready, when its thread leaves; another thread wakes
/// the first inside a `block_on` of its own; then their thread comes back.
#[test]
fn a_local_task_waits_for_its_thread() {
    against_hang(|| {
        let runtime = runtime(Flavor::UserLevel);
        let (send, receive) = oneshot::channel();
        let (value, turns) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (waiting, ready) = runtime.block_on(async {
            let (changed, counted) = (Rc::clone(&value), Rc::clone(&turns));
            let waiting = spawn_local(async move {
                changed.set(1);
                changed.set(receive.await.expect("it is sent"));
            });
            let ready = spawn_local(async move {
                for _ in 0..10 {
                    counted.set(counted.get() + 1);
                    yield_now().await;
                }
            });
            while value.get() == 0 || turns.get() == 0 {
                yield_now().await;
            }
            (waiting, ready)
        });
        let before = turns.get();
        thread::scope(|scope| {
            let runtime = &runtime;
            let other = scope.spawn(move || {
                runtime.block_on(async {
                    send.send(7).expect("the local task waits");
                    for _ in 0..100 {
                        yield_now().await;
                    }
                    spawn(yield_now()).await.expect("a task that is not local runs");
                });
            });
            other.join().expect("no panic in the scheduler");
        });
        assert_eq!((value.get(), turns.get()), (1, before), "polled on their thread alone");
        runtime.block_on(async {
            waiting.await.expect("it has survived");
            ready.await.expect("it has survived");
        });
        assert_eq!((value.get(), turns.get()), (7, 10));
    });
}

/// Goal: threads that are inside `block_on` at the same time all run their local tasks, whichever of them
/// runs the rest. Method: local tasks of three threads that wake each other in a ring; each thread awaits
/// its own.
#[test]
fn threads_run_their_own_local_tasks() {
    const ROUNDS: usize = 100;
    against_hang(|| {
        let runtime = Arc::new(runtime(Flavor::UserLevel));
        let entered = Arc::new(Barrier::new(3));
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<usize>();
            senders.push(sender);
            receivers.push(receiver);
        }
        senders[0].send(0).expect("the receiver is there");
        senders.rotate_left(1);
        let threads: Vec<_> = senders
            .into_iter()
            .zip(receivers)
            .map(|(next, mut previous)| {
                let (runtime, entered) = (Arc::clone(&runtime), Arc::clone(&entered));
                thread::spawn(move || {
                    let rounds = Rc::new(Cell::new(0));
                    let counted = Rc::clone(&rounds);
                    entered.wait();
                    runtime.block_on(async {
                        let task = spawn_local(async move {
                            let home = thread::current().id();
                            for _ in 0..ROUNDS {
                                let Some(number) = previous.recv().await else { return };
                                assert_eq!(thread::current().id(), home);
                                counted.set(counted.get() + 1);
                                // The last one of the ring may be over.
                                let _ = next.send(number + 1);
                            }
                        });
                        task.await.expect("no panic");
                    });
                    rounds.get()
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), ROUNDS);
        }
    });
}

/// Goal: an abort reaches a local task whose thread is elsewhere, and its future is dropped on its own
/// thread. Method: abort it from another thread's `block_on`, then come back.
#[test]
fn a_local_task_is_aborted_from_elsewhere() {
    struct Tell(Rc<Cell<bool>>);

    impl Drop for Tell {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }

    against_hang(|| {
        let runtime = runtime(Flavor::UserLevel);
        let is_dropped = Rc::new(Cell::new(false));
        let tell = Tell(Rc::clone(&is_dropped));
        let mut task = None;
        runtime.block_on(async {
            task = Some(spawn_local(async move {
                let _tell = tell;
                std::future::pending::<()>().await;
            }));
            yield_now().await;
        });
        let task = task.expect("spawned");
        let task = thread::scope(|scope| {
            let runtime = &runtime;
            let other = scope.spawn(move || {
                runtime.block_on(async {
                    task.abort();
                    for _ in 0..10 {
                        yield_now().await;
                    }
                });
                task
            });
            other.join().expect("no panic")
        });
        assert!(!is_dropped.get(), "its thread was elsewhere");
        let mut task = pin!(task);
        runtime.block_on(poll_fn(|cx| match task.as_mut().poll(cx) {
            Poll::Ready(ended) => {
                assert!(ended.expect_err("it was aborted").is_cancelled());
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        }));
        assert!(is_dropped.get());
    });
}
