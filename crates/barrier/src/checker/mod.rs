//! Proves that a schedule is a barrier.
//!
//! A member waits for messages by name, never for whichever comes first, and sending never blocks. So everything that
//! precedes a step is the same in every execution, whatever the delays: it is enough to execute once, keeping with
//! each message the set of members whose entry precedes its sending. A schedule is a barrier if no member is stuck at
//! the end, and each member that leaves has all members in its set.

mod error;
mod execution;
mod rank_set;
mod structure;

pub use self::error::{SIZE_MAX, ScheduleError};
pub(crate) use self::rank_set::Join;
use crate::{algorithm::MessageCounts, group::Rank, schedule::Schedule};

/// Proof that a schedule is a barrier, with its properties.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Proof {
    /// The number of its messages.
    pub messages: MessageCounts,
    /// The longest chain of messages in which each waits for the one before.
    pub hops: u32,
    joins: Vec<Vec<Join>>,
}

impl Proof {
    /// Returns whether a member never hears of another one twice, except from a member that knows everything it knows
    /// itself: then any value can be reduced, not only one that may be counted twice.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.joins.iter().flatten().all(|join| *join != Join::Overlaps)
    }

    /// Returns how the members that each of its sources tells of relate to those that the member knew.
    pub(crate) fn joins(&self, rank: Rank) -> &[Join] {
        self.joins.get(rank.index()).map_or(&[], Vec::as_slice)
    }
}

/// Checks that no member leaves before all have entered, that none waits for ever, and that every message has a
/// receiver that waits for it.
///
/// # Cost
/// Per message, one operation on a set with one bit per member of the group.
///
/// # Errors
/// [`ScheduleError`] names the first fault.
pub fn prove(schedule: &Schedule) -> Result<Proof, ScheduleError> {
    let size = schedule.group().size();
    if size > SIZE_MAX {
        return Err(ScheduleError::TooLarge { size });
    }
    let messages = structure::check(schedule)?;
    let (hops, joins) = execution::run(schedule)?;
    Ok(Proof { messages, hops, joins })
}

#[cfg(test)]
mod tests;
