//! Engines: devices and protocols that never wait themselves, and the host that waits for them.
//!
//! [`Engine`] is where to begin: what an engine is, and what it must promise. An [`EngineHost`] brings one to a server;
//! `watch.rs` is the detector that it registers there, `shared.rs` what both have in common, behind the lock of `lock.rs`;
//! those who wait in there are in `waiters.rs`.

mod contract;
mod host;
mod lock;
mod shared;
mod waiters;
mod watch;

pub use contract::{Engine, Progress, Turn, WatchedDescriptor};
pub use host::{EngineEvents, EngineHost, EngineWait, EngineWaiter};
pub use lock::{Guard, Lock};
#[cfg(loom)]
pub(crate) use shared::{Looked, Shared};
pub(crate) use watch::{Asked, EngineEvent, EngineWatch};
