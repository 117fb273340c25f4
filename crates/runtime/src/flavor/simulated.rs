//! The simulated flavor: one thread runs every task in virtual time, in an order that a seed draws.
//!
//! Whatever is ready runs before the clock moves: the next task is drawn among all ready ones, the future of `block_on`
//! included, and so is whether a look at the detection server precedes it. With nothing ready, the clock jumps to the next
//! deadline. No real clock takes part in a decision, so a run is a function of its seed.

use std::{
    cell::RefCell,
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use vigie_detect::{Deadlock, Server, VirtualHost};

use crate::{
    blocking_pool::BlockingPool,
    context::EnteredContext,
    dump::Dump,
    options::Options,
    panics::contained,
    sync::{
        Arc, AtomicBool, Ordering, RealGuard, RealMutex, TryLockError,
        count::{AtomicU64, RELAXED},
        thread::{self, ThreadId},
        thread_local,
    },
    task_cell::{self, JoinHandle, Label, LiveTasks, Runnable, drop_task},
};

pub(crate) struct SimulatedShared {
    pub(crate) server: Server,
    pub(crate) live: Arc<LiveTasks>,
    /// Has no threads: closures of `spawn_blocking` are tasks here.
    pub(crate) pool: Arc<BlockingPool>,
    pub(crate) options: Options,
    pub(crate) seed: u64,
    /// Enters this runtime on a thread.
    enter: fn(Arc<Self>) -> EnteredContext,
    host: RealMutex<VirtualHost>,
    ready: RealMutex<Vec<Runnable>>,
    /// The thread of the first `block_on`, which all later ones need too.
    thread: RealMutex<Option<ThreadId>>,
    /// The trace's hash when `block_on` last ended.
    trace: AtomicU64,
    is_ending: AtomicBool,
}

/// After this many polls without the clock moving, each further one takes [`POLL_COST`], so that tasks which wake
/// themselves until some time has passed come to their end.
const FREE_POLLS: u32 = 10_000;

const POLL_COST: Duration = Duration::from_micros(1);

thread_local! {
    static RUNS: RefCell<Option<Arc<SimulatedShared>>> = const { RefCell::new(None) };
}

/// Returns whether the calling thread is inside `block_on` of a simulated runtime: of `shared`, or of any.
pub(crate) fn runs_here(shared: Option<&SimulatedShared>) -> bool {
    let is_it = |runs: &RefCell<Option<Arc<SimulatedShared>>>| {
        runs.borrow()
            .as_ref()
            .is_some_and(|it| shared.is_none_or(|shared| std::ptr::eq(&**it, shared)))
    };
    RUNS.try_with(is_it).unwrap_or(false)
}

/// Refuses what would leave the simulation.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] inside a simulation.
pub(crate) fn refuse(what: &str) -> io::Result<()> {
    if !runs_here(None) {
        return Ok(());
    }
    let text = format!("{what} would leave the simulation, in which there are none yet");
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

impl SimulatedShared {
    pub(crate) fn new(seed: u64, options: Options, enter: fn(Arc<Self>) -> EnteredContext) -> Self {
        let host = VirtualHost::new(seed);
        Self {
            server: host.server().clone(),
            live: Arc::new(LiveTasks::new()),
            pool: Arc::new(BlockingPool::new(1, Duration::ZERO)),
            options,
            seed,
            enter,
            trace: AtomicU64::new(host.trace_hash()),
            host: RealMutex::new(host),
            ready: RealMutex::new(Vec::new()),
            thread: RealMutex::new(None),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Returns the hash of what `block_on` has run so far.
    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace.load(RELAXED)
    }

    fn ready(&self) -> RealGuard<'_, Vec<Runnable>> {
        locked(&self.ready)
    }

    /// Runs `future` and all tasks on the calling thread until the future is ready.
    ///
    /// # Panics
    /// If nothing can happen any more; on another thread than the first call's.
    #[track_caller]
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let here = thread::current().id();
        assert!(
            *locked(&self.thread).get_or_insert(here) == here,
            "a simulation runs on one thread: call `block_on` where it was called first"
        );
        let _entered = (self.enter)(Arc::clone(self));
        let mut run = SimulatedRun::new(self);
        let main = Arc::new(MainWaker { is_woken: AtomicBool::new(true) });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        let mut polls = (self.server.now(), 0);
        let value = loop {
            let is_woken = main.is_woken.load(Ordering::SeqCst);
            match run.draw(is_woken) {
                Drawn::Task(task) => self.poll(task),
                Drawn::Main => {
                    main.is_woken.store(false, Ordering::SeqCst);
                    if let Poll::Ready(value) =
                        future.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        break value;
                    }
                }
                Drawn::Nothing => {
                    let has_ready =
                        || main.is_woken.load(Ordering::SeqCst) || !self.ready().is_empty();
                    if let Err(deadlock) = run.host.advance(has_ready) {
                        drop(run);
                        self.report(&deadlock);
                    }
                }
            }
            let now = self.server.now();
            polls = if polls.0 == now { (now, polls.1 + 1) } else { (now, 0) };
            if polls.1 > FREE_POLLS {
                run.host.elapse(POLL_COST);
            }
        };
        drop(run);
        if self.is_ending.load(Ordering::SeqCst) {
            self.finish();
        }
        value
    }

    #[track_caller]
    fn report(&self, deadlock: &Deadlock) -> ! {
        panic!(
            "{deadlock}. What waits (a wake-up from another thread does not count):\n{}",
            Dump::new(&self.live, &self.server)
        )
    }

    fn poll(&self, task: Runnable) {
        if task.metadata().is_aborted() || self.is_ending.load(Ordering::Relaxed) {
            drop_task(task);
        } else {
            // The future's panics are caught inside; only a waker's panic can get here.
            contained("a poll", || task.run());
        }
    }

    /// Queues a task that became ready.
    fn schedule(&self, task: Runnable) {
        if !runs_here(Some(self))
            && locked(&self.thread).is_some_and(|it| it != thread::current().id())
        {
            tracing::error!(
                site = %task.metadata().site,
                "a thread outside of the simulation woke a task: the run is not a function of its seed"
            );
        }
        self.ready().push(task);
    }

    /// Cancels every task and closes the server: at the end of `block_on`, if the calling thread is inside of it.
    pub(crate) fn shutdown(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.live.close();
        if !runs_here(Some(self)) {
            self.finish();
        }
    }

    fn finish(&self) {
        loop {
            let task = self.ready().pop();
            match task {
                Some(task) => drop_task(task),
                None if self.live.count() == 0 => break,
                // Another thread is about to queue a task that it has just woken.
                None => thread::yield_now(),
            }
        }
        self.server.shutdown();
    }
}

