//! Events of ranks: how they leave and end.

use std::fmt;

use super::Rank;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RankExit {
    /// On its own, with this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

/// An event of another rank, as the launcher reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorldEvent {
    /// It has [left](super::World::leave) in order: it needs the others no longer, and no rank waits for it.
    Left {
        /// The rank.
        rank: Rank,
    },
    /// It broke the rules of the rendezvous, or closed its connection without leaving. Its process may live,
    /// but no rank waits for it any more.
    Expelled {
        /// The rank.
        rank: Rank,
    },
    /// Its process has ended. This is the last event of a rank.
    Ended {
        /// The rank.
        rank: Rank,
        /// The way in which it ended.
        ending: RankExit,
    },
}

impl WorldEvent {
    /// Returns the rank of the event.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        match self {
            Self::Left { rank } | Self::Expelled { rank } | Self::Ended { rank, .. } => *rank,
        }
    }

    /// Returns whether the rank is lost to those that still count on it: it ended or was expelled.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        matches!(self, Self::Expelled { .. } | Self::Ended { .. })
    }
}
