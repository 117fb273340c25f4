//! The supervisor's conclusions from one moment: threads and queues are put there by hand.

use std::{panic::Location, rc::Rc, time::Duration};

use crossbeam::deque::Worker as Queue;
use vigie_detect::{Instant, Simulation};

use super::{
    KERNEL, MS, Options,
    hybrid::{
        census::{Census, SupervisorHistory},
        need::WakePlan,
        order::{self, Limits, OwnQueues, Parts, ReserveMode, Turns},
    },
    kernel::Kernel,
    lane::{Account, Credit, Lane, Rank},
    task_cell::TaskInfo,
    world::{RESERVES, World},
};

const LONG_POLL: Duration = Duration::from_micros(200);
pub(crate) const QUANTUM: Duration = Duration::from_millis(1);

/// A world of two workers in which nothing happens on its own.
fn world() -> World {
    world_and_queues().0
}

/// The same, with the reaction lanes of its threads.
pub(crate) fn world_and_queues() -> (World, Vec<Queue<usize>>) {
    let options = Options {
        seed: 0,
        workers: 2,
        cores: 2,
        wake_ns: 0,
        has_tick: false,
        long_poll: LONG_POLL,
        quantum: QUANTUM,
        pass_interval_ns: 50_000,
        length_ns: 0,
        polls_max: 0,
    };
    let simulation = Simulation::new(0);
    let parts = (simulation.clock(), simulation.server().timers().clone());
    let kernel = Rc::new(Kernel::new(parts, 2, 2 + RESERVES + 1, 0, false));
    KERNEL.set(Some(Rc::clone(&kernel)));
    let queues: Vec<_> = (0..2 + RESERVES).map(|_| Queue::new_fifo()).collect();
    (World::new(options, kernel, &queues), queues)
}

/// The thread at `place` began its poll so long before `now`.
fn polls_for(world: &World, place: usize, now: u64, nanos: u64) {
    let task = TaskInfo { site: Location::caller(), name_key: 0, early_word: 0 };
    world.worker_slot(place).begin(Instant::from_nanos(now - nanos), &task);
}

/// The supervisor's orders at `now`, if it called no thread for `call` long polls.
fn orders(world: &World, now: u64, call: u128) -> WakePlan {
    let census = Census::take(world, Instant::from_nanos(now), LONG_POLL);
    let since = SupervisorHistory { long_poll: LONG_POLL, call, any: Duration::ZERO };
    census.decide(world, false, since, QUANTUM).0
}

/// Goal: a brief poll that is late, and whose thread may only wait for a processor, counts as long at once if another
/// worker sleeps, which is woken; not if one switches; and not before it was checked again if none does. Method: a
/// reaction behind such a poll, while the other worker switches, sleeps, is late as well, or is between two polls;
/// which thread the supervisor calls, and when it checks again.
#[test]
fn late_brief_polls_are_left_to_workers_that_switch() {
    let nobody = WakePlan::default();
    let wakes = WakePlan { wakes_worker: true, ..nobody };
    for (other, sleeps, counts, calls, again) in [
        (Some(10_000), false, false, nobody, LONG_POLL),
        (None, true, true, wakes, LONG_POLL / 2),
        (Some(201_000), false, false, nobody, LONG_POLL / 2),
        (None, false, false, nobody, LONG_POLL / 2),
    ] {
        let ((world, queues), now) = (world_and_queues(), Instant::from_nanos(1_000 * MS));
        polls_for(&world, 0, now.as_nanos(), 201_000);
        world.worker_slot(0).set_brief(true);
        if let Some(nanos) = other {
            polls_for(&world, 1, now.as_nanos(), nanos);
            world.worker_slot(1).set_brief(true);
        }
        if sleeps {
            let _is_last = world.idle().begin_sleep(1, false);
        }
        queues[0].push(0);
        let census = Census::take(&world, now, LONG_POLL);
        let case = format!("{other:?} {sleeps}");
        assert_eq!(census.caught, usize::from(counts), "{case}");
        let since = SupervisorHistory { long_poll: LONG_POLL, call: 1_000, any: Duration::ZERO };
        let (orders, needs_more) = census.decide(&world, false, since, QUANTUM);
        assert_eq!(orders, calls, "{case}");
        assert_eq!(world.worker_slot(0).is_caught(now, 200_000), counts, "{case}");
        census.plan_next_check(&world, now, (needs_more, false), (false, LONG_POLL));
        assert_eq!(world.watchdog().timer.left(), again, "{case}");
    }
}

