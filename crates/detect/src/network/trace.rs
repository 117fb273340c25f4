//! The trace of a world, for people: its events with their virtual times, in bounded memory.

use std::{collections::VecDeque, fmt, net::SocketAddr, panic::Location};

use super::node_id::NodeId;
use crate::{
    clock::Instant,
    sync::{Arc, AtomicU8, Ordering, PoisonError, RealGuard, RealMutex},
};

/// An event of a simulated world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceEvent {
    /// The virtual time.
    pub at: Instant,
    /// The node at which it happened.
    pub node: NodeId,
    /// The kind of the event, and its details.
    pub kind: TraceEventKind,
}

/// The kind of an event in a simulated world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceEventKind {
    /// The node changed.
    Node(NodeChange),
    /// Something else was done to the node or its links: what, and its number among the faults of the run.
    Fault {
        /// Counted from 0 in each run.
        index: u32,
        /// For people.
        what: String,
    },
    /// All links between the node and another one are healed.
    Healed {
        /// The other one's name.
        other: String,
    },
    /// Something else that was done to the node, or to a link from it, has ended.
    FaultEnded {
        /// For people.
        what: String,
    },
    /// A packet left the node.
    Sent {
        /// The number of this copy of the packet.
        packet: u64,
        /// The node that it is sent to.
        to: NodeId,
        /// The packet.
        what: TracedPacket,
    },
    /// A packet reached the node.
    Delivered {
        /// Its number when it was [sent](Self::Sent).
        packet: u64,
    },
    /// A packet was lost: by a link, where the node is its sender, or at the node, where nothing runs.
    Dropped {
        /// Its number when it was [sent](Self::Sent); `None` if the link lost it at once.
        packet: Option<u64>,
        /// The node that it was sent to.
        to: NodeId,
        /// The packet.
        what: TracedPacket,
        /// The reason for the loss.
        reason: DropReason,
    },
    /// A task was spawned.
    TaskSpawned(TracedTask),
    /// A task was polled. Recorded only where two runs are compared.
    TaskPolled(TracedTask),
    /// A task ended.
    TaskEnded {
        /// The task.
        task: TracedTask,
        /// Its end.
        end: TaskEnd,
    },
    /// A task did something that the simulation does not see, such as a wait in the kernel.
    Escaped {
        /// A description of the act, and of the task.
        what: String,
    },
    /// The run failed: a panic left `block_on`.
    Failed {
        /// Its message.
        message: String,
    },
}

/// A change of a node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeChange {
    /// It was added, and its program began.
    Started,
    /// Its machine stopped.
    Crashed,
    /// Its process ended.
    Killed,
    /// Its program began anew.
    Restarted,
    /// None of its tasks is polled any more.
    Paused,
    /// Its tasks are polled again.
    Resumed,
}

/// A packet, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracedPacket {
    /// `SYN`, `data`, `UDP` and so on.
    pub kind: &'static str,
    /// Its source.
    pub from: SocketAddr,
    /// Its destination.
    pub to: SocketAddr,
    /// Its payload.
    pub size_bytes: usize,
}

/// The reason why a packet was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// The link is cut.
    Cut,
    /// The link lost it by chance.
    Loss,
    /// Too many bytes wait for the link.
    Full,
    /// The machine is off.
    Off,
}

/// A task of a node, the same in each run of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracedTask {
    /// Its number, counted from 0 in the order in which the world's tasks were spawned. The future of `block_on` has none.
    pub number: Option<u32>,
    /// Its name, if it has one.
    pub name: Option<Arc<str>>,
    /// The place at which it was spawned.
    pub site: &'static Location<'static>,
}

impl TracedTask {
    /// Describes a task.
    #[must_use]
    pub const fn new(
        number: Option<u32>,
        name: Option<Arc<str>>,
        site: &'static Location<'static>,
    ) -> Self {
        Self { number, name, site }
    }
}

/// The end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskEnd {
    /// Its future was ready.
    Finished,
    /// It panicked.
    Panicked,
    /// It was aborted.
    Cancelled,
}

/// The amount of detail that a [`TraceLog`] records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "nothing, something, everything")]
pub enum TraceDetail {
    /// Nothing: an event costs the read of one word.
    Off,
    /// Everything but polls; the newest events are kept.
    Events,
    /// Polls, too; the oldest events are kept, so that two runs can be compared.
    Polls,
}

