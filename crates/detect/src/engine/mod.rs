//! Engines: devices and protocols that never wait themselves, and the host that waits for them.
//!
//! [`Engine`] is where to begin: what an engine is, and what it must promise. An [`EngineHost`] brings one to a server;
//! `engine_detector.rs` is the detector that it registers there, `shared.rs` the state that both share behind the lock of
//! `lock.rs`, and `waiters.rs` holds the waiters by name.

mod contract;
mod engine_detector;
mod host;
mod lock;
mod shared;
mod waiters;

pub use contract::{Engine, EngineContext, Progress, WatchedDescriptor};
pub(crate) use engine_detector::{Asked, EngineDetector, EngineEvent};
pub use host::{EngineEvents, EngineHost, EngineWait, EngineWaiter};
#[cfg(loom)]
pub(crate) use lock::BiasedLock;
#[cfg(loom)]
pub(crate) use shared::{EngineShared, Polled};
