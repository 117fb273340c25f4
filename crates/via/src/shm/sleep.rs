//! The sleep word: who sleeps, and who must ring. [`bell`](super::bell) says how it works; what is here knows
//! nothing of pages and files, so that it can be model-checked (`tests/loom.rs`).

use std::io;

/// A sleep word, as its sleeper has it.
pub(crate) trait OwnWord {
    /// Writes it, after everything that was written before.
    fn store(&self, sleeps: u64);

    /// The fence between this write and the last look: pairs with [`PeerWord::light_fence`].
    ///
    /// # Errors
    /// The kernel's.
    fn heavy_fence(&self) -> io::Result<()>;
}

/// A sleep word, as the others have it.
pub(crate) trait PeerWord {
    /// The fence between what is published and the read.
    fn light_fence(&self);

    /// Reads it. `None` if there is none.
    fn load(&self) -> Option<u64>;
}

/// The side that sleeps: it alone writes the word.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    sleeps: u64,
}

impl Sleeper {
    pub(crate) const fn is_asleep(&self) -> bool {
        !self.sleeps.is_multiple_of(2)
    }

    /// Returns how often it has gone to sleep.
    pub(crate) const fn sleep_count(&self) -> u64 {
        self.sleeps.div_ceil(2)
    }

    /// Announces the sleep. What others publish must be looked at once more after this (bell-1).
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn fall_asleep(&mut self, word: &impl OwnWord) -> io::Result<()> {
        // Always another odd number, so that peers ring again also for a sleep right after a sleep.
        self.sleeps += if self.is_asleep() { 2 } else { 1 };
        word.store(self.sleeps);
        word.heavy_fence()
    }

    pub(crate) fn wake_up(&mut self, word: &impl OwnWord) {
        if self.is_asleep() {
            self.sleeps += 1;
            word.store(self.sleeps);
        }
    }
}

/// A side that publishes, and rings.
#[derive(Debug, Default)]
pub(crate) struct Ringer {
    /// The sleep for which was rung.
    rung: u64,
}

impl Ringer {
    pub(crate) const fn new() -> Self {
        Self { rung: 0 }
    }

    /// Looks, after something was published, whether the sleeper sleeps, was not yet rung for, and cares.
    #[inline]
    pub(crate) fn must_ring(&mut self, word: &impl PeerWord, cares: impl FnOnce() -> bool) -> bool {
        word.light_fence();
        let Some(sleeps) = word.load() else { return false };
        !sleeps.is_multiple_of(2) && sleeps != self.rung && cares() && {
            self.rung = sleeps;
            true
        }
    }
}
