//! Chooses between copying and splicing, by measuring both on this machine.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

/// The mechanism that moves the bytes of a raw direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferEngine {
    /// Through a buffer of the relay: read, write.
    Copy,
    /// Through a pipe, in the kernel.
    Splice,
}

/// The method by which a relay moves raw bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transfer {
    /// Small messages are copied. Streams that fill their buffers are copied or spliced, whichever has been faster so
    /// far; if they are equally fast, whichever has cost the relay less processor time per byte.
    #[default]
    Adaptive,
    /// Always copied.
    Copy,
    /// Streams that fill their buffers are spliced, while pipes are available.
    Splice,
}

/// The measured performance of both engines, over all connections of a relay.
///
/// A relay with a processor of its own should choose what costs it least. One that shares its processor with the other
/// ends of its connections should not: what is cheap for it may be expensive for them (a spliced page is freed by its
/// reader). Only the stream's speed reflects both: so a window of bytes moved by one engine is compared with the next
/// window of the same stream moved by the other. If there is no difference (a network is the bottleneck, or other
/// processes have most of the processor), the relay's own time decides. So it does among many streams: how fast one
/// of them is depends on how long the others take. There, streams are copied only if that costs the relay at most two thirds of what splicing costs:
/// a stream spliced while the others are copied costs up to twice as much as when all are spliced.
#[derive(Debug)]
pub(super) struct Chooser {
    transfer: Transfer,
    /// Picoseconds of processor time per byte, a sample for each poll.
    copy: Average<64>,
    splice: Average<64>,
    /// The spliced window's share of the time of a spliced and a copied window, in thousandths, a sample for each pair.
    /// (A ratio would weigh delays of the spliced window more than those of the copied one.)
    share: Average<8>,
    choices: AtomicU32,
}

/// An average in which older samples have less and less weight: about the last `SPAN` count. Statistics only: it synchronises no other memory.
#[derive(Debug)]
struct Average<const SPAN: u64> {
    /// In fractions of `1 << FRACTION`, lest small differences be rounded away.
    value: AtomicU64,
    samples: AtomicU64,
}

impl<const SPAN: u64> Average<SPAN> {
    const FRACTION: u32 = 16;

    const fn new() -> Self {
        Self { value: AtomicU64::new(0), samples: AtomicU64::new(0) }
    }

    /// 0 before the first sample.
    fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed) >> Self::FRACTION
    }

    fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    /// The first samples have equal weight. Of two concurrent ones, one may be lost; the next one makes up for it.
    fn add(&self, sample: u64) {
        let samples = self.samples.fetch_add(1, Ordering::Relaxed).saturating_add(1).min(SPAN);
        let before = self.value.load(Ordering::Relaxed);
        let sample = sample.min(u64::from(u32::MAX)) << Self::FRACTION;
        self.value.store(before - before / samples + sample / samples, Ordering::Relaxed);
    }
}

/// The engines alternate until this many pairs of windows were compared, or among many streams until this many polls
/// of each engine were measured; or until this many choices were made: short streams have no pairs.
const PAIRS_MIN: u64 = 4;
const COSTS_MIN: u64 = 8;
const TURNS_MAX: u32 = 64;

/// A pair comes in either order with equal probability, but once enough is known, few trials suffice: the engine that
/// has done worse is tried again after 8, 16, 32 and 64 choices, and every 64 from then on.
const TRY_AGAIN: u32 = 64;
const TRY_FIRST: u32 = 8;

/// Shares that count as noise: 5 % between the two.
const ALIKE: RangeInclusive<u64> = 488..=512;
const HALF: u64 = 500;

/// Among more streams, the relay's own time decides. Measured: `docs/design/forward-relay.md`, "Many streams".
const FEW_STREAMS: u64 = 8;

/// The bounds of a single pair's share: a process may have slept meanwhile.
const SHARES: RangeInclusive<u64> = 200..=800;

impl Chooser {
    pub(super) const fn new(transfer: Transfer) -> Self {
        Self {
            transfer,
            copy: Average::new(),
            splice: Average::new(),
            share: Average::new(),
            choices: AtomicU32::new(0),
        }
    }

