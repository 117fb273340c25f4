//! All parts of a worker's sleep together: the threads of `flavor/hybrid/worker.rs`, from their first step to
//! their last, the poller with its word, its lock and its gate, and a thread that queues tasks. The
//! poller does what `vigie-detect`'s does; what else is replaced stands in `threads.rs`. Whatever the order, each
//! task is run: otherwise all threads sleep in the end, and loom says so.

use std::{env, process::Command, time::Duration};

use crossbeam::deque::{Stealer, Worker as Queue};
use loom::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread,
};
use vigie_detect::Instant;

use super::{
    RANK,
    door::AtomicCell,
    lane::{Cause, ComputeQueue},
    order::{Injected, OwnQueues, Parts, ReserveMode, Turns, WakeContext},
    parking::{idle::Idle, parker::Parker, watchdog::Watchdog},
    sentinel::Sentinel,
    task_cell::Runnable,
    threads::{HybridShared, start_reserve, start_worker},
    worker_slot::{Blocked, WorkerSlot},
};

/// The omitted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The last searcher does not check once more after it has announced its sleep.
    NoLastCheck,
    /// A host does not ask whether it is awaited before it sleeps.
    NoAsking,
    /// A poll pass takes the notification while others sleep.
    NoLeaving,
    /// A worker that is back from the poller does not ask whether another one was called.
    NoAnswering,
    /// A thread that queues a task wakes no worker.
    NoWaking,
    /// An idle blocking thread is not told of a closure.
    NoNotice,
}

const NOTIFIED: u32 = 1;
const PARKED: u32 = 2;

/// The most threads in the poller: workers go there while one is, a reserve thread if none is.
const SLEEPERS_MAX: u32 = 2;

/// The poller: `detect`'s park state, driver's lock, and the eventfd behind the gate, which wakes any one of the sleepers.
pub(crate) struct Poller {
    bits: AtomicU32,
    /// Not loom's `Mutex`, whose `try_lock` waits where it should fail.
    driver: AtomicBool,
    /// A second one may join the one that sleeps. Written under the driver's lock.
    is_shared: AtomicBool,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl Poller {
    fn new() -> Self {
        Self {
            bits: AtomicU32::new(0),
            driver: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            gate: Mutex::new(false),
            opened: Condvar::new(),
        }
    }

    fn try_lock(&self) -> bool {
        let locked =
            self.driver.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        locked.is_ok()
    }

    fn unlock(&self) {
        self.driver.store(false, Ordering::Release);
    }

    pub(crate) fn unpark(&self) {
        let before = self.bits.fetch_or(NOTIFIED, Ordering::SeqCst);
        if before & NOTIFIED == 0 && before >= PARKED {
            *self.gate.lock().expect("no panic") = true;
            self.opened.notify_one();
        }
    }

    fn parked_count(&self) -> u32 {
        self.bits.load(Ordering::SeqCst) / PARKED
    }

    /// Returns whether a thread sleeps here, or is about to.
    pub(crate) fn is_watched(&self) -> bool {
        self.parked_count() > 0
    }

    /// A poll pass, which takes a notification, whichever thread it was for. Sleepers are not told.
    pub(crate) fn detect(&self, fault: Fault) {
        if self.try_lock() {
            if self.parked_count() == 0 || fault == Fault::NoLeaving {
                *self.gate.lock().expect("no panic") = false;
                self.bits.fetch_and(!NOTIFIED, Ordering::SeqCst);
            }
            self.unlock();
        }
    }

    /// Returns whether there was room.
    pub(crate) fn park_unless(&self, is_worker: bool, is_awaited: impl FnOnce() -> bool) -> bool {
        while !self.try_lock() {
            thread::yield_now();
        }
        let parked_count = self.parked_count();
        let has_room = parked_count == 0
            || is_worker && parked_count < SLEEPERS_MAX && self.is_shared.load(Ordering::Relaxed);
        if !has_room {
            self.unlock();
            return false;
        }
        if parked_count == 0 {
            self.is_shared.store(is_worker, Ordering::Relaxed);
        }
        let is_notified = self.bits.fetch_add(PARKED, Ordering::SeqCst) & NOTIFIED != 0;
        // A notification while another thread sleeps has woken that one.
        let sleeps = !(is_notified && parked_count == 0) && !is_awaited();
        if sleeps {
            self.unlock();
            let mut is_open = self.gate.lock().expect("no panic");
            while !*is_open {
                is_open = self.opened.wait(is_open).expect("no panic");
            }
            *is_open = false;
        }
        self.bits.fetch_sub(PARKED, Ordering::SeqCst);
        if sleeps {
            // Under the lock, but nothing else here depends on it.
            self.bits.fetch_and(!NOTIFIED, Ordering::SeqCst);
        } else {
            if is_notified && parked_count == 0 {
                self.bits.fetch_and(!NOTIFIED, Ordering::SeqCst);
            }
            self.unlock();
        }
        true
    }
}

/// The action of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Nothing else.
    Ends,
    /// It queues another one and does not end before that has run.
    WaitsForAnother,
}

