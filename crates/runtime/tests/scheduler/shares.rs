//! The shares of the lanes in the whole runtime: the turns of one thread over queues that are filled by hand.

use crossbeam::deque::Worker as Queue;
use vigie_detect::Instant;

use super::{
    MS, US,
    census::world_and_queues,
    hybrid::{
        need::ReserveMode,
        order::{OwnQueues, Parts, Turns},
    },
    lane::{Lane, Rank},
    threads::REACTION_SLICE,
    world::World,
};

const POLL_NS: u64 = 20 * US;

/// The number of recurring reactions.
const REACTIONS: usize = 9;

/// Lets the thread at `place` poll for `nanos`, 20 us each time, beside reactions without end; what it computes is queued in the lane of
/// worker 1 again. Returns for how long it was in the compute lane, in percent.
fn percent_of_computation(world: &World, queue: &Queue<usize>, place: usize, nanos: u64) -> u64 {
    let worker = (place < world.options.workers).then_some(place);
    let (own, mut turns) =
        (OwnQueues { reacting: queue, worker }, Turns::new(place, REACTION_SLICE));
    let begin = 1_000 * MS;
    let (mut now, mut computed) = (begin, 0);
    let react = |task| match worker {
        Some(_) => queue.push(task),
        None => world.injected().reaction.push(task),
    };
    (0..REACTIONS).for_each(react);
    while now < begin + nanos {
        let at = Instant::from_nanos(now);
        let next = match worker {
            Some(_) => turns.next(world, &own, at),
            None => turns.next_of_reserve(world, &own, at),
        };
        let (task, lane) = next.expect("reactions without end");
        now += POLL_NS;
        match lane {
            Lane::Reaction => react(task),
            Lane::Compute => {
                computed += POLL_NS;
                wait_at_another(world, task);
            }
        }
        turns.record(world, &own, lane, POLL_NS);
    }
    100 * computed / nanos
}

fn wait_at_another(world: &World, task: usize) {
    world.computing()[1].push(task, Rank { place: 0, needs_ns: 0, is_short: false });
}

/// Goal: a worker whose compute lane is empty gives its share to what waits in another one. Method: four tasks behind a worker that does
/// nothing, for 100 ms.
#[test]
fn each_worker_pays_what_all_owe() {
    let (world, queues) = world_and_queues();
    (100..104).for_each(|task| wait_at_another(&world, task));
    let percent = percent_of_computation(&world, &queues[0], 0, 100 * MS);
    assert!((15..=25).contains(&percent), "{percent} %");
}

/// Goal: the share follows what waits in all lanes, not in the worker's own. Method: one task in its own lane, and none or a hundred in
/// another one.
#[test]
fn the_share_is_that_of_all_lanes() {
    let percent = |others: usize| {
        let (world, queues) = world_and_queues();
        world.computing()[0].push(99, Rank { place: 0, needs_ns: 0, is_short: false });
        (100..100 + others).for_each(|task| wait_at_another(&world, task));
        // Shorter than it takes to come to an end with the first one.
        percent_of_computation(&world, &queues[0], 0, 50 * MS)
    };
    let (few, many) = (percent(0), percent(100));
    assert!((7..=11).contains(&few) && (22..=26).contains(&many), "{few} and {many} %");
}

/// Goal: a reserve thread in the place of one that sleeps owes a share to the lanes of workers. Method: a worker that sleeps, with tasks
/// in the lane of another one.
#[test]
fn substitutes_pay_what_workers_owe() {
    let (world, queues) = world_and_queues();
    world.worker_slot(0).expect_sleep(Instant::from_nanos(MS), world.blocked());
    (100..104).for_each(|task| wait_at_another(&world, task));
    let place = world.options.workers;
    let percent = percent_of_computation(&world, &queues[place], place, 100 * MS);
    assert!((22..=27).contains(&percent), "{percent} %");
}

/// Goal: a reserve thread goes on with a short task that has used up its share, then leaves it for so long that it has no more than a thread
/// would, and goes on by itself. Method: such a task beside two workers, in polls of 0.1 ms, and how long the first turn and the pause last.
#[test]
fn short_tasks_come_in_turns() {
    let (world, queues) = world_and_queues();
    let place = world.options.workers;
    let own = OwnQueues { reacting: &queues[place], worker: None };
    let mut turns = Turns::new(place, REACTION_SLICE);
    world.serves().store(ReserveMode::Short);
    let wait = |task, now| {
        let rank = Rank { place: now + 100 * MS, needs_ns: 0, is_short: true };
        world.injected().compute.push(task, rank);
    };

    let begin = 1_000 * MS;
    let mut now = begin;
    wait(0, now);
    while now < begin + 1_000 * MS
        && let Some((task, _)) = turns.next_of_reserve(&world, &own, Instant::from_nanos(now))
    {
        now += 100 * US;
        turns.record(&world, &own, Lane::Compute, 100 * US);
        wait(task, now);
    }

    let (turn_ms, now) = ((now - begin) / MS, Instant::from_nanos(now));
    let mut other = Turns::new(place + 1, REACTION_SLICE);
    assert!(other.next_of_reserve(&world, &own, now).is_none());
    assert_eq!(other.resumes_at(&world, now), None, "it has run none");
    let until = turns.resumes_at(&world, now).expect("short tasks wait");
    let pause = until - now;
    assert!((15..=17).contains(&pause.as_millis()), "{pause:?} after {turn_ms} ms");
    assert!((30..=34).contains(&turn_ms), "{turn_ms} ms");
    turns.answer_call(&world, now);
    assert!(turns.next_of_reserve(&world, &own, now).is_none());
    assert_eq!(turns.resumes_at(&world, now), None, "it was called for something else");
    assert!(turns.next_of_reserve(&world, &own, until).is_some());
}
