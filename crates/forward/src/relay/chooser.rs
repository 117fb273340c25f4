//! Whether bytes are copied or spliced, by what each was measured to cost on this machine.

use std::{
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
    /// Small messages are copied. Streams that fill their buffers are copied or spliced, whichever has cost less
    /// processor time per byte so far.
    #[default]
    Adaptive,
    /// Always copied.
    Copy,
    /// Streams that fill their buffers are spliced, while there are pipes.
    Splice,
}

/// What the engines have cost, for all connections of a relay.
#[derive(Debug)]
pub(super) struct Chooser {
    transfer: Transfer,
    /// Picoseconds per byte, smoothed; 0 before the first sample. Statistics: nothing is published by them.
    copy: AtomicU64,
    splice: AtomicU64,
    choices: AtomicU32,
}

/// Once in so many choices the engine that has cost more is tried again.
const TRY_AGAIN: u32 = 64;

impl Chooser {
    pub(super) const fn new(transfer: Transfer) -> Self {
        let (copy, splice) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { transfer, copy, splice, choices: AtomicU32::new(0) }
    }

    pub(super) fn choose(&self) -> Engine {
        match self.transfer {
            Transfer::Copy => return Engine::Copy,
            Transfer::Splice => return Engine::Splice,
            Transfer::Adaptive => {}
        }
        let copy = self.copy.load(Ordering::Relaxed);
        let splice = self.splice.load(Ordering::Relaxed);
        let (better, worse) = match (copy, splice) {
            (0, _) => return Engine::Copy,
            (_, 0) => return Engine::Splice,
            _ if copy <= splice => (Engine::Copy, Engine::Splice),
            _ => (Engine::Splice, Engine::Copy),
        };
        let choice = self.choices.fetch_add(1, Ordering::Relaxed);
        if choice % TRY_AGAIN == TRY_AGAIN - 1 { worse } else { better }
    }

    /// Learns that `engine` took `time` of processor for `bytes`.
    pub(super) fn note(&self, engine: Engine, bytes: usize, time: Duration) {
        let picos = time.as_nanos() * 1000 / (bytes as u128).max(1);
        let picos = u64::try_from(picos).unwrap_or(u64::MAX).max(1);
        let cost = match engine {
            Engine::Copy => &self.copy,
            Engine::Splice => &self.splice,
        };
        let before = cost.load(Ordering::Relaxed);
        // Two that learn at once may lose a sample, which another replaces.
        let after = if before == 0 { picos } else { before - before / 8 + picos / 8 };
        cost.store(after.max(1), Ordering::Relaxed);
    }

    /// Returns the picoseconds of processor time that a byte has cost, copied and spliced.
    pub(super) fn costs(&self) -> (Option<u64>, Option<u64>) {
        let known = |cost: &AtomicU64| Some(cost.load(Ordering::Relaxed)).filter(|cost| *cost > 0);
        (known(&self.copy), known(&self.splice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the cheaper engine is chosen, and the other is tried now and then. Method: costs by hand, which then
    /// change places.
    #[test]
    fn the_cheaper_engine_is_chosen() {
        let chooser = Chooser::new(Transfer::Adaptive);
        assert_eq!(chooser.choose(), Engine::Copy, "measured first");
        chooser.note(Engine::Copy, 1000, Duration::from_nanos(300));
        assert_eq!(chooser.choose(), Engine::Splice, "measured second");
        chooser.note(Engine::Splice, 1000, Duration::from_nanos(200));
        let count = |engine| (0..640).filter(|_| chooser.choose() == engine).count();
        assert_eq!(count(Engine::Splice), 630);
        for _ in 0..100 {
            chooser.note(Engine::Splice, 1000, Duration::from_nanos(400));
        }
        assert_eq!(count(Engine::Copy), 630);
        assert_eq!(Chooser::new(Transfer::Copy).choose(), Engine::Copy);
        assert_eq!(Chooser::new(Transfer::Splice).choose(), Engine::Splice);
    }
}
