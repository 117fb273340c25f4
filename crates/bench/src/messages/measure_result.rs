//! The result of a measure.

use serde::{Deserialize, Serialize};

/// The result of a measure, or of one of its ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeasureResult {
    /// Operations in each sample.
    pub operations: u32,
    /// Nanoseconds of each sample; empty on ranks that follow.
    pub samples_ns: Vec<u64>,
    /// Operations behind the figures, if not those of the samples: of a program that gives its
    /// percentiles instead of its samples.
    pub operations_behind: Option<u64>,
    /// All operations, warm-up included.
    pub operations_all: u64,
    /// Nanoseconds from begin to end, warm-up and pauses included.
    pub wall_ns: u64,
    /// Processor time of all ranks meanwhile.
    pub cpu_ns: u64,
    /// Processor time of that follower which used most.
    pub cpu_follower_ns: u64,
}

impl MeasureResult {
    /// Adds the usage of a follower.
    pub(crate) fn add_follower(&mut self, follower: &Self) {
        self.cpu_ns += follower.cpu_ns;
        self.cpu_follower_ns = self.cpu_follower_ns.max(follower.cpu_ns);
    }
}
