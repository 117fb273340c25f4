//! What tasks do: spawn others, yield, and let events through while they compute.

pub use crate::{
    checkpoint::{Checkpoint, checkpoint, need_yield},
    join::{JoinError, JoinHandle},
    spawn::{Builder, YieldNow, spawn, spawn_blocking, spawn_local, yield_now},
    unconstrained::{Unconstrained, unconstrained},
};
