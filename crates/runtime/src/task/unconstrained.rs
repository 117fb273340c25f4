//! Opting out of the budget of each poll.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use vigie_detect::budget;

/// Lets `future` run without the [budget] of a task's poll: ready operations never yield, and other tasks of
/// the thread wait until the future does. For code that yields on its own, or that takes `Pending` to mean
/// "nothing is there".
///
/// # Cost
/// A nanosecond or two for each poll.
///
/// # Cancel safety
/// As cancel safe as `future`.
///
/// # Examples
/// ```
/// use vigie_runtime::{Runtime, task, time};
///
/// let runtime = Runtime::builder().workers(1).build()?;
/// runtime.block_on(task::unconstrained(time::sleep(std::time::Duration::from_millis(1))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn unconstrained<F: Future>(future: F) -> Unconstrained<F> {
    Unconstrained { future }
}

pin_project! {
    /// The future of [`unconstrained`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct Unconstrained<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Unconstrained<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _suspended = budget::suspend();
        self.project().future.poll(cx)
    }
}
