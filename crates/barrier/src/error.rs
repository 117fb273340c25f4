//! The outcome of a barrier: passed, or why not.

use std::{fmt, io};

use thiserror::Error;
use vigie_detect::{RegisterError, WaitError};

use crate::group::Rank;

/// Every member has entered: a successful wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
    /// The number of the barrier in its group, counted from 0, modulo 2^32.
    pub epoch: u32,
}

impl Passed {
    pub(crate) const fn new(epoch: u32) -> Self {
        Self { epoch }
    }
}

/// The reason why a barrier was not passed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BarrierError {
    /// Members are gone that had not entered: no member can pass this barrier or a later one. The survivors can form
    /// a smaller group.
    #[error("{ranks} gone before entering barrier {epoch}: the survivors need a new group")]
    Lost {
        /// The members that are gone.
        ranks: LostRanks,
        /// The barrier that could not be passed.
        epoch: u32,
    },
    /// Too few members are left for a smaller group, while the others may have formed one: with
    /// [`Quorum::Majority`](crate::member::Quorum::Majority).
    #[error(
        "{survivors} of the first {size} members are left, and the others may go on without them: form a new group, or let any \
         number go on (`Quorum::Any`)"
    )]
    Minority {
        /// The number of members that are left.
        survivors: u32,
        /// The size of the group when it was formed.
        size: u32,
    },
    /// The member has entered already and not departed: depart, or wait, before it enters again.
    #[error("this member has entered barrier {epoch} already: depart from it first")]
    AlreadyEntered {
        /// The barrier that it has entered.
        epoch: u32,
    },
    /// A measurement of this member was cancelled, and the others wait for it to be completed.
    #[error(
        "a measurement was cancelled while the others wait for this member: call `{call}` again until it returns"
    )]
    Measuring {
        /// The cancelled call: `measure` or `replan`.
        call: &'static str,
    },
    /// The value's length differs from the group's. This member has not entered, and may do so with another value.
    #[error(
        "a value of {found} bytes, but the group reduces {expected}: call `reduce` or `arrive` with a value of that length"
    )]
    Value {
        /// The length of all values, in bytes.
        expected: usize,
        /// The length of this value.
        found: usize,
    },
    /// The token is not for this member's present barrier: another member made it, or its barrier is over.
    #[error("the token is for {token}, not for this member's present barrier")]
    ForeignToken {
        /// The token that was given.
        token: Arrived,
    },
    /// Watching the barrier failed at this member.
    #[error("the watch over the barrier failed: {0}")]
    Wait(#[from] WaitError),
    /// The watch could not be registered.
    #[error("the watch over the barrier cannot be registered: {0}")]
    Register(#[from] RegisterError),
    /// The kernel refused a call.
    #[error("{doing}: {source}")]
    Io {
        /// The operation that the call was for.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl BarrierError {
    /// Returns the members that are gone; empty for other errors.
    #[must_use]
    pub fn lost(&self) -> &[Rank] {
        match self {
            Self::Lost { ranks, .. } => &ranks.0,
            _ => &[],
        }
    }

    /// Returns whether the group is unusable from now on.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::AlreadyEntered { .. }
                | Self::ForeignToken { .. }
                | Self::Measuring { .. }
                | Self::Value { .. }
        )
    }

    #[cfg(not(loom))]
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

/// Members that are gone: at least one, in the order of their ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRanks(Vec<Rank>);

impl LostRanks {
    pub(crate) fn new(mut ranks: Vec<Rank>) -> Self {
        ranks.sort_unstable();
        ranks.dedup();
        Self(ranks)
    }

    /// Returns their ranks.
    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.0
    }
}

impl fmt::Display for LostRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, verb) = if self.0.len() == 1 { ("rank", "is") } else { ("ranks", "are") };
        write!(f, "{word}")?;
        for (index, rank) in self.0.iter().enumerate() {
            write!(f, "{} {}", if index == 0 { "" } else { "," }, rank.0)?;
        }
        write!(f, " {verb}")
    }
}

/// Proof that a member has entered a barrier and not departed yet: the token of a split-phase barrier.
///
/// Dropping it undoes nothing: the member stays entered, and its next wait is for the same barrier.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the member stays in the barrier until it departs with this"]
pub struct Arrived {
    pub(crate) rank: Rank,
    pub(crate) epoch: u32,
    /// Distinguishes the barriers of a process.
    pub(crate) group: u64,
}

impl Arrived {
    /// Returns the number of the barrier in its group, counted from 0, modulo 2^32.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in barrier {}", self.rank, self.epoch)
    }
}
