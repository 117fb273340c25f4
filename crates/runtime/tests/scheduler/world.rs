//! The runtime of one run: the scheduler's own queues and words, and the tasks, events and parkers around
//! them.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    time::Duration,
};

use crossbeam::deque::{Stealer, Worker as Queue};
use vigie_detect::Instant;

use super::{
    checks::Checks,
    hybrid::{
        census,
        order::{self, Injected, Limits, OwnQueues, Parts, ReserveMode, WakeContext},
        sentinel::Sentinel,
        worker_slot::{Blocked, WorkerSlot},
    },
    kernel::Kernel,
    kind::TaskKinds,
    lane::{Account, Cause, ComputeQueue, Credit, Early, Lane, SharedCredit, Trust},
    loads::Kind,
    parking::{idle::Idle, watchdog::Watchdog},
    sync::AtomicCell,
    task_cell::TaskInfo,
};

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    pub(crate) cores: usize,
    pub(crate) wake_ns: u64,
    pub(crate) has_tick: bool,
    pub(crate) long_poll: Duration,
    pub(crate) quantum: Duration,
    pub(crate) pass_interval_ns: u64,
    /// How long the sources send events.
    pub(crate) length_ns: u64,
    /// They end earlier after this many polls, unless a load needs more.
    pub(crate) polls_max: u64,
}

impl Options {
    /// How many workers can run at a time.
    pub(crate) fn processors(&self) -> usize {
        self.workers.min(self.cores)
    }

    pub(crate) fn long_poll_ns(&self) -> u64 {
        u64::try_from(self.long_poll.as_nanos()).expect("short")
    }
}

/// The most reserve threads of a run.
pub(crate) const RESERVES: usize = 160;

/// The cost of starting a thread.
pub(crate) const START_NS: u64 = 60_000;

/// The costs of a switch, a poll pass and a system call.
pub(crate) const SWITCH_NS: u64 = 300;
pub(crate) const PASS_NS: u64 = 1_500;
pub(crate) const CALL_NS: u64 = 1_000;

pub(crate) struct Task {
    pub(crate) kind: RefCell<Kind>,
    pub(crate) account: Account,
    /// See `TaskInfo`.
    pub(crate) is_tried: Cell<bool>,
    pub(crate) is_queued: Cell<bool>,
    pub(crate) is_running: Cell<bool>,
    pub(crate) was_woken: Cell<bool>,
    pub(crate) polls: Cell<u64>,
    pub(crate) trust: Trust,
    /// It slept in the kernel in its last poll.
    pub(crate) sleeps: Cell<bool>,
    pub(crate) was_late: Cell<bool>,
    /// When the task was queued, in nanoseconds.
    pub(crate) ready_at: Cell<u64>,
    /// When the event happened that the task waits to be polled for.
    pub(crate) event_at: Cell<Option<u64>>,
    pub(crate) lane: Cell<Lane>,
    pub(crate) used_ns: Cell<u64>,
    /// Messages or requests that wait for it.
    pub(crate) inbox: Cell<u32>,
}

/// Where a thread sleeps: `parker.rs` without its races, which loom explores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parker {
    Awake,
    Notified,
    InWaitPoint,
    /// Notified in the poller.
    Called,
    OnThread,
}

/// What a thread's schedule functions find in `Local`.
pub(crate) struct Local {
    pub(crate) place: usize,
    pub(crate) worker: Option<usize>,
    pub(crate) reacting: Queue<usize>,
    pub(crate) cause: Cell<Cause>,
    pub(crate) is_short: Cell<bool>,
    pub(crate) woken_ns: Cell<u64>,
    pub(crate) switched_at: Cell<u64>,
}

impl Local {
    pub(crate) fn own(&self) -> OwnQueues<'_, usize> {
        OwnQueues { reacting: &self.reacting, worker: self.worker }
    }
}

pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) kernel: Rc<Kernel>,
    injected: Injected<usize>,
    computing: Box<[ComputeQueue<usize>]>,
    reacting: Vec<Stealer<usize>>,
    worker_slots: Vec<WorkerSlot>,
    idle: Idle,
    sentinel: Sentinel,
    watchdog: Watchdog,
    blocked: Blocked,
    serves: AtomicCell<ReserveMode>,
    pub(crate) serving: RefCell<Vec<usize>>,
    pub(crate) spares: RefCell<Vec<usize>>,
    pub(crate) empty: RefCell<Vec<usize>>,
    parkers: Vec<Cell<Parker>>,
    /// The place of the thread that holds the poller.
    /// The sleepers in the poller: an event wakes the last of them.
    pub(crate) watchers: RefCell<Vec<usize>>,
    pub(crate) is_rung: Cell<bool>,
    pub(crate) next_pass: Cell<u64>,
    pub(crate) last_pass: Cell<u64>,
    pub(crate) last_gap: Cell<u64>,
    /// Events that no thread has seen: their tasks.
    events: RefCell<VecDeque<usize>>,
    pub(crate) tasks: RefCell<Vec<Rc<Task>>>,
    foreign_credit: SharedCredit,
    pub(crate) kinds: TaskKinds,
    /// The sources end after this many polls, if not before.
    pub(crate) polls_max: Cell<u64>,
    pub(crate) is_ending: Cell<bool>,
    pub(crate) is_traced: bool,
    pub(crate) queued_count: Cell<usize>,
    pub(crate) checks: RefCell<Checks>,
    pub(crate) random: RefCell<fastrand::Rng>,
}

impl Parts for World {
    type Task = usize;

    fn injected(&self) -> &Injected<usize> {
        &self.injected
    }

    fn reacting(&self) -> &[Stealer<usize>] {
        &self.reacting
    }

    fn computing(&self) -> &[ComputeQueue<usize>] {
        &self.computing
    }

    fn is_short_now(&self, task: &usize) -> bool {
        let cell = self.task(*task);
        census::is_short_now(&cell.account, self.expected_of_kind_ns(&cell))
    }

    fn is_tried_now(&self, task: &usize) -> bool {
        let cell = self.task(*task);
        census::was_brief(&cell.account) && self.may_try_now(&cell)
    }

    fn turned_short(&self) -> u64 {
        self.kinds.turned_short()
    }

    fn worker_slot(&self, place: usize) -> &WorkerSlot {
        &self.worker_slots[place]
    }

    fn serving(&self) -> impl Iterator<Item = usize> + '_ {
        let mut serving = self.serving.borrow().clone();
        serving.sort_unstable();
        serving.into_iter()
    }

    fn serving_count(&self) -> usize {
        self.serving.borrow().len()
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
        match self.parkers[place].replace(Parker::Notified) {
            Parker::InWaitPoint => {
                self.parkers[place].set(Parker::Called);
                self.notify();
            }
            Parker::OnThread => self.kernel.wake(place),
            Parker::Called => self.parkers[place].set(Parker::Called),
            Parker::Awake | Parker::Notified => {}
        }
    }

    fn is_called(&self, place: usize) -> bool {
        self.parkers[place].get() == Parker::Called
    }

    fn take_back(&self, place: usize) -> bool {
        self.is_called(place) && {
            self.parkers[place].set(Parker::InWaitPoint);
            true
        }
    }

    fn notify(&self) {
        self.is_rung.set(true);
        self.wake_watcher();
    }
}

