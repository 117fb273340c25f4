//! Progress on the terminal: shown on standard error if that is one, silent otherwise.

use indicatif::{ProgressBar, ProgressStyle};

/// Parts into which a step of the bar is divided.
const PARTS: u64 = 1_000;

/// A progress bar over a known number of cases.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    cases_done: u64,
}

impl Progress {
    /// Creates a bar for `cases` cases.
    pub(crate) fn new(cases: usize) -> Self {
        let bar = ProgressBar::new(cases as u64 * PARTS);
        // A template that does not parse leaves the default style, which serves as well.
        if let Ok(style) = ProgressStyle::with_template("{bar:32} {percent:>3} %  {elapsed}  {msg}")
        {
            bar.set_style(style);
        }
        Self { bar, cases_done: 0 }
    }

    /// Creates a bar that shows nothing.
    #[cfg(test)]
    pub(crate) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), cases_done: 0 }
    }

    /// Says what is being measured.
    pub(crate) fn case(&self, label: impl Into<String>) {
        self.bar.set_message(label.into());
    }

    /// Moves within the present case: `done` of `total` parts of it.
    pub(crate) fn part(&self, done: usize, total: usize) {
        let share = (done as u64).saturating_mul(PARTS) / (total as u64).max(1);
        self.bar.set_position(self.cases_done * PARTS + share.min(PARTS));
    }

    /// Ends the present case.
    pub(crate) fn case_done(&mut self) {
        self.cases_done += 1;
        self.bar.set_position(self.cases_done * PARTS);
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
