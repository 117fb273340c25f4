//! The slot where a waiter receives its events: filled by a detection poll, emptied by a future.
//!
//! ```text
//!            push (1)               push (1)
//!   empty ────────────▶ event ────────────────▶ event, more…      finish (2): the slot is over
//!     ▲                   │
//!     └───────────────────┘ poll (3) takes one, or leaves a waker
//! ```
//!
//! The poll calls (1) and (2) under the handle's lock; the waiter calls (3) without it: waiting
//! repeatedly for a stream takes only this small lock. No foreign code runs under it, except
//! [`Detector::merge`](crate::Detector::merge); wakers are cloned and dropped outside where they
//! could be the last reference to a task.
//!
//! Waiters that learn elsewhere what has happened only [`register`](Slot::register) a waker, several at
//! once if they like, and leave the events in place. Each event, and the end, wakes all of them.

mod waiters;

use std::{
    collections::{VecDeque, vec_deque},
    iter::Chain,
    mem, option,
    task::{Context, Poll, Waker},
};

use crate::{
    budget,
    error::WaitError,
    sync::{Mutex, lock},
};
use waiters::Waiters;
pub(crate) use waiters::{WaiterKind, WaiterToken};

/// The end of a slot's life.
#[derive(Debug)]
pub(crate) enum SlotEnd {
    /// No event will follow.
    Finished,
    Failed(WaitError),
}

/// An item that a waiter takes out of its slot.
#[derive(Debug)]
pub(crate) enum SlotItem<E> {
    Event(E),
    /// An event; a detector that holds others back must be told of the new room.
    Relief(E),
    End(SlotEnd),
}

#[derive(Debug)]
pub(crate) struct EventSlot<E> {
    state: Mutex<SlotState<E>>,
}

#[derive(Debug)]
struct SlotState<E> {
    /// The oldest event. Separate from `more`, so that a waiter for single events allocates no
    /// queue.
    first: Option<E>,
    more: VecDeque<E>,
    end: Option<SlotEnd>,
    waiters: Waiters,
    /// The capacity at which an event was refused since the last relief; zero if none was.
    refused_at: usize,
}

impl<E> EventSlot<E> {
    pub(crate) fn new() -> Self {
        let state = SlotState {
            first: None,
            more: VecDeque::new(),
            end: None,
            waiters: Waiters::default(),
            refused_at: 0,
        };
        Self { state: Mutex::new(state) }
    }

    /// Adds an event; moves to `woken` the wakers to call once all locks are released.
    ///
    /// # Errors
    /// Returns the event when `capacity` events wait already. The waiter is told to ask for it once
    /// it has taken half of them: [`SlotItem::Relief`].
    pub(crate) fn push(
        &self,
        event: E,
        capacity: usize,
        merge: impl FnOnce(&mut E, E) -> Option<E>,
        woken: &mut Vec<Waker>,
    ) -> Result<(), E> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        match state.more.back_mut().or(state.first.as_mut()) {
            None => state.first = Some(event),
            Some(newest) => {
                if let Some(event) = merge(newest, event) {
                    if 1 + state.more.len() >= capacity {
                        state.refused_at = capacity;
                        return Err(event);
                    }
                    state.more.push_back(event);
                }
            }
        }
        state.waiters.drain(woken);
        Ok(())
    }

    /// Calls `note` with the waker of each waiter.
    pub(crate) fn for_each_waiter(&self, note: impl FnMut(&Waker)) {
        lock(&self.state).waiters.for_each(note);
    }

    /// Records that no further event comes; events that wait can still be taken first. Wakes as [`push`](Self::push)
    /// does.
    pub(crate) fn finish(&self, end: SlotEnd, woken: &mut Vec<Waker>) {
        let mut state = lock(&self.state);
        state.end.get_or_insert(end);
        state.waiters.drain(woken);
    }

    /// Takes the oldest event, or registers the waker of `cx` for the next one. If the poll's budget
    /// is over, leaves the event where it is and wakes at once.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<SlotItem<E>> {
        let replaced;
        {
            let mut state = lock(&self.state);
            if state.first.is_some() && !budget::may_proceed() {
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(taken) = state.take() {
                return Poll::Ready(taken);
            }
            replaced = state.waiters.register(cx.waker(), WaiterKind::Last);
        }
        drop(replaced);
        Poll::Pending
    }

    /// Registers `waker` for the next event or the end. Events that wait already stay and wake no one: the caller
    /// checks for what they report after this call.
    ///
    /// # Errors
    /// The error with which the slot has ended, on each call.
    pub(crate) fn register(&self, waker: &Waker, waiter: WaiterKind<'_>) -> Result<(), WaitError> {
        let replaced;
        {
            let mut state = lock(&self.state);
            match &state.end {
                None => {}
                Some(SlotEnd::Failed(error)) => return Err(error.duplicate()),
                Some(SlotEnd::Finished) => return Err(WaitError::Ended),
            }
            replaced = state.waiters.register(waker, waiter);
        }
        drop(replaced);
        Ok(())
    }

    /// Gives up the place of a waiter that leaves.
    pub(crate) fn unregister(&self, place: WaiterToken) {
        let left = lock(&self.state).waiters.leave(place);
        drop(left);
    }

    /// Resets the slot, keeping its memory, and returns what it held, to be dropped by the caller
    /// outside all locks.
    pub(crate) fn reset(&self) -> Leftover<E> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.refused_at = 0;
        // An empty queue keeps its memory; a queue with events in it is returned whole.
        let more = if state.more.is_empty() { VecDeque::new() } else { mem::take(&mut state.more) };
        Leftover {
            events: state.first.take().into_iter().chain(more),
            _end: state.end.take(),
            _waiters: mem::take(&mut state.waiters),
        }
    }
}