impl World {
    pub(crate) fn new(options: Options, kernel: Rc<Kernel>, queues: &[Queue<usize>]) -> Self {
        let count = options.workers + RESERVES;
        let worker_slot = |place: usize| {
            super::kernel_help::sit_down(u32::try_from(place + 1).expect("few"));
            let worker_slot = WorkerSlot::new();
            worker_slot.take();
            worker_slot
        };
        Self {
            injected: Injected::new(),
            computing: (0..options.workers).map(|_| ComputeQueue::new()).collect(),
            reacting: queues[..options.workers].iter().map(Queue::stealer).collect(),
            worker_slots: (0..count).map(worker_slot).collect(),
            idle: Idle::new(options.workers),
            sentinel: Sentinel::new(),
            watchdog: Watchdog::new(options.long_poll).expect("a model"),
            blocked: Blocked::new(),
            serves: AtomicCell::new(ReserveMode::Nothing),
            serving: RefCell::default(),
            spares: RefCell::default(),
            empty: RefCell::new((options.workers..count).rev().collect()),
            parkers: vec![Cell::new(Parker::Awake); count],
            watchers: RefCell::default(),
            is_rung: Cell::new(false),
            next_pass: Cell::new(0),
            last_pass: Cell::new(0),
            last_gap: Cell::new(0),
            events: RefCell::default(),
            tasks: RefCell::default(),
            foreign_credit: SharedCredit::new(),
            kinds: TaskKinds::new(),
            polls_max: Cell::new(options.polls_max),
            is_ending: Cell::new(false),
            is_traced: std::env::var_os("VIGIE_TRACE").is_some(),
            queued_count: Cell::new(0),
            checks: RefCell::new(Checks::new(options)),
            random: RefCell::new(fastrand::Rng::with_seed(options.seed ^ 0x5EED)),
            options,
            kernel,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.kernel.now()
    }

    pub(crate) fn instant(&self) -> Instant {
        Instant::from_nanos(self.now())
    }

    pub(crate) fn task(&self, task: usize) -> Rc<Task> {
        Rc::clone(&self.tasks.borrow()[task])
    }

    /// The kernel's place of the supervisor.
    pub(crate) fn supervisor(&self) -> usize {
        self.options.workers + RESERVES
    }

    // ------------------------------------------------------------------------ tasks and events

    pub(crate) fn add(&self, kind: Kind, credit: Credit) -> usize {
        let mut tasks = self.tasks.borrow_mut();
        let of_future = kind.of_future();
        let is_tried = self.kinds.may_try(of_future, Early::First, || self.now());
        let expected = self.kinds.expected_ns(of_future, Early::First).filter(|_| !is_tried);
        tasks.push(Rc::new(Task {
            account: Account::new(credit, expected),
            is_tried: Cell::new(is_tried),
            kind: RefCell::new(kind),
            is_queued: Cell::new(false),
            is_running: Cell::new(false),
            was_woken: Cell::new(false),
            polls: Cell::new(0),
            trust: Trust::new(),
            sleeps: Cell::new(false),
            was_late: Cell::new(false),
            ready_at: Cell::new(0),
            event_at: Cell::new(None),
            lane: Cell::new(Lane::Reaction),
            used_ns: Cell::new(0),
            inbox: Cell::new(0),
        }));
        tasks.len() - 1
    }

    /// The time that others of its kind have used in the poll that comes next, if that is one of the first.
    pub(crate) fn expected_ns(&self, task: &Task) -> Option<u32> {
        self.expected_of_kind_ns(task).filter(|_| !task.is_tried.get())
    }

    fn expected_of_kind_ns(&self, task: &Task) -> Option<u32> {
        self.kinds.expected_ns(task.kind.borrow().of_future(), task.trust.early()?)
    }

    /// `TaskInfo::is_tried_now`.
    pub(crate) fn may_try_now(&self, task: &Task) -> bool {
        let of_future = task.kind.borrow().of_future();
        let may_try = |early| self.kinds.may_try(of_future, early, || self.now());
        let is_tried = task.trust.early_if_short().is_some_and(may_try);
        task.is_tried.set(is_tried);
        if is_tried {
            task.account.expect(None);
        }
        is_tried
    }

    /// What `TaskInfo::record_poll` does with kinds and trust.
    pub(crate) fn note_poll(&self, task: &Task, used: u64) {
        let early = task.trust.early();
        if let Some(early) = early {
            self.kinds.note_poll(task.kind.borrow().of_future(), early, used, 0);
        }
        task.trust.note_poll(used > self.options.long_poll_ns());
        if early.is_some() {
            self.may_try_now(task);
            task.account.expect(self.expected_ns(task));
        }
    }

    /// Wakes `task` on the thread `local`, or on none of the runtime's.
    pub(crate) fn wake(&self, task: usize, local: Option<&Local>) {
        let cell = self.task(task);
        if cell.is_running.get() {
            cell.was_woken.set(true);
        } else if !cell.is_queued.get() {
            self.queue(task, local, false);
        }
    }

    /// Queues a task: what `HybridShared::schedule` does.
    pub(crate) fn queue(&self, task: usize, local: Option<&Local>, was_running: bool) {
        let cell = self.task(task);
        cell.is_queued.set(true);
        self.queued_count.set(self.queued_count.get() + 1);
        let is_in_poll = |local: &&Local| local.cause.get() == Cause::Poll && !was_running;
        let ready = local.filter(is_in_poll).is_none().then(|| self.now());
        let switched_at = local.map_or_else(|| self.now(), |local| local.switched_at.get());
        let now = cell.account.woken_at(ready, switched_at, || self.now());
        cell.ready_at.set(self.now());
        let woken_ns =
            local.filter(|local| local.cause.get() == Cause::Poll).map(|local| &local.woken_ns);
        let quantum = self.options.quantum;
        let brief_ns = self.injected().brief_ns(now);
        // Computations yield, and nothing in this world has a budget.
        let is_free = local.is_some_and(|local| local.own().is_free(self));
        let limits = Limits { brief_ns, quantum, gave_way: false, is_free };
        let rank = order::choose_rank(&cell.account, woken_ns, was_running, now, limits);
        let lane = if rank.is_some() { Lane::Compute } else { Lane::Reaction };
        cell.lane.set(lane);
        self.checks.borrow_mut().note_queued(self.now(), lane);
        match local {
            Some(local) => {
                let (cause, is_short) = (local.cause.get(), local.is_short.get());
                let waking = WakeContext { cause, was_running, is_short, switched_at };
                self.queue_here(&local.own(), task, rank, waking);
            }
            None => self.queue_from_outside(task, rank, now),
        }
        self.note_idle();
    }

    /// A thread that is not the runtime's spawns a task.
    pub(crate) fn spawn_from_outside(&self, kind: Kind) -> usize {
        let (now, kinds) = (self.now(), &self.kinds);
        let of_kind = kinds.pay(kind.of_future(), now);
        let task = self.add(kind, of_kind.unwrap_or_else(|| self.foreign_credit.pay_child(now)));
        self.wake(task, None);
        task
    }

    /// The tasks that are ready, and how often each was polled.
    pub(crate) fn ready_tasks(&self) -> Vec<(usize, u64)> {
        let tasks = self.tasks.borrow();
        let ready = tasks.iter().enumerate().filter(|(_, cell)| cell.is_queued.get());
        ready.map(|(task, cell)| (task, cell.polls.get())).collect()
    }

    /// Something happens outside for which `task` waits.
    pub(crate) fn happen(&self, task: usize) {
        let cell = self.task(task);
        cell.inbox.set(cell.inbox.get() + 1);
        if cell.event_at.get().is_some() {
            return;
        }
        cell.event_at.set(Some(self.now()));
        self.events.borrow_mut().push_back(task);
        self.wake_watcher();
    }

    /// The kernel removes the thread that it wakes from its list.
    fn wake_watcher(&self) {
        if let Some(watcher) = self.watchers.borrow_mut().pop() {
            self.kernel.wake(watcher);
        }
    }

    // --------------------------------------------------------------------- the detection server

    pub(crate) fn is_watched(&self) -> bool {
        !self.watchers.borrow().is_empty()
    }

    pub(crate) fn is_pass_due(&self, now: u64) -> bool {
        self.is_rung.get() || now >= self.next_pass.get()
    }

    /// A poll pass between two polls: what `Driver::detect` does.
    pub(crate) fn detect(&self, local: &Local, is_watcher: bool) {
        let now = self.now();
        if !is_watcher {
            let last = self.last_pass.replace(now);
            if now - last > self.options.pass_interval_ns * 3 / 2 {
                self.last_gap.set(now);
            }
        }
        self.next_pass.set(now + self.options.pass_interval_ns);
        if !self.is_watched() {
            self.deliver(local);
        }
    }

    pub(crate) fn deliver(&self, local: &Local) {
        self.is_rung.set(false);
        let events = std::mem::take(&mut *self.events.borrow_mut());
        for task in events {
            self.wake(task, Some(local));
        }
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.borrow().is_empty() || self.is_rung.get()
    }

    /// What `supervisor::is_steady` says.
    pub(crate) fn is_steady(&self, now: Instant) -> bool {
        let [pass, gap] = [&self.last_pass, &self.last_gap].map(|at| Instant::from_nanos(at.get()));
        order::is_steady(now, pass, gap, self.options.long_poll)
    }

    // ------------------------------------------------------------------------------- parking

    pub(crate) fn parker(&self, place: usize) -> &Cell<Parker> {
        &self.parkers[place]
    }

    /// The bookkeeping of a thread around one poll of its task.
    pub(crate) fn info(&self, task: &Task) -> TaskInfo {
        let kind = task.kind.borrow().of_future();
        let early_word = task.trust.early().map_or(0, |early| kind.to_word(early));
        TaskInfo { site: std::panic::Location::caller(), name_key: 0, early_word }
    }
}
