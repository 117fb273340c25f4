//! The reserve thread in the poller, the supervisor's watchdog, and the timers of threads that hog.
//! The kernel is replaced by its visible effects: a timer is set, or not.

use std::{panic::Location, time::Duration};

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering, fence},
    },
    thread,
};
use vigie_detect::Instant;

use super::{
    Poller, Sleeper, must_fail,
    parking::{idle::Idle, parker::Parker, watchdog::Watchdog},
    sentinel::Sentinel,
    sync,
    task_cell::TaskInfo,
    worker_slot::{Blocked, WorkerSlot},
};
use kernel_help::HogTimer;

/// The kernel's part for `watchdog.rs`.
pub(crate) mod timerfd {
    use std::{io, time::Duration};

    use loom::sync::Mutex;

    /// Its setting, as long as no thread has slept on it.
    pub(crate) struct TimerFd(Mutex<Option<Duration>>);

    impl TimerFd {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(Mutex::new(None)))
        }

        pub(crate) fn wake_in(&self, delay: Duration) {
            *self.0.lock().expect("no panic") = Some(delay);
        }

        pub(crate) fn stop(&self) {
            self.take();
        }

        /// Returns an error if the sleep would never end.
        pub(crate) fn sleep(&self) -> io::Result<()> {
            self.take().map(|_| ()).ok_or_else(|| io::ErrorKind::WouldBlock.into())
        }

        /// Stops the timer, and returns what it was set to.
        pub(crate) fn take(&self) -> Option<Duration> {
            self.0.lock().expect("no panic").take()
        }
    }
}

/// Threads of the models are asleep in the kernel at every check, unless a test says otherwise.
pub(crate) mod thread_state {
    use std::cell::Cell;

    std::thread_local! {
        static IS_ASLEEP: Cell<bool> = const { Cell::new(true) };
        static QUESTIONS: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) fn is_asleep(_: u32) -> bool {
        QUESTIONS.set(QUESTIONS.get() + 1);
        IS_ASLEEP.get()
    }

    pub(crate) fn set_asleep(is_asleep: bool) {
        IS_ASLEEP.set(is_asleep);
    }

    /// Returns the number of checks since the last call.
    pub(crate) fn take_questions() -> usize {
        QUESTIONS.take()
    }
}

/// The kernel's part for `worker_slot.rs`.
pub(crate) mod kernel_help {
    pub(crate) use super::thread_state;

    use loom::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    };

    pub(crate) fn thread_number() -> u32 {
        1
    }

    pub(crate) fn shorten_slice() {}

    std::thread_local! {
        static USED: std::cell::Cell<u64> = const { std::cell::Cell::new(1) };
    }

    /// A thread that sleeps uses nothing.
    pub(crate) fn processor_time(_thread: u32) -> Option<u64> {
        Some(USED.get())
    }

    pub(crate) fn use_time(nanos: u64) {
        USED.set(USED.get() + nanos);
    }

    /// As the real one, whose flag is a hint that spares the lock and the system call.
    pub(crate) struct HogTimer {
        runs: Mutex<bool>,
        is_set: AtomicBool,
    }

    impl HogTimer {
        pub(crate) fn new() -> Self {
            Self { runs: Mutex::new(false), is_set: AtomicBool::new(false) }
        }

        pub(crate) fn start(&self) {
            if !self.is_set.load(Ordering::Relaxed) {
                self.set(true);
            }
        }

        pub(crate) fn stop(&self) {
            if self.is_set.load(Ordering::Relaxed) {
                self.set(false);
            }
        }

        pub(crate) fn is_set(&self) -> bool {
            self.is_set.load(Ordering::Relaxed)
        }

        /// No model sends a signal.
        pub(crate) fn bind(&self, _signal: i32, _descriptor: i32) {}

        pub(crate) fn unbind(&self) {}

        fn set(&self, runs: bool) {
            let mut timer = self.runs.lock().expect("no panic");
            *timer = runs;
            self.is_set.store(runs, Ordering::Relaxed);
        }

        pub(crate) fn runs(&self) -> bool {
            *self.runs.lock().expect("no panic")
        }
    }
}

