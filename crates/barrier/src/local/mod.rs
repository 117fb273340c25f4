//! Barriers of members on one host: [tasks](TaskBarrier), [threads](ThreadBarrier), [processes](shm).
//!
//! All have one shape. A member is the right to enter as one rank: it enters and waits, or [arrives and
//! departs](TaskMember::arrive) in two phases; cancelling a wait takes no entry back. What a member did before it
//! entered is visible to all after they have passed.
//!
//! # Failures
//! A member that is dropped, panics, or whose process dies, has left. A barrier that it had not entered fails for
//! all others with [`BarrierError::Lost`](crate::BarrierError::Lost), which names it, and the group can be used
//! no more. Success on any member means that all had entered.
//!
//! There is no `shrink` here. The error names who is gone, and whoever has made the barrier makes a new one for the rest:
//! tasks and threads are handed its members, processes meet again under another name. Where members must agree by
//! themselves on who is left, take [`net`](crate::net).
//!
//! # Reductions
//! Tasks and threads [reduce](Reducing) a value of each member along, in a type of its own, so that plain barriers do not
//! pay for it. Processes over shared memory do not; [`net`](crate::net) does.
//!
//! # Which one
//! Tasks never enter the kernel for a barrier, and threads and processes only to sleep or to let others run. All are
//! one central counter in a cache line: on the few processors that share it, nothing that sends more messages is
//! faster. `docs/design/barrier-local.md` has the figures.

#[cfg(not(loom))]
mod reducing;
#[cfg(not(loom))]
pub mod shm;
#[cfg(not(loom))]
mod threads;

pub(crate) mod absence;
pub(crate) mod central;
mod place;
mod tasks;
mod wakers;

use std::sync::atomic::{AtomicU64, Ordering};

pub use self::tasks::{Depart, TaskBarrier, TaskMember};
#[cfg(not(loom))]
pub use self::{
    reducing::Reducing,
    threads::{ThreadBarrier, ThreadMember},
};

/// Looks at the shared word for each look at the clock: about 1 µs.
#[cfg(not(loom))]
pub(crate) const LOOKS: u32 = 32;

/// Returns a number that no other barrier of this process has.
pub(crate) fn next_group() -> u64 {
    // In no model: the number alone carries meaning.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
