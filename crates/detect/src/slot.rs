//! The place where an event meets its waiter: filled by a detection round, emptied by a future.
//!
//! ```text
//!            push (1)               push (1)
//!   empty ────────────▶ event ────────────────▶ event, more…      finish (2): the slot is over
//!     ▲                   │
//!     └───────────────────┘ poll (3) takes one, or leaves a waker
//! ```
//!
//! (1) and (2) are called by the round under the handle's lock, (3) by the waiter without it: waiting
//! again and again for a stream touches this small lock alone. No foreign code runs under it, except
//! [`Detector::merge`](crate::Detector::merge); wakers are cloned and dropped outside where they
//! could be the last reference to a task.

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

/// How a slot's life ended.
#[derive(Debug)]
pub(crate) enum End {
    /// No event will follow.
    Finished,
    Failed(WaitError),
}

/// What a waiter took out of its slot.
#[derive(Debug)]
pub(crate) enum Taken<E> {
    Event(E),
    /// An event, after which the detector that holds others back has to be told of the new room.
    Relief(E),
    End(End),
}

#[derive(Debug)]
pub(crate) struct Slot<E> {
    state: Mutex<SlotState<E>>,
}

#[derive(Debug)]
struct SlotState<E> {
    /// The oldest event. Apart from `more`, so that a waiter of single events allocates no queue.
    first: Option<E>,
    more: VecDeque<E>,
    end: Option<End>,
    waker: Option<Waker>,
    /// The capacity for which an event was refused since the last relief; zero if none was.
    refused_at: usize,
}

impl<E> Slot<E> {
    pub(crate) fn new() -> Self {
        let state =
            SlotState { first: None, more: VecDeque::new(), end: None, waker: None, refused_at: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Adds an event; gives back the waker to wake once all locks are released.
    ///
    /// # Errors
    /// Gives the event back when `capacity` events wait already. The waiter is told to ask for it
    /// once it has taken half of them: [`Taken::Relief`].
    pub(crate) fn push(
        &self,
        event: E,
        capacity: usize,
        merge: impl FnOnce(&mut E, E) -> Option<E>,
    ) -> Result<Option<Waker>, E> {
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
        Ok(state.waker.take())
    }

    /// Says that no further event comes; events that wait are still taken first.
    pub(crate) fn finish(&self, end: End) -> Option<Waker> {
        let mut state = lock(&self.state);
        state.end.get_or_insert(end);
        state.waker.take()
    }

    /// Takes the oldest event, or leaves the waker of `cx` to be woken by the next. Leaves the event
    /// where it is, and wakes at once, if the budget of the poll is over.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Taken<E>> {
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
            match &state.waker {
                Some(waker) if waker.will_wake(cx.waker()) => return Poll::Pending,
                _ => replaced = state.waker.replace(cx.waker().clone()),
            }
        }
        drop(replaced);
        Poll::Pending
    }

    /// Makes the slot as new, keeping its memory, and gives back what it held: to be dropped by the
    /// caller outside all locks.
    pub(crate) fn reset(&self) -> Leftover<E> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.refused_at = 0;
        // An empty queue keeps its memory; a queue with events in it is given away whole.
        let more = if state.more.is_empty() { VecDeque::new() } else { mem::take(&mut state.more) };
        Leftover {
            events: state.first.take().into_iter().chain(more),
            _end: state.end.take(),
            _waker: state.waker.take(),
        }
    }
}

/// What a waiter left in its slot.
#[derive(Debug)]
pub(crate) struct Leftover<E> {
    /// Events that nobody took, oldest first.
    pub(crate) events: Chain<option::IntoIter<E>, vec_deque::IntoIter<E>>,
    _end: Option<End>,
    _waker: Option<Waker>,
}

