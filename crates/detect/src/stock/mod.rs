//! Stock detectors: descriptors, doorbells, channels, signals, calls that
//! block, io_uring. Timers stand in
//! [`Timers`](crate::Timers).

pub mod blocking;
pub mod channel;
pub mod doorbell;
pub mod readiness;
pub mod signal;
pub mod signal_io;
#[cfg(feature = "uring")]
pub mod uring;
