//! All parts of a worker's sleep together: two workers, the wait point with its word, its lock and its
//! gate, and a thread that queues tasks. The workers take the steps of `flavor/hybrid/order.rs`, over queues,
//! counts and parkers as they stand; the loop around them is that of `Worker::work`, and the wait point does
//! what `vigie-detect`'s does. Whatever the order, each task is run: otherwise all threads sleep in the end,
//! and loom says so.

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
    baton::Baton,
    door::AtomicCell,
    lane::{Cause, ComputeQueue},
    order::{Injected, Own, Parts, Serves, Turns, Waking},
    parking::{alarm::Alarm, idle::Idle, parker::Parker},
    seat::{Blocked, Seat},
};

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The last searcher does not look once more after it has announced its sleep.
    NoLastLook,
    /// A host does not ask whether it is awaited before it sleeps.
    NoAsking,
    /// A searcher that has found work wakes nobody.
    NoHandingOn,
    /// A look takes the ring while others sleep.
    NoLeaving,
    /// A worker that is back from the wait point does not ask whether another one was called.
    NoAnswering,
    /// Whoever queues a task wakes nobody.
    NoWaking,
}

const RUNG: u32 = 1;
const PARKED: u32 = 2;

/// The most threads in the wait point: workers go there while one is, a reserve thread if none is.
const SLEEPERS_MAX: u32 = 2;

/// The wait point: `detect`'s park word, driver's lock, and the eventfd behind the gate, which wakes any one of those who sleep.
struct WaitPoint {
    bits: AtomicU32,
    /// Not loom's `Mutex`, whose `try_lock` waits where it should fail.
    driver: AtomicBool,
    /// A second one may join the one that sleeps. Written under the driver's lock.
    is_shared: AtomicBool,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl WaitPoint {
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

    fn unpark(&self) {
        let before = self.bits.fetch_or(RUNG, Ordering::SeqCst);
        if before & RUNG == 0 && before >= PARKED {
            *self.gate.lock().expect("no panic") = true;
            self.opened.notify_one();
        }
    }

    fn parked_count(&self) -> u32 {
        self.bits.load(Ordering::SeqCst) / PARKED
    }

    /// A look, which takes the ring of whomever it was for. Those who sleep are left to see what comes.
    fn detect(&self, fault: Fault) {
        if self.try_lock() {
            if self.parked_count() == 0 || fault == Fault::NoLeaving {
                *self.gate.lock().expect("no panic") = false;
                self.bits.fetch_and(!RUNG, Ordering::SeqCst);
            }
            self.unlock();
        }
    }

    /// Returns whether there was room.
    fn park_unless(&self, is_worker: bool, is_awaited: impl FnOnce() -> bool) -> bool {
        if !self.try_lock() {
            return false;
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
        let is_rung = self.bits.fetch_add(PARKED, Ordering::SeqCst) & RUNG != 0;
        // Who is rung for while another one sleeps has woken that one.
        let sleeps = !(is_rung && parked_count == 0) && !is_awaited();
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
            self.bits.fetch_and(!RUNG, Ordering::SeqCst);
        } else {
            if is_rung && parked_count == 0 {
                self.bits.fetch_and(!RUNG, Ordering::SeqCst);
            }
            self.unlock();
        }
        true
    }
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Nothing else.
    Ends,
    /// It queues another one and does not end before that has run.
    WaitsForAnother,
}

pub(crate) struct Model {
    fault: Fault,
    pub(crate) idle: Idle,
    pub(crate) baton: Baton,
    pub(crate) alarm: Alarm,
    pub(crate) blocked: Blocked,
    pub(crate) serves: AtomicCell<Serves>,
    /// Reserve threads that serve.
    pub(crate) serving_count: AtomicUsize,
    pub(crate) seats: Vec<Seat>,
    pub(crate) parkers: Vec<Parker>,
    wait_point: WaitPoint,
    pub(crate) injected: Injected<Task>,
    /// What the blind see in its place.
    pub(crate) nothing: Injected<Task>,
    pub(crate) reacting: Vec<Stealer<Task>>,
    pub(crate) computing: Vec<ComputeQueue<Task>>,
    /// The injected reactions are in no queue of loom's: this word, read before each use and changed before a
    /// task joins them, lets other threads run in between. (No model queues a reaction on a worker.)
    pub(crate) turn: AtomicUsize,
    /// How many tasks have not been run.
    pub(crate) left: Mutex<usize>,
    pub(crate) was_run: Condvar,
    pub(crate) is_shutdown: AtomicBool,
}

impl Parts for Model {
    type Task = Task;

