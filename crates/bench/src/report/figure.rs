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
}
