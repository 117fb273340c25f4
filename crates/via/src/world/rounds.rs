//! The barrier that a rank is in.

use super::WorldError;

/// The last barrier that this rank entered, the last that it was let through, and the last that was reported
/// to a caller: a barrier that is passed while no caller waits is reported to the next one.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    entered: u32,
    passed: u32,
    told: u32,
}

impl Rounds {
    /// Returns whether the next caller is already in a barrier.
    pub(super) const fn is_inside(&self) -> bool {
        self.entered != self.told
    }

    pub(super) const fn entered(&self) -> u32 {
        self.entered
    }

    /// Enters the next barrier and returns its number.
    pub(super) fn enter(&mut self) -> Result<u32, WorldError> {
        let limit = WorldError::TooMany { what: "barriers", limit: usize::MAX };
        self.entered = self.entered.checked_add(1).ok_or(limit)?;
        Ok(self.entered)
    }

    /// Records that barrier `round` is open. Returns whether this rank was waiting there.
    #[must_use = "an open barrier that this rank does not wait at is the launcher's fault"]
    pub(super) const fn pass(&mut self, round: u32) -> bool {
        let is_due = round == self.entered && round != self.passed;
        if is_due {
            self.passed = round;
        }
        is_due
    }

    /// Returns whether barrier `round` is passed; the caller then reports it.
    pub(super) fn tell(&mut self, round: u32) -> bool {
        let is_passed = self.passed >= round;
        if is_passed {
            self.told = self.told.max(round);
        }
        is_passed
    }
}
