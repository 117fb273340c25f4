//! Engines: devices and protocols that never wait themselves.

mod lock;

pub use lock::{Guard, Lock};
