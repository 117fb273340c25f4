//! The requests of one handle, and the slots in which their waiters find the events.

mod entries;
mod key;
mod set;
pub(crate) mod slot;

pub use key::{CancelOutcome, Key, Mode};
pub(crate) use set::{PendingSet, Trash};
pub(crate) use slot::{EventSlot, SlotEnd, SlotItem, WaiterKind, WaiterToken};
