//! Who waits at a slot: the waiter that polled last, for poll-style code, and any number of others beside each other.
//!
//! ```text
//!                join (1)                    drain (2)
//!   no place ──────────────▶ place in round n ─────────▶ woken: the place is of a past round
//!       ▲                          │                                │
//!       └──────── leave (3) ───────┘◀──────────── join (1) ─────────┘
//! ```
//!
//! (1) [`Waiters::join`], (2) [`Waiters::drain`] wakes everybody, (3) [`Waiters::leave`]. A place of a past round names
//! nobody: whoever holds it was woken, and a waiter that came later may have the same seat.

use std::{mem, task::Waker};

use slab::Slab;

/// The wakers of one slot. The slot's lock is around it; what a method returns is dropped outside of that.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Of the waiter that polled last without a place.
    last: Option<Waker>,
    /// Of the waiters with places, one that costs no allocation.
    first: Option<Waker>,
    /// The other waiters with places. The memory is kept for as many as there were at once, until the slot is reset.
    more: Option<Box<Slab<Waker>>>,
    /// How often waiters with places were woken.
    round: u64,
}

/// Which waker a waiter left.
#[derive(Debug)]
pub(crate) enum Waiter<'a> {
    /// The only one: a later one replaces it.
    Last,
    /// One beside others, which keeps its place between two polls.
    Beside(&'a mut Option<Place>),
}

/// The place of one waiter beside others, until it is woken. It must be given back by a waiter that goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    round: u64,
    seat: Seat,
}

#[derive(Clone, Copy, Debug)]
enum Seat {
    First,
    More(usize),
}

impl Waiters {
    /// Leaves `waker` to be woken by the next event. Returns the waker in whose place it is now.
    pub(super) fn register(&mut self, waker: &Waker, waiter: Waiter<'_>) -> Option<Waker> {
        match waiter {
            Waiter::Last => match &mut self.last {
                Some(last) if last.will_wake(waker) => None,
                last => last.replace(waker.clone()),
            },
            Waiter::Beside(place) => self.join(waker, place),
        }
    }

    fn join(&mut self, waker: &Waker, place: &mut Option<Place>) -> Option<Waker> {
        if let Some(known) = place.and_then(|place| self.at(place)) {
            return if known.will_wake(waker) {
                None
            } else {
                Some(mem::replace(known, waker.clone()))
            };
        }
        let waker = waker.clone();
        let seat = if self.first.is_none() {
            self.first = Some(waker);
            Seat::First
        } else {
            Seat::More(self.more.get_or_insert_default().insert(waker))
        };
        *place = Some(Place { round: self.round, seat });
        None
    }

    /// Returns the waker at a place that is of the present round.
    fn at(&mut self, place: Place) -> Option<&mut Waker> {
        match place.seat {
            _ if place.round != self.round => None,
            Seat::First => self.first.as_mut(),
            Seat::More(index) => self.more.as_mut()?.get_mut(index),
        }
    }

    /// Gives up a place. Returns its waker unless that was woken.
    pub(super) fn leave(&mut self, place: Place) -> Option<Waker> {
        match place.seat {
            _ if place.round != self.round => None,
            Seat::First => self.first.take(),
            Seat::More(index) => self.more.as_mut()?.try_remove(index),
        }
    }

    /// Moves all wakers to `woken`: that of the last waiter, then those of the others, nearly in the order in which
    /// they came. Allocates nothing if there is room.
    pub(super) fn drain(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(self.last.take());
        let more = self.more.as_mut().filter(|more| !more.is_empty());
        if self.first.is_none() && more.is_none() {
            return;
        }
        self.round = self.round.wrapping_add(1);
        woken.extend(self.first.take());
        if let Some(more) = more {
            woken.extend(more.drain());
        }
    }
}
