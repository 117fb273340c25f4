//! How long a member looks by itself before it sleeps.
//!
//! On processors that nobody else wants, it looks again and again: who arrives on another one is seen within
//! 0.1 µs. With more members than processors, looking on keeps those away who are waited for: the member gives its
//! processor away between two looks (`sched_yield`), which costs 0.3 µs for threads of one process and about
//! 1.4 µs for processes, where a sleep and a wake-up cost 5 to 50 µs. Either has an end, so that one who is late
//! costs the others next to nothing.

use std::{hint, thread, time::Duration};

use vigie_detect::{Instant, clock::monotonic_now};

/// Looks in a row where each member can have a processor of its own: some 10 µs, many times what an answer
/// from another processor takes.
const LOOKS: u32 = 300;

/// How long a wait gives its processor away again and again, for each member: ten times what a whole barrier
/// of many members takes in which nobody is late.
const YIELDING_EACH: Duration = Duration::from_micros(6);

/// The same, at least and at most. Together less than 1 % of a processor if somebody is late by 100 ms, on two.
const YIELDING_MIN: Duration = Duration::from_micros(100);
const YIELDING_MAX: Duration = Duration::from_micros(500);

/// The same, over a network.
const NETWORK_EACH: Duration = Duration::from_micros(30);
const NETWORK_MAX: Duration = Duration::from_millis(1);

/// Waits in a row that looked in vain, after which most of them sleep at once.
const LOSSES_MAX: u32 = 3;

/// One wait of so many still looks, when most of them do not.
const TRY_EVERY: u32 = 16;

/// A member's way of waiting, which learns from what came of it.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Looks before the processor is given away.
    looks: u32,
    yielding: Duration,
    losses: u32,
}

impl Patience {
    /// For one of `size` members on the processors that this thread may use.
    pub(crate) fn new(size: u32) -> Self {
        let processors = thread::available_parallelism().map_or(1, Into::into);
        let is_crowded = usize::try_from(size).is_ok_and(|size| size > processors);
        let yielding = YIELDING_EACH.saturating_mul(size).clamp(YIELDING_MIN, YIELDING_MAX);
        Self { looks: if is_crowded { 1 } else { LOOKS }, yielding, losses: 0 }
    }

    /// For members that meet over a network: a barrier of many takes as long as one of them needs to send to all.
    pub(crate) fn over_network(self, size: u32) -> Self {
        let yielding = NETWORK_EACH.saturating_mul(size).clamp(YIELDING_MIN, NETWORK_MAX);
        Self { yielding, ..self }
    }

    /// Gives the processor away no longer than this in one wait.
    pub(crate) fn at_most(self, yielding: Duration) -> Self {
        Self { yielding: self.yielding.min(yielding), ..self }
    }

    /// Looks until `look` finds something, or until sleeping is better.
    #[inline]
    pub(crate) fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if self.losses > LOSSES_MAX && !self.losses.is_multiple_of(TRY_EVERY) {
            self.losses = self.losses.wrapping_add(1);
            return look();
        }
        for _ in 0..self.looks {
            if let Some(found) = look() {
                self.losses = 0;
                return Some(found);
            }
            hint::spin_loop();
        }
        self.give_away(look)
    }

    fn give_away<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let end: Instant = monotonic_now() + self.yielding;
        loop {
            thread::yield_now();
            if let Some(found) = look() {
                self.losses = 0;
                return Some(found);
            }
            if monotonic_now() >= end {
                self.losses = self.losses.saturating_add(1);
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: looking has an end, becomes rare when it is in vain, and comes back once it was not. Method: count
    /// the looks of waits that find nothing, then of one that does.
    #[test]
    fn patience_is_lost_and_found() {
        for size in [1, 2, 32, 65_536] {
            let mut patience = Patience::new(size);
            let mut looks_of = |found_at: u32| {
                let mut looks = 0;
                let found = patience.until(|| {
                    looks += 1;
                    (looks == found_at).then_some(())
                });
                assert_eq!(found.is_some(), looks == found_at);
                looks
            };
            let mut lone = 0;
            for _ in 0..10 * TRY_EVERY {
                lone += u32::from(looks_of(u32::MAX) == 1);
            }
            assert!(lone > 8 * TRY_EVERY, "{lone} waits of {} looked once", 10 * TRY_EVERY);
            // The next one that looks longer finds something at its second look.
            assert!((0..TRY_EVERY).any(|_| looks_of(2) == 2));
            assert!(looks_of(3) == 3);
        }
    }
}
