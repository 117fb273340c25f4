//! What happens to an instance, one after the other.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    task::{Poll, Waker},
};

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A signal that asks the process to end.
    Signal { name: &'static str, number: u8 },
    /// A flow has ended that was not asked to.
    Failed { flow: String, problem: String },
}

/// Where tasks of the control thread put what happened. Their number bounds it.
#[derive(Default)]
pub(crate) struct Mailbox {
    events: RefCell<VecDeque<Event>>,
    reader: Cell<Option<Waker>>,
}

impl Mailbox {
    pub(crate) fn post(&self, event: Event) {
        self.events.borrow_mut().push_back(event);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&self) -> Event {
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