/// Goal: late brief polls that no thread relieves count as long at the second check. Method: two checks of two of them,
/// in the middle of which a reaction waits.
#[test]
fn doubtful_polls_are_checked_twice() {
    let ((world, queues), now) = (world_and_queues(), 1_000 * MS);
    for place in 0..2 {
        polls_for(&world, place, now, 201_000);
        world.worker_slot(place).set_brief(true);
    }
    queues[0].push(0);
    assert_eq!(orders(&world, now, 1_000), WakePlan::default());
    assert_eq!(orders(&world, now, 1_000).activates, 1);
    let census = Census::take(&world, Instant::from_nanos(now), LONG_POLL);
    assert_eq!(census.caught, 2);
}

/// Goal: the supervisor does not rest while something waits behind a late brief poll that another worker will
/// relieve. Method: with and without; while a thread watches, and while none does.
#[test]
fn what_waits_for_relief_is_checked_again() {
    for (waits, is_watched, again) in [
        (false, true, rest_delay()),
        (true, true, Duration::from_millis(1)),
        (true, false, LONG_POLL),
    ] {
        let ((world, queues), now) = (world_and_queues(), Instant::from_nanos(1_000 * MS));
        polls_for(&world, 0, now.as_nanos(), 201_000);
        world.worker_slot(0).set_brief(true);
        polls_for(&world, 1, now.as_nanos(), 10_000);
        if waits {
            queues[0].push(0);
        }
        let census = Census::take(&world, now, LONG_POLL);
        census.plan_next_check(&world, now, (false, false), (is_watched, LONG_POLL));
        assert_eq!(world.watchdog().timer.left(), again, "{waits} {is_watched}");
    }
}

/// Goal: for a second after a thread was found asleep for long in a poll, all polls are checked soon. Method: a
/// poll that is late, asleep or not, on both sides of the bound.
#[test]
fn sleepers_raise_the_alert() {
    for (nanos, is_asleep, is_alert) in
        [(6 * MS, false, false), (5 * MS, true, false), (5 * MS + 1, true, true)]
    {
        let (world, now) = (world(), 1_000 * MS);
        polls_for(&world, 0, now, nanos);
        if is_asleep {
            world.worker_slot(0).expect_sleep(Instant::from_nanos(now - nanos), world.blocked());
        }
        Census::take(&world, Instant::from_nanos(now), LONG_POLL);
        assert_eq!(world.watchdog().is_alert(now), is_alert);
    }
}

/// Goal: reserve threads run short tasks where every worker has computed for longer than four quanta, and not earlier.
/// Method: a short task behind two polls, one of which is as long as that or a little longer.
#[test]
fn short_tasks_wait_for_four_quanta() {
    for (nanos, serves, activates) in
        [(4 * MS, ReserveMode::Nothing, 0), (4 * MS + 1, ReserveMode::Short, 1)]
    {
        let (world, now) = (world(), 1_000 * MS);
        polls_for(&world, 0, now, 90 * MS);
        polls_for(&world, 1, now, nanos);
        world.computing()[0].push(0, Rank { place: now, needs_ns: 0, is_short: true });
        assert_eq!(orders(&world, now, 1_000).activates, activates, "{nanos}");
        assert_eq!(world.serves().load(), serves, "{nanos}");
    }
}

/// Goal: where a worker sleeps in the kernel, a reserve thread counts in its place. Method: a short task behind a worker
/// that sleeps, one that computes, and a reserve thread that has computed for as long, for less, or is asleep as well.
#[test]
fn short_tasks_do_not_wait_for_workers_that_sleep() {
    for (reserve_ns, is_asleep, serves) in [
        (None, false, ReserveMode::Nothing),
        (Some(4 * MS), false, ReserveMode::Nothing),
        (Some(5 * MS), true, ReserveMode::Nothing),
        (Some(5 * MS), false, ReserveMode::Short),
    ] {
        let (world, now) = (world(), 1_000 * MS);
        polls_for(&world, 0, now, 90 * MS);
        polls_for(&world, 1, now, 90 * MS);
        world.worker_slot(0).expect_sleep(Instant::from_nanos(now - 90 * MS), world.blocked());
        if let Some(nanos) = reserve_ns {
            world.serving.borrow_mut().push(2);
            polls_for(&world, 2, now, nanos);
            if is_asleep {
                world
                    .worker_slot(2)
                    .expect_sleep(Instant::from_nanos(now - nanos), world.blocked());
            }
        }
        world.computing()[1].push(0, Rank { place: now, needs_ns: 0, is_short: true });
        orders(&world, now, 1_000);
        assert_eq!(world.serves().load(), serves, "{reserve_ns:?} {is_asleep}");
    }
}

