//! The reaction guarantee: a task that does not yield delays no other task's event. The hogs here spin
//! until what they must not delay has happened, so that a test hangs where the guarantee is broken.

#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "../../../../tests/kit/log.rs"]
mod log;
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
