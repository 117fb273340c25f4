//! What keeps a system from being measured here.

use thiserror::Error;

/// A system that is not on this machine, and how it gets there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("skipped: {what}; {remedy}")]
#[non_exhaustive]
pub struct Missing {
    /// What is missing.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Missing {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}
