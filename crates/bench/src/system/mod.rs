//! The systems under test: vigie in the ways of the paper, and its peers.
//!
//! [`System`] names them all. An async system is an implementation of [`AsyncSystem`], a dozen
//! operations on which the one workload runs; the closed set [`System`] dispatches once per process.

mod async_system;
pub(crate) mod blocking_calls;
#[cfg(feature = "smol")]
pub mod smol;
pub(crate) mod threads;
pub mod tokio;
pub mod vigie;

pub use self::async_system::{AsyncSystem, BoxedTask, Sockets};
pub(crate) use self::async_system::{echo, fill};
pub use crate::schedulers::{System, SystemError};
