//! The hybrid flavor: many tasks over a few kernel threads, with work stealing.
//!
//! Each worker has a queue for each lane, which the others may steal from. At its switches it looks at
//! the detection server when a look is due, and runs what it found. A worker without work sleeps in the
//! wait point if no other thread does, on its thread otherwise.
//!
//! No task delays another one's event: a supervisor sees when every thread that could watch is inside
//! a long poll, and then calls a reserve thread, which watches and serves the reaction lane itself. When a
//! thread sleeps in the kernel inside a poll, a reserve thread takes its place in both lanes.
//! See `docs/design/reaction.md`.

mod baton;
mod census;
mod deadlock;
mod need;
mod order;
mod reserve;
mod seat;
mod supervisor;
mod worker;

pub(crate) use self::reserve::{Activated, RESERVES_MAX};

use std::{
    cell::{Cell, RefCell},
    future::Future,
    mem,
    panic::Location,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use async_task::{ScheduleInfo, WithInfo};
use crossbeam::{
    deque::{Stealer, Worker as Queue},
    utils::CachePadded,
};
use vigie_detect::{Instant, Server, clock::monotonic_now};

use self::{
    baton::Baton,
    deadlock::Standstill,
    order::{Injected, Own, Parts, SOON, Serves, Waking, take},
    reserve::Reserves,
    seat::{Blocked, Seat},
    supervisor::Supervisor,
};
use super::user_level::drop_task;
use crate::{
    alarm::Alarm,
    blocking_pool::BlockingPool,
    builder::{BuildError, Options},
    context,
    handle::{Handle, Scheduler},
    idle::Idle,
    join::JoinHandle,
    kernel_help::{self, HogTimer},
    kind::Kind,
    lane::{Cause, ComputeQueue, Rank, SharedCredit},
    metrics::{
        Counters, Hogs, Metrics, ReserveCounters, Sampler, ThreadMetrics, foreign_ready_time,
    },
    parker::Parker,
    sync::{
        Arc, AtomicBool, AtomicCell, AtomicUsize, Ordering, Weak,
        thread::{self, Thread},
        thread_local,
    },
    task_cell::{self, Label, LiveTasks, Runnable},
    thread_state,
};

pub(crate) struct Shared {
    server: Server,
    live: Arc<LiveTasks>,
    pool: Arc<BlockingPool>,
    options: Options,
    /// Tasks that no worker made ready.
    injected: Injected<Runnable>,
    /// The workers' reaction lanes, from which others take. Reserve threads have none: what they make ready
    /// may be taken by any thread, also while they are caught.
    reacting: Box<[Stealer<Runnable>]>,
    /// The workers' compute lanes.
    computing: Box<[ComputeQueue<Runnable>]>,
    /// What pays the tasks that threads spawn which run none.
    foreign_credit: SharedCredit,
    /// The workers, then the reserve threads' slots.
    remotes: Box<[Remote]>,
    idle: Idle,
    reserves: Reserves,
    /// Held by the reserve thread in the wait point.
    baton: Baton,
    alarm: Alarm,
    /// Threads that sleep in the kernel inside a poll, and those that compute in their place.
    blocked: Blocked,
    /// What reserve threads run. The supervisor's.
    serves: AtomicCell<Serves>,
    /// Some thread is inside a long poll, as far as the supervisor knows.
    has_long_polls: AtomicBool,
    /// The signal into threads that hog; its number, or none.
    signal: Option<i32>,
    hogs: Hogs,
    reserve_counters: ReserveCounters,
    is_shutdown: AtomicBool,
    /// Threads that have not ended, the supervisor's too; the last one clears up.
    running_count: AtomicUsize,
}

/// Returns whether an event waits for this worker; none if this is no worker.
pub(crate) fn is_awaited(now: Instant) -> Option<bool> {
    let local = LOCAL.try_with(|local| local.borrow().clone()).ok().flatten()?;
    if !local.reacting.is_empty() {
        return Some(true);
    }
    context::with_current(|handle| match &handle?.scheduler {
        Scheduler::Hybrid(shared) if std::ptr::eq(local.owner, Arc::as_ptr(shared)) => {
            let server = &shared.server;
            let computes_for_long = context::has_polled_for(shared.options.quantum, now);
            let computing = shared.computing.get(local.place).into_iter();
            let mut computing = computing.chain([&shared.injected.compute]);
            Some(
                computes_for_long && computing.any(|queue| !queue.is_empty())
                    || !server.is_watched() && server.has_events(now)
                    || !shared.injected.reaction.is_empty() && !shared.reserves.is_serving(),
            )
        }
        _ => None,
    })
}

/// What others may do to a worker or a reserve thread, and see of it.
struct Remote {
    parker: Parker,
    seat: Seat,
    hog_timer: HogTimer,
    counters: CachePadded<Counters>,
}

/// What a worker's thread knows; schedule functions find it here.
struct Local {
    /// Which runtime this thread works for: compared, never followed.
    owner: *const Shared,
    /// The reaction lane; empty for a reserve thread.
    reacting: Queue<Runnable>,
    /// Its place among the remotes.
    place: usize,
    /// The worker's place; none for a reserve thread, which has no lanes of its own.
    worker: Option<usize>,
    cause: Cell<Cause>,
    /// The time of the latest switch, in nanoseconds.
    switched_at: Cell<u64>,
    /// The task that is polled has short polls as a rule.
    is_short: Cell<bool>,
    /// What the tasks use that the present poll has woken, in nanoseconds.
    woken_ns: Cell<u64>,
    sampler: Sampler,
    /// Whom the present look or sleep has woken.
    woken_at: Cell<Woken>,
}

/// Whom a look has woken, and when.
#[derive(Clone, Copy, Debug)]
enum Woken {
    Nobody,
    One(u64),
    Several,
}

impl Local {
    fn own(&self) -> Own<'_, Runnable> {
        Own { reacting: &self.reacting, worker: self.worker }
    }

    /// From now on, tasks are woken by events. What an earlier look has woken, others may have run.
    fn begin_detection(&self) {
        self.cause.set(Cause::Detection);
        self.woken_at.set(Woken::Nobody);
    }

    /// Returns the time after a sleep: when it woke a task, if it was one, which spares a reading of the
    /// clock between an event and its task.
    fn take_woken_at(&self) -> Instant {
        match self.woken_at.replace(Woken::Nobody) {
            Woken::One(nanos) => Instant::from_nanos(nanos),
            Woken::Nobody | Woken::Several => monotonic_now(),
        }
    }
}