    /// Chooses the engine of a stream's next window; the previous window used `before`, and the relay has that many streams.
    pub(super) fn choose(&self, before: Option<TransferEngine>, streams: u64) -> TransferEngine {
        match self.transfer {
            Transfer::Copy => return TransferEngine::Copy,
            Transfer::Splice => return TransferEngine::Splice,
            Transfer::Adaptive => {}
        }

        let choice = self.choices.fetch_add(1, Ordering::Relaxed);
        let is_crowded = streams > FEW_STREAMS;
        let is_known = if is_crowded {
            self.copy.samples().min(self.splice.samples()) >= COSTS_MIN
        } else {
            self.share.samples() >= PAIRS_MIN
        };
        if !is_known && choice < TURNS_MAX {
            return match before {
                Some(TransferEngine::Copy) => TransferEngine::Splice,
                Some(TransferEngine::Splice) => TransferEngine::Copy,
                None if choice.is_multiple_of(2) => TransferEngine::Copy,
                None => TransferEngine::Splice,
            };
        }

        let share = match self.share.get() {
            0 => HALF,
            share => share,
        };

        let copies = if is_crowded {
            // Copies too small to be measured are not cheap.
            self.copy.samples() > 0
                && self.copy.get().saturating_mul(3) <= self.splice.get().saturating_mul(2)
        } else if ALIKE.contains(&share) {
            self.copy.get() <= self.splice.get()
        } else {
            share > HALF
        };

        if copies == is_trial(choice) { TransferEngine::Splice } else { TransferEngine::Copy }
    }

    /// Records that `engine` took `time` of processor for `bytes`.
    pub(super) fn note(&self, engine: TransferEngine, bytes: usize, time: Duration) {
        let cost = match engine {
            TransferEngine::Copy => &self.copy,
            TransferEngine::Splice => &self.splice,
        };
        cost.add(picos_per_byte(bytes, time));
    }

    /// Records how long two successive windows of one stream took, in picoseconds per byte.
    pub(super) fn compare(&self, before: (TransferEngine, u64), after: (TransferEngine, u64)) {
        let (((TransferEngine::Copy, copied), (TransferEngine::Splice, spliced))
        | ((TransferEngine::Splice, spliced), (TransferEngine::Copy, copied))) = (before, after)
        else {
            return;
        };
        let share = spliced.saturating_mul(1000) / copied.saturating_add(spliced).max(1);
        self.share.add(share.clamp(*SHARES.start(), *SHARES.end()));
    }
}

/// Returns whether the engine that has done worse is tried again.
const fn is_trial(choice: u32) -> bool {
    choice >= TRY_FIRST && (choice.is_power_of_two() || choice.is_multiple_of(TRY_AGAIN))
}