impl<E> SlotState<E> {
    fn take(&mut self) -> Option<Taken<E>> {
        if let Some(event) = self.first.take() {
            self.first = self.more.pop_front();
            let waiting = usize::from(self.first.is_some()) + self.more.len();
            if self.refused_at > 0 && waiting <= self.refused_at / 2 {
                self.refused_at = 0;
                return Some(Taken::Relief(event));
            }
            return Some(Taken::Event(event));
        }
        match self.end.as_mut()? {
            // An error is told once; that the slot is over, as often as it is asked.
            End::Finished => Some(Taken::End(End::Finished)),
            failed => Some(Taken::End(mem::replace(failed, End::Finished))),
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
            let slot = Slot::new();
            for _ in 0..2 {
                let mut waiting = 0;
                while slot.push(waiting, capacity, |_, newer| Some(newer)).is_ok() {
                    waiting += 1;
                }
                assert_eq!(waiting, capacity.max(1));
                while let Poll::Ready(taken) = slot.poll(&cx) {
                    waiting -= 1;
                    match taken {
                        Taken::Relief(_) => assert_eq!(waiting, capacity / 2),
                        Taken::Event(_) => assert_ne!(waiting, capacity / 2),
                        Taken::End(_) => panic!("the slot was not finished"),
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

    fn push(slot: &Slot<u32>, event: u32) -> Option<Waker> {
        slot.push(event, usize::MAX, |_, newer| Some(newer)).expect("there is room")
    }

    /// Goal: an event or the end wakes whoever polled last, once. Method: two wakers, one after the other.
    #[test]
    fn the_last_waiter_is_woken_once() {
        let (first, second) = (waker(), waker());
        let ends =
            [|slot: &Slot<u32>| push(slot, 1), |slot: &Slot<u32>| slot.finish(End::Finished)];
        for end in ends {
            let slot = Slot::new();
            assert!(push(&slot, 0).is_none(), "nobody waits");
            assert!(matches!(
                slot.poll(&Context::from_waker(&first)),
                Poll::Ready(Taken::Event(0))
            ));
            for waiter in [&first, &second, &second] {
                assert!(slot.poll(&Context::from_waker(waiter)).is_pending());
            }
            assert!(end(&slot).is_some_and(|woken| woken.will_wake(&second)));
            assert!(push(&slot, 2).is_none() && slot.finish(End::Finished).is_none());
        }
    }

    /// Goal: events are taken in their order, then the end, which stays; an error is told once, and the first
    /// end counts. Method: both ends after three events.
    #[test]
    fn the_end_comes_after_the_events() {
        let cx = Context::from_waker(Waker::noop());
        for fails in [false, true] {
            let slot = Slot::new();
            (0..3).for_each(|event| drop(push(&slot, event)));
            drop(slot.finish(if fails {
                End::Failed(WaitError::ServerClosed)
            } else {
                End::Finished
            }));
            drop(slot.finish(End::Failed(WaitError::ServerClosed)));
            for event in 0..3 {
                assert!(
                    matches!(slot.poll(&cx), Poll::Ready(Taken::Event(taken)) if taken == event)
                );
            }
            if fails {
                assert!(matches!(slot.poll(&cx), Poll::Ready(Taken::End(End::Failed(_)))));
            }
            for _ in 0..2 {
                assert!(matches!(slot.poll(&cx), Poll::Ready(Taken::End(End::Finished))));
            }
        }
    }

    /// Goal: a slot that is used again knows nothing of the waiter before; what that left is given back in
    /// order. Method: one with events, a refusal and an end, and one with a waker.
    #[test]
    fn a_reset_slot_is_new() {
        let cx = Context::from_waker(Waker::noop());
        let slot = Slot::new();
        (0..3).for_each(|event| drop(push(&slot, event)));
        assert_eq!(slot.push(3, 3, |_, newer| Some(newer)).err(), Some(3));
        drop(slot.finish(End::Finished));
        assert!(slot.reset().events.eq(0..3));
        assert!(slot.poll(&cx).is_pending());
        assert!(slot.reset().events.next().is_none());
        assert!(push(&slot, 7).is_none(), "the waker went, too");
        assert!(
            matches!(slot.poll(&cx), Poll::Ready(Taken::Event(7))),
            "nothing was refused to it"
        );
        assert!(slot.poll(&cx).is_pending());
    }
}
