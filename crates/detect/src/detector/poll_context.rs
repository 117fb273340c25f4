//! A detector's view of its requests in one poll, and the place where it reports their events.

#[cfg(test)]
mod tests;

use std::fmt;

use super::{contract::Detector, wake_list::WakeList};
use crate::{
    clock::Instant,
    error::{WaitError, caught},
    request::{Key, Mode, PendingSet},
};

/// The outcome of [`PollContext::emit`].
#[derive(Debug)]
#[must_use = "an event that was not taken must be kept or dropped on purpose"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to handle every case")]
pub enum EmitOutcome<E> {
    /// The waiter has the event; the request stays pending.
    Kept,
    /// The waiter has the event; the request is over, since it wanted one event.
    Ended,
    /// The waiter's queue is full: hold the event back and emit it in a later poll. The server polls
    /// again when the waiter has taken half of its queue.
    Full(E),
    /// The request is no longer pending.
    Gone(E),
}

/// The pending requests of a handle, as passed to [`Detector::group`].
///
/// # Source
/// [bouge02, §3.1]: `thread_IO_for_each_request`.
pub struct Pending<'a, D: Detector> {
    set: &'a PendingSet<D::Request, D::Event>,
}

impl<'a, D: Detector> Pending<'a, D> {
    pub(crate) fn new(set: &'a PendingSet<D::Request, D::Event>) -> Self {
        Self { set }
    }

    /// Returns the number of pending requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Returns whether no request is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the pending requests, oldest first.
    ///
    /// # Panics
    /// Never: a pending entry has its request.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &'a D::Request)> + use<'a, D> {
        self.set.iter()
    }
}

impl<D: Detector> fmt::Debug for Pending<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// One poll over one handle: the pending requests, the time, and the sink for events.
pub struct PollContext<'a, D: Detector> {
    set: &'a mut PendingSet<D::Request, D::Event>,
    batch: &'a mut WakeList,
    now: Instant,
    budget: usize,
    stream_capacity: usize,
    reported: usize,
    more: bool,
    /// A waiter had no room for an event: it notifies once it has.
    is_held_back: bool,
}

impl<'a, D: Detector> PollContext<'a, D> {
    pub(crate) fn new(
        set: &'a mut PendingSet<D::Request, D::Event>,
        batch: &'a mut WakeList,
        now: Instant,
        budget: usize,
        stream_capacity: usize,
    ) -> Self {
        Self {
            set,
            batch,
            now,
            budget,
            stream_capacity,
            reported: 0,
            more: false,
            is_held_back: false,
        }
    }

    /// Returns the time of this poll.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Returns the number of pending requests.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.set.len()
    }

    /// Returns whether this poll has reported as many events as it may. If so, leave the rest to
    /// the next poll and call [`more`](Self::more), so that events cannot starve the tasks that
    /// they wake.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.reported >= self.budget
    }

    /// Reports that there are further events already: the host polls again soon.
    pub const fn more(&mut self) {
        self.more = true;
    }

    /// Returns the key of the oldest pending request.
    #[must_use]
    pub fn oldest(&self) -> Option<Key> {
        self.set.oldest()
    }

    /// Returns the pending request after `key`, in order of age.
    #[must_use]
    pub fn next_after(&self, key: Key) -> Option<Key> {
        self.set.next_after(key)
    }

    /// Returns the request of `key`, pending or being cancelled.
    pub fn request_mut(&mut self, key: Key) -> Option<&mut D::Request> {
        self.set.request_mut(key)
    }

    /// Reports the last event of a request. Returns whether the request still existed.
    pub fn complete(&mut self, key: Key, event: D::Event) -> bool {
        self.complete_with(key, |_| event)
    }

    /// Reports the last event of a request, built from what the request owned: use this to return a
    /// buffer. Returns whether the request still existed.
    pub fn complete_with(
        &mut self,
        key: Key,
        event: impl FnOnce(&mut D::Request) -> D::Event,
    ) -> bool {
        let Some(request) = self.set.request_mut(key) else { return false };
        let event = event(request);
        if self.set.is_cancelling(key) {
            self.set.finish_cancelled(key, Some(event));
        } else {
            self.end(key, event);
        }
        true
    }

    /// Ends a stream without a further event, or a cancelled request in flight. Returns whether the
    /// request still existed.
    pub fn finish(&mut self, key: Key) -> bool {
        if self.set.finish(key, &mut self.batch.wakers) {
            // Counted: a host that found nothing would sleep before it wakes the waiter.
            self.reported += 1;
            return true;
        }
        let is_cancelling = self.set.is_cancelling(key);
        if is_cancelling {
            self.set.finish_cancelled(key, None);
        }
        is_cancelling
    }

    /// Reports one event of a request that may have more.
    pub fn emit(&mut self, key: Key, event: D::Event) -> EmitOutcome<D::Event> {
        let capacity = self.stream_capacity;
        let Some(entry) = self.set.pending_mut(key) else { return EmitOutcome::Gone(event) };
        if entry.mode == Mode::Once {
            self.end(key, event);
            return EmitOutcome::Ended;
        }
        match entry.slot.push(event, capacity, D::merge, &mut self.batch.wakers) {
            Ok(()) => {
                self.reported += 1;
                EmitOutcome::Kept
            }
            Err(event) => {
                self.is_held_back = true;
                EmitOutcome::Full(event)
            }
        }
    }

    /// Ends a request with an error.
    pub fn fail(&mut self, key: Key, error: std::io::Error) {
        self.set.fail(key, WaitError::Failed(error), false, &mut self.batch.wakers);
        self.reported += 1;
    }

    /// Wakes a task that the detector knows apart from its requests.
    pub(crate) fn wake(&mut self, waker: std::task::Waker) {
        self.batch.wakers.push(waker);
        // Counted: a host that found nothing would sleep before it wakes the waiter.
        self.reported += 1;
    }

    /// Calls [`Detector::check`] for each pending request, oldest first. This is a poll without a
    /// group; its cost grows with the number of requests [bouge02, §4.2].
    pub fn check_each(&mut self, detector: &mut D) {
        let mut cursor = self.oldest();
        while let Some(key) = cursor {
            if self.is_full() {
                self.more();
                return;
            }
            cursor = self.next_after(key);
            let Some(request) = self.set.request_mut(key) else { continue };
            let checked = match caught("check", || detector.check(key, request)) {
                Ok(checked) => checked,
                Err(panicked) => {
                    self.reported += 1;
                    self.set.fail(key, panicked, true, &mut self.batch.wakers);
                    continue;
                }
            };
            if let Some(event) = checked {
                // A stream stays pending; a single request is over.
                match self.emit(key, event) {
                    EmitOutcome::Kept | EmitOutcome::Ended => {}
                    EmitOutcome::Full(event) | EmitOutcome::Gone(event) => {
                        self.set.trash.push((None, Some(event)));
                    }
                }
            }
        }
    }

    pub(crate) fn reported(&self) -> usize {
        self.reported
    }

    pub(crate) fn is_held_back(&self) -> bool {
        self.is_held_back
    }

    pub(crate) fn wants_more(&self) -> bool {
        self.more
    }

    fn end(&mut self, key: Key, event: D::Event) {
        self.set.end(key, event, &mut self.batch.wakers);
        self.reported += 1;
    }
}

impl<D: Detector> fmt::Debug for PollContext<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollContext")
            .field("now", &self.now)
            .field("pending_count", &self.set.len())
            .field("reported", &self.reported)
            .finish_non_exhaustive()
    }
}
