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
use vigie_detect::{Lookout, Server, clock::monotonic_now};

use crate::{
    blocking_pool::BlockingPool,
    builder::Options,
    context,
    handle::{Handle, Scheduler},
    join::JoinHandle,
    lane::{self, Cause, Lane, Share},
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
    /// Tasks that other threads made ready.
    reaction_inject: Injector<Runnable>,
    compute_inject: Injector<Runnable>,
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
    compute: VecDeque<Runnable>,
}

/// What the thread in `block_on` knows; schedule functions find it here.
struct Local {
    /// Which runtime this thread runs: compared, never followed.
    owner: *const Shared,
    lanes: RefCell<Lanes>,
    cause: Cell<Cause>,
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
            options,
            reaction_inject: Injector::new(),
            compute_inject: Injector::new(),
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
                let lane =
                    lane::choose(task.metadata(), info.woken_while_running, local.cause.get());
                let ready = local.sampler.ready_time(local.cause.get(), info.woken_while_running);
                task.metadata().note_ready(ready);
                local.lanes.borrow_mut().of(lane).push_back(task);
            }
        });
        if let Some(task) = task {
            task.metadata().note_ready(foreign_ready_time());
            match lane::choose(task.metadata(), info.woken_while_running, Cause::Foreign) {
                Lane::Reaction => self.reaction_inject.push(task),
                Lane::Compute => self.compute_inject.push(task),
            }
            self.server.unpark();
        }
    }

    fn has_injected(&self) -> bool {
        !self.reaction_inject.is_empty() || !self.compute_inject.is_empty()
    }

    /// Runs the runtime until `future` is ready.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _entered = context::enter(Handle { scheduler: Scheduler::UserLevel(Arc::clone(self)) });
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let installed = Installed::new(self, &mut core.lanes);
        let main = Arc::new(MainWaker {
            is_woken: AtomicBool::new(true),
            is_reaction: AtomicBool::new(false),
            shared: Arc::clone(self),
        });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        let local = &*installed.local;
        let mut now = monotonic_now();
        context::bound_processor_time(now.as_nanos());
        loop {
            if core.lookout.is_due(now) {
                local.cause.set(Cause::Detection);
                contained("a look", || core.lookout.detect());
                // Who hogs matters only where somebody computes.
                let judges = !local.lanes.borrow().compute.is_empty();
                context::sample_processor_time(judges);
                now = monotonic_now();
                if !judges {
                    context::bound_processor_time(now.as_nanos());
                }
            }
            if main.is_woken.swap(false, Ordering::AcqRel) {
                let lane = if main.is_reaction.load(Ordering::Relaxed) {
                    Lane::Reaction
                } else {
                    Lane::Compute
                };
                local.cause.set(Cause::Poll(lane));
                if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    installed.remove(&mut core.lanes);
                    return value;
                }
                now = monotonic_now();
            }
            self.take_injected(local);
            if let Some((task, lane)) = local.next(&core.share) {
                let end = self.poll(local, task, lane, now.as_nanos());
                core.share.record(lane, end.saturating_sub(now.as_nanos()));
                now = vigie_detect::Instant::from_nanos(end);
            } else if !main.is_woken.load(Ordering::Acquire) {
                self.counters.count_sleep();
                local.cause.set(Cause::Detection);
                contained("a sleep", || {
                    core.lookout.park_unless(None, || {
                        main.is_woken.load(Ordering::Acquire) || self.has_injected()
                    })
                });
                now = monotonic_now();
                context::bound_processor_time(now.as_nanos());
            }
        }
    }

    /// Polls a task, or drops it if it is aborted. Returns the time in nanoseconds.
    fn poll(&self, local: &Local, task: Runnable, lane: Lane, now: u64) -> u64 {
        local.cause.set(Cause::Poll(lane));
        if task.metadata().is_aborted() {
            drop_task(task);
            return monotonic_now().as_nanos();
        }
        self.counters.begin_poll(task.metadata().ready_time(), now);
        context::begin_poll(now, self.options.quantum, self.options.long_poll);
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
        for (inject, lane) in
            [(&self.reaction_inject, Lane::Reaction), (&self.compute_inject, Lane::Compute)]
        {
            if inject.is_empty() {
                continue;
            }
            let mut lanes = local.lanes.borrow_mut();
            // Bounded by what is there now, so that other threads cannot keep us here.
            for _ in 0..inject.len() {
                match inject.steal() {
                    Steal::Success(task) => lanes.of(lane).push_back(task),
                    Steal::Empty => break,
                    Steal::Retry => {}
                }
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
            let queued = lanes.reaction.pop_front().or_else(|| lanes.compute.pop_front());
            let task = queued
                .or_else(|| steal(&self.reaction_inject))
                .or_else(|| steal(&self.compute_inject));
            match task {
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

pub(crate) fn spawn<F>(shared: &Arc<Shared>, label: Label, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (runnable, handle) = task_cell::spawn(&shared.live, label, future, schedule(shared));
    if let Some(runnable) = runnable {
        runnable.schedule();
    }
    handle
}

pub(crate) fn spawn_local<F>(shared: &Arc<Shared>, label: Label, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (runnable, handle) = task_cell::spawn_local(&shared.live, label, future, schedule(shared));
    if let Some(runnable) = runnable {
        runnable.schedule();
    }
    handle
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
    fn of(&mut self, lane: Lane) -> &mut VecDeque<Runnable> {
        match lane {
            Lane::Reaction => &mut self.reaction,
            Lane::Compute => &mut self.compute,
        }
    }
}

impl Local {
    fn next(&self, share: &Share) -> Option<(Runnable, Lane)> {
        let mut lanes = self.lanes.borrow_mut();
        let order = match share.first() {
            Lane::Reaction => [Lane::Reaction, Lane::Compute],
            Lane::Compute => [Lane::Compute, Lane::Reaction],
        };
        order.into_iter().find_map(|lane| Some((lanes.of(lane).pop_front()?, lane)))
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
        // Left here only by a panic of the main future: the next `block_on` finds them again.
        let lanes = self.local.lanes.take();
        for task in lanes.reaction {
            self.shared.reaction_inject.push(task);
        }
        for task in lanes.compute {
            self.shared.compute_inject.push(task);
        }
    }
}

/// Wakes the future that `block_on` runs.
struct MainWaker {
    /// Set by whoever wakes (release), taken by the loop (acquire).
    is_woken: AtomicBool,
    /// On whose behalf: written before `is_woken`, a hint.
    is_reaction: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let cause = LOCAL.try_with(|local| {
            let local = local.borrow();
            let local = local.as_ref().filter(|local| std::ptr::eq(local.owner, &*self.shared));
            local.map(|local| local.cause.get())
        });
        let cause = cause.ok().flatten();
        let is_reaction = cause != Some(Cause::Poll(Lane::Compute));
        self.is_reaction.store(is_reaction, Ordering::Relaxed);
        if !self.is_woken.swap(true, Ordering::AcqRel) && cause.is_none() {
            self.shared.server.unpark();
        }
    }
}
