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
//! - [`Engine`] and [`EngineHost`]: a device or a protocol that never waits itself, and the host that waits for it: the way
//!   to [bring your own](docs::bring_a_device).
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
pub mod budget;
mod builtin;
pub mod clock;
mod detector;
pub mod docs;
mod engine;
mod error;
mod fork;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_exports;
pub mod net;
mod policy;
mod request;
mod server;
pub mod stock;
mod sync;
mod testing;
mod waiting;

/// The lock around an engine, for those of this workspace that do not stand on [`EngineHost`] yet.
#[doc(hidden)]
pub mod engine_lock {
    pub use crate::engine::{Guard, Lock};
}

pub use builtin::Timers;
pub use clock::{Clock, Instant, VirtualClock};
pub use detector::{
    Armed, Arming, Bell, Blocker, Cancel, Detector, Emitted, Flavor, Interest, Key, Methods, Mode,
    Notice, Pending, Ready, Round, Site, Submitted,
};
pub use engine::{
    Engine, EngineEvents, EngineHost, EngineWait, EngineWaiter, Progress, Turn, WatchedDescriptor,
};
pub use error::{RegisterError, WaitError};
pub use policy::{
    Adaptive, Costs, Decision, Fixed, Frequency, History, Load, Peers, Policy, Reactivity,
    Situation, Stage, Stakes, Step, Strategies, Strategy, WaitPlan, WaitSituation, Watch,
    strategies,
};
pub use server::{
    Alarm, Detected, Detection, Entered, EventStream, Handle, HandleReport, HostThread, Lookout,
    NoServer, OwnWaitPoint, Registration, Server, Snapshot, Wait,
};
pub use stock::AsyncFd;
pub use testing::{Deadlock, Simulated, Simulation, conformance};
pub use waiting::{Bursts, Waiter, sleep_thread};