pub(crate) struct Model<T = Task> {
    pub(crate) fault: Fault,
    pub(crate) idle: Idle,
    pub(crate) sentinel: Sentinel,
    pub(crate) watchdog: Watchdog,
    pub(crate) blocked: Blocked,
    pub(crate) serves: AtomicCell<ReserveMode>,
    /// Reserve threads that serve.
    pub(crate) serving_count: AtomicUsize,
    pub(crate) worker_slots: Vec<WorkerSlot>,
    pub(crate) parkers: Vec<Parker>,
    pub(crate) poller: Arc<Poller>,
    pub(crate) injected: Injected<T>,
    pub(crate) reacting: Vec<Stealer<T>>,
    pub(crate) computing: Vec<ComputeQueue<T>>,
    /// The injected reactions are in no queue of loom's: this word, read before each use and changed before a
    /// task joins them, lets other threads run in between. (No model queues a reaction on a worker.)
    pub(crate) switch_point: AtomicUsize,
    /// How many tasks have not been run.
    pub(crate) left: Mutex<usize>,
    pub(crate) was_run: Condvar,
    pub(crate) is_shutdown: AtomicBool,
}

impl<T> Parts for Model<T> {
    type Task = T;

    fn injected(&self) -> &Injected<T> {
        self.switch_point.load(Ordering::Relaxed);
        &self.injected
    }

    fn reacting(&self) -> &[Stealer<T>] {
        &self.reacting
    }

    fn computing(&self) -> &[ComputeQueue<T>] {
        &self.computing
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
        &self.worker_slots[place]
    }

    fn serving(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::empty()
    }

    fn serving_count(&self) -> usize {
        self.serving_count.load(Ordering::Relaxed)
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
        self.parkers[place].unpark(|| self.poller.unpark());
    }

    fn is_called(&self, place: usize) -> bool {
        self.parkers[place].is_called()
    }

    fn take_back(&self, place: usize) -> bool {
        self.parkers[place].take_back()
    }

    fn notify(&self) {
        self.poller.unpark();
    }
}

/// When everything happens.
pub(crate) const NOW: Instant = Instant::from_nanos(1_000_000_000);

impl<T> Model<T> {
    /// Makes the parts of a runtime of `workers` workers and one reserve thread with `left` tasks to run, and
    /// the workers' queues.
    pub(crate) fn new(workers: usize, left: usize, fault: Fault) -> (Self, Vec<Queue<T>>) {
        let queues: Vec<_> = (0..workers).map(|_| Queue::new_fifo()).collect();
        let model = Self {
            fault,
            idle: Idle::new(workers),
            sentinel: Sentinel::new(),
            watchdog: Watchdog::new(Duration::from_micros(200)).expect("a timer"),
            blocked: Blocked::new(),
            serves: AtomicCell::new(ReserveMode::Nothing),
            serving_count: AtomicUsize::new(0),
            // One more for a reserve thread.
            worker_slots: (0..=workers).map(|_| WorkerSlot::new()).collect(),
            parkers: (0..=workers).map(|_| Parker::new()).collect(),
            poller: Arc::new(Poller::new()),
            injected: Injected::new(),
            reacting: queues.iter().map(Queue::stealer).collect(),
            computing: (0..workers).map(|_| ComputeQueue::new()).collect(),
            switch_point: AtomicUsize::new(0),
            left: Mutex::new(left),
            was_run: Condvar::new(),
            is_shutdown: AtomicBool::new(false),
        };
        (model, queues)
    }
}

/// The state for the decisions of `order.rs`, without a thread that follows them.
pub(crate) fn model(workers: usize, left: usize, fault: Fault) -> (Arc<Model>, Vec<Queue<Task>>) {
    let (model, queues) = Model::new(workers, left, fault);
    (Arc::new(model), queues)
}

/// Starts the workers; the first of several polls for events at each switch.
fn start(shared: &Arc<HybridShared>, queues: Vec<Queue<Runnable>>) -> Vec<thread::JoinHandle<()>> {
    let polls = queues.len() > 1;
    let start = |(index, queue)| start_worker(shared, index, queue, polls && index == 0);
    queues.into_iter().enumerate().map(start).collect()
}

