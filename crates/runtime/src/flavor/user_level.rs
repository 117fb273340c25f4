//! The user-level flavor: one kernel thread runs every task, and the detection server between polls.
//!
//! The thread that calls `block_on` drives. Between two polls it reads the clock; when a poll pass
//! is due, or it was notified, it makes one. With nothing to run it sleeps in the poller.
//! Threads that call `block_on` meanwhile poll their own futures and local tasks, and one of them takes over
//! when the driver leaves: see [`home`](super::home).

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    mem,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use async_task::{ScheduleInfo, WithInfo};
use crossbeam::deque::{Injector, Steal};
use vigie_detect::{Detected, Driver, Instant, Server, budget, clock::monotonic_now};

use super::home::{BlockOnState, HomeThread, HomeThreads};
use crate::{
    blocking_pool::BlockingPool,
    context::EnteredContext,
    lane::{Cause, Lane, Rank, RankedQueue, Share, SharedCredit},
    measure::{Hogs, Metrics, Sampler, ThreadCounters, ThreadMetrics, foreign_ready_time},
    options::Options,
    panics::contained,
    sync::{
        Arc, AtomicBool, Ordering, RealGuard, RealMutex, TryLockError, fence, thread, thread_local,
    },
    task_cell::{self, JoinHandle, Label, LiveTasks, Runnable, drop_task, poll},
};

pub(crate) struct UserLevelShared {
    pub(crate) server: Server,
    pub(crate) live: Arc<LiveTasks>,
    pub(crate) pool: Arc<BlockingPool>,
    pub(crate) options: Options,
    /// Enters this runtime on a thread.
    enter: fn(Arc<Self>) -> EnteredContext,
    /// Tasks that other threads made ready.
    injected: Injector<Runnable>,
    /// Credit for tasks that are not spawned by a task.
    pub(crate) foreign_credit: SharedCredit,
    /// The driving thread's data, held by one `block_on` at a time.
    core: RealMutex<Core>,
    /// The threads that have called `block_on`.
    homes: HomeThreads,
    hogs: Hogs,
    /// A foreign event loop calls for ticks, and watches the poller's descriptor.
    is_embedded: AtomicBool,
    /// The runtime was dropped: tasks are cancelled instead of polled.
    is_ending: AtomicBool,
    /// Written by the thread that has the core.
    counters: ThreadCounters,
}

struct Core {
    driver: Driver,
    lanes: Lanes,
    share: Share,
}

#[derive(Default)]
struct Lanes {
    reaction: VecDeque<Queued>,
    compute: RankedQueue<Queued>,
    /// All tasks are in the compute lane, in order of arrival.
    is_first_come_first_served: bool,
}

/// The state of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    Over,
    /// The calling thread is in `block_on`, and ends it there.
    GoesOn,
    TimedOut,
}

/// A ready task.
struct Queued {
    task: Runnable,
    /// It belongs to the thread that has it in its lanes.
    is_local: bool,
}

/// The data of a thread in `block_on`; schedule functions find it here.
struct Local {
    /// The runtime that this thread runs.
    owner: Arc<UserLevelShared>,
    home: Arc<HomeThread>,
    /// It has the core. Otherwise, only its own local tasks are in its lanes.
    drives: Cell<bool>,
    lanes: RefCell<Lanes>,
    cause: Cell<Cause>,
    /// The time of the latest switch, in nanoseconds.
    switched_at: Cell<u64>,
    sampler: Sampler,
}

