//! The two detectors that every server has: timers, and the readiness of descriptors.
//!
//! They are detectors like any other, and know nothing of the server that registers them. The other methods
//! of their handles are in `server/builtin_handles.rs`.

pub mod readiness;
mod timers;

pub(crate) use readiness::{
    Direction, IoSource, Readiness, ReadinessRequest, ReadyEvent, ready_of,
};
pub use timers::Timers;
