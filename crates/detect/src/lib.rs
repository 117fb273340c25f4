//! Events: what they are, how they may be seen, and the server that watches for them.
//!
//! ```
//! use vigie_detect::{Server, stock::doorbell::doorbell};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! // A server on a thread of its own; inside a vigie runtime, `Server::current()` is the scheduler's.
//! let host = Server::spawn_thread()?;
//! let (button, bell) = doorbell(host.server())?;
//! std::thread::spawn(move || button.press());
//! bell.wait(()).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The parts
//! - [`Detector`]: a kind of event and the [`Methods`] by which it may be seen: check, group + poll,
//!   notify, block, signal. Yours is as good as ours: see
//!   [the tutorial](docs::write_a_detector) and [`conformance`].
//! - [`Server`]: watches all registered detectors. A scheduler hosts it, or a
//!   [thread](Server::spawn_thread), or the [`Simulation`] in virtual time.
//! - [`Handle`]: a registered detector. [`wait`](Handle::wait) for one event, or
//!   [`stream`](Handle::stream) many from one request.
//! - [`Strategy`] and [`Policy`]: what the server does for a handle, and who decides.
//! - [`net`], [`AsyncFd`], [`stock`]: sockets, descriptors, timers, channels, doorbells, io_uring: all
//!   of them detectors, through the public trait.
//!
//! # The flow of an event
//! ```text
//!  wait(request) ──▶ Detector::submit ──▶ pending ··· poll / notified ──▶ Round::emit ──▶ slot ──▶ waker
//!        │                  │ there already                                                        │
//!        └──────────────────┴──────────────────────────▶ event ◀──────────────── polled again ◀────┘
//! ```
//!
//! # Who runs what
//! `submit` and `cancel` run on the waiter's thread, every other callback on the thread that turns the
//! server, all of them under the handle's lock. Wakers run with no lock held.
//!
//! # Cost and limits
//! An event that is there already costs one short lock. Waiting allocates nothing once as many requests
//! were pending before. A look without sleeping is one `epoll_wait` and one lock for each detector that
//! is polled. Up to 2^24 handles and as many watched descriptors a server, 2^20 pending requests a
//! handle unless its registration says otherwise. Linux only.
//!
//! # Giving way
//! A host may open a [budget] in time for each poll. What is waited for here then gives way at its end.
//!
//! # Features
//! `uring` (default): the io_uring detector. Whether the kernel allows it is found out at run time.
//!
//! # What this crate does not do
//! It knows no tasks and runs none. It does not resolve host names.
mod async_fd;
mod awake_host;
mod blocker;
pub mod budget;
pub mod clock;
pub mod conformance;
mod cost;
mod detector;
pub mod docs;
mod error;
mod fork;
mod handle;
mod history;
mod host_thread;
mod idle;
mod load;
mod lookout;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_exports;
mod metrics;
pub mod net;
mod own_point;
mod park;
mod pending;
mod policy;
mod reactivity;
mod registered;
mod server;
mod shared;
mod sharing;
mod signals;
mod simulation;
mod site;
mod slot;
pub mod stock;
mod strategies;
mod sync;
mod timer;
mod wait_point;
mod watch_state;

pub use async_fd::AsyncFd;
pub use blocker::Blocker;
pub use clock::{Clock, Instant, VirtualClock};
pub use cost::Costs;
pub use detector::{
    Armed, Arming, Cancel, Detector, Emitted, Key, Methods, Mode, Notice, Pending, Ready, Round,
    Submitted,
};
pub use error::{RegisterError, WaitError};
pub use handle::{EventStream, Handle, Registration, Wait};
pub use history::{History, Stakes};
pub use host_thread::HostThread;
pub use load::Load;
pub use lookout::{Detected, Lookout};
pub use metrics::{Detection, HandleReport, Snapshot};
pub use own_point::{Alarm, OwnWaitPoint};
pub use policy::{Adaptive, Decision, Fixed, Flavor, Frequency, Policy, Situation, Strategy};
pub use reactivity::Reactivity;
pub use server::{Entered, NoServer, Server};
pub use simulation::{Deadlock, Simulated, Simulation};
pub use site::{Bell, Site};
pub use strategies::{Strategies, Watch, strategies};
pub use timer::Timers;
pub use wait_point::Interest;
