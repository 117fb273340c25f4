//! Tasks that the tests need.

use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
};

use vigie_runtime::{JoinHandle, Runtime, yield_now};

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