/// The step that a model omits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The sentinel does not check the queue after it has announced itself.
    NoCheck,
    /// A thread that queues a task does not check for a sentinel.
    NoCall,
    /// A thread that finds no worker to wake, or begins a poll, does not guard it.
    NoAlarm,
    /// The sleeper does not check once more before it rests.
    NoSecondCheck,
    /// A thread guards its poll before others can see it.
    LateBegin,
    /// The supervisor does not ask again after it has started a timer.
    NoSecondQuestion,
    /// The thread that stops the timer does not check whether the watchdog was set meanwhile.
    BlindStop,
    /// The shutdown sets the watchdog as the sleeper does.
    HeldEnd,
    /// The end of a long poll is not reported.
    NoEnd,
    /// The finding about an earlier poll is not cleared.
    NoForgetting,
    /// A substitute does not leave the place that it took.
    NoLeaving,
}

const DELAY: Duration = Duration::from_micros(200);

/// A reserve thread goes to the poller while another thread queues a task for the reaction lane and
/// all workers hog; and a third takes notifications for its own. In the end the reserve thread is awake.
fn sentinel_against_push(fault: Fault) {
    let idle = Arc::new(Idle::new(1));
    let sentinel = Arc::new(Sentinel::new());
    let parker = Arc::new(Parker::new());
    let queue = Arc::new(AtomicUsize::new(0));
    let watchdog = Arc::new(Watchdog::new(DELAY).expect("a timer"));
    let poller = Arc::new(Poller { state: Mutex::new(Sleeper::default()) });
    parker.bind();
    let producer = {
        let (idle, sentinel, parker) =
            (Arc::clone(&idle), Arc::clone(&sentinel), Arc::clone(&parker));
        let (queue, watchdog, poller) =
            (Arc::clone(&queue), Arc::clone(&watchdog), Arc::clone(&poller));
        // As `HybridShared::schedule` does outside workers.
        thread::spawn(move || {
            queue.store(1, Ordering::Release);
            if idle.choose().is_some() {
                unreachable!("no worker sleeps");
            }
            let sentinel = sentinel.holder().filter(|_| fault != Fault::NoCall);
            match sentinel {
                Some(_) => parker.unpark(|| poller.notify()),
                None if fault == Fault::NoAlarm => {}
                None => watchdog.guard(1, 1, || false),
            }
        })
    };
    let other = {
        let poller = Arc::clone(&poller);
        thread::spawn(move || poller.steal_ring())
    };
    // As `Worker::serve` and `Worker::watch` do.
    if queue.load(Ordering::Acquire) == 0 {
        parker.park(|is_awaited| {
            poller.wait(&|| {
                let has_work = || fault != Fault::NoCheck && queue.load(Ordering::Acquire) == 1;
                sentinel.take(0, || is_awaited() || has_work())
            });
            producer.join().expect("it ends");
            other.join().expect("it ends");
            let sleeps = poller.state.lock().expect("not poisoned").sleeps;
            assert!(!sleeps, "a task is queued, and the sentinel sleeps");
            true
        });
        sentinel.give_up(0);
        assert_eq!(sentinel.holder(), None);
    } else {
        producer.join().expect("it ends");
        other.join().expect("it ends");
    }
}

/// Goal: no task of the reaction lane is left behind while the sentinel sleeps.
#[test]
fn the_sentinel_never_sleeps_over_a_task() {
    loom::model(|| sentinel_against_push(Fault::None));
}

/// Goal: the model above can fail. Method: the sentinel does not check; it is not called.
#[test]
fn without_a_check_or_a_call_the_sentinel_sleeps_over_a_task() {
    for fault in [Fault::NoCheck, Fault::NoCall] {
        must_fail(move || sentinel_against_push(fault));
    }
}

/// Goal: the model above can fail. Method: `sentinel.rs` and `idle.rs` without their fences.
#[test]
fn without_fences_the_sentinel_sleeps_over_a_task() {
    sync::take_fences_away();
    must_fail(|| sentinel_against_push(Fault::None));
}

