//! Flows: the units of forwarding.
//!
//! ```text
//!   Config ── prepare ──▶ Prepared ── rights are given up ── start ──▶ Running ── drain ──▶ Drained
//! ```
//! Steps that need capabilities, or that a user's mistake can make fail, happen in `prepare`, for all flows before any
//! of them forwards.

mod frames;
mod relay;
mod tls;

use std::{
    future::{self, Future},
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    pin::Pin,
    process,
    rc::Rc,
};

use thiserror::Error;
use vigie::{
    Instant, Runtime,
    forward::{
        relay::{RelayHandle, RelayListener, UdpRelayHandle, UdpRelayListener},
        tables::Prefix,
    },
};

pub(crate) use self::frames::taken_addresses;
use crate::{
    cli::FlowSide,
    config::{EndpointUri, FileProblems, FlowConfig, FlowKind},
    instance::InstanceEvent,
    journal::log,
    kernel::{Change, NetlinkCache},
    mailbox::Mailbox,
    privileges::Right,
    stats::FlowReport,
};

/// A future of the control thread.
pub(crate) type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The reason why a flow cannot run.
#[derive(Debug, Error)]
pub(crate) enum FlowError {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{0}")]
    InvalidSetting(String),
    /// As [`Self::InvalidSetting`], of one key of the flow, given by its path.
    #[error("{problem}")]
    InvalidKey { key: String, problem: String },
    /// Rights are missing, because of one key of the flow.
    #[error("{problem}")]
    Rights { key: &'static str, problem: String },
    #[error(
        "{} keeps the translations of another flow{}, and each of the two would replace those of the other: give `state` \
         another file",
        path.display(),
        of_process(*holder)
    )]
    StateInUse { path: PathBuf, holder: Option<u32> },
}

impl FlowError {
    /// Of one key of the flow.
    pub(crate) fn of_key(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidKey { key: key.into(), problem: problem.into() }
    }
}

/// Names the process of another flow, if it is known.
fn of_process(holder: Option<u32>) -> String {
    match holder {
        Some(pid) if pid == process::id() => " of this process".to_owned(),
        Some(pid) => format!(" (process {pid})"),
        None => String::new(),
    }
}

/// The arguments for starting a flow.
pub(crate) struct StartContext<'a> {
    /// The mailbox to which flows report events.
    pub(crate) mailbox: &'a Rc<Mailbox<InstanceEvent>>,
}

/// A flow that is set up but not running.
pub(crate) trait Prepared {
    /// Returns the capabilities that it needs while it runs.
    fn rights(&self) -> Vec<Right>;

    /// Returns the kernel's routing table that it follows; 0: interfaces only; `None`: neither.
    fn table(&self) -> Option<u32> {
        None
    }

    /// Starts forwarding.
    fn start(self: Box<Self>, context: &StartContext<'_>) -> Result<Box<dyn Running>, FlowError>;
}

/// The end of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Connections that were cut at the deadline.
    pub(crate) cut: u64,
}

/// The listening socket of a flow.
pub(crate) enum Listener {
    Streams(RelayListener),
    Datagrams(UdpRelayListener),
}

impl Listener {
    /// Takes over that of another process.
    pub(crate) fn from_fd(
        listen: &EndpointUri,
        socket: OwnedFd,
        streams: &Runtime,
    ) -> io::Result<Self> {
        let server = streams.server();
        match listen {
            EndpointUri::Udp(_) => {
                UdpRelayListener::from_fd_on(server, socket).map(Self::Datagrams)
            }
            _ => RelayListener::from_fd_on(server, socket).map(Self::Streams),
        }
    }

    /// Returns a descriptor for another process.
    pub(crate) fn to_fd(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Streams(listener) => listener.as_fd().try_clone_to_owned(),
            Self::Datagrams(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }

    /// Sets whether the file of its Unix socket is removed with it.
    pub(crate) fn set_owns_file(&self, owns: bool) {
        if let Self::Streams(listener) = self {
            listener.set_owns_file(owns);
        }
    }
}

/// What a flow has of one whose place it takes.
#[derive(Default)]
pub(crate) struct Earlier {
    pub(crate) listener: Option<Listener>,
    pub(crate) relay: Option<EarlierRelay>,
}

/// A relay that knows the health of targets.
#[derive(Clone)]
pub(crate) enum EarlierRelay {
    Streams(RelayHandle),
    Datagrams(UdpRelayHandle),
}

/// A running flow.
pub(crate) trait Running {
    /// Returns its report.
    fn report(&self) -> FlowReport;