    fn injected(&self) -> &Injected<Task> {
        self.turn.load(Ordering::Relaxed);
        &self.injected
    }

    fn reacting(&self) -> &[Stealer<Task>] {
        &self.reacting
    }

    fn computing(&self) -> &[ComputeQueue<Task>] {
        &self.computing
    }

    fn seat(&self, place: usize) -> &Seat {
        &self.seats[place]
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
        self.parkers[place].unpark(|| self.wait_point.unpark());
    }

    fn is_called(&self, place: usize) -> bool {
        self.fault != Fault::NoAnswering && self.parkers[place].is_called()
    }

    fn take_back(&self, place: usize) -> bool {
        self.parkers[place].take_back()
    }

    fn ring(&self) {
        self.wait_point.unpark();
    }
}

/// The same parts for a thread that sees no work and wakes nobody.
struct Blind<'a>(&'a Model);

impl Parts for Blind<'_> {
    type Task = Task;

    fn injected(&self) -> &Injected<Task> {
        &self.0.nothing
    }

    fn reacting(&self) -> &[Stealer<Task>] {
        self.0.reacting()
    }

    fn computing(&self) -> &[ComputeQueue<Task>] {
        self.0.computing()
    }

    fn seat(&self, place: usize) -> &Seat {
        self.0.seat(place)
    }

    fn serving(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.serving()
    }

    fn serving_count(&self) -> usize {
        self.0.serving_count()
    }

    fn idle(&self) -> &Idle {
        self.0.idle()
    }

    fn baton(&self) -> &Baton {
        self.0.baton()
    }

    fn alarm(&self) -> &Alarm {
        self.0.alarm()
    }

    fn blocked(&self) -> &Blocked {
        self.0.blocked()
    }

    fn serves(&self) -> &AtomicCell<Serves> {
        self.0.serves()
    }

    fn unpark(&self, place: usize) {
        self.0.unpark(place);
    }

    fn is_called(&self, place: usize) -> bool {
        self.0.is_called(place)
    }

    fn take_back(&self, place: usize) -> bool {
        self.0.take_back(place)
    }

    fn ring(&self) {
        self.0.ring();
    }

    fn wake_one(&self) -> bool {
        false
    }

    fn has_work(&self) -> bool {
        false
    }
}

/// When everything happens.
pub(crate) const NOW: Instant = Instant::from_nanos(1_000_000_000);

impl Model {
    /// One task of each lane by turns, from a thread that is no worker.
    fn push(&self, number: usize) {
        let rank = number.is_multiple_of(2).then_some(RANK);
        match rank {
            Some(rank) if self.fault == Fault::NoWaking => {
                self.injected.compute.push(Task::Ends, rank);
            }
            _ => self.queue_from_outside(Task::Ends, rank, NOW.as_nanos()),
        }
    }

    fn run_task(&self, task: Task, own: &Own<'_, Task>) {
        if task == Task::WaitsForAnother {
            let waking = Waking {
                cause: Cause::Poll,
                was_running: false,
                is_short: false,
                turn_began: NOW.as_nanos(),
            };
            if self.fault == Fault::NoWaking {
                Blind(self).queue_here(own, Task::Ends, Some(RANK), waking);
            } else {
                self.queue_here(own, Task::Ends, Some(RANK), waking);
                // The supervisor's look, if it was asked for one.
                if self.alarm.timer.take().is_some() {
                    self.wake_one();
                }
            }
            let mut left = self.left.lock().expect("no panic");
            while *left > 1 {
                left = self.was_run.wait(left).expect("no panic");
            }
        }
        let mut left = self.left.lock().expect("no panic");
        *left -= 1;
        self.was_run.notify_one();
        if *left == 0 {
            drop(left);
            self.is_shutdown.store(true, Ordering::SeqCst);
            (0..self.parkers.len()).for_each(|place| self.unpark(place));
        }
    }

    /// `Worker::work`, with nothing to poll.
    fn work(&self, index: usize, queue: &Queue<Task>, looks: bool) {
        self.parkers[index].bind();
        let own = &Own { reacting: queue, worker: Some(index) };
        let mut turns = Turns::new(index, Duration::from_millis(1));
        while !self.is_shutdown.load(Ordering::SeqCst) {
            if looks {
                self.wait_point.detect(self.fault);
            }
            if let Some((task, _)) = turns.next(self, own, NOW) {
                self.stop_searching(&mut turns);
                turns.share_out(self, own);
                self.run_task(task, own);
            } else if let Some((task, _)) = turns.search(self, own) {
                self.stop_searching(&mut turns);
                self.run_task(task, own);
            } else {
                self.sleep(&mut turns, index, own);
            }
        }
    }

