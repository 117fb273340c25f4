//! The schedulers that a measurement can run on, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A scheduler that a measurement can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum System {
    /// Row 1 of the paper's tables: each task polls its own socket when it is scheduled.
    VigieNaive,
    /// Row 2: user-level flavor, the scheduler polls the group of all sockets at every switch.
    VigieEnhanced,
    /// Row 3 of Table 1: hybrid flavor, each connection is served by blocking calls on a kernel thread.
    VigieBlocking,
    /// The user-level flavor as a program gets it by default.
    VigieUserLevel,
    /// The hybrid flavor as a program gets it by default.
    Vigie,
    /// The kernel-level flavor as a program gets it by default.
    VigieKernelLevel,
    /// The hybrid flavor, which may spend processor time on being early.
    VigieLowLatency,
    /// The hybrid flavor, which may not.
    VigieLowCpu,
    /// The user-level flavor, whose compute tasks reach a checkpoint where others yield.
    VigieCheckpoint,
    /// tokio, multi-thread, one of whose tasks drives a detection server for sockets of vigie's.
    VigieInTokio,
    /// tokio, multi-thread.
    Tokio,
    /// tokio, current-thread.
    TokioCurrentThread,
    /// smol's executor.
    Smol,
    /// A kernel thread per connection and per compute task.
    Threads,
    /// One thread that asks epoll again and again without ever sleeping.
    BusyPoll,
    /// One thread that sleeps in epoll.
    EpollThread,
    /// Go, where it is installed; it runs `slowdown` alone.
    Go,
}

impl System {
    /// All systems that run each workload, compiled in or not, in the order of the tables.
    pub const ALL: [Self; 16] = [
        Self::VigieNaive,
        Self::VigieEnhanced,
        Self::VigieBlocking,
        Self::VigieUserLevel,
        Self::Vigie,
        Self::VigieKernelLevel,
        Self::VigieLowLatency,
        Self::VigieLowCpu,
        Self::VigieCheckpoint,
        Self::VigieInTokio,
        Self::Tokio,
        Self::TokioCurrentThread,
        Self::Smol,
        Self::Threads,
        Self::BusyPoll,
        Self::EpollThread,
    ];

    /// Returns the name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VigieNaive => "vigie-naive",
            Self::VigieEnhanced => "vigie-enhanced",
            Self::VigieBlocking => "vigie-blocking",
            Self::VigieUserLevel => "vigie-user-level",
            Self::Vigie => "vigie",
            Self::VigieKernelLevel => "vigie-kernel-level",
            Self::VigieLowLatency => "vigie-low-latency",
            Self::VigieLowCpu => "vigie-low-cpu",
            Self::VigieCheckpoint => "vigie-checkpoint",
            Self::VigieInTokio => "vigie-in-tokio",
            Self::Tokio => "tokio",
            Self::TokioCurrentThread => "tokio-current-thread",
            Self::Smol => "smol",
            Self::Threads => "threads",
            Self::BusyPoll => "busy-poll",
            Self::EpollThread => "epoll-thread",
            Self::Go => "go",
        }
    }

    /// Returns the label of the system's rows in tables.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::VigieNaive => "naive polling (vigie user-level)",
            Self::VigieEnhanced => "enhanced polling (vigie user-level)",
            Self::VigieBlocking => "blocking calls (vigie hybrid)",
            Self::VigieUserLevel => "vigie user-level, adaptive",
            Self::Vigie => "vigie hybrid, adaptive",
            Self::VigieKernelLevel => "vigie kernel-level, adaptive",
            Self::VigieLowLatency => "vigie hybrid, low latency",
            Self::VigieLowCpu => "vigie hybrid, low CPU",
            Self::VigieCheckpoint => "vigie user-level, checkpoints",
            Self::VigieInTokio => "vigie's detectors inside tokio",
            Self::Tokio => "tokio multi-thread",
            Self::TokioCurrentThread => "tokio current-thread",
            Self::Smol => "smol",
            Self::Threads => "kernel threads",
            Self::BusyPoll => "epoll, busy polling",
            Self::EpollThread => "epoll, one thread",
            Self::Go => "Go",
        }
    }

    /// Tells whether this program contains the system.
    #[must_use]
    pub fn is_compiled(self) -> bool {
        self.compiled().is_ok()
    }

    fn compiled(self) -> Result<Self, SystemError> {
        if self == Self::Smol && !cfg!(feature = "smol") {
            return Err(SystemError::NotCompiled { name: self.name(), feature: "smol" });
        }
        Ok(self)
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for System {
    type Err = SystemError;

    /// Finds a system by its name; the error tells which there are.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().chain([Self::Go]).find(|system| system.name() == name);
        known.ok_or_else(|| SystemError::Unknown { name: name.to_owned() })?.compiled()
    }
}

impl From<System> for String {
    fn from(system: System) -> Self {
        system.name().to_owned()
    }
}

impl TryFrom<String> for System {
    type Error = SystemError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

/// A name that stands for no system of this program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SystemError {
    /// There is no such system.
    #[error("no system is named {name:?}; there are {}", names())]
    Unknown {
        /// The given text.
        name: String,
    },
    /// There is, but not in this program.
    #[error(
        "{name} is not compiled in: build vigie-bench with `--features {feature}`; there are {}",
        names()
    )]
    NotCompiled {
        /// Name of the system.
        name: &'static str,
        /// The cargo feature that brings it.
        feature: &'static str,
    },
}

fn names() -> String {
    let compiled = System::ALL.into_iter().filter(|system| system.is_compiled());
    compiled.map(System::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_systems() {
        // Goal: every compiled system is found by its own name. Method: exhaustive.
        for system in System::ALL.into_iter().filter(|system| system.is_compiled()) {
            assert_eq!(system.name().parse(), Ok(system));
        }
    }

    #[test]
    fn an_unknown_name_tells_the_known_ones() {
        // Goal: the error says what to write instead. Method: a misspelt name.
        let error = "tokyo".parse::<System>().unwrap_err().to_string();
        assert!(error.contains("\"tokyo\"") && error.contains("tokio, "), "{error}");
    }
}
