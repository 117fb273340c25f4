//! The reason why a system cannot be measured here.

use thiserror::Error;

/// A system that is not on this machine, and how it gets there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("skipped: {what}; {remedy}")]
#[non_exhaustive]
pub struct Missing {
    /// The missing part.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

impl Missing {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}
