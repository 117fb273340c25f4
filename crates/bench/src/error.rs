//! The errors of measuring.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vigie_forward::SimulationError;

use crate::schedulers::SystemError;

/// A measurement that could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The process could not be started.
    #[error("cannot start the {role} process")]
    Start {
        /// The role that the process was to have.
        role: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The process met an error and said which.
    #[error("the {role} process failed: {failure}")]
    Failed {
        /// The role of the process.
        role: &'static str,
        /// The failure that it met.
        #[source]
        failure: Failure,
    },
    /// The process said nothing for too long; it has been killed.
    #[error(
        "the {role} process said nothing for {waited:?}: it hangs, or this machine is overloaded"
    )]
    Silent {
        /// The role of the process.
        role: &'static str,
        /// The time waited.
        waited: Duration,
    },
    /// The process ended before its result.
    #[error("the {role} process ended ({status}) without a result: see its messages above")]
    Ended {
        /// The role of the process.
        role: &'static str,
        /// Its exit status.
        status: ExitStatus,
    },
    /// The process printed an unknown message.
    #[error("the {role} process printed {line:?}: does `main` call `maybe_run_child` first?")]
    Protocol {
        /// The role that the process was to have.
        role: &'static str,
        /// The line that it printed.
        line: String,
    },
    /// The thing to measure, or something that it needs, is not on this machine.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// No such system.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A model of forwarding could not be made.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No measurement has the requested name.
    #[error("nothing of that name is measured: `--only` takes {known}")]
    NothingNamed {
        /// The known names.
        known: &'static str,
    },
    /// No load has that name.
    #[error("no load is named {name:?}: see `vigie-bench loads --help`")]
    NoCase {
        /// The given text.
        name: String,
    },
    /// A program could not be watched.
    #[error(transparent)]
    Watch(#[from] crate::watch::WatchError),
    /// A file could not be written or read.
    #[error("cannot use {}: check the path and its permissions", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl BenchError {
    /// Tells whether the measured system itself is the reason: it does not react, mixes up its
    /// connections, cannot be built or has no such workload. Other systems can still be measured.
    #[must_use]
    pub const fn is_of_the_system(&self) -> bool {
        match self {
            Self::Missing(_) => true,
            Self::Failed { failure, .. } => matches!(
                failure,
                Failure::NoEcho { .. }
                    | Failure::WrongEcho { .. }
                    | Failure::Runtime { .. }
                    | Failure::Unsupported { .. }
            ),
            _ => false,
        }
    }

    /// Says what a process of this role failed at.
    pub(crate) fn io(
        role: &'static str,
        doing: impl Into<String>,
    ) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Failed { role, failure: Failure::io(doing)(error) }
    }
}

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

/// A model or a simulation that cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The model.
    #[error(transparent)]
    Model(#[from] vigie_forward::ModelError),
    /// A simulation.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

/// The failure of a client or server process; it travels to the parent process as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure {
    /// A message was not echoed in time.
    #[error("no echo within {waited:?} (after {answered} answered messages)")]
    NoEcho {
        /// The time that the client waited for this message.
        waited: Duration,
        /// The number of messages answered before.
        answered: u64,
    },
    /// The echo differs from the message.
    #[error("echo {received:?} for message {sent:?}: the server mixes up its connections")]
    WrongEcho {
        /// The message.
        sent: [u8; 8],
        /// The answer.
        received: [u8; 8],
    },
    /// Fewer descriptors are allowed than the case needs.
    #[error(
        "{needed} descriptors are needed and {limit} allowed: raise the limit with `ulimit -n {needed}`"
    )]
    DescriptorLimit {
        /// Descriptors that the case needs.
        needed: u64,
        /// Descriptors that this process may open, also after raising its own limit.
        limit: u64,
    },
    /// An operation failed.
    #[error("{doing}: {reason}")]
    Io {
        /// The action that was tried.
        doing: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The runtime under test could not be built.
    #[error("cannot build the runtime: {reason}")]
    Runtime {
        /// The runtime's reason.
        reason: String,
    },
    /// The system has no such workload.
    #[error("{system} cannot run this workload: {reason}")]
    Unsupported {
        /// Name of the system.
        system: String,
        /// The thing that it lacks.
        reason: String,
    },
}

impl Failure {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { doing: doing.into(), reason: error.to_string() }
    }

    /// A failure that is not of a system call, with its sources.
    pub(crate) fn other(doing: impl Into<String>, error: &dyn std::error::Error) -> Self {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            reason = format!("{reason}: {error}");
            source = error.source();
        }
        Self::Io { doing: doing.into(), reason }
    }

    /// Describes what came instead of an answer, for which `waited` was waited at most.
    pub(crate) fn no_answer(
        doing: impl Into<String>,
        waited: Duration,
        answered: u64,
    ) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.kind() {
            // A socket with a time limit reports its end as `WouldBlock`.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Self::NoEcho { waited, answered }
            }
            _ => Self::io(doing)(error),
        }
    }

    /// Describes what is not an error of the system.
    pub(crate) fn because(doing: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Io { doing: doing.into(), reason: reason.into() }
    }

    /// Describes a workload that a system cannot run.
    pub(crate) fn unsupported(system: impl ToString, reason: impl Into<String>) -> Self {
        Self::Unsupported { system: system.to_string(), reason: reason.into() }
    }

    pub(crate) fn runtime(error: impl ToString) -> Self {
        Self::Runtime { reason: error.to_string() }
    }
}
