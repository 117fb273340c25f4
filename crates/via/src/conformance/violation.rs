//! What the suite says when a provider breaks its contract.

use std::fmt;

use thiserror::Error;

use super::SetupError;
use crate::vi::{Reliability, ViError};

/// A clause of the [contract](crate::vi::Provider#contract), under its number there; or, without a number,
/// what the documentation of the types and methods says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Clause {
    /// Descriptors are carried out and complete in order.
    Order,
    /// Data is in place, whole and unchanged, before the completion that tells of it.
    Placement,
    /// Eight aligned bytes are one access.
    Atomicity,
    /// Receive descriptors are consumed by what consumes them, and missed where they are missing.
    ReceiveDescriptor,
    /// Nobody reaches memory that is not registered for it.
    Protection,
    /// Every descriptor ends, and one that is not signaled tells only of errors.
    End,
    /// A completion is found once.
    Once,
    /// An armed NIC announces what happens.
    Wakeup,
    /// A fault of one connection is no other's.
    Isolation,
    /// The state machine of a VI.
    State,
    /// Connections come about and end as documented, with the right events and reasons.
    Connection,
    /// A descriptor ends with the status that its fault has.
    Status,
    /// Limits are kept and told.
    Limit,
    /// Names of objects are unique, and unknown once the object is gone.
    Name,
}

impl Clause {
    /// Returns the clause's number in the contract, if it has one.
    #[must_use]
    pub const fn number(self) -> Option<u8> {
        Some(match self {
            Self::Order => 1,
            Self::Placement => 2,
            Self::Atomicity => 3,
            Self::ReceiveDescriptor => 4,
            Self::Protection => 5,
            Self::End => 6,
            Self::Once => 7,
            Self::Wakeup => 8,
            Self::Isolation => 9,
            Self::State | Self::Connection | Self::Status | Self::Limit | Self::Name => {
                return None;
            }
        })
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "clause {number}"),
            None => write!(f, "documented behaviour ({self:?})"),
        }
    }
}

/// Where a violation was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct At {
    /// The case of the suite.
    pub case: &'static str,
    /// The level of reliability at which it ran.
    pub level: Reliability,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in case `{}` at level {:?}", self.case, self.level)
    }
}

/// How a provider broke its contract.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Violation {
    /// It did something else than the contract says.
    #[error("{clause}: {saw} ({at})")]
    Broken {
        /// The clause.
        clause: Clause,
        /// What was seen, and what was expected.
        saw: String,
        /// Where.
        at: At,
    },
    /// A call failed that had to succeed.
    #[error("{clause}: `{call}` failed ({at})")]
    CallFailed {
        /// The clause that the case looks at.
        clause: Clause,
        /// The call.
        call: &'static str,
        /// Its error.
        #[source]
        error: ViError,
        /// Where.
        at: At,
    },
    /// The NICs could not be made; nothing is said about the provider.
    #[error("the fixture could not be made ({at})")]
    Setup {
        /// The fixture's error.
        #[source]
        error: SetupError,
        /// Where.
        at: At,
    },
}

impl Violation {
    /// Returns the clause that was broken.
    #[must_use]
    pub const fn clause(&self) -> Option<Clause> {
        match self {
            Self::Broken { clause, .. } | Self::CallFailed { clause, .. } => Some(*clause),
            Self::Setup { .. } => None,
        }
    }

    /// Returns where it was seen.
    #[must_use]
    pub const fn at(&self) -> At {
        match self {
            Self::Broken { at, .. } | Self::CallFailed { at, .. } | Self::Setup { at, .. } => *at,
        }
    }
}