/// Goal: a short task that is overdue is run by a reserve thread although a worker switches, and although four threads are caught by such tasks.
/// Method: a task on both sides of the bound, in each lane, in both situations, and one that is not short.
#[test]
fn overdue_tasks_are_run_by_reserve_threads() {
    let now = 1_000 * MS;
    for (switches, waits, otherwise) in
        [(true, 20, ReserveMode::Nothing), (false, 20, ReserveMode::NoMoreShort)]
    {
        for lane in 0..3 {
            for (late, is_short, is_run) in [(0, true, true), (1, true, false), (0, false, false)] {
                let world = world();
                polls_for(&world, 0, now, 90 * MS);
                polls_for(&world, 1, now, if switches { 10_000 } else { 90 * MS });
                for place in 2..6 {
                    world.serving.borrow_mut().push(place);
                    polls_for(&world, place, now, 90 * MS);
                    world.worker_slot(place).set_serves_short(true);
                }
                let queue =
                    world.computing().get(lane).unwrap_or_else(|| &world.injected().compute);
                queue.push(0, Rank { place: now - waits * MS + late, needs_ns: 0, is_short });
                orders(&world, now, 0);
                let expected = if is_run { ReserveMode::Short } else { otherwise };
                assert_eq!(world.serves().load(), expected, "{switches} {lane} {late} {is_short}");
            }
        }
    }
}

/// Goal: a thread that is called for events takes no short task where four are caught by such tasks, until the last call was 128 long polls
/// ago; those that have run short tasks go on. Method: three, four and five threads that are caught by short tasks or by others, both times,
/// and what one more of either kind would run.
#[test]
fn threads_for_events_are_not_caught_by_short_tasks() {
    for (by_short, by_others, call, serves) in [
        (3, 2, 0, ReserveMode::Short),
        (4, 0, 0, ReserveMode::NoMoreShort),
        (5, 1, 127, ReserveMode::NoMoreShort),
        (5, 0, 128, ReserveMode::Short),
    ] {
        let (world, now) = (world(), 1_000 * MS);
        let caught = by_short + by_others;
        for place in 0..2 + caught {
            polls_for(&world, place, now, 90 * MS);
            if place >= 2 {
                world.serving.borrow_mut().push(place);
                world.worker_slot(place).set_serves_short(place < 2 + by_short);
            }
        }
        world.computing()[0].push(0, Rank { place: now, needs_ns: 0, is_short: true });
        orders(&world, now, call);
        assert_eq!(world.serves().load(), serves, "{by_short} {by_others} {call}");
        for has_run_short in [false, true] {
            let place = 2 + caught;
            world.worker_slot(place).set_serves_short(has_run_short);
            let (mut turns, reacting) = (Turns::new(place, QUANTUM), Queue::new_fifo());
            let own = OwnQueues { reacting: &reacting, worker: None };
            let next = turns.next_of_reserve(&world, &own, Instant::from_nanos(now));
            let is_taken = serves == ReserveMode::Short || has_run_short;
            assert_eq!(next.is_some(), is_taken, "{by_short} {call} {has_run_short}");
            if let Some((task, _)) = next {
                world.computing()[0].push(task, Rank { place: now, needs_ns: 0, is_short: true });
            }
        }
    }
}

