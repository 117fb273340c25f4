//! Errors between a rank and its launcher.

use std::{fmt, io};

use thiserror::Error;

use super::{
    PmiError, Rank,
    wire::{KEY_BYTES_MAX, VALUE_BYTES_MAX, WireError},
};

/// The reason why a call on a [`World`](super::World) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The deadline came first. The operation continues: call again to wait longer.
    #[error("the deadline passed before {what}")]
    TimedOut {
        /// The event that was waited for.
        what: String,
    },
    /// The launcher is gone; nothing more can be learned about the other ranks.
    #[error("the launcher is gone: it ended or was killed")]
    LauncherLost,
    /// The launcher has cut this rank off, for breaking the rules of the rendezvous.
    #[error("the launcher has expelled this rank: {why}")]
    Expelled {
        /// The rule, in the launcher's words.
        why: String,
    },
    /// Ranks have not arrived at the rendezvous in time, so it has ended for all.
    #[error(
        "{count} of the ranks have not arrived at the rendezvous in time: {}; check that they were \
         started, and can reach its address",
        Listed { count: *count, ranks }
    )]
    Missing {
        /// Their number.
        count: u32,
        /// The first hundred of them.
        ranks: Vec<Rank>,
    },
    /// The rendezvous refuses this rank.
    #[error("the rendezvous refuses this rank: {why}")]
    Refused {
        /// The reason.
        why: JoinRefusal,
    },
    /// The launcher sent bytes that are not a valid message.
    #[error("the launcher broke the protocol of the rendezvous: {0}; is it of another version?")]
    Wire(#[from] WireError),
    /// The launcher sent a message at the wrong time.
    #[error("the launcher broke the protocol of the rendezvous: {0}; is it of another version?")]
    Disorder(&'static str),
    /// The launcher sent invalid PMI-1, or failed.
    #[error("the launcher (PMI-1) said {0}")]
    Pmi(#[from] PmiError),
    /// No value was there, and this launcher cannot be asked to wait. A value is certainly there only after a
    /// barrier that its rank entered after putting it.
    #[error("{rank} has put nothing for `{key}`: pass a barrier between `put` and `get`")]
    NotPut {
        /// The rank whose value was asked for.
        rank: Rank,
        /// The key.
        key: String,
    },
    /// An environment variable does not lead to a launcher.
    #[error(
        "`{variable}` does not lead to the launcher: {problem}; start the program itself with \
         `vigie-run`, `mpiexec.hydra` or `srun --mpi=pmi2`, or unset the launcher's variables (`VIGIE_RENDEZVOUS`, `VIGIE_RANK`, `VIGIE_SIZE`, `PMI_FD`) to run it alone"
    )]
    Environment {
        /// The variable's name.
        variable: &'static str,
        /// The problem with the value.
        problem: String,
    },
    /// This process has already joined its world: clone the [`World`](super::World).
    #[error("this process has already joined its world: clone its `World`")]
    AlreadyJoined,
    /// This rank has [left](super::World::leave).
    #[error("this rank has left its world")]
    Left,
    /// No such rank.
    #[error("there is no {rank} in a world of {size}")]
    NoSuchRank {
        /// The rank that was asked for.
        rank: Rank,
        /// The number of ranks.
        size: u32,
    },
    /// A key that some launchers cannot carry.
    #[error(
        "`{key}` is not a key: use 1 to {KEY_BYTES_MAX} ASCII letters, digits, `.`, `-`, `_`, `:`"
    )]
    BadKey {
        /// The key.
        key: String,
    },
    /// A value that some launchers cannot carry.
    #[error("a value of {bytes} bytes is too long: at most {VALUE_BYTES_MAX}")]
    ValueTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The key already has a value: a value is published once.
    #[error("the key `{key}` already has a value, and a value is published once")]
    AlreadyPut {
        /// The key.
        key: String,
    },
    /// More than a launcher keeps for one rank.
    #[error("more than {limit} {what}: no launcher keeps so many for one rank")]
    TooMany {
        /// The kind of the things that are too many.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The kernel's error, or no detection server hosts the caller.
    #[error("the rendezvous: {0}")]
    Io(#[from] io::Error),
}

impl WorldError {
    /// Returns whether this rank can learn nothing more about the others, so that no later call can succeed
    /// either.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::LauncherLost
                | Self::Expelled { .. }
                | Self::Wire(_)
                | Self::Missing { .. }
                | Self::Refused { .. }
                | Self::Pmi(_)
                | Self::Disorder(_)
                | Self::Left
        )
    }
}

/// The reason why a rendezvous over TCP refuses a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum JoinRefusal {
    /// The rank has a different secret.
    #[error("its secret is a different one")]
    WrongSecret,
    /// The peer that answers there does not know the secret itself.
    #[error("the peer that answers there does not know the secret")]
    Impostor,
    /// The rank's world has another size.
    #[error("its world has another size; compare `VIGIE_SIZE` with the launcher's `-n`")]
    WrongSize,
    /// The world has no such rank.
    #[error("`VIGIE_RANK` is not a rank of that world")]
    NoSuchRank,
    /// Another process has already joined as this rank.
    #[error("another process has joined as this rank; give each process its own `VIGIE_RANK`")]
    Taken,
    /// The rank came after the time for arrivals, or after the end.
    #[error("the rank came after the deadline for joining")]
    TooLate,
    /// A reason that this version does not know.
    #[error("for a reason that this version does not know")]
    Unknown,
}

/// A list of ranks for people to read.
pub(super) struct Listed<'a> {
    pub(super) count: u32,
    pub(super) ranks: &'a [Rank],
}

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rank) in self.ranks.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{}", rank.0)?;
        }
        if usize::try_from(self.count).is_ok_and(|count| count > self.ranks.len()) {
            f.write_str(", …")?;
        }
        Ok(())
    }
}