    fn stop_searching(&self, turns: &mut Turns) {
        if self.fault == Fault::NoHandingOn {
            turns.stop_searching(&Blind(self));
        } else {
            turns.stop_searching(self);
        }
    }

    /// `Worker::sleep`.
    fn sleep(&self, turns: &mut Turns, index: usize, own: &Own<'_, Task>) {
        if self.fault == Fault::NoLastLook {
            turns.begin_sleep(&Blind(self), NOW, None);
        } else {
            turns.begin_sleep(self, NOW, None);
        }
        loop {
            self.parkers[index].park(|is_awaited| {
                let is_awaited = || self.fault != Fault::NoAsking && is_awaited();
                self.wait_point.park_unless(true, is_awaited)
            });
            if turns.ends_sleep(self, own, self.is_shutdown.load(Ordering::SeqCst)) {
                return;
            }
        }
    }
}

impl Model {
    /// `Worker::serve` and `Worker::watch`, of a reserve thread while each worker is inside a long poll.
    fn serve(&self, place: usize) {
        self.parkers[place].bind();
        let queue = Queue::new_fifo();
        let own = &Own { reacting: &queue, worker: None };
        let mut turns = Turns::new(place, Duration::from_millis(1));
        while !self.is_shutdown.load(Ordering::SeqCst) {
            if let Some((task, _)) = turns.next_of_reserve(self, own, NOW) {
                turns.share_out(self, own);
                self.run_task(task, own);
                continue;
            }
            assert!(turns.should_watch(self, NOW, false), "nobody else does");
            self.parkers[place].park(|is_awaited| {
                let was_free = self.wait_point.park_unless(false, || {
                    if self.fault == Fault::NoLastLook {
                        turns.take_baton(&Blind(self), is_awaited)
                    } else {
                        turns.take_baton(self, is_awaited)
                    }
                });
                if !was_free {
                    thread::yield_now();
                }
                true
            });
            self.baton.give_up(place);
        }
    }
}

/// Makes a runtime of `workers` workers with `left` tasks to run, and their queues.
pub(crate) fn model(workers: usize, left: usize, fault: Fault) -> (Arc<Model>, Vec<Queue<Task>>) {
    let queues: Vec<_> = (0..workers).map(|_| Queue::new_fifo()).collect();
    let model = Model {
        fault,
        idle: Idle::new(workers),
        baton: Baton::new(),
        alarm: Alarm::new(Duration::from_micros(200)).expect("a timer"),
        blocked: Blocked::new(),
        serves: AtomicCell::new(Serves::Nothing),
        serving_count: AtomicUsize::new(0),
        // One more for a reserve thread.
        seats: (0..=workers).map(|_| Seat::new()).collect(),
        parkers: (0..=workers).map(|_| Parker::new()).collect(),
        wait_point: WaitPoint::new(),
        injected: Injected::new(),
        nothing: Injected::new(),
        reacting: queues.iter().map(Queue::stealer).collect(),
        computing: (0..workers).map(|_| ComputeQueue::new()).collect(),
        turn: AtomicUsize::new(0),
        left: Mutex::new(left),
        was_run: Condvar::new(),
        is_shutdown: AtomicBool::new(false),
    };
    (Arc::new(model), queues)
}

/// Starts the workers; the first of several looks at each switch.
fn start(model: &Arc<Model>, queues: Vec<Queue<Task>>) -> Vec<thread::JoinHandle<()>> {
    let looks = queues.len() > 1;
    let start = |(index, queue): (usize, Queue<Task>)| {
        let model = Arc::clone(model);
        thread::spawn(move || model.work(index, &queue, looks && index == 0))
    };
    queues.into_iter().enumerate().map(start).collect()
}

/// `workers` workers run `tasks` tasks that come from outside.
fn whole(workers: usize, tasks: usize, fault: Fault) {
    let (model, queues) = model(workers, tasks, fault);
    let mut threads = start(&model, queues);
    let pushing = Arc::clone(&model);
    threads.push(thread::spawn(move || (0..tasks).for_each(|number| pushing.push(number))));
    for thread in threads {
        thread.join().expect("it ends");
    }
    assert_eq!(*model.left.lock().expect("no panic"), 0);
}

/// Two workers run a task that holds one of them until another task has run, which it queues itself.
fn held(fault: Fault) {
    let (model, queues) = model(2, 2, fault);
    model.injected.compute.push(Task::WaitsForAnother, RANK);
    for thread in start(&model, queues) {
        thread.join().expect("it ends");
    }
    assert_eq!(*model.left.lock().expect("no panic"), 0);
}

