//! Building a runtime.

use std::{error::Error, fmt, io, path::PathBuf, time::Duration};

use vigie_detect::{Adaptive, Flavor, Policy, Reactivity, Server, refuse_in_simulation};

use crate::{
    context::Enter,
    flavor::{
        hybrid::{self, RESERVES_MAX},
        kernel_level, simulated, user_level,
    },
    handle::{Handle, Scheduler},
    kernel_help::KernelHelp,
    metrics::ServeError,
    options::Options,
    parking::watchdog::Watchdog,
    refusal::{self, Resource},
    runtime::Runtime,
    sync::{Arc, thread},
    tokio_context::TokioRuntime,
};

type MakeServer = Box<dyn FnOnce(Flavor, Adaptive) -> io::Result<Server>>;

/// Configures and builds a [`Runtime`].
#[must_use = "a builder does nothing before `build`"]
pub struct RuntimeBuilder {
    flavor: Flavor,
    workers: Option<usize>,
    adaptive: Adaptive,
    readiness_policy: Option<MakeServer>,
    options: Options,
    has_tokio_context: bool,
}

/// The reason why a runtime could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// At least one worker is needed.
    Workers {
        /// The requested number.
        workers: usize,
        /// The largest number of workers.
        limit: usize,
    },
    /// The quantum must be long enough to be measured.
    Quantum {
        /// The requested quantum.
        quantum: Duration,
    },
    /// A long poll must be long enough to be noticed and short enough to matter.
    LongPoll {
        /// The requested length.
        long_poll: Duration,
    },
    /// Too many reserve threads.
    ReserveThreads {
        /// The requested number.
        count: usize,
        /// The largest number of reserve threads.
        limit: usize,
    },
    /// A worker must not spin for longer than 10 ms before it sleeps.
    SpinMax {
        /// The requested time.
        spin_max: Duration,
    },
    /// The name prefix of the threads is none.
    ThreadName,
    /// At least one blocking thread is needed.
    BlockingThreads,
    /// At least one task thread is needed.
    TaskThreads,
    /// A task needs some stack, and no thread has that much.
    TaskStack {
        /// The requested size.
        bytes: usize,
        /// The smallest stack.
        least: usize,
        /// The largest stack.
        most: usize,
    },
    /// The detection server could not be created: it needs an epoll instance, an eventfd and timerfds.
    Server(io::Error),
    /// The metrics socket could not be created.
    MetricsSocket(ServeError),
    /// The option has no meaning in a simulation.
    NotSimulated {
        /// The name of the option.
        option: &'static str,
    },
    /// The tokio runtime of `tokio_context` could not be started.
    Tokio(io::Error),
    /// The kernel refused to create a thread.
    Thread(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { workers, limit } => {
                write!(f, "`workers` is {workers}: it must be between 1 and {limit}")
            }
            Self::Quantum { quantum } => {
                write!(f, "`quantum` is {quantum:?}: it must be between 10 µs and 10 s")
            }
            Self::LongPoll { long_poll } => {
                write!(f, "`long_poll` is {long_poll:?}: it must be between 20 µs and 1 s")
            }
            Self::ReserveThreads { count, limit } => {
                write!(f, "`reserve_threads` is {count}: it must be at most {limit}")
            }
            Self::SpinMax { spin_max } => {
                write!(f, "`spin_max` is {spin_max:?}: it must be at most 10 ms")
            }
            Self::ThreadName => {
                f.write_str("`thread_name` contains a NUL byte, which no thread's name can have")
            }
            Self::BlockingThreads => {
                f.write_str("`blocking_threads` is zero: it must be at least 1")
            }
            Self::TaskThreads => f.write_str("`task_threads` is zero: it must be at least 1"),
            Self::TaskStack { bytes, least, most } => {
                write!(f, "`task_stack_bytes` is {bytes}: it must be between {least} and {most}")
            }
            Self::Server(error) => write!(
                f,
                "the detection server could not be created{}",
                refusal::cause(Resource::Descriptor, error)
            ),
            Self::MetricsSocket(ServeError::Io { path, source }) => {
                let remedy = match source.kind() {
                    io::ErrorKind::NotFound => ": create its folder first",
                    _ => "",
                };
                let path = path.display();
                write!(f, "the metrics socket {path} could not be created: {source}{remedy}")
            }
            Self::MetricsSocket(error) => {
                write!(f, "the metrics socket could not be created: {error}")
            }
            Self::NotSimulated { option } => {
                write!(
                    f,
                    "`{option}` has no meaning on the simulated flavor: it needs real threads and sockets"
                )
            }
            Self::Tokio(error) => {
                write!(f, "the tokio runtime beside could not be started: {error}")
            }
            Self::Thread(error) => write!(
                f,
                "a worker's thread could not be created{}",
                refusal::cause(Resource::Thread, error)
            ),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Server(error) | Self::Tokio(error) | Self::Thread(error) => Some(error),
            Self::MetricsSocket(error) => Some(error),
            _ => None,
        }
    }
}

