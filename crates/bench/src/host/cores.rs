//! The cores that a thread may use.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::Failure;

/// Returns the cores that the calling thread may use.
pub(crate) fn allowed() -> Vec<usize> {
    // A kernel that does not tell leaves what every machine has.
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Keeps the calling thread on these cores, and what it starts from then on.
///
/// # Errors
/// [`Failure::Io`] if the kernel refuses.
pub(crate) fn pin(cores: &[usize]) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.set(core);
    }
    sched_setaffinity(None, &set).map_err(|error| Failure::io("pinning a thread")(error.into()))
}