/// Returns the time per byte.
pub(super) fn picos_per_byte(bytes: usize, time: Duration) -> u64 {
    let picos = time.as_nanos() * 1000 / (bytes as u128).max(1);
    u64::try_from(picos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    fn count(chooser: &Chooser, engine: TransferEngine) -> usize {
        (0..640).filter(|_| chooser.choose(None, 1) == engine).count()
    }

    /// The engines alternate, and each pair of windows has the given times.
    fn learn(chooser: &Chooser, copied: u64, spliced: u64) {
        for _ in 0..30 {
            chooser.compare((TransferEngine::Copy, copied), (TransferEngine::Splice, spliced));
            chooser.compare((TransferEngine::Splice, spliced), (TransferEngine::Copy, copied));
        }
    }

    /// Goal: the engine with which streams are faster is chosen, whatever it costs, and the other is tried now and
    /// then. Method: windows by hand, which then swap.
    #[test]
    fn the_faster_engine_is_chosen() {
        let chooser = Chooser::new(Transfer::Adaptive);
        let first = [(); 6].map(|()| chooser.choose(None, 1));
        assert_eq!(first, [TransferEngine::Copy, TransferEngine::Splice].repeat(3)[..], "in turns");
        for (before, next) in [
            (TransferEngine::Copy, TransferEngine::Splice),
            (TransferEngine::Splice, TransferEngine::Copy),
        ] {
            assert_eq!(
                [(); 3].map(|()| chooser.choose(Some(before), 1)),
                [next; 3],
                "of each stream"
            );
        }
        chooser.note(TransferEngine::Copy, 1000, 3 * MICRO);
        chooser.note(TransferEngine::Splice, 1000, 2 * MICRO);
        learn(&chooser, 1000, 1300);
        let tries = 640 - count(&chooser, TransferEngine::Copy);
        assert!((10..20).contains(&tries), "{tries}");
        learn(&chooser, 1000, 700);
        assert_eq!(count(&chooser, TransferEngine::Splice), 630);
        // Two windows by the same engine are not compared.
        chooser.compare((TransferEngine::Copy, 1), (TransferEngine::Copy, 1000));
        assert_eq!(count(&chooser, TransferEngine::Splice), 630);
        assert_eq!(Chooser::new(Transfer::Copy).choose(None, 1), TransferEngine::Copy);
        assert_eq!(Chooser::new(Transfer::Splice).choose(None, 1), TransferEngine::Splice);
    }

    /// Goal: where streams are equally fast, the engine that costs the relay less is chosen. Method: equal windows by
    /// hand, and costs that change.
    #[test]
    fn the_cheaper_engine_is_chosen_of_two_that_are_alike() {
        let chooser = Chooser::new(Transfer::Adaptive);
        learn(&chooser, 1000, 1020);
        chooser.note(TransferEngine::Copy, 1000, 3 * MICRO);
        chooser.note(TransferEngine::Splice, 1000, 2 * MICRO);
        assert!(count(&chooser, TransferEngine::Splice) >= 620);
        for _ in 0..1000 {
            chooser.note(TransferEngine::Splice, 1000, 4 * MICRO);
        }
        assert_eq!(count(&chooser, TransferEngine::Copy), 630);
    }

    /// Goal: among many streams, the engine that costs the relay less is chosen, however fast its streams are, and splicing if they
    /// cost much the same. Method: streams that are slower by the cheaper engine; few streams, then many; then costs that change.
    #[test]
    fn the_cheaper_engine_is_chosen_among_many() {
        let chooser = Chooser::new(Transfer::Adaptive);
        chooser.note(TransferEngine::Splice, 1000, 2 * MICRO);
        learn(&chooser, 1000, 1300);
        let spliced = |streams| {
            let choices = (0..640).map(|_| chooser.choose(None, streams));
            choices.filter(|engine| *engine == TransferEngine::Splice).count()
        };
        let _turns = count(&chooser, TransferEngine::Copy);
        assert!(spliced(FEW_STREAMS + 1) > 620, "copying was not measured");
        chooser.note(TransferEngine::Copy, 1000, 3 * MICRO);
        assert!(spliced(FEW_STREAMS) < 20);
        assert!(spliced(FEW_STREAMS + 1) > 620);
        let costs = |splice| {
            for _ in 0..1000 {
                chooser.note(TransferEngine::Splice, 1000, splice);
            }
        };
        costs(4 * MICRO);
        assert!(spliced(FEW_STREAMS + 1) > 620);
        costs(5 * MICRO);
        assert!(spliced(FEW_STREAMS + 1) < 20);
    }

    /// Goal: streams too short for a pair of windows are moved by the engine that costs the relay less, and stalls that
    /// hit both alike favour neither. Method: no pairs, and costs; then pairs in which alternate windows are long.
    #[test]
    fn nothing_is_seen_where_nothing_is() {
        let chooser = Chooser::new(Transfer::Adaptive);
        chooser.note(TransferEngine::Copy, 1000, 3 * MICRO);
        chooser.note(TransferEngine::Splice, 1000, 2 * MICRO);
        let _turns = count(&chooser, TransferEngine::Copy);
        assert_eq!(count(&chooser, TransferEngine::Splice), 630);
        for _ in 0..100 {
            chooser.compare((TransferEngine::Copy, 1000), (TransferEngine::Splice, 1_000_000));
            chooser.compare((TransferEngine::Copy, 1_000_000), (TransferEngine::Splice, 1000));
        }
        let share = chooser.share.get();
        assert!((440..560).contains(&share), "{share}");
    }
}
