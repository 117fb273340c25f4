//! What all members of a group are told alike.

use std::time::Duration;

use thiserror::Error;

use crate::{
    checker::Fault,
    group::Rank,
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
        }
    }

    pub(super) fn check(&self) -> Result<(), MemberError> {
        let bad = |what| Err(MemberError::Setting { what });
        if !(Duration::from_micros(1)..=Duration::from_secs(60)).contains(&self.repeat_after) {
            return bad("repeat_after: from 1 µs to a minute");
        }
        if self.failure_timeout.is_some_and(|timeout| timeout < self.repeat_after * 32) {
            return bad("failure_timeout: at least 32 times repeat_after");
        }
        Ok(())
    }

    /// How long a member may be silent.
    pub(super) fn silence_max(&self) -> Option<Duration> {
        self.failure_timeout.map(|timeout| timeout / 2)
    }

    /// The longest time between two questions.
    pub(super) fn interval_max(&self) -> Duration {
        let longest = self.failure_timeout.map_or(self.repeat_after * 64, |timeout| timeout / 64);
        longest.max(self.repeat_after)
    }
}
