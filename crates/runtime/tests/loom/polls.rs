//! The actions of one thread of `worker.rs` around its polls, without a second thread.

use std::{cell::RefCell, rc::Rc};

use super::{
    Arc, Duration, Fault, HybridShared, NOW, Ordering, Parts, Queue, RANK, ReserveMode, Runnable,
    pass, worker,
};
use crate::{lane::Rank, whole::SOON};

/// Longer than any task has credit for.
const LONG_NS: u64 = 4_000_000_000;

/// Runs a worker over what `fill` puts into its lanes, until a task ends the runtime. `fill` is told to what the tasks may add
/// their names: in the order `expected`.
fn run(
    is_serving: bool,
    expected: &'static str,
    fill: impl Fn(&Arc<HybridShared>, &Queue<Runnable>, &Rc<RefCell<String>>) + Sync + Send + 'static,
) {
    loom::model(move || {
        let (mut shared, mut queues) = HybridShared::parts(1, 0, Fault::None);
        shared.reserves.is_serving = is_serving;
        let (shared, queue) = (Arc::new(shared), queues.remove(0));
        let polled = Rc::default();
        fill(&shared, &queue, &polled);
        worker::run(Arc::clone(&shared), 0, queue);
        assert_eq!(*polled.borrow(), expected);
        assert!(!shared.is_polling());
    });
}

/// The second of two tasks ends the runtime.
fn note(shared: &HybridShared, polled: &RefCell<String>, name: char) {
    polled.borrow_mut().push(name);
    shared.is_shutdown.store(polled.borrow().len() == 2, Ordering::SeqCst);
}

/// Goal: a task of the reaction lane goes behind those that compute if others of its kind have shown that it computes,
/// which matters to first polls alone; one of the compute lane stays there. Method: each case, beside a task that computes.
#[test]
fn only_early_polls_are_put_back() {
    for (is_early, reacts, expected) in
        [(false, true, "ab"), (true, true, "ba"), (false, false, "ba"), (true, false, "ba")]
    {
        run(false, expected, move |shared, queue, polled| {
            let task = |name, usual_ns, is_early| {
                let (shared, polled) = (Arc::clone(shared), Rc::clone(polled));
                Runnable::calling(move || note(&shared, &polled, name), usual_ns, is_early)
            };
            let a = task('a', LONG_NS, is_early);
            if reacts {
                queue.push(a);
            } else {
                shared.computing()[0].push(a, Rank { place: 1, ..RANK });
            }
            shared.computing()[0].push(task('b', 1_000, false), RANK);
        });
    }
}

/// Goal: the timer of a known hog runs while a reserve thread serves, and not beside other tasks. Method: a hog, then a task
/// that is none.
#[test]
fn known_hogs_have_a_timer() {
    for is_serving in [false, true] {
        run(is_serving, "ab", move |shared, queue, polled| {
            for (name, usual_ns, runs) in [('a', 2_000_000, is_serving), ('b', 1_000, false)] {
                let (shared, polled) = (Arc::clone(shared), Rc::clone(polled));
                let body = move || {
                    assert_eq!(shared.remotes[0].hog_timer.runs(), runs, "{name}");
                    note(&shared, &polled, name);
                };
                queue.push(Runnable::calling(body, usual_ns, false));
            }
        });
    }
}

/// Goal: a reserve thread without work goes where the workers poll for events themselves, and the supervisor sees to it that this
/// stays so. Method: one that would sleep for ever otherwise.
#[test]
fn reserve_threads_leave_steady_workers() {
    loom::model(|| {
        let (mut shared, _queues) = HybridShared::parts(1, 0, Fault::None);
        shared.server.is_steady = true;
        let shared = Arc::new(shared);
        worker::run_reserve(Arc::clone(&shared), 0);
        assert_eq!(shared.watchdog.timer.take(), SOON);
    });
}

/// Goal: a reserve thread that has run short tasks runs those that wait for their turn when it comes, without being called.
/// Method: a short task of 3.6 ms beside eight that compute, and one that has used up its share; the thread would sleep for
/// ever otherwise.
#[test]
fn reserve_threads_sleep_until_their_turn() {
    loom::model(|| {
        let (shared, _queues) = HybridShared::parts(1, 0, Fault::None);
        let (shared, polled) = (Arc::new(shared), Rc::<RefCell<String>>::default());
        let task = |name, takes| {
            let (shared, polled) = (Arc::clone(&shared), Rc::clone(&polled));
            let body = move || {
                pass(takes);
                note(&shared, &polled, name);
            };
            Runnable::calling(body, 1_000, false)
        };
        let short =
            |waits: Duration| Rank { place: (NOW + waits).as_nanos(), needs_ns: 0, is_short: true };
        let lane = &shared.computing()[0];
        for _ in 0..8 {
            let computes = Runnable::calling(|| unreachable!("it is not short"), LONG_NS, false);
            lane.push(computes, Rank { place: u64::MAX, ..RANK });
        }
        lane.push(task('a', Duration::from_micros(3_600)), short(Duration::ZERO));
        lane.push(task('b', Duration::ZERO), short(Duration::from_millis(100)));
        shared.serves().store(ReserveMode::Short);
        worker::run_reserve(Arc::clone(&shared), 0);
        assert_eq!(*polled.borrow(), "ab");
    });
}
