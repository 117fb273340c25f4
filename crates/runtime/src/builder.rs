//! How a runtime is made.

use std::{fmt, io, path::PathBuf, time::Duration};

use thiserror::Error;
use vigie_detect::{Adaptive, Flavor, Policy, Server};

use crate::{
    flavor::{
        hybrid::{self, RESERVES_MAX},
        user_level,
    },
    handle::{Handle, Scheduler},
    kernel_help::KernelHelp,
    metrics::ServeError,
    runtime::Runtime,
    sync::{Arc, thread},
};

/// What the flavors are given.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) workers: usize,
    pub(crate) quantum: Duration,
    pub(crate) long_poll: Duration,
    pub(crate) reserve_threads: usize,
    pub(crate) reserve_keep_alive: Duration,
    pub(crate) kernel_help: KernelHelp,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) reaction_slice: Duration,
    pub(crate) thread_name: String,
    pub(crate) blocking_threads: usize,
    pub(crate) blocking_keep_alive: Duration,
    pub(crate) metrics_socket: Option<PathBuf>,
}

/// Makes a [`Runtime`].
#[must_use = "a builder does nothing before `build`"]
pub struct RuntimeBuilder {
    flavor: Flavor,
    workers: Option<usize>,
    readiness_policy: Option<Box<dyn FnOnce(Flavor) -> io::Result<Server>>>,
    options: Options,
}

