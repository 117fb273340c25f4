//! The user-level flavor: one kernel thread runs every task, and the detection server at its switches.
//!
//! The thread is the one that calls `block_on`. Between two polls it looks at the clock; when a look
//! at the detection server is due, or somebody rang, it takes one. With nothing to run it sleeps in
//! the wait point.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Wake, Waker},
};

use async_task::{ScheduleInfo, WithInfo};
use crossbeam::deque::{Injector, Steal};
use vigie_detect::{Lookout, Server, budget, clock::monotonic_now};

use crate::{
    blocking_pool::BlockingPool,
    builder::Options,
    context,
    handle::{Handle, Scheduler},
    join::JoinHandle,
    kernel_help::{HogTimer, Serves},
    lane::{Cause, Credit, Lane, Rank, Ranked, Share, SharedCredit},
    metrics::{Counters, Hogs, Metrics, Sampler, ThreadMetrics, foreign_ready_time},
    panics::contained,
    sync::{Arc, AtomicBool, Ordering, PoisonError, RealMutex, thread, thread_local},
    task_cell::{self, Label, LiveTasks, Runnable},
};

pub(crate) struct Shared {
    server: Server,
    live: Arc<LiveTasks>,
    pool: Arc<BlockingPool>,
    options: Options,
    /// The signal into the thread while it hogs; its number, or none.
    signal: Option<i32>,
    hog_timer: HogTimer,
    /// Tasks that other threads made ready.
    injected: Injector<Runnable>,
    /// What pays the tasks that no task spawns.
    foreign_credit: SharedCredit,
    /// What `block_on` works with, one caller at a time.
    core: RealMutex<Core>,
    hogs: Hogs,
    /// Written by whoever has the core.
    counters: Counters,
}

struct Core {
    lookout: Lookout,
    lanes: Lanes,
    share: Share,
}

#[derive(Default)]
struct Lanes {
    reaction: VecDeque<Runnable>,
    compute: Ranked<Runnable>,
}

/// What the thread in `block_on` knows; schedule functions find it here.
struct Local {
    /// Which runtime this thread runs: compared, never followed.
    owner: *const Shared,
    lanes: RefCell<Lanes>,
    cause: Cell<Cause>,
    /// The time of the latest switch, in nanoseconds.
    switched_at: Cell<u64>,
    sampler: Sampler,
}

