//! What a task can do: spawn tasks, yield, and let events through while it computes.

mod checkpoint;
mod join_set;
mod local_set;
mod spawn;
mod unconstrained;

pub use self::{
    checkpoint::{Checkpoint, checkpoint, need_yield},
    join_set::JoinSet,
    local_set::{LocalEnterGuard, LocalSet},
    spawn::{Builder, YieldNow, spawn, spawn_blocking, spawn_local, yield_now},
    unconstrained::{Unconstrained, unconstrained},
};
pub use crate::task_cell::{AbortHandle, Id, JoinError, JoinHandle, id, try_id};