thread_local! {
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

impl UserLevelShared {
    pub(crate) fn new(
        server: Server,
        options: Options,
        enter: fn(Arc<Self>) -> EnteredContext,
    ) -> Self {
        let pool = BlockingPool::new(options.blocking_threads, options.blocking_keep_alive);
        let driver = server.driver();
        let share = Share::new(options.reaction_slice);
        let is_first_come_first_served = options.is_first_come_first_served;
        let lanes = Lanes { is_first_come_first_served, ..Lanes::default() };
        let hogs = Hogs::new(options.quantum);
        Self {
            server,
            live: Arc::new(LiveTasks::new()),
            pool: Arc::new(pool),
            options,
            enter,
            injected: Injector::new(),
            foreign_credit: SharedCredit::new(),
            core: RealMutex::new(Core { driver, lanes, share }),
            homes: HomeThreads::default(),
            hogs,
            is_embedded: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            counters: ThreadCounters::new(),
        }
    }

    /// Queues a task that became ready: in this thread's own lanes if it drives this runtime.
    fn schedule(&self, task: Runnable, info: &ScheduleInfo) {
        if self.server.is_inherited() {
            // Neither run nor dropped: the queues and the future's contents belong to the parent.
            mem::forget(task);
            return;
        }
        let Some(task) = self.push_here(task, info, None) else { return };
        task.metadata().note_ready(foreign_ready_time());
        self.injected.push(task);
        self.server.unpark();
    }

    /// Queues a local task that became ready, for its home thread.
    fn schedule_local(&self, home: &Arc<HomeThread>, task: Runnable, info: &ScheduleInfo) {
        if self.server.is_inherited() {
            mem::forget(task);
            return;
        }
        let Some(task) = self.push_here(task, info, Some(home)) else { return };
        task.metadata().note_ready(foreign_ready_time());
        home.post(task, &self.server);
    }

    /// Queues a task in this thread's own lanes if it may run here; otherwise returns it. A task with a home
    /// runs there, any other on the thread that drives.
    fn push_here(
        &self,
        task: Runnable,
        info: &ScheduleInfo,
        home: Option<&Arc<HomeThread>>,
    ) -> Option<Runnable> {
        let mut task = Some(task);
        // The thread-local may already be destroyed while the thread ends.
        let _ = LOCAL.try_with(|local| {
            let local = local.borrow();
            let Some(local) = local.as_ref().filter(|local| std::ptr::eq(&*local.owner, self))
            else {
                return;
            };
            if !home.map_or_else(|| local.drives.get(), |home| Arc::ptr_eq(home, &local.home)) {
                return;
            }
            let Some(task) = task.take() else { return };
            let ready = local.sampler.ready_time(local.cause.get(), info.woken_while_running);
            task.metadata().note_ready(ready);
            let (account, switched_at) = (&task.metadata().account, local.switched_at.get());
            let now = account.woken_at(ready.nanos(), switched_at, || monotonic_now().as_nanos());
            let queued = Queued { task, is_local: home.is_some() };
            local.lanes.borrow_mut().push(queued, info.woken_while_running, now);
        });
        task
    }

    fn has_injected(&self) -> bool {
        !self.injected.is_empty()
    }

    /// Runs `future` on the calling thread until it is ready, and the runtime while no other thread does.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _entered = (self.enter)(Arc::clone(self));
        let installed = Installed::new(self);
        let local = &*installed.local;
        let main = Arc::new(MainWaker {
            is_woken: AtomicBool::new(true),
            home: Arc::clone(&local.home),
            shared: Arc::clone(self),
        });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
        let value = match self.wait_for_core(local, &main, &mut poll) {
            Waited::Ready(value) => value,
            Waited::Core(core) => {
                let mut driving = Driving::new(self, local, core);
                let value = self.drive(local, &mut driving.core, &main, &mut poll);
                if self.is_embedded.load(Ordering::SeqCst) {
                    driving.core.driver.interrupt();
                }
                value
            }
        };
        self.finish_if_ending();
        value
    }

    /// Runs what is ready on the calling thread, at most for a quantum, and polls for events, without sleeping. The
    /// caller sleeps on the driver's descriptor afterwards. Does nothing while another thread is in `block_on`.
    pub(crate) fn tick(self: &Arc<Self>) {
        self.run_tick();
        self.finish_if_ending();
    }

    fn run_tick(self: &Arc<Self>) {
        let _entered = (self.enter)(Arc::clone(self));
        let mut installed = Installed::new(self);
        installed.leaves_for = BlockOnState::Embedded;
        let local = &*installed.local;
        // Before the core is asked for: a thread that has it makes the descriptor readable when it leaves.
        self.is_embedded.store(true, Ordering::SeqCst);
        let Some(core) = self.try_core() else { return };
        let mut driving = Driving::new(self, local, core);
        let core = &mut *driving.core;

        local.cause.set(Cause::Detection);
        contained("a poll pass", || core.driver.poll());
        let mut now = monotonic_now();
        local.note_wake(now);
        let end = now + self.options.quantum;
        while now < end {
            if core.driver.is_due(now) {
                local.cause.set(Cause::Detection);
                contained("a poll pass", || core.driver.poll());
                now = monotonic_now();
                local.note_time(now);
            }
            if self.run_one(local, core, &mut now) {
                continue;
            }
            self.counters.count_sleep();
            local.cause.set(Cause::Detection);
            let is_awaited = || local.home.is_notified() || self.has_injected();
            let announced = contained("a sleep", || core.driver.announce_sleep(is_awaited));
            if announced == Some(Detected::Nothing) {
                return;
            }
            contained("a poll pass", || core.driver.poll());
            now = monotonic_now();
            local.note_time(now);
        }
        // The descriptor is readable at once: what is left runs in the next tick.
        core.driver.interrupt();
    }

    fn try_core(&self) -> Option<RealGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Polls the main future and the thread's local tasks until the future is ready or the core is free.
    fn wait_for_core<T>(
        &self,
        local: &Local,
        main: &MainWaker,
        poll: &mut impl FnMut() -> Poll<T>,
    ) -> Waited<'_, T> {
        if let Some(core) = self.try_core() {
            return Waited::Core(core);
        }
        local.home.set_block_on_state(BlockOnState::Waiting);
        loop {
            if main.is_woken.swap(false, Ordering::SeqCst) {
                local.cause.set(Cause::Poll);
                if let Poll::Ready(value) = poll() {
                    return Waited::Ready(value);
                }
            }
            // Paired with the fence of the thread that releases the core: it sees that this thread waits, or
            // this thread sees that the core is free.
            fence(Ordering::SeqCst);
            if let Some(core) = self.try_core() {
                return Waited::Core(core);
            }
            local.take_posted();
            let next = local.lanes.borrow_mut().pop(Lane::Reaction);
            if let Some((task, lane)) = next {
                let now = monotonic_now();
                local.note_wake(now);
                self.poll(local, &local.home.counters, task, lane, now.as_nanos());
            } else if !main.is_woken.load(Ordering::SeqCst) && !local.home.is_notified() {
                local.home.counters.count_sleep();
                thread::park();
            }
        }
    }

    /// Runs the runtime until the main future is ready.
    fn drive<T>(
        &self,
        local: &Local,
        core: &mut Core,
        main: &MainWaker,
        poll: &mut impl FnMut() -> Poll<T>,
    ) -> T {
        let mut now = monotonic_now();
        local.note_wake(now);
        loop {
            if core.driver.is_due(now) {
                local.cause.set(Cause::Detection);
                contained("a poll pass", || core.driver.detect());
                now = monotonic_now();
                local.note_time(now);
            }

            if main.is_woken.swap(false, Ordering::SeqCst) {
                local.cause.set(Cause::Poll);
                budget::begin(now);
                let polled = poll();
                budget::end();
                if let Poll::Ready(value) = polled {
                    return value;
                }
                now = monotonic_now();
            }

            if !self.run_one(local, core, &mut now) && !main.is_woken.load(Ordering::SeqCst) {
                self.counters.count_sleep();
                local.cause.set(Cause::Detection);
                contained("a sleep", || {
                    core.driver.park_unless(None, || {
                        main.is_woken.load(Ordering::SeqCst)
                            || local.home.is_notified()
                            || self.has_injected()
                    })
                });
                now = monotonic_now();
                local.note_wake(now);
            }
        }
    }

    /// Polls the next task, if one is ready, and sets `now` to the end of its poll.
    fn run_one(&self, local: &Local, core: &mut Core, now: &mut Instant) -> bool {
        self.take_injected(local);
        local.take_posted();
        let next = local.lanes.borrow_mut().pop(core.share.first());
        let Some((task, lane)) = next else { return false };
        let end = self.poll(local, &self.counters, task, lane, now.as_nanos());
        let (reacting, computing) = local.lanes.borrow().counts();
        core.share.record(lane, end.saturating_sub(now.as_nanos()), reacting, computing);
        *now = Instant::from_nanos(end);
        true
    }

    /// Polls a task, or drops it if it is aborted. Returns the poll's time in nanoseconds.
    fn poll(
        &self,
        local: &Local,
        counters: &ThreadCounters,
        task: Runnable,
        lane: Lane,
        now: u64,
    ) -> u64 {
        local.cause.set(Cause::Poll);
        local.switched_at.set(now);
        let info = task.metadata();
        if info.is_aborted() || self.is_ending.load(Ordering::Relaxed) {
            drop_task(task);
            return monotonic_now().as_nanos();
        }
        counters.begin_poll(info.ready_time(), now);
        poll::begin_poll(now, info.account.credit(), info.is_proven(), self.options.long_poll);
        // The future's panics are caught inside; only a waker's panic can get here.
        contained("a poll", || task.run());
        let end = poll::take_poll_end().unwrap_or_else(|| monotonic_now().as_nanos());
        let nanos = end.saturating_sub(now);
        counters.end_poll(lane, nanos);
        if u128::from(nanos) > self.options.long_poll.as_nanos()
            && let Some(poll) = poll::take_long_poll()
        {
            let end = Instant::from_nanos(end);
            counters.count_long_poll(self.hogs.record(poll, lane, end));
        }
        end
    }

    /// Fills in what this flavor knows about itself.
    pub(crate) fn fill_metrics(&self, metrics: &mut Metrics) {
        let counters = &self.counters;
        counters.add_to(metrics);
        metrics.latest_long_polls = self.hogs.latest();
        let (polls, sleeps) = (counters.polls(), counters.sleeps());
        metrics.threads.push(ThreadMetrics { is_reserve: false, polls, sleeps, current: None });
        let (polls, sleeps) = self.homes.add_to(metrics);
        if polls > 0 {
            metrics.threads.push(ThreadMetrics { is_reserve: false, polls, sleeps, current: None });
        }
    }

    fn take_injected(&self, local: &Local) {
        if self.injected.is_empty() {
            return;
        }
        let mut lanes = local.lanes.borrow_mut();
        // Bounded by the present length, so that other threads cannot keep us here.
        for _ in 0..self.injected.len() {
            match self.injected.steal() {
                Steal::Success(task) => {
                    lanes.push_foreign(Queued { task, is_local: false }, local.switched_at.get());
                }
                Steal::Empty => break,
                Steal::Retry => {}
            }
        }
    }

    /// Cancels every task and closes the server. A thread in `block_on`, which may be this one, cancels the tasks itself, and
    /// closes the server at its end. If it is another thread, it has time until `deadline`.
    pub(crate) fn shutdown(self: &Arc<Self>, deadline: Instant) -> Shutdown {
        self.is_ending.store(true, Ordering::SeqCst);
        self.live.close();
        let is_owner = |local: &RefCell<Option<Rc<Local>>>| {
            local.borrow().as_ref().is_some_and(|local| Arc::ptr_eq(&local.owner, self))
        };
        // Where the thread ends, and has dropped the variable, it is in no `block_on`.
        let runs_here = LOCAL.try_with(is_owner).unwrap_or(false);
        let mut pause = Duration::from_micros(20);
        loop {
            if runs_here {
                return Shutdown::GoesOn;
            }
            if let Some(core) = self.try_core() {
                self.finish(core);
                return Shutdown::Over;
            }
            if monotonic_now() >= deadline {
                return Shutdown::TimedOut;
            }
            thread::park_timeout(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// Ends a shutdown that began while this thread ran the runtime.
    fn finish_if_ending(self: &Arc<Self>) {
        if self.is_ending.load(Ordering::SeqCst)
            && let Some(core) = self.try_core()
        {
            self.finish(core);
        }
    }

    fn finish(self: &Arc<Self>, mut core: RealGuard<'_, Core>) {
        let _entered = (self.enter)(Arc::clone(self));
        let mut lanes = mem::take(&mut core.lanes);
        drop(core);
        loop {
            let task = lanes
                .pop(Lane::Reaction)
                .map(|(task, _)| task)
                .or_else(|| self.homes.take_any())
                .or_else(|| steal(&self.injected));
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

fn steal(inject: &Injector<Runnable>) -> Option<Runnable> {
    loop {
        match inject.steal() {
            Steal::Success(task) => return Some(task),
            Steal::Empty => return None,
            Steal::Retry => {}
        }
    }
}

pub(crate) fn spawn_local<F>(
    shared: &Arc<UserLevelShared>,
    label: Label,
    future: F,
) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let label = label.of_kind::<F>(&shared.foreign_credit);
    let home = LOCAL.with(|local| local.borrow().as_ref().map(|local| Arc::clone(&local.home)));
    let home = home.expect("invariant: asked of `runs_here` before");
    let scheduler = Arc::clone(shared);
    let schedule = WithInfo(move |task: Runnable, info: ScheduleInfo| {
        scheduler.schedule_local(&home, task, &info);
    });
    task_cell::spawn_local(&shared.live, label, future, schedule)
}

pub(crate) fn schedule(
    shared: &Arc<UserLevelShared>,
) -> impl async_task::Schedule<task_cell::TaskInfo> + Send + Sync + 'static {
    let shared = Arc::clone(shared);
    WithInfo(move |task: Runnable, info: ScheduleInfo| shared.schedule(task, &info))
}

/// Returns whether an event waits for this thread; `None` if it runs no runtime of this flavor.
pub(crate) fn is_awaited(now: Instant) -> Option<bool> {
    let local = LOCAL.try_with(|local| local.borrow().clone()).ok().flatten()?;
    if !local.lanes.borrow().reaction.is_empty() {
        return Some(true);
    }
    let shared = &*local.owner;
    let computes_for_long = poll::has_polled_for(shared.options.quantum, now);
    let others_wait = computes_for_long && local.lanes.borrow().counts().1 > 0;
    Some(others_wait || shared.has_injected() || shared.server.has_announced_events(now))
}

/// Returns whether this thread is inside a `block_on` of this flavor, and of `shared` if given.
pub(crate) fn runs_here(shared: Option<&UserLevelShared>) -> bool {
    let runs = LOCAL.try_with(|local| {
        let local = local.borrow();
        let local = local.as_ref();
        local.is_some_and(|local| shared.is_none_or(|shared| std::ptr::eq(&*local.owner, shared)))
    });
    runs.unwrap_or(false)
}

impl Lanes {
    /// Queues a task that becomes ready at `now`.
    fn push(&mut self, queued: Queued, was_running: bool, now: u64) {
        if self.is_first_come_first_served {
            // All at the same place, so that they run in order of arrival.
            let rank = Rank { place: 0, needs_ns: 0, is_short: false };
            return self.compute.push(queued, rank);
        }
        let account = &queued.task.metadata().account;
        match account.choose_lane(was_running, now) {
            Lane::Reaction => self.reaction.push_back(queued),
            Lane::Compute => {
                let (place, needs_ns) =
                    (account.credit().place(now), account.usual_ns().unwrap_or(0));
                let rank = Rank { place, needs_ns, is_short: false };
                self.compute.push(queued, rank);
            }
        }
    }

    /// Queues a task that another thread made ready, on a thread whose last switch was at `switched_at`.
    fn push_foreign(&mut self, queued: Queued, switched_at: u64) {
        let now = queued.task.metadata().judged_at(switched_at);
        self.push(queued, false, now);
    }

    /// Takes the next task, from lane `first` if it has one, and returns its lane.
    fn pop(&mut self, first: Lane) -> Option<(Runnable, Lane)> {
        let computes_first = first == Lane::Compute;
        if computes_first && let Some(queued) = self.compute.pop() {
            return Some((queued.task, Lane::Compute));
        }
        let reaction = self.reaction.pop_front().map(|queued| (queued.task, Lane::Reaction));
        reaction.or_else(|| Some((self.compute.pop()?.task, Lane::Compute)))
    }

    /// Returns how many tasks wait in each lane.
    fn counts(&self) -> (usize, usize) {
        (self.reaction.len(), self.compute.len())
    }

    /// Takes everything out, in order.
    fn drain(&mut self) -> impl Iterator<Item = Queued> {
        let computing: Vec<_> = std::iter::from_fn(|| self.compute.pop()).collect();
        mem::take(&mut self.reaction).into_iter().chain(computing)
    }

    /// Takes the local tasks out.
    fn split_off_local(&mut self, now: u64) -> Vec<Runnable> {
        let (local, other): (Vec<_>, Vec<_>) = self.drain().partition(|queued| queued.is_local);
        other.into_iter().for_each(|queued| self.push(queued, false, now));
        local.into_iter().map(|queued| queued.task).collect()
    }
}

impl Local {
    /// Records a time that was read.
    fn note_time(&self, now: Instant) {
        self.switched_at.set(now.as_nanos());
        poll::sample_processor_time(now.as_nanos());
    }

    /// Like [`note_time`](Self::note_time), after a time in which the thread ran no task of this runtime.
    fn note_wake(&self, now: Instant) {
        poll::note_sleep(now.as_nanos());
        self.note_time(now);
    }

    /// Takes local tasks that other threads made ready.
    fn take_posted(&self) {
        if self.home.is_notified() {
            let now = self.switched_at.get();
            let mut lanes = self.lanes.borrow_mut();
            for task in self.home.take_posted() {
                lanes.push_foreign(Queued { task, is_local: true }, now);
            }
        }
    }
}

/// The end of a wait for the core.
enum Waited<'a, T> {
    Core(RealGuard<'a, Core>),
    /// The main future is ready.
    Ready(T),
}

/// A thread inside `block_on`.
struct Installed {
    local: Rc<Local>,
    leaves_for: BlockOnState,
}

impl Installed {
    fn new(shared: &Arc<UserLevelShared>) -> Self {
        let local = Rc::new(Local {
            owner: Arc::clone(shared),
            home: shared.homes.of_this_thread(),
            drives: Cell::new(false),
            lanes: RefCell::default(),
            cause: Cell::new(Cause::Foreign),
            switched_at: Cell::new(0),
            sampler: Sampler::new(0),
        });
        LOCAL.with(|current| *current.borrow_mut() = Some(Rc::clone(&local)));
        Self { local, leaves_for: BlockOnState::Away }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = LOCAL.try_with(|current| current.borrow_mut().take());
        self.local.home.set_block_on_state(self.leaves_for);
        let now = self.local.switched_at.get();
        let left = self.local.lanes.borrow_mut().split_off_local(now);
        if !left.is_empty() {
            self.local.home.keep(left.into_iter());
        }
    }
}

/// The core while the thread has it, with its lanes in the thread-local; they go back even if the main future
/// panics.
struct Driving<'a> {
    core: RealGuard<'a, Core>,
    local: &'a Local,
    /// Dropped after the core.
    _successor: Successor<'a>,
}

impl<'a> Driving<'a> {
    fn new(shared: &'a UserLevelShared, local: &'a Local, mut core: RealGuard<'a, Core>) -> Self {
        local.home.set_block_on_state(BlockOnState::Driving);
        local.drives.set(true);
        core.driver.end_sleep();
        let mut lanes = mem::take(&mut core.lanes);
        {
            let now = monotonic_now().as_nanos();
            let mut own = local.lanes.borrow_mut();
            own.drain().for_each(|queued| lanes.push(queued, false, now));
            *own = lanes;
        }
        Self { core, local, _successor: Successor(shared) }
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        // Only a panic of the main future leaves it open.
        budget::end();
        self.local.drives.set(false);
        let mut lanes = self.local.lanes.take();
        let now = self.local.switched_at.get();
        let own = lanes.split_off_local(now);
        self.core.lanes = lanes;
        let mut left = self.local.lanes.borrow_mut();
        for task in own {
            left.push(Queued { task, is_local: true }, false, now);
        }
    }
}

/// Tells a thread that waits for the core that it is free.
struct Successor<'a>(&'a UserLevelShared);

impl Drop for Successor<'_> {
    fn drop(&mut self) {
        // Paired with the one in `wait_for_core`.
        fence(Ordering::SeqCst);
        self.0.homes.notify_waiting(&self.0.server);
    }
}

/// Wakes the future that `block_on` runs.
struct MainWaker {
    /// Set by the waking thread before it notifies; cleared by the loop (home-1).
    is_woken: AtomicBool,
    home: Arc<HomeThread>,
    shared: Arc<UserLevelShared>,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_here = LOCAL.try_with(|local| {
            let local = local.borrow();
            let local = local.as_ref().filter(|local| std::ptr::eq(&*local.owner, &*self.shared));
            local.is_some_and(|local| Arc::ptr_eq(&local.home, &self.home))
        });
        let is_here = is_here.unwrap_or(false);
        if !self.is_woken.swap(true, Ordering::SeqCst) && !is_here {
            self.home.notify(&self.shared.server);
        }
    }
}
