//! Model checks of the runtime's lock-free parts: `RUSTFLAGS="--cfg loom" cargo test --release --test
//! loom`. The modules are compiled into this test as they stand, over loom's atomics. Each model is
//! also run with a fault planted, and must fail then: a model that cannot fail shows nothing.
#![cfg(loom)]
#![expect(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the models use a part of each module, and are no library"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

#[path = "../src/blocking_pool.rs"]
mod blocking_pool;
#[path = "../src/sync.rs"]
mod door;
#[path = "../src/flavor/hybrid/injected.rs"]
mod injected;
#[path = "../src/lane/mod.rs"]
mod lane;
#[path = "../src/flavor/hybrid/need.rs"]
mod need;
#[path = "../src/flavor/hybrid/order.rs"]
mod order;
#[path = "../src/flavor/hybrid/sentinel.rs"]
mod sentinel;
#[path = "../src/parking"]
mod parking {
    pub(crate) use super::timerfd;

    pub(crate) mod idle;
    pub(crate) mod parker;
    pub(crate) mod watchdog;
}
#[path = "../src/flavor/hybrid/worker_slot.rs"]
mod worker_slot;
#[path = "loom"]
mod hybrid {
    pub(crate) use super::reserves::worker;

    pub(crate) mod shared {
        pub(crate) use crate::reserves::HybridShared;
    }

    #[path = "../../src/flavor/hybrid/reserve.rs"]
    pub(crate) mod reserve;
}
#[path = "loom/decisions.rs"]
mod decisions;
#[path = "loom/pool.rs"]
mod pool;
#[path = "loom/reserves.rs"]
mod reserves;
#[path = "loom/supervision.rs"]
mod supervision;
#[path = "loom/threads.rs"]
mod threads;
#[path = "loom/whole.rs"]
mod whole;

/// Stubs for names that the modules import and that no model checks.
mod measure {
    use std::{panic::Location, sync::Arc, time::Duration};

    use vigie_detect::Instant;

    use super::{lane::Lane, task_cell::poll::EndedPoll};

    pub(crate) struct CurrentPoll {
        pub(crate) name: Option<Arc<str>>,
        pub(crate) site: &'static Location<'static>,
        pub(crate) elapsed: Duration,
    }

    pub(crate) struct ReserveMetrics {
        pub(crate) serving: usize,
        pub(crate) spare: usize,
        pub(crate) limit: usize,
        pub(crate) has_sentinel: bool,
        pub(crate) calls: u64,
        pub(crate) new_threads: u64,
        pub(crate) refused: u64,
    }

    pub(crate) struct Sampler;

    impl Sampler {
        pub(crate) fn new(_seed: u32) -> Self {
            Self
        }
    }

    pub(crate) struct ThreadCounters;

    impl ThreadCounters {
        pub(crate) fn begin_poll(&self, _ready: u64, _now: u64) {}
        pub(crate) fn end_poll(&self, _: Lane, _nanos: u64) {}
        pub(crate) fn count_long_poll(&self, _is_hog: bool) {}
        pub(crate) fn count_sleep(&self) {}
    }

    pub(crate) struct Hogs;

    impl Hogs {
        pub(crate) fn record(&self, _: EndedPoll, _: Lane, _end: Instant) -> bool {
            false
        }
    }
}

/// The same, of the runtime that a thread runs for.
mod context {
    pub(crate) struct EnteredContext;

    pub(crate) trait Enter: Clone + Send + Sync + 'static {
        fn enter(self) -> EnteredContext;
    }
}

/// The same, of foreign code, which does not panic here.
mod panics {
    pub(crate) fn contained<T>(_place: &'static str, call: impl FnOnce() -> T) -> Option<T> {
        Some(call())
    }
}

/// The same, of refused resources.
mod refusal {
    pub(crate) enum Resource {
        Thread,
    }

    pub(crate) fn cause(_: Resource, _: &std::io::Error) -> &'static str {
        ""
    }
}

/// The same, of tasks: none of them is proven to be short, sleeps in the kernel, or is aborted.
mod task_cell {
    use std::{
        cell::OnceCell,
        io,
        panic::Location,
        pin::pin,
        sync::Arc,
        task::{Context, Waker},
    };

    use super::{
        lane::{Account, Credit},
        whole::Task,
    };

    pub(crate) struct TaskInfo {
        pub(crate) site: &'static Location<'static>,
        pub(crate) name_key: u32,
        pub(crate) account: Account,
        /// Whether the next poll is one of the first.
        is_early: bool,
    }

