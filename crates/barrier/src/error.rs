//! What a barrier says: passed, or why not.

use std::{fmt, io};

use thiserror::Error;
use vigie_detect::{RegisterError, WaitError};

use crate::group::Rank;

/// Every member has entered: the success of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
    /// Which barrier of the group this was, counted from 0, modulo 2^32.
    pub epoch: u32,
}

impl Passed {
    pub(crate) const fn new(epoch: u32) -> Self {
        Self { epoch }
    }
}

/// Why a barrier was not passed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BarrierError {
    /// Members are gone that had not entered: nobody can pass this barrier or a later one. The survivors make
    /// a smaller group.
    #[error("{ranks} gone before entering barrier {epoch}: the survivors need a new group")]
    Lost {
        /// Who.
        ranks: LostRanks,
        /// The barrier that could not be passed.
        epoch: u32,
    },
    /// Too few members are left for a smaller group, while the others may have made one: with
    /// [`Quorum::Majority`](crate::member::Quorum::Majority).
    #[error(
        "{survivors} of the first {size} members are left, and the others may go on without them: form a new group, or let any \
         number go on (`Quorum::Any`)"
    )]
    Minority {
        /// How many are left.
        survivors: u32,
        /// How many the group had when it was formed.
        size: u32,
    },
    /// The member has entered already, and not departed: depart, or wait, before it enters again.
    #[error("this member has entered barrier {epoch} already: depart from it first")]
    AlreadyEntered {
        /// The barrier in which it is.
        epoch: u32,
    },
    /// A measurement of this member was cancelled, and the others wait for the rest of it.
    #[error(
        "a measurement was cancelled, in which the others wait for this member: call `{call}` again, until it returns"
    )]
    Measuring {
        /// What was cancelled: `measure` or `replan`.
        call: &'static str,
    },
    /// The value has not the length of those that the group reduces: this member has not entered, and may with another
    /// value.
    #[error(
        "a value of {found} bytes, and the group reduces {expected}: enter with `reduce`, or `arrive`, and a value of that length"
    )]
    Value {
        /// How long all values are, in bytes.
        expected: usize,
        /// How long this one is.
        found: usize,
    },
    /// The token is not of this member's present barrier: it was made by another member, or its barrier is over.
    #[error("the token is of {token}, and not of the barrier in which this member is")]
    ForeignToken {
        /// What it is of.
        token: Arrived,
    },
    /// A member's own watch has failed.
    #[error("the watch over the barrier failed")]
    Wait(#[from] WaitError),
    /// No watch could be registered.
    #[error("no watch over the barrier can be registered")]
    Register(#[from] RegisterError),
    /// The kernel refused.
    #[error("{doing}")]
    Io {
        /// At what.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl BarrierError {
    /// Returns the members that are gone, if that is the error.
    #[must_use]
    pub fn lost(&self) -> &[Rank] {
        match self {
            Self::Lost { ranks, .. } => &ranks.0,
            _ => &[],
        }
    }

    /// Returns whether the group can be used no more.
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

/// The proof that a member has entered a barrier and not departed yet: the token of the split phase.
///
/// Dropping it takes nothing back: the member stays entered, and its next wait is for the same barrier.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the member stays in the barrier until it departs with this"]
pub struct Arrived {
    pub(crate) rank: Rank,
    pub(crate) epoch: u32,
    /// Tells the barriers of a process apart.
    pub(crate) group: u64,
}

impl Arrived {
    /// Returns which barrier of the group it was, counted from 0, modulo 2^32.
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
