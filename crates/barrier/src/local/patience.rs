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
const NETWORK_MAX: Duration = Duration::from_micros(600);

/// A wait that lasted longer was not to be shortened by looking.
const FAR: Duration = Duration::from_millis(2);

/// So many waits in a row that lasted that long, after which most of them sleep at once.
const LOSSES_MAX: u32 = 3;

/// One wait of so many still looks, when most of them do not.
const TRY_EVERY: u32 = 16;

/// Times the processor is given away between two looks at the clock.
const YIELDS: u32 = 4;

/// A member's way of waiting, which learns from what came of it.
///
/// What counts is how long waits last, and not whether looking was in vain: where all members sleep because one was
/// late, the next barrier takes longer than anybody looks, and they would never come back to looking.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Looks before the processor is given away.
    looks: u32,
    yielding: Duration,
    losses: u32,
    /// When the present wait gave up looking.
    gave_up: Instant,
}

impl Patience {
    /// For one of `size` members on the processors that this thread may use.
    pub(crate) fn new(size: u32) -> Self {
        let processors = thread::available_parallelism().map_or(1, Into::into);
        let is_crowded = usize::try_from(size).is_ok_and(|size| size > processors);
        let yielding = YIELDING_EACH.saturating_mul(size).clamp(YIELDING_MIN, YIELDING_MAX);
        let looks = if is_crowded { 1 } else { LOOKS };
        Self { looks, yielding, losses: 0, gave_up: Instant::from_nanos(0) }
    }

    /// For members that meet over a network: a barrier of many takes as long as one of them needs to send to all.
    pub(crate) fn over_network(self, size: u32) -> Self {
        let yielding = NETWORK_EACH.saturating_mul(size).clamp(YIELDING_MIN, NETWORK_MAX);
        // A look is a system call there, and with others on the same processor the first one is in vain.
        let looks = if self.looks == 1 { 0 } else { self.looks };
        Self { looks, yielding, ..self }
    }

    /// Gives the processor away no longer than this in one wait.
    pub(crate) fn at_most(self, yielding: Duration) -> Self {
        Self { yielding: self.yielding.min(yielding), ..self }
    }

    /// Looks until `look` finds something, or until sleeping is better.
    #[inline]
    pub(crate) fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if self.losses > LOSSES_MAX && !self.losses.is_multiple_of(TRY_EVERY) {
            self.gave_up = monotonic_now();
            return look();
        }
        for _ in 0..self.looks {
            if let Some(found) = look() {
                return Some(found);
            }
            hint::spin_loop();
        }
        self.give_away(look)
    }

    fn give_away<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut end = None;
        loop {
            for _ in 0..YIELDS {
                thread::yield_now();
                if let Some(found) = look() {
                    return Some(found);
                }
            }
            let now = monotonic_now();
            if *end.get_or_insert(now + self.yielding) <= now {
                self.gave_up = now;
                return None;
            }
        }
    }

    /// Learns how long the wait went on after looking had been given up.
    pub(crate) fn after_sleep(&mut self) {
        let lasted = monotonic_now() - self.gave_up;
        self.losses = if lasted < FAR { 0 } else { self.losses.wrapping_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: looking has an end, becomes rare where waits are long, and comes back with the first one that is
    /// not. Method: count the looks of waits that find nothing, after sleeps that are said to have been long, then
    /// after one that was short.
    #[test]
    fn patience_is_lost_and_found() {
        for size in [1, 2, 32, 65_536] {
            let mut patience = Patience::new(size).at_most(Duration::from_micros(50));
            let looks_of = |patience: &mut Patience| {
                let mut looks = 0;
                let found: Option<()> = patience.until(|| {
                    looks += 1;
                    None
                });
                assert!(found.is_none());
                looks
            };
            let mut lone = 0;
            for _ in 0..10 * TRY_EVERY {
                lone += u32::from(looks_of(&mut patience) == 1);
                patience.gave_up = Instant::from_nanos(0);
                patience.after_sleep();
            }
            assert!(lone > 8 * TRY_EVERY, "{lone} waits of {} looked once", 10 * TRY_EVERY);
            assert!(patience.losses > LOSSES_MAX);
            patience.gave_up = monotonic_now() + FAR;
            patience.after_sleep();
            assert!(looks_of(&mut patience) > 1, "the last one was short");
            assert_eq!(patience.until(|| Some(7)), Some(7));
        }
    }
}
