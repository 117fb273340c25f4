//! Stock detectors: descriptors, doorbells, channels, io_uring. Timers stand in
//! [`timer`](crate::timer).

pub mod channel;
pub mod doorbell;
pub mod readiness;
#[cfg(feature = "uring")]
pub mod uring;
