//! The algorithms: from a group to a schedule, and to its number of messages without one.
//!
//! | algorithm | name | messages | hops one after the other |
//! | --- | --- | --- | --- |
//! | [shuffle exchange](Algorithm::ShuffleExchange) | `shuffle-exchange` | n log2 n | log2 n |
//! | [pairwise exchange](Algorithm::Pairwise) | `pairwise` | m log2 m + 2(n − m) | log2 m + 2, m the power of two below n |
//! | [dissemination](Algorithm::Dissemination) | `dissemination`, `dissemination-W` | n·W a round | log n to the base W + 1 |
//! | [k-nomial tree](Algorithm::Nomial) | `binary`, `nomial-K` | n − 1 and a multicast | log n to the base K, and 1 |
//! | [heap](Algorithm::Heap) | `ternary`, `heap-C`, with `-two-networks` | n − 1 and a multicast | depth, and 1 |
//! | [concurrent](Algorithm::Concurrent) | `concurrent`, `concurrent-two-networks` | n − 1 and a multicast | 2 |
//! | [optimal tree](Algorithm::Optimal) | `optimal-HOP-GAP` | n − 1 and a multicast | as few as pay off |
//! | [tournament](Algorithm::Tournament) | `tournament` | 2(n − 1) | twice log2 n |
//! | [central](Algorithm::Central) | `central` | 2(n − 1) | 2 |
//!
//! A group of one sends nothing and leaves at once.

mod builder;
mod central;
mod exchange;
mod name;
mod networks;
mod optimal;
mod tree;

use thiserror::Error;

pub(crate) use self::exchange::partners;
pub use self::{networks::Networks, optimal::HopTiming};
use crate::{group::Group, schedule::Schedule};

/// An algorithm by which members find out that all have entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// In round i each member exchanges messages with the one whose rank differs in bit i [eth-barrier, §3.1.1]. Only
    /// for groups whose size is a power of two.
    ShuffleExchange,
    /// Shuffle exchange among the largest power of two. Each further member is represented by one of them: it tells
    /// that one when it has entered, and that one tells it when to leave.
    Pairwise,
    /// In each round a member sends to `ways` others, at distances that grow with the number of members it has
    /// already heard of: with one way, the dissemination barrier \[hensgen88\].
    Dissemination {
        /// Partners in a round, at least 1.
        ways: u16,
    },
    /// A k-nomial tree gathers stage by stage, combining k members into one per stage, and a multicast tells all to
    /// leave. With k = 2, the binary tree of [eth-barrier, §3.2.1].
    Nomial {
        /// The number of members that combine into one per stage, at least 2.
        k: u16,
    },
    /// A complete tree, numbered like a heap, gathers, and a multicast tells all to leave. With two children, the
    /// ternary tree of [eth-barrier, §3.2.2], whose third member is the parent.
    Heap {
        /// Children of a parent, at least 1.
        children: u16,
        /// The number of networks: with two, children alternate between them [eth-barrier, §3.3.1].
        networks: Networks,
    },
    /// Every member tells the master, which tells all to leave by a multicast [eth-barrier, §3.2.3].
    Concurrent {
        /// The number of networks: with two, members alternate between them [eth-barrier, §3.3.2].
        networks: Networks,
    },
    /// The tree that gathers fastest for these message times: the tree of optimal broadcast \[karp93\] with its
    /// messages reversed. A multicast tells all to leave.
    Optimal(HopTiming),
    /// The binary tree, up and then down again: the winners of each round wake their losers. Without multicast.
    Tournament,
    /// Every member tells the master, which tells one after the other to leave. Without multicast; a message's epoch
    /// does the work of the reversed sense.
    Central,
}

/// The number of messages in a barrier, over all members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MessageCounts {
    /// Messages to one member.
    pub unicast: u64,
    /// Messages to all others.
    pub multicast: u64,
}

impl MessageCounts {
    /// Creates the counts of messages to one member and to all others.
    #[must_use]
    pub const fn new(unicast: u64, multicast: u64) -> Self {
        Self { unicast, multicast }
    }
}

/// An algorithm that does not exist, or does not suit a group.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AlgorithmError {
    /// No algorithm has this name.
    #[error(
        "no algorithm is called `{name}`; there are shuffle-exchange, pairwise, dissemination, dissemination-WAYS, binary, \
         nomial-K, ternary, heap-CHILDREN, concurrent (these three also with -two-networks), optimal-HOP-GAP in \
         nanoseconds, tournament, central"
    )]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The planner was given no algorithms.
    #[error("there is no algorithm to choose from: give the planner at least one candidate")]
    NoCandidates,
    /// Shuffle exchange in a group whose size is not a power of two.
    #[error(
        "shuffle exchange needs a power of two, not {size} members; `pairwise` and `dissemination` take any number"
    )]
    NotPowerOfTwo {
        /// The size of the group.
        size: u32,
    },
    /// A parameter out of its range.
    #[error("{what}")]
    Parameter {
        /// The name of the parameter, and its range.
        what: &'static str,
    },
}