    impl TaskInfo {
        #[track_caller]
        pub(crate) fn new() -> Self {
            Self::of(None, false)
        }

        #[track_caller]
        fn of(usual_ns: Option<u64>, is_early: bool) -> Self {
            let account = Account::new(Credit::FULL, None);
            if let Some(usual_ns) = usual_ns {
                account.charge(Credit::FULL, usual_ns);
            }
            Self { site: Location::caller(), name_key: 0, account, is_early }
        }

        pub(crate) fn early_word(&self) -> u64 {
            0
        }

        pub(crate) fn early(&self) -> Option<()> {
            self.is_early.then_some(())
        }

        pub(crate) fn expected_ns(&self) -> Option<u32> {
            None
        }

        pub(crate) fn end_trial(&self) {}

        pub(crate) fn is_tried_now(&self) -> bool {
            false
        }

        pub(crate) fn ready_time(&self) -> u64 {
            0
        }

        pub(crate) fn judged_at(&self, switched_at: u64) -> u64 {
            switched_at
        }

        pub(crate) fn is_proven(&self) -> bool {
            false
        }

        pub(crate) fn is_aborted(&self) -> bool {
            false
        }

        pub(crate) fn was_late(&self) -> bool {
            false
        }

        pub(crate) fn sleeps(&self) -> bool {
            false
        }
    }

    pub(crate) struct Runnable {
        body: Box<dyn FnOnce()>,
        /// Made by the thread that polls: the queues in between order nothing, as far as loom knows.
        info: OnceCell<TaskInfo>,
    }

    impl Runnable {
        pub(crate) fn new(task: Task) -> Self {
            Self { body: Box::new(move || super::threads::poll(task)), info: OnceCell::new() }
        }

        /// A task that calls `body`, and whose polls take so long as a rule.
        pub(crate) fn calling(
            body: impl FnOnce() + 'static,
            usual_ns: u64,
            is_early: bool,
        ) -> Self {
            let info = OnceCell::from(TaskInfo::of(Some(usual_ns), is_early));
            Self { body: Box::new(body), info }
        }

        pub(crate) fn metadata(&self) -> &TaskInfo {
            self.info.get_or_init(TaskInfo::new)
        }

        pub(crate) fn run(self) {
            (self.body)();
        }
    }

    /// A task that is polled once.
    pub(crate) fn spawn<F: Future + 'static>(
        _: &super::sync::Arc<LiveTasks>,
        _site: &'static Location<'static>,
        future: F,
        _schedule: impl Fn(Runnable),
    ) -> (Option<Runnable>, JoinHandle<F::Output>) {
        let poll = move || {
            assert!(pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        };
        let runnable = Runnable { body: Box::new(poll), info: OnceCell::new() };
        (Some(runnable), JoinHandle(std::marker::PhantomData))
    }

    /// The output is not awaited.
    pub(crate) struct JoinHandle<T>(std::marker::PhantomData<T>);

    impl<T> JoinHandle<T> {
        pub(crate) fn refuse(&mut self, error: io::Error) {
            panic!("threads of the models start: {error}");
        }
    }

    pub(crate) fn drop_task(_: Runnable) {
        unreachable!("no task is aborted");
    }

    pub(crate) struct LiveTasks;

    impl LiveTasks {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn with_shards(_: usize) -> Self {
            Self
        }

        pub(crate) fn close(&self) {}

        pub(crate) fn name(&self, _: u32) -> Option<Arc<str>> {
            None
        }
    }

    /// No poll is long.
    pub(crate) mod poll {
        use std::time::Duration;

        use super::Credit;

        pub(crate) struct EndedPoll {
            pub(crate) has_computed: bool,
            pub(crate) elapsed_ns: u64,
        }

        pub(crate) fn is_watched_by(_was_asleep: fn() -> bool) {}
        pub(crate) fn sample_processor_time(_now: u64) {}
        pub(crate) fn note_sleep(_now: u64) {}
        pub(crate) fn begin_poll(_now: u64, _: Credit, _is_proven: bool, _long: Duration) {}

        pub(crate) fn take_poll_end() -> Option<u64> {
            None
        }

        pub(crate) fn take_long_poll() -> Option<EndedPoll> {
            None
        }
    }
}

/// The kernel's part, replaced.
use supervision::{kernel_help, timerfd};

use lane::{ComputeQueue, Rank};
use parking::{idle::Idle, parker::Parker};

/// The door of the modules, with fences that a model can take away.
mod sync {
    use std::cell::Cell;

    pub(crate) use super::reserves::blocking::{Condvar, RealGuard, RealMutex, thread};
    pub(crate) use loom::sync::Arc;