/// A thread begins a poll that turns out long, and finds the watchdog set or sets it; the supervisor checks,
/// finds nothing, and rests. The delay of its second check is longer than what a store takes to become visible: here that is
/// a fence. The thread may lose its processor for longer at any time.
fn watchdog_against_rest(fault: Fault, is_held: bool) {
    let watchdog = Arc::new(Watchdog::new(DELAY).expect("a timer"));
    let poll = Arc::new(AtomicUsize::new(0));
    // The watchdog is set so far, by the supervisor itself or by others; and enough for a poll that begins
    // now.
    if is_held {
        watchdog.hold(1, DELAY);
    } else {
        watchdog.guard(1, 1, || false);
    }
    let worker = {
        let (watchdog, poll) = (Arc::clone(&watchdog), Arc::clone(&poll));
        // As `WorkerSlot::begin` and `Worker::guard` do.
        thread::spawn(move || {
            if fault == Fault::LateBegin {
                watchdog.guard(2, 1, || false);
            }
            poll.store(1, Ordering::Relaxed);
            if fault != Fault::LateBegin {
                fence(Ordering::SeqCst);
                watchdog.guard(2, 1, || false);
            }
        })
    };
    // As `Supervisor::work` does. Returns whether the poll was seen; none if the sleep would never end.
    let check = || {
        if watchdog.timer.sleep().is_err() {
            return None;
        }
        let was_resting = watchdog.is_resting();
        let is_seen = poll.load(Ordering::Relaxed) == 1;
        if !is_seen && !was_resting {
            watchdog.begin_rest();
            if fault == Fault::NoSecondCheck {
                // The rest without a timer.
                watchdog.timer.stop();
            }
        }
        Some(is_seen)
    };
    let mut is_seen = check();
    // The delay.
    fence(Ordering::SeqCst);
    if is_seen == Some(false) {
        is_seen = check();
    }
    worker.join().expect("it ends");
    while is_seen != Some(true) {
        is_seen = check();
        assert!(is_seen.is_some(), "a long poll, and the supervisor does not check");
    }
}

/// Goal: a thread that finds the watchdog set, or sets it, is checked.
#[test]
fn the_watchdog_is_never_slept_through() {
    for is_held in [false, true] {
        loom::model(move || watchdog_against_rest(Fault::None, is_held));
    }
}

/// Goal: the model above can fail. Method: no second check before the rest; a poll that begins after it is guarded.
#[test]
fn without_a_second_check_the_watchdog_is_slept_through() {
    for is_held in [false, true] {
        for fault in [Fault::NoSecondCheck, Fault::LateBegin] {
            must_fail(move || watchdog_against_rest(fault, is_held));
        }
    }
}

/// The last thread that runs out of work stops the watchdog, while another one wakes up and begins a poll; and
/// then begins a poll itself. In the end the timer runs.
fn stop_against_guard(fault: Fault, deadline: Option<u64>) {
    let watchdog = Arc::new(Watchdog::new(DELAY).expect("a timer"));
    watchdog.guard(1, 1, || false);
    let other = {
        let watchdog = Arc::clone(&watchdog);
        thread::spawn(move || watchdog.guard(2, 1, || false))
    };
    watchdog.stop(2, deadline, 1);
    if fault == Fault::BlindStop {
        deadline.map_or_else(|| watchdog.timer.stop(), |_| watchdog.timer.wake_in(5 * DELAY));
    }
    if fault != Fault::NoAlarm {
        watchdog.guard(3, 1, || false);
    }
    other.join().expect("it ends");
    let left = watchdog.timer.take();
    assert!(
        left.is_some_and(|left| left <= 2 * DELAY),
        "a thread needs the sleeper, which wakes in {left:?}"
    );
}

/// Goal: a thread that stops the watchdog does not stop it for others, nor for a poll of its own later.
#[test]
fn nobody_stops_the_watchdog_of_others() {
    for deadline in [None, Some(1_000_000)] {
        loom::model(move || stop_against_guard(Fault::None, deadline));
    }
}

/// Goal: the model above can fail. Method: a stop that does not check afterwards; a poll is not guarded.
#[test]
fn a_blind_stop_stops_the_watchdog_of_others() {
    for deadline in [None, Some(1_000_000)] {
        must_fail(move || stop_against_guard(Fault::BlindStop, deadline));
    }
    must_fail(|| stop_against_guard(Fault::NoAlarm, None));
}

