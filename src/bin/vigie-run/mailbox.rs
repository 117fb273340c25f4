//! A queue of the job's events, in order: from many tasks of one thread to one.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    task::{Poll, Waker},
};

/// An event of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobEvent {
    /// The process of this rank has ended, and must be reaped.
    Ended(usize),
    /// The launcher received this signal.
    Signal(i32),
    /// All ranks of the rendezvous have departed.
    AllDeparted,
    /// `--arrival` has expired.
    ArrivalOver,
    /// `--timeout` has expired.
    TimedOut,
    /// `--timeout-end` has expired.
    GraceOver,
}

/// The queue. Its length is bounded: one end for each rank, one time-out of each kind, and at most [`SIGNALS_MAX`]
/// signals.
#[derive(Default)]
pub(crate) struct Mailbox {
    queue: RefCell<VecDeque<JobEvent>>,
    waker: Cell<Option<Waker>>,
}

/// The maximum number of signals waiting to be passed on; more of them tell a rank nothing new.
const SIGNALS_MAX: usize = 64;

impl Mailbox {
    pub(crate) fn post(&self, event: JobEvent) {
        let mut queue = self.queue.borrow_mut();
        let is_signal = |event: &&JobEvent| matches!(event, JobEvent::Signal(_));
        if is_signal(&&event) && queue.iter().filter(is_signal).count() >= SIGNALS_MAX {
            return;
        }
        queue.push_back(event);
        drop(queue);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Returns the next event; one task may wait.
    pub(crate) async fn next(&self) -> JobEvent {
        poll_fn(|cx| match self.queue.borrow_mut().pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}
