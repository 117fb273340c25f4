//! The result of a measure.

use serde::{Deserialize, Serialize};

/// The result of a measure, or of one of its ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeasureResult {
    /// Operations in each sample.
    pub(crate) operations: u32,
    /// Nanoseconds of each sample; empty on ranks that follow.
    pub(crate) samples_ns: Vec<u64>,
    /// Operations behind the figures, if not those of the samples: of a program that gives its
    /// percentiles instead of its samples.
    pub(crate) operations_behind: Option<u64>,
    /// All operations, warm-up included.
    pub(crate) operations_all: u64,
    /// Nanoseconds from begin to end, warm-up and pauses included.
    pub(crate) wall_ns: u64,
    /// Processor time of all ranks meanwhile.
    pub(crate) cpu_ns: u64,
    /// Processor time of that follower which used most.
    pub(crate) cpu_follower_ns: u64,
}

impl MeasureResult {
    /// Adds the usage of a follower.
    pub(crate) fn add_follower(&mut self, follower: &Self) {
        self.cpu_ns += follower.cpu_ns;
        self.cpu_follower_ns = self.cpu_follower_ns.max(follower.cpu_ns);
    }
}
