//! An algorithm as a value: which member sends to which, and in what order.

use std::fmt;

use crate::group::{Group, Rank};

/// One of the networks that connect the members [eth-barrier, §3.3].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Network {
    /// The only one, for most algorithms.
    #[default]
    First,
    /// The second one, for algorithms that use two.
    Second,
}

/// The number of a message among those of its sender in one barrier, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "algorithms number their messages")]
pub struct Round(pub u16);

/// The receivers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// One member.
    Member(Rank),
    /// All other members, by one multicast.
    Everyone,
}

/// A message that a member waits for: its sender, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Source {
    /// The sender.
    pub rank: Rank,
    /// The round in which it sends.
    pub round: Round,
    /// The network on which the message arrives.
    pub network: Network,
}

impl Source {
    /// Names a message.
    #[must_use]
    pub const fn new(rank: Rank, round: Round, network: Network) -> Self {
        Self { rank, round, network }
    }
}

/// A member's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Sends one message, and goes on.
    Send {
        /// The receivers.
        to: Target,
        /// The number of the message.
        round: Round,
        /// The network.
        network: Network,
    },
    /// Waits until all of these have arrived, in any order.
    Receive(Vec<Source>),
}

/// The steps of every member of a group: after its last step, a member leaves the barrier.
///
/// A message may arrive before its receiver waits for it, even before the receiver has entered.
#[derive(Clone, PartialEq, Eq)]
pub struct Schedule {
    group: Group,
    members: Vec<Vec<Step>>,
}

impl Schedule {
    /// Creates a schedule from the steps of each member, by rank, for an algorithm of your own. `Algorithm::schedule`
    /// makes those of this crate.
    #[must_use]
    pub fn from_steps(group: Group, members: Vec<Vec<Step>>) -> Self {
        debug_assert_eq!(members.len(), group.size() as usize, "steps for each member");
        Self { group, members }
    }

    /// Returns the group.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// Returns the steps of a member; empty for a rank outside the group.
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
