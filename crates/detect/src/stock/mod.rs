//! Stock detectors: descriptors, doorbells, channels, io_uring. Timers stand in
//! [`Timers`](crate::Timers).

pub mod channel;
pub mod doorbell;
pub mod readiness;
#[cfg(feature = "uring")]
pub mod uring;