/// The record of a world's events. Clones are the same record.
#[derive(Clone)]
pub struct TraceLog {
    detail: Arc<AtomicU8>,
    events: Arc<RealMutex<TraceEvents>>,
}

struct TraceEvents {
    events: VecDeque<TraceEvent>,
    events_max: usize,
    /// Those that no longer fit.
    lost: u64,
}

impl TraceLog {
    pub(super) fn new() -> Self {
        let events = TraceEvents { events: VecDeque::new(), events_max: 0, lost: 0 };
        Self {
            detail: Arc::new(AtomicU8::new(TraceDetail::Off as u8)),
            events: Arc::new(RealMutex::new(events)),
        }
    }

    fn locked(&self) -> RealGuard<'_, TraceEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records at most `events_max` events from now on, and forgets what was recorded before.
    pub fn start_recording(&self, detail: TraceDetail, events_max: usize) {
        *self.locked() = TraceEvents { events: VecDeque::new(), events_max, lost: 0 };
        self.detail.store(detail as u8, Ordering::Relaxed);
    }

    /// Returns whether events with this detail are recorded.
    #[must_use]
    pub fn is_recording(&self, detail: TraceDetail) -> bool {
        self.detail.load(Ordering::Relaxed) >= detail as u8
    }

    /// Adds an event, if events are recorded.
    pub fn note(&self, at: Instant, node: NodeId, kind: impl FnOnce() -> TraceEventKind) {
        if !self.is_recording(TraceDetail::Events) {
            return;
        }
        let event = TraceEvent { at, node, kind: kind() };
        let mut log = self.locked();
        if log.events.len() >= log.events_max {
            log.lost += 1;
            if self.is_recording(TraceDetail::Polls) || log.events.pop_front().is_none() {
                return;
            }
        }
        log.events.push_back(event);
    }

    /// Returns the recorded events, in order.
    #[must_use]
    pub fn events(&self) -> Vec<TraceEvent> {
        self.locked().events.iter().cloned().collect()
    }

    /// Returns how many events were too many: the oldest ones, or with [`TraceDetail::Polls`] the newest.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.locked().lost
    }
}

impl fmt::Debug for TraceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.locked().events.len();
        f.debug_struct("TraceLog").field("events", &events).finish_non_exhaustive()
    }
}

impl fmt::Display for TracedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "task {number}")?,
            None => f.write_str("the future of `block_on`")?,
        }
        match &self.name {
            Some(name) => write!(f, " {name} ({})", self.site),
            None => write!(f, " ({})", self.site),
        }
    }
}

impl fmt::Display for TracedPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, from, to, size_bytes } = self;
        write!(f, "{kind} {from} to {to}")?;
        if *size_bytes > 0 { write!(f, ", {size_bytes} bytes") } else { Ok(()) }
    }
}

impl fmt::Display for TraceEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(change) => write!(f, "{}", change.name()),
            Self::Fault { index, what } => write!(f, "fault {index}: {what}"),
            Self::Healed { other } => write!(f, "the link with {other} is healed"),
            Self::FaultEnded { what } => write!(f, "over: {what}"),
            Self::Sent { packet, what, .. } => write!(f, "packet {packet} sent: {what}"),
            Self::Delivered { packet } => write!(f, "packet {packet} delivered"),
            Self::Dropped { what, reason, .. } => write!(f, "packet {}: {what}", reason.name()),
            Self::TaskSpawned(task) => write!(f, "{task} spawned"),
            Self::TaskPolled(task) => write!(f, "{task} polled"),
            Self::TaskEnded { task, end } => write!(f, "{task} {}", end.name()),
            Self::Escaped { what } => write!(f, "escape: {what}"),
            Self::Failed { message } => write!(f, "the run failed: {message}"),
        }
    }
}

impl NodeChange {
    /// Returns the word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Crashed => "crashed",
            Self::Killed => "killed",
            Self::Restarted => "restarted",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
        }
    }
}

impl DropReason {
    /// Returns the words for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cut => "dropped, the link is cut",
            Self::Loss => "lost by the link",
            Self::Full => "dropped, the queue of the link is full",
            Self::Off => "dropped, the machine is off",
        }
    }
}

impl TaskEnd {
    /// Returns the word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Panicked => "panicked",
            Self::Cancelled => "cancelled",
        }
    }
}
