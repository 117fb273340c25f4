//! Waiting with a deadline, under any executor.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use vigie_detect::{Instant, Server};

/// Waits for `future` until `deadline`; then returns `None`.
pub(super) async fn timeout_at<T>(
    server: &Server,
    deadline: Instant,
    future: impl Future<Output = T>,
) -> io::Result<Option<T>> {
    let mut future = pin!(future);
    let mut timer = pin!(server.timers().wait_owned(deadline));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(Some(value)));
        }
        timer.as_mut().poll(cx).map(|ended| ended.map(|()| None).map_err(io::Error::from))
    })
    .await
}

/// Waits for `future`, for at most `time`.
pub(super) async fn timeout(
    server: &Server,
    time: Duration,
    future: impl Future<Output = ()>,
) -> io::Result<()> {
    timeout_at(server, server.now() + time, future).await.map(|_| ())
}

/// Lets other tasks run.
pub(super) async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The first of two results; the left one if both are ready.
pub(super) enum Either<A, B> {
    Left(A),
    Right(B),
}

pub(super) async fn select<A, B>(
    left: impl Future<Output = A>,
    right: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|cx| {
        if let Poll::Ready(value) = left.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(value));
        }
        right.as_mut().poll(cx).map(Either::Right)
    })
    .await
}

/// Waits for all futures.
pub(super) async fn join_all<F: Future<Output = ()> + Unpin>(mut futures: Vec<F>) {
    poll_fn(|cx| {
        futures.retain_mut(|future| Pin::new(future).poll(cx).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Returns whether the error means that the process, or the machine, is out of descriptors or memory.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}