/// Goal: where everybody else is caught, the reserve thread in the poller is woken for a task that waits for any
/// thread; one that is awake finds it. Method: the same thread in the poller, awake, and caught.
#[test]
fn the_sentinel_is_no_free_thread() {
    for (watches, is_caught, wakes_sentinel, activates) in
        [(true, false, true, 0), (false, false, false, 0), (false, true, false, 1)]
    {
        let (world, now) = (world(), 1_000 * MS);
        for place in 0..2 {
            polls_for(&world, place, now, 2 * MS);
        }
        world.serving.borrow_mut().push(2);
        if watches {
            assert!(!world.sentinel().take(2, || false), "it may sleep");
        }
        if is_caught {
            polls_for(&world, 2, now, 2 * MS);
        }
        world.injected().reaction.push(0);
        let orders = orders(&world, now, 1_000);
        assert_eq!((orders.wakes_sentinel, orders.activates), (wakes_sentinel, activates));
    }
}

/// Goal: a reserve thread leaves what waits to the workers once all of them have switched since it was called and one polls a brief task, and does not
/// watch. One that polls on, or polls a task that may be long, keeps it, and so does a late poll of the only one that polls. Method: a reaction,
/// and what both workers do since then.
#[test]
fn workers_that_switch_relieve_the_reserve() {
    const BEFORE: Option<(u64, bool)> = Some((MS, true));
    const LATE: Option<(u64, bool)> = Some((MS / 2, true));
    const YOUNG: Option<(u64, bool)> = Some((MS / 10, true));
    const LONG: Option<(u64, bool)> = Some((MS / 10, false));
    for (workers, leaves) in [
        ([YOUNG, YOUNG], true),
        ([LATE, YOUNG], true),
        ([None, YOUNG], true),
        ([None, None], false),
        ([None, LATE], false),
        ([LATE, LATE], false),
        ([YOUNG, BEFORE], false),
        ([LONG, YOUNG], false),
        ([BEFORE, BEFORE], false),
    ] {
        let (world, queues) = world_and_queues();
        let now = 1_000 * MS;
        world.serving.borrow_mut().push(2);
        queues[0].push(7);
        let (mut turns, reacting) = (Turns::new(2, QUANTUM), Queue::new_fifo());
        let own = OwnQueues { reacting: &reacting, worker: None };
        turns.begin_service(Instant::from_nanos(now - MS / 2 - 1));
        for (place, polls) in workers.into_iter().enumerate() {
            if let Some((nanos, is_brief)) = polls {
                polls_for(&world, place, now, nanos);
                world.worker_slot(place).set_brief(is_brief);
            }
        }
        let now = Instant::from_nanos(now);
        let next = turns.next_of_reserve(&world, &own, now);
        assert_eq!(next.is_none(), leaves, "{workers:?}");
        assert_eq!(turns.should_watch(&world, now, false), !leaves, "{workers:?}");
        turns.begin_service(now);
        assert!(turns.should_watch(&world, now, false), "it was called again");
    }
}

/// Goal: a reserve thread that events wake in vain leaves once the workers have switched since the first of them, and not while one polls on, nor
/// for a call of long ago. Method: a wake-up after a service without tasks, by when that began and how long both workers have polled; and after one with tasks.
#[test]
fn a_reserve_woken_in_vain_is_relieved() {
    const LONG_POLL: Duration = Duration::from_micros(200);
    let us = MS / 1_000;
    for (called, polled, has_served, leaves) in [
        (150 * us, [20 * us, 40 * us], false, true),
        (150 * us, [20 * us, 40 * us], true, false),
        (150 * us, [20 * us, 160 * us], false, false),
        (201 * us, [20 * us, 40 * us], false, false),
    ] {
        let (world, _) = world_and_queues();
        let now = 1_000 * MS;
        world.serving.borrow_mut().push(2);
        let (mut turns, reacting) = (Turns::new(2, QUANTUM), Queue::new_fifo());
        let own = OwnQueues { reacting: &reacting, worker: None };
        turns.begin_service(Instant::from_nanos(now - called));
        for (place, nanos) in polled.into_iter().enumerate() {
            polls_for(&world, place, now, nanos);
            world.worker_slot(place).set_brief(true);
        }
        let now = Instant::from_nanos(now);
        if has_served {
            turns.begin_service(now);
        } else {
            turns.continue_service(now, LONG_POLL);
        }
        assert!(turns.next_of_reserve(&world, &own, now).is_none());
        let case = (called, polled, has_served);
        assert_eq!(turns.should_watch(&world, now, false), !leaves, "{case:?}");
    }
}

