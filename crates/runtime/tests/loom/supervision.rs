//! The reserve thread in the wait point, the supervisor's alarm, and the timers of threads that hog.
//! What the kernel does is replaced by what can be seen of it: a timer is set, or not.

use std::{panic::Location, time::Duration};

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use vigie_detect::Instant;

use super::{
    Sleeper, WaitPoint, alarm::Alarm, baton::Baton, idle::Idle, must_fail, parker::Parker,
    seat::Seat, sync, task_cell::TaskInfo,
};
use kernel_help::HogTimer;

/// What `alarm.rs` needs of the kernel.
pub(crate) mod timerfd {
    use std::{io, time::Duration};

    use loom::sync::Mutex;

    pub(crate) struct Timer {
        is_armed: Mutex<bool>,
    }

    impl Timer {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self { is_armed: Mutex::new(false) })
        }

        pub(crate) fn wake_in(&self, _: Duration) {
            *self.is_armed.lock().expect("no panic") = true;
        }

        /// Returns an error if the sleep would never end.
        pub(crate) fn sleep(&self) -> io::Result<()> {
            let is_armed = std::mem::take(&mut *self.is_armed.lock().expect("no panic"));
            if is_armed { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        }

        pub(crate) fn is_armed(&self) -> bool {
            *self.is_armed.lock().expect("no panic")
        }
    }
}

/// What `seat.rs` needs of the kernel.
pub(crate) mod kernel_help {
    use loom::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    };

    pub(crate) fn thread_number() -> u32 {
        1
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

/// What is left out of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The sentinel does not look at the queue after it has announced itself.
    NoLook,
    /// Whoever queues a task does not ask for a sentinel.
    NoCall,
    /// Whoever finds nobody to wake does not set the alarm.
    NoAlarm,
    /// The sleeper does not look once more before it rests.
    NoSecondLook,
    /// The supervisor does not ask again after it has started a timer.
    NoSecondQuestion,
}

const DELAY: Duration = Duration::from_micros(200);

/// A reserve thread goes to the wait point while somebody else queues a task for the reaction lane and
/// all workers hog; and a third takes rings for its own. In the end the reserve thread is awake.
fn sentinel_against_push(fault: Fault) {
    let idle = Arc::new(Idle::new(1));
    let baton = Arc::new(Baton::new());
    let parker = Arc::new(Parker::new());
    let queue = Arc::new(AtomicUsize::new(0));
    let alarm = Arc::new(Alarm::new(DELAY).expect("a timer"));
    let wait_point = Arc::new(WaitPoint { state: Mutex::new(Sleeper::default()) });
    parker.bind();
    let producer = {
        let (idle, baton, parker) = (Arc::clone(&idle), Arc::clone(&baton), Arc::clone(&parker));
        let (queue, alarm, wait_point) =
            (Arc::clone(&queue), Arc::clone(&alarm), Arc::clone(&wait_point));
        // As `Shared::schedule` does outside of workers.
        thread::spawn(move || {
            queue.store(1, Ordering::Release);
            if idle.choose().is_some() {
                unreachable!("no worker sleeps");
            }
            let sentinel = baton.holder().filter(|_| fault != Fault::NoCall);
            match sentinel {
                Some(_) => parker.unpark(|| wait_point.ring()),
                None if fault == Fault::NoAlarm => {}
                None => alarm.set(),
            }
        })
    };
    let other = {
        let wait_point = Arc::clone(&wait_point);
        thread::spawn(move || wait_point.steal_ring())
    };
    // As `Worker::serve` and `Worker::watch` do.
    if queue.load(Ordering::Acquire) == 0 {
        parker.park(|is_awaited| {
            wait_point.wait(&|| {
                let has_work = || fault != Fault::NoLook && queue.load(Ordering::Acquire) == 1;
                baton.take(0, || is_awaited() || has_work())
            });
            producer.join().expect("it ends");
            other.join().expect("it ends");
            let sleeps = wait_point.state.lock().expect("not poisoned").sleeps;
            assert!(!sleeps, "a task is queued, and the sentinel sleeps");
            true
        });
        baton.give_up(0);
        assert_eq!(baton.holder(), None);
    } else {
        producer.join().expect("it ends");
        other.join().expect("it ends");
    }
}

