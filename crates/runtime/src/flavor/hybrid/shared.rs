//! The state that the threads of a runtime share, and how a task that becomes ready is queued.

use std::{
    cell::{Cell, RefCell},
    mem,
    panic::Location,
    rc::Rc,
};

use async_task::ScheduleInfo;
use crossbeam::deque::Stealer;
use vigie_detect::{Instant, Server, budget, clock::monotonic_now};

use super::{
    census,
    deadlock::Standstill,
    local::{Local, Remote, Woken},
    order::{self, Injected, Limits, Parts, ReserveMode, SOON, WakeContext, take},
    reserve::{Activated, Reserves},
    sentinel::Sentinel,
    worker_slot::{Blocked, WorkerSlot},
};
use crate::{
    blocking_pool::BlockingPool,
    context::EnteredContext,
    kernel_help::{self, thread_state},
    lane::{Cause, ComputeQueue, Rank, SharedCredit},
    measure::{Hogs, Metrics, ReserveCounters, ThreadMetrics, foreign_ready_time},
    options::Options,
    parking::{idle::Idle, watchdog::Watchdog},
    sync::{Arc, AtomicBool, AtomicCell, AtomicUsize, Ordering, thread, thread_local},
    task_cell::{LiveTasks, ReadyTime, Runnable, TaskKind, drop_task, poll},
};

pub(crate) struct HybridShared {
    pub(crate) server: Server,
    pub(crate) live: Arc<LiveTasks>,
    pub(crate) pool: Arc<BlockingPool>,
    pub(crate) options: Options,
    /// Enters this runtime on a thread.
    pub(super) enter: fn(Arc<Self>) -> EnteredContext,
    /// Tasks that were not made ready by a worker.
    pub(super) injected: Injected<Runnable>,
    /// The workers' reaction lanes, from which others take. Reserve threads have none: any thread may take
    /// what they make ready, even while they are stuck.
    pub(super) reacting: Box<[Stealer<Runnable>]>,
    /// The workers' compute lanes.
    pub(super) computing: Box<[ComputeQueue<Runnable>]>,
    /// Credit for tasks spawned by threads that run no task.
    pub(crate) foreign_credit: SharedCredit,
    /// The workers, then the reserve threads' slots.
    pub(super) remotes: Box<[Remote]>,
    pub(super) idle: Idle,
    pub(super) reserves: Reserves,
    /// Held by the reserve thread in the poller.
    pub(super) sentinel: Sentinel,
    pub(super) watchdog: Watchdog,
    /// Threads that sleep in the kernel inside a poll, and those that compute in their place.
    pub(super) blocked: Blocked,
    /// The tasks that reserve threads run. Set by the supervisor.
    pub(super) serves: AtomicCell<ReserveMode>,
    /// Some thread is inside a long poll, as far as the supervisor knows.
    pub(super) has_long_polls: AtomicBool,
    /// The signal sent to threads that hog, if any.
    pub(super) signal: Option<i32>,
    pub(super) hogs: Hogs,
    pub(super) reserve_counters: ReserveCounters,
    pub(super) is_shutdown: AtomicBool,
    /// Threads that have not ended, including the supervisor; the last one cleans up.
    pub(super) running_count: AtomicUsize,
}

/// Returns whether an event waits for this worker; `None` if this is not a worker.
pub(crate) fn is_awaited(now: Instant) -> Option<bool> {
    let local = LOCAL.try_with(|local| local.borrow().clone()).ok().flatten()?;
    if !local.reacting.is_empty() {
        return Some(true);
    }
    let shared = &*local.owner;
    let server = &shared.server;
    let computes_for_long = poll::has_polled_for(shared.options.quantum, now);
    let computing = shared.computing.get(local.place).into_iter();
    let mut computing = computing.chain([&shared.injected.compute]);
    Some(
        computes_for_long && computing.any(|queue| !queue.is_empty())
            || !server.is_watched() && server.has_announced_events(now)
            || !shared.injected.reaction.is_empty() && !shared.reserves.is_serving(),
    )
}

impl Parts for HybridShared {
    type Task = Runnable;

    fn injected(&self) -> &Injected<Runnable> {
        &self.injected
    }

    fn reacting(&self) -> &[Stealer<Runnable>] {
        &self.reacting
    }

    fn computing(&self) -> &[ComputeQueue<Runnable>] {
        &self.computing
    }

    fn is_short_now(&self, task: &Runnable) -> bool {
        let info = task.metadata();
        census::is_short_now(&info.account, info.expected_of_kind_ns())
    }

    fn is_tried_now(&self, task: &Runnable) -> bool {
        let info = task.metadata();
        census::was_brief(&info.account) && info.is_tried_now()
    }

    fn turned_short(&self) -> u64 {
        TaskKind::turned_short()
    }

    fn worker_slot(&self, place: usize) -> &WorkerSlot {
        &self.remotes[place].worker_slot
    }

