//! What tasks do: spawn others, yield, and let events through while they compute.

mod checkpoint;
mod spawn;
mod unconstrained;

pub use self::{
    checkpoint::{Checkpoint, checkpoint, need_yield},
    spawn::{Builder, YieldNow, spawn, spawn_blocking, spawn_local, yield_now},
    unconstrained::{Unconstrained, unconstrained},
};
pub use crate::task_cell::{JoinError, JoinHandle};
