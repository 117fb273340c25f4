//! Waiting for something, but not for longer than until a deadline.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use vigie_detect::{Instant, Server};

/// Returns the result of `future`, unless it is not done by then.
pub(crate) async fn with_deadline<T>(
    server: &Server,
    deadline: Instant,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let mut timer = pin!(server.timers().wait(deadline));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        // A server that has shut down wakes no task any more.
        timer.as_mut().poll(cx).map(|_| None)
    })
    .await
}