impl Algorithm {
    /// The tree of [eth-barrier, §3.2.1].
    pub const BINARY: Self = Self::Nomial { k: 2 };

    /// The tree of [eth-barrier, §3.2.2].
    pub const TERNARY: Self = Self::Heap { children: 2, networks: Networks::One };

    /// The dissemination barrier \[hensgen88\].
    pub const DISSEMINATION: Self = Self::Dissemination { ways: 1 };

    /// The algorithms that the paper measures, in its order [eth-barrier, §3].
    pub const OF_THE_PAPER: [Self; 6] = [
        Self::ShuffleExchange,
        Self::BINARY,
        Self::TERNARY,
        Self::Concurrent { networks: Networks::One },
        Self::Heap { children: 2, networks: Networks::Two },
        Self::Concurrent { networks: Networks::Two },
    ];

    /// Returns the schedule for a group.
    ///
    /// # Cost
    /// Time and memory proportional to the number of messages.
    ///
    /// # Errors
    /// [`AlgorithmError`] if the algorithm does not suit the group, or a parameter is out of range.
    pub fn schedule(self, group: Group) -> Result<Schedule, AlgorithmError> {
        self.check(group)?;
        let n = group.size();
        let members = match self {
            Self::ShuffleExchange | Self::Pairwise => exchange::pairwise(n),
            Self::Dissemination { ways } => exchange::dissemination(n, u32::from(ways)),
            Self::Nomial { k } => tree::nomial(n, u32::from(k)),
            Self::Heap { children, networks } => tree::heap(n, u32::from(children), networks),
            Self::Concurrent { networks } => central::concurrent(n, networks),
            Self::Optimal(timing) => optimal::tree(n, timing),
            Self::Tournament => tree::tournament(n),
            Self::Central => central::central(n),
        };
        Ok(Schedule::from_steps(group, members))
    }

    /// Returns the number of messages in a barrier, by formula, for a group that the algorithm suits.
    #[must_use]
    pub fn messages(self, group: Group) -> MessageCounts {
        let n = u64::from(group.size());
        if n == 1 {
            return MessageCounts::default();
        }
        match self {
            Self::ShuffleExchange | Self::Pairwise => {
                let rounds = n.ilog2();
                let inner = 1_u64 << rounds;
                MessageCounts::new(inner * u64::from(rounds) + 2 * (n - inner), 0)
            }
            Self::Dissemination { ways } => {
                let partners = partners(group.size(), u32::from(ways));
                MessageCounts::new(n * partners.map(u64::from).sum::<u64>(), 0)
            }
            Self::Tournament | Self::Central => MessageCounts::new(2 * (n - 1), 0),
            Self::Nomial { .. }
            | Self::Heap { .. }
            | Self::Concurrent { .. }
            | Self::Optimal(_) => MessageCounts::new(n - 1, 1),
        }
    }

    /// Returns whether members leave by a multicast.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        match self {
            Self::Nomial { .. }
            | Self::Heap { .. }
            | Self::Concurrent { .. }
            | Self::Optimal(_) => true,
            Self::ShuffleExchange
            | Self::Pairwise
            | Self::Dissemination { .. }
            | Self::Tournament
            | Self::Central => false,
        }
    }

    /// Returns how many networks the messages use.
    #[must_use]
    pub const fn networks(self) -> Networks {
        match self {
            Self::Heap { networks, .. } | Self::Concurrent { networks } => networks,
            _ => Networks::One,
        }
    }

    /// Checks whether the algorithm suits the group.
    ///
    /// # Errors
    /// [`AlgorithmError`] says why it does not.
    pub fn check(self, group: Group) -> Result<(), AlgorithmError> {
        let bad = |what| Err(AlgorithmError::Parameter { what });
        match self {
            Self::ShuffleExchange if !group.size().is_power_of_two() => {
                Err(AlgorithmError::NotPowerOfTwo { size: group.size() })
            }
            Self::Dissemination { ways: 0 } => {
                bad("dissemination needs at least one partner in a round")
            }
            Self::Nomial { k: 0 | 1 } => bad("a k-nomial tree needs a k of at least 2"),
            Self::Heap { children: 0, .. } => bad("a heap needs at least one child of a parent"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
