//! The messages that a client sends, and its measurements.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spacing::Spacing;
use crate::error::BenchError;
use crate::host::Priority;
use crate::process::{Child, Message, Role};
use crate::report::{Amount, REACTION, Repetition, Turn};
use crate::statistics::Samples;

/// How much longer than a single answer the parent waits for a sign of life: a client reports its
/// samples in batches, and every connection is tried once before it begins.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(30);

/// One message in flight over one or many TCP connections, answered before the next leaves.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
/// use vigie_bench::client::PingPong;
///
/// vigie_bench::child::maybe_run_child();
/// let echoes = PingPong::new("127.0.0.1:7".parse()?)
///     .samples(100)
///     .spacing(Duration::from_millis(1), Duration::from_millis(4))
///     .run(&mut |_done| ())?;
/// assert_eq!(echoes.samples.len(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use = "a plan sends nothing before `run`"]
pub struct PingPong {
    pub(super) address: SocketAddr,
    pub(super) connections: u32,
    pub(super) samples: u32,
    pub(super) budget: Duration,
    pub(super) spacing: Spacing,
    pub(super) timeout: Duration,
    pub(super) seed: u64,
    pub(super) task: Option<RemoteTask>,
    /// Each message has a connection of its own.
    pub(super) is_fresh: bool,
    /// The client asks for the answer again and again, instead of sleeping until it comes.
    pub(super) is_spinning: bool,
}

impl Role for PingPong {
    const NAME: &'static str = "client";
}

/// A compute task that the client has the server run while it sends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RemoteTask {
    pub(crate) control: SocketAddr,
    pub(crate) steps: u32,
    pub(crate) step: Duration,
}

impl PingPong {
    /// Plans 200 messages over one connection to the echo server at `address`, 1 to 4 ms apart.
    pub const fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connections: 1,
            samples: 200,
            budget: Duration::MAX,
            spacing: Spacing { least: Duration::from_millis(1), span: Duration::from_millis(3) },
            timeout: Duration::from_secs(10),
            seed: 0,
            task: None,
            is_fresh: false,
            is_spinning: false,
        }
    }

    /// Sets how many connections are open; each message takes one at random. Default: 1.
    pub const fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Sets how many messages are sent at most. Default: 200.
    pub const fn samples(mut self, samples: u32) -> Self {
        self.samples = samples;
        self
    }

    /// Sets how long messages are sent at most; the last one is always waited for. Default: no limit.
    pub const fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the pauses between an answer and the next message: evenly spread over
    /// `[least, least + span)`. Default: 1 ms and 3 ms.
    pub const fn spacing(mut self, least: Duration, span: Duration) -> Self {
        self.spacing = Spacing { least, span };
        self
    }

    /// Sets how long an answer may take before the run fails. Default: 10 s.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the seed of pauses and choices. Default: 0.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Opens a connection for each message, and closes it after the echo: the time of a sample begins
    /// before the connection is asked for. Default: all connections stay open.
    pub const fn on_new_connections(mut self) -> Self {
        self.is_fresh = true;
        self
    }

    /// Waits for each answer by polling, so that the client's own wake-up is not part of the figure.
    /// The client then has ordinary priority: a real-time process that never sleeps is stopped by the
    /// kernel for a part of each second. Default: the client sleeps.
    pub const fn spinning(mut self) -> Self {
        self.is_spinning = true;
        self
    }

    /// Has the server run a compute task of `steps` steps, and sends until it is over instead of a
    /// number of messages. `control` is the server's [control address](crate::server::Server::control).
    pub const fn until_completed(
        mut self,
        control: SocketAddr,
        steps: u32,
        step: Duration,
    ) -> Self {
        self.task = Some(RemoteTask { control, steps, step });
        self
    }

    /// Starts the client process, waits for its end, and returns its measurements. `on_progress` is
    /// called now and then with the number of echoes so far.
    ///
    /// # Errors
    /// [`BenchError::Failed`] if a message was not echoed in time ([`Failure::NoEcho`](crate::Failure::NoEcho)) or
    /// the server could not be reached; other variants if the process itself fails.
    pub fn run(&self, on_progress: &mut dyn FnMut(usize)) -> Result<Echoes, BenchError> {
        let timeout = self.timeout.saturating_add(TIMEOUT_MARGIN);
        let (mut child, priority) = Child::start_ready(self, timeout)?;
        let mut echoes = Echoes { sent: 0, samples: Samples::new(), priority, completed: None };
        loop {
            match child.next(timeout)? {
                Message::RoundTrips { nanoseconds } => {
                    echoes.samples.extend(nanoseconds);
                    on_progress(echoes.samples.len());
                }
                Message::Sent { messages } => echoes.sent = messages,
                Message::Completed { nanoseconds } => {
                    echoes.completed = Some(Duration::from_nanos(nanoseconds));
                }
                Message::Finished => return Ok(echoes),
                other => return Err(child.unexpected(&other)),
            }
        }
    }
}

impl Amount {
    /// Plans a client of a server for one turn, that sends at most `samples` messages in all turns.
    pub(crate) fn client(&self, server: SocketAddr, samples: u32, turn: &Turn<'_>) -> PingPong {
        let client = PingPong::new(server).samples(samples.div_ceil(self.rounds()));
        client.budget(self.of_turn()).seed(turn.seed)
    }
}

impl Turn<'_> {
    /// Has a client send, and shows how far it is.
    ///
    /// # Errors
    /// Those of [`PingPong::run`].
    pub(crate) fn run(&self, client: &PingPong) -> Result<Echoes, BenchError> {
        client.run(&mut |done| self.progress.part(done, client.samples as usize))
    }
}

impl Repetition {
    /// Begins with what a client has measured.
    pub(crate) fn of(echoes: Echoes) -> Self {
        Self::new(echoes.priority).samples(REACTION, echoes.samples)
    }
}

/// A client's measurements.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Echoes {
    /// Messages that were sent.
    pub sent: u64,
    /// Time from before each message was written until its echo was read.
    pub samples: Samples,
    /// How the client was scheduled.
    pub priority: Priority,
    /// How long the server's compute task took by its own clock, if there was one.
    pub completed: Option<Duration>,
}
