//! A queue of a command's events, in order: from many tasks of one thread to one.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    task::{Poll, Waker},
};

/// The queue. Those that post bound its length.
pub(crate) struct Mailbox<E> {
    events: RefCell<VecDeque<E>>,
    reader: Cell<Option<Waker>>,
}

impl<E> Mailbox<E> {
    pub(crate) fn new() -> Self {
        Self { events: RefCell::default(), reader: Cell::new(None) }
    }

    pub(crate) fn post(&self, event: E) {
        self.post_unless(event, |_| false);
    }

    /// Posts an event, unless those that are queued suffice.
    pub(crate) fn post_unless(&self, event: E, suffice: impl FnOnce(&VecDeque<E>) -> bool) {
        let mut events = self.events.borrow_mut();
        if suffice(&events) {
            return;
        }
        events.push_back(event);
        drop(events);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Returns the next event; one task may wait.
    pub(crate) async fn next(&self) -> E {
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
