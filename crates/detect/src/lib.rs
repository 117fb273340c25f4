//! Events: what they are, how they may be seen, and the server that watches for them.
//!
//! placeholder
pub mod clock;
mod async_fd;
mod detector;
mod error;
mod handle;
mod history;
mod host_thread;
mod lookout;
mod metrics;
mod park;
mod pending;
mod policy;
mod registered;
mod server;
mod shared;
mod simulation;
mod site;
mod slot;
pub mod stock;
mod sync;
mod timer;
mod wait_point;

pub use async_fd::AsyncFd;
pub use clock::{Clock, Instant, VirtualClock};
pub use detector::{
    Armed, Arming, Blocker, Cancel, Detector, Emitted, Key, Methods, Mode, Notice, Pending, Ready,
    Round, Submitted,
};
pub use error::{RegisterError, WaitError};
pub use handle::{EventStream, Handle, Registration, Wait};
pub use history::History;
pub use host_thread::HostThread;
pub use metrics::Snapshot;
pub use policy::{Adaptive, Decision, Fixed, Flavor, Frequency, Policy, Situation, Strategy};
pub use lookout::{Detected, Lookout};
pub use server::{Entered, NoServer, Server};
pub use site::{Bell, Site};
pub use wait_point::Interest;
pub use simulation::{Deadlock, Simulated, Simulation};
pub use timer::Timers;
