//! Whether bytes are copied or spliced, by how either was measured to do on this machine.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

/// Who moves the bytes of a raw direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Through a buffer of ours: read, write.
    Copy,
    /// Through a pipe, in the kernel.
    Splice,
}

/// How a relay moves raw bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transfer {
    /// Small messages are copied. Streams that fill their buffers are copied or spliced, whichever has been faster so far; if neither
    /// was, whichever has cost the relay less processor time per byte.
    #[default]
    Adaptive,
    /// Always copied.
    Copy,
    /// Streams that fill their buffers are spliced, while there are pipes.
    Splice,
}

/// How the engines have done, for all connections of a relay.
///
/// A relay that has a processor for itself should do what costs it the least. One that shares its processor with the
/// other ends of its connections should not: what is cheap for it may be dear for them (a spliced page is freed by its reader).
/// Nobody but the stream itself knows: so a window of bytes by one engine is compared with the next window of the same
/// stream by the other. Only where that makes no difference (a network is the bottleneck, or others have most of the processor), the
/// relay's own time counts.
#[derive(Debug)]
pub(super) struct Chooser {
    transfer: Transfer,
    /// Picoseconds of processor time per byte, smoothed; 0 before the first sample. Statistics: nothing is published by
    /// them.
    copy: AtomicU64,
    splice: AtomicU64,
    /// Of the time that a window took copied and one took spliced, the part of the latter in thousandths, smoothed; 0 before
    /// the first pair. (A ratio would count what makes a spliced window long for more than what makes a copied one long.)
    share: AtomicU64,
    pairs: AtomicU32,
    choices: AtomicU32,
}

/// The engines take turns until so many pairs of windows were compared, or so many choices made: short streams have no pairs.
const PAIRS_MIN: u32 = 4;
const TURNS_MAX: u32 = 64;

/// Both orders of a pair are as likely as each other, but one in so many choices is enough once much is known: the engine that has
/// done worse is tried again after 8, 16, 32 and 64 choices, and every 64 from then on.
const TRY_AGAIN: u32 = 64;
const TRY_FIRST: u32 = 8;

/// Smoothing is over so many samples.
const SAMPLES: u64 = 8;

/// Shares in which nothing is seen but noise: 5 % between the two.
const ALIKE: RangeInclusive<u64> = 488..=512;
const HALF: u64 = 500;

/// A single pair counts for at most so much: somebody may have slept meanwhile.
const SHARES: RangeInclusive<u64> = 200..=800;

impl Chooser {
    pub(super) const fn new(transfer: Transfer) -> Self {
        let (copy, splice, share) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (pairs, choices) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { transfer, copy, splice, share, pairs, choices }
    }

    /// Chooses the engine of the next window of a stream, of which the one before was by `before`.
    pub(super) fn choose(&self, before: Option<Engine>) -> Engine {
        match self.transfer {
            Transfer::Copy => return Engine::Copy,
            Transfer::Splice => return Engine::Splice,
            Transfer::Adaptive => {}
        }
        let choice = self.choices.fetch_add(1, Ordering::Relaxed);
        if self.pairs.load(Ordering::Relaxed) < PAIRS_MIN && choice < TURNS_MAX {
            return match before {
                Some(Engine::Copy) => Engine::Splice,
                Some(Engine::Splice) => Engine::Copy,
                None if choice.is_multiple_of(2) => Engine::Copy,
                None => Engine::Splice,
            };
        }
        let share = match self.share.load(Ordering::Relaxed) {
            0 => HALF,
            share => share,
        };
        let copies = if ALIKE.contains(&share) {
            self.copy.load(Ordering::Relaxed) <= self.splice.load(Ordering::Relaxed)
        } else {
            share > HALF
        };
        let (better, worse) =
            if copies { (Engine::Copy, Engine::Splice) } else { (Engine::Splice, Engine::Copy) };
        let is_again =
            choice >= TRY_FIRST && (choice.is_power_of_two() || choice.is_multiple_of(TRY_AGAIN));
        if is_again { worse } else { better }
    }

    /// Learns that `engine` took `time` of processor for `bytes`.
    pub(super) fn note(&self, engine: Engine, bytes: usize, time: Duration) {
        let cost = match engine {
            Engine::Copy => &self.copy,
            Engine::Splice => &self.splice,
        };
        smooth(cost, picos_per_byte(bytes, time).max(1), SAMPLES);
    }

    /// Learns how long two windows of one stream took, one after the other, in picoseconds per byte.
    pub(super) fn compare(&self, before: (Engine, u64), after: (Engine, u64)) {
        let (((Engine::Copy, copied), (Engine::Splice, spliced))
        | ((Engine::Splice, spliced), (Engine::Copy, copied))) = (before, after)
        else {
            return;
        };
        let share = spliced.saturating_mul(1000) / copied.saturating_add(spliced).max(1);
        let pairs = self.pairs.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        // The first ones count alike.
        let samples = u64::from(pairs).min(SAMPLES);
        smooth(&self.share, share.clamp(*SHARES.start(), *SHARES.end()), samples);
    }

