//! Proves that a schedule is a barrier.
//!
//! A member waits for messages by name, never for whichever comes first, and sending never waits. So what has happened
//! before a step is the same in every execution, whatever the delays: it is enough to execute once and to keep with each
//! message the set of members whose entry has happened before it was sent. A schedule is a barrier if nobody is stuck at
//! the end, and whoever leaves has everybody in that set.

mod execution;
mod fault;
mod structure;

pub use self::fault::Fault;
use crate::{
    algorithm::Messages,
    group::Rank,
    schedule::{Round, Schedule},
};

/// The largest group that is checked: beyond it, the sets of members take too much memory.
pub const SIZE_MAX: u32 = 4096;

/// What is known of a schedule that is a barrier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Proof {
    /// How many messages it takes.
    pub messages: Messages,
    /// The longest chain of messages of which each waits for the one before.
    pub hops: u32,
    joins: Vec<Vec<Join>>,
}

impl Proof {
    /// Returns whether a member never hears of anybody twice but from somebody who knows all that it knows itself: then
    /// every value can be reduced, and not only those of which the same one may count twice.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.joins.iter().flatten().all(|join| *join != Join::Overlaps)
    }

    /// How what a member hears relates to what it knew, in the order of its sources.
    pub(crate) fn joins(&self, rank: Rank) -> &[Join] {
        self.joins.get(rank.index()).map_or(&[], Vec::as_slice)
    }
}

/// How the members that a message speaks of relate to those that its receiver has heard of before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// All of them are new.
    Adds,
    /// All that were known are among them.
    Covers,
    /// None of them is new.
    Repeats,
    /// Some are new, some are not, and others were known.
    Overlaps,
}

/// Checks that no member leaves before all have entered, that nobody waits for ever, and that every message is for
/// somebody who waits for it.
///
/// # Cost
/// For each message one operation on a set of as many bits as the group has members.
///
/// # Errors
/// [`Fault`] names the first thing that is wrong.
pub fn prove(schedule: &Schedule) -> Result<Proof, Fault> {
    let size = schedule.group().size();
    if size > SIZE_MAX {
        return Err(Fault::TooLarge { size });
    }
    let messages = structure::check(schedule)?;
    let (hops, joins) = execution::run(schedule)?;
    Ok(Proof { messages, hops, joins })
}

/// A message, for the tables of both passes.
type Name = (Rank, Round);

#[cfg(test)]
mod tests;
