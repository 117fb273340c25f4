//! Backoff for yielding the core when it comes back late.

use std::time::Duration;

use crate::clock::Instant;

/// A pause is this many times as long as the core was away: at most a fiftieth of the time is lost.
const PAUSES: u32 = 50;

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Exponential backoff for waiters that yield the core repeatedly.
///
/// A thread that only waits gives the core back at once. One that computes keeps it until the kernel's next tick, 1 to 4 ms. So once the
/// core was away for long twice in a row (once may be chance), it is not yielded for 50 times as long as it was away, and for at least
/// twice as long each further time, up to 5 s. The first time that the core is back early ends that.
///
/// The caller defines "long": the cost of a sleep and its wake-up ([`Costs`](crate::Costs)), times the number of threads that
/// run meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub struct YieldBackoff {
    /// The time until which the core is not yielded, and the length of that pause.
    pause: Option<(Instant, Duration)>,
    /// True if the core was away for long the last time.
    was_long: bool,
}

impl YieldBackoff {
    /// Creates a backoff without a pause.
    #[must_use]
    pub const fn new() -> Self {
        Self { pause: None, was_long: false }
    }

    /// Returns whether the core should be kept for now.
    #[must_use]
    pub fn is_paused(&self, now: Instant) -> bool {
        self.pause.is_some_and(|(until, _)| now < until)
    }

    /// Returns whether the core was away for too long the last time that it was yielded.
    pub(super) const fn was_long(&self) -> bool {
        self.was_long
    }

    /// Learns that the core is back at `now` after being `away`, which is too long if longer than `most`.
    pub fn learn(&mut self, away: Duration, most: Duration, now: Instant) {
        let is_long = away > most;
        let was_long = std::mem::replace(&mut self.was_long, is_long);
        if !is_long {
            self.pause = None;
        } else if was_long {
            let last = self.pause.map_or(Duration::ZERO, |(_, pause)| pause);
            let pause = away.saturating_mul(PAUSES).max(last * 2).min(PAUSE_MAX);
            self.pause = Some((now + pause, pause));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    const MOST: Duration = Duration::from_micros(50);

    /// Yields the core at `now` if the backoff allows it. Returns how long the core is kept afterwards; `now` becomes
    /// the time of the next yield.
    fn give(backoff: &mut YieldBackoff, now: &mut Instant, away: Duration) -> Duration {
        assert!(!backoff.is_paused(*now));
        let back = *now + away;
        backoff.learn(away, MOST, back);
        *now = back;
        let Some((until, _)) = backoff.pause else { return Duration::ZERO };
        *now = until;
        assert!(
            !backoff.is_paused(until)
                && backoff.is_paused(Instant::from_nanos(until.as_nanos() - 1))
        );
        until - back
    }

    /// Goal: the core is yielded without a pause while it is back early, and ever more rarely, down to a bound, while it is late; one early
    /// return resets the backoff, and one late return counts as chance. Method: yields by hand.
    #[test]
    fn late_yields_become_rare() {
        let (mut backoff, mut now) = (YieldBackoff::new(), Instant::from_nanos(1));
        let (early, late) = (MOST, Duration::from_millis(3));
        for _ in 0..2 {
            assert_eq!(give(&mut backoff, &mut now, early), Duration::ZERO);
            assert_eq!(give(&mut backoff, &mut now, late), Duration::ZERO);
            let pauses = [(); 7].map(|()| give(&mut backoff, &mut now, late).as_millis());
            assert_eq!(pauses, [150, 300, 600, 1200, 2400, 4800, 5000]);
        }
        assert_eq!(give(&mut backoff, &mut now, Duration::from_secs(3600)), PAUSE_MAX);
    }

    proptest! {
        /// Goal: whatever others do with the core, late yields take no more than a fiftieth of the time plus the cost of finding out,
        /// which is one yield for each early one; and no yield is skipped before two in a row were late. Method: random runs of early
        /// and late yields, as often as the backoff allows, with some work between them.
        #[test]
        fn late_yields_take_no_more_than_a_fiftieth(
            runs in proptest::collection::vec((1u64..100_000, 1usize..200), 1..50),
            work in 1u64..1_000,
        ) {
            let (mut backoff, mut now) = (YieldBackoff::new(), Instant::from_nanos(0));
            let begun = now;
            let (mut lost, mut allowed) = (Duration::ZERO, Duration::ZERO);
            let mut late_in_a_row = 0;
            for &(away, count) in &runs {
                let away = Duration::from_micros(away);
                for _ in 0..count {
                    now += Duration::from_micros(work);
                    if backoff.is_paused(now) {
                        prop_assert!(late_in_a_row >= 2);
                        continue;
                    }
                    now += away;
                    backoff.learn(away, MOST, now);
                    late_in_a_row = if away > MOST { late_in_a_row + 1 } else { 0 };
                    if late_in_a_row > 0 {
                        lost += away;
                        // The first two of a run, and the last one, whose pause is not over.
                        allowed += if late_in_a_row <= 2 { away } else { Duration::ZERO };
                    }
                }
            }
            let last = Duration::from_micros(100_000);
            prop_assert!(lost <= allowed + last + (now - begun) / 50, "{:?} {:?}", lost, allowed);
        }

        /// Goal: without late yields there is no pause. Method: early yields at random.
        #[test]
        fn early_yields_are_allowed(aways in proptest::collection::vec(0u64..=50, 1..100)) {
            let mut backoff = YieldBackoff::new();
            for (at, away) in (0..).zip(aways) {
                let now = Instant::from_nanos(at);
                backoff.learn(Duration::from_micros(away), MOST, now);
                prop_assert_eq!(backoff.is_paused(now), false);
            }
        }
    }
}
