//! A reference to a runtime, for spawning tasks.

use std::{error::Error, fmt, future::Future, marker::PhantomData, panic::Location, rc::Rc};

use vigie_detect::{Flavor, Server};

use crate::{
    blocking_pool::BlockingPool,
    context::{self, Enter, EnteredContext},
    dump::Dump,
    flavor::{hybrid, kernel_level, simulated, user_level},
    measure::Metrics,
    options::Options,
    sync::{Arc, Weak},
    task_cell::{self, JoinHandle, Label},
    tokio_context::TokioContext,
};

/// A reference to a runtime, for spawning from anywhere. It does not keep the runtime running: tasks
/// spawned after the shutdown are cancelled at once.
#[derive(Clone)]
pub struct Handle {
    pub(crate) scheduler: Scheduler,
}

/// The closed set of flavors.
#[derive(Clone)]
pub(crate) enum Scheduler {
    UserLevel(Arc<user_level::UserLevelShared>),
    Hybrid(Arc<hybrid::HybridShared>),
    KernelLevel(Arc<kernel_level::KernelLevelShared>),
    Simulated(Arc<simulated::SimulatedShared>),
}

/// A reference to a scheduler that does not keep it in memory.
enum WeakScheduler {
    UserLevel(Weak<user_level::UserLevelShared>),
    Hybrid(Weak<hybrid::HybridShared>),
    KernelLevel(Weak<kernel_level::KernelLevelShared>),
    Simulated(Weak<simulated::SimulatedShared>),
}

impl Scheduler {
    fn downgrade(&self) -> WeakScheduler {
        match self {
            Self::UserLevel(shared) => WeakScheduler::UserLevel(Arc::downgrade(shared)),
            Self::Hybrid(shared) => WeakScheduler::Hybrid(Arc::downgrade(shared)),
            Self::KernelLevel(shared) => WeakScheduler::KernelLevel(Arc::downgrade(shared)),
            Self::Simulated(shared) => WeakScheduler::Simulated(Arc::downgrade(shared)),
        }
    }
}

impl WeakScheduler {
    fn upgrade(&self) -> Option<Scheduler> {
        match self {
            Self::UserLevel(shared) => shared.upgrade().map(Scheduler::UserLevel),
            Self::Hybrid(shared) => shared.upgrade().map(Scheduler::Hybrid),
            Self::KernelLevel(shared) => shared.upgrade().map(Scheduler::KernelLevel),
            Self::Simulated(shared) => shared.upgrade().map(Scheduler::Simulated),
        }
    }
}

/// No runtime is running on the calling thread.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NoRuntime;

impl fmt::Display for NoRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no vigie runtime runs here: call this inside `Runtime::block_on` or a task of a runtime")
    }
}

impl Error for NoRuntime {}

impl Handle {
    /// Returns the runtime of the calling task.
    ///
    /// # Panics
    /// Outside any runtime: see [`try_current`](Self::try_current).
    #[must_use]
    #[track_caller]
    pub fn current() -> Self {
        Self::clone(&Self::expect_current())
    }

    /// Returns the runtime of the calling task.
    ///
    /// # Errors
    /// [`NoRuntime`] outside any runtime.
    pub fn try_current() -> Result<Self, NoRuntime> {
        context::current::<Self>().map(|handle| Self::clone(&handle)).ok_or(NoRuntime)
    }