thread_local! {
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// Makes the threads of a runtime. They hold the shared part until the shutdown.
pub(crate) fn start(
    server: Server,
    options: Options,
) -> Result<(Arc<Shared>, Vec<thread::JoinHandle<()>>), BuildError> {
    let queues: Vec<Queue<Runnable>> = (0..options.workers).map(|_| Queue::new_fifo()).collect();
    let remotes = (0..options.workers + options.reserve_threads).map(|_| Remote {
        parker: Parker::new(),
        seat: Seat::new(),
        hog_timer: HogTimer::new(),
        counters: CachePadded::new(Counters::new()),
    });
    let pool = BlockingPool::new(options.blocking_threads, options.blocking_keep_alive);
    let remotes = remotes.collect();
    let reserves = Reserves::new(options.reserve_threads, options.reserve_keep_alive);
    let shared = Arc::new(Shared {
        live: Arc::new(LiveTasks::new()),
        pool: Arc::new(pool),
        injected: Injected::new(),
        reacting: queues.iter().map(Queue::stealer).collect(),
        computing: (0..options.workers).map(|_| ComputeQueue::new()).collect(),
        foreign_credit: SharedCredit::new(),
        remotes,
        idle: Idle::new(options.workers),
        reserves,
        baton: Baton::new(),
        alarm: Alarm::new(options.long_poll).map_err(BuildError::Server)?,
        blocked: Blocked::new(),
        serves: AtomicCell::new(Serves::Nothing),
        has_long_polls: AtomicBool::new(false),
        signal: options.kernel_help.usable_signal(),
        hogs: Hogs::new(options.quantum),
        reserve_counters: ReserveCounters::new(),
        is_shutdown: AtomicBool::new(false),
        running_count: AtomicUsize::new(options.workers + 1),
        server,
        options,
    });
    let name = &shared.options.thread_name;
    let mut bodies: Vec<(String, Box<dyn FnOnce() + Send>)> = Vec::new();
    for (index, queues) in queues.into_iter().enumerate() {
        let runtime = Arc::clone(&shared);
        let body = Box::new(move || worker::run(runtime, index, queues));
        bodies.push((format!("{name}-{index}"), body));
    }
    let runtime = Arc::clone(&shared);
    bodies.push((format!("{name}-supervisor"), Box::new(move || Supervisor::run(runtime))));
    let mut threads = Vec::with_capacity(bodies.len());
    for (name, body) in bodies {
        match thread::Builder::new().name(name).spawn(body) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                // Those that did not start have ended.
                let missing = shared.options.workers + 1 - threads.len();
                shared.running_count.fetch_sub(missing, Ordering::AcqRel);
                shared.shutdown();
                for thread in threads {
                    drop(thread.join());
                }
                return Err(BuildError::Thread(error));
            }
        }
    }
    Ok((shared, threads))
}