fn locked<T>(mutex: &RealMutex<T>) -> RealGuard<'_, T> {
    mutex.lock().unwrap_or_else(crate::sync::PoisonError::into_inner)
}

/// Returns what schedules a task of `shared`.
pub(crate) fn schedule(
    shared: &Arc<SimulatedShared>,
) -> impl async_task::Schedule<task_cell::TaskInfo> + Send + Sync + 'static {
    let shared = Arc::clone(shared);
    move |task: Runnable| shared.schedule(task)
}

/// Spawns a task that stays on this thread, which is inside `block_on`.
pub(crate) fn spawn_local<F>(
    shared: &Arc<SimulatedShared>,
    label: Label,
    future: F,
) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    task_cell::spawn_local(&shared.live, label, future, schedule(shared))
}

/// What runs next.
enum Drawn {
    Task(Runnable),
    /// The future of `block_on`.
    Main,
    Nothing,
}

/// The thread inside `block_on`, which has the host.
struct SimulatedRun<'a> {
    shared: &'a SimulatedShared,
    host: RealGuard<'a, VirtualHost>,
}

impl<'a> SimulatedRun<'a> {
    fn new(shared: &'a Arc<SimulatedShared>) -> Self {
        let host = match shared.host.try_lock() {
            Ok(host) => host,
            // A task or the main future panicked, and left the host between two steps.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                unreachable!("one thread, which `Handle::block_on` has asked")
            }
        };
        RUNS.with(|runs| *runs.borrow_mut() = Some(Arc::clone(shared)));
        Self { shared, host }
    }

    fn draw(&mut self, is_main_woken: bool) -> Drawn {
        if self.host.random().bool() {
            let host = &mut *self.host;
            contained("a look", || host.detect());
        }
        let mut ready = self.shared.ready();
        let count = ready.len() + usize::from(is_main_woken);
        if count == 0 {
            return Drawn::Nothing;
        }
        let index = self.host.random().usize(..count);
        self.host.note_run(index as u64);
        self.host.note_run(count as u64);
        if index < ready.len() { Drawn::Task(ready.swap_remove(index)) } else { Drawn::Main }
    }
}

impl Drop for SimulatedRun<'_> {
    fn drop(&mut self) {
        self.shared.trace.store(self.host.trace_hash(), RELAXED);
        // Outside the borrow: it may be the last reference.
        let left = RUNS.try_with(|runs| runs.borrow_mut().take());
        drop(left);
        if thread::panicking() {
            let (seed, now) = (self.shared.seed, self.host.now());
            eprintln!("a simulation with seed {seed} failed at {now:?}");
        }
    }
}

struct MainWaker {
    is_woken: AtomicBool,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
    }
}
