//! The kind of scheduler that hosts a server.

use std::fmt;

/// The kind of scheduler that hosts a server, by its threads [bouge02, §3.3].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "there are these four")]
pub enum Flavor {
    /// One kernel thread runs every task. A blocking call stops them all.
    UserLevel,
    /// Many tasks on a few kernel threads.
    Hybrid,
    /// Each task has its own kernel thread.
    KernelLevel,
    /// A simulation: one kernel thread runs every task in virtual time, in an order that `seed` draws. The same seed
    /// gives the same run.
    Simulated {
        /// The seed of all randomness of the simulation.
        seed: u64,
    },
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UserLevel => "user-level",
            Self::Hybrid => "hybrid",
            Self::KernelLevel => "kernel-level",
            Self::Simulated { .. } => "simulated",
        })
    }
}