/// What the supervisor does after it has seen no shutdown.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Rest,
    CheckLater,
}

/// The runtime shuts down while the last thread that runs out of work stops the watchdog, perhaps after another one has
/// begun a poll, and while the supervisor, which has not seen the shutdown, plans its next check. In the end the timer
/// runs.
fn end_against_others(fault: Fault, plan: Plan, begins_poll: bool) {
    const AN_HOUR: Duration = Duration::from_secs(3600);
    let watchdog = Arc::new(Watchdog::new(DELAY).expect("a timer"));
    watchdog.guard(1, 1, || false);
    let worker = {
        let watchdog = Arc::clone(&watchdog);
        thread::spawn(move || {
            if begins_poll {
                watchdog.guard(2_000_000, 1, || false);
            }
            watchdog.stop(2_000_000, None, 1);
        })
    };
    let supervisor = {
        let watchdog = Arc::clone(&watchdog);
        thread::spawn(move || match plan {
            Plan::Rest => watchdog.begin_rest(),
            Plan::CheckLater => watchdog.hold(2_000_000, AN_HOUR),
        })
    };
    // As `HybridShared::shutdown` does.
    if fault == Fault::HeldEnd {
        watchdog.hold(0, Duration::ZERO);
    } else {
        watchdog.end();
    }
    worker.join().expect("it ends");
    supervisor.join().expect("it ends");
    let left = watchdog.timer.take();
    assert!(
        left.is_some_and(|left| left <= 2 * DELAY),
        "the runtime ends, and the supervisor wakes in {left:?}"
    );
}

/// Goal: no thread keeps the supervisor from seeing the shutdown, nor does the supervisor itself.
#[test]
fn nobody_sleeps_through_the_shutdown() {
    for plan in [Plan::Rest, Plan::CheckLater] {
        for begins_poll in [false, true] {
            loom::model(move || end_against_others(Fault::None, plan, begins_poll));
        }
    }
}

/// Goal: the model above can fail. Method: a shutdown that sets the watchdog once, as the supervisor does for a check.
#[test]
fn without_an_end_the_shutdown_is_slept_through() {
    for plan in [Plan::Rest, Plan::CheckLater] {
        for begins_poll in [false, true] {
            must_fail(move || end_against_others(Fault::HeldEnd, plan, begins_poll));
        }
    }
}

/// The supervisor finds a thread asleep inside its poll, while the poll ends and the next one begins. What
/// was counted is taken away again, once.
fn mark_against_end(fault: Fault, is_long: bool) {
    let worker_slot = Arc::new(WorkerSlot::new());
    let blocked = Arc::new(Blocked::new());
    let task = TaskInfo::new();
    worker_slot.take();
    worker_slot.begin(Instant::from_nanos(1), &task);
    let supervisor = {
        let (worker_slot, blocked) = (Arc::clone(&worker_slot), Arc::clone(&blocked));
        // As `Census::take` does.
        thread::spawn(move || {
            for now in [1_000_000, 2_000_000] {
                worker_slot.forget_earlier(&blocked);
                if let Some((began, _)) = worker_slot.current()
                    && began == Instant::from_nanos(1)
                {
                    worker_slot.ask(began, Instant::from_nanos(now), &blocked);
                }
                assert!(blocked.count() <= 1, "it counts threads that there are not");
            }
        })
    };
    // A poll that the supervisor takes for longer than its thread does is not ended as a long one.
    if is_long && fault != Fault::NoEnd {
        worker_slot.end_long_poll(&blocked);
        assert!(blocked.count() <= 1, "more is taken away than was counted");
    }
    worker_slot.begin(Instant::from_nanos(2), &task);
    supervisor.join().expect("it ends");
    if !is_long && fault != Fault::NoForgetting {
        worker_slot.forget_earlier(&blocked);
    }
    assert_eq!(blocked.count(), 0, "an ended poll counts as asleep");
    assert!(!worker_slot.is_blocked(), "what is said of one poll was found of another");
    // Not only taken away from the count: a mark that is left would take away again.
    worker_slot.end_long_poll(&blocked);
    assert_eq!(blocked.count(), 0);
}

