//! The context of a rank: who it is, which cores it has, and how it finds the others.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::host::{allowed, enter, pin};

/// Cores that a run takes.
const CORES: usize = 2;

/// The place of one rank in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankContext {
    /// Which rank this is, from 0.
    pub(crate) rank: u32,
    /// How many there are.
    pub(crate) ranks: u32,
    /// The cores that it may use.
    pub(crate) cores: Vec<usize>,
    /// The file of the memory that all ranks of the run share; it has no name, and ends with them.
    pub(crate) memory: PathBuf,
    /// A number that no other run has, for names.
    pub(crate) token: u64,
    /// The network namespace in which it runs, if it is another than its parent's.
    pub(crate) namespace: Option<PathBuf>,
}

impl RankContext {
    /// The rank that receives from this one.
    pub(crate) const fn next(&self) -> u32 {
        if self.rank + 1 == self.ranks { 0 } else { self.rank + 1 }
    }

    /// The rank from which this one receives.
    pub(crate) const fn before(&self) -> u32 {
        if self.rank == 0 { self.ranks - 1 } else { self.rank - 1 }
    }

    /// Moves the calling thread into the rank's network namespace, and keeps it on the rank's cores.
    ///
    /// # Errors
    /// [`Failure::Io`] if there is no such namespace, or the kernel refuses.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        if let Some(namespace) = &self.namespace {
            enter(namespace)?;
        }
        pin(&self.cores)
    }
}

/// The first two cores that this process may use; fewer if it has no more.
pub(crate) fn cores() -> Vec<usize> {
    allowed().into_iter().take(CORES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_form_a_ring() {
        // Goal: `next` and `before` are each other's inverse, for every group. Method: exhaustive.
        for ranks in 2..=8 {
            for rank in 0..ranks {
                let context = |rank| RankContext {
                    rank,
                    ranks,
                    cores: cores(),
                    memory: PathBuf::new(),
                    token: 0,
                    namespace: None,
                };
                assert_eq!(context(context(rank).next()).before(), rank);
                assert_eq!(context(context(rank).before()).next(), rank);
            }
        }
    }
}