    fn serving(&self) -> impl Iterator<Item = usize> + '_ {
        self.reserves.serving().map(|slot| self.options.workers + slot)
    }

    fn serving_count(&self) -> usize {
        self.reserves.serving_count()
    }

    fn idle(&self) -> &Idle {
        &self.idle
    }

    fn sentinel(&self) -> &Sentinel {
        &self.sentinel
    }

    fn watchdog(&self) -> &Watchdog {
        &self.watchdog
    }

    fn blocked(&self) -> &Blocked {
        &self.blocked
    }

    fn serves(&self) -> &AtomicCell<ReserveMode> {
        &self.serves
    }

    fn unpark(&self, place: usize) {
        self.remotes[place].parker.unpark(|| self.server.unpark());
    }

    fn is_called(&self, place: usize) -> bool {
        self.remotes[place].parker.is_called()
    }

    fn take_back(&self, place: usize) -> bool {
        self.remotes[place].parker.take_back()
    }

    fn notify(&self) {
        self.server.unpark();
    }
}

impl HybridShared {
    /// Asks all threads to end. They do so after their present poll.
    pub(crate) fn shutdown(&self) {
        self.is_shutdown.store(true, Ordering::SeqCst);
        self.live.refuse();
        self.watchdog.end();
        self.reserves.shutdown();
        for remote in &self.remotes {
            remote.parker.unpark(|| self.server.unpark());
        }
    }

    /// Queues a task that became ready: on the worker's own queue if this is a worker.
    pub(super) fn schedule(&self, task: Runnable, info: &ScheduleInfo) {
        if self.server.is_inherited() {
            // Neither run nor dropped: the queues and the future's contents belong to the parent.
            mem::forget(task);
            return;
        }
        let mut task = Some(task);
        // The thread-local may already be destroyed while the thread ends.
        let _ = LOCAL.try_with(|local| {
            if let Some(local) = &*local.borrow()
                && std::ptr::eq(&*local.owner, self)
                && let Some(task) = task.take()
            {
                self.schedule_here(local, task, info);
            }
        });
        if let Some(task) = task {
            self.schedule_from_outside(task, info);
        }
    }

    fn schedule_here(&self, local: &Local<Self>, task: Runnable, info: &ScheduleInfo) {
        let switched_at = local.switched_at.get();
        let was_running = info.woken_while_running;
        let ready = match local.first_woken_at().filter(|_| !was_running) {
            Some(nanos) => ReadyTime::new(nanos, true),
            None => local.sampler.ready_time(local.cause.get(), was_running),
        };
        task.metadata().note_ready(ready);
        let account = &task.metadata().account;
        let now = account.woken_at(ready.nanos(), switched_at, || monotonic_now().as_nanos());
        if local.cause.get() == Cause::Detection {
            local.woken_at.set(match (local.woken_at.get(), ready.nanos()) {
                (Woken::None, Some(nanos)) => Woken::One(nanos),
                (Woken::One(nanos) | Woken::Several(nanos), _) => Woken::Several(nanos),
                (Woken::None, None) => Woken::None,
            });
        }
        let woken_ns = (local.cause.get() == Cause::Poll).then_some(&local.woken_ns);
        let is_free = local.own().is_free(self);
        let rank = self.choose_rank(&task, woken_ns, (was_running, is_free), now);
        let (cause, is_short) = (local.cause.get(), local.is_short.get());
        let waking = WakeContext { cause, was_running, is_short, switched_at };
        self.queue_here(&local.own(), task, rank, waking);
    }

    fn schedule_from_outside(&self, task: Runnable, info: &ScheduleInfo) {
        let ready = foreign_ready_time();
        let now = ready.nanos().unwrap_or(0);
        task.metadata().note_ready(ready);
        let rank = self.choose_rank(&task, None, (info.woken_while_running, false), now);
        self.queue_from_outside(task, rank, now);
    }

    fn choose_rank(
        &self,
        task: &Runnable,
        woken_ns: Option<&Cell<u64>>,
        (was_running, is_free): (bool, bool),
        now: u64,
    ) -> Option<Rank> {
        let account = &task.metadata().account;
        let limits = Limits {
            brief_ns: self.injected.brief_ns(now),
            quantum: self.options.quantum,
            gave_way: was_running && budget::has_ended(),
            is_free,
        };
        order::choose_rank(account, woken_ns, was_running, now, limits)
    }

    pub(super) fn workers(&self) -> &[Remote] {
        &self.remotes[..self.options.workers]
    }

    pub(super) fn reserve(&self, slot: usize) -> &Remote {
        &self.remotes[self.options.workers + slot]
    }