    pub(crate) use super::door::{
        AtomicBool, AtomicCell, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, OnceLock,
        Ordering, PoisonError, count, lock, parking,
    };

    thread_local! {
        static HAS_FENCES: Cell<bool> = const { Cell::new(true) };
    }

    pub(crate) fn fence(order: Ordering) {
        if HAS_FENCES.get() {
            super::door::fence(order);
        }
    }

    /// Takes the fences away from all models that this thread runs from now on.
    pub(crate) fn take_fences_away() {
        HAS_FENCES.set(false);
    }
}

/// Runs a model that has a fault in it, and expects loom to find it.
fn must_fail(model: impl Fn() + Sync + Send + 'static) {
    let outcome = catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    assert!(outcome.is_err(), "the planted fault was not found: the model shows nothing");
}

const RANK: Rank = Rank { place: 0, needs_ns: 0, is_short: false };

/// One worker that searches, finds nothing and goes to sleep, against one thread that queues a task in a
/// compute lane and wakes a sleeper if there is one. Whatever the order, the task is found or the worker
/// is woken, although the lane's counts are stored and loaded `Relaxed`.
fn sleep_against_push(checks_once_more: bool) {
    let idle = Arc::new(Idle::new(1));
    let queue = Arc::new(ComputeQueue::new());
    let producer = {
        let (idle, queue) = (Arc::clone(&idle), Arc::clone(&queue));
        thread::spawn(move || {
            queue.push((), RANK);
            idle.choose().is_some()
        })
    };
    assert!(idle.begin_search(), "the only worker may search");
    let mut found = queue.pop().is_some();
    if found {
        let _ = idle.end_search();
    } else {
        let was_last = idle.begin_sleep(0, true);
        if was_last && checks_once_more {
            // As `Parts::has_work` asks: one load, without the lock.
            found = !queue.is_empty();
        }
    }
    let was_woken = producer.join().expect("the producer ends");
    assert!(found || was_woken, "a task is queued, and everybody sleeps");
}

/// Goal: no task is left behind while all workers sleep.
#[test]
fn work_is_never_left_lying() {
    loom::model(|| sleep_against_push(true));
}

/// Goal: the model of `work_is_never_left_lying` can fail. Method: the last searcher does not check
/// once more.
#[test]
fn without_the_last_check_work_is_left_lying() {
    must_fail(|| sleep_against_push(false));
}

/// Goal: the model of `work_is_never_left_lying` can fail. Method: `idle.rs` without its fences: the lane's
/// `Relaxed` counts rely on them.
#[test]
fn without_fences_work_is_left_lying() {
    sync::take_fences_away();
    must_fail(|| sleep_against_push(true));
}

/// Goal: tasks moved between compute lanes are neither lost nor doubled, and each lane's counts are right
/// at the end. Method: two thieves rob each other, while a third thread takes a short task.
#[test]
fn thieves_lose_nothing() {
    loom::model(|| {
        let lanes = Arc::new([ComputeQueue::new(), ComputeQueue::new()]);
        for place in 0..2 {
            lanes[0].push(place, Rank { place, needs_ns: 0, is_short: place == 1 });
        }
        let thief = {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || lanes[0].steal_batch_and_pop(&lanes[1]))
        };
        let taker = {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || lanes[0].pop_short(u64::MAX))
        };
        lanes[0].take_batch(&lanes[1]);
        let stolen = thief.join().expect("it ends");
        let short = taker.join().expect("it ends");
        let mut all: Vec<u64> = stolen.into_iter().chain(short).collect();
        for lane in &*lanes {
            let count = lane.len();
            let has_short = lane.has_short(u64::MAX);
            let rest: Vec<u64> = std::iter::from_fn(|| lane.pop()).collect();
            assert_eq!(count, rest.len(), "the count is wrong");
            assert_eq!(has_short, rest.contains(&1), "the count of short tasks is wrong");
            all.extend(rest);
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    });
}

