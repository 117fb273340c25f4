//! The context of a rank: who it is, which cores it has, and how it finds the others.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::thread::{
    CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_getaffinity, sched_setaffinity,
};
use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// Cores that a run takes.
const CORES: usize = 2;

/// The place of one rank in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankContext {
    /// Which rank this is, from 0.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
    /// The cores that it may use.
    pub cores: Vec<usize>,
    /// The file of the memory that all ranks of the run share; it has no name, and ends with them.
    pub memory: PathBuf,
    /// A number that no other run has, for names.
    pub token: u64,
    /// The network namespace in which it runs, if it is another than its parent's.
    pub namespace: Option<PathBuf>,
}

impl RankContext {
    /// The rank that receives from this one.
    #[must_use]
    pub const fn next(&self) -> u32 {
        if self.rank + 1 == self.ranks { 0 } else { self.rank + 1 }
    }

    /// The rank from which this one receives.
    #[must_use]
    pub const fn before(&self) -> u32 {
        if self.rank == 0 { self.ranks - 1 } else { self.rank - 1 }
    }

    /// Moves the calling thread into the rank's network namespace. Threads that it starts follow it there.
    ///
    /// # Errors
    /// [`Failure::Io`] if there is none, or the kernel refuses.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        let Some(path) = &self.namespace else { return Ok(()) };
        let doing = || format!("entering the network namespace {}", path.display());
        let file = File::open(path).map_err(Failure::io(doing()))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| Failure::io(doing())(error.into()))
    }

    /// Keeps the calling thread on the rank's cores.
    ///
    /// # Errors
    /// [`Failure::Io`] if the kernel refuses.
    pub(crate) fn pin(&self) -> Result<(), Failure> {
        let mut set = CpuSet::new();
        for &core in self.cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
            set.set(core);
        }
        sched_setaffinity(None, &set).map_err(|error| Failure::io("pinning a rank")(error.into()))
    }
}

/// The first two cores that this process may use; fewer if it has no more.
pub(crate) fn cores() -> Vec<usize> {
    // A kernel that does not tell leaves what every machine has.
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).take(CORES).collect()
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
