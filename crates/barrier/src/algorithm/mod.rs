//! The algorithms: from a group to a schedule, and to the number of messages without one.
//!
//! | algorithm | name | messages | hops one after the other |
//! | --- | --- | --- | --- |
//! | [shuffle exchange](Algorithm::ShuffleExchange) | `shuffle-exchange` | n log2 n | log2 n |
//! | [pairwise exchange](Algorithm::Pairwise) | `pairwise` | m log2 m + 2(n − m) | log2 m + 2, m the power of two below n |
//! | [dissemination](Algorithm::Dissemination) | `dissemination`, `dissemination-W` | n·W a round | log n to the base W + 1 |
//! | [k-nomial tree](Algorithm::Nomial) | `binary`, `nomial-K` | n − 1 and a multicast | log n to the base K, and 1 |
//! | [heap](Algorithm::Heap) | `ternary`, `heap-C`, with `-two-networks` | n − 1 and a multicast | depth, and 1 |
//! | [concurrent](Algorithm::Concurrent) | `concurrent`, `concurrent-two-networks` | n − 1 and a multicast | 2 |
//! | [optimal tree](Algorithm::Optimal) | `optimal-HOP-GAP` | n − 1 and a multicast | as few as pay |
//! | [tournament](Algorithm::Tournament) | `tournament` | 2(n − 1) | twice log2 n |
//! | [central](Algorithm::Central) | `central` | 2(n − 1) | 2 |
//!
//! A group of one sends nothing and leaves at once.

mod central;
mod exchange;
mod name;
mod optimal;
mod tree;
mod writer;

use thiserror::Error;

pub use self::{name::NameError, optimal::Pace};
use crate::{group::Group, schedule::Schedule};

/// How members find out that all have entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// In round i each member exchanges messages with the one whose rank differs in bit i [eth-barrier, §3.1.1]. Of
    /// groups whose size is a power of two.
    ShuffleExchange,
    /// Shuffle exchange among the largest power of two; each further member is represented by one of them, whom it
    /// tells that it has entered and who tells it when to leave.
    Pairwise,
    /// In each round a member sends to as many others as it has `ways`, each further away by what a member has already
    /// heard of: with one way the dissemination barrier \[hensgen88\].
    Dissemination {
        /// Partners in a round, at least 1.
        ways: u16,
    },
    /// A k-nomial tree gathers stage by stage, and a multicast tells all to leave: k members become one in a stage. With
    /// k = 2 the binary tree of [eth-barrier, §3.2.1].
    Nomial {
        /// How many members become one in a stage, at least 2.
        k: u16,
    },
    /// A complete tree, numbered as a heap is, gathers, and a multicast tells all to leave. With two children the ternary
    /// tree of [eth-barrier, §3.2.2], whose third member is the parent.
    Heap {
        /// Children of a parent, at least 1.
        children: u16,
        /// Whether children take turns between two networks [eth-barrier, §3.3.1].
        networks: Networks,
    },
    /// Every member tells the master, which tells all to leave by a multicast [eth-barrier, §3.2.3].
    Concurrent {
        /// Whether members take turns between two networks [eth-barrier, §3.3.2].
        networks: Networks,
    },
    /// The tree that gathers fastest when a message takes so long and messages follow each other so fast: the tree of
    /// optimal broadcast \[karp93\], its messages reversed; and a multicast tells all to leave.
    Optimal(Pace),
    /// The binary tree, and the same tree downwards: winners of each round wake their losers. Without multicast.
    Tournament,
    /// Every member tells the master, which tells one after the other to leave. Without multicast; the epoch of a message
    /// has the part of the reversed sense.
    Central,
}

/// Over how many networks a gathering is spread. Exits take the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Networks {
    /// Over the first one alone.
    #[default]
    One,
    /// Over the first and the second in turn.
    Two,
}

/// How many messages a barrier takes, of all members together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Messages {
    /// Messages to one member.
    pub unicast: u64,
    /// Messages to all others.
    pub multicast: u64,
}

impl Messages {
    /// Counts messages to one member and messages to all others.
    #[must_use]
    pub const fn new(unicast: u64, multicast: u64) -> Self {
        Self { unicast, multicast }
    }
}

/// An algorithm does not suit a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AlgorithmError {
    /// Shuffle exchange with a group that is no power of two.
    #[error(
        "shuffle exchange needs a power of two, not {size} members; `pairwise` and `dissemination` take any number"
    )]
    NotPowerOfTwo {
        /// Members of the group.
        size: u32,
    },
    /// A parameter out of its range.
    #[error("{what}")]
    Parameter {
        /// Which, and what it may be.
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

    /// Those that the paper measures, in its order [eth-barrier, §3].
    pub const OF_THE_PAPER: [Self; 6] = [
        Self::ShuffleExchange,
        Self::BINARY,
        Self::TERNARY,
        Self::Concurrent { networks: Networks::One },
        Self::Heap { children: 2, networks: Networks::Two },
        Self::Concurrent { networks: Networks::Two },
    ];

    /// Returns who sends to whom.
    ///
    /// # Cost
    /// Time and memory in proportion to the messages.
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
            Self::Optimal(pace) => optimal::tree(n, pace),
            Self::Tournament => tree::tournament(n),
            Self::Central => central::central(n),
        };
        Ok(Schedule::from_steps(group, members))
    }

    /// Returns how many messages a barrier takes, by formula; of a group that the algorithm suits.
    #[must_use]
    pub fn messages(self, group: Group) -> Messages {
        let n = u64::from(group.size());
        if n == 1 {
            return Messages::default();
        }
        match self {
            Self::ShuffleExchange | Self::Pairwise => {
                let rounds = n.ilog2();
                let inner = 1_u64 << rounds;
                Messages::new(inner * u64::from(rounds) + 2 * (n - inner), 0)
            }
            Self::Dissemination { ways } => {
                let partners = partners(group.size(), u32::from(ways));
                Messages::new(n * partners.map(u64::from).sum::<u64>(), 0)
            }
            Self::Tournament | Self::Central => Messages::new(2 * (n - 1), 0),
            Self::Nomial { .. }
            | Self::Heap { .. }
            | Self::Concurrent { .. }
            | Self::Optimal(_) => Messages::new(n - 1, 1),
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

    /// Returns over how many networks messages go.
    #[must_use]
    pub const fn networks(self) -> Networks {
        match self {
            Self::Heap { networks, .. } | Self::Concurrent { networks } => networks,
            _ => Networks::One,
        }
    }

    /// Finds out whether the algorithm suits the group.
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

/// Returns how many partners a member has in each round of n-way dissemination: in the last one as many as are needed.
pub(crate) fn partners(size: u32, ways: u32) -> impl Iterator<Item = u32> {
    let (size, ways) = (u64::from(size), u64::from(ways.max(1)));
    let mut known = 1;
    std::iter::from_fn(move || {
        if known >= size {
            return None;
        }
        let partners = ways.min(size.div_ceil(known) - 1);
        known = known.saturating_mul(ways + 1);
        u32::try_from(partners).ok()
    })
}

#[cfg(test)]
mod tests;
