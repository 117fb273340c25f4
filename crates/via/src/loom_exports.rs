//! Access to the parts that `tests/loom.rs` checks, under `--cfg loom` only.

use std::io;

pub use crate::shm::loom_exports::{ModelVi, connected_vis};
use crate::shm::sleep;

/// A sleep word of a model.
pub trait SleepWord {
    /// Called by the sleeper.
    fn store(&self, sleeps: u64);
    /// Called by the sleeper.
    fn heavy_fence(&self);
    /// Called by a sender.
    fn light_fence(&self);
    /// Called by a sender.
    fn load(&self) -> u64;
}

struct Word<'a, W>(&'a W);

impl<W: SleepWord> sleep::SleepWordWriter for Word<'_, W> {
    fn store(&self, sleeps: u64) {
        self.0.store(sleeps);
    }

    fn heavy_fence(&self) -> io::Result<()> {
        self.0.heavy_fence();
        Ok(())
    }
}

impl<W: SleepWord> sleep::SleepWordReader for Word<'_, W> {
    fn light_fence(&self) {
        self.0.light_fence();
    }

    fn load(&self) -> Option<u64> {
        Some(self.0.load())
    }
}

/// The side that sleeps.
#[derive(Debug, Default)]
pub struct Sleeper(sleep::Sleeper);

impl Sleeper {
    /// Announces the sleep.
    ///
    /// # Errors
    /// Never, in a model.
    pub fn fall_asleep(&mut self, word: &impl SleepWord) -> io::Result<()> {
        self.0.fall_asleep(&Word(word))
    }

    /// Ends the sleep.
    pub fn wake_up(&mut self, word: &impl SleepWord) {
        self.0.wake_up(&Word(word));
    }

    /// Returns how many times it has gone to sleep.
    pub fn sleep_count(&self) -> u64 {
        self.0.sleep_count()
    }
}

/// The side that notifies.
#[derive(Debug, Default)]
pub struct Notifier(sleep::Notifier);

impl Notifier {
    /// Returns whether the sleeper must be notified.
    pub fn must_notify(&mut self, word: &impl SleepWord) -> bool {
        self.0.must_notify(&Word(word), || true)
    }
}
