//! Wakes from foreign threads, many at once: none is lost, none is extra.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    thread,
};

use vigie_runtime::{JoinHandle, Runtime};

use super::alive::assert_alive;
use crate::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
    settle::until,
};

/// Shared by a task and the threads that wake it: a number that they raise, and its waker.
#[derive(Debug, Default)]
struct Target {
    raised: AtomicUsize,
    seen: AtomicUsize,
    polls: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl Target {
    /// Spawns a task that ends once it has seen `count`.
    fn spawn(this: &Arc<Self>, runtime: &Runtime, count: usize) -> JoinHandle<()> {
        let this = Arc::clone(this);
        runtime.spawn(poll_fn(move |cx| {
            this.polls.fetch_add(1, Ordering::SeqCst);
            let previous = this.waker.lock().expect("no panic").replace(cx.waker().clone());
            drop(previous);
            let raised = this.raised.load(Ordering::SeqCst);
            this.seen.store(raised, Ordering::SeqCst);
            if raised >= count { Poll::Ready(()) } else { Poll::Pending }
        }))
    }

    /// Returns the waker of the task's last poll, and leaves it there.
    fn waker(&self) -> Option<Waker> {
        self.waker.lock().expect("no panic").clone()
    }
}

fn run_until_all_end(runtime: &Runtime, tasks: Vec<JoinHandle<()>>) {
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("it ends");
        }
    });
}

/// Goal: a wake-up from a foreign thread is never lost. Method: the thread raises a number, wakes once,
/// and does nothing more until the task has seen it; several pairs at once, so that workers sleep and
/// wake without pause.
#[test]
fn single_wakes_are_heard() {
    const COUNT: usize = 3000;
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = runtime(flavor);
            let targets: Vec<_> = (0..3).map(|_| Arc::new(Target::default())).collect();
            let tasks =
                targets.iter().map(|target| Target::spawn(target, &runtime, COUNT)).collect();
            thread::scope(|scope| {
                for target in &targets {
                    scope.spawn(|| {
                        until(|| target.waker().is_some());
                        for number in 1..=COUNT {
                            target.raised.store(number, Ordering::SeqCst);
                            // The task leaves its waker before it reads the number.
                            target.waker().expect("left there").wake();
                            until(|| target.seen.load(Ordering::SeqCst) >= number);
                        }
                    });
                }
                run_until_all_end(&runtime, tasks);
            });
            assert_eq!(runtime.handle().live_task_count(), 0);
        });
    }
}

/// Goal: needless wakes do no harm: they are joined, the tasks end when they should, and the
/// wakers may be used after that. Method: threads wake all tasks without pause, whether they are idle,
/// queued, running or gone.
#[test]
fn storms_of_wakes() {
    const COUNT: usize = 200;
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = runtime(flavor);
            let targets: Vec<_> = (0..50).map(|_| Arc::new(Target::default())).collect();
            let tasks =
                targets.iter().map(|target| Target::spawn(target, &runtime, COUNT)).collect();
            let wakes = AtomicUsize::new(0);
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while !is_over.load(Ordering::SeqCst) {
                            for target in &targets {
                                let Some(waker) = target.waker() else { continue };
                                waker.wake_by_ref();
                                waker.wake();
                                wakes.fetch_add(2, Ordering::SeqCst);
                            }
                        }
                    });
                }
                scope.spawn(|| {
                    for number in 1..=COUNT {
                        for target in &targets {
                            target.raised.store(number, Ordering::SeqCst);
                        }
                        // Each task is woken after this, for another reason.
                        let before = wakes.load(Ordering::SeqCst);
                        until(|| wakes.load(Ordering::SeqCst) > before);
                    }
                });
                run_until_all_end(&runtime, tasks);
                is_over.store(true, Ordering::SeqCst);
            });
            let polls: usize =
                targets.iter().map(|target| target.polls.load(Ordering::SeqCst)).sum();
            let wakes = wakes.load(Ordering::SeqCst);
            assert!(polls <= wakes + targets.len(), "{polls} polls for {wakes} wakes");
            assert_alive(&runtime);
        });
    }
}

/// Goal: the future of `block_on` hears each wake-up as well. Method: as for tasks, with the main
/// future as the task; notifications of `unpark` come in between.
#[test]
fn the_main_future_is_woken() {
    const COUNT: usize = 3000;
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = runtime(flavor);
            let target = Target::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    until(|| target.waker().is_some());
                    for number in 1..=COUNT {
                        runtime.server().unpark();
                        target.raised.store(number, Ordering::SeqCst);
                        target.waker().expect("left there").wake();
                        until(|| target.seen.load(Ordering::SeqCst) >= number);
                    }
                });
                runtime.block_on(poll_fn(|cx| {
                    *target.waker.lock().expect("no panic") = Some(cx.waker().clone());
                    let raised = target.raised.load(Ordering::SeqCst);
                    target.seen.store(raised, Ordering::SeqCst);
                    if raised >= COUNT { Poll::Ready(()) } else { Poll::Pending }
                }));
            });
        });
    }
}