/// Two producers and two workers: a searcher that finds work wakes the other worker.
fn burst(hands_on: bool) {
    let idle = Arc::new(Idle::new(2));
    let queue = Arc::new(AtomicUsize::new(0));
    // Both workers sleep.
    assert!(idle.begin_search());
    let _ = idle.begin_sleep(0, true);
    assert!(idle.begin_search());
    let _ = idle.begin_sleep(1, true);
    let producers: Vec<_> = (0..2)
        .map(|_| {
            let (idle, queue) = (Arc::clone(&idle), Arc::clone(&queue));
            thread::spawn(move || {
                queue.fetch_add(1, Ordering::AcqRel);
                usize::from(idle.choose().is_some())
            })
        })
        .collect();
    let mut woken: usize = producers.into_iter().map(|p| p.join().expect("it ends")).sum();
    // The worker that was woken takes one task and wakes the next worker.
    let mut taken = 0;
    while woken > taken {
        taken += 1;
        queue.fetch_sub(1, Ordering::AcqRel);
        if idle.end_search() && hands_on && idle.choose().is_some() {
            woken += 1;
        }
    }
    assert_eq!(queue.load(Ordering::Acquire), 0, "a task was left although a worker sleeps");
}

/// Goal: a burst of two tasks wakes two workers, one after the other if need be.
#[test]
fn a_burst_wakes_one_after_the_other() {
    loom::model(|| burst(true));
}

/// Goal: the model of `a_burst_wakes_one_after_the_other` can fail. Method: no worker hands on.
#[test]
fn without_handing_on_a_burst_lies_still() {
    must_fail(|| burst(false));
}

/// The poller, as far as a parker knows it: notifications, and one sleeper. As in the real one, a notification may
/// be taken by another host that only polls. The sleep does not block: whether it would have ended is
/// seen when all threads have.
struct Poller {
    state: Mutex<Sleeper>,
}

#[derive(Default)]
struct Sleeper {
    is_notified: bool,
    is_announced: bool,
    sleeps: bool,
}

impl Poller {
    /// Notifies: wakes the sleeper, or is remembered.
    fn notify(&self) {
        let mut state = self.state.lock().expect("not poisoned");
        state.is_notified = true;
        state.sleeps = false;
    }

    /// Another host takes the notification for its own, unless a thread is about to sleep here.
    fn steal_ring(&self) {
        let mut state = self.state.lock().expect("not poisoned");
        if !state.is_announced {
            state.is_notified = false;
        }
    }

    /// Announces the sleep, asks, sleeps.
    fn wait(&self, is_awaited: &dyn Fn() -> bool) {
        self.state.lock().expect("not poisoned").is_announced = true;
        let must_stay_awake = is_awaited();
        let mut state = self.state.lock().expect("not poisoned");
        state.sleeps = !state.is_notified && !must_stay_awake;
    }
}

/// Goal: an unpark is never lost in the poller, even if another host takes the notification.
#[test]
fn an_unpark_reaches_the_wait_point() {
    loom::model(|| in_wait_point(true));
}

/// Goal: the model of `an_unpark_reaches_the_wait_point` can fail. Method: the worker does not ask
/// whether it is awaited.
#[test]
fn without_asking_an_unpark_is_lost() {
    must_fail(|| in_wait_point(false));
}

fn in_wait_point(asks: bool) {
    let parker = Arc::new(Parker::new());
    let poller = Arc::new(Poller { state: Mutex::new(Sleeper::default()) });
    parker.bind();
    let unparker = {
        let (parker, poller) = (Arc::clone(&parker), Arc::clone(&poller));
        thread::spawn(move || parker.unpark(|| poller.notify()))
    };
    let other = {
        let poller = Arc::clone(&poller);
        thread::spawn(move || poller.steal_ring())
    };
    parker.park(|is_awaited| {
        poller.wait(&|| asks && is_awaited());
        // It sleeps, or not, until the others have ended: then it must be awake.
        unparker.join().expect("it ends");
        other.join().expect("it ends");
        let sleeps = poller.state.lock().expect("not poisoned").sleeps;
        assert!(!sleeps, "the worker sleeps although it was woken");
        true
    });
}

/// Goal: an unpark is never lost on the thread. Method: the poller is always occupied.
#[test]
fn an_unpark_reaches_the_thread() {
    loom::model(|| {
        let parker = Arc::new(Parker::new());
        parker.bind();
        let unparker = {
            let parker = Arc::clone(&parker);
            thread::spawn(move || {
                parker.unpark(|| {
                    // The worker is on its way: it finds the mark when it moves on to its thread.
                });
            })
        };
        parker.park(|_| false);
        unparker.join().expect("it ends");
    });
}

/// Goal: an unpark before the sleep keeps the worker awake, once. Method: one thread.
#[test]
fn an_early_unpark_counts_once() {
    loom::model(|| {
        let parker = Parker::new();
        parker.bind();
        parker.unpark(|| panic!("no thread is in the poller"));
        parker.park(|_| panic!("must not sleep"));
        let mut slept = false;
        parker.park(|_| {
            slept = true;
            true
        });
        assert!(slept);
    });
}
