//! A queue of the instance's events.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    task::{Poll, Waker},
};

/// An event.
#[derive(Debug)]
pub(crate) enum InstanceEvent {
    /// A signal that ends the process.
    Signal { name: &'static str, number: u8 },
    /// A flow has ended unexpectedly.
    Failed { flow: String, problem: String },
}

/// The queue that tasks of the control thread post to. Its length is bounded by their number.
#[derive(Default)]
pub(crate) struct Mailbox {
    events: RefCell<VecDeque<InstanceEvent>>,
    reader: Cell<Option<Waker>>,
}

impl Mailbox {
    pub(crate) fn post(&self, event: InstanceEvent) {
        self.events.borrow_mut().push_back(event);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&self) -> InstanceEvent {
        poll_fn(|cx| match self.events.borrow_mut().pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                self.reader.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}