impl Parts for Shared {
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

    fn seat(&self, place: usize) -> &Seat {
        &self.remotes[place].seat
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

    fn baton(&self) -> &Baton {
        &self.baton
    }

    fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    fn blocked(&self) -> &Blocked {
        &self.blocked
    }

    fn serves(&self) -> &AtomicCell<Serves> {
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

    fn ring(&self) {
        self.server.unpark();
    }
}

impl Shared {
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn pool(&self) -> &Arc<BlockingPool> {
        &self.pool
    }

    pub(crate) fn live(&self) -> &Arc<LiveTasks> {
        &self.live
    }

    /// Asks all threads to end. They do so after their present poll.
    pub(crate) fn shutdown(&self) {
        self.is_shutdown.store(true, Ordering::SeqCst);
        self.live.refuse();
        self.alarm.hold(0, Duration::ZERO);
        self.reserves.shutdown();
        for remote in &self.remotes {
            remote.parker.unpark(|| self.server.unpark());
        }
    }

    /// Queues a task that became ready: on the worker's own queue if this is one.
    fn schedule(&self, task: Runnable, info: &ScheduleInfo) {
        if self.server.is_inherited() {
            // Neither run nor dropped: the queues, and what its future holds, are the parent's.
            mem::forget(task);
            return;
        }
        let mut task = Some(task);
        // The thread's variables may be gone already while it ends.
        let _ = LOCAL.try_with(|local| {
            if let Some(local) = &*local.borrow()
                && std::ptr::eq(local.owner, self)
                && let Some(task) = task.take()
            {
                self.schedule_here(local, task, info);
            }
        });
        if let Some(task) = task {
            self.schedule_from_outside(task, info);
        }
    }

    fn schedule_here(&self, local: &Local, task: Runnable, info: &ScheduleInfo) {
        let turn_began = local.switched_at.get();
        let ready = local.sampler.ready_time(local.cause.get(), info.woken_while_running);
        task.metadata().note_ready(ready);
        let account = &task.metadata().account;
        let now = account.woken_at(ready.nanos(), turn_began, || monotonic_now().as_nanos());
        if local.cause.get() == Cause::Detection {
            local.woken_at.set(match (local.woken_at.get(), ready.nanos()) {
                (Woken::Nobody, Some(nanos)) => Woken::One(nanos),
                _ => Woken::Several,
            });
        }
        let was_running = info.woken_while_running;
        let woken_ns = (local.cause.get() == Cause::Poll).then_some(&local.woken_ns);
        let rank = self.choose_rank(&task, woken_ns, was_running, now);
        let (cause, is_short) = (local.cause.get(), local.is_short.get());
        let waking = Waking { cause, was_running, is_short, turn_began };
        self.queue_here(&local.own(), task, rank, waking);
    }

    fn schedule_from_outside(&self, task: Runnable, info: &ScheduleInfo) {
        let ready = foreign_ready_time();
        let now = ready.nanos().unwrap_or(0);
        task.metadata().note_ready(ready);
        let rank = self.choose_rank(&task, None, info.woken_while_running, now);
        self.queue_from_outside(task, rank, now);
    }

    fn choose_rank(
        &self,
        task: &Runnable,
        woken_ns: Option<&Cell<u64>>,
        was_running: bool,
        now: u64,
    ) -> Option<Rank> {
        let account = &task.metadata().account;
        order::choose_rank(account, woken_ns, was_running, now, self.options.quantum)
    }

    fn workers(&self) -> &[Remote] {
        &self.remotes[..self.options.workers]
    }

    fn reserve(&self, slot: usize) -> &Remote {
        &self.remotes[self.options.workers + slot]
    }

    fn long_poll_ns(&self) -> u64 {
        u64::try_from(self.options.long_poll.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A thread more, which must call [`end_thread`](Self::end_thread). Called by one that counts.
    fn begin_thread(&self) {
        self.running_count.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread ends, with empty queues; the last one cancels what is left.
    fn end_thread(&self) {
        if self.running_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.clear();
        }
    }

    /// Fills in what this flavor knows of itself.
    pub(crate) fn fill_metrics(&self, metrics: &mut Metrics) {
        let now = monotonic_now();
        for (index, remote) in self.remotes.iter().enumerate() {
            let is_reserve = index >= self.options.workers;
            let counters = &remote.counters;
            counters.add_to(metrics);
            if is_reserve && remote.seat.thread().is_none() && counters.polls() == 0 {
                continue;
            }
            let current = remote.seat.current_task(now, &self.live);
            let (polls, sleeps) = (counters.polls(), counters.sleeps());
            metrics.threads.push(ThreadMetrics { is_reserve, polls, sleeps, current });
        }
        let mut reserve = self.reserves.metrics();
        reserve.has_sentinel = self.baton.holder().is_some();
        self.reserve_counters.fill(&mut reserve);
        metrics.reserve = Some(reserve);
        metrics.latest_long_polls = self.hogs.latest();
    }

    /// Returns whether all threads that there may be are inside polls in which they were found asleep.
    fn do_all_sleep(&self) -> bool {
        self.reserves.serving_count() == self.reserves.limit()
            && self.running().all(|remote| remote.seat.is_blocked())
    }

    /// Returns how all threads stand, if a task waits for one of them, or an event for somebody who looks.
    fn standstill(&self, waiting_count: usize, now: Instant) -> Option<Standstill> {
        if waiting_count == 0 && !self.server.has_events(now) {
            return None;
        }
        let mut standstill = Standstill::default();
        for remote in self.running() {
            let (began, _) = remote.seat.current()?;
            let used = kernel_help::processor_time(remote.seat.thread()?)?;
            standstill.add(began, used);
        }
        Some(standstill)
    }

    /// The workers and the reserve threads that serve.
    fn running(&self) -> impl Iterator<Item = &Remote> {
        self.workers().iter().chain(self.reserves.serving().map(|slot| self.reserve(slot)))
    }

    /// Returns how many threads sleep in the kernel inside a poll.
    fn blocked_count(&self) -> usize {
        self.blocked.count()
    }

    /// Returns where the tasks that are polled at this moment were spawned.
    pub(crate) fn polled_sites(&self) -> Vec<&'static Location<'static>> {
        self.remotes.iter().filter_map(|remote| Some(remote.seat.current()?.1)).collect()
    }

    /// Returns where the tasks that are polled were spawned, with where their threads sleep in the kernel,
    /// if they do.
    fn caught_in(&self) -> Vec<(&'static Location<'static>, Option<String>)> {
        let place = |remote: &Remote| remote.seat.thread().and_then(thread_state::sleeps_in);
        let polled =
            self.remotes.iter().filter_map(|remote| Some((remote, remote.seat.current()?)));
        polled.map(|(remote, (_, site))| (site, place(remote))).collect()
    }

    pub(crate) const fn options(&self) -> &Options {
        &self.options
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

    /// Runs `future` on the calling thread, which is no worker, and sleeps while it is pending.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _entered = context::enter(Handle { scheduler: Scheduler::Hybrid(Arc::clone(self)) });
        let main = Arc::new(ThreadWaker {
            is_woken: AtomicBool::new(true),
            is_parked: AtomicBool::new(false),
            thread: thread::current(),
            shared: Arc::downgrade(self),
        });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        loop {
            if main.is_woken.swap(false, Ordering::AcqRel) {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    return value;
                }
            } else {
                main.is_parked.store(true, Ordering::Relaxed);
                thread::park();
                main.is_parked.store(false, Ordering::Relaxed);
                kernel_help::note_answer();
            }
        }
    }

    /// A thread outside of the runtime is woken. If some thread hogs, the supervisor sees in a moment
    /// whether it had to wait for a processor, and makes the hogs give theirs away then.
    fn note_call(&self) {
        if self.has_long_polls.load(Ordering::Relaxed) && self.signal.is_some() {
            kernel_help::note_call();
            self.alarm.guard(monotonic_now().as_nanos(), SOON, || false);
        }
    }
}

pub(crate) fn spawn<F>(shared: &Arc<Shared>, mut label: Label, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let kind = Kind::of::<F>();
    label.kind = Some(kind);
    label.credit = context::credit_of_new(kind, &shared.foreign_credit);
    let scheduler = Arc::clone(shared);
    let schedule =
        WithInfo(move |task: Runnable, info: ScheduleInfo| scheduler.schedule(task, &info));
    let (runnable, handle) = task_cell::spawn(&shared.live, label, future, schedule);
    if let Some(runnable) = runnable {
        runnable.schedule();
    }
    handle
}

/// Returns whether this thread is a worker of this flavor.
pub(crate) fn is_worker() -> bool {
    LOCAL.try_with(|local| local.borrow().is_some()).unwrap_or(false)
}

/// Returns whether this thread was found asleep in the kernel in the poll that it runs.
pub(crate) fn was_asleep() -> bool {
    let place = LOCAL.try_with(|local| local.borrow().as_ref().map(|l| (l.owner, l.place)));
    let Some((owner, place)) = place.ok().flatten() else { return false };
    context::with_current(|handle| match handle.map(|handle| &handle.scheduler) {
        Some(Scheduler::Hybrid(shared)) if std::ptr::eq(owner, Arc::as_ptr(shared)) => {
            shared.remotes[place].seat.is_blocked()
        }
        _ => false,
    })
}

/// Wakes the thread that sits in `block_on`.
struct ThreadWaker {
    /// Set by whoever wakes (release), taken by the thread (acquire).
    is_woken: AtomicBool,
    /// It sleeps, or is about to: a hint.
    is_parked: AtomicBool,
    thread: Thread,
    /// Weak, since the runtime keeps wakers.
    shared: Weak<Shared>,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            if self.is_parked.load(Ordering::Relaxed)
                && let Some(shared) = self.shared.upgrade()
            {
                // First: the thread clears the note as soon as it runs.
                shared.note_call();
            }
            self.thread.unpark();
        }
    }
}