    /// Returns the picoseconds of processor time that a byte has cost, copied and spliced.
    pub(super) fn costs(&self) -> (Option<u64>, Option<u64>) {
        let known = |cost: &AtomicU64| Some(cost.load(Ordering::Relaxed)).filter(|cost| *cost > 0);
        (known(&self.copy), known(&self.splice))
    }
}

/// Returns what a byte took.
pub(super) fn picos_per_byte(bytes: usize, time: Duration) -> u64 {
    let picos = time.as_nanos() * 1000 / (bytes as u128).max(1);
    u64::try_from(picos).unwrap_or(u64::MAX)
}

/// Two that learn at once may lose a sample, which another replaces.
fn smooth(value: &AtomicU64, sample: u64, samples: u64) {
    let before = value.load(Ordering::Relaxed);
    let after = if before == 0 { sample } else { before - before / samples + sample / samples };
    value.store(after.max(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    fn count(chooser: &Chooser, engine: Engine) -> usize {
        (0..640).filter(|_| chooser.choose(None) == engine).count()
    }

    /// The engines take turns, and each pair of windows comes out as given.
    fn learn(chooser: &Chooser, copied: u64, spliced: u64) {
        for _ in 0..30 {
            chooser.compare((Engine::Copy, copied), (Engine::Splice, spliced));
            chooser.compare((Engine::Splice, spliced), (Engine::Copy, copied));
        }
    }

    /// Goal: the engine by which streams are faster is chosen, whatever it costs, and the other is tried now and then. Method:
    /// windows by hand, which then change places.
    #[test]
    fn the_faster_engine_is_chosen() {
        let chooser = Chooser::new(Transfer::Adaptive);
        let first = [(); 6].map(|()| chooser.choose(None));
        assert_eq!(first, [Engine::Copy, Engine::Splice].repeat(3)[..], "in turns");
        for (before, next) in [(Engine::Copy, Engine::Splice), (Engine::Splice, Engine::Copy)] {
            assert_eq!([(); 3].map(|()| chooser.choose(Some(before))), [next; 3], "of each stream");
        }
        chooser.note(Engine::Copy, 1000, 3 * MICRO);
        chooser.note(Engine::Splice, 1000, 2 * MICRO);
        learn(&chooser, 1000, 1300);
        let tries = 640 - count(&chooser, Engine::Copy);
        assert!((10..20).contains(&tries), "{tries}");
        learn(&chooser, 1000, 700);
        assert_eq!(count(&chooser, Engine::Splice), 630);
        // Windows by the same engine say nothing.
        chooser.compare((Engine::Copy, 1), (Engine::Copy, 1000));
        assert_eq!(count(&chooser, Engine::Splice), 630);
        assert_eq!(Chooser::new(Transfer::Copy).choose(None), Engine::Copy);
        assert_eq!(Chooser::new(Transfer::Splice).choose(None), Engine::Splice);
    }

    /// Goal: where streams are as fast by either, the one is chosen that costs the relay less. Method: windows by hand
    /// that are alike, and costs that change.
    #[test]
    fn the_cheaper_engine_is_chosen_of_two_that_are_alike() {
        let chooser = Chooser::new(Transfer::Adaptive);
        learn(&chooser, 1000, 1020);
        chooser.note(Engine::Copy, 1000, 3 * MICRO);
        chooser.note(Engine::Splice, 1000, 2 * MICRO);
        assert!(count(&chooser, Engine::Splice) >= 620);
        for _ in 0..100 {
            chooser.note(Engine::Splice, 1000, 4 * MICRO);
        }
        assert_eq!(count(&chooser, Engine::Copy), 630);
    }

    /// Goal: streams too short for a pair of windows are moved by the engine that costs the relay less, and stalls that hit
    /// both alike favour neither. Method: no pairs, and costs; then pairs of which one window is long by turns.
    #[test]
    fn nothing_is_seen_where_nothing_is() {
        let chooser = Chooser::new(Transfer::Adaptive);
        chooser.note(Engine::Copy, 1000, 3 * MICRO);
        chooser.note(Engine::Splice, 1000, 2 * MICRO);
        let _turns = count(&chooser, Engine::Copy);
        assert_eq!(count(&chooser, Engine::Splice), 630);
        for _ in 0..100 {
            chooser.compare((Engine::Copy, 1000), (Engine::Splice, 1_000_000));
            chooser.compare((Engine::Copy, 1_000_000), (Engine::Splice, 1000));
        }
        let share = chooser.share.load(Ordering::Relaxed);
        assert!((440..560).contains(&share), "{share}");
    }
}
