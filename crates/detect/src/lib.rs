//! Event detection: detectors describe events and the methods to see them; a server watches for
//! them.
//!
//! ```
//! use vigie_detect::{Server, detectors::doorbell::doorbell};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! // A server on its own thread. Inside a vigie runtime, `Server::current()` is the
//! // scheduler's server.
//! let host = Server::spawn_thread()?;
//! let (button, bell) = doorbell(host.server())?;
//! std::thread::spawn(move || button.press());
//! bell.rung().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The parts
//! - [`Detector`]: a kind of event and the [`Methods`] that can detect it: check, group + poll,
//!   notify, block, signal. Your own detectors use the same trait as ours: see [the
//!   tutorial](docs::write_a_detector) and [`conformance`].
//! - [`Server`]: watches all registered detectors. It is hosted by a scheduler, by a
//!   [thread](Server::spawn_thread), or by the [`Simulation`] in virtual time.
//! - [`Handle`]: a registered detector. [`wait`](Handle::wait) waits for one event;
//!   [`stream`](Handle::stream) delivers many from one request.
//! - [`Strategy`] and [`Policy`]: how the server watches a handle, and the code that decides it.
//! - [`Engine`] and [`EngineHost`]: a device or protocol that never waits itself, and the host that waits for it. Use these
//!   to [bring your own device](docs::bring_a_device).
//! - [`net`], [`AsyncFd`], [`detectors`]: sockets, descriptors, timers, channels, doorbells, io_uring. All
//!   are detectors built on the public trait.
//!
//! # The flow of an event
//! ```text
//!  wait(request) ──▶ Detector::submit ──▶ pending ··· poll / notified ──▶ PollContext::emit ──▶ slot ──▶ waker
//!        │                  │ there already                                                        │
//!        └──────────────────┴──────────────────────────▶ event ◀──────────────── polled again ◀────┘
//! ```
//!
//! # Which thread runs what
//! `submit` and `cancel` run on the waiter's thread, every other callback on the thread that drives
//! the server. All of them run under the handle's lock; wakers run with no lock held.
//!
//! # Cost and limits
//! If the event has already happened, a wait costs one short lock. Waiting does not allocate once as
//! many requests have been pending before. A poll without sleeping is one `epoll_wait` and one lock for
//! each polled detector. Limits: 2^24 handles and 2^24 watched descriptors per server; 2^20 pending
//! requests per handle unless its registration says otherwise. Linux only.
//!
//! # Cooperative yielding
//! A host may open a time [budget] for each poll. When the budget is used up, the waits of this crate
//! yield.
//!
//! # Features
//! `uring` (default): the io_uring detector, which checks at run time whether the kernel allows io_uring.
//! `bytes`: receiving into a `BufMut`. `tokio`: [`Server::spawn_in_tokio`].
//!
//! # What this crate does not do
//! It neither knows nor runs tasks.

pub mod budget;
mod builtin;
pub mod clock;
mod detector;
pub mod detectors;
pub mod docs;
mod engine;
mod error;
mod fork;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_exports;
pub mod net;
mod network;
mod policy;
mod request;
mod server;
mod setters;
mod sync;
mod testing;
mod waiting;

pub use builtin::Timers;
pub use clock::{Clock, Instant, VirtualClock};
pub use detector::{
    ArmOutcome, Arming, Blocker, CancelOutcome, Detector, DriverHandle, EmitOutcome, Flavor,
    Interest, Key, Methods, Mode, Notifier, Pending, PollContext, PollerEvent, Ready,
    SubmitOutcome,
};
pub use detectors::AsyncFd;
pub use engine::{
    Engine, EngineContext, EngineEvents, EngineHost, EngineWait, EngineWaiter, Progress,
    WatchedDescriptor,
};
pub use error::{RegisterError, WaitError};
#[doc(hidden)]
pub use network::CallId;
pub use network::{
    DropReason, Link, NodeChange, NodeId, SimulatedNetwork, TaskEnd, TraceDetail, TraceEvent,
    TraceEventKind, TraceLog, TracedPacket, TracedTask,
};
pub use policy::{
    Adaptive, Costs, Decision, Fixed, Frequency, History, Load, Peers, Policy, Reactivity,
    Situation, SpinCosts, SpinStep, SpinWait, Strategies, Strategy, StrategyKind, WaitPlan,
    WaitSituation, YieldBackoff, strategies,
};
#[cfg(feature = "tokio")]
pub use server::TokioHost;
pub use server::{
    Detected, Detection, Driver, EmbeddedDriver, EventStream, Handle, HandleReport, HostThread,
    NoServer, Registration, Server, ServerGuard, Snapshot, ThreadPoller, Unparker, Wait,
    WaitReport, WaiterId, refuse_in_simulation,
};
pub use testing::{Deadlock, Simulated, SimulatedHost, Simulation, conformance};
pub use waiting::{
    Bursts, Probe, SharedWait, SharedWaiter, Waiter, YieldBeforeSleep, sleep_thread,
};
