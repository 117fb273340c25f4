//! Resources: servers with queues.

use std::collections::VecDeque;
use std::fmt;

use super::job::ResourceJob;

/// A part of the node that serves one packet or message at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// The link on which messages arrive, by port.
    Receive(u16),
    /// The bus of a full-duplex node into the host's memory, or the half-duplex bus.
    BusIn,
    /// The bus of a full-duplex node out of the host's memory.
    BusOut,
    /// The host's processor.
    HostProcessor,
    /// The interface's processor.
    NicProcessor,
    /// The link on which messages leave, by port.
    Send(u16),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive(port) => write!(f, "receive link {port}"),
            Self::BusIn => f.write_str("bus in"),
            Self::BusOut => f.write_str("bus out"),
            Self::HostProcessor => f.write_str("host processor"),
            Self::NicProcessor => f.write_str("interface processor"),
            Self::Send(port) => write!(f, "send link {port}"),
        }
    }
}

/// A server with its queues: urgent jobs first, each queue in order of arrival.
#[derive(Debug, Default)]
pub(super) struct ResourceServer {
    urgent: VecDeque<(ResourceJob, u64)>,
    queue: VecDeque<(ResourceJob, u64)>,
    serving: Option<ResourceJob>,
    pub(super) busy_ns: u64,
}

impl ResourceServer {
    /// Queues a job of this length.
    pub(super) fn enter(&mut self, job: ResourceJob, length_ns: u64) {
        let queue = if job.is_urgent() { &mut self.urgent } else { &mut self.queue };
        queue.push_back((job, length_ns));
    }

    /// Starts the next job if there is one and the server is free, and returns its length.
    pub(super) fn begin(&mut self) -> Option<u64> {
        if self.serving.is_some() {
            return None;
        }
        let (job, length_ns) = self.urgent.pop_front().or_else(|| self.queue.pop_front())?;
        self.serving = Some(job);
        self.busy_ns += length_ns;
        Some(length_ns)
    }

    /// Ends the current job.
    pub(super) fn end(&mut self) -> Option<ResourceJob> {
        self.serving.take()
    }
}
