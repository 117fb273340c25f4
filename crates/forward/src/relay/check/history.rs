//! Whether a target is up, by the results of its checks.
//!
//! ```text
//!            1 `fall` checks in a row have failed (at the start, the first)
//!   up ───────────────────────────────────────────────────────────────────▶ down
//!      ◀───────────────────────────────────────────────────────────────────
//!            2 `rise` checks in a row have passed
//! ```

use super::config::HealthCheckConfig;

/// The results of a target's checks.
#[derive(Debug, Default)]
pub(in crate::relay) struct CheckHistory {
    /// `None` before the first check.
    is_up: Option<bool>,
    /// Checks in a row that contradict this.
    streak: u32,
}

impl CheckHistory {
    /// Whether no check has ended yet, so that the target is only presumed to be up.
    pub(in crate::relay) const fn is_empty(&self) -> bool {
        self.is_up.is_none()
    }

    /// Takes the result of a check. Returns whether the target is up, if that has changed.
    #[must_use = "the change is not returned again"]
    pub(super) fn checked(&mut self, has_passed: bool, config: &HealthCheckConfig) -> Option<bool> {
        let needed = if has_passed { config.rise } else { config.fall };
        match self.is_up {
            Some(is_up) if is_up == has_passed => {
                self.streak = 0;
                return None;
            }
            Some(_) => {
                self.streak += 1;
                if self.streak < needed {
                    return None;
                }
            }
            None => {}
        }
        self.streak = 0;
        let was = self.is_up.replace(has_passed);
        // A target is up until a check says otherwise.
        (was.is_some() || !has_passed).then_some(has_passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the first check decides alone; later, as many in a row as are set, and a contrary one in between starts the count again.
    /// Method: results by hand; each line is what is said of a change.
    #[test]
    fn rows_of_checks_decide() {
        let config = HealthCheckConfig::default().rise(2).fall(3);
        for (results, changes) in [
            ("+", "."),
            ("-", "D"),
            ("--+", "D.."),
            ("-+-++", "D...U"),
            ("+--+---", "......D"),
            ("+---++---", "...D.U..D"),
        ] {
            let mut history = CheckHistory::default();
            let said = results.chars().map(|one| match history.checked(one == '+', &config) {
                None => '.',
                Some(true) => 'U',
                Some(false) => 'D',
            });
            assert_eq!(said.collect::<String>(), changes, "{results}");
        }
    }
}
