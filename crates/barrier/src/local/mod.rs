//! Barriers of members on one host: tasks.
pub(crate) mod absence;
pub(crate) mod central;
#[cfg(not(loom))]
pub(crate) mod patience;
mod place;
#[cfg(not(loom))]
pub mod shm;
mod tasks;
#[cfg(not(loom))]
mod threads;

use std::sync::atomic::{AtomicU64, Ordering};

pub use self::tasks::{Depart, TaskBarrier, TaskMember};
#[cfg(not(loom))]
pub use self::threads::{ThreadBarrier, ThreadMember};

/// Returns a number that no other barrier of this process has.
pub(crate) fn next_group() -> u64 {
    // In no model: the number alone carries meaning.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