/// Goal: the count of threads that sleep returns to zero, is never less, and a mark of an ended poll is
/// cleared.
#[test]
fn ended_polls_do_not_count_as_asleep() {
    for is_long in [true, false] {
        loom::model(move || mark_against_end(Fault::None, is_long));
    }
}

/// Goal: the model above can fail. Method: a long poll is not ended; no thread forgets what was found of a poll
/// that ended as a short one.
#[test]
fn without_an_end_polls_count_as_asleep() {
    must_fail(|| mark_against_end(Fault::NoEnd, true));
    must_fail(|| mark_against_end(Fault::NoForgetting, false));
}

/// Two reserve threads want to compute in the place of one thread that sleeps.
fn substitutes(fault: Fault) {
    let worker_slot = WorkerSlot::new();
    let blocked = Arc::new(Blocked::new());
    let task = TaskInfo::new();
    worker_slot.take();
    worker_slot.begin(Instant::from_nanos(1), &task);
    for now in [1_000_000, 1_100_000] {
        assert_eq!(blocked.count(), 0, "asleep once may be by chance");
        worker_slot.ask(Instant::from_nanos(1), Instant::from_nanos(now), &blocked);
    }
    assert_eq!((blocked.count(), blocked.vacancies()), (1, 1));
    let computing = Arc::new(AtomicUsize::new(0));
    let substitute = {
        let (blocked, computing) = (Arc::clone(&blocked), Arc::clone(&computing));
        move || {
            if blocked.substitute() {
                assert_eq!(computing.fetch_add(1, Ordering::Relaxed), 0, "two in one place");
                assert!(!blocked.is_overfull());
                computing.fetch_sub(1, Ordering::Relaxed);
                if fault != Fault::NoLeaving {
                    blocked.leave();
                }
            }
        }
    };
    let other = thread::spawn(substitute.clone());
    substitute();
    other.join().expect("it ends");
    assert_eq!(blocked.vacancies(), 1, "a place is taken that no thread fills");
    assert!(blocked.substitute());
    worker_slot.end_long_poll(&blocked);
    assert!(blocked.is_overfull() && blocked.vacancies() == 0 && !blocked.substitute());
    blocked.leave();
    assert!(!blocked.is_overfull());
}

/// Goal: no more threads compute in the place of others than sleep, and each place can be taken again.
#[test]
fn a_place_is_taken_once() {
    loom::model(|| substitutes(Fault::None));
}

/// Goal: the model above can fail. Method: a substitute does not leave.
#[test]
fn without_leaving_a_place_stays_taken() {
    must_fail(|| substitutes(Fault::NoLeaving));
}

/// The supervisor sees a hog and starts its timer, while the hog ends and its thread rests.
fn timer_against_rest(fault: Fault) {
    let worker_slot = Arc::new(WorkerSlot::new());
    let timer = Arc::new(HogTimer::new());
    let task = TaskInfo::new();
    worker_slot.begin(Instant::from_nanos(1), &task);
    let supervisor = {
        let (worker_slot, timer) = (Arc::clone(&worker_slot), Arc::clone(&timer));
        thread::spawn(move || {
            if worker_slot.current().is_some() {
                if fault == Fault::NoSecondQuestion {
                    timer.start();
                } else {
                    worker_slot.help(&timer);
                }
            }
        })
    };
    worker_slot.rest(&timer);
    supervisor.join().expect("it ends");
    assert!(!timer.runs(), "the timer runs for a thread that rests");
}

/// Goal: no timer is left running for a thread that rests.
#[test]
fn no_timer_runs_for_a_thread_that_rests() {
    loom::model(|| timer_against_rest(Fault::None));
}

/// Goal: the model above can fail. Method: the supervisor does not ask again.
#[test]
fn without_a_second_question_a_timer_runs_on() {
    must_fail(|| timer_against_rest(Fault::NoSecondQuestion));
}

