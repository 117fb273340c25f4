//! `flavor/hybrid/worker.rs` as it stands, with `local.rs`, `order.rs` and the parts below them, over what the
//! models have in the place of the rest: a poller, tasks that count down, and a kernel that helps no thread.

use std::{
    cell::{Cell, RefCell},
    ops::Deref,
    rc::Rc,
    time::Duration,
};

use crossbeam::{
    deque::{Stealer, Worker as Queue},
    utils::CachePadded,
};
use loom::{sync::Arc, thread};
use vigie_detect::{Detected, Instant};

use super::{
    RANK,
    context::EnteredContext,
    door::{AtomicCell, Ordering},
    lane::{Cause, ComputeQueue},
    measure::{Hogs, ThreadCounters},
    order::{Injected, OwnQueues, Parts, ReserveMode, WakeContext},
    parking::{idle::Idle, parker::Parker, watchdog::Watchdog},
    sentinel::Sentinel,
    supervision::kernel_help::HogTimer,
    task_cell::{Runnable, TaskInfo},
    whole::{Fault, Model, NOW, Poller, Task},
    worker_slot::{Blocked, WorkerSlot},
};
pub(crate) use super::{order, worker_slot};
use local::{Local, Remote};

#[path = "../../src/flavor/hybrid/local.rs"]
mod local;
#[path = "polls.rs"]
mod polls;
#[path = "../../src/flavor/hybrid/worker.rs"]
mod worker;

mod need {
    /// No model has kinds, so there is nothing to try.
    pub(super) const fn may_try(_workers: usize, _serving: usize) -> bool {
        false
    }
}

mod shared {
    pub(super) use super::{HybridShared, LOCAL, was_asleep};
}

/// The state that the threads share.
pub(crate) struct HybridShared {
    model: Model<Runnable>,
    remotes: Vec<Remote>,
    server: Server,
    options: Options,
    reserves: Reserves,
    hogs: Hogs,
    signal: Option<i32>,
    enter: fn(Arc<Self>) -> EnteredContext,
    /// What threads that cannot see the injected tasks see instead.
    nothing: Injected<Runnable>,
}

loom::thread_local! {
    static LOCAL: RefCell<Option<Rc<Local<HybridShared>>>> = RefCell::new(None);
    /// Whether this thread polls for events at each switch.
    static POLLS: Cell<bool> = Cell::new(false);
    /// This thread sees no work.
    static IS_BLIND: Cell<bool> = Cell::new(false);
    /// This thread's time, which passes where a model says so.
    static CLOCK: Cell<Instant> = Cell::new(NOW);
}

impl HybridShared {
    /// Makes the shared part of a runtime of `workers` workers and one reserve thread with `left` tasks to run,
    /// and the workers' queues.
    pub(crate) fn new(
        workers: usize,
        left: usize,
        fault: Fault,
    ) -> (Arc<Self>, Vec<Queue<Runnable>>) {
        let (shared, queues) = Self::parts(workers, left, fault);
        (Arc::new(shared), queues)
    }

    fn parts(workers: usize, left: usize, fault: Fault) -> (Self, Vec<Queue<Runnable>>) {
        let (model, queues) = Model::new(workers, left, fault);
        let remotes = (0..=workers).map(|_| Remote {
            parker: Parker::new(),
            worker_slot: WorkerSlot::new(),
            hog_timer: HogTimer::new(),
            counters: CachePadded::new(ThreadCounters),
        });
        let shared = Self {
            remotes: remotes.collect(),
            server: Server { poller: Arc::clone(&model.poller), fault, is_steady: false },
            model,
            options: Options {
                workers,
                quantum: Duration::from_millis(1),
                long_poll: Duration::from_micros(200),
                reaction_slice: Duration::from_millis(1),
                kernel_help: KernelHelp { short_slices: false },
            },
            reserves: Reserves { is_serving: false },
            hogs: Hogs,
            signal: None,
            enter: |_| EnteredContext,
            nothing: Injected::new(),
        };
        (shared, queues)
    }