impl From<BuildError> for io::Error {
    fn from(error: BuildError) -> Self {
        let kind = match &error {
            BuildError::Server(error) | BuildError::Tokio(error) | BuildError::Thread(error) => {
                error.kind()
            }
            BuildError::MetricsSocket(_) => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

const WORKERS_MAX: usize = 1024;
const SPIN_MAX: Duration = Duration::from_millis(10);

const STACK_BYTES_MIN: usize = 16 * 1024;

/// The largest: more is a mistake.
const STACK_BYTES_MAX: usize = 1 << 30;

impl Runtime {
    /// Creates a runtime with the defaults of [`builder`](Self::builder).
    ///
    /// # Errors
    /// Those of [`RuntimeBuilder::build`].
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// Returns a builder with the defaults: hybrid, one worker for each available core.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::new()
    }
}

/// tokio's names, so that its builders compile here.
impl RuntimeBuilder {
    /// The same as [`Runtime::builder`]: the hybrid flavor, with one worker for each available core.
    pub fn new_multi_thread() -> Self {
        Self::new()
    }

    /// The user-level flavor: all tasks on the thread that calls [`Runtime::block_on`].
    pub fn new_current_thread() -> Self {
        Self::new().flavor(Flavor::UserLevel)
    }

    /// The same as [`workers`](Self::workers).
    pub fn worker_threads(self, count: usize) -> Self {
        self.workers(count)
    }

    /// The same as [`blocking_threads`](Self::blocking_threads).
    pub fn max_blocking_threads(self, count: usize) -> Self {
        self.blocking_threads(count)
    }

    /// The same as [`blocking_keep_alive`](Self::blocking_keep_alive).
    pub fn thread_keep_alive(self, time: Duration) -> Self {
        self.blocking_keep_alive(time)
    }

    /// Does nothing: sockets and timers are always there.
    pub const fn enable_all(self) -> Self {
        self
    }

    /// Does nothing: sockets are always there.
    pub const fn enable_io(self) -> Self {
        self
    }

    /// Does nothing: timers are always there.
    pub const fn enable_time(self) -> Self {
        self
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
                tokio: None,
            },
            has_tokio_context: false,
        }
    }

