//! Runtimes of every flavor, and what tests do with them.

use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
};

use vigie_runtime::{Flavor, JoinHandle, Runtime, yield_now};

use crate::{
    child::{descriptor_count, in_child, thread_count},
    guard,
};

pub(crate) const FLAVORS: [Flavor; 2] = [Flavor::UserLevel, Flavor::Hybrid];

pub(crate) fn runtime(flavor: Flavor) -> Runtime {
    Runtime::builder().flavor(flavor).workers(2).build().expect("a runtime")
}

/// Runs `test` for each flavor, in a process that only this test uses, and checks that no thread and no
/// descriptor is left behind.
pub(crate) fn alone_for_each_flavor(name: &str, test: fn(Flavor)) {
    in_child(name, move || FLAVORS.into_iter().for_each(|flavor| leaves_nothing(flavor, test)));
}

fn leaves_nothing(flavor: Flavor, test: fn(Flavor)) {
    let before = (thread_count(), descriptor_count());
    test(flavor);
    // A thread that was joined, or ends by itself, is in /proc for a moment longer.
    guard::until(|| thread_count() <= before.0);
    guard::until(|| descriptor_count() <= before.1);
    assert_eq!((thread_count(), descriptor_count()), before, "{flavor}");
}

/// Polls once, without anybody to wake.
pub(crate) fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
pub(crate) fn assert_cancelled<T>(task: JoinHandle<T>) {
    match poll_once(task) {
        Poll::Ready(Err(error)) => assert!(error.is_cancelled(), "{error}"),
        Poll::Ready(Ok(_)) => panic!("the task has a result"),
        Poll::Pending => panic!("the task is neither cancelled nor over"),
    }
}

/// Runs until tasks have counted up to `count` in `polled`.
pub(crate) fn run_until_polled(runtime: &Runtime, polled: &AtomicUsize, count: usize) {
    runtime.block_on(async {
        while polled.load(Ordering::SeqCst) < count {
            yield_now().await;
        }
    });
}