/// Goal: the model above can fail. Method: `worker_slot.rs` without its fences.
#[test]
fn without_fences_a_timer_runs_on() {
    sync::take_fences_away();
    must_fail(|| timer_against_rest(Fault::None));
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn task() -> TaskInfo {
    TaskInfo::new()
}

/// Goal: whether a thread sleeps is asked at once, and then ever more rarely, of confirmed sleepers still less; of a new
/// poll at once again, and never where no thread sits. Method: how often the kernel is asked, a nanosecond
/// before each time and at it.
#[test]
fn long_polls_are_asked_of_ever_more_rarely() {
    const US: u64 = 1_000;
    let awake = [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000];
    let asleep = [100, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000, 100_000];
    loom::model(move || {
        let (worker_slot, count) = (WorkerSlot::new(), Blocked::new());
        let task = task();
        worker_slot.begin(at(5), &task);
        worker_slot.ask(at(5), at(6), &count);
        assert_eq!(
            (thread_state::take_questions(), worker_slot.thread()),
            (0, None),
            "no thread is here"
        );
        worker_slot.take();
        assert_eq!(worker_slot.thread(), Some(1));
        for (began, is_asleep, pauses) in [(7, false, &awake[..]), (9, true, &asleep[..])] {
            thread_state::set_asleep(is_asleep);
            worker_slot.begin(at(began), &task);
            // Earlier than it would be asked again of the poll before.
            let mut now = began;
            worker_slot.ask(at(began), at(now), &count);
            assert_eq!(thread_state::take_questions(), 1);
            for pause in pauses {
                now += pause * US;
                worker_slot.ask(at(began), at(now - 1), &count);
                assert_eq!(thread_state::take_questions(), 0, "before {pause} us are over");
                worker_slot.ask(at(began), at(now), &count);
                assert_eq!(thread_state::take_questions(), 1, "after {pause} us");
            }
            assert_eq!(
                (count.count(), worker_slot.is_blocked()),
                (usize::from(is_asleep), is_asleep)
            );
        }
        // It wakes up within the same poll.
        thread_state::set_asleep(false);
        worker_slot.ask(at(9), at(1_000_000 * US), &count);
        assert_eq!((count.count(), worker_slot.is_blocked()), (0, false));
        thread_state::set_asleep(true);
        thread_state::take_questions();
        worker_slot.leave();
        assert_eq!(worker_slot.thread(), None);
    });
}

/// Goal: a poll that was expected to sleep is believed to for 5 ms, and asked of as rarely as others that sleep from
/// then on. Method: as above.
#[test]
fn expected_sleepers_are_asked_of_late() {
    const US: u64 = 1_000;
    loom::model(|| {
        let (worker_slot, count) = (WorkerSlot::new(), Blocked::new());
        worker_slot.take();
        thread_state::set_asleep(true);
        worker_slot.begin(at(1), &task());
        worker_slot.expect_sleep(at(1), &count);
        let mut now = 200 * US;
        assert!(!worker_slot.ask(at(1), at(now), &count));
        for pause in [5_000, 10_000, 20_000, 40_000, 80_000, 100_000, 100_000] {
            now += pause * US;
            worker_slot.ask(at(1), at(now - 1), &count);
            assert_eq!(thread_state::take_questions(), 0, "before {pause} us are over");
            assert!(!worker_slot.ask(at(1), at(now), &count), "nothing is in doubt");
            assert_eq!(thread_state::take_questions(), 1, "after {pause} us");
        }
        thread_state::set_asleep(false);
        worker_slot.ask(at(1), at(now + 100_000 * US), &count);
        assert_eq!((count.count(), worker_slot.is_blocked()), (0, false));
        thread_state::take_questions();
        thread_state::set_asleep(true);
    });
}

/// Goal: a thread that is expected to sleep counts once; a mark is forgotten when the poll it was set in is
/// over, and not before. Method: by hand, one step after the other.
#[test]
fn expected_sleepers_count_once() {
    loom::model(|| {
        let (worker_slot, count) = (WorkerSlot::new(), Blocked::new());
        let task = task();
        worker_slot.take();
        worker_slot.begin(at(1), &task);
        worker_slot.expect_sleep(at(1), &count);
        assert!(worker_slot.is_blocked());
        worker_slot.expect_sleep(at(1), &count);
        worker_slot.ask(at(1), at(2), &count);
        worker_slot.forget_earlier(&count);
        assert_eq!((count.count(), worker_slot.is_blocked()), (1, true));
        worker_slot.begin(at(3), &task);
        assert_eq!((count.count(), worker_slot.is_blocked()), (1, false));
        worker_slot.forget_earlier(&count);
        assert_eq!(count.count(), 0);
        worker_slot.forget_earlier(&count);
        assert_eq!(count.count(), 0);
        worker_slot.expect_sleep(at(3), &count);
        assert_eq!(count.count(), 1);
        worker_slot.end_long_poll(&count);
        assert_eq!((count.count(), worker_slot.is_blocked()), (0, false));
        // A place may have been taken while its thread slept.
        worker_slot.expect_sleep(at(3), &count);
        assert!(count.substitute() && !count.substitute() && !count.is_overfull());
        worker_slot.end_long_poll(&count);
        assert!(count.is_overfull());
        count.leave();
        assert!(!count.is_overfull());
    });
}

/// Goal: a thread that computed in no other thread's place and sleeps leaves no place, and what is counted of it is taken away
/// as it was counted, whatever it does next. Method: by hand, with and without another sleeper.
#[test]
fn extra_threads_leave_no_place() {
    loom::model(|| {
        let (extra, worker, count) = (WorkerSlot::new(), WorkerSlot::new(), Blocked::new());
        let task = task();
        extra.set_extra(true);
        for worker_slot in [&extra, &worker] {
            worker_slot.take();
            worker_slot.begin(at(1), &task);
        }
        extra.expect_sleep(at(1), &count);
        assert!(extra.is_blocked());
        assert_eq!((count.count(), count.extra(), count.vacancies()), (1, 1, 0));
        assert!(!count.substitute() && !count.is_overfull());
        worker.expect_sleep(at(1), &count);
        assert_eq!((count.count(), count.extra(), count.vacancies()), (2, 1, 1));
        assert!(count.substitute() && !count.substitute() && !count.is_overfull());
        extra.set_extra(false);
        extra.end_long_poll(&count);
        assert_eq!((count.count(), count.extra(), count.vacancies()), (1, 0, 0));
        extra.begin(at(2), &task);
        extra.expect_sleep(at(2), &count);
        assert_eq!((count.extra(), count.vacancies()), (0, 1), "it had taken a place");
        worker.end_long_poll(&count);
        extra.end_long_poll(&count);
        assert!(count.is_overfull());
        assert_eq!((count.count(), count.extra()), (0, 0));
    });
}

/// Goal: a late poll of a task whose polls have always been brief counts as caught at the second check that finds no thread that relieves
/// it, and not before; it asks for a check after two milliseconds. Method: each of them, and the next poll.
#[test]
fn brief_polls_are_caught_at_the_second_check() {
    loom::model(|| {
        let worker_slot = WorkerSlot::new();
        worker_slot.take();
        worker_slot.set_brief(true);
        worker_slot.begin(at(1), &task());
        assert!(worker_slot.is_late(at(1_000), 200) && !worker_slot.is_caught(at(1_000), 200));
        assert!(!worker_slot.needs_check(at(2_000_001), 200));
        assert!(worker_slot.needs_check(at(2_000_002), 200), "whatever it does");
        assert!(!worker_slot.is_caught(at(2_000_002), 200), "it may wait for a processor");
        assert!(worker_slot.doubt(at(1)), "one check tells nothing");
        assert!(!worker_slot.is_caught(at(1_000), 200));
        assert!(!worker_slot.doubt(at(1)));
        assert!(worker_slot.is_caught(at(1_000), 200) && worker_slot.needs_check(at(1_000), 200));
        assert!(!worker_slot.is_caught(at(1_000), 999), "it is no long poll");
        worker_slot.begin(at(2_000), &task());
        assert!(!worker_slot.is_caught(at(3_000), 200), "another poll");
        assert!(worker_slot.doubt(at(2_000)), "its first check");
        worker_slot.set_brief(false);
        assert!(worker_slot.is_caught(at(3_000), 200));
    });
}

/// Goal: while another worker switches, a late poll of a brief task counts as caught if its thread computes in it, or sleeps in the kernel, and not
/// while the thread waits for a processor, however long; and the supervisor need not check such a thread again for as long as before.
/// Method: examinations half a millisecond apart, each case with the first one in which it counts.
#[test]
fn waiting_for_a_processor_is_no_long_poll() {
    for (sleeps, used, counts_at) in
        [(false, 0, None), (false, 20_000, None), (false, 100_000, Some(5)), (true, 0, Some(6))]
    {
        loom::model(move || {
            let (worker_slot, count) = (WorkerSlot::new(), Blocked::new());
            worker_slot.take();
            worker_slot.set_brief(true);
            worker_slot.begin(at(1), &task());
            thread_state::set_asleep(sleeps);
            for half_ms in 1..=10 {
                let now = at(half_ms * 500_000);
                let is_due = worker_slot.needs_check(now, 200_000);
                assert_eq!(is_due, counts_at.is_some_and(|first| half_ms > first), "{half_ms}");
                kernel_help::use_time(used);
                let _again = worker_slot.examine(at(1), now, &count);
                let counts = counts_at.is_some_and(|first| half_ms >= first);
                assert_eq!(
                    worker_slot.is_caught(now, 200_000),
                    counts,
                    "{sleeps} {used} {half_ms}"
                );
                assert!(!worker_slot.needs_check(now, 200_000) || counts, "it was examined");
            }
            assert!(worker_slot.needs_check(at(7_000_001), 200_000), "again after a while");
            worker_slot.end_long_poll(&count);
            thread_state::set_asleep(true);
        });
    }
}

/// Goal: the first late examination of a poll asks for another one, which tells. Method: an early one and two late ones, of a thread that waits.
#[test]
fn an_examination_says_whether_another_one_tells() {
    loom::model(|| {
        let (worker_slot, count) = (WorkerSlot::new(), Blocked::new());
        worker_slot.take();
        worker_slot.set_brief(true);
        thread_state::set_asleep(false);
        for (began, examinations) in [
            (1, &[(1_000_000, false), (2_100_000, false)][..]),
            (5_000_000, &[(7_100_000, true), (7_200_000, false)]),
        ] {
            worker_slot.begin(at(began), &task());
            for &(now, again) in examinations {
                assert_eq!(worker_slot.examine(at(began), at(now), &count), again, "{now}");
            }
        }
        thread_state::set_asleep(true);
    });
}

/// Goal: the visible state of a poll is that of the present one. Method: before the first, inside one, around the
/// time from which it is long, and after it.
#[test]
fn the_present_poll_is_seen() {
    loom::model(|| {
        let (worker_slot, timer, live) =
            (WorkerSlot::new(), HogTimer::new(), super::task_cell::LiveTasks);
        let task = task();
        let is_seen =
            || (worker_slot.current().is_some(), worker_slot.current_task(at(50), &live).is_some());
        assert_eq!(is_seen(), (false, false));
        assert!(!worker_slot.is_caught(at(1_000), 0));
        // The supervisor is late: its help is not needed.
        worker_slot.help(&timer);
        assert!(!timer.runs());

        worker_slot.begin(at(40), &task);
        assert_eq!(worker_slot.current(), Some((at(40), task.site)));
        let current = worker_slot.current_task(at(50), &live).expect("a poll");
        assert_eq!((current.site, current.elapsed), (task.site, Duration::from_nanos(10)));
        assert!(!worker_slot.is_caught(at(30), 0) && !worker_slot.is_caught(at(60), 20));
        assert!(worker_slot.is_caught(at(61), 20));
        worker_slot.help(&timer);
        assert!(timer.runs());

        worker_slot.rest(&timer);
        assert_eq!((is_seen(), timer.runs()), ((false, false), false));
    });
}

/// Goal: of each long poll and of each hog is told once; a slice is given back once. Method: two polls.
#[test]
fn each_poll_is_told_of_once() {
    loom::model(|| {
        let worker_slot = WorkerSlot::new();
        assert!(!worker_slot.take_long_slice());
        for began in [1, 2] {
            assert!(worker_slot.log_once(at(began)) && !worker_slot.log_once(at(began)));
            assert!(worker_slot.log_hog_once(at(began)) && !worker_slot.log_hog_once(at(began)));
            worker_slot.give_long_slice();
            assert!(worker_slot.take_long_slice() && !worker_slot.take_long_slice());
        }
    });
}