/// Goal: no task of the reaction lane lies still while the sentinel sleeps.
#[test]
fn the_sentinel_never_sleeps_over_a_task() {
    loom::model(|| sentinel_against_push(Fault::None));
}

/// Goal: the model above can fail. Method: the sentinel does not look; nobody calls it.
#[test]
fn without_a_look_or_a_call_the_sentinel_sleeps_over_a_task() {
    for fault in [Fault::NoLook, Fault::NoCall] {
        must_fail(move || sentinel_against_push(fault));
    }
}

/// Goal: the model above can fail. Method: `baton.rs` and `idle.rs` without their fences.
#[test]
fn without_fences_the_sentinel_sleeps_over_a_task() {
    sync::take_fences_away();
    must_fail(|| sentinel_against_push(Fault::None));
}

/// Somebody needs the sleeper for what he does next, and finds the alarm set or sets it; the sleeper
/// looks, finds nothing, and rests. The delay of its second look is longer than what he does.
fn alarm_against_rest(fault: Fault) {
    let alarm = Arc::new(Alarm::new(DELAY).expect("a timer"));
    let poll = Arc::new(AtomicUsize::new(0));
    // The sleeper goes on looking by itself so far.
    alarm.keep();
    alarm.wake_in(DELAY);
    let worker = {
        let (alarm, poll) = (Arc::clone(&alarm), Arc::clone(&poll));
        // As `Worker::guard` and `Seat::begin` do.
        thread::spawn(move || {
            if fault != Fault::NoAlarm && !alarm.is_set() {
                alarm.set();
            }
            poll.store(1, Ordering::Relaxed);
        })
    };
    // As `Supervisor::work` does.
    let look = || poll.load(Ordering::Relaxed) == 1;
    alarm.timer.sleep().expect("it was set");
    let mut is_seen = look();
    if !is_seen {
        alarm.begin_rest();
        if fault == Fault::NoSecondLook {
            // The rest without a timer.
            alarm.timer.sleep().expect("it was set");
        }
    }
    // The delay.
    worker.join().expect("it ends");
    if alarm.timer.is_armed() {
        is_seen = look();
    }
    assert!(is_seen, "a long poll, and nobody looks");
}

/// Goal: who finds the alarm set, or sets it, is looked at.
#[test]
fn the_alarm_is_never_slept_through() {
    loom::model(|| alarm_against_rest(Fault::None));
}

/// Goal: the model above can fail. Method: no second look before the rest; nobody sets the alarm.
#[test]
fn without_a_second_look_the_alarm_is_slept_through() {
    must_fail(|| alarm_against_rest(Fault::NoSecondLook));
}

/// The supervisor sees a hog and starts its timer, while the hog ends and its thread rests.
fn timer_against_rest(fault: Fault) {
    let seat = Arc::new(Seat::new());
    let timer = Arc::new(HogTimer::new());
    let task = TaskInfo { site: Location::caller(), name_key: 0 };
    seat.begin(Instant::from_nanos(1), &task);
    let supervisor = {
        let (seat, timer) = (Arc::clone(&seat), Arc::clone(&timer));
        thread::spawn(move || {
            if seat.current().is_some() {
                if fault == Fault::NoSecondQuestion {
                    timer.start();
                } else {
                    seat.help(&timer);
                }
            }
        })
    };
    seat.rest(&timer);
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

/// Goal: the model above can fail. Method: `seat.rs` without its fences.
#[test]
fn without_fences_a_timer_runs_on() {
    sync::take_fences_away();
    must_fail(|| timer_against_rest(Fault::None));
}