/// Goal: of several reserve threads that wait for a processor, each must have waited for long before there is another one.
/// Method: two of them behind which a task waits, of different ages.
#[test]
fn the_youngest_delay_counts() {
    for (ages_ms, activates) in [([90, 6], 0), ([6, 90], 0), ([7, 90], 1), ([90, 7], 1)] {
        let (world, now) = (world(), 1_000 * MS);
        for place in 0..2 {
            polls_for(&world, place, now, 2 * MS);
        }
        for (place, age) in [2, 3].into_iter().zip(ages_ms) {
            world.serving.borrow_mut().push(place);
            polls_for(&world, place, now, age * MS);
        }
        world.injected().reaction.push(0);
        assert_eq!(orders(&world, now, 1_000).activates, activates, "{ages_ms:?}");
        assert_eq!(orders(&world, now, 31).activates, 0, "{ages_ms:?}, and one was just called");
    }
}

/// Goal: a reaction behind one caught worker calls a reserve thread, also if the other worker is not caught, and none is
/// called without one. Method: a task in the lane of either worker, or of none.
#[test]
fn reactions_behind_one_poll_are_seen() {
    for (waits_at, activates) in [(None, 0), (Some(0), 1), (Some(1), 0)] {
        let (world, queues) = world_and_queues();
        let now = 1_000 * MS;
        polls_for(&world, 0, now, 2 * MS);
        polls_for(&world, 1, now, 0);
        if let Some(worker) = waits_at {
            queues[worker].push(0);
        }
        assert_eq!(orders(&world, now, 1_000).activates, activates, "{waits_at:?}");
    }
}

/// Goal: beside polls without an end, one task of any kind may run, after 2 s and again after as long, or when it is
/// its turn. Method: each time on both sides of its bound, and what was allowed before and not used.
#[test]
fn endless_polls_let_one_task_through() {
    let second = 1_000 * MS;
    let now = 1_000 * second;
    for (polls, any, before, turn, serves) in [
        (2 * second, 9 * second, ReserveMode::Short, 0, ReserveMode::Short),
        (2 * second + 1, 2 * second, ReserveMode::Short, 0, ReserveMode::AnyOne),
        (9 * second, 2 * second - 1, ReserveMode::Short, 0, ReserveMode::Short),
        (9 * second, 0, ReserveMode::Short, now, ReserveMode::AnyOne),
        (9 * second, 0, ReserveMode::Short, now + 1, ReserveMode::Short),
        (second, 0, ReserveMode::Short, now, ReserveMode::Short),
        (9 * second, 0, ReserveMode::AnyOne, 0, ReserveMode::AnyOne),
    ] {
        let world = world();
        world.injected().set_turn_of_any(turn);
        for place in 0..2 {
            polls_for(&world, place, now, polls);
        }
        world.serves().store(before);
        let census = Census::take(&world, Instant::from_nanos(now), LONG_POLL);
        let since =
            SupervisorHistory { long_poll: LONG_POLL, call: 0, any: Duration::from_nanos(any) };
        census.decide(&world, false, since, QUANTUM);
        assert_eq!(world.serves().load(), serves, "{polls} {any} {before:?}");
    }
}

/// Goal: the supervisor checks again at once where it is needed, each millisecond while tasks wait behind long polls, each two
/// ten while none do, and rests where nothing is long. Method: what its timer is set to.
#[test]
fn the_next_check_follows_what_was_seen() {
    let ms = Duration::from_millis;
    for (is_caught, waits, needs_more, expected) in [
        (true, true, true, LONG_POLL / 2),
        (true, true, false, ms(1)),
        (true, false, false, ms(2)),
        // One more check before the rest, when a thread that reads the watchdog meanwhile has set it.
        (false, false, false, rest_delay()),
    ] {
        let (world, now) = (world(), Instant::from_nanos(1_000 * MS));
        if is_caught {
            // Not asleep, so that no thread has to be checked again.
            polls_for(&world, 0, now.as_nanos(), 2 * MS);
        }
        if waits {
            world.injected().compute.push(0, Rank { place: 0, needs_ns: 0, is_short: false });
        }
        let census = Census::take(&world, now, LONG_POLL);
        census.plan_next_check(&world, now, (needs_more, false), (true, LONG_POLL));
        assert_eq!(world.watchdog().timer.left(), expected, "{is_caught} {waits} {needs_more}");
    }
}

