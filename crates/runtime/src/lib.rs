//! Tasks, and the schedulers that watch for events while they run them.
//!
//! placeholder

mod blocking_pool;
mod builder;
mod context;
mod flavor;
mod handle;
mod idle;
mod join;
mod lane;
mod parker;
mod runtime;
mod spawn;
mod sync;
mod task;
pub mod time;

pub use builder::{BuildError, RuntimeBuilder};
pub use handle::{Handle, NoRuntime};
pub use join::{JoinError, JoinHandle};
pub use runtime::Runtime;
pub use spawn::{YieldNow, spawn, spawn_blocking, spawn_local, yield_now};
pub use vigie_detect::Flavor;
