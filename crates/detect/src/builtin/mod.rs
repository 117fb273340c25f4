//! The two detectors that every server has: timers, and the readiness of descriptors.

pub mod readiness;
mod timers;

pub(crate) use readiness::{Awaited, Direction, Readable, Readiness, Source};
pub use timers::Timers;
