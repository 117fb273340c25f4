//! What all members of a group are told alike.

use std::{cmp::Ordering, collections::BTreeSet, time::Duration};

use thiserror::Error;

use crate::{
    checker::Fault,
    group::{Group, Rank},
    packet::{GroupId, Key},
    reduction::Reduction,
};

/// How a member is set up; all members of a group alike.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The group's name: random, for this group alone.
    pub group: GroupId,
    /// If there is one, packets without a right tag are dropped. Default none.
    pub key: Option<Key>,
    /// Who waits for longer than this asks for what it misses; then it waits twice as long, and so on up to a 64th of
    /// the failure timeout. From 1 µs to a minute; default 10 ms, which is more than a sleeping process needs to be
    /// scheduled on a busy machine.
    pub repeat_after: Duration,
    /// A dead member is known to all others after this time, counted from its death or from when they begin to wait for
    /// it. At least 32 times `repeat_after`, so that a lossy network is not taken for a dead member; default 10 s. With
    /// none, only transports find out who is dead.
    pub failure_timeout: Option<Duration>,
    /// What is computed along. Default nothing.
    pub reduction: Option<Reduction>,
    /// How many must be left for a smaller group. Default [`Quorum::Majority`].
    pub quorum: Quorum,
    /// How many the group has lost since it was formed, and whether its rank 0 is still the first one's.
    pub(super) lost: usize,
    pub(super) has_first: bool,
}

/// How many members must be left after a failure so that they may go on as a smaller group.
///
/// Silence cannot tell members that are dead from those behind a network that has fallen apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Quorum {
    /// More than half of the group as it was formed, or the half that its rank 0 is in: any two such parts have a member
    /// in common. Of the parts of a network that falls apart one at most goes on, and the others get an error. Smaller
    /// groups go on counting by the first one, and members that leave count as gone.
    ///
    /// *Deviation:* to count by the last group instead [dynamic-voting] needs a decision that all of it know of.
    ///
    /// This is the default: two groups that both take themselves for the whole do harm without a word, and too few members
    /// are told so.
    #[default]
    Majority,
    /// Whoever is left. For members that share nothing but the barrier, or whose network cannot fall apart, as on one host.
    Any,
}

impl Quorum {
    /// Returns whether those of a group that are not among the gone may go on.
    #[must_use]
    pub fn allows(self, group: Group, gone: &BTreeSet<Rank>) -> bool {
        self.allows_after(0, true, group, gone)
    }

    /// As [`allows`](Self::allows), of a group that has lost some already, and with them maybe its first rank 0.
    fn allows_after(
        self,
        lost: usize,
        has_first: bool,
        group: Group,
        gone: &BTreeSet<Rank>,
    ) -> bool {
        let size = Rank(group.size()).index() + lost;
        match (self, (2 * (gone.len() + lost)).cmp(&size)) {
            (Self::Any, _) | (Self::Majority, Ordering::Less) => true,
            (Self::Majority, Ordering::Equal) => has_first && !gone.contains(&Rank(0)),
            (Self::Majority, Ordering::Greater) => false,
        }
    }
}

impl Settings {
    /// Returns whether those of the present group that are not among the gone may go on.
    pub(super) fn may_go_on(&self, group: Group, gone: &BTreeSet<Rank>) -> bool {
        self.quorum.allows_after(self.lost, self.has_first, group, gone)
    }
}

/// A member cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemberError {
    /// There is no such member.
    #[error("a group of {size} has no {rank}")]
    Rank {
        /// Which was to be made.
        rank: Rank,
        /// How many there are.
        size: u32,
    },
    /// A setting is out of range.
    #[error("{what}")]
    Setting {
        /// Which, and what it may be.
        what: &'static str,
    },
    /// With this schedule members hear of others twice, and the reduction must count each value once.
    #[error(
        "with this schedule values are counted twice, which this reduction must not; pairwise exchange, trees and the \
         concurrent barrier count once, and dissemination if the size is a power of its base"
    )]
    CountsTwice,
    /// The schedule is no barrier, or too large to be checked for the reduction.
    #[error("this schedule does not carry the reduction")]
    Schedule(#[from] Fault),
}

impl Settings {
    /// Sets a group up with the defaults.
    #[must_use]
    pub const fn new(group: GroupId) -> Self {
        Self {
            group,
            key: None,
            repeat_after: Duration::from_millis(10),
            failure_timeout: Some(Duration::from_secs(10)),
            reduction: None,
            quorum: Quorum::Majority,
            lost: 0,
            has_first: true,
        }
    }

    /// How many the group had when it was formed, of which the present one is what is left: what a majority counts by.
    pub(crate) fn size_at_first(&self, group: Group) -> u32 {
        group.size().saturating_add(u32::try_from(self.lost).unwrap_or(u32::MAX))
    }

    pub(super) fn check(&self) -> Result<(), MemberError> {
        let bad = |what| Err(MemberError::Setting { what });
        // First: where nothing else is said, `repeat_after` is made of it.
        if self.failure_timeout.is_some_and(|timeout| timeout < Duration::from_micros(32)) {
            return bad("failure_timeout: at least 32 µs, and 32 times repeat_after");
        }
        if !(Duration::from_micros(1)..=Duration::from_secs(60)).contains(&self.repeat_after) {
            return bad("repeat_after: from 1 µs to a minute");
        }
        if self.failure_timeout.is_some_and(|timeout| timeout < self.repeat_after * 32) {
            return bad("failure_timeout: at least 32 times repeat_after");
        }
        Ok(())
    }

    /// How long a member may be silent.
    pub(crate) fn silence_max(&self) -> Option<Duration> {
        self.failure_timeout.map(|timeout| timeout / 2)
    }

    /// The longest time between two questions.
    pub(crate) fn interval_max(&self) -> Duration {
        let longest = self.failure_timeout.map_or(self.repeat_after * 64, |timeout| timeout / 64);
        longest.max(self.repeat_after)
    }
}