/// The contents that a waiter left in its slot.
#[derive(Debug)]
pub(crate) struct Leftover<E> {
    /// Events that were not taken, oldest first.
    pub(crate) events: Chain<option::IntoIter<E>, vec_deque::IntoIter<E>>,
    _end: Option<SlotEnd>,
    _waiters: Waiters,
}

impl<E> SlotState<E> {
    fn take(&mut self) -> Option<SlotItem<E>> {
        if let Some(event) = self.first.take() {
            self.first = self.more.pop_front();
            let waiting = usize::from(self.first.is_some()) + self.more.len();
            if self.refused_at > 0 && waiting <= self.refused_at / 2 {
                self.refused_at = 0;
                return Some(SlotItem::Relief(event));
            }
            return Some(SlotItem::Event(event));
        }
        match self.end.as_mut()? {
            // An error is returned once; the end of the slot, on every call.
            SlotEnd::Finished => Some(SlotItem::End(SlotEnd::Finished)),
            failed => Some(SlotItem::End(mem::replace(failed, SlotEnd::Finished))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_followed_by_relief() {
        // Goal: a detector that holds events back learns of room exactly once for each refusal, at
        // half of the capacity. Method: all capacities from 1 to 9, each refused twice.
        let cx = Context::from_waker(Waker::noop());
        for capacity in 1..10 {
            let slot = EventSlot::new();
            for _ in 0..2 {
                let mut waiting = 0;
                while slot.push(waiting, capacity, |_, newer| Some(newer), &mut Vec::new()).is_ok()
                {
                    waiting += 1;
                }
                assert_eq!(waiting, capacity.max(1));
                while let Poll::Ready(taken) = slot.poll(&cx) {
                    waiting -= 1;
                    match taken {
                        SlotItem::Relief(_) => assert_eq!(waiting, capacity / 2),
                        SlotItem::Event(_) => assert_ne!(waiting, capacity / 2),
                        SlotItem::End(_) => panic!("the slot was not finished"),
                    }
                }
            }
        }
    }

    struct Woken(crate::sync::AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: crate::sync::Arc<Self>) {
            self.0.fetch_add(1, crate::sync::Ordering::Relaxed);
        }
    }

    fn waker() -> Waker {
        Waker::from(crate::sync::Arc::new(Woken(crate::sync::AtomicUsize::new(0))))
    }

    fn push(slot: &EventSlot<u32>, event: u32) -> Vec<Waker> {
        let mut woken = Vec::new();
        slot.push(event, usize::MAX, |_, newer| Some(newer), &mut woken).expect("there is room");
        woken
    }

    fn finish(slot: &EventSlot<u32>, end: SlotEnd) -> Vec<Waker> {
        let mut woken = Vec::new();
        slot.finish(end, &mut woken);
        woken
    }

    /// Goal: an event or the end wakes the last waiter to poll, once. Method: two wakers, one after the
    /// other.
    #[test]
    fn the_last_waiter_is_woken_once() {
        let (first, second) = (waker(), waker());
        let ends = [
            |slot: &EventSlot<u32>| push(slot, 1),
            |slot: &EventSlot<u32>| finish(slot, SlotEnd::Finished),
        ];
        for end in ends {
            let slot = EventSlot::new();
            assert!(push(&slot, 0).is_empty(), "no waiter is registered");
            assert!(matches!(
                slot.poll(&Context::from_waker(&first)),
                Poll::Ready(SlotItem::Event(0))
            ));
            for waiter in [&first, &second, &second] {
                assert!(slot.poll(&Context::from_waker(waiter)).is_pending());
            }
            assert!(matches!(&end(&slot)[..], [woken] if woken.will_wake(&second)));
            assert!(push(&slot, 2).is_empty() && finish(&slot, SlotEnd::Finished).is_empty());
        }
    }

    /// Goal: events are taken in order, then the end, which stays; an error is returned once, and the first
    /// end counts. Method: both ends after three events.
    #[test]
    fn the_end_comes_after_the_events() {
        let cx = Context::from_waker(Waker::noop());
        for fails in [false, true] {
            let slot = EventSlot::new();
            (0..3).for_each(|event| drop(push(&slot, event)));
            let end =
                if fails { SlotEnd::Failed(WaitError::ServerClosed) } else { SlotEnd::Finished };
            drop(finish(&slot, end));
            drop(finish(&slot, SlotEnd::Failed(WaitError::ServerClosed)));
            for event in 0..3 {
                assert!(
                    matches!(slot.poll(&cx), Poll::Ready(SlotItem::Event(taken)) if taken == event)
                );
            }
            if fails {
                assert!(matches!(slot.poll(&cx), Poll::Ready(SlotItem::End(SlotEnd::Failed(_)))));
            }
            for _ in 0..2 {
                assert!(matches!(slot.poll(&cx), Poll::Ready(SlotItem::End(SlotEnd::Finished))));
            }
        }
    }

    /// Goal: a reused slot has no trace of the previous waiter, whose remains are returned in order.
    /// Method: one with events, a refusal and an end, and one with a waker.
    #[test]
    fn a_reset_slot_is_new() {
        let cx = Context::from_waker(Waker::noop());
        let slot = EventSlot::new();
        (0..3).for_each(|event| drop(push(&slot, event)));
        let refused = slot.push(3, 3, |_, newer| Some(newer), &mut Vec::new());
        assert_eq!(refused, Err(3));
        drop(finish(&slot, SlotEnd::Finished));
        assert!(slot.reset().events.eq(0..3));
        assert!(slot.poll(&cx).is_pending());
        assert!(slot.reset().events.next().is_none());
        assert!(push(&slot, 7).is_empty(), "the waker went, too");
        assert!(
            matches!(slot.poll(&cx), Poll::Ready(SlotItem::Event(7))),
            "nothing was refused to it"
        );
        assert!(slot.poll(&cx).is_pending());
    }

    /// Goal: each event wakes all that are registered and have not left, and no other; the last of those without a
    /// place is one of them. Method: random steps of six waiters, against a set of the registered
    /// waiters.
    #[test]
    fn an_event_wakes_who_is_registered() {
        use proptest::prelude::*;

        const LAST: usize = 6;
        proptest!(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() }, |(
            steps in proptest::collection::vec((0..3u8, 0..LAST), 0..60)
        )| {
            let slot = EventSlot::new();
            let wakers: [Waker; LAST + 1] = std::array::from_fn(|_| waker());
            let mut places = [None; LAST];
            let mut waits = [false; LAST + 1];
            for (step, index) in steps {
                match step {
                    0 => {
                        let waiter = WaiterKind::Beside(&mut places[index]);
                        slot.register(&wakers[index], waiter).expect("no end");
                        waits[index] = true;
                    }
                    1 => {
                        // As a dropped wait does, whether or not it was woken.
                        if let Some(place) = places[index].take() {
                            slot.unregister(place);
                        }
                        waits[index] = false;
                    }
                    _ => {
                        if index < LAST / 2 {
                            slot.register(&wakers[LAST], WaiterKind::Last).expect("no end");
                            waits[LAST] = true;
                        }
                        let woken = push(&slot, 0);
                        for (waker, waits) in wakers.iter().zip(&mut waits) {
                            let count = woken.iter().filter(|woken| woken.will_wake(waker)).count();
                            prop_assert_eq!(count, usize::from(mem::take(waits)));
                        }
                    }
                }
            }
        });
    }

    /// Goal: registering at a slot that is over returns how it ended, each time, and stores no waker.
    /// Method: both ends.
    #[test]
    fn nobody_waits_at_a_slot_that_is_over() {
        let (waker, mut place) = (waker(), None);
        for fails in [false, true] {
            let slot = EventSlot::<u32>::new();
            let end =
                if fails { SlotEnd::Failed(WaitError::ServerClosed) } else { SlotEnd::Finished };
            slot.register(&waker, WaiterKind::Last).expect("no end yet");
            slot.register(&waker, WaiterKind::Beside(&mut place)).expect("no end yet");
            assert_eq!(finish(&slot, end).len(), 2);
            for _ in 0..2 {
                let ended = slot.register(&waker, WaiterKind::Beside(&mut place));
                assert!(matches!(
                    (fails, ended),
                    (false, Err(WaitError::Ended)) | (true, Err(WaitError::ServerClosed))
                ));
            }
            assert!(finish(&slot, SlotEnd::Finished).is_empty());
        }
    }
}