thread_local! {
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

impl Shared {
    pub(crate) fn new(server: Server, options: Options) -> Self {
        let pool = BlockingPool::new(options.blocking_threads, options.blocking_keep_alive);
        let lookout = server.lookout();
        let share = Share::new(options.reaction_slice);
        let hogs = Hogs::new(options.quantum);
        Self {
            server,
            live: Arc::new(LiveTasks::new()),
            pool: Arc::new(pool),
            signal: options.kernel_help.usable_signal(),
            hog_timer: HogTimer::new(),
            options,
            injected: Injector::new(),
            foreign_credit: SharedCredit::new(),
            core: RealMutex::new(Core { lookout, lanes: Lanes::default(), share }),
            hogs,
            counters: Counters::new(),
        }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn pool(&self) -> &Arc<BlockingPool> {
        &self.pool
    }

    pub(crate) fn live(&self) -> &Arc<LiveTasks> {
        &self.live
    }

    /// Queues a task that became ready: on this thread's own lanes if it runs this runtime.
    fn schedule(&self, task: Runnable, info: &ScheduleInfo) {
        let mut task = Some(task);
        // The thread's variables may be gone already while it ends.
        let _ = LOCAL.try_with(|local| {
            if let Some(local) = &*local.borrow()
                && std::ptr::eq(local.owner, self)
                && let Some(task) = task.take()
            {
                let ready = local.sampler.ready_time(local.cause.get(), info.woken_while_running);
                task.metadata().note_ready(ready);
                let now = local.switched_at.get();
                local.lanes.borrow_mut().push(task, info.woken_while_running, now);
            }
        });
        if let Some(task) = task {
            task.metadata().note_ready(foreign_ready_time());
            self.injected.push(task);
            self.server.unpark();
        }
    }

    fn has_injected(&self) -> bool {
        !self.injected.is_empty()
    }

    /// Runs the runtime until `future` is ready.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _entered = context::enter(Handle { scheduler: Scheduler::UserLevel(Arc::clone(self)) });
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let installed = Installed::new(self, &mut core.lanes);
        let main =
            Arc::new(MainWaker { is_woken: AtomicBool::new(true), shared: Arc::clone(self) });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        let local = &*installed.local;
        let mut now = monotonic_now();
        local.note_time(now);
        loop {
            if core.lookout.is_due(now) {
                local.cause.set(Cause::Detection);
                contained("a look", || core.lookout.detect());
                now = monotonic_now();
                local.note_time(now);
            }
            if main.is_woken.swap(false, Ordering::AcqRel) {
                local.cause.set(Cause::Poll);
                budget::begin(now);
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                budget::end();
                if let Poll::Ready(value) = polled {
                    installed.remove(&mut core.lanes);
                    return value;
                }
                now = monotonic_now();
            }
            self.take_injected(local);
            if let Some((task, lane)) = local.next(&core.share) {
                let end = self.poll(local, task, lane, now.as_nanos());
                let (reacting, computing) = local.lanes.borrow().counts();
                core.share.record(lane, end.saturating_sub(now.as_nanos()), reacting, computing);
                now = vigie_detect::Instant::from_nanos(end);
            } else if !main.is_woken.load(Ordering::Acquire) {
                self.hog_timer.stop();
                self.counters.count_sleep();
                local.cause.set(Cause::Detection);
                contained("a sleep", || {
                    core.lookout.park_unless(None, || {
                        main.is_woken.load(Ordering::Acquire) || self.has_injected()
                    })
                });
                now = monotonic_now();
                local.note_time(now);
            }
        }
    }

    /// Polls a task, or drops it if it is aborted. Returns the time in nanoseconds.
    fn poll(&self, local: &Local, task: Runnable, lane: Lane, now: u64) -> u64 {
        local.cause.set(Cause::Poll);
        local.switched_at.set(now);
        let info = task.metadata();
        if info.is_aborted() {
            drop_task(task);
            return monotonic_now().as_nanos();
        }
        // A known hog: the signal tells its checkpoints of events.
        let quantum = self.options.quantum.as_nanos();
        if info.account.usual_ns().is_some_and(|usual| u128::from(usual) > quantum) {
            if !self.hog_timer.is_set()
                && let (Some(signal), Some(descriptor)) = (self.signal, self.server.wait_point())
            {
                self.hog_timer.bind_once(signal, descriptor, Serves::SameThread);
                self.hog_timer.start();
            }
        } else {
            self.hog_timer.stop();
        }
        self.counters.begin_poll(info.ready_time(), now);
        context::begin_poll(now, info.account.credit(), self.options.long_poll);
        // The future's panics are caught inside; what may come out is that of a waker.
        contained("a poll", || task.run());
        let end = context::take_poll_end().unwrap_or_else(|| monotonic_now().as_nanos());
        let nanos = end.saturating_sub(now);
        self.counters.end_poll(lane, nanos);
        if u128::from(nanos) > self.options.long_poll.as_nanos()
            && let Some(poll) = context::take_long_poll()
        {
            let end = vigie_detect::Instant::from_nanos(end);
            self.counters.count_long_poll(self.hogs.record(poll, lane, end));
        }
        end
    }

    /// Fills in what this flavor knows of itself.
    pub(crate) fn fill_metrics(&self, metrics: &mut Metrics) {
        let counters = &self.counters;
        counters.add_to(metrics);
        metrics.latest_long_polls = self.hogs.latest();
        let (polls, sleeps) = (counters.polls(), counters.sleeps());
        metrics.threads.push(ThreadMetrics { is_reserve: false, polls, sleeps, current: None });
    }

    fn take_injected(&self, local: &Local) {
        if self.injected.is_empty() {
            return;
        }
        let mut lanes = local.lanes.borrow_mut();
        // Bounded by what is there now, so that other threads cannot keep us here.
        for _ in 0..self.injected.len() {
            match self.injected.steal() {
                Steal::Success(task) => lanes.push(task, false, local.switched_at.get()),
                Steal::Empty => break,
                Steal::Retry => {}
            }
        }
    }

    /// Cancels every task and closes the server.
    pub(crate) fn shutdown(self: &Arc<Self>) {
        let _entered = context::enter(Handle { scheduler: Scheduler::UserLevel(Arc::clone(self)) });
        self.live.close();
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lanes = std::mem::take(&mut core.lanes);
        drop(core);
        loop {
            let queued = lanes.reaction.pop_front().or_else(|| lanes.compute.pop());
            match queued.or_else(|| steal(&self.injected)) {
                Some(task) => drop_task(task),
                None if self.live.count() == 0 => break,
                // Another thread is about to queue a task that it has just spawned or woken.
                None => thread::yield_now(),
            }
        }
        self.server.shutdown();
    }
}

/// Cancels a task: drops its future.
pub(crate) fn drop_task(task: Runnable) {
    contained("a cancelled task", || drop(task));
}

fn steal(inject: &Injector<Runnable>) -> Option<Runnable> {
    loop {
        match inject.steal() {
            Steal::Success(task) => return Some(task),
            Steal::Empty => return None,
            Steal::Retry => {}
        }
    }
}

pub(crate) fn spawn<F>(shared: &Arc<Shared>, mut label: Label, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    label.credit = credit(shared);
    let (runnable, handle) = task_cell::spawn(&shared.live, label, future, schedule(shared));
    if let Some(runnable) = runnable {
        runnable.schedule();
    }
    handle
}

pub(crate) fn spawn_local<F>(
    shared: &Arc<Shared>,
    mut label: Label,
    future: F,
) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    label.credit = credit(shared);
    let (runnable, handle) = task_cell::spawn_local(&shared.live, label, future, schedule(shared));
    if let Some(runnable) = runnable {
        runnable.schedule();
    }
    handle
}

