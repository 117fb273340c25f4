//! What happens to the job, in the order in which it happened: from many tasks of one thread to one.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    task::{Poll, Waker},
};

/// What happens to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// The process of this rank has ended, and is to be reaped.
    Ended(usize),
    /// The launcher got this signal.
    Signal(i32),
    /// All ranks of the rendezvous have departed.
    Dispersed,
    /// `--arrival` is over.
    ArrivalOver,
    /// `--timeout` is over.
    TimedOut,
    /// `--timeout-end` is over.
    GraceOver,
}

/// The queue. Bounded by what fills it: one end for each rank, one time-out of each kind, and at most
/// [`SIGNALS_MAX`] signals.
#[derive(Default)]
pub(crate) struct Mailbox {
    queue: RefCell<VecDeque<Happening>>,
    waker: Cell<Option<Waker>>,
}

/// The most signals that wait to be passed on; more of them tell a rank nothing new.
const SIGNALS_MAX: usize = 64;

impl Mailbox {
    pub(crate) fn post(&self, happening: Happening) {
        let mut queue = self.queue.borrow_mut();
        let is_signal = |happening: &&Happening| matches!(happening, Happening::Signal(_));
        if is_signal(&&happening) && queue.iter().filter(is_signal).count() >= SIGNALS_MAX {
            return;
        }
        queue.push_back(happening);
        drop(queue);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Returns the next happening; one task may wait.
    pub(crate) async fn next(&self) -> Happening {
        poll_fn(|cx| match self.queue.borrow_mut().pop_front() {
            Some(happening) => Poll::Ready(happening),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}
