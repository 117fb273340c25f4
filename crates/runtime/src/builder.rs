//! How a runtime is made.

use std::{fmt, io, path::PathBuf, time::Duration};

use thiserror::Error;
use vigie_detect::{Adaptive, Flavor, Policy, Reactivity, Server};

use crate::{
    context::Enter,
    flavor::{
        hybrid::{self, RESERVES_MAX},
        kernel_level, user_level,
    },
    handle::{Handle, Scheduler},
    kernel_help::KernelHelp,
    metrics::ServeError,
    options::Options,
    parking::alarm::Alarm,
    refusal::{self, Resource},
    runtime::Runtime,
    sync::{Arc, thread},
};

type MakeServer = Box<dyn FnOnce(Flavor, Adaptive) -> io::Result<Server>>;

/// Makes a [`Runtime`].
#[must_use = "a builder does nothing before `build`"]
pub struct RuntimeBuilder {
    flavor: Flavor,
    workers: Option<usize>,
    adaptive: Adaptive,
    readiness_policy: Option<MakeServer>,
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
    /// A host that polls longer than this has forgotten to sleep.
    #[error("`spin_max` is {spin_max:?}: it must be at most 10 ms")]
    SpinMax {
        /// What was asked for.
        spin_max: Duration,
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
    /// The detection server could not be made: it needs an epoll, an eventfd and timerfds.
    #[error(
        "the detection server could not be made{}",
        refusal::cause(Resource::Descriptor, .0)
    )]
    Server(#[source] io::Error),
    /// The metrics cannot be served.
    #[error("the metrics socket could not be made")]
    MetricsSocket(#[source] ServeError),
    /// The kernel gave no thread.
    #[error("a worker's thread could not be made{}", refusal::cause(Resource::Thread, .0))]
    Thread(#[source] io::Error),
}

const WORKERS_MAX: usize = 1024;
const SPIN_MAX: Duration = Duration::from_millis(10);

const STACK_BYTES_MIN: usize = 16 * 1024;

impl Runtime {
    /// Returns a builder with the defaults: hybrid, one worker for each available core.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::new()
    }
}

impl RuntimeBuilder {
    fn new() -> Self {
        Self {
            flavor: Flavor::Hybrid,
            workers: None,
            adaptive: Adaptive::default(),
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
                task_stack_bytes: None,
                task_threads: 8192,
                blocking_threads: 512,
                blocking_keep_alive: Duration::from_secs(10),
                metrics_socket: None,
                is_first_come_first_served: false,
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

    /// Sets the usual poll, 10 µs to 10 s of processor time, above which a task is known to compute for long.
    /// Default 1 ms. When every worker computes for longer than four quanta in one poll, reserve threads also run
    /// tasks of the compute lane that are known to compute for less than one; and a poll of ten quanta is told of as a hog.
    pub fn quantum(mut self, quantum: Duration) -> Self {
        self.options.quantum = quantum;
        self
    }

    /// Sets how long a poll may take, 20 µs to 1 s, before its thread counts as caught in it, and
    /// another one watches for events and serves the tasks that they wake. Default 200 µs. Unlike the
    /// [quantum](Self::quantum), which is about tasks and their processor time, this is about threads and
    /// counts all time. A worker's poll of a task whose polls are usually brief may count later, by 3.2 ms at most,
    /// while the thread seems only to wait for a processor and another worker runs.
    pub fn long_poll(mut self, time: Duration) -> Self {
        self.options.long_poll = time;
        self
    }

    /// Sets how many threads beside the workers of the hybrid flavor may serve tasks woken by events
    /// while every worker is inside a long poll, 0 to 512. Default 512. One is enough while those tasks
    /// are short. One more runs for each task that sleeps in the kernel (a lock, a file, `thread::sleep`),
    /// and takes its thread's place. With none, and where more are needed, tasks wait for the next thread
    /// that switches; a warning names what all threads are caught in, and an error if that is a deadlock.
    ///
    /// A thread takes 2 MiB of addresses for its stack, and some 12 KiB of memory: 512 tasks that block made the
    /// resident memory of a small process 9.7 MiB instead of 3.9 MiB.
    pub fn reserve_threads(mut self, count: usize) -> Self {
        self.options.reserve_threads = count;
        self
    }

    /// Sets what a runtime of the hybrid flavor may ask of the kernel's scheduler while a task hogs its
    /// thread. Default: everything that needs no privilege, see [`KernelHelp`].
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

    /// Sets how long a reserve thread that is not needed is kept. Default 1 s. Of the threads that took the places of
    /// tasks that sleep in the kernel, half go in each such time, down to two, since such tasks often sleep again; other
    /// ones beyond two go after 10 ms, or after this time if that is less.
    pub fn reserve_keep_alive(mut self, time: Duration) -> Self {
        self.options.reserve_keep_alive = time;
        self
    }

    /// Sets how long the reaction lane may run on a thread, about, before a waiting computation has its turn.
    /// Default 1 ms.
    pub fn reaction_slice(mut self, slice: Duration) -> Self {
        self.options.reaction_slice = slice;
        self
    }

    /// Polls the tasks of the user-level flavor in the order in which they became ready, whatever they have used and
    /// whatever made them ready; the other flavors ignore it. For experiments with the scheduler of the paper
    /// [bouge02, §4.1]: an event then waits for every task that is ready. Default false.
    pub fn first_come_first_served(mut self, yes: bool) -> Self {
        self.options.is_first_come_first_served = yes;
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

    /// Sets how much processor time may be spent on being early, for everything that is waited for
    /// without a policy of its own: sockets, timers, channels. Default [`Reactivity::Balanced`].
    ///
    /// A worker with nothing to run polls before it sleeps for at most 10 µs (`Balanced`), 200 µs
    /// (`LowLatency`) or not at all (`LowCpu`), if that has paid lately and nobody else has use for
    /// the core. It never polls twice without an event in between: an idle process sleeps.
    pub fn reactivity(mut self, reactivity: Reactivity) -> Self {
        self.adaptive = Adaptive::new(reactivity);
        self
    }

    /// Sets the longest time that a worker polls before it sleeps, 0 to 10 ms; zero never polls.
    /// Default: that of the [`reactivity`](Self::reactivity), after which this must be called. It
    /// is not polled for longer than a sleep costs: see [`Adaptive::spin_max`].
    pub fn spin_max(mut self, time: Duration) -> Self {
        self.adaptive.spin_max = time;
        self
    }

    /// Serves the runtime's metrics at a Unix socket of this path while it lives, for
    /// `vigie-bench watch` and the like: see [`metrics::serve`](crate::metrics::serve). Default: none.
    pub fn metrics_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.options.metrics_socket = Some(path.into());
        self
    }

    /// Sets who chooses the strategy for the readiness of sockets. Default: [`Adaptive`], as
    /// [`reactivity`](Self::reactivity) says.
    pub fn readiness_policy(mut self, policy: impl Policy) -> Self {
        let make = move |flavor, adaptive| Server::with_policies(flavor, adaptive, policy);
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
        if self.adaptive.spin_max > SPIN_MAX {
            return Err(BuildError::SpinMax { spin_max: self.adaptive.spin_max });
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
            Box::new(|flavor, adaptive| Server::with_policies(flavor, adaptive, adaptive))
        });
        let path = options.metrics_socket.take();
        let mut runtime = match self.flavor {
            Flavor::UserLevel => {
                let server = make_server(self.flavor, self.adaptive).map_err(BuildError::Server)?;
                let enter = |shared| Handle::from(Scheduler::UserLevel(shared)).enter();
                let shared = Arc::new(user_level::Shared::new(server, options, enter));
                Runtime::new(Scheduler::UserLevel(shared).into(), Vec::new())
            }
            Flavor::Hybrid => {
                let server = make_server(self.flavor, self.adaptive).map_err(BuildError::Server)?;
                let alarm = Alarm::new(options.long_poll).map_err(BuildError::Server)?;
                let enter = |shared| Handle::from(Scheduler::Hybrid(shared)).enter();
                let (shared, threads) =
                    hybrid::start(server, alarm, options, enter).map_err(BuildError::Thread)?;
                Runtime::new(Scheduler::Hybrid(shared).into(), threads)
            }
            Flavor::KernelLevel => {
                let server = make_server(self.flavor, self.adaptive).map_err(BuildError::Server)?;
                let enter = |shared| Handle::from(Scheduler::KernelLevel(shared)).enter();
                let (shared, host) =
                    kernel_level::start(server, options, enter).map_err(BuildError::Thread)?;
                Runtime::new(Scheduler::KernelLevel(shared).into(), vec![host])
            }
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
            .field("adaptive", &self.adaptive)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