    /// Returns whether a thread is inside a poll, as far as others know.
    pub(crate) fn is_polling(&self) -> bool {
        self.remotes.iter().any(|remote| remote.worker_slot.current().is_some())
    }

    /// Queues another task, as `HybridShared::schedule_here` does, and waits until it has run.
    fn wait_for_another(&self, local: &Local<Self>) {
        let (cause, is_short) = (local.cause.get(), local.is_short.get());
        let switched_at = local.switched_at.get();
        let waking = WakeContext { cause, was_running: false, is_short, switched_at };
        self.queue_here(&local.own(), Runnable::new(Task::Ends), Some(RANK), waking);
        // The supervisor's check, if it was asked for one.
        if self.watchdog.timer.take().is_some() {
            self.wake_one();
        }
        let mut left = self.left.lock().expect("no panic");
        while *left > 1 {
            left = self.was_run.wait(left).expect("no panic");
        }
    }

    fn end_thread(&self) {}

    fn blocked_count(&self) -> usize {
        self.blocked.count()
    }

    fn long_poll_ns(&self) -> u64 {
        200_000
    }

    fn count(&self, (): ()) {}
}

/// Starts a worker.
pub(crate) fn start_worker(
    shared: &Arc<HybridShared>,
    index: usize,
    queue: Queue<Runnable>,
    polls: bool,
) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        POLLS.with(|place| place.set(polls));
        worker::run(shared, index, queue);
    })
}

/// Starts the reserve thread.
pub(crate) fn start_reserve(shared: &Arc<HybridShared>) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || worker::run_reserve(shared, 0))
}

/// The action of a task's poll.
pub(crate) fn poll(task: Task) {
    let local = LOCAL.with(|local| local.borrow().clone()).expect("a thread of the runtime");
    let shared = &*local.owner;
    if task == Task::WaitsForAnother {
        shared.wait_for_another(&local);
    }
    let mut left = shared.left.lock().expect("no panic");
    *left -= 1;
    shared.was_run.notify_one();
    if *left == 0 {
        drop(left);
        shared.is_shutdown.store(true, Ordering::SeqCst);
        for remote in &shared.remotes {
            remote.parker.unpark(|| shared.server.unpark());
        }
    }
}

impl Deref for HybridShared {
    type Target = Model<Runnable>;

    fn deref(&self) -> &Self::Target {
        &self.model
    }
}

/// As the real ones, but for the planted faults.
impl Parts for HybridShared {
    type Task = Runnable;

    fn injected(&self) -> &Injected<Runnable> {
        if IS_BLIND.with(Cell::get) { &self.nothing } else { self.model.injected() }
    }

    fn reacting(&self) -> &[Stealer<Runnable>] {
        self.model.reacting()
    }

    fn computing(&self) -> &[ComputeQueue<Runnable>] {
        self.model.computing()
    }

    fn is_short_now(&self, _: &Self::Task) -> bool {
        false
    }

    fn is_tried_now(&self, _: &Self::Task) -> bool {
        false
    }

    fn turned_short(&self) -> u64 {
        0
    }

    fn worker_slot(&self, place: usize) -> &WorkerSlot {
        &self.remotes[place].worker_slot
    }

    fn serving(&self) -> impl Iterator<Item = usize> + '_ {
        self.model.serving()
    }

    fn serving_count(&self) -> usize {
        self.model.serving_count()
    }

    fn idle(&self) -> &Idle {
        self.model.idle()
    }

    fn sentinel(&self) -> &Sentinel {
        self.model.sentinel()
    }

    fn watchdog(&self) -> &Watchdog {
        self.model.watchdog()
    }

    fn blocked(&self) -> &Blocked {
        self.model.blocked()
    }

    fn serves(&self) -> &AtomicCell<ReserveMode> {
        self.model.serves()
    }

    fn unpark(&self, place: usize) {
        if self.fault != Fault::NoWaking {
            self.remotes[place].parker.unpark(|| self.server.unpark());
        }
    }

    fn is_called(&self, place: usize) -> bool {
        self.fault != Fault::NoAnswering && self.remotes[place].parker.is_called()
    }

    fn take_back(&self, place: usize) -> bool {
        self.remotes[place].parker.take_back()
    }

    fn notify(&self) {
        self.server.unpark();
    }

    fn has_work(&self) -> bool {
        self.fault != Fault::NoLastCheck && self.model.has_work()
    }
}

