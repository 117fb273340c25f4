//! The word on which all members arrive: a central counter that is never reset.
//!
//! In a sense-reversing barrier the last member sets the counter to zero and reverses the sense. Here the count goes
//! on: barrier number *e* of *n* members is passed as soon as *(e + 1)·n* have arrived. So the last arrival *is* the
//! release, there is one word to fetch from another core instead of two, and there is no moment at which a member
//! could die with the barrier half reversed.
//!
//! ```text
//!             arrive (1), fewer than n        arrive (1), the n-th
//!   count e·n ────────────────────▶ count < (e+1)·n ──────────▶ count (e+1)·n = start of the next barrier
//!                                        │    ▲                       │
//!                          begin_sleep (2)    └── woken, not passed   │ must_wake (3)
//!                                        ▼                            ▼
//!                                     sleepers = 1, asleep ◀── futex_word + 1, wake all
//! ```
//!
//! All numbers wrap around. A member waits for a count at most *n* ahead, and while it waits the count cannot go more
//! than *n* beyond that, so the sign of the difference tells which came first.
//!
//! This module does not know how members wait; `tests/loom.rs` checks both parts for lost wake-ups.

use crate::sync::{AtomicU32, Ordering, order_for_loom};

/// The number of arrivals, and whether some members sleep. One cache line, which the last arrival owns.
///
/// The layout is fixed, since processes share it: three words of 32 bits. Every value of each word is valid.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Central {
    /// Raised by each member that arrives (release), read by waiting members (acquire): what members did before they
    /// arrived is visible to those that have passed. All changes are read-modify-writes, so each one continues the
    /// others' release sequence.
    arrivals: AtomicU32,
    /// Non-zero: a member sleeps or is about to. `SeqCst`, like the count: see [`begin_sleep`](Self::begin_sleep).
    sleepers: AtomicU32,
    /// The futex word that sleepers wait to change: raised (release) after `sleepers` was cleared, read (acquire)
    /// before it is set.
    futex_word: AtomicU32,
}

/// The place of an arrival: early, or last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "others wait until the last member has woken them"]
pub(crate) enum Arrival {
    /// Other members have not arrived yet.
    Early,
    /// All have arrived: the barrier is passed, and sleepers must be woken.
    Last,
}

impl Central {
    /// Returns a counter at zero.
    pub(crate) fn new() -> Self {
        Self {
            arrivals: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            futex_word: AtomicU32::new(0),
        }
    }

    /// Arrives (1) at the barrier that ends at the count `target`.
    #[inline]
    pub(crate) fn arrive(&self, target: u32) -> Arrival {
        let count = self.arrivals.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        if count == target { Arrival::Last } else { Arrival::Early }
    }

    /// Returns whether all arrivals up to `target` have come.
    #[inline]
    pub(crate) fn is_passed(&self, target: u32) -> bool {
        const HALF: u32 = 1 << 31;
        self.arrivals.load(Ordering::Acquire).wrapping_sub(target) < HALF
    }

    /// Announces a sleep (2), and returns the expected value of the futex word. The caller then checks once more
    /// whether there is still something to wait for, and only then sleeps, unless the futex word has changed.
    ///
    /// The announcement precedes that check, and the change that ends the wait precedes the check of `sleepers` in
    /// [`must_wake`](Self::must_wake), all four in the single order of `SeqCst` operations: either the sleeper sees
    /// the change, or the thread that made the change sees the sleeper.
    pub(crate) fn begin_sleep(&self) -> u32 {
        // First: if the futex word is raised after `sleepers` was cleared, the futex sees the change.
        let futex_word = self.futex_word.load(Ordering::Acquire);
        self.sleepers.store(1, Ordering::SeqCst);
        order_for_loom();
        futex_word
    }

    /// Returns whether the caller, which has just arrived last or published a failure, must wake the sleepers on the
    /// futex word (3).
    #[inline]
    #[must_use = "sleepers sleep on if they are not woken"]
    pub(crate) fn must_wake(&self) -> bool {
        order_for_loom();
        self.sleepers.load(Ordering::SeqCst) != 0 && self.advance_futex_word()
    }

    #[cold]
    fn advance_futex_word(&self) -> bool {
        // Another thread may have done so meanwhile, and wakes all.
        let has_sleepers = self.sleepers.swap(0, Ordering::SeqCst) != 0;
        if has_sleepers {
            self.futex_word.fetch_add(1, Ordering::Release);
        }
        has_sleepers
    }

    /// Returns the word to sleep on.
    pub(crate) const fn futex_word(&self) -> &AtomicU32 {
        &self.futex_word
    }
}

/// A member's position: which barrier it enters next, and the count at which that one ends.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The number of the barrier, wrapping around.
    pub(crate) epoch: u32,
    /// The count of arrivals at which it is passed.
    pub(crate) target: u32,
}

#[cfg(not(loom))]
impl Position {
    /// The first barrier of a group of `size` members.
    pub(crate) const fn first(size: u32) -> Self {
        Self { epoch: 0, target: size }
    }

    /// The barrier after this one.
    pub(crate) const fn next(self, size: u32) -> Self {
        Self { epoch: self.epoch.wrapping_add(1), target: self.target.wrapping_add(size) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: numbers that wrap around change nothing, for sizes that divide the range of counts and such that
    /// do not. Method: begin shortly before the wrap, and go over it, with every member's view checked at each
    /// arrival.
    #[test]
    fn counts_wrap_around() {
        for size in [1_u32, 2, 3, 5, 32, 65_536] {
            let central = Central::new();
            let begin = 0_u32.wrapping_sub(size.wrapping_mul(3).wrapping_add(1));
            central.arrivals.store(begin, Ordering::Relaxed);
            let mut position = Position { epoch: u32::MAX - 1, target: begin.wrapping_add(size) };
            for _ in 0..7 {
                for rank in 0..size {
                    assert!(!central.is_passed(position.target), "{size}: {rank}");
                    let is_last = central.arrive(position.target) == Arrival::Last;
                    assert_eq!(is_last, rank == size - 1);
                }
                assert!(central.is_passed(position.target));
                let next = position.next(size);
                assert!(!central.is_passed(next.target));
                // A member that is slow to poll still sees that it has passed.
                for _ in 1..size {
                    assert_eq!(central.arrive(next.target), Arrival::Early);
                }
                assert!(central.is_passed(position.target));
                central.arrivals.fetch_sub(size - 1, Ordering::Relaxed);
                position = next;
            }
            assert_eq!(position.epoch, 5);
        }
    }
}
