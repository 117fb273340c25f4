//! The waiters at a slot: the one that polled last, for poll-style code, and any number of others beside each other.
//!
//! ```text
//!                join (1)                    drain (2)
//!   no place ──────────────▶ place in round n ─────────▶ woken: the place is of a past round
//!       ▲                          │                                │
//!       └──────── leave (3) ───────┘◀──────────── join (1) ─────────┘
//! ```
//!
//! (1) [`Waiters::join`], (2) [`Waiters::drain`] wakes all, (3) [`Waiters::leave`]. A place of a past round names no
//! waiter: its holder was woken, and a later waiter may have the same index.

use std::{mem, task::Waker};

use slab::Slab;

/// The wakers of one slot. The slot's lock protects them; returned wakers are dropped outside it.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The waiter that polled last without a place.
    last: Option<Waker>,
    /// The first waiter with a place, which costs no allocation.
    first: Option<Waker>,
    /// The other waiters with places. Memory for the largest number at once is kept until the slot is reset.
    more: Option<Box<Slab<Waker>>>,
    /// The number of times that the waiters with places were woken.
    round: u64,
}

/// The kind of waiter that a waker belongs to.
#[derive(Debug)]
pub(crate) enum WaiterKind<'a> {
    /// The single waiter: a later one replaces it.
    Last,
    /// One of several, which keeps its place between two polls.
    Beside(&'a mut Option<WaiterToken>),
}

/// The place of one of several waiters, until it is woken. A waiter that leaves must give it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaiterToken {
    round: u64,
    index: Index,
}

#[derive(Clone, Copy, Debug)]
enum Index {
    First,
    More(usize),
}

impl Waiters {
    /// Registers `waker` for the next event. Returns the waker that it replaced.
    pub(super) fn register(&mut self, waker: &Waker, waiter: WaiterKind<'_>) -> Option<Waker> {
        match waiter {
            WaiterKind::Last => match &mut self.last {
                Some(last) if last.will_wake(waker) => None,
                last => last.replace(waker.clone()),
            },
            WaiterKind::Beside(place) => self.join(waker, place),
        }
    }

    fn join(&mut self, waker: &Waker, place: &mut Option<WaiterToken>) -> Option<Waker> {
        if let Some(known) = place.and_then(|place| self.at(place)) {
            return if known.will_wake(waker) {
                None
            } else {
                Some(mem::replace(known, waker.clone()))
            };
        }
        let waker = waker.clone();
        let index = if self.first.is_none() {
            self.first = Some(waker);
            Index::First
        } else {
            Index::More(self.more.get_or_insert_default().insert(waker))
        };
        *place = Some(WaiterToken { round: self.round, index });
        None
    }

    /// Calls `note` with each waker.
    pub(super) fn for_each(&self, note: impl FnMut(&Waker)) {
        let more = self.more.iter().flat_map(|more| more.iter().map(|(_, waker)| waker));
        self.last.iter().chain(&self.first).chain(more).for_each(note);
    }

    /// Returns the waker at a place if the place is of the present round.
    fn at(&mut self, place: WaiterToken) -> Option<&mut Waker> {
        match place.index {
            _ if place.round != self.round => None,
            Index::First => self.first.as_mut(),
            Index::More(index) => self.more.as_mut()?.get_mut(index),
        }
    }

    /// Gives up a place. Returns its waker unless that was woken.
    pub(super) fn leave(&mut self, place: WaiterToken) -> Option<Waker> {
        match place.index {
            _ if place.round != self.round => None,
            Index::First => self.first.take(),
            Index::More(index) => self.more.as_mut()?.try_remove(index),
        }
    }

    /// Moves all wakers to `woken`: that of the last waiter, then those of the others, nearly in order of arrival.
    /// Does not allocate if there is room.
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
