//! The suite's verdict on a provider that breaks its contract.

use std::fmt;

use thiserror::Error;

use super::SetupError;
use crate::vi::{Reliability, ViError};

/// A clause of the [contract](crate::vi::Provider#contract), with its number there; a clause without a
/// number is in the documentation of the types and methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Clause {
    /// Descriptors are carried out and complete in order.
    Order,
    /// Data is in place, whole and unchanged, before the completion that reports it.
    Placement,
    /// Eight aligned bytes are accessed as one.
    Atomicity,
    /// Only sends and writes with immediate data consume receive descriptors; a missing one has its documented effect.
    ReceiveDescriptor,
    /// No peer reaches memory that is not registered for it.
    Protection,
    /// Every descriptor ends, and an unsignaled one reports only errors.
    End,
    /// A completion is reported once.
    Once,
    /// An armed NIC announces events.
    Wakeup,
    /// A fault affects only its own connection.
    Isolation,
    /// The state machine of a VI.
    State,
    /// Connections are established and end as documented, with the right events and reasons.
    Connection,
    /// A descriptor ends with the status of its fault.
    Status,
    /// Limits are enforced and reported.
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

/// The place of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Location {
    /// The case of the suite.
    pub case: &'static str,
    /// The level of reliability at which it ran.
    pub level: Reliability,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in case `{}` at level {:?}", self.case, self.level)
    }
}

/// A violation of the contract by a provider.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Violation {
    /// It did something other than what the contract says.
    #[error("{clause}: {saw} ({at})")]
    Broken {
        /// The clause.
        clause: Clause,
        /// The observation, and what was expected.
        saw: String,
        /// The place.
        at: Location,
    },
    /// A call failed that had to succeed.
    #[error("{clause}: `{call}` failed: {error} ({at})")]
    CallFailed {
        /// The clause that the case checks.
        clause: Clause,
        /// The call.
        call: &'static str,
        /// Its error.
        #[source]
        error: ViError,
        /// The place.
        at: Location,
    },
    /// The NICs could not be made; this says nothing about the provider.
    #[error("the fixture could not be made: {error} ({at})")]
    Setup {
        /// The fixture's error.
        #[source]
        error: SetupError,
        /// The place.
        at: Location,
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

    /// Returns where it was found.
    #[must_use]
    pub const fn at(&self) -> Location {
        match self {
            Self::Broken { at, .. } | Self::CallFailed { at, .. } | Self::Setup { at, .. } => *at,
        }
    }
}

/// The result of a case.
pub(super) type CaseResult = Result<(), Violation>;
