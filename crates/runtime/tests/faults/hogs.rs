//! A task that keeps its worker must not keep those tasks waiting that an idle worker could run. Here
//! it does not only compute: it blocks its worker until the other task has run, so that nothing but
//! another worker can help.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use vigie_detect::{Server, detectors::doorbell::doorbell};
use vigie_runtime::{Flavor, Runtime, spawn, time};

use crate::kit::guard::against_hang;

fn two_workers() -> Runtime {
    Runtime::builder().flavor(Flavor::Hybrid).workers(2).build().expect("a runtime")
}

/// Goal: while a task that was woken by an event keeps the worker that detected it, the next event is
/// detected by the idle one. Method: many rounds, since either worker may be in the poller.
#[test]
fn somebody_watches_while_a_reaction_hogs() {
    against_hang(|| {
        let runtime = two_workers();
        for _ in 0..200 {
            let (button, bell) = doorbell(runtime.server()).expect("a doorbell");
            let (second_button, second_bell) = doorbell(runtime.server()).expect("a doorbell");
            let (done, is_done) = mpsc::channel::<()>();
            let (over, is_over) = mpsc::channel::<()>();
            let waiting = Arc::new(AtomicUsize::new(0));
            let polled = Arc::clone(&waiting);
            let second = runtime.spawn(async move {
                polled.fetch_add(1, Ordering::SeqCst);
                second_bell.rung().await.expect("it rings");
                done.send(()).expect("the hog waits");
            });
            let polled = Arc::clone(&waiting);
            let hog = runtime.spawn(async move {
                polled.fetch_add(1, Ordering::SeqCst);
                bell.rung().await.expect("it rings");
                second_button.press();
                is_done.recv().expect("the other task runs");
                over.send(()).expect("the test waits");
            });
            while waiting.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            button.press();
            is_over.recv().expect("the hog ends");
            runtime.block_on(async {
                second.await.expect("no panic");
                hog.await.expect("no panic");
            });
        }
    });
}

/// Goal: timers go on while a task keeps the worker that watches. Method: as above, with a sleeper.
#[test]
fn timers_go_on_while_a_task_hogs() {
    against_hang(|| {
        let runtime = two_workers();
        for _ in 0..200 {
            let (done, is_done) = mpsc::channel::<()>();
            let sleeper = runtime.spawn(async move {
                time::sleep(Duration::from_micros(300)).await;
                done.send(()).expect("the hog waits");
            });
            let hog = runtime.spawn(async move {
                time::sleep(Duration::from_micros(100)).await;
                is_done.recv().expect("the sleeper wakes up");
            });
            runtime.block_on(async {
                sleeper.await.expect("no panic");
                hog.await.expect("no panic");
            });
        }
    });
}

/// Goal: tasks that a task spawns and wakes before it keeps its worker are run by an idle worker. Method: as
/// above, with a child.
#[test]
fn children_of_a_hog_run() {
    against_hang(|| {
        let runtime = two_workers();
        for _ in 0..200 {
            let hog = runtime.spawn(async move {
                let (done, is_done) = mpsc::channel::<()>();
                spawn(async move { done.send(()).expect("the hog waits") }).detach();
                is_done.recv().expect("the child runs");
                Server::current().expect("in a runtime").metrics()
            });
            runtime.block_on(hog).expect("no panic");
        }
    });
}