/// A reserve thread watches while the only worker is inside a long poll, and looks between two tasks of its
/// own; a task of the reaction lane comes from outside.
fn sentinel(fault: Fault) {
    let (model, _queues) = model(1, 1, fault);
    let [serving, looking] = [0, 1].map(|number| {
        let model = Arc::clone(&model);
        thread::spawn(
            move || if number == 0 { model.serve(1) } else { model.wait_point.detect(fault) },
        )
    });
    model.turn.fetch_add(1, Ordering::Relaxed);
    if fault == Fault::NoWaking {
        model.injected.reaction.push(Task::Ends);
    } else {
        model.queue_from_outside(Task::Ends, None, NOW.as_nanos());
    }
    for thread in [serving, looking] {
        thread.join().expect("it ends");
    }
    assert_eq!(*model.left.lock().expect("no panic"), 0);
}

/// Goal: one worker never sleeps over a task. Method: two tasks.
#[test]
fn one_worker_runs_all() {
    loom::model(|| whole(1, 2, Fault::None));
}

/// Goal: two workers never sleep over a task, whichever of them is in the wait point, and although one
/// takes the other's rings. Method: one task.
#[test]
fn two_workers_run_all() {
    loom::model(|| whole(2, 1, Fault::None));
}

/// Goal: a task that waits behind a long poll is run by another worker, whatever that does when it is queued.
/// Method: a task that queues another one and waits for it.
#[test]
fn another_worker_runs_what_waits() {
    loom::model(|| held(Fault::None));
}

/// Goal: the reserve thread in the wait point never sleeps over a reaction, whoever takes its rings.
#[test]
fn the_sentinel_runs_reactions() {
    loom::model(|| sentinel(Fault::None));
}

/// What the alarm is set to for a poll that should be looked at soon, and for one that may take longer.
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

/// Goal: for a task from outside a sleeping worker is woken; else, if it reacts, the reserve thread in the wait
/// point; and where neither is there, the supervisor looks soon. Method: each lane, with and without each
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
                    model.baton.take(2, || false);
                }
                model.queue_from_outside(Task::Ends, rank, NOW.as_nanos());
                let is_called = !sleeps && watches && rank.is_none();
                let alarm = if sleeps || is_called { None } else { SOON };
                assert_eq!(model.alarm.timer.take(), alarm, "{case}, {rank:?}");
                assert_eq!((model.was_called(1), model.was_called(2)), (sleeps, is_called));
                let counts = (model.injected.reaction.len(), model.injected.compute.len());
                assert_eq!(counts, if rank.is_none() { (1, 0) } else { (0, 1) });
            });
        }
    }
}

/// Goal: a task that is queued in the middle of a poll is waited for by nobody: a sleeping worker is woken, or
/// the supervisor looks, sooner for reactions, unless the poll is usually short; after the poll, or out of a look, nothing of this is needed.
/// Method: every case.
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
            let own = Own { reacting: &queues[0], worker: of_worker.then_some(0) };
            let rank = (!reacts).then_some(RANK);
            let cause = if is_polled { Cause::Poll } else { Cause::Detection };
            let waking = Waking { cause, was_running, is_short, turn_began: NOW.as_nanos() };
            model.queue_here(&own, Task::Ends, rank, waking);

            // A reserve thread has no compute lane of its own.
            let is_given_away = !of_worker && !reacts;
            let must_wait = !is_given_away && is_polled && !was_running;
            let wakes = sleeps && (is_given_away || must_wait && !is_short);
            // A poll that is short as a rule keeps a reaction waiting for long only if it breaks that rule.
            let look = match (reacts, is_short) {
                (true, true) => BRIEF,
                (true, false) => SOON,
                (false, _) => LATER,
            };
            let alarm = if must_wait && !wakes { look } else { None };
            assert_eq!((model.was_called(1), model.alarm.timer.take()), (wakes, alarm), "{case}");
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
const FAULTS: [(fn(Fault), Fault); 9] = [
    (|fault| whole(1, 1, fault), Fault::NoWaking),
    (|fault| whole(1, 1, fault), Fault::NoLastLook),
    (|fault| whole(2, 1, fault), Fault::NoAsking),
    (|fault| whole(2, 1, fault), Fault::NoLeaving),
    (|fault| whole(2, 1, fault), Fault::NoAnswering),
    (held, Fault::NoWaking),
    (held, Fault::NoLastLook),
    (sentinel, Fault::NoWaking),
    (sentinel, Fault::NoLastLook),
];
