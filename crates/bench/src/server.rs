//! The server under test, in a process of its own.
//!
//! [`ServerPlan`] says which system serves which load, [`ServerPlan::start`] starts the process and
//! returns once it listens, and dropping the [`Server`] kills it. What the process does is one text
//! for all systems (`workload`), so that they differ in their scheduler only.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::host::Usage;
use crate::inside::Counts;
use crate::process::{Child, Role};
use crate::report::Amount;
use crate::schedulers::System;

/// Size of a [`LoadCommand`] on the control connection.
pub(crate) const COMMAND_BYTES: usize = 12;

/// A server: which system, with which load beside the echo.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use = "a plan serves nothing before `start`"]
pub struct ServerPlan {
    pub(crate) system: System,
    pub(crate) workers: usize,
    pub(crate) compute: u32,
    pub(crate) yield_every: YieldEvery,
    pub(crate) connections: u32,
    pub(crate) has_control: bool,
    /// What compute tasks do between two steps, if they do not yield.
    pub(crate) rest: Option<Duration>,
    /// Whether compute tasks begin only when all connections are open.
    pub(crate) is_compute_last: bool,
    /// How long a request that asks for it is computed, if this is a service.
    pub(crate) request: Option<Duration>,
    /// The control group that the process joins before it builds the runtime.
    pub(crate) group: Option<PathBuf>,
}

impl Role for ServerPlan {
    const NAME: &'static str = "server";
}

impl ServerPlan {
    /// Plans an echo server for one connection, on two worker threads, with nothing beside it.
    pub const fn new(system: System) -> Self {
        Self {
            system,
            workers: 2,
            compute: 0,
            yield_every: YieldEvery::Never,
            connections: 1,
            has_control: false,
            rest: None,
            is_compute_last: false,
            request: None,
            group: None,
        }
    }

    /// Sets how many threads run tasks, where the system has a choice. Default: 2, as many
    /// processors as the machine of [bouge02, §4] had.
    pub const fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Sets how many compute tasks run all the time, and how often each yields. Default: none.
    pub const fn compute(mut self, count: u32, yield_every: YieldEvery) -> Self {
        self.compute = count;
        self.yield_every = yield_every;
        self
    }

    /// Sets how many connections are accepted; after that the server stops listening, so that no
    /// pending accept disturbs the measurement. Default: 1.
    pub const fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Adds a control connection on which a client starts compute tasks and learns their time.
    pub const fn control(mut self) -> Self {
        self.has_control = true;
        self
    }

    /// Has each compute task sleep for `rest` between two steps, instead of yielding. Default: it yields.
    pub const fn resting(mut self, rest: Duration) -> Self {
        self.rest = Some(rest);
        self
    }

    /// Starts the compute tasks only when all connections are open: opening a thousand of them beside
    /// compute tasks would take a slow system hours. Default: they start at once.
    pub const fn compute_last(mut self) -> Self {
        self.is_compute_last = true;
        self
    }

    /// Accepts connections without end, and computes for `step` on each message that asks for it
    /// before it is echoed. Default: [`connections`](Self::connections), and echo alone.
    pub const fn service(mut self, step: Duration) -> Self {
        self.request = Some(step);
        self
    }

    /// Has the process join a control group before the runtime is built.
    pub(crate) fn in_group(mut self, group: PathBuf) -> Self {
        self.group = Some(group);
        self
    }

    /// Starts the server process and waits until it listens.
    ///
    /// # Errors
    /// [`BenchError::Failed`] with the server's own reason, or another variant if the process does
    /// not get that far.
    pub fn start(&self) -> Result<Server, BenchError> {
        self.start_under(&[])
    }

    /// Starts the server process under a tracer whose command line is `wrapper`.
    pub(crate) fn start_under(&self, wrapper: &[String]) -> Result<Server, BenchError> {
        let mut child = Child::start_under(wrapper, self)?;
        let (process, echo, control) = child.listening()?;
        Ok(Server { child, process, echo, control })
    }
}

impl Amount {
    /// Plans a server of `system`.
    pub(crate) const fn server(&self, system: System) -> ServerPlan {
        ServerPlan::new(system).workers(self.workers())
    }
}

/// A running server process; dropping it kills it.
#[derive(Debug)]
#[must_use = "dropping a server kills it"]
pub struct Server {
    child: Child,
    process: u32,
    echo: SocketAddr,
    control: Option<SocketAddr>,
}

impl Server {
    /// Returns where the server echoes.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.echo
    }

    /// Returns the process that serves.
    #[must_use]
    pub const fn process(&self) -> u32 {
        self.process
    }

    /// Asks the process for the time and the work that it has spent so far.
    ///
    /// # Errors
    /// [`BenchError::Silent`] or [`BenchError::Ended`] if it does not answer.
    pub fn usage(&mut self) -> Result<Usage, BenchError> {
        self.child.usage()
    }

    /// Does something, and returns with what came of it what the process has used meanwhile.
    pub(crate) fn spent<T>(
        &mut self,
        run: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, Usage), BenchError> {
        self.child.spent(run)
    }

    /// Asks the process what its runtime has counted so far; nothing if that is not vigie's.
    pub(crate) fn counts(&mut self) -> Result<Option<Counts>, BenchError> {
        self.child.counts()
    }

    /// Returns where clients start compute tasks, if the plan asked for it.
    #[must_use]
    pub const fn control(&self) -> Option<SocketAddr> {
        self.control
    }
}

/// The bit of a message that asks a service to compute before it echoes; counters of messages never
/// reach it.
pub(crate) const COMPUTE_FIRST: u64 = 1 << 63;

/// Tells whether a message asks a service to compute.
pub(crate) fn asks_to_compute(message: [u8; 8]) -> bool {
    u64::from_le_bytes(message) & COMPUTE_FIRST != 0
}

/// What a client writes on the control connection: run this many steps, each of this length. The
/// server answers with eight bytes: the nanoseconds that it took, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadCommand {
    pub(crate) steps: u32,
    pub(crate) step: Duration,
}

impl LoadCommand {
    pub(crate) fn to_bytes(self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[..4].copy_from_slice(&self.steps.to_le_bytes());
        bytes[4..].copy_from_slice(&crate::clock::nanoseconds(self.step).to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; COMMAND_BYTES]) -> Self {
        let [a, b, c, d, step @ ..] = bytes;
        Self {
            steps: u32::from_le_bytes([a, b, c, d]),
            step: Duration::from_nanos(u64::from_le_bytes(step)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_its_bytes() {
        // Goal: client and server agree on the control connection. Method: there and back.
        let command = LoadCommand { steps: 100_000, step: Duration::from_micros(5) };
        assert_eq!(LoadCommand::from_bytes(command.to_bytes()), command);
    }
}