    pub(super) fn long_poll_ns(&self) -> u64 {
        u64::try_from(self.options.long_poll.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Adds a thread, which must call [`end_thread`](Self::end_thread). The calling thread must itself be
    /// counted.
    pub(super) fn begin_thread(&self) {
        self.running_count.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread ends, with empty queues; the last one cancels the remaining tasks.
    pub(super) fn end_thread(&self) {
        if self.running_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.clear();
        }
    }

    /// Counts the result of a call for a reserve thread.
    pub(super) fn count(&self, activated: Activated) {
        match activated {
            Activated::Spare => self.reserve_counters.count_call(false),
            Activated::NewThread => self.reserve_counters.count_call(true),
            Activated::Refused => self.reserve_counters.count_refusal(),
        }
    }

    /// Fills in what this flavor knows about itself.
    pub(crate) fn fill_metrics(&self, metrics: &mut Metrics) {
        let now = monotonic_now();
        for (index, remote) in self.remotes.iter().enumerate() {
            let is_reserve = index >= self.options.workers;
            let counters = &remote.counters;
            counters.add_to(metrics);
            if is_reserve && remote.worker_slot.thread().is_none() && counters.polls() == 0 {
                continue;
            }
            let current = remote.worker_slot.current_task(now, &self.live);
            let (polls, sleeps) = (counters.polls(), counters.sleeps());
            metrics.threads.push(ThreadMetrics { is_reserve, polls, sleeps, current });
        }
        let mut reserve = self.reserves.metrics();
        reserve.has_sentinel = self.sentinel.holder().is_some();
        self.reserve_counters.fill(&mut reserve);
        metrics.reserve = Some(reserve);
        metrics.latest_long_polls = self.hogs.latest();
    }

    /// Returns whether the maximum number of threads exists and all of them were found asleep inside a poll.
    pub(super) fn do_all_sleep(&self) -> bool {
        self.reserves.serving_count() == self.reserves.limit()
            && self.running().all(|remote| remote.worker_slot.is_blocked())
    }

    /// Returns the state of all threads, if a task waits for one of them, or an event for a thread that
    /// polls.
    pub(super) fn standstill(&self, waiting_count: usize, now: Instant) -> Option<Standstill> {
        if waiting_count == 0 && !self.server.has_announced_events(now) {
            return None;
        }
        let mut standstill = Standstill::default();
        for remote in self.running() {
            let (began, _) = remote.worker_slot.current()?;
            let used = kernel_help::processor_time(remote.worker_slot.thread()?)?;
            standstill.add(began, used);
        }
        Some(standstill)
    }

    /// The workers and the reserve threads that serve.
    fn running(&self) -> impl Iterator<Item = &Remote> {
        self.workers().iter().chain(self.reserves.serving().map(|slot| self.reserve(slot)))
    }

    /// Returns how many threads sleep in the kernel inside a poll.
    pub(super) fn blocked_count(&self) -> usize {
        self.blocked.count()
    }

    /// Returns where the tasks that are polled at this moment were spawned.
    pub(crate) fn polled_sites(&self) -> Vec<&'static Location<'static>> {
        self.remotes.iter().filter_map(|remote| Some(remote.worker_slot.current()?.1)).collect()
    }

    /// Returns where the polled tasks were spawned, and where their threads sleep in the kernel, if they do.
    pub(super) fn caught_in(&self) -> Vec<(&'static Location<'static>, Option<String>)> {
        let place = |remote: &Remote| remote.worker_slot.thread().and_then(thread_state::sleeps_in);
        let polled =
            self.remotes.iter().filter_map(|remote| Some((remote, remote.worker_slot.current()?)));
        polled.map(|(remote, (_, site))| (site, place(remote))).collect()
    }

    /// Returns the reserve threads, to be joined after the shutdown.
    pub(crate) fn take_reserve_threads(&self) -> Vec<thread::JoinHandle<()>> {
        self.reserves.take_threads()
    }

    /// Cancels every task and closes the server: the last worker's duty.
    fn clear(&self) {
        self.live.close();
        loop {
            let queued = take(|| self.injected.reaction.steal());
            let queued = queued
                .or_else(|| self.injected.compute.pop())
                .or_else(|| self.computing.iter().find_map(ComputeQueue::pop));
            match queued {
                Some(task) => drop_task(task),
                None if self.live.count() == 0 => break,
                // Another thread is about to queue a task that it has just spawned or woken.
                None => thread::yield_now(),
            }
        }
        self.server.shutdown();
    }

    /// A thread outside the runtime is woken. If some thread hogs, the supervisor soon checks whether it had
    /// to wait for a processor, and if so makes the hogs yield theirs.
    pub(super) fn note_call(&self) {
        if self.has_long_polls.load(Ordering::Relaxed) && self.signal.is_some() {
            kernel_help::note_call();
            self.watchdog.guard(monotonic_now().as_nanos(), SOON, || false);
        }
    }
}

thread_local! {
    pub(super) static LOCAL: RefCell<Option<Rc<Local<HybridShared>>>> = const { RefCell::new(None) };
}

/// Returns whether this thread is a worker of this flavor.
pub(crate) fn is_worker() -> bool {
    LOCAL.try_with(|local| local.borrow().is_some()).unwrap_or(false)
}

/// Returns whether this thread was found asleep in the kernel during its current poll.
pub(super) fn was_asleep() -> bool {
    let is_blocked =
        |local: &Rc<Local<HybridShared>>| local.owner.remotes[local.place].worker_slot.is_blocked();
    LOCAL.try_with(|local| local.borrow().as_ref().is_some_and(is_blocked)).unwrap_or(false)
}
