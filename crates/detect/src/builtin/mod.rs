//! The two detectors that every server has: timers, and the readiness of descriptors.
//!
//! They are detectors like any other, and know nothing of the server that registers them. What their handles
//! offer beside waiting stands in `server/builtin_handles.rs`.

pub mod readiness;
mod timers;

pub(crate) use readiness::{Awaited, Direction, Readable, Readiness, Source, ready_of};
pub use timers::Timers;
