//! Engines: devices and protocols that never wait themselves, and the host that waits for them.
//!
//! [`Engine`] is where to begin: what an engine is, and what it must promise. An [`EngineHost`] brings one to a server;
//! `watch.rs` is the detector that it registers there, and `lock.rs` the lock around the engine.

mod contract;
mod host;
mod lock;
mod watch;

pub use contract::{Engine, Progress, Turn, WatchedDescriptor};
pub use host::{EngineEvents, EngineHost, EngineWait};
pub use lock::{Guard, Lock};
pub(crate) use watch::{EngineEvent, EngineWatch};
