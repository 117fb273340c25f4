//! The configuration of a member, and its errors.

use std::{cmp::Ordering, collections::BTreeSet, time::Duration};

use thiserror::Error;
use vigie_detect::setters;

use crate::{
    checker::ScheduleError,
    group::{Group, Rank},
    packet::{GroupId, Key},
    reduction::Reduction,
};

/// The configuration of a member, the same at all members of a group. [`Member::new`](super::Member::new) refuses a value outside its range with
/// [`MemberError::InvalidSetting`].
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "a member takes it"]
pub struct MemberConfig {
    pub(crate) group: GroupId,
    pub(crate) key: Option<Key>,
    pub(crate) repeat_after: Duration,
    pub(crate) failure_timeout: Option<Duration>,
    pub(crate) reduction: Option<Reduction>,
    pub(crate) quorum: Quorum,
    /// The number of members that the group has lost since it was formed, and whether its rank 0 is still the original one.
    pub(super) lost: usize,
    pub(super) has_first: bool,
}

/// The number of members that must be left after a failure to continue as a smaller group.
///
/// Silence does not distinguish dead members from members behind a network that has split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Quorum {
    /// More than half of the group as it was formed, or the half that contains its rank 0: any two such parts have a
    /// member in common. If the network splits, at most one part continues, and the others get an error. Smaller
    /// groups keep counting by the original size, and members that leave count as gone.
    ///
    /// *Deviation:* counting by the last group instead [dynamic-voting] needs a decision that all of that group know.
    ///
    /// This is the default: two groups that each believe they are the whole do silent harm, while members that are
    /// too few get an error.
    #[default]
    Majority,
    /// Any number. For members that share nothing but the barrier, or whose network cannot split, as on one host.
    Any,
}

impl Quorum {
    /// Returns whether the members of a group without those that are gone may continue.
    #[must_use]
    pub fn allows(self, group: Group, gone: &BTreeSet<Rank>) -> bool {
        self.allows_after(0, true, group, gone)
    }

    /// Like [`allows`](Self::allows), for a group that has already lost members, possibly including the original rank
    /// 0.
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

impl MemberConfig {
    /// Returns whether the members of the present group without those that are gone may continue.
    pub(super) fn may_go_on(&self, group: Group, gone: &BTreeSet<Rank>) -> bool {
        self.quorum.allows_after(self.lost, self.has_first, group, gone)
    }
}

/// A member cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemberError {
    /// The group has no such member.
    #[error("a group of {size} has no {rank}")]
    Rank {
        /// The requested rank.
        rank: Rank,
        /// The size of the group.
        size: u32,
    },
    /// A setting is out of range.
    #[error("{what}")]
    InvalidSetting {
        /// The name of the setting, and its range.
        what: &'static str,
    },
    /// With this schedule, members hear of others twice, but the reduction must count each value once.
    #[error(
        "with this schedule values are counted twice, which this reduction must not; pairwise exchange, trees and the \
         concurrent barrier count once, and dissemination if the size is a power of its base"
    )]
    CountsTwice,
    /// The schedule is not a barrier, or too large to be checked for the reduction.
    #[error("this schedule cannot carry the reduction: {0}")]
    Schedule(#[from] ScheduleError),
}

impl MemberConfig {
    /// Creates the default configuration for a group of this name: random, for this group alone.
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

    /// Drops packets without the right tag under this key. Default: no key.
    pub fn key(mut self, key: impl Into<Option<Key>>) -> Self {
        self.key = key.into();
        self
    }

    setters! {
        /// Sets the time after which a waiting member asks for the messages that it misses. It asks again after twice the last pause,
        /// at most a 64th of the failure timeout. From 1 µs to a minute; default 10 ms, which is more than a sleeping process needs to be
        /// scheduled on a busy machine.
        repeat_after: Duration,

        /// Sets the number of members that must be left for a smaller group. Default [`Quorum::Majority`].
        quorum: Quorum,
    }

    /// Sets the time after which a dead member is known to all others, counted from its death or from when they begin to wait for it. At
    /// least 32 times `repeat_after`, so that a lossy network is not mistaken for a dead member; default 10 s. With `None`, only
    /// transports detect dead members.
    pub fn failure_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.failure_timeout = timeout.into();
        self
    }

    /// Sets the reduction. Default: none.
    pub fn reduction(mut self, reduction: impl Into<Option<Reduction>>) -> Self {
        self.reduction = reduction.into();
        self
    }

    /// Returns the length of a member's value in bytes: 0 without a reduction.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.reduction.as_ref().map_or(0, Reduction::bytes)
    }

    /// The size of the original group, of which the present one is what is left: a majority is counted by it.
    pub(crate) fn size_at_first(&self, group: Group) -> u32 {
        group.size().saturating_add(u32::try_from(self.lost).unwrap_or(u32::MAX))
    }

    pub(super) fn check(&self) -> Result<(), MemberError> {
        let bad = |what| Err(MemberError::InvalidSetting { what });
        // First: unless set otherwise, `repeat_after` is derived from it.
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

    /// Returns the time that a member may be silent.
    pub(crate) fn silence_max(&self) -> Option<Duration> {
        self.failure_timeout.map(|timeout| timeout / 2)
    }

    /// The longest time between two questions.
    pub(crate) fn interval_max(&self) -> Duration {
        let longest = self.failure_timeout.map_or(self.repeat_after * 64, |timeout| timeout / 64);
        longest.max(self.repeat_after)
    }
}