    /// Applies changes of the kernel's routes; at first, all of them.
    fn follow(&mut self, _cache: &NetlinkCache, _changes: &[Change]) {}

    /// Does periodic work; called a few times a second.
    fn tick(&mut self, _cache: Option<&NetlinkCache>, _now: Instant) {}

    /// Says once for each such change of this host that it should end and begin anew by the same settings, with these networks inside,
    /// which may not all be reached at the moment.
    fn begins_anew(&mut self) -> Option<Vec<Prefix>> {
        None
    }

    /// Reads files again, such as certificates. Returns what is wrong with them.
    fn reload(&self) -> Vec<String> {
        Vec::new()
    }

    /// Moves between host and network interface. If it moves only later, returns why.
    fn move_to(&mut self, _side: FlowSide) -> Result<Option<String>, String> {
        Err("its streams can only be relayed by the host".to_owned())
    }

    /// Returns its listener, for the flow that takes its place.
    fn listener(&self) -> Option<Listener> {
        None
    }

    /// Returns its relay, for the flow that takes its place.
    fn relay(&self) -> Option<EarlierRelay> {
        None
    }

    /// Accepts nothing new from now on, since another flow does by its listener. Ready once that is so. It is drained next.
    fn hand_over(&self, _deadline: Instant) -> Local<'static, ()> {
        Box::pin(future::ready(()))
    }

    /// Accepts nothing new, lets existing connections continue until `deadline`, and ends.
    fn drain(self: Box<Self>, deadline: Instant) -> Draining;
}

/// A flow that drains.
pub(crate) struct Draining {
    /// Returns its report, until it has ended.
    pub(crate) report: Box<dyn Fn() -> FlowReport>,
    pub(crate) ended: Local<'static, Drained>,
}

/// Reads the files that a flow needs, such as certificates, and nothing else.
pub(crate) fn file_problems(flow: &FlowConfig) -> FileProblems {
    match &flow.kind {
        FlowKind::Relay(relay) => relay::file_problems(relay),
        FlowKind::L2(_) | FlowKind::L3(_) | FlowKind::Nat(_) => Vec::new(),
    }
}

/// Returns warnings of the files that a flow needs, as it logs them when it runs.
pub(crate) fn file_warnings(flow: &FlowConfig) -> Vec<String> {
    match &flow.kind {
        FlowKind::Relay(relay) => relay::file_warnings(&flow.name, relay),
        FlowKind::L2(_) | FlowKind::L3(_) | FlowKind::Nat(_) => Vec::new(),
    }
}

/// Returns the problems of interfaces that cannot be used, by the paths of their keys.
pub(crate) fn interface_problems(flow: &FlowConfig) -> Result<Vec<(String, String)>, FlowError> {
    match &flow.kind {
        FlowKind::Relay(_) => Ok(Vec::new()),
        FlowKind::L2(_) | FlowKind::L3(_) | FlowKind::Nat(_) => {
            frames::interface_problems(&flow.kind)
        }
    }
}

/// Checks a flow as far as possible while others run, which have these interfaces and end before it begins.
pub(crate) fn check(flow: &FlowConfig, held: &[&str]) -> Result<(), FlowError> {
    match &flow.kind {
        FlowKind::Relay(relay) => relay::check_files(relay),
        FlowKind::L2(_) | FlowKind::L3(_) | FlowKind::Nat(_) => frames::check(flow, held),
    }
}

/// Sets a flow up. Streams run on `streams`.
pub(crate) fn prepare(
    flow: &FlowConfig,
    streams: Option<&Runtime>,
    earlier: Earlier,
) -> Result<Box<dyn Prepared>, FlowError> {
    match &flow.kind {
        FlowKind::Relay(relay) => relay::prepare(&flow.name, relay, streams, earlier),
        FlowKind::L2(_) | FlowKind::L3(_) | FlowKind::Nat(_) => {
            frames::prepare(flow, FlowStart::First)
        }
    }
}

/// As [`prepare`], of a flow of frames that has ended to begin anew.
pub(crate) fn prepare_anew(flow: &FlowConfig) -> Result<Box<dyn Prepared>, FlowError> {
    frames::prepare(flow, FlowStart::Anew)
}

/// Whether a flow begins for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowStart {
    First,
    /// It has ended to begin anew: what is only logged while a flow runs does not keep it from that.
    Anew,
}

impl FlowStart {
    /// Refuses a first start for this reason; logs it otherwise.
    fn refuse(self, reason: String) -> Result<(), FlowError> {
        match self {
            Self::First => Err(FlowError::InvalidSetting(reason)),
            Self::Anew => {
                log(reason);
                Ok(())
            }
        }
    }
}
