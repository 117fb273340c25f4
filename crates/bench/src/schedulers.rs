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

/// Every system, with its name and its label, in the order of the type.
const NAMES: [(System, &str, &str); 17] = [
    (System::VigieNaive, "vigie-naive", "naive polling (vigie user-level)"),
    (System::VigieEnhanced, "vigie-enhanced", "enhanced polling (vigie user-level)"),
    (System::VigieBlocking, "vigie-blocking", "blocking calls (vigie hybrid)"),
    (System::VigieUserLevel, "vigie-user-level", "vigie user-level, adaptive"),
    (System::Vigie, "vigie", "vigie hybrid, adaptive"),
    (System::VigieKernelLevel, "vigie-kernel-level", "vigie kernel-level, adaptive"),
    (System::VigieLowLatency, "vigie-low-latency", "vigie hybrid, low latency"),
    (System::VigieLowCpu, "vigie-low-cpu", "vigie hybrid, low CPU"),
    (System::VigieCheckpoint, "vigie-checkpoint", "vigie user-level, checkpoints"),
    (System::VigieInTokio, "vigie-in-tokio", "vigie's detectors inside tokio"),
    (System::Tokio, "tokio", "tokio multi-thread"),
    (System::TokioCurrentThread, "tokio-current-thread", "tokio current-thread"),
    (System::Smol, "smol", "smol"),
    (System::Threads, "threads", "kernel threads"),
    (System::BusyPoll, "busy-poll", "epoll, busy polling"),
    (System::EpollThread, "epoll-thread", "epoll, one thread"),
    (System::Go, "go", "Go"),
];

impl System {
    /// All systems that run each workload, compiled in or not, in the order of the tables.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.into_iter().map(|(system, ..)| system).filter(|system| *system != Self::Go)
    }

    /// Returns the name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Returns the label of the system's rows in tables.
    #[must_use]
    pub const fn label(self) -> &'static str {
        NAMES[self as usize].2
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
        let known = NAMES.into_iter().find(|(_, known, _)| *known == name);
        let known = known.map(|(system, ..)| system);
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
    let compiled = System::all().filter(|system| system.is_compiled());
    compiled.map(System::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_systems() {
        // Goal: every compiled system is found by its own name. Method: exhaustive.
        for system in System::all().filter(|system| system.is_compiled()) {
            assert_eq!(system.name().parse(), Ok(system));
        }
        assert!(NAMES.iter().enumerate().all(|(place, (system, ..))| *system as usize == place));
    }

    #[test]
    fn an_unknown_name_tells_the_known_ones() {
        // Goal: the error says what to write instead. Method: a misspelt name.
        let error = "tokyo".parse::<System>().unwrap_err().to_string();
        assert!(error.contains("\"tokyo\"") && error.contains("tokio, "), "{error}");
    }
}
