//! Proves that a schedule is a barrier.
//!
//! A member waits for messages by name, never for whichever comes first, and sending never blocks. So everything that
//! precedes a step is the same in every execution, whatever the delays: it is enough to execute once, keeping with
//! each message the set of members whose entry precedes its sending. A schedule is a barrier if no member is stuck at
//! the end, and each member that leaves has all members in its set.

mod error;
mod execution;
mod structure;

pub use self::error::ScheduleError;
use crate::{
    algorithm::MessageCounts,
    group::Rank,
    schedule::{Round, Schedule},
};

/// The largest group that is checked: for larger ones, the sets of members take too much memory.
pub const SIZE_MAX: u32 = 4096;

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

/// The relation between the members that a message tells of and those that its receiver has heard of before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// All of them are new.
    Adds,
    /// All known ones are among them.
    Covers,
    /// None of them is new.
    Repeats,
    /// Some are new, some are not, and they do not include all known ones.
    Overlaps,
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

/// A message, as a key for the tables of both passes.
type MessageId = (Rank, Round);

#[cfg(test)]
mod tests;
