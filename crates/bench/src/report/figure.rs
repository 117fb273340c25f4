//! A figure that a goal is about.

/// The figure that a goal takes from the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    /// The smallest number of samples behind any part of it.
    pub(crate) samples: u64,
    /// There are too few samples for the exact figure: it is this or more.
    pub(crate) is_least: bool,
}

impl Figure {
    pub(crate) const fn new(value: f64, samples: u64) -> Self {
        Self { value, samples, is_least: false }
    }

    /// Returns the ratio of this figure to `base`.
    pub(crate) fn to(self, base: Self) -> Self {
        Self::new(self.value / base.value, self.samples.min(base.samples))
    }
}

/// Returns the largest of some figures.
pub(crate) fn largest(figures: impl IntoIterator<Item = Figure>) -> Option<Figure> {
    figures.into_iter().max_by(|one, other| one.value.total_cmp(&other.value))
}

/// Returns the smallest of some figures.
pub(crate) fn smallest(figures: impl IntoIterator<Item = Figure>) -> Option<Figure> {
    figures.into_iter().min_by(|one, other| one.value.total_cmp(&other.value))
}
