//! The operations of a task: spawn tasks, yield, and let events through while it computes.

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

/// Runs `call`, which may compute for long or block. By tokio's name; it does nothing more than call, since on the hybrid flavor other
/// tasks' events are served meanwhile. On the user-level flavor they wait, where tokio's `current_thread` runtime panics.
pub fn block_in_place<T>(call: impl FnOnce() -> T) -> T {
    call()
}

/// Yields if the budget of this poll is used up. By tokio's name; [`checkpoint`] is for loops that compute.
///
/// # Cancel safety
/// Cancel safe.
pub async fn consume_budget() {
    std::future::poll_fn(|cx| vigie_detect::budget::poll_proceed(cx)).await;
}
