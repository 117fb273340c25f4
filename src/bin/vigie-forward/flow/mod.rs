//! Flows: what forwards.
//!
//! ```text
//!   Config ── prepare ──▶ Prepared ── rights are given up ── start ──▶ Running ── drain ──▶ Drained
//! ```
//! What needs rights or can fail for a user's mistake is done by `prepare`, for all flows before any of them
//! forwards.

mod frames;
mod relay;

use std::{future::Future, io, pin::Pin, rc::Rc};

use thiserror::Error;
use vigie::{Instant, Runtime};

use crate::{
    cli::Side,
    config::{Flow, Kind},
    kernel::{Change, Picture},
    mailbox::Mailbox,
    privileges::Right,
    stats::FlowReport,
};

/// A future of the control thread.
pub(crate) type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Why a flow cannot be forwarded.
#[derive(Debug, Error)]
pub(crate) enum FlowError {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{0}")]
    Setting(String),
    #[error("{0}")]
    Rights(String),
}

/// What flows are started with.
pub(crate) struct Place<'a> {
    /// Where flows tell what happens to them.
    pub(crate) mailbox: &'a Rc<Mailbox>,
}

/// A flow that is set up, and does not forward yet.
pub(crate) trait Prepared {
    /// Returns the rights that it needs while it runs.
    fn rights(&self) -> Vec<Right>;

    /// Returns the kernel's routing table that it follows; 0: none, but interfaces.
    fn table(&self) -> Option<u32> {
        None
    }

    /// Begins to forward.
    fn start(self: Box<Self>, place: &Place<'_>) -> Result<Box<dyn Running>, FlowError>;
}

/// How a flow ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Connections that were cut at the deadline.
    pub(crate) cut: u64,
}

/// A flow that forwards.
pub(crate) trait Running {
    /// Says what it does.
    fn report(&self) -> FlowReport;

    /// Takes in what has changed in the kernel's routes; at the beginning, all of them.
    fn follow(&mut self, _picture: &Picture, _changes: &[Change]) {}

    /// Looks after itself: a few times a second.
    fn tick(&mut self, _picture: Option<&Picture>, _now: Instant) {}

    /// Moves between host and network interface.
    fn move_to(&mut self, _side: Side) -> Result<(), String> {
        Err("its streams are relayed by the host, and nowhere else".to_owned())
    }

    /// Takes nothing new, lets go on what there is until `deadline`, and ends.
    fn drain(self: Box<Self>, deadline: Instant) -> Draining;
}

/// A flow that drains.
pub(crate) struct Draining {
    /// Says what it does, until it has ended.
    pub(crate) report: Box<dyn Fn() -> FlowReport>,
    pub(crate) ended: Local<'static, Drained>,
}

/// Sets a flow up. Streams are relayed by `streams`.
pub(crate) fn prepare(
    flow: &Flow,
    streams: Option<&Runtime>,
) -> Result<Box<dyn Prepared>, FlowError> {
    match &flow.kind {
        Kind::Relay(relay) => relay::prepare(&flow.name, relay, streams),
        Kind::L2(_) | Kind::L3(_) | Kind::Nat(_) => frames::prepare(flow),
    }
}