/// The setting of the watchdog's timer for the rest.
fn rest_delay() -> Duration {
    let world = world();
    world.watchdog().begin_rest();
    world.watchdog().timer.left()
}

/// Goal: while threads sleep in the kernel and more waits, the supervisor soon checks one again that was called a
/// moment ago, since it may sleep, too; and not later, nor if nothing waits or sleeps. Method: a worker that sleeps,
/// whose place is taken by a reserve thread in a young poll.
#[test]
fn those_called_for_sleepers_are_checked_soon() {
    for (call, waits, sleeps, again) in
        [(0, true, true, true), (2, true, true, true), (3, true, true, false)]
            .into_iter()
            .chain([(0, false, true, false), (0, true, false, false)])
    {
        let (world, now) = (world(), Instant::from_nanos(1_000 * MS));
        polls_for(&world, 0, now.as_nanos(), 900_000);
        if sleeps {
            let began = Instant::from_nanos(now.as_nanos() - 900_000);
            world.worker_slot(0).expect_sleep(began, world.blocked());
            assert!(world.blocked().substitute());
        }
        world.serving.borrow_mut().push(2);
        polls_for(&world, 2, now.as_nanos(), 50_000);
        if waits {
            world.computing()[0].push(0, Rank { place: 0, needs_ns: 0, is_short: false });
        }
        let census = Census::take(&world, now, LONG_POLL);
        let since = SupervisorHistory { long_poll: LONG_POLL, call, any: Duration::ZERO };
        let (orders, needs_more) = census.decide(&world, false, since, QUANTUM);
        assert_eq!((orders, needs_more), (WakePlan::default(), again), "{call} {waits} {sleeps}");
    }
}

/// Goal: where the reaction lane does not run empty for 5 ms, brief tasks alone react, the briefer the longer that
/// lasts; a lane that ran empty, or a thread that was away, is no crowd. Method: a worker with two reactions at each
/// of its searches; at one of them, or at none, it finds nothing, or comes a second late.
#[test]
fn brief_tasks_alone_react_in_a_crowd() {
    #[derive(Clone, Copy, PartialEq)]
    enum Search {
        Usual,
        Empty,
        Late,
    }
    for (odd, begins) in [(Search::Usual, 100), (Search::Empty, 150), (Search::Late, 81)] {
        {
            let (world, queues) = world_and_queues();
            let (model, own) = (&world, OwnQueues { reacting: &queues[0], worker: Some(0) });
            let (mut turns, mut now) =
                (Turns::new(0, Duration::from_millis(1)), Instant::from_nanos(1_000 * MS));
            assert_eq!(turns.next(model, &own, now), None);
            let reacts = |usual_ns: u64, now: Instant| {
                let account = Account::new(Credit::FULL, None);
                account.charge(Credit::FULL, usual_ns);
                let limits = Limits {
                    brief_ns: model.injected().brief_ns(now.as_nanos()),
                    quantum: QUANTUM,
                    gave_way: false,
                    is_free: false,
                };
                order::choose_rank(&account, None, false, now.as_nanos(), limits).is_none()
            };
            for search in 1..=800 {
                let is_odd = search == 50;
                let late = odd == Search::Late && is_odd;
                now += if late { Duration::from_secs(1) } else { Duration::from_micros(50) };
                if is_odd && odd == Search::Empty {
                    while turns.next(model, &own, now).is_some() {}
                } else {
                    queues[0].push(0);
                    queues[0].push(0);
                    assert!(turns.next(model, &own, now).is_some());
                }
                while queues[0].len() > 1 {
                    let _ = queues[0].pop();
                }
                assert!(reacts(10_000, now), "the briefest always do");
                assert_eq!(reacts(101_000, now), search < begins, "{search}");
                assert_eq!(reacts(40_000, now), search < begins + 300, "{search}");
            }
            assert_eq!(turns.next(model, &own, now).map(|next| next.1), Some(Lane::Reaction));
            assert_eq!(turns.next(model, &own, now), None, "it has run empty");
            now += Duration::from_micros(19_999);
            assert!(!reacts(101_000, now));
            now += Duration::from_micros(1);
            assert!(reacts(500_000, now), "the crowd is over");
        }
    }
}
