//! The reaction guarantee: a task that does not yield delays no other task's event. The hogs here spin
//! until what they must not delay has happened, so that a test hangs where the guarantee is broken.

#[path = "../child/mod.rs"]
mod child;
#[path = "../guard/mod.rs"]
mod guard;
#[path = "../settle/mod.rs"]
mod settle;

mod checkpoints;
mod costs;
mod delivery;
mod growth;
mod hogs;
mod kernel;
mod locks;
mod pauses;
mod shutdown;
mod sleepers;