    /// Sets how tasks are scheduled. Default [`Flavor::Hybrid`].
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.flavor = flavor;
        self
    }

    /// Sets the number of worker threads of the hybrid flavor, 1 to 1024. Default: the parallelism available
    /// to the process. The other flavors ignore it, and log a warning if it is more than one: the user-level
    /// flavor has one thread, the kernel-level flavor one for each task.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    /// Sets the longest ordinary poll, 10 µs to 10 s of processor time: a task with longer polls counts as a
    /// long computation. Default 1 ms. When every worker computes for longer than four quanta in one poll,
    /// reserve threads also run those tasks of the compute lane that are known to compute for less than one
    /// quantum. A poll of ten quanta is reported as a hog.
    pub fn quantum(mut self, quantum: Duration) -> Self {
        self.options.quantum = quantum;
        self
    }

    /// Sets how long a poll may take, 20 µs to 1 s, before its thread counts as stuck in it and another
    /// thread watches for events and runs the tasks that they wake. Default 200 µs. The
    /// [quantum](Self::quantum) is about a task's processor time; this is about a thread's elapsed time.
    /// While another worker runs, a poll of a task that usually polls briefly counts only once its thread is
    /// seen to compute in it or to sleep in the kernel, which takes up to 3.2 ms: a thread that waits for a
    /// processor is not stuck, and the other worker takes what waits behind it.
    pub fn long_poll(mut self, time: Duration) -> Self {
        self.options.long_poll = time;
        self
    }

    /// Sets how many threads, besides the workers of the hybrid flavor, may run tasks woken by events while
    /// every worker is inside a long poll, 0 to 512. Default 512. One is enough while those tasks are short.
    /// Each task that sleeps in the kernel (a lock, a file, `thread::sleep`) needs one more, which takes its
    /// thread's place. With zero, or too few, tasks wait for the next thread that switches; a warning names
    /// what all threads are stuck in, or an error if that is a deadlock.
    ///
    /// A thread takes 2 MiB of address space for its stack and some 12 KiB of memory: 512 blocking tasks
    /// raised the resident memory of a small process from 3.9 MiB to 9.7 MiB.
    pub fn reserve_threads(mut self, count: usize) -> Self {
        self.options.reserve_threads = count;
        self
    }

    /// Sets what a runtime of the hybrid flavor may ask of the kernel's scheduler while a task hogs its
    /// thread. Default: everything that needs no privilege; see [`KernelHelp`].
    pub fn kernel_help(mut self, help: KernelHelp) -> Self {
        self.options.kernel_help = help;
        self
    }

    /// Sets how long dropping the runtime waits for tasks that are inside a poll. Default 10 s. Their threads
    /// are then left behind, and an error is logged; see
    /// [`Runtime::shutdown_timeout`](crate::Runtime::shutdown_timeout).
    pub fn shutdown_timeout(mut self, time: Duration) -> Self {
        self.options.shutdown_timeout = time;
        self
    }

    /// Sets how long an unneeded reserve thread is kept. Default 1 s. Of the threads that replaced tasks
    /// sleeping in the kernel, half end in each such period, down to two, since such tasks often sleep again.
    /// Other threads beyond two end after 10 ms, or after this time if it is shorter.
    pub fn reserve_keep_alive(mut self, time: Duration) -> Self {
        self.options.reserve_keep_alive = time;
        self
    }

    /// Sets roughly how long the reaction lane may run on a thread before a waiting computation gets its
    /// turn. Default 1 ms.
    pub fn reaction_slice(mut self, slice: Duration) -> Self {
        self.options.reaction_slice = slice;
        self
    }

    /// Polls the tasks of the user-level flavor in the order in which they became ready, regardless of the
    /// time they have used and of what woke them; the other flavors ignore it. For experiments with the
    /// scheduler of the paper [bouge02, §4.1]: an event then waits for every ready task. Default false.
    pub fn first_come_first_served(mut self, yes: bool) -> Self {
        self.options.is_first_come_first_served = yes;
        self
    }

    /// Sets the name prefix of the worker threads; the worker's number follows it. Default `vigie-worker`.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.options.thread_name = name.into();
        self
    }

    /// Sets the stack size of each task's thread in the kernel-level flavor, in bytes, 16 KiB to 1 GiB.
    /// Default: the standard library's 2 MiB, of which only the used part takes memory.
    pub fn task_stack_bytes(mut self, bytes: usize) -> Self {
        self.options.task_stack_bytes = Some(bytes);
        self
    }

    /// Sets how many tasks, each on a thread, the kernel-level flavor may have at once, at least 1. Further
    /// tasks are cancelled, and their handles say [why](crate::JoinError::is_refused). Default 8192: half of
    /// what the kernel's default limit on memory mappings allows (`vm.max_map_count`, four per thread).
    /// Beyond that limit, starting a thread ends the process.
    pub fn task_threads(mut self, count: usize) -> Self {
        self.options.task_threads = count;
        self
    }

    /// Sets how many closures of `spawn_blocking` may run at once, at least 1. Default 512.
    pub fn blocking_threads(mut self, count: usize) -> Self {
        self.options.blocking_threads = count;
        self
    }

    /// Sets how long an idle blocking thread is kept. Default 10 s.
    pub fn blocking_keep_alive(mut self, time: Duration) -> Self {
        self.options.blocking_keep_alive = time;
        self
    }

    /// Sets how much processor time may be spent on early detection, for all waits without a policy of their
    /// own: sockets, timers, channels. Default [`Reactivity::Balanced`].
    ///
    /// Before it sleeps, an idle worker spins for at most 10 µs (`Balanced`), 200 µs (`LowLatency`) or not at
    /// all (`LowCpu`), and only if spinning has paid off lately and no other thread needs the core. It never
    /// spins twice without an event in between: an idle process sleeps.
    pub fn reactivity(mut self, reactivity: Reactivity) -> Self {
        self.adaptive = Adaptive::new(reactivity);
        self
    }

    /// Sets the longest time that a worker spins before it sleeps, 0 to 10 ms; zero never spins. Default:
    /// that of the [`reactivity`](Self::reactivity); call this after it. A worker never spins for longer than
    /// a sleep costs: see [`Adaptive::spin_max`].
    pub fn spin_max(mut self, time: Duration) -> Self {
        self.adaptive.spin_max = time;
        self
    }

    /// Serves the runtime's metrics at a Unix socket at this path while the runtime lives, for `vigie-bench
    /// watch` and similar programs: see [`metrics::serve`](crate::metrics::serve). Default: no socket.
    pub fn metrics_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.options.metrics_socket = Some(path.into());
        self
    }

    /// Sets the policy that chooses the strategy for the readiness of sockets. Default: [`Adaptive`], set up
    /// by [`reactivity`](Self::reactivity).
    pub fn readiness_policy(mut self, policy: impl Policy) -> Self {
        let make = move |flavor, adaptive| Server::with_policies(flavor, adaptive, policy);
        self.readiness_policy = Some(Box::new(make));
        self
    }

    /// Runs a small tokio runtime beside this one, on one more thread, whose context every task, every closure of
    /// `spawn_blocking` and every `block_on` of this runtime inherits. Libraries that call `tokio::spawn`, or use
    /// tokio's timers, sockets, files or processes, then work as they are. Default false. Needs the feature
    /// `tokio`.
    ///
    /// The guarantee depends on who spawns a task:
    /// - A task that *you* spawn with vigie is scheduled by vigie. A socket or timer of tokio's that it awaits is
    ///   watched by tokio's thread, which wakes the task as a foreign thread would: its reaction does not depend on
    ///   other tasks either, and costs one hop between threads more than vigie's own sockets and timers.
    /// - A task that a *library* spawns with `tokio::spawn` runs on tokio's thread. The kernel schedules that thread
    ///   beside vigie's, so tasks of vigie that never yield delay it no more than they delay any other thread. Among
    ///   tokio's own tasks, one that never yields delays the others, as always on tokio.
    ///
    /// The tokio runtime ends after the tasks of this one, within the same time limit.
    ///
    /// # Examples
    /// ```
    /// let runtime = vigie_runtime::Runtime::builder().tokio_context(true).build()?;
    /// let sum = runtime.block_on(async {
    ///     let ours = vigie_runtime::spawn(async { tokio::spawn(async { 40 }).await });
    ///     Ok::<_, Box<dyn std::error::Error>>(ours.await?? + 2)
    /// })?;
    /// assert_eq!(sum, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn tokio_context(mut self, yes: bool) -> Self {
        self.has_tokio_context = yes;
        self
    }

    /// Makes the runtime and, in the hybrid flavor, its threads.
    ///
    /// # Errors
    /// [`BuildError`]: an option is out of range, or the kernel refused a resource.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let mut options = self.options;
        // A simulation has one thread, and asking for the number of processors takes as long as the rest of its build.
        let is_simulated = matches!(self.flavor, Flavor::Simulated { .. });
        options.workers = self.workers.unwrap_or_else(|| match is_simulated {
            true => 1,
            false => thread::available_parallelism().map_or(1, std::num::NonZero::get),
        });

        check(&options, &self.adaptive)?;

        let make_server = self.readiness_policy.unwrap_or_else(|| {
            Box::new(|flavor, adaptive| Server::with_policies(flavor, adaptive, adaptive))
        });

        if self.flavor != Flavor::Hybrid && self.workers.is_some_and(|workers| workers > 1) {
            tracing::warn!(flavor = ?self.flavor, "`workers` is for the hybrid flavor, and ignored");
        }

        if let Flavor::Simulated { .. } = self.flavor {
            let refused = [
                (self.has_tokio_context, "tokio_context"),
                (options.metrics_socket.is_some(), "metrics_socket"),
            ];
            if let Some((_, option)) = refused.into_iter().find(|(is_set, _)| *is_set) {
                return Err(BuildError::NotSimulated { option });
            }
        } else {
            let remedy = "use the one that runs, or make it before the simulation";
            refuse_in_simulation("runtimes of other flavors", remedy)
                .map_err(BuildError::Server)?;
        }

        let tokio = if self.has_tokio_context {
            let tokio = TokioRuntime::start(&options.thread_name).map_err(BuildError::Tokio)?;
            options.tokio = Some(tokio.context());
            Some(tokio)
        } else {
            None
        };

        let path = options.metrics_socket.take();
        let mut runtime = match self.flavor {
            Flavor::UserLevel => {
                let server = make_server(self.flavor, self.adaptive).map_err(BuildError::Server)?;
                let enter = |shared| Handle::from(Scheduler::UserLevel(shared)).enter();
                let shared = Arc::new(user_level::UserLevelShared::new(server, options, enter));
                Runtime::assemble(Scheduler::UserLevel(shared).into(), Vec::new())
            }
            Flavor::Hybrid => {
                let server = make_server(self.flavor, self.adaptive).map_err(BuildError::Server)?;
                let watchdog = Watchdog::new(options.long_poll).map_err(BuildError::Server)?;
                let enter = |shared| Handle::from(Scheduler::Hybrid(shared)).enter();
                let (shared, threads) =
                    hybrid::start(server, watchdog, options, enter).map_err(BuildError::Thread)?;
                Runtime::assemble(Scheduler::Hybrid(shared).into(), threads)
            }
            Flavor::KernelLevel => {
                let server = make_server(self.flavor, self.adaptive).map_err(BuildError::Server)?;
                let enter = |shared| Handle::from(Scheduler::KernelLevel(shared)).enter();
                let (shared, host) =
                    kernel_level::start(server, options, enter).map_err(BuildError::Thread)?;
                Runtime::assemble(Scheduler::KernelLevel(shared).into(), vec![host])
            }
            Flavor::Simulated { seed } => {
                let enter = |shared| Handle::from(Scheduler::Simulated(shared)).enter();
                let shared = Arc::new(simulated::SimulatedShared::new(seed, options, enter));
                Runtime::assemble(Scheduler::Simulated(shared).into(), Vec::new())
            }
        };

        runtime.handle().look_up_names_in_pool();
        if let Some(tokio) = tokio {
            runtime.keep_tokio(tokio);
        }
        if let Some(path) = path {
            runtime.serve_metrics(&path).map_err(BuildError::MetricsSocket)?;
        }
        Ok(runtime)
    }
}

/// Checks the ranges.
fn check(options: &Options, adaptive: &Adaptive) -> Result<(), BuildError> {
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
    if adaptive.spin_max > SPIN_MAX {
        return Err(BuildError::SpinMax { spin_max: adaptive.spin_max });
    }
    if options.thread_name.contains('\0') {
        return Err(BuildError::ThreadName);
    }
    if options.blocking_threads == 0 {
        return Err(BuildError::BlockingThreads);
    }
    if options.task_threads == 0 {
        return Err(BuildError::TaskThreads);
    }
    if let Some(bytes) = options.task_stack_bytes
        && !(STACK_BYTES_MIN..=STACK_BYTES_MAX).contains(&bytes)
    {
        let (least, most) = (STACK_BYTES_MIN, STACK_BYTES_MAX);
        return Err(BuildError::TaskStack { bytes, least, most });
    }
    Ok(())
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
