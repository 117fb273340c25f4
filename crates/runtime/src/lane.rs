//! Lanes: which ready task goes first.
//!
//! Membership is causal. A task woken by an event is in the *reaction lane*, and so is what a poll in
//! that lane spawns or wakes. A task whose poll was longer than the quantum is in the *compute lane*
//! until it has behaved for a while, and so is one that keeps waking itself.

use std::{fmt, time::Duration};

use crate::task_cell::TaskInfo;

/// One of the two queues of ready tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lane {
    /// Woken by an event, directly or through other tasks.
    Reaction,
    /// Everything else.
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

/// On whose behalf a task becomes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The detection server delivered an event to it.
    Detection,
    /// A task that is polled in this lane spawned or woke it.
    Poll(Lane),
    /// A thread that is no worker did: to the runtime, that is an event too.
    Foreign,
}

/// How often in a row a task may wake itself before it counts as computing. One `yield_now` for
/// fairness is no computation; and an event that another worker delivers while the task runs looks
/// like a wake-up from inside.
const SELF_WAKES_MAX: u8 = 2;

/// Returns the lane for a task that becomes ready.
pub(crate) fn choose(task: &TaskInfo, was_running: bool, cause: Cause) -> Lane {
    let self_wakes = task.note_wake(was_running);
    if task.note_scheduled() {
        // Just spawned: it shares the lane of its parent, and has a chance to behave. A thread that is
        // no worker may be the one that accepts connections, in `block_on`.
        return match cause {
            Cause::Poll(lane) => lane,
            Cause::Detection | Cause::Foreign => Lane::Reaction,
        };
    }
    if task.is_on_probation() || self_wakes > SELF_WAKES_MAX {
        return Lane::Compute;
    }
    match cause {
        Cause::Detection | Cause::Foreign => Lane::Reaction,
        Cause::Poll(lane) => lane,
    }
}

/// Keeps either lane from starving the other: the reaction lane goes first, until it has used up its
/// share while the other one waits.
#[derive(Debug)]
pub(crate) struct Share {
    /// How long the reaction lane may run before a task of the compute lane has its turn.
    slice_ns: u64,
    used_ns: u64,
}

impl Share {
    pub(crate) fn new(slice: Duration) -> Self {
        Self { slice_ns: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX), used_ns: 0 }
    }

    /// Takes note of a poll.
    pub(crate) fn record(&mut self, lane: Lane, nanos: u64) {
        match lane {
            Lane::Reaction => self.used_ns = self.used_ns.saturating_add(nanos),
            Lane::Compute => self.used_ns = 0,
        }
    }

    /// Returns which lane to look into first.
    pub(crate) const fn first(&self) -> Lane {
        if self.used_ns < self.slice_ns { Lane::Reaction } else { Lane::Compute }
    }
}
