//! Who sends to whom, in which order: an algorithm as a value.

use std::fmt;

use crate::group::{Group, Rank};

/// One of the networks that connect the members [eth-barrier, §3.3].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Network {
    /// The only one, for most algorithms.
    #[default]
    First,
    /// The second one, of algorithms that share their messages among two.
    Second,
}

/// Tells the messages of one sender in one barrier apart, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "algorithms number their messages")]
pub struct Round(pub u16);

/// Whom a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// One member.
    Member(Rank),
    /// All other members, by one multicast.
    Everyone,
}

/// A message that a member waits for: from whom, and which of that member's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Source {
    /// The sender.
    pub rank: Rank,
    /// The round in which it sends.
    pub round: Round,
    /// The network by which the message comes.
    pub network: Network,
}

impl Source {
    /// Names a message.
    #[must_use]
    pub const fn new(rank: Rank, round: Round, network: Network) -> Self {
        Self { rank, round, network }
    }
}

/// What a member does next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Sends one message, and goes on.
    Send {
        /// To whom.
        to: Target,
        /// Which of its messages this is.
        round: Round,
        /// By which network.
        network: Network,
    },
    /// Goes on when all of these have arrived, in whatever order.
    Receive(Vec<Source>),
}

/// The steps of every member of a group: after its last step, a member leaves the barrier.
///
/// A message may arrive before its receiver waits for it, even before it has entered.
#[derive(Clone, PartialEq, Eq)]
pub struct Schedule {
    group: Group,
    members: Vec<Vec<Step>>,
}

impl Schedule {
    /// Takes the steps of each member, by rank, for an algorithm of one's own; those of this crate come from
    /// `Algorithm::schedule`.
    #[must_use]
    pub fn from_steps(group: Group, members: Vec<Vec<Step>>) -> Self {
        debug_assert_eq!(members.len(), group.size() as usize, "steps for each member");
        Self { group, members }
    }

    /// Returns who takes part.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// Returns what a member does; nothing for a rank out of the group.
    #[must_use]
    pub fn steps(&self, rank: Rank) -> &[Step] {
        self.members.get(rank.index()).map_or(&[], Vec::as_slice)
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").field("group", &self.group).finish_non_exhaustive()
    }
}
