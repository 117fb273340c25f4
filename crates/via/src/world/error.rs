//! What can go wrong between a rank and its launcher.

use std::{fmt, io};

use thiserror::Error;

use super::{
    PmiError, Rank,
    wire::{KEY_BYTES_MAX, VALUE_BYTES_MAX, WireError},
};

/// Why a call on a [`World`](super::World) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The deadline came first. What was asked for goes on: ask again to wait longer.
    #[error("the deadline came before {what}")]
    TimedOut {
        /// What was waited for.
        what: String,
    },
    /// The launcher is gone, and with it every way to hear of the other ranks.
    #[error("the launcher is gone: it ended or was killed")]
    LauncherLost,
    /// The launcher has cut this rank off, for breaking the rules of the rendezvous.
    #[error("the launcher has expelled this rank: {why}")]
    Expelled {
        /// Which rule, in its words.
        why: String,
    },
    /// Ranks have not arrived at the rendezvous in time, so that it has ended for all.
    #[error(
        "{count} of the ranks have not arrived at the rendezvous in time: {}; see whether they were \
         started, and reach its address",
        Listed { count: *count, ranks }
    )]
    Missing {
        /// How many.
        count: u32,
        /// Which: the first hundred of them.
        ranks: Vec<Rank>,
    },
    /// The rendezvous does not let this rank in.
    #[error("the rendezvous does not let this rank in: {why}")]
    Refused {
        /// Why.
        why: Refusal,
    },
    /// The launcher said something that it must not say.
    #[error("the launcher broke the protocol of the rendezvous: {0}; is it of another version?")]
    Wire(#[from] WireError),
    /// The launcher said something at the wrong time.
    #[error("the launcher broke the protocol of the rendezvous: {0}; is it of another version?")]
    Disorder(&'static str),
    /// The launcher said something that makes no sense in PMI-1, or failed.
    #[error("the launcher (PMI-1) said {0}")]
    Pmi(#[from] PmiError),
    /// Nothing was put there, and this launcher cannot be asked to wait: only after a barrier that the
    /// rank came to with its value put, is the value there for sure.
    #[error("{rank} had put nothing for `{key}`: pass a barrier between `put` and `get`")]
    NotPut {
        /// Whose value was asked for.
        rank: Rank,
        /// By which key.
        key: String,
    },
    /// An environment variable does not lead to a launcher.
    #[error(
        "`{variable}` does not lead to the launcher: {problem}; start the program itself by \
         `vigie-run`, `mpiexec.hydra` or `srun --mpi=pmi2`, or unset the variable to run it alone"
    )]
    Environment {
        /// Its name.
        variable: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// This process is a member of its world already: clone that.
    #[error("this process has joined its world already: clone the `World` that it has")]
    AlreadyJoined,
    /// This rank has [left](super::World::leave).
    #[error("this rank has left its world")]
    Left,
    /// No such rank.
    #[error("there is no {rank} in a world of {size}")]
    NoSuchRank {
        /// Which was asked for.
        rank: Rank,
        /// How many ranks there are.
        size: u32,
    },
    /// A key that not every launcher could carry.
    #[error(
        "`{key}` is no key: take 1 to {KEY_BYTES_MAX} ASCII letters, digits, `.`, `-`, `_` and `:`"
    )]
    BadKey {
        /// What was given.
        key: String,
    },
    /// A value that not every launcher could carry.
    #[error("a value of {bytes} bytes is too long: at most {VALUE_BYTES_MAX}")]
    ValueTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A value is published once.
    #[error("the key `{key}` has been put already: a value is published once")]
    AlreadyPut {
        /// Which.
        key: String,
    },
    /// More than a launcher keeps for one rank.
    #[error("more than {limit} {what}: no launcher keeps so many for one rank")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// The kernel's error, or no detection server hosts the caller.
    #[error("the rendezvous: {0}")]
    Io(#[from] io::Error),
}

impl WorldError {
    /// Returns whether this rank hears nothing of the others any more, so that no later call can
    /// succeed either.
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

/// Why a rendezvous over TCP does not let a rank in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It has another secret.
    #[error("its secret is another one")]
    WrongSecret,
    /// What answers there does not know the secret itself.
    #[error("who answers there does not know the secret")]
    Impostor,
    /// Its world has another size.
    #[error("its world has another size; compare `VIGIE_SIZE` with the launcher's `-n`")]
    OtherSize,
    /// The world has no such rank.
    #[error("`VIGIE_RANK` is no rank of that world")]
    NoSuchRank,
    /// Somebody has come as this rank before.
    #[error("somebody has come as this rank before; give each process a `VIGIE_RANK` of its own")]
    Taken,
    /// It came after the time for arrivals, or after the end.
    #[error("the time for arrivals is over")]
    TooLate,
    /// A reason that this version does not know.
    #[error("for a reason that this version does not know")]
    Unknown,
}

/// Ranks, for people.
struct Listed<'a> {
    count: u32,
    ranks: &'a [Rank],
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
