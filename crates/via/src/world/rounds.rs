//! Which barrier a rank is in.

use super::WorldError;

/// The last barrier that this rank has come to, the last that it was let through, and the last of which a
/// caller was told so: what is passed while nobody waits is the next caller's.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    entered: u32,
    passed: u32,
    told: u32,
}

impl Rounds {
    /// Returns whether the next caller is in a barrier already.
    pub(super) const fn is_inside(&self) -> bool {
        self.entered != self.told
    }

    pub(super) const fn entered(&self) -> u32 {
        self.entered
    }

    /// Comes to the next barrier and returns which it is.
    pub(super) fn enter(&mut self) -> Result<u32, WorldError> {
        let limit = WorldError::TooMany { what: "barriers", limit: usize::MAX };
        self.entered = self.entered.checked_add(1).ok_or(limit)?;
        Ok(self.entered)
    }

    /// Takes note that barrier `round` is open. Returns whether this rank was waiting there.
    #[must_use = "an open barrier where nobody waits is a fault of the launcher"]
    pub(super) const fn pass(&mut self, round: u32) -> bool {
        let is_due = round == self.entered && round != self.passed;
        if is_due {
            self.passed = round;
        }
        is_due
    }

    /// Returns whether barrier `round` is passed, which the caller then tells.
    pub(super) fn tell(&mut self, round: u32) -> bool {
        let is_passed = self.passed >= round;
        if is_passed {
            self.told = self.told.max(round);
        }
        is_passed
    }
}
