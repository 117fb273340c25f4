//! Stock detectors: descriptors, doorbells, channels, signals, blocking calls, io_uring. Timers are
//! in [`Timers`](crate::Timers).

mod async_fd;
pub mod blocking;
pub mod channel;
pub mod doorbell;
pub mod signal;
pub mod signal_io;
#[cfg(feature = "uring")]
pub mod uring;

pub use self::async_fd::AsyncFd;
pub use crate::builtin::readiness;
