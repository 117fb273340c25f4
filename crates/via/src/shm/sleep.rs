//! The sleep word: which side sleeps, and which must notify. [`wakeup`](super::wakeup) explains the
//! protocol; this module knows nothing of pages and files, so that it can be model-checked
//! (`tests/loom.rs`).

use std::io;

/// A sleep word, as its owner sees it.
pub(crate) trait SleepWordWriter {
    /// Stores it, ordered after all earlier writes.
    fn store(&self, sleeps: u64);

    /// The fence between this store and the last poll. Pairs with [`SleepWordReader::light_fence`].
    ///
    /// # Errors
    /// The kernel's error.
    fn heavy_fence(&self) -> io::Result<()>;
}

/// A sleep word, as the peers see it.
pub(crate) trait SleepWordReader {
    /// The fence between publishing and loading the word.
    fn light_fence(&self);

    /// Loads it. `None` if there is no word.
    fn load(&self) -> Option<u64>;
}

/// The side that sleeps: the only writer of the word.
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

    /// Announces the sleep. Poll everything that others publish once more after this (wakeup-1).
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn fall_asleep(&mut self, word: &impl SleepWordWriter) -> io::Result<()> {
        // Always a new odd number, so that peers also notify for a sleep right after a sleep.
        self.sleeps += if self.is_asleep() { 2 } else { 1 };
        word.store(self.sleeps);
        word.heavy_fence()
    }

    pub(crate) fn wake_up(&mut self, word: &impl SleepWordWriter) {
        if self.is_asleep() {
            self.sleeps += 1;
            word.store(self.sleeps);
        }
    }
}

/// A side that publishes and notifies.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    /// The sleep for which it has notified.
    notified: u64,
}

impl Notifier {
    pub(crate) const fn new() -> Self {
        Self { notified: 0 }
    }

    /// Returns, after something was published, whether the sleeper sleeps, has not been notified yet,
    /// and cares.
    #[inline]
    pub(crate) fn must_notify(
        &mut self,
        word: &impl SleepWordReader,
        cares: impl FnOnce() -> bool,
    ) -> bool {
        word.light_fence();
        let Some(sleeps) = word.load() else { return false };
        !sleeps.is_multiple_of(2) && sleeps != self.notified && cares() && {
            self.notified = sleeps;
            true
        }
    }
}