/// Returns what a new task begins with.
fn credit(shared: &Shared) -> Credit {
    let from_outside = || shared.foreign_credit.pay_child(monotonic_now().as_nanos());
    context::pay_child().unwrap_or_else(from_outside)
}

fn schedule(
    shared: &Arc<Shared>,
) -> impl async_task::Schedule<task_cell::TaskInfo> + Send + Sync + 'static {
    let shared = Arc::clone(shared);
    WithInfo(move |task: Runnable, info: ScheduleInfo| shared.schedule(task, &info))
}

/// Returns whether an event waits for this thread; none if it runs no runtime of this flavor.
pub(crate) fn is_awaited(now: vigie_detect::Instant) -> Option<bool> {
    let local = LOCAL.try_with(|local| local.borrow().clone()).ok().flatten()?;
    if !local.lanes.borrow().reaction.is_empty() {
        return Some(true);
    }
    context::with_current(|handle| match &handle?.scheduler {
        Scheduler::UserLevel(shared) if std::ptr::eq(local.owner, Arc::as_ptr(shared)) => {
            Some(shared.has_injected() || shared.server.has_events(now))
        }
        _ => None,
    })
}

/// Returns whether this thread is inside a `block_on` of this flavor, of `shared` if that is given.
pub(crate) fn runs_here(shared: Option<&Shared>) -> bool {
    let runs = LOCAL.try_with(|local| {
        let local = local.borrow();
        let local = local.as_ref();
        local.is_some_and(|local| shared.is_none_or(|shared| std::ptr::eq(local.owner, shared)))
    });
    runs.unwrap_or(false)
}

impl Lanes {
    /// Queues a task that becomes ready at `now`.
    fn push(&mut self, task: Runnable, was_running: bool, now: u64) {
        let account = &task.metadata().account;
        match account.choose_lane(was_running, now) {
            Lane::Reaction => self.reaction.push_back(task),
            Lane::Compute => {
                let rank = Rank { place: account.credit().place(now), is_short: false };
                self.compute.push(task, rank);
            }
        }
    }

    /// Returns how many tasks wait in each lane.
    fn counts(&self) -> (usize, usize) {
        (self.reaction.len(), self.compute.len())
    }
}

impl Local {
    /// Takes note of a time that was read.
    fn note_time(&self, now: vigie_detect::Instant) {
        self.switched_at.set(now.as_nanos());
        context::sample_processor_time(now.as_nanos());
    }

    fn next(&self, share: &Share) -> Option<(Runnable, Lane)> {
        let mut lanes = self.lanes.borrow_mut();
        let computes_first = share.first() == Lane::Compute;
        if computes_first && let Some(task) = lanes.compute.pop() {
            return Some((task, Lane::Compute));
        }
        let reaction = lanes.reaction.pop_front().map(|task| (task, Lane::Reaction));
        reaction.or_else(|| Some((lanes.compute.pop()?, Lane::Compute)))
    }
}

/// The lanes while they are in the thread's variable; they go back even if the main future panics.
struct Installed {
    local: Rc<Local>,
    shared: Arc<Shared>,
}

impl Installed {
    fn new(shared: &Arc<Shared>, lanes: &mut Lanes) -> Self {
        let local = Rc::new(Local {
            owner: Arc::as_ptr(shared),
            lanes: RefCell::new(std::mem::take(lanes)),
            cause: Cell::new(Cause::Foreign),
            switched_at: Cell::new(0),
            sampler: Sampler::new(0),
        });
        LOCAL.with(|current| *current.borrow_mut() = Some(Rc::clone(&local)));
        Self { local, shared: Arc::clone(shared) }
    }

    fn remove(self, lanes: &mut Lanes) {
        *lanes = self.local.lanes.take();
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = LOCAL.try_with(|current| current.borrow_mut().take());
        // The poll may have ended in a panic.
        budget::end();
        // It belongs to this thread.
        self.shared.hog_timer.unbind();
        // Left here only by a panic of the main future: the next `block_on` finds them again.
        let mut lanes = self.local.lanes.take();
        let computing = std::iter::from_fn(|| lanes.compute.pop());
        lanes
            .reaction
            .into_iter()
            .chain(computing)
            .for_each(|task| self.shared.injected.push(task));
    }
}

/// Wakes the future that `block_on` runs.
struct MainWaker {
    /// Set by whoever wakes (release), taken by the loop (acquire).
    is_woken: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) && !runs_here(Some(&self.shared)) {
            self.shared.server.unpark();
        }
    }
}
