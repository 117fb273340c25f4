//! Barriers of members on one host: [tasks](TaskBarrier), [threads](ThreadBarrier), [processes](shm).
//!
//! They all work the same way. A member is the right to enter as one rank: it enters and waits, or [arrives and
//! departs](TaskMember::arrive) in two phases. Cancelling a wait does not undo the entry. Everything that a member did
//! before it entered is visible to all members after they have passed.
//!
//! # Failures
//! A member that is dropped, panics, or whose process dies has left. A barrier that it had not entered fails for all
//! others with [`BarrierError::Lost`](crate::BarrierError::Lost), which names it, and the group is unusable from then
//! on. Success on any member means that all had entered.
//!
//! There is no `shrink` here. The error names the members that are gone, and the code that created the barrier
//! creates a new one for the rest: tasks and threads are handed its members, processes meet again under another name.
//! If members must agree among themselves on who is left, use [`net`](crate::net).
//!
//! # Reductions
//! Tasks and threads can [reduce](Reducing) a value of each member, with a type of its own, so plain barriers do not
//! pay for it. Processes over shared memory cannot; [`net`](crate::net) can.
//!
//! # Which one
//! Tasks never enter the kernel for a barrier; threads and processes do so only to sleep or to yield. All three use
//! one central counter in a cache line: on the few processors that share it, no algorithm with more messages is
//! faster. `docs/design/barrier-local.md` has the figures.

#[cfg(not(loom))]
mod reducing;
#[cfg(not(loom))]
pub mod shm;
#[cfg(not(loom))]
mod threads;

pub(crate) mod absence;
pub(crate) mod central;
mod tasks;
mod topology;
mod wakers;

pub use self::tasks::{Depart, TaskBarrier, TaskMember};
#[cfg(not(loom))]
pub use self::{
    reducing::Reducing,
    threads::{ThreadBarrier, ThreadMember},
};

/// The number of reads of the shared word per reading of the clock: about 1 µs.
#[cfg(not(loom))]
pub(crate) const SPINS: u32 = 32;
