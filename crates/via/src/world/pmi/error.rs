//! What can be wrong with a launcher that speaks PMI-1.

use thiserror::Error;

/// Why a launcher that speaks PMI-1 cannot be understood, or used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PmiError {
    /// A line without end.
    #[error("a line of {limit} bytes or more")]
    LineTooLong {
        /// What no line reaches.
        limit: usize,
    },
    /// Bytes that are no text.
    #[error("a line that is no text")]
    NotText,
    /// A line that does not begin as every line does.
    #[error("the line `{line}`, which does not begin with `cmd=`")]
    NoCommand {
        /// Its beginning.
        line: String,
    },
    /// An answer to something else, or to nothing.
    #[error("`{found}` where `{expected}` was due")]
    Unexpected {
        /// What was due.
        expected: &'static str,
        /// What came.
        found: String,
    },
    /// An answer that lacks something.
    #[error("`{command}` without `{field}`")]
    NoField {
        /// Which answer.
        command: String,
        /// What it lacks.
        field: &'static str,
    },
    /// An answer with something in it that cannot be.
    #[error("`{text}` as `{field}`")]
    BadField {
        /// What.
        field: &'static str,
        /// Its beginning.
        text: String,
    },
    /// It could not do what it was asked for: a barrier that was aborted, for example.
    #[error("`{command}` with failure {result}: {message}")]
    Failed {
        /// The answer.
        command: &'static str,
        /// Its number.
        result: i64,
        /// In its words.
        message: String,
    },
    /// It carries less than anything useful.
    #[error("{what} of at most {limit} bytes, where {needed} are needed")]
    TooShort {
        /// What it carries.
        what: &'static str,
        /// How much of it.
        limit: usize,
        /// What would do.
        needed: usize,
    },
}
