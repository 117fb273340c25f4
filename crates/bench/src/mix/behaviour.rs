//! The behaviour of the tasks and clients of a load: a closed set of kinds, each with its sizes.
//!
//! A [`Behaviour`] is data. `tasks.rs` carries it out on an async runtime, or on a kernel
//! thread for each task; the parts that clients play are in `paced.rs` and `closed.rs`. Computation is
//! an amount of work and not a span of the clock, so that it costs the same however often it is
//! interrupted; sizes in µs are what the work takes on an idle core.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::service_time::ServiceTime;

/// One kind of behaviour, with its sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Behaviour {
    /// Tasks that compute without end, and yield after each step, or never.
    Compute {
        /// Number of tasks.
        tasks: u32,
        /// Length of a step.
        step_us: u64,
        /// A task yields after each step.
        yields: bool,
    },
    /// Tasks that sleep in the runtime and compute in turn.
    Resting {
        /// Number of tasks.
        tasks: u32,
        /// The time for which each sleeps.
        rest_us: u64,
        /// The time for which each computes.
        step_us: u64,
    },
    /// Many new tasks at once, each of which computes for one step and ends.
    Burst {
        /// Tasks of a burst.
        tasks: u32,
        /// Length of a task.
        step_us: u64,
        /// Time between two bursts.
        every_us: u64,
        /// A thread outside the runtime spawns them; otherwise a task does that a timer woke.
        is_foreign: bool,
    },
    /// Tasks that make one blocking call after another, and yield now and then.
    Calls {
        /// Number of tasks.
        tasks: u32,
        /// The call.
        call: Call,
        /// The time for which a task makes calls before it yields.
        span_us: u64,
    },
    /// Tasks that share a lock on which the kernel thread sleeps, and await while they hold it.
    Lock {
        /// Number of tasks.
        tasks: u32,
        /// The time for which the holder sleeps in the runtime.
        hold_us: u64,
    },
    /// Pairs of tasks that pass one message to and fro without end.
    PingPong {
        /// Number of pairs.
        pairs: u32,
        /// Computation for each message.
        step_us: u64,
    },
    /// Tasks that sleep in the runtime again and again.
    Timers {
        /// Number of tasks.
        tasks: u32,
        /// The time for which each sleeps.
        period_us: u64,
    },
    /// One task that a timer wakes and that wakes many others at once.
    Broadcast {
        /// Number of tasks that are woken.
        tasks: u32,
        /// Computation of each.
        step_us: u64,
        /// Time between two broadcasts.
        every_us: u64,
    },
    /// Clients that send the next request as soon as the last is answered.
    Flood {
        /// Number of clients, each with a connection.
        clients: u32,
        /// Computation for each request.
        step_us: u64,
        /// Requests of a client that are under way at a time.
        in_flight: u32,
    },
    /// Clients as in [`Flood`](Self::Flood), whose handlers sleep in the kernel.
    BlockingHandlers {
        /// Number of clients, each with a connection.
        clients: u32,
        /// The time for which the handler sleeps.
        sleep_us: u64,
    },
    /// Requests that come by a Poisson process, whether or not earlier ones are answered.
    Service {
        /// Number of connections, of which each request takes one at random.
        connections: u32,
        /// Requests per second.
        per_s: u32,
        /// Computation for each request.
        service: ServiceTime,
    },
    /// Requests as in [`Service`](Self::Service), which pass through tasks that receive from channels.
    Stages {
        /// Number of connections.
        connections: u32,
        /// Requests per second.
        per_s: u32,
        /// The stages; a request takes one task of each.
        stages: Vec<Stage>,
    },
    /// Requests whose handler wakes another task and computes then; the time is the other task's.
    WakeThenCompute {
        /// Requests per second.
        per_s: u32,
        /// The time for which the handler computes.
        step_us: u64,
    },
    /// New connections, each with one request.
    Connections {
        /// Connections per second.
        per_s: u32,
    },
}

/// Tasks that receive from channels, each from its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stage {
    /// Number of tasks.
    pub(crate) tasks: u32,
    /// Computation for each message.
    pub(crate) step_us: u64,
}

impl Stage {
    pub(crate) const fn new(tasks: u32, step_us: u64) -> Self {
        Self { tasks, step_us }
    }
}

/// A call that blocks, or takes its time in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    /// `std::thread::sleep`.
    Sleep {
        /// For how long.
        us: u64,
    },
    /// Opens this program's own file and reads 256 KiB of it.
    File,
    /// Reads 32 KiB of `/dev/urandom`.
    Urandom,
    /// Starts `/bin/true` and waits for it.
    Exec,
    /// Allocates 64 times 16 KiB, writes to each page, and frees all.
    Allocate,
}

