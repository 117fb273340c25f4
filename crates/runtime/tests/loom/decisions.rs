//! One thread's decisions by `flavor/hybrid/order.rs`, case by case, without a second thread: what it takes
//! next, when it calls others, what it leaves behind when it sleeps.

use std::{cell::Cell, panic::Location, sync::Arc, time::Duration};

use crossbeam::deque::Worker as Queue;
use loom::sync::atomic::Ordering;
use vigie_detect::Instant;

use super::{
    RANK,
    lane::{Account, Credit, Lane, Rank},
    order::{self, Limits, OwnQueues, Parts, ReserveMode, Turns},
    task_cell::TaskInfo,
    whole::{self, BRIEF, Fault, LATER, Model, NOW, SOON, Task},
};

const SLICE: Duration = Duration::from_millis(1);
const LONG: Rank = Rank { place: 1, needs_ns: 0, is_short: false };
const SHORT: Rank = Rank { place: 2, needs_ns: 0, is_short: true };

const fn limits(quantum: Duration) -> Limits {
    Limits { brief_ns: u64::MAX, quantum, gave_way: false, is_free: false }
}

/// Runs `check` for the first of two workers, for each number of `cases`.
fn each(
    cases: usize,
    check: impl Fn(&Model, &OwnQueues<'_, Task>, Turns, usize) + Sync + Send + 'static,
) {
    let check = Arc::new(check);
    for case in 0..cases {
        let check = Arc::clone(&check);
        loom::model(move || {
            let (model, queues) = whole::model(2, 1, Fault::None);
            let own = OwnQueues { reacting: &queues[0], worker: Some(0) };
            check(&model, &own, Turns::new(0, SLICE), case);
        });
    }
}

fn bits<const N: usize>(case: usize) -> [bool; N] {
    std::array::from_fn(|bit| case >> bit & 1 == 1)
}

/// Puts a task in one of the places from which a worker takes: the injected ones, and another worker's.
fn put(model: &Model, queues: &[Queue<Task>], place: usize, task: Task) {
    match place {
        0 => model.injected.reaction.push(task),
        1 => queues[1].push(task),
        2 => model.injected.compute.push(task, RANK),
        _ => model.computing[1].push(task, RANK),
    }
}

fn poll_began(model: &Model, place: usize, nanos_ago: u64) {
    let task = TaskInfo::new();
    model.worker_slots[place].begin(Instant::from_nanos(NOW.as_nanos() - nanos_ago), &task);
}

/// As by default.
const LONG_POLL_NS: u64 = 200_000;

/// Goal: reactions go first, injected ones behind those of the worker; then computation, which injected tasks
/// join. Method: two tasks in each place.
#[test]
fn a_worker_takes_reactions_first() {
    each(1, |model, own, mut turns, _| {
        assert_eq!(turns.next(model, own, NOW), None);
        model.computing[0].push(Task::Ends, SHORT);
        model.injected.compute.push(Task::WaitsForAnother, RANK);
        own.reacting.push(Task::Ends);
        model.injected.reaction.push(Task::WaitsForAnother);
        for expected in [
            (Task::Ends, Lane::Reaction),
            (Task::WaitsForAnother, Lane::Reaction),
            (Task::WaitsForAnother, Lane::Compute),
            (Task::Ends, Lane::Compute),
        ] {
            assert_eq!(turns.next(model, own, NOW), Some(expected));
        }
        assert_eq!(turns.next(model, own, NOW), None);
    });
}

/// Goal: a worker that computes searches others for reactions, no more often than each 50 us; one without
/// computation leaves this to its search. Method: times around that, with a reaction at the other worker.
#[test]
fn computing_workers_rob_reactions() {
    loom::model(|| {
        let (model, queues) = whole::model(2, 1, Fault::None);
        let (model, own) = (&*model, OwnQueues { reacting: &queues[0], worker: Some(0) });
        let mut turns = Turns::new(0, SLICE);
        let after = |micros: u64| Instant::from_nanos(NOW.as_nanos() + 1_000 * micros);
        queues[1].push(Task::WaitsForAnother);
        assert_eq!(turns.next(model, &own, NOW), None);
        for (time, robs) in [(0, true), (49, false), (50, true), (60, false), (100, true)] {
            model.computing[0].push(Task::Ends, RANK);
            let (task, lane) = turns.next(model, &own, after(time)).expect("there are two");
            assert_eq!(lane == Lane::Reaction, robs, "after {time} us");
            assert_eq!(task == Task::WaitsForAnother, robs, "after {time} us");
            if robs {
                queues[1].push(Task::WaitsForAnother);
            }
            while model.computing[0].pop().is_some() {}
        }
    });
}

/// Goal: a poll is charged to the share of its lane, by the tasks that wait in both. Method: a reaction of a
/// length after which a computation has its turn if it is alone, and has not beside a hundred reactions.
#[test]
fn computation_has_its_turn() {
    each(2, |model, own, mut turns, case| {
        let reacting = [0, 100][case];
        model.computing[0].push(Task::Ends, RANK);
        (0..reacting).for_each(|_| own.reacting.push(Task::Ends));
        turns.record(model, own, Lane::Reaction, 2_000_000);
        own.reacting.push(Task::Ends);
        let expected = [Lane::Compute, Lane::Reaction][case];
        assert_eq!(turns.next(model, own, NOW).map(|next| next.1), Some(expected));
        // And when it has been paid, or there is none, it is a reaction's turn.
        turns.record(model, own, Lane::Compute, 2_000_000);
        assert_eq!(turns.next(model, own, NOW).map(|next| next.1), Some(Lane::Reaction));
    });
}

/// Goal: a worker without work finds tasks anywhere else, in its lane, reactions before computation.
/// Method: a task in each place alone; then one in all of them.
#[test]
fn a_search_finds_everything() {
    for place in 0..5 {
        loom::model(move || {
            let (model, queues) = whole::model(2, 1, Fault::None);
            let (model, own) = (&*model, OwnQueues { reacting: &queues[0], worker: Some(0) });
            let mut turns = Turns::new(0, SLICE);
            assert_eq!(turns.search(model, &own), None);
            let places = if place == 4 { 0..4 } else { place..place + 1 };
            places.clone().for_each(|place| put(model, &queues, place, Task::Ends));
            assert!(model.has_work());
            for place in places {
                let lane = if place < 2 { Lane::Reaction } else { Lane::Compute };
                assert_eq!(turns.search(model, &own), Some((Task::Ends, lane)));
            }
            assert!(!model.has_work());
            // It searched all the time, and was the last.
            model.let_one_sleep();
            turns.stop_searching(model);
            assert!(model.was_called(1));
            turns.stop_searching(model);
            assert!(!model.was_called(1), "it searches no more");
        });
    }
}

/// Goal: where half of the workers search, another one does not. Method: the other one searches.
#[test]
fn half_of_the_workers_search() {
    each(1, |model, own, mut turns, _| {
        model.injected.reaction.push(Task::Ends);
        assert!(model.idle.begin_search());
        assert_eq!(turns.search(model, own), None);
        let _ = model.idle.end_search();
        assert!(turns.search(model, own).is_some());
    });
}

/// Goal: the last searcher checks everywhere before it sleeps, and wakes a worker for what it finds; the last
/// thread of all stops the supervisor's watchdog. Method: a task in each place, or nowhere; with others awake, or
/// a reserve thread, or none.
#[test]
fn the_last_searcher_checks_once_more() {
    for case in 0..6 * 8 {
        let (place, [is_searching, other_sleeps, serves]) = (case / 8, bits(case % 8));
        loom::model(move || {
            let (model, queues) = whole::model(2, 1, Fault::None);
            let (model, own) = (&*model, OwnQueues { reacting: &queues[0], worker: Some(0) });
            let mut turns = Turns::new(0, SLICE);
            if is_searching {
                assert_eq!(turns.search(model, &own), None);
            }
            match place {
                0..4 => put(model, &queues, place, Task::Ends),
                4 => model.computing[0].push(Task::Ends, RANK),
                _ => {}
            }
            if other_sleeps {
                model.let_one_sleep();
            }
            model.serving_count.store(usize::from(serves), Ordering::Relaxed);
            model.watchdog.guard(NOW.as_nanos(), 1, || false);
            turns.begin_sleep(model, NOW, None);
            // The one that fell asleep last.
            let is_called = is_searching && place < 5;
            assert_eq!((model.was_called(0), model.was_called(1)), (is_called, false), "{case}");
            let is_stopped = other_sleeps && !serves && !is_called;
            assert_eq!(model.watchdog.timer.take().is_none(), is_stopped, "{case}");
        });
    }
}

/// Goal: in a conversation, after four short sleeps in a row, the watchdog stays as it is; one sleep that is not
/// short ends it. Method: the last worker to fall asleep, with sleeps on both sides of the moment at which the
/// watchdog fires, and without a watchdog.
#[test]
fn the_watchdog_stays_set_in_a_conversation() {
    each(2, |model, own, mut turns, case| {
        model.let_one_sleep();
        let is_set = case == 0;
        let sleeps = [399, 399, 399, 399, 399, 400, 399, 399, 399, 399, 399];
        let stays = [false, false, false, false, true, true, false, false, false, false, true];
        for (number, (sleep_us, stays)) in sleeps.into_iter().zip(stays).enumerate() {
            if is_set {
                model.watchdog.guard(NOW.as_nanos(), 1, || false);
            }
            turns.begin_sleep(model, NOW, None);
            assert_eq!(model.watchdog.timer.take().is_some(), is_set && stays, "{number}");
            assert!(turns.ends_sleep(model, own, true));
            turns.note_wake(NOW + Duration::from_micros(sleep_us));
            model.watchdog.begin_rest();
            model.watchdog.timer.stop();
        }
        model.watchdog.guard(NOW.as_nanos(), 1, || false);
        turns.begin_sleep(model, NOW, None);
        assert_eq!(model.watchdog.timer.take().is_some(), is_set, "who has set none ends it, too");
    });
}

/// Goal: a worker sleeps until it is chosen, has tasks of its own, or the runtime ends. Method: every case; who
/// was chosen is a searcher.
#[test]
fn a_sleep_ends_for_a_reason() {
    each(16, |model, own, mut turns, case| {
        let [was_chosen, reacts, computes, is_shutdown] = bits(case);
        turns.begin_sleep(model, NOW, None);
        assert!(!was_chosen || model.idle.choose() == Some(0));
        if reacts {
            own.reacting.push(Task::Ends);
        }
        if computes {
            model.computing[0].push(Task::Ends, RANK);
        }
        let ends = turns.ends_sleep(model, own, is_shutdown);
        assert_eq!(ends, case > 0, "{case}");
        assert_eq!(model.idle.is_sleeping(0), !ends, "{case}");
        // A searcher that stops wakes the next one.
        if ends {
            model.let_one_sleep();
            turns.stop_searching(model);
            assert_eq!(model.was_called(1), was_chosen, "{case}");
        }
    });
}

/// Goal: a reserve thread takes reactions; computation only in the place of a thread that sleeps, of the longest
/// queue, or if it is short and the supervisor says so. Method: tasks everywhere, in each of these situations.
#[test]
fn reserve_threads_compute_for_others() {
    loom::model(|| {
        let (model, queues) = whole::model(2, 1, Fault::None);
        let (model, none) = (&*model, Queue::new_fifo());
        let own = OwnQueues { reacting: &none, worker: None };
        let mut turns = Turns::new(2, SLICE);
        assert_eq!(turns.next_of_reserve(model, &own, NOW), None);
        model.injected.reaction.push(Task::Ends);
        queues[1].push(Task::Ends);
        queues[1].push(Task::Ends);
        model.computing[0].push(Task::Ends, LONG);
        model.computing[1].push(Task::Ends, LONG);
        model.computing[1].push(Task::WaitsForAnother, SHORT);
        for _ in 0..3 {
            let reaction = Some((Task::Ends, Lane::Reaction));
            assert_eq!(turns.next_of_reserve(model, &own, NOW), reaction);
        }
        assert_eq!(turns.next_of_reserve(model, &own, NOW), None, "computation is for workers");

        model.serves.store(ReserveMode::Short);
        let short = Some((Task::WaitsForAnother, Lane::Compute));
        assert_eq!(turns.next_of_reserve(model, &own, NOW), short);
        assert_eq!(turns.next_of_reserve(model, &own, NOW), None);

        model.serves.store(ReserveMode::Nothing);
        model.computing[1].push(Task::WaitsForAnother, RANK);
        poll_began(model, 0, 0);
        model.worker_slots[0].expect_sleep(NOW, &model.blocked);
        assert_eq!(turns.next_of_reserve(model, &own, NOW), short, "of the longest queue");
        assert_eq!((model.blocked.count(), model.blocked.vacancies()), (1, 0));
        let long = Some((Task::Ends, Lane::Compute));
        assert_eq!(turns.next_of_reserve(model, &own, NOW), long);
        assert_eq!(model.blocked.vacancies(), 0, "its place is taken once");

        model.worker_slots[0].end_long_poll(&model.blocked);
        assert!(model.blocked.is_overfull());
        assert_eq!(turns.next_of_reserve(model, &own, NOW), None, "the thread is back");
        assert!(!model.blocked.is_overfull());
        turns.end_substitution(model);
        assert!(!model.blocked.is_overfull(), "it left once");

        model.worker_slots[0].expect_sleep(NOW, &model.blocked);
        assert_eq!(turns.next_of_reserve(model, &own, NOW), long);
        turns.end_substitution(model);
        assert_eq!(model.blocked.vacancies(), 1);
    });
}

/// Goal: where workers compute without end, reserve threads run one task of any kind, reactions first. Method: two
/// long tasks in each situation.
#[test]
fn beside_endless_polls_one_task_is_run() {
    for (serves, runs) in
        [(ReserveMode::Nothing, false), (ReserveMode::Short, false), (ReserveMode::AnyOne, true)]
    {
        loom::model(move || {
            let (model, _queues) = whole::model(2, 1, Fault::None);
            let (model, none) = (&*model, Queue::new_fifo());
            let own = OwnQueues { reacting: &none, worker: None };
            let mut turns = Turns::new(2, SLICE);
            model.serves.store(serves);
            model.injected.compute.push(Task::Ends, LONG);
            model.injected.compute.push(Task::Ends, LONG);
            model.injected.reaction.push(Task::WaitsForAnother);
            let next = turns.next_of_reserve(model, &own, NOW);
            assert_eq!(next, Some((Task::WaitsForAnother, Lane::Reaction)));
            assert_eq!(turns.next_of_reserve(model, &own, NOW).is_some(), runs, "{serves:?}");
            assert_eq!(turns.next_of_reserve(model, &own, NOW), None, "{serves:?}");
        });
    }
}

/// Goal: a substitute gives each lane its share, as a worker does. Method: reactions have used more than
/// theirs; with and without computation that it may take.
#[test]
fn substitutes_share_their_time() {
    for computes in [false, true] {
        loom::model(move || {
            let (model, _queues) = whole::model(2, 1, Fault::None);
            let (model, none) = (&*model, Queue::new_fifo());
            let own = OwnQueues { reacting: &none, worker: None };
            let mut turns = Turns::new(2, SLICE);
            model.injected.compute.push(Task::Ends, RANK);
            model.injected.reaction.push(Task::Ends);
            if computes {
                poll_began(model, 0, 0);
                model.worker_slots[0].expect_sleep(NOW, &model.blocked);
            }
            turns.record(model, &own, Lane::Reaction, 2_000_000);
            let lanes =
                [(); 3].map(|()| turns.next_of_reserve(model, &own, NOW).map(|next| next.1));
            let (reaction, compute) = (Some(Lane::Reaction), Some(Lane::Compute));
            let expected =
                if computes { [compute, reaction, None] } else { [reaction, None, None] };
            assert_eq!(lanes, expected);
        });
    }
}

/// Goal: a reserve thread watches unless a worker sleeps, which it wakes, or the workers poll unprompted,
/// which the supervisor checks soon. Method: every case.
#[test]
fn reserve_threads_watch_if_nobody_else_does() {
    each(4, |model, _, turns, case| {
        let [sleeps, is_steady] = bits(case);
        if sleeps {
            model.let_one_sleep();
        }
        assert_eq!(turns.should_watch(model, NOW, is_steady), case == 0);
        assert_eq!(model.was_called(1), sleeps);
        assert_eq!(model.watchdog.timer.take(), if case == 0 { None } else { SOON });
    });
}

/// Goal: the sentinel is announced before it checks, and stays awake for a call and for a reaction. Method:
/// every case.
#[test]
fn the_sentinel_checks_after_it_is_announced() {
    each(4, |model, _, turns, case| {
        let [is_awaited, has_work] = bits(case);
        if has_work {
            model.injected.reaction.push(Task::Ends);
        }
        let stays = turns.become_sentinel(model, || {
            assert_eq!(model.sentinel.holder(), Some(0));
            is_awaited
        });
        assert_eq!((stays, model.sentinel.holder()), (case > 0, Some(0)));
    });
}

/// Goal: a worker that has more to do than the next task wakes another one, unless a worker searches. Method:
/// every case.
#[test]
fn work_is_shared_out() {
    each(16, |model, own, turns, case| {
        let [sleeps, searches, reacts, computes] = bits(case);
        if sleeps {
            model.let_one_sleep();
        }
        if searches {
            assert!(model.idle.begin_search());
        }
        if reacts {
            own.reacting.push(Task::Ends);
        }
        if computes {
            model.computing[0].push(Task::Ends, RANK);
        }
        assert_eq!(own.has_more(model), reacts || computes);
        turns.distribute(model, own);
        assert_eq!(model.was_called(1), sleeps && !searches && (reacts || computes), "{case}");
    });
}

/// Goal: the supervisor's check may be put off while no other worker is inside a long poll and a thread polls.
/// Method: long and short polls of each worker; the reserve thread's do not count.
#[test]
fn checks_are_put_off_for_nobody() {
    each(16, |model, _, turns, case| {
        let [own_is_long, other_is_long, of_reserve, is_seen] = bits(case);
        for (place, is_long) in [own_is_long, other_is_long, of_reserve].into_iter().enumerate() {
            poll_began(model, place, if is_long { 201 } else { 200 });
        }
        let expected = is_seen && !other_is_long;
        assert_eq!(turns.may_put_off(model, NOW, 200, (is_seen, false)), expected, "{case}");
        assert!(!turns.may_put_off(model, NOW, 200, (is_seen, true)), "not by much");
        // No thread polls here at the moment.
        model.worker_slots[1].end_long_poll(model.blocked());
        assert!(turns.may_put_off(model, NOW, 200, (is_seen, true)), "{case}");
    });
}

/// Goal: a poll of a task whose polls have always been brief needs no check of others, even if it is late and poll passes are
/// not regular, until it has taken two milliseconds: workers take what waits behind it. Reserve threads do not. Method:
/// each of these.
#[test]
fn checks_are_put_off_beside_brief_polls() {
    for case in 0..32 {
        loom::model(move || {
            let (model, queues) = whole::model(2, 1, Fault::None);
            let [is_late, waits, is_seen, is_later, is_reserve] = bits(case);
            let (turns, how) =
                (Turns::new(if is_reserve { 2 } else { 0 }, SLICE), (is_seen, is_later));
            poll_began(&model, 1, if is_late { LONG_POLL_NS + 1 } else { LONG_POLL_NS });
            model.worker_slots[1].set_brief(true);
            if waits {
                queues[1].push(Task::Ends);
            }
            let expected = !(is_late && waits && is_reserve);
            assert_eq!(turns.may_put_off(&*model, NOW, LONG_POLL_NS, how), expected, "{case}");
            poll_began(&model, 1, 2_000_001);
            assert!(!turns.may_put_off(&*model, NOW, LONG_POLL_NS, how), "{case}");
            poll_began(&model, 1, LONG_POLL_NS + 1);
            model.worker_slots[1]
                .take_as_caught(Instant::from_nanos(NOW.as_nanos() - LONG_POLL_NS - 1));
            assert!(!turns.may_put_off(&*model, NOW, LONG_POLL_NS, how), "{case}: it computes");
        });
    }
}

/// Goal: a worker takes half of the reactions that wait behind another one's late poll of a brief task, every 50 µs;
/// none from one that switches, and none for which the supervisor calls a thread. Method: eight tasks behind a poll
/// around 200 µs or of 2 ms, and a second try at once.
#[test]
fn workers_relieve_those_that_are_late() {
    for (age, is_brief, taken) in
        [(200_000, true, 0_usize), (200_001, true, 4), (200_001, false, 0), (2_000_001, true, 4)]
    {
        loom::model(move || {
            let (model, queues) = whole::model(2, 1, Fault::None);
            let own = OwnQueues { reacting: &queues[0], worker: Some(0) };
            let mut turns = Turns::new(0, SLICE);
            (0..8).for_each(|_| queues[1].push(Task::Ends));
            own.reacting.push(Task::Ends);
            poll_began(&model, 1, age);
            model.worker_slots[1].set_brief(is_brief);
            assert!(turns.next(&*model, &own, NOW).is_some(), "its own");
            assert_eq!(own.reacting.len(), taken, "{age}");
            assert_eq!(turns.next(&*model, &own, NOW).is_some(), taken > 0);
            assert_eq!(own.reacting.len(), taken.saturating_sub(1), "not at once again");
        });
    }
}

/// Goal: a task that will sleep in the kernel counts as asleep, and if no thread watches or anything waits, its
/// thread is replaced: by a worker, by the sentinel, or by the one that the caller activates, unless enough threads run
/// already. Method: every case, with as many threads as are not enough yet, and one more.
#[test]
fn expected_sleepers_are_replaced() {
    each(64, |model, own, turns, case| {
        let [is_watched, has_own, has_other, sleeps, has_sentinel, has_enough] = bits(case);
        poll_began(model, 0, 0);
        // Two workers, one of which will sleep, and these make five: two for each worker, and one.
        model.serving_count.store(4 + usize::from(has_enough), Ordering::Relaxed);
        if has_own {
            own.reacting.push(Task::Ends);
        }
        if has_other {
            model.injected.compute.push(Task::Ends, RANK);
        }
        if sleeps {
            model.let_one_sleep();
        }
        if has_sentinel {
            model.sentinel.take(2, || false);
        }
        let is_needed = !is_watched || has_own || has_other;
        let activates = is_needed && !sleeps && !has_sentinel && !has_enough;
        assert_eq!(turns.expect_sleep(model, own, NOW, is_watched), activates, "{case}");
        assert!(model.worker_slots[0].is_blocked() && model.blocked.count() == 1);
        assert_eq!(model.was_called(1), is_needed && sleeps, "{case}");
        assert_eq!(model.was_called(2), is_needed && !sleeps && has_sentinel, "{case}");
    });
}

/// Goal: before a poll the supervisor is asked for a check, soon if events or reactions may wait behind it, later
/// if computation does, not at all if nothing does; a reserve thread puts its reactions among the injected ones,
/// and has no lane for computation. Later, too, if the polls of the task are brief, and on workers if no poll was long lately.
/// Method: every case, for both; only the first may be put off.
#[test]
fn polls_are_guarded_by_what_waits() {
    each(64, |model, own, _, case| {
        let [is_watched, reacts, computes, is_worker, is_brief, is_alert] = bits(case);
        if is_alert {
            model.watchdog.note_long_poll(NOW.as_nanos(), 6_000_000);
        }
        let worker = own.worker.filter(|_| is_worker);
        let own = OwnQueues { worker, ..*own };
        if reacts && is_worker {
            own.reacting.push(Task::Ends);
        } else if reacts {
            model.injected.reaction.push(Task::Ends);
        }
        if computes {
            model.computing[0].push(Task::Ends, RANK);
        }
        let expected = match !is_watched || reacts {
            true if is_brief && !is_worker => LATER,
            true if is_brief && !is_alert => BRIEF,
            true => SOON,
            false => LATER.filter(|_| computes && is_worker),
        };
        own.guard(model, NOW, is_watched, is_brief, |_| false);
        assert_eq!(model.watchdog.timer.take(), expected, "{case}");
        // A check is due sooner than this poll needs: may it be put off, and by much?
        model.watchdog.stop(NOW.as_nanos(), None, 1);
        model.watchdog.guard(NOW.as_nanos() - 300_000, 1, || false);
        let mut asked = None;
        own.guard(model, NOW, is_watched, is_brief, |is_later| {
            asked = Some(is_later);
            false
        });
        let needs_it = !is_watched || reacts;
        assert_eq!(asked, needs_it.then(|| expected != SOON), "{case}");
    });
}

/// Goal: short tasks that have used up their share get on reserve threads, all together, what a thread for each would
/// give them; those that have not are not kept waiting. Method: one or three short ones beside six long ones and two
/// workers, a poll of 100 µs, and both sides of the moment at which a thread that is called may run the next.
#[test]
fn short_tasks_take_no_more_than_their_share() {
    for (short_count, pause_ns) in [(1, 450_000), (3, 183_333)] {
        loom::model(move || {
            let (model, queues) = whole::model(2, 1, Fault::None);
            let own = OwnQueues { reacting: &queues[0], worker: None };
            let mut turns = Turns::new(2, SLICE);
            let used_up = Rank { place: NOW.as_nanos() + 100_000_000, needs_ns: 0, is_short: true };
            model.serves.store(ReserveMode::Short);
            for _ in 0..6 {
                model.computing[0].push(Task::Ends, LONG);
            }
            for _ in 0..short_count {
                model.computing[0].push(Task::Ends, used_up);
            }
            let at = |nanos: u64| Instant::from_nanos(NOW.as_nanos() + nanos);
            let short = Some((Task::Ends, Lane::Compute));
            assert_eq!(turns.next_of_reserve(&*model, &own, NOW), short);
            turns.record(&*model, &own, Lane::Compute, 100_000);
            model.computing[0].push(Task::Ends, used_up);
            turns.answer_call(&*model, at(100_000));
            assert_eq!(turns.next_of_reserve(&*model, &own, at(pause_ns - 1)), None);
            model.computing[0].push(Task::Ends, SHORT);
            assert_eq!(
                turns.next_of_reserve(&*model, &own, at(pause_ns - 1)),
                short,
                "has some left"
            );
            assert_eq!(turns.next_of_reserve(&*model, &own, at(pause_ns)), short);
            turns.record(&*model, &own, Lane::Compute, 1_000_000_000);
            model.computing[0].push(Task::Ends, used_up);
            let latest = pause_ns + 20_000_000;
            turns.answer_call(&*model, at(pause_ns));
            assert_eq!(turns.next_of_reserve(&*model, &own, at(latest - 1)), None);
            assert_eq!(
                turns.next_of_reserve(&*model, &own, at(latest)),
                short,
                "they wait for so long"
            );
        });
    }
}

/// Goal: beside polls without an end, the tasks that come back get together what a thread for each would give them,
/// not one turn in two seconds. Method: one that is taken, three that wait and two workers, a poll of 6 ms: both
/// sides of the moment at which it is the next one's turn, which is over once a thread takes it.
#[test]
fn tasks_that_come_back_have_their_share() {
    loom::model(|| {
        let (model, queues) = whole::model(2, 1, Fault::None);
        let own = OwnQueues { reacting: &queues[0], worker: None };
        let mut turns = Turns::new(2, SLICE);
        for _ in 0..4 {
            model.computing[0].push(Task::Ends, LONG);
        }
        let at = |nanos: u64| Instant::from_nanos(NOW.as_nanos() + nanos);
        let is_turn = |nanos: u64| model.injected.is_turn_of_any(at(nanos).as_nanos());
        assert!(!is_turn(1_000_000_000), "no task has come back");
        model.serves.store(ReserveMode::AnyOne);
        let any = Some((Task::Ends, Lane::Compute));
        assert_eq!(turns.next_of_reserve(&*model, &own, NOW), any);
        assert_eq!(turns.next_of_reserve(&*model, &own, NOW), None, "one at a time");
        turns.record(&*model, &own, Lane::Compute, 6_000_000);
        assert!(!is_turn(4_499_999));
        assert!(is_turn(4_500_000));
        model.serves.store(ReserveMode::AnyOne);
        assert_eq!(turns.next_of_reserve(&*model, &own, at(4_500_000)), any);
        assert!(!is_turn(1_000_000_000));
    });
}

/// Goal: a task is ranked by its credit and its usual poll, a new one by what is expected. Method: with and
/// without credit; polls around a quantum and around what counts as short.
#[test]
fn tasks_are_ranked_by_what_they_used() {
    loom::model(|| {
        let (now, quantum) = (NOW.as_nanos(), Duration::from_micros(500));
        let choose =
            |account: &Account| order::choose_rank(account, None, false, now, limits(quantum));
        let account = Account::new(Credit::FULL, None);
        assert_eq!(choose(&account), None);
        assert!(!order::has_short_polls(&account, true), "unknown");
        let spent = Credit::FULL.after(now, 1_000_000);
        let rank = |needs_ns, is_short| Some(Rank { place: spent.place(now), needs_ns, is_short });
        let like_others = choose(&Account::new(spent, Some(10_000)));
        assert_eq!(like_others, rank(10_000, true), "as others of its kind");
        for (usual, is_short, is_very_short) in [
            (20_000, true, true),
            (20_001, true, false),
            (500_000, true, false),
            (500_001, false, false),
        ] {
            let account = Account::new(spent, None);
            assert_eq!(choose(&account), rank(0, false), "unknown");
            account.charge(spent, usual);
            assert_eq!(choose(&account), rank(usual as u32, is_short));
            assert_eq!(order::has_short_polls(&account, true), is_very_short);
            assert!(!order::has_short_polls(&account, false));
        }
    });
}

/// Goal: a task is brief if its own polls are proven and take a tenth of a millisecond at most, and half a long poll. Method:
/// both sides of each bound.
#[test]
fn who_is_brief_has_shown_it() {
    loom::model(|| {
        let account = Account::new(Credit::FULL, None);
        assert!(!order::is_brief(&account, true, LONG_POLL_NS), "unknown");
        for (usual, is_proven, long_poll_ns, expected) in [
            (100_000, true, LONG_POLL_NS, true),
            (100_000, false, LONG_POLL_NS, false),
            (100_001, true, 10 * LONG_POLL_NS, false),
            (10_000, true, 20_000, true),
            (10_001, true, 20_000, false),
        ] {
            let account = Account::new(Credit::FULL, None);
            account.charge(Credit::FULL, usual);
            assert_eq!(order::is_brief(&account, is_proven, long_poll_ns), expected);
        }
    });
}

/// Goal: a task that wakes itself again and again loses its priority over events, and however much credit it has, it does not
/// pass those that have waited for longer than their debts lasted: sixty of them kept an acceptor waiting for seconds. Method:
/// wake-ups in a row, with credit and without, and a task in debt that was queued before.
#[test]
fn who_wakes_itself_passes_nobody_who_has_waited() {
    loom::model(|| {
        let (now, quantum) = (NOW.as_nanos(), Duration::from_micros(500));
        let place_after = |wakes: usize, credit: Credit, now: u64| {
            let account = Account::new(credit, None);
            let ranks =
                (0..wakes).map(|_| order::choose_rank(&account, None, true, now, limits(quantum)));
            ranks.last().flatten().map(|rank| rank.place)
        };
        assert_eq!(place_after(2, Credit::FULL, now), None);
        let spent = Credit::FULL.after(now, 1_000_000);
        let waits = place_after(2, spent, now).expect("it has no credit");
        assert_eq!(Some(waits), place_after(3, spent, now));
        let while_it_waits = place_after(3, Credit::FULL, now).expect("no priority");
        assert!(while_it_waits < waits, "it has used less");
        assert!(place_after(3, Credit::FULL, waits + 1) > Some(waits), "it comes later");
    });
}

/// Goal: one poll gives priority to as many tasks as use a millisecond in all; the rest waits, short as it is. A task
/// that waits already gets no priority by what it has woken. Method: tasks of 250 µs with their switches.
#[test]
fn a_broadcast_goes_first_in_part() {
    loom::model(|| {
        let (now, quantum) = (NOW.as_nanos(), Duration::from_micros(500));
        let (woken_ns, account) = (Cell::new(0), Account::new(Credit::FULL, Some(249_000)));
        let choose = || order::choose_rank(&account, Some(&woken_ns), false, now, limits(quantum));
        for _ in 0..5 {
            assert_eq!(choose(), None);
        }
        let place = Credit::FULL.place(now);
        let rank = Some(Rank { place, needs_ns: 249_000, is_short: true });
        assert_eq!(choose(), rank);
        assert_eq!(
            order::choose_rank(&account, None, false, now, limits(quantum)),
            None,
            "events do"
        );
        woken_ns.set(0);
        assert_eq!(choose(), None, "the next poll's");
    });
}

/// Goal: a task that is about to be polled as one that reacts is put back if others of its kind have shown that it
/// computes. Method: expectations around the bound.
#[test]
fn kinds_that_compute_are_put_back() {
    loom::model(|| {
        let (now, quantum) = (NOW.as_nanos(), Duration::from_micros(500));
        for (expected, is_put_back) in
            [(None, false), (Some(1_000_000), false), (Some(1_000_001), true)]
        {
            let account = Account::new(Credit::FULL, None);
            assert_eq!(order::choose_rank(&account, None, false, now, limits(quantum)), None);
            let (place, needs_ns) = (Credit::FULL.place(now), expected.unwrap_or(0));
            let rank = Rank { place, needs_ns, is_short: false };
            let rank = Some(rank).filter(|_| is_put_back);
            assert_eq!(order::rank_of_late(&account, expected, now, quantum), rank);
            assert_eq!(
                order::choose_rank(&account, None, false, now, limits(quantum)),
                rank,
                "known"
            );
        }
    });
}

/// Goal: poll passes are regular if the last one is no older than a long poll, and none was late for two
/// milliseconds. Method: times around both.
#[test]
fn regular_poll_passes_are_trusted() {
    let long_poll = Duration::from_micros(200);
    let ago = |nanos: u64| Instant::from_nanos(NOW.as_nanos() - nanos);
    for (pass, gap, expected) in [
        (200_000, 2_000_001, true),
        (200_001, 2_000_001, false),
        (0, 2_000_000, false),
        (0, 0, false),
    ] {
        assert_eq!(order::is_steady(NOW, ago(pass), ago(gap), long_poll), expected);
    }
}
