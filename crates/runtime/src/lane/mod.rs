//! Lanes: which ready task goes first.
//!
//! A task that becomes ready while it has [credit](Credit) is in the *reaction lane*; any other ready task is
//! in the *compute lane*. The cause of the wake-up does not matter, except that a task gains nothing by
//! waking itself. The reaction lane is served in order of arrival, the compute lane in the order in which its
//! tasks would finish if all of them ran at once. Each lane has a [share](Share) of the time.

mod credit;
mod queue;
mod share;
mod trust;

use std::fmt;

pub(crate) use self::{
    credit::{Account, Credit, SharedCredit, average, is_for_credit},
    queue::{ComputeQueue, Rank, RankedQueue},
    share::Share,
    trust::{Early, Trust, most_ns},
};

/// One of the two queues of ready tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lane {
    /// Tasks with credit: those that use little processor time.
    Reaction,
    /// Tasks that have used up their share.
    Compute,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reaction => "reaction",
            Self::Compute => "compute",
        })
    }
}

/// The cause that made a task ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The detection server delivered an event to it.
    Detection,
    /// A running task spawned or woke it.
    Poll,
    /// A thread that is not a worker did: to the runtime, that is an event too.
    Foreign,
}
