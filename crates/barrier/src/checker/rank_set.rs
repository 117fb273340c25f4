//! Sets of members, and how what a message tells of relates to what its receiver knows.

use crate::group::{Group, Rank};

/// A set of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankSet(Vec<u64>);

impl RankSet {
    pub(super) fn only(rank: Rank, group: Group) -> Self {
        let mut words = vec![0; Rank(group.size()).index().div_ceil(64)];
        words[rank.index() / 64] = 1 << (rank.index() % 64);
        Self(words)
    }

    pub(super) fn contains(&self, rank: Rank) -> bool {
        self.0[rank.index() / 64] >> (rank.index() % 64) & 1 == 1
    }

    /// Adds the members of `other`, and returns how they relate to those that were in.
    pub(super) fn join(&mut self, others: &Self) -> Join {
        let (mut common, mut new, mut missing) = (0, 0, 0);
        for (own, other) in self.0.iter_mut().zip(&others.0) {
            common |= *own & other;
            new |= other & !*own;
            missing |= *own & !other;
            *own |= other;
        }
        match (common != 0, new != 0, missing != 0) {
            (_, false, _) => Join::Repeats,
            (_, _, false) => Join::Covers,
            (false, _, _) => Join::Adds,
            (true, _, true) => Join::Overlaps,
        }
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