/// Waits until all threads have ended, and all tasks have run.
fn join(shared: &HybridShared, threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("it ends");
    }
    assert_eq!(*shared.left.lock().expect("no panic"), 0);
    assert!(!shared.is_polling(), "a thread that has ended is inside a poll");
}

/// `workers` workers run `tasks` tasks that come from outside, one for each lane by turns.
fn whole(workers: usize, tasks: usize, fault: Fault) {
    let (shared, queues) = HybridShared::new(workers, tasks, fault);
    let mut threads = start(&shared, queues);
    threads.push(start_push(&shared, tasks));
    join(&shared, threads);
}

/// Starts a thread that queues tasks. The first thread of a model only waits, so that going from one of the
/// others to the next costs none of the preemptions that loom may make.
fn start_push(shared: &Arc<HybridShared>, tasks: usize) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        for number in 0..tasks {
            let rank = number.is_multiple_of(2).then_some(RANK);
            shared.queue_from_outside(Runnable::new(Task::Ends), rank, NOW.as_nanos());
        }
    })
}

/// A worker runs a task that comes from outside, while another thread polls for events.
fn beside_a_poll_pass(fault: Fault) {
    let (shared, queues) = HybridShared::new(1, 1, fault);
    let mut threads = start(&shared, queues);
    threads.push(start_poll_pass(&shared));
    threads.push(start_push(&shared, 1));
    join(&shared, threads);
}

/// Starts a thread that polls for events once.
fn start_poll_pass(shared: &Arc<HybridShared>) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || shared.poller.detect(shared.fault))
}

/// Two workers run a task that holds one of them until another task has run, which it queues itself.
fn held(fault: Fault) {
    let (shared, queues) = HybridShared::new(2, 2, fault);
    shared.injected.compute.push(Runnable::new(Task::WaitsForAnother), RANK);
    let threads = start(&shared, queues);
    join(&shared, threads);
}

/// The reserve thread watches while the only worker is inside a long poll, and another thread polls for events; a
/// task of the reaction lane comes from outside.
fn sentinel(fault: Fault) {
    let (shared, _queues) = HybridShared::new(1, 1, fault);
    let threads = vec![start_reserve(&shared), start_poll_pass(&shared)];
    shared.switch_point.fetch_add(1, Ordering::Relaxed);
    shared.queue_from_outside(Runnable::new(Task::Ends), None, NOW.as_nanos());
    join(&shared, threads);
}

/// Goal: one worker never sleeps over a task. Method: two tasks.
#[test]
fn one_worker_runs_all() {
    loom::model(|| whole(1, 2, Fault::None));
}

/// Goal: a worker never sleeps over a task whose notification a poll pass has taken.
#[test]
fn a_poll_pass_takes_no_call() {
    loom::model(|| beside_a_poll_pass(Fault::None));
}

/// Goal: two workers never sleep over a task, whichever of them is in the poller, and although one
/// takes the other's notifications. Method: one task, and one preemption less than other models have.
#[test]
fn two_workers_run_all() {
    let mut model = loom::model::Builder::new();
    // With two it takes more than nine minutes, and with one half a minute.
    model.preemption_bound = model.preemption_bound.map(|bound| bound.saturating_sub(1));
    model.check(|| whole(2, 1, Fault::None));
}

/// Goal: a task that waits behind a long poll is run by another worker, whatever that does when it is queued.
/// Method: a task that queues another one and waits for it.
#[test]
fn another_worker_runs_what_waits() {
    loom::model(|| held(Fault::None));
}

/// Goal: the reserve thread in the poller never sleeps over a reaction, whichever thread takes its notifications.
#[test]
fn the_sentinel_runs_reactions() {
    loom::model(|| sentinel(Fault::None));
}

/// The watchdog's setting for a poll that should be checked soon, and for one that may take longer.
pub(crate) const SOON: Option<Duration> = Some(Duration::from_micros(2 * 200));
pub(crate) const BRIEF: Option<Duration> = Some(Duration::from_micros(2 * 3 * 200));
pub(crate) const LATER: Option<Duration> = Some(Duration::from_micros(2 * 5 * 200));

impl Model {
    /// Lets the last worker sleep.
    pub(crate) fn let_one_sleep(&self) {
        let _ = self.idle.begin_sleep(1, false);
    }

    /// Returns whether the thread at `place` was called.
    pub(crate) fn was_called(&self, place: usize) -> bool {
        let mut sleeps = false;
        self.parkers[place].park(|_| {
            sleeps = true;
            true
        });
        !sleeps
    }
}

