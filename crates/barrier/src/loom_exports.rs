//! Entry points to the parts that `tests/loom.rs` checks, only under `--cfg loom`.

use crate::{
    group::{Group, Rank},
    local::{absence, central},
    sync::AtomicU32,
};

/// The word on which all members arrive.
#[derive(Debug)]
pub struct Central(central::Central);

impl Central {
    /// Returns a counter at zero.
    #[expect(clippy::new_without_default, reason = "made on purpose, inside a model")]
    pub fn new() -> Self {
        Self(central::Central::new())
    }

    /// Arrives; returns whether that was the last arrival.
    pub fn arrive(&self, target: u32) -> bool {
        self.0.arrive(target) == central::Arrival::Last
    }

    /// Returns whether all have arrived.
    pub fn is_passed(&self, target: u32) -> bool {
        self.0.is_passed(target)
    }

    /// Announces a sleep, and returns the expected value of the futex word.
    pub fn begin_sleep(&self) -> u32 {
        self.0.begin_sleep()
    }

    /// Returns whether sleepers must be woken.
    pub fn must_wake(&self) -> bool {
        self.0.must_wake()
    }

    /// Returns the word to sleep on.
    pub fn futex_word(&self) -> &AtomicU32 {
        self.0.futex_word()
    }
}

/// The members that have left.
#[derive(Debug)]
pub struct Absences(absence::Absences);

impl Absences {
    /// Creates it for a group.
    pub fn new(group: Group) -> Self {
        Self(absence::Absences::new(group))
    }

    /// A member leaves without entering a barrier.
    pub fn leave(&self, rank: Rank, epoch: u32) {
        self.0.leave(rank, epoch);
    }

    /// Returns whether a barrier cannot be passed.
    pub fn fails(&self, epoch: u32) -> bool {
        self.0.fails(epoch)
    }

    /// Returns the members missing from a barrier.
    pub fn missing(&self, epoch: u32) -> Vec<Rank> {
        self.0.error(epoch).lost().to_vec()
    }
}
