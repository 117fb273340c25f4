//! How a runtime is made.

use std::{fmt, io, time::Duration};

use thiserror::Error;
use vigie_detect::{Adaptive, Flavor, Policy, Server};

use crate::{
    flavor::{hybrid, kernel_level, user_level},
    handle::{Handle, Scheduler},
    runtime::Runtime,
    sync::{Arc, thread},
};

/// What the flavors are given.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) workers: usize,
    pub(crate) quantum: Duration,
    pub(crate) reaction_slice: Duration,
    pub(crate) thread_name: String,
    pub(crate) task_stack_bytes: Option<usize>,
    pub(crate) task_threads: usize,
    pub(crate) blocking_threads: usize,
    pub(crate) blocking_keep_alive: Duration,
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
    /// There must be room for one closure.
    #[error("`blocking_threads` is zero: it must be at least 1")]
    BlockingThreads,
    /// There must be room for one task.
    #[error("`task_threads` is zero: it must be at least 1")]
    TaskThreads,
    /// A task needs some stack.
    #[error("`task_stack_bytes` is {bytes}: it must be at least {least}")]
    TaskStack {
        /// What was asked for.
        bytes: usize,
        /// The smallest stack.
        least: usize,
    },
    /// The detection server could not be made: it needs an epoll, an eventfd and a timerfd.
    #[error(
        "the detection server could not be made; `ulimit -n` says how many descriptors there are"
    )]
    Server(#[source] io::Error),
    /// The kernel gave no thread.
    #[error("a worker's thread could not be made; `ulimit -u` says how many there may be")]
    Thread(#[source] io::Error),
}

const WORKERS_MAX: usize = 1024;

const STACK_BYTES_MIN: usize = 16 * 1024;

impl RuntimeBuilder {
    pub(crate) fn new() -> Self {
        Self {
            flavor: Flavor::Hybrid,
            workers: None,
            readiness_policy: None,
            options: Options {
                workers: 1,
                quantum: Duration::from_millis(1),
                reaction_slice: Duration::from_millis(1),
                thread_name: "vigie-worker".to_owned(),
                task_stack_bytes: None,
                task_threads: 8192,
                blocking_threads: 512,
                blocking_keep_alive: Duration::from_secs(10),
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

    /// Sets the stack of each task's thread in the kernel-level flavor, in bytes, at least 16 KiB. Default:
    /// that of the standard library, 2 MiB, of which only what is used takes memory.
    pub fn task_stack_bytes(mut self, bytes: usize) -> Self {
        self.options.task_stack_bytes = Some(bytes);
        self
    }

    /// Sets how many tasks the kernel-level flavor has at a time, each on a thread, at least 1; further
    /// ones are cancelled, and their handles say [why](crate::JoinError::is_refused). Default 8192: half
    /// of what the kernel's default bound on memory mappings allows (`vm.max_map_count`, four for each
    /// thread), beyond which a thread that starts ends the process.
    pub fn task_threads(mut self, count: usize) -> Self {
        self.options.task_threads = count;
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
        if options.blocking_threads == 0 {
            return Err(BuildError::BlockingThreads);
        }
        if options.task_threads == 0 {
            return Err(BuildError::TaskThreads);
        }
        if let Some(bytes) = options.task_stack_bytes
            && bytes < STACK_BYTES_MIN
        {
            return Err(BuildError::TaskStack { bytes, least: STACK_BYTES_MIN });
        }
        let make_server = self.readiness_policy.unwrap_or_else(|| {
            Box::new(|flavor| Server::with_readiness_policy(flavor, Adaptive::default()))
        });
        match self.flavor {
            Flavor::UserLevel => {
                let server = make_server(self.flavor).map_err(BuildError::Server)?;
                let shared = Arc::new(user_level::Shared::new(server, options));
                let handle = Handle { scheduler: Scheduler::UserLevel(shared) };
                Ok(Runtime::new(handle, Vec::new()))
            }
            Flavor::Hybrid => {
                let server = make_server(self.flavor).map_err(BuildError::Server)?;
                let (shared, threads) =
                    hybrid::start(server, options).map_err(BuildError::Thread)?;
                Ok(Runtime::new(Handle { scheduler: Scheduler::Hybrid(shared) }, threads))
            }
            Flavor::KernelLevel => {
                let server = make_server(self.flavor).map_err(BuildError::Server)?;
                let (shared, host) =
                    kernel_level::start(server, options).map_err(BuildError::Thread)?;
                let handle = Handle { scheduler: Scheduler::KernelLevel(shared) };
                Ok(Runtime::new(handle, vec![host]))
            }
        }
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
