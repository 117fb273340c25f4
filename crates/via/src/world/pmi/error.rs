//! Errors of a launcher that speaks PMI-1.

use thiserror::Error;

/// The reason why a launcher that speaks PMI-1 cannot be understood or used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PmiError {
    /// A line that does not end.
    #[error("a line of {limit} bytes or more")]
    LineTooLong {
        /// The limit, which no line may reach.
        limit: usize,
    },
    /// A line that is not UTF-8.
    #[error("a line that is not text")]
    NotText,
    /// A line that does not begin as every line does.
    #[error("the line `{line}`, which does not begin with `cmd=`")]
    NoCommand {
        /// Its beginning.
        line: String,
    },
    /// An answer to another command, or to none.
    #[error("`{found}` where `{expected}` was expected")]
    Unexpected {
        /// The expected answer.
        expected: &'static str,
        /// The actual answer.
        found: String,
    },
    /// An answer without a required field.
    #[error("`{command}` without `{field}`")]
    NoField {
        /// The answer.
        command: String,
        /// The missing field.
        field: &'static str,
    },
    /// An answer with an invalid field.
    #[error("`{text}` as `{field}`")]
    BadField {
        /// The field.
        field: &'static str,
        /// The beginning of its value.
        text: String,
    },
    /// The launcher could not do what it was asked for: a barrier that was aborted, for example.
    #[error("`{command}` with failure {result}: {message}")]
    Failed {
        /// The answer.
        command: &'static str,
        /// The launcher's error number.
        result: i64,
        /// The launcher's message.
        message: String,
    },
    /// The launcher carries too little to be useful.
    #[error("{what} needs {needed} bytes, but the launcher allows {limit}")]
    TooShort {
        /// The text that is limited.
        what: &'static str,
        /// The launcher's limit.
        limit: usize,
        /// The least that is needed.
        needed: usize,
    },
}