impl Behaviour {
    /// Tells whether tasks of this kind sleep in the kernel, so that each costs a thread.
    pub(crate) const fn blocks(&self) -> bool {
        match self {
            Self::Calls { call, .. } => !matches!(call, Call::Allocate | Call::Urandom),
            Self::Lock { .. } | Self::BlockingHandlers { .. } => true,
            _ => false,
        }
    }

    /// Tells whether the work of this kind counts as computation.
    pub(crate) const fn computes(&self) -> bool {
        matches!(self, Self::Compute { .. } | Self::Resting { .. } | Self::Burst { .. })
    }

    /// Returns how many connections its clients hold open.
    pub(crate) const fn connections(&self) -> u32 {
        match self {
            Self::Flood { clients, .. } | Self::BlockingHandlers { clients, .. } => *clients,
            Self::Service { connections, .. } | Self::Stages { connections, .. } => *connections,
            Self::WakeThenCompute { .. } => 1,
            _ => 0,
        }
    }
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute { tasks, step_us, yields: true } => {
                write!(f, "{tasks} tasks that compute and yield every {}", us(*step_us))
            }
            Self::Compute { tasks, .. } => write!(f, "{tasks} tasks that compute and never yield"),
            Self::Resting { tasks, rest_us, step_us } => {
                let (rest, step) = (us(*rest_us), us(*step_us));
                write!(f, "{tasks} tasks that sleep {rest} and compute {step} in turn")
            }
            Self::Burst { tasks, step_us, every_us, is_foreign } => {
                let (step, every) = (us(*step_us), us(*every_us));
                let by = if *is_foreign { "a foreign thread" } else { "a task" };
                write!(f, "{tasks} new tasks of {step} from {by} every {every}")
            }
            Self::Calls { tasks, call, span_us } => {
                write!(f, "{tasks} tasks that {call} and yield every {}", us(*span_us))
            }
            Self::Lock { tasks, hold_us } => {
                let hold = us(*hold_us);
                write!(f, "{tasks} tasks that share a blocking lock and await {hold} as its holder")
            }
            Self::PingPong { pairs, step_us } => {
                write!(f, "{pairs} pairs that play ping-pong with {} a message", us(*step_us))
            }
            Self::Timers { tasks, period_us } => {
                write!(f, "{tasks} tasks with timers of {}", us(*period_us))
            }
            Self::Broadcast { tasks, step_us, every_us } => {
                let (step, every) = (us(*step_us), us(*every_us));
                write!(f, "a broadcast to {tasks} tasks of {step} every {every}")
            }
            _ => self.fmt_clients(f),
        }
    }
}

impl Behaviour {
    /// Writes what clients do, in words.
    fn fmt_clients(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flood { clients, step_us, in_flight } => {
                write!(f, "{clients} clients that flood with requests of {}", us(*step_us))?;
                if *in_flight > 1 { write!(f, ", {in_flight} in flight") } else { Ok(()) }
            }
            Self::BlockingHandlers { clients, sleep_us } => {
                write!(f, "{clients} clients whose handlers block for {}", us(*sleep_us))
            }
            Self::Service { connections, per_s, service } => {
                write!(f, "{per_s} requests/s of {service} on {connections} connections")
            }
            Self::Stages { connections, per_s, stages } => {
                let stages: Vec<_> = stages
                    .iter()
                    .map(|Stage { tasks, step_us }| match tasks {
                        1 => format!("an actor of {}", us(*step_us)),
                        _ => format!("one of {tasks} actors of {}", us(*step_us)),
                    })
                    .collect();
                let path = stages.join(", ");
                write!(f, "{per_s} requests/s on {connections} connections through {path}")
            }
            Self::WakeThenCompute { per_s, step_us } => {
                let step = us(*step_us);
                write!(f, "{per_s} times/s a task wakes another and computes {step}")
            }
            Self::Connections { per_s } => write!(f, "{per_s} new connections/s"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sleep { us: time } => write!(f, "block in thread::sleep({})", us(*time)),
            Self::File => f.write_str("read files"),
            Self::Urandom => f.write_str("read /dev/urandom"),
            Self::Exec => f.write_str("fork and exec /bin/true"),
            Self::Allocate => f.write_str("allocate and free"),
        }
    }
}

/// Shows microseconds with their unit.
fn us(us: u64) -> String {
    format!("{:?}", Duration::from_micros(us))
}