fn monotonic_now() -> Instant {
    CLOCK.with(Cell::get)
}

/// Moves the calling thread's clock on.
fn pass(time: Duration) {
    CLOCK.with(|clock| clock.set(clock.get() + time));
}

struct Options {
    workers: usize,
    quantum: Duration,
    long_poll: Duration,
    reaction_slice: Duration,
    kernel_help: KernelHelp,
}

struct KernelHelp {
    short_slices: bool,
}

/// The detection server: no more than its poller.
struct Server {
    poller: Arc<Poller>,
    fault: Fault,
    /// The workers poll for events as often as the policies want.
    is_steady: bool,
}

impl Server {
    fn driver(&self) -> Driver {
        let (poller, fault) = (Arc::clone(&self.poller), self.fault);
        let (is_steady, polls) = (self.is_steady, POLLS.with(Cell::get));
        Driver { poller, fault, is_steady, is_watcher: false, polls }
    }

    fn poller_fd(&self) -> Option<i32> {
        None
    }

    fn unpark(&self) {
        self.poller.unpark();
    }
}

struct Driver {
    poller: Arc<Poller>,
    fault: Fault,
    is_steady: bool,
    is_watcher: bool,
    polls: bool,
}

impl Driver {
    fn sharing(self) -> Self {
        self
    }

    fn for_watcher(mut self) -> Self {
        self.is_watcher = true;
        self
    }

    fn is_due(&self, _: Instant) -> bool {
        self.polls
    }

    fn detect(&self) {
        self.poller.detect(self.fault);
    }

    fn park_unless(
        &mut self,
        until: Option<Instant>,
        is_awaited: impl FnOnce() -> bool,
    ) -> Detected {
        if let Some(until) = until {
            // No model with such a sleep wakes it earlier.
            CLOCK.with(|clock| clock.set(until));
            return Detected::Nothing;
        }
        let is_awaited = || match self.fault {
            Fault::NoAsking => false,
            Fault::NoLastCheck if self.is_watcher => blindly(is_awaited),
            _ => is_awaited(),
        };
        let was_free = self.poller.park_unless(!self.is_watcher, is_awaited);
        if was_free { Detected::Nothing } else { Detected::Busy }
    }

    fn is_watched(&self) -> bool {
        self.poller.is_watched()
    }

    fn resume(&self, _: Instant) {}

    fn last_pass(&self) -> Instant {
        NOW
    }

    fn last_gap(&self) -> Instant {
        if self.is_steady { Instant::from_nanos(0) } else { NOW }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn wants_second_sleeper(&self, _: Instant) -> bool {
        false
    }
}

fn blindly(ask: impl FnOnce() -> bool) -> bool {
    IS_BLIND.with(|is_blind| is_blind.set(true));
    let answer = ask();
    IS_BLIND.with(|is_blind| is_blind.set(false));
    answer
}

/// No thread sleeps in the kernel.
fn was_asleep() -> bool {
    false
}

/// The reserve threads' slots: one thread, which the supervisor calls again as soon as it rests.
struct Reserves {
    is_serving: bool,
}

impl Reserves {
    fn rest(&self, _slot: usize, _blocked: usize) -> bool {
        LOCAL.with(|local| {
            let local = local.borrow();
            let shared = &local.as_ref().expect("a thread of this runtime").owner;
            let goes_on = !shared.server.is_steady && !shared.is_shutdown.load(Ordering::SeqCst);
            if goes_on {
                thread::yield_now();
            }
            goes_on
        })
    }

    fn leave(&self, _slot: usize) {}

    fn is_serving(&self) -> bool {
        self.is_serving
    }

    fn activate(&self, _: &HybridShared) {}
}
