//! When the next message leaves: pauses that cover a range evenly, also when there are few of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Fractional part of the golden ratio: its multiples modulo 1 fill the unit interval more evenly
/// than those of any other number.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Pauses between an answer and the next message, spread evenly over `[least, least + span)`.
///
/// A message must meet the compute tasks at every phase of their turn with equal probability,
/// otherwise the mean depends on where the last echo left the schedule: the answer to a polling
/// server always comes right after a switch. So `span` is a whole cycle of the compute tasks. The
/// pauses are the sequence `offset + i·φ mod 1` with a seeded offset, which gives the mean of `n`
/// samples an error of order 1/n where independent random pauses give 1/√n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spacing {
    pub(crate) least: Duration,
    pub(crate) span: Duration,
}

impl Spacing {
    /// Returns the pauses that `seed` stands for; they never end.
    pub(crate) fn pauses(self, seed: u64) -> impl Iterator<Item = Duration> {
        let mut phase = fastrand::Rng::with_seed(seed).f64();
        std::iter::repeat_with(move || {
            phase = (phase + GOLDEN).fract();
            self.least + self.span.mul_f64(phase)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pauses_cover_the_range_evenly() {
        // Goal: each tenth of the range gets its share of even a few pauses, for any seed.
        // Method: count 50 pauses in ten bins, for 100 seeds.
        let spacing = Spacing { least: Duration::from_millis(1), span: Duration::from_millis(10) };
        for seed in 0..100 {
            let mut bins = [0_u32; 10];
            for pause in spacing.pauses(seed).take(50) {
                let bin = (pause - spacing.least).as_nanos() / 1_000_000;
                bins[usize::try_from(bin).unwrap()] += 1;
            }
            assert!(bins.iter().all(|count| (3..=7).contains(count)), "seed {seed}: {bins:?}");
        }
    }

    #[test]
    fn one_seed_gives_one_sequence() {
        // Goal: a run can be repeated. Method: the same seed twice, another one once.
        let spacing = Spacing { least: Duration::ZERO, span: Duration::from_secs(1) };
        let of = |seed| spacing.pauses(seed).take(9).collect::<Vec<_>>();
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }
}