/// Goal: for a task from outside a sleeping worker is woken; else, if it reacts, the reserve thread in the
/// poller; and where neither is there, the supervisor checks soon. Method: each lane, with and without each
/// of them.
#[test]
fn tasks_from_outside_are_seen_to() {
    for (case, (sleeps, watches)) in
        [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        for rank in [None, Some(RANK)] {
            loom::model(move || {
                let (model, _queues) = model(2, 1, Fault::None);
                if sleeps {
                    model.let_one_sleep();
                }
                if watches {
                    model.sentinel.take(2, || false);
                }
                model.queue_from_outside(Task::Ends, rank, NOW.as_nanos());
                let is_called = !sleeps && watches && rank.is_none();
                let watchdog = if sleeps || is_called { None } else { SOON };
                assert_eq!(model.watchdog.timer.take(), watchdog, "{case}, {rank:?}");
                assert_eq!((model.was_called(1), model.was_called(2)), (sleeps, is_called));
                let counts = (model.injected.reaction.len(), model.injected.compute.len());
                assert_eq!(counts, if rank.is_none() { (1, 0) } else { (0, 1) });
            });
        }
    }
}

/// Goal: a task that is queued in the middle of a poll delays no other task: a sleeping worker is woken, or
/// the supervisor checks, sooner for reactions, unless the poll is usually short; after the poll, or in a poll pass,
/// nothing of this is needed. Method: every case.
#[test]
fn tasks_behind_polls_are_seen_to() {
    let bits = |case: usize| std::array::from_fn(|bit| case >> bit & 1 == 1);
    for case in 0..1 << 6 {
        let [sleeps, reacts, of_worker, is_polled, was_running, is_short] = bits(case);
        loom::model(move || {
            let (model, queues) = model(2, 1, Fault::None);
            if sleeps {
                model.let_one_sleep();
            }
            let own = OwnQueues { reacting: &queues[0], worker: of_worker.then_some(0) };
            let rank = (!reacts).then_some(RANK);
            let cause = if is_polled { Cause::Poll } else { Cause::Detection };
            let waking = WakeContext { cause, was_running, is_short, switched_at: NOW.as_nanos() };
            model.queue_here(&own, Task::Ends, rank, waking);

            // A reserve thread has no compute lane of its own.
            let is_given_away = !of_worker && !reacts;
            let must_wait = !is_given_away && is_polled && !was_running;
            let wakes = sleeps && (is_given_away || must_wait && !is_short);
            // A poll that is short as a rule keeps a reaction waiting for long only if it breaks that rule.
            let check = match (reacts, is_short) {
                (true, true) => BRIEF,
                (true, false) => SOON,
                (false, _) => LATER,
            };
            let watchdog = if must_wait && !wakes { check } else { None };
            assert_eq!(
                (model.was_called(1), model.watchdog.timer.take()),
                (wakes, watchdog),
                "{case}"
            );
            let counts = [
                queues[0].len(),
                model.injected.reaction.len(),
                model.computing[0].len(),
                model.injected.compute.len(),
            ];
            let place = 2 * usize::from(!reacts) + usize::from(!of_worker);
            assert_eq!(counts, std::array::from_fn(|at| usize::from(at == place)), "{case}");
        });
    }
}

/// Goal: these models can fail. Method: each fault that one of them must find; in processes of their
/// own, since loom cannot unwind out of a deadlock.
#[test]
fn faults_are_found() {
    if let Ok(number) = env::var(VARIABLE) {
        let number: usize = number.parse().expect("a number");
        let (model, fault) = FAULTS[number];
        loom::model(move || model(fault));
        return;
    }
    for (number, (_, fault)) in FAULTS.iter().enumerate() {
        let this = env::current_exe().expect("this binary has a path");
        let mut child = Command::new(this);
        child.args(["whole::faults_are_found", "--exact"]).env(VARIABLE, number.to_string());
        let output = child.output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        let is_found = errors.contains("deadlock; threads") || text.contains("deadlock; threads");
        assert!(
            is_found,
            "{number}, {fault:?}, was not found: the model shows nothing\n{text}\n{errors}"
        );
    }
}

const VARIABLE: &str = "VIGIE_LOOM_FAULT";

/// Faults, and the models in which they show.
const FAULTS: [(fn(Fault), Fault); 10] = [
    (|fault| whole(1, 1, fault), Fault::NoWaking),
    (|fault| whole(1, 1, fault), Fault::NoLastCheck),
    (beside_a_poll_pass, Fault::NoAsking),
    (beside_a_poll_pass, Fault::NoLeaving),
    (|fault| whole(2, 1, fault), Fault::NoAnswering),
    (held, Fault::NoWaking),
    (held, Fault::NoLastCheck),
    (sentinel, Fault::NoWaking),
    (sentinel, Fault::NoLastCheck),
    (super::pool::all_run, Fault::NoNotice),
];
