//! All parts of a worker's sleep together: two workers, the wait point with its word, its lock and its
//! gate, and a thread that queues tasks. The workers do what `flavor/hybrid.rs` does, step by step; the
//! wait point does what `vigie-detect`'s does. Whatever the order, each task is run: otherwise all
//! threads sleep in the end, and loom says so.

use std::{env, process::Command};

use loom::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread,
};

use super::{idle::Idle, parker::Parker};

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The last searcher does not look once more after it has announced its sleep.
    NoLastLook,
    /// A host does not ask whether it is awaited before it sleeps.
    NoAsking,
    /// A searcher that has found work wakes nobody.
    NoHandingOn,
    /// Whoever queues a task wakes nobody.
    NoWaking,
}

const PARKED: u32 = 1;
const RUNG: u32 = 2;

/// The wait point: `detect`'s park word, driver's lock, and the eventfd behind the gate.
struct WaitPoint {
    bits: AtomicU32,
    /// Not loom's `Mutex`, whose `try_lock` waits where it should fail.
    driver: AtomicBool,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl WaitPoint {
    fn new() -> Self {
        Self {
            bits: AtomicU32::new(0),
            driver: AtomicBool::new(false),
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
        if self.bits.fetch_or(RUNG, Ordering::SeqCst) == PARKED {
            *self.gate.lock().expect("no panic") = true;
            self.opened.notify_one();
        }
    }

    /// A look, which takes the ring of whomever it was for.
    fn detect(&self) {
        if self.try_lock() {
            self.bits.fetch_and(!RUNG, Ordering::SeqCst);
            self.unlock();
        }
    }

    /// Returns whether the wait point was free.
    fn park_unless(&self, is_awaited: impl FnOnce() -> bool) -> bool {
        if !self.try_lock() {
            return false;
        }
        let is_rung = self.bits.fetch_or(PARKED, Ordering::SeqCst) & RUNG != 0;
        if !is_rung && !is_awaited() {
            let mut is_open = self.gate.lock().expect("no panic");
            while !*is_open {
                is_open = self.opened.wait(is_open).expect("no panic");
            }
            *is_open = false;
        }
        self.bits.fetch_and(!RUNG, Ordering::SeqCst);
        self.bits.fetch_and(!PARKED, Ordering::SeqCst);
        self.unlock();
        true
    }
}

struct Shared {
    fault: Fault,
    idle: Idle,
    parkers: Vec<Parker>,
    wait_point: WaitPoint,
    /// How many tasks are queued.
    queue: AtomicUsize,
    /// How many have not been run.
    left: AtomicUsize,
    is_shutdown: AtomicBool,
}

impl Shared {
    fn wake_one(&self) {
        if let Some(worker) = self.idle.choose() {
            self.parkers[worker].unpark(|| self.wait_point.unpark());
        }
    }

    fn push(&self) {
        self.queue.fetch_add(1, Ordering::Release);
        if self.fault != Fault::NoWaking {
            self.wake_one();
        }
    }

    fn take(&self) -> bool {
        let lowered =
            self.queue.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
        lowered.is_ok()
    }

    fn run_task(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.is_shutdown.store(true, Ordering::SeqCst);
            for parker in &self.parkers {
                parker.unpark(|| self.wait_point.unpark());
            }
        }
    }

    /// `Worker::work`, with nothing to poll and no queue of its own.
    fn work(&self, index: usize, looks: bool) {
        self.parkers[index].bind();
        let mut is_searching = false;
        while !self.is_shutdown.load(Ordering::SeqCst) {
            if looks {
                self.wait_point.detect();
            }
            if !is_searching {
                is_searching = self.idle.begin_search();
            }
            if is_searching && self.take() {
                is_searching = false;
                if self.idle.end_search() && self.fault != Fault::NoHandingOn {
                    self.wake_one();
                }
                self.run_task();
            } else {
                is_searching = self.sleep(index, is_searching);
            }
        }
    }

    /// `Worker::sleep`. Returns whether the worker is a searcher now.
    fn sleep(&self, index: usize, is_searching: bool) -> bool {
        let was_last = self.idle.begin_sleep(index, is_searching);
        if was_last && self.fault != Fault::NoLastLook && self.queue.load(Ordering::Acquire) > 0 {
            self.wake_one();
        }
        loop {
            self.parkers[index].park(|is_awaited| {
                self.wait_point.park_unless(|| self.fault != Fault::NoAsking && is_awaited())
            });
            if self.is_shutdown.load(Ordering::SeqCst) {
                return !self.idle.end_sleep(index);
            }
            if !self.idle.is_sleeping(index) {
                return true;
            }
        }
    }
}

/// `workers` workers run `tasks` tasks; the first worker looks at each switch.
fn whole(workers: usize, tasks: usize, fault: Fault) {
    let shared = Arc::new(Shared {
        fault,
        idle: Idle::new(workers),
        parkers: (0..workers).map(|_| Parker::new()).collect(),
        wait_point: WaitPoint::new(),
        queue: AtomicUsize::new(0),
        left: AtomicUsize::new(tasks),
        is_shutdown: AtomicBool::new(false),
    });
    let mut threads: Vec<_> = (0..workers)
        .map(|index| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.work(index, index == 0 && workers > 1))
        })
        .collect();
    let pushing = Arc::clone(&shared);
    threads.push(thread::spawn(move || (0..tasks).for_each(|_| pushing.push())));
    for thread in threads {
        thread.join().expect("it ends");
    }
    assert_eq!(shared.left.load(Ordering::SeqCst), 0);
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

/// Goal: these models can fail. Method: each fault that one of them must find; in processes of their
/// own, since loom cannot unwind out of a deadlock.
#[test]
fn faults_are_found() {
    if let Ok(number) = env::var(VARIABLE) {
        let number: usize = number.parse().expect("a number");
        let (workers, fault) = FAULTS[number];
        loom::model(move || whole(workers, 1, fault));
        return;
    }
    for (number, fault) in FAULTS.iter().enumerate() {
        let this = env::current_exe().expect("this binary has a path");
        let mut child = Command::new(this);
        child.args(["whole::faults_are_found", "--exact"]).env(VARIABLE, number.to_string());
        let output = child.output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        let is_found = errors.contains("deadlock; threads") || text.contains("deadlock; threads");
        assert!(is_found, "{fault:?} was not found: the model shows nothing\n{text}\n{errors}");
    }
}

const VARIABLE: &str = "VIGIE_LOOM_FAULT";

/// Faults, and the number of workers with which they show.
const FAULTS: [(usize, Fault); 3] =
    [(1, Fault::NoWaking), (1, Fault::NoLastLook), (2, Fault::NoAsking)];