    /// Makes this the runtime of the calling thread until the guard is dropped: [`spawn`](crate::spawn),
    /// [`spawn_blocking`](crate::spawn_blocking), sockets and timers then use it. Drop guards in the reverse
    /// order of their creation: any other order panics. Do not hold one across an `await`: other tasks that the thread polls
    /// meanwhile would use this runtime too.
    ///
    /// # Examples
    /// ```
    /// let runtime = vigie_runtime::Runtime::builder().workers(1).build()?;
    /// let task = {
    ///     let _guard = runtime.enter();
    ///     vigie_runtime::spawn(async { 42 })
    /// };
    /// assert_eq!(runtime.block_on(task)?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enter(&self) -> EnterGuard<'_> {
        EnterGuard { _entered: Enter::enter(self.clone()), of: PhantomData }
    }

    /// Returns the runtime that this thread runs for.
    ///
    /// # Panics
    /// Outside any runtime.
    #[track_caller]
    pub(crate) fn expect_current() -> Rc<Self> {
        match context::current() {
            Some(handle) => handle,
            None => panic!("{NoRuntime}"),
        }
    }

    /// # Panics
    /// In a forked child of the process that created the runtime: none of its threads exist there, so a
    /// task would never run.
    #[track_caller]
    pub(crate) fn refuse_fork(&self) {
        assert!(
            !self.server().is_inherited(),
            "this process was forked from the one that created the runtime, and has none of its threads: \
             create a runtime after the fork, or call `exec`"
        );
    }

    /// Spawns a task.
    ///
    /// # Panics
    /// In a forked child of the process that created the runtime.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_at(Location::caller().into(), future)
    }

    #[track_caller]
    pub(crate) fn spawn_at<F>(&self, label: Label, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.refuse_fork();
        match &self.scheduler {
            Scheduler::UserLevel(shared) => {
                let label = label.of_kind::<F>(&shared.foreign_credit);
                let schedule = user_level::schedule(shared);
                task_cell::queue(task_cell::spawn(&shared.live, label, future, schedule))
            }
            Scheduler::Hybrid(shared) => {
                let label = label.of_kind::<F>(&shared.foreign_credit);
                let schedule = hybrid::schedule(shared);
                task_cell::queue(task_cell::spawn(&shared.live, label, future, schedule))
            }
            Scheduler::KernelLevel(shared) => kernel_level::spawn(shared, label, future),
            Scheduler::Simulated(shared) => {
                let (schedule, site) = (simulated::schedule(shared), label.site);
                let name = label.name.clone();
                let spawned = task_cell::spawn(&shared.live, label, future, schedule);
                shared.record_spawn(&spawned.1, name, site);
                task_cell::queue(spawned)
            }
        }
    }

    /// Runs a closure that may block, on a thread kept for such closures. At most
    /// [`RuntimeBuilder::blocking_threads`](crate::RuntimeBuilder::blocking_threads) run at once; others
    /// queue. A closure that has begun cannot be aborted.
    ///
    /// # Panics
    /// In a forked child of the process that created the runtime.
    #[track_caller]
    pub fn spawn_blocking<T, F>(&self, work: F) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.spawn_blocking_at(Location::caller(), work)
    }

    #[track_caller]
    pub(crate) fn spawn_blocking_at<T, F>(
        &self,
        site: &'static Location<'static>,
        work: F,
    ) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.refuse_fork();
        if let Scheduler::Simulated(_) = &self.scheduler {
            // In line, when the seed draws it.
            return self.spawn_at(site.into(), async move { work() });
        }
        BlockingPool::spawn(self.pool(), site, self.clone(), work)
    }

    /// Runs a future to completion on the calling thread: see
    /// [`Runtime::block_on`](crate::Runtime::block_on). The runtime must not end meanwhile: what `future` waits
    /// for would then fail or never happen.
    ///
    /// # Panics
    /// Same as [`Runtime::block_on`](crate::Runtime::block_on).
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            !hybrid::is_worker()
                && !user_level::runs_here(None)
                && !kernel_level::runs_here()
                && !simulated::runs_here(None),
            "`block_on` inside a task, or inside another `block_on` of the user-level flavor, would stop the tasks of \
             its thread: spawn the future, or await it"
        );
        self.refuse_fork();
        match &self.scheduler {
            Scheduler::UserLevel(shared) => shared.block_on(future),
            Scheduler::Hybrid(shared) => shared.block_on(future),
            Scheduler::KernelLevel(shared) => shared.block_on(future),
            Scheduler::Simulated(shared) => shared.block_on(future),
        }
    }

    /// Makes the blocking pool run what blocks in the detection server's sockets: lookups of names.
    /// Runs what is ready, on the user-level flavor; the other flavors have threads of their own for that.
    #[track_caller]
    pub(crate) fn tick(&self) {
        assert!(!user_level::runs_here(None), "`tick` inside a task: its own tick is not over");
        self.refuse_fork();
        if let Scheduler::UserLevel(shared) = &self.scheduler {
            shared.tick();
        }
    }

    pub(crate) fn look_up_names_in_pool(&self) {
        // The server, which the scheduler owns, must not own the scheduler.
        let weak = self.scheduler.downgrade();
        self.server().set_blocking_executor(move |job| {
            // Dropped once the runtime is gone, which the waiting task is told.
            if let Some(scheduler) = weak.upgrade() {
                drop(Self { scheduler }.spawn_blocking(job));
            }
        });
    }

    /// Returns the detection server of the runtime.
    #[must_use]
    pub fn server(&self) -> &Server {
        match &self.scheduler {
            Scheduler::UserLevel(shared) => &shared.server,
            Scheduler::Hybrid(shared) => &shared.server,
            Scheduler::KernelLevel(shared) => &shared.server,
            Scheduler::Simulated(shared) => &shared.server,
        }
    }

    /// Returns the flavor of the runtime.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.server().flavor()
    }

    /// Returns what the runtime has done so far and what it is doing now.
    ///
    /// # Cost
    /// A few microseconds, short locks of the detection server's handles, and reads of two small kernel
    /// files. Callable from any thread; call it now and then, not in a loop.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let (workers, live_tasks) = (self.worker_count(), self.live_task_count());
        let mut metrics = Metrics::new(self.server(), workers, live_tasks);
        match &self.scheduler {
            Scheduler::UserLevel(shared) => shared.fill_metrics(&mut metrics),
            Scheduler::Hybrid(shared) => shared.fill_metrics(&mut metrics),
            // The kernel schedules; what it knows of the threads is its own to tell.
            Scheduler::KernelLevel(_) => {}
            // Nothing is measured in virtual time.
            Scheduler::Simulated(_) => {}
        }
        metrics
    }

    /// Returns all tasks that have not ended, what each does, since when, and which events it waits for. Nothing is polled or
    /// stopped for it, and tasks that never yield are there as well: so it shows why a program hangs.
    ///
    /// With the feature `stacks`, a task inside a poll also has [the functions](crate::metrics::TaskReport::stack) in which it is.
    /// Its thread gets a real-time signal, the last one that the program does not handle. System calls that `SA_RESTART` does not
    /// restart end with `EINTR` there, such as `poll` and `nanosleep`: see signal(7).
    ///
    /// # Cost
    /// A lock for each shard of the list of tasks, each detector and each pending wait: some microseconds for each task. For a
    /// stack, the calling thread blocks for up to 50 ms until the other one answers, and the first time for a second or two in a
    /// debug build, to read the files of the program.
    ///
    /// # Examples
    /// ```
    /// use vigie_runtime::{Handle, Runtime, metrics::TaskState, task, time};
    ///
    /// # Runtime::builder().build()?.block_on(async {
    /// let idle = task::Builder::new().name("idle").spawn(time::sleep(time::Duration::from_secs(60)));
    /// time::sleep(time::Duration::from_millis(20)).await;
    /// let dump = Handle::current().dump();
    /// assert_eq!(dump.tasks[0].state, TaskState::Waiting);
    /// println!("{dump}"); //      1  waiting     20.1ms  idle (src/main.rs:5:13)  for timers: 59.980s from now
    /// # idle.abort();
    /// # });
    /// # Ok::<(), vigie_runtime::BuildError>(())
    /// ```
    #[must_use]
    pub fn dump(&self) -> Dump {
        let live = match &self.scheduler {
            Scheduler::UserLevel(shared) => &shared.live,
            Scheduler::Hybrid(shared) => &shared.live,
            Scheduler::KernelLevel(shared) => &shared.live,
            Scheduler::Simulated(shared) => &shared.live,
        };
        Dump::new(live, self.server())
    }

    /// Returns a hash of everything that [`block_on`](Self::block_on) has run in a simulation so far: which task ran when,
    /// and what was detected. Two runs with the same seed have the same hash. `None` on the other flavors.
    #[must_use]
    pub fn simulation_trace(&self) -> Option<u64> {
        match &self.scheduler {
            Scheduler::Simulated(shared) => Some(shared.trace_hash()),
            _ => None,
        }
    }

    /// Returns the world of a simulated runtime.
    pub(crate) fn simulated_world(&self) -> Option<&Arc<simulated::SimulatedWorld>> {
        match &self.scheduler {
            Scheduler::Simulated(shared) => Some(&shared.world),
            _ => None,
        }
    }

    fn worker_count(&self) -> usize {
        match &self.scheduler {
            Scheduler::UserLevel(_) | Scheduler::Simulated(_) => 1,
            Scheduler::Hybrid(shared) => shared.options.workers,
            Scheduler::KernelLevel(shared) => shared.thread_count(),
        }
    }

    pub(crate) fn options(&self) -> &Options {
        match &self.scheduler {
            Scheduler::UserLevel(shared) => &shared.options,
            Scheduler::Hybrid(shared) => &shared.options,
            Scheduler::KernelLevel(shared) => &shared.options,
            Scheduler::Simulated(shared) => &shared.options,
        }
    }

    pub(crate) fn pool(&self) -> &Arc<BlockingPool> {
        match &self.scheduler {
            Scheduler::UserLevel(shared) => &shared.pool,
            Scheduler::Hybrid(shared) => &shared.pool,
            Scheduler::KernelLevel(shared) => &shared.pool,
            Scheduler::Simulated(shared) => &shared.pool,
        }
    }

    /// Returns how many tasks have not ended, not counting closures on blocking threads.
    #[must_use]
    pub fn live_task_count(&self) -> usize {
        match &self.scheduler {
            Scheduler::UserLevel(shared) => shared.live.count(),
            Scheduler::Hybrid(shared) => shared.live.count(),
            Scheduler::KernelLevel(shared) => shared.live.count(),
            Scheduler::Simulated(shared) => shared.live.count(),
        }
    }
}

/// Keeps the thread inside a runtime while it lives: see [`Handle::enter`].
#[derive(Debug)]
#[must_use = "the runtime is that of the thread only until this is dropped"]
pub struct EnterGuard<'a> {
    _entered: EnteredContext,
    of: PhantomData<&'a Handle>,
}

impl From<Scheduler> for Handle {
    fn from(scheduler: Scheduler) -> Self {
        Self { scheduler }
    }
}

impl Enter for Handle {
    fn enter(self) -> EnteredContext {
        let server = self.server().enter();
        let tokio = self.options().tokio.as_ref().and_then(TokioContext::enter);
        context::enter(self, server, tokio)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("flavor", &self.flavor())
            .field("live_task_count", &self.live_task_count())
            .finish_non_exhaustive()
    }
}