/// Why a runtime could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There must be a worker.
    #[error("`workers` is {workers}: it must be between 1 and {limit}")]
    Workers {
        /// What was asked for.
        workers: usize,
        /// The largest number of workers.
        limit: usize,
    },
    /// The quantum must be long enough to be measured.
    #[error("`quantum` is {quantum:?}: it must be between 10 µs and 10 s")]
    Quantum {
        /// What was asked for.
        quantum: Duration,
    },
    /// A long poll must be long enough to be noticed, and short enough to matter.
    #[error("`long_poll` is {long_poll:?}: it must be between 20 µs and 1 s")]
    LongPoll {
        /// What was asked for.
        long_poll: Duration,
    },
    /// Too many reserve threads.
    #[error("`reserve_threads` is {count}: it must be at most {limit}")]
    ReserveThreads {
        /// What was asked for.
        count: usize,
        /// The largest number of reserve threads.
        limit: usize,
    },
    /// There must be room for one closure.
    #[error("`blocking_threads` is zero: it must be at least 1")]
    BlockingThreads,
    /// The flavor does not exist yet.
    #[error("the flavor {flavor} is not available in this version: use hybrid or user-level")]
    Flavor {
        /// What was asked for.
        flavor: Flavor,
    },
    /// The detection server could not be made: it needs an epoll, an eventfd and timerfds.
    #[error(
        "the detection server could not be made; `ulimit -n` says how many descriptors there are"
    )]
    Server(#[source] io::Error),
    /// The metrics cannot be served.
    #[error("the metrics socket could not be made")]
    MetricsSocket(#[source] ServeError),
    /// The kernel gave no thread.
    #[error("a worker's thread could not be made; `ulimit -u` says how many there may be")]
    Thread(#[source] io::Error),
}

const WORKERS_MAX: usize = 1024;

impl RuntimeBuilder {
    pub(crate) fn new() -> Self {
        Self {
            flavor: Flavor::Hybrid,
            workers: None,
            readiness_policy: None,
            options: Options {
                workers: 1,
                quantum: Duration::from_millis(1),
                long_poll: Duration::from_micros(200),
                reserve_threads: RESERVES_MAX,
                reserve_keep_alive: Duration::from_secs(1),
                kernel_help: KernelHelp::default(),
                shutdown_timeout: Duration::from_secs(10),
                reaction_slice: Duration::from_millis(1),
                thread_name: "vigie-worker".to_owned(),
                blocking_threads: 512,
                blocking_keep_alive: Duration::from_secs(10),
                metrics_socket: None,
            },
        }
    }

    /// Sets how tasks are scheduled. Default [`Flavor::Hybrid`].
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.flavor = flavor;
        self
    }

    /// Sets the number of worker threads of the hybrid flavor, 1 to 1024. Default: the parallelism
    /// that is available to the process. The user-level flavor has one thread, whatever this says.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    /// Sets how long a poll may take, 10 µs to 10 s, before its task counts as computing and gives
    /// way to tasks woken by events. Default 1 ms.
    pub fn quantum(mut self, quantum: Duration) -> Self {
        self.options.quantum = quantum;
        self
    }

    /// Sets how long a poll may take, 20 µs to 1 s, before its thread counts as caught in it, and
    /// another one watches for events and serves the tasks that they wake. Default 200 µs. Unlike the
    /// [quantum](Self::quantum), which judges tasks by their processor time, this is about threads and
    /// counts all time.
    pub fn long_poll(mut self, time: Duration) -> Self {
        self.options.long_poll = time;
        self
    }

    /// Sets how many threads beside the workers of the hybrid flavor may serve tasks woken by events
    /// while every worker is inside a long poll, 0 to 64. Default 64. One is enough while those tasks
    /// are short; one more runs for each of them that is inside a long poll itself. With none, events
    /// wait for a worker's next switch.
    pub fn reserve_threads(mut self, count: usize) -> Self {
        self.options.reserve_threads = count;
        self
    }

    /// Sets what the runtime may ask of the kernel's scheduler while a task hogs its thread. Default:
    /// everything that needs no privilege, see [`KernelHelp`]. The timer signal may end blocking calls
    /// of foreign code inside a long poll with `EINTR`, where the kernel cannot restart them.
    pub fn kernel_help(mut self, help: KernelHelp) -> Self {
        self.options.kernel_help = help;
        self
    }

    /// Sets how long dropping the runtime waits for tasks that are inside a poll. Default 10 s. After
    /// that their threads are left behind, which is reported as an error; see
    /// [`Runtime::shutdown_timeout`](crate::Runtime::shutdown_timeout).
    pub fn shutdown_timeout(mut self, time: Duration) -> Self {
        self.options.shutdown_timeout = time;
        self
    }

    /// Sets how long a reserve thread that is not needed is kept. Default 1 s.
    pub fn reserve_keep_alive(mut self, time: Duration) -> Self {
        self.options.reserve_keep_alive = time;
        self
    }

    /// Sets how long tasks woken by events may run before a waiting computation has its turn.
    /// Default 1 ms.
    pub fn reaction_slice(mut self, slice: Duration) -> Self {
        self.options.reaction_slice = slice;
        self
    }

    /// Sets the name of the worker threads, to which their number is added. Default `vigie-worker`.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.options.thread_name = name.into();
        self
    }

    /// Sets how many closures of `spawn_blocking` run at a time, at least 1. Default 512.
    pub fn blocking_threads(mut self, count: usize) -> Self {
        self.options.blocking_threads = count;
        self
    }

    /// Sets how long a blocking thread without work is kept. Default 10 s.
    pub fn blocking_keep_alive(mut self, time: Duration) -> Self {
        self.options.blocking_keep_alive = time;
        self
    }

    /// Serves the runtime's metrics at a Unix socket of this path while it lives, for
    /// `vigie-bench watch` and the like: see [`metrics::serve`](crate::metrics::serve). Default: none.
    pub fn metrics_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.options.metrics_socket = Some(path.into());
        self
    }

    /// Sets who chooses the strategy for the readiness of sockets. Default [`Adaptive`].
    pub fn readiness_policy(mut self, policy: impl Policy) -> Self {
        let make = move |flavor| Server::with_readiness_policy(flavor, policy);
        self.readiness_policy = Some(Box::new(make));
        self
    }

    /// Makes the runtime and, in the hybrid flavor, its threads.
    ///
    /// # Errors
    /// [`BuildError`]: an option out of range, or a resource that the kernel did not give.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let mut options = self.options;
        options.workers = self
            .workers
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, std::num::NonZero::get));
        if !(1..=WORKERS_MAX).contains(&options.workers) {
            return Err(BuildError::Workers { workers: options.workers, limit: WORKERS_MAX });
        }
        if !(Duration::from_micros(10)..=Duration::from_secs(10)).contains(&options.quantum) {
            return Err(BuildError::Quantum { quantum: options.quantum });
        }
        if !(Duration::from_micros(20)..=Duration::from_secs(1)).contains(&options.long_poll) {
            return Err(BuildError::LongPoll { long_poll: options.long_poll });
        }
        if options.reserve_threads > RESERVES_MAX {
            return Err(BuildError::ReserveThreads {
                count: options.reserve_threads,
                limit: RESERVES_MAX,
            });
        }
        if options.blocking_threads == 0 {
            return Err(BuildError::BlockingThreads);
        }
        let make_server = self.readiness_policy.unwrap_or_else(|| {
            Box::new(|flavor| Server::with_readiness_policy(flavor, Adaptive::default()))
        });
        let path = options.metrics_socket.take();
        let mut runtime = match self.flavor {
            Flavor::UserLevel => {
                let server = make_server(self.flavor).map_err(BuildError::Server)?;
                let shared = Arc::new(user_level::Shared::new(server, options));
                let handle = Handle { scheduler: Scheduler::UserLevel(shared) };
                Runtime::new(handle, Vec::new())
            }
            Flavor::Hybrid => {
                let server = make_server(self.flavor).map_err(BuildError::Server)?;
                let (shared, threads) = hybrid::start(server, options)?;
                Runtime::new(Handle { scheduler: Scheduler::Hybrid(shared) }, threads)
            }
            flavor => return Err(BuildError::Flavor { flavor }),
        };
        if let Some(path) = path {
            runtime.serve_metrics(&path).map_err(BuildError::MetricsSocket)?;
        }
        Ok(runtime)
    }
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("flavor", &self.flavor)
            .field("workers", &self.workers)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
