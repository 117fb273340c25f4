//! Members that die: the survivors notice, agree, and continue.

use std::time::Duration;

use vigie_barrier::{Rank, member::DeathReason};

use crate::{
    kit::seeds::for_each_seed,
    quiet::algorithms,
    world::{CLASSES, Faults, MILLISECOND, SECOND, World, config},
};

/// The failure time-out of [`settings`].
const TIMEOUT: u64 = 4 * SECOND;

/// Runs until every survivor knows that a member has died, and agrees; checks that all say the same, in time.
fn expect_failure(world: &mut World, dead: &[usize], what: &str) {
    let start = world.now;
    let agreed = |world: &World| world.alive().all(|(_, node)| node.agreed.is_some());
    assert!(world.run(3 * TIMEOUT, agreed), "{what}: no agreement: {world:#?}");
    let dead: Vec<Rank> =
        dead.iter().map(|node| Rank(u32::try_from(*node).expect("small"))).collect();
    for (index, node) in world.alive() {
        let (first, _, _) = node.failures[0];
        let limit = start.max(world.died_at) + TIMEOUT;
        assert!(
            first <= limit,
            "{what}: {index} knows after {} ns",
            first - start.max(world.died_at)
        );
        let (_, ranks, _) = node.failures.last().expect("one");
        assert_eq!(ranks, &dead, "{what}: {index}");
        let survivors = node.agreed.as_ref().expect("agreed");
        let is_right = survivors.iter().all(|rank| !dead.contains(rank));
        assert!(is_right && survivors.len() + dead.len() == world.nodes.len(), "{what}");
    }
}

/// Lets the survivors shrink, while the rest are ignored, and go through barriers of their own.
fn expect_smaller_group(world: &mut World, what: &str) {
    let size = u32::try_from(world.alive().count()).expect("few");
    for_first_that_suits(world, size);
    world.begin(4);
    assert!(world.run(30 * SECOND, World::is_done), "{what}: the smaller group hangs");
    for (index, node) in world.alive() {
        assert!(node.failures.is_empty(), "{what}: {index}: {:?}", node.failures);
    }
}

fn for_first_that_suits(world: &mut World, size: u32) {
    let of_size = algorithms(size);
    let algorithm = of_size[world.random.usize(..of_size.len())];
    world.shrink(algorithm);
}

/// Goal: whichever member dies at whatever step, all survivors report it in time, none leaves early, and a smaller group
/// works. Method: every algorithm, every member, instead of each packet of its first two barriers; with losses in every
/// third case.
#[test]
fn any_member_may_die_at_every_step() {
    let mut deaths = 0;
    for_each_seed(1, |seed| {
        for size in [2, 3, 5, 8] {
            for algorithm in algorithms(size) {
                for victim in 0..usize::try_from(size).expect("small") {
                    for packet in 0.. {
                        let seed = seed * 1_000_003 + deaths;
                        let what = format!("{algorithm}, {size}, {victim} at {packet}, {seed}");
                        let mut world = World::new(seed, algorithm, size, &config(seed));
                        if seed.is_multiple_of(3) {
                            world.faults.lost = CLASSES.map(|class| (class, 100)).into();
                        }
                        world.nodes[victim].dies_at = Some(packet);
                        world.begin(3);
                        let is_dead = |world: &World| !world.nodes[victim].is_alive;
                        if !world.run(2 * SECOND, is_dead) || world.nodes[victim].entered == 3 {
                            break;
                        }
                        deaths += 1;
                        expect_failure(&mut world, &[victim], &what);
                        expect_smaller_group(&mut world, &what);
                    }
                }
            }
        }
    });
    assert!(deaths > 500, "{deaths}");
}

/// Goal: several deaths, also while survivors agree, leave one smaller group. Method: random victims at random times
/// under losses, duplicates, disorder and jumping clocks; some are reported by the transport, to one survivor or to several.
#[test]
fn several_may_die_while_others_agree() {
    let (mut silent, mut reported, mut in_agreement) = (0, 0, 0);
    for_each_seed(150, |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let size = random.u32(3..=9);
        let of_size = algorithms(size);
        let algorithm = of_size[random.usize(..of_size.len())];
        let mut world = World::new(seed, algorithm, size, &config(seed));
        world.faults = Faults::default();
        world.faults.lost =
            CLASSES.map(|class| (class, [0, 10, 100, 300][random.usize(..4)])).into();
        world.faults.duplicated = random.u32(..200);
        world.faults.late = random.u32(..200);
        world.faults.jumps = random.u32(..20);
        // Barriers are rare, so that few of them pass before anything happens.
        world.skew = 200 * MILLISECOND;
        world.begin(u32::MAX);
        let victims = random.usize(1..=usize::try_from(size).expect("small") - 2);
        let mut dead = Vec::new();
        for _ in 0..victims {
            // Some deaths fall into the time when others wait, some into that when they agree.
            let most = [30 * MILLISECOND, 4 * SECOND][random.usize(..2)];
            let later = random.u64(..most);
            world.run(later, |_| false);
            if world.alive().any(|(_, node)| node.agreed.is_some()) {
                break;
            }
            in_agreement += u32::from(world.alive().any(|(_, node)| !node.failures.is_empty()));
            let alive: Vec<usize> = world.alive().map(|(node, _)| node).collect();
            let victim = alive[random.usize(..alive.len())];
            world.kill(victim);
            dead.push(victim);
            if random.bool() {
                reported += 1;
                let witness = alive[random.usize(..alive.len())];
                if witness != victim {
                    let now = world.instant(witness);
                    let rank = Rank(u32::try_from(victim).expect("small"));
                    world.nodes[witness].member.report_dead(now, rank);
                    world.after(witness);
                }
            }
        }
        dead.sort_unstable();
        let what = format!("{algorithm}, {size}: {dead:?}");
        settle(&mut world, &dead, &what);
        silent += world.reasons.iter().filter(|reason| **reason == DeathReason::Silent).count();
    });
    assert!(silent > 0 && reported > 0 && in_agreement > 0, "{silent} {reported} {in_agreement}");
}

/// Survivors may agree before the last death is known: then the smaller group fails in turn, and shrinks again.
fn settle(world: &mut World, dead: &[usize], what: &str) {
    for _ in 0..=dead.len() {
        let agreed = |world: &World| world.alive().all(|(_, node)| node.agreed.is_some());
        assert!(world.run(5 * TIMEOUT, agreed), "{what}: no agreement");
        let living = world.alive().count();
        let survivors: Vec<_> = world.alive().map(|(_, node)| node.agreed.clone()).collect();
        assert!(survivors.iter().all(|one| *one == survivors[0]), "{what}: {survivors:?}");
        let count = survivors[0].as_ref().map_or(0, Vec::len);
        if count == living {
            return expect_smaller_group(world, what);
        }
        shrink_with_the_dead(world, count);
        world.begin(u32::MAX);
    }
    panic!("{what}: never settles");
}

/// Shrinks to a group that still contains a dead member.
fn shrink_with_the_dead(world: &mut World, size: usize) {
    let of_size = algorithms(u32::try_from(size).expect("small"));
    let algorithm = of_size[world.random.usize(..of_size.len())];
    let schedule = crate::world::schedule(algorithm, u32::try_from(size).expect("small"));
    let first = world.alive().next().expect("not empty").0;
    let survivors = world.nodes[first].agreed.clone().expect("agreed");
    world.ranks = survivors.iter().map(|rank| world.ranks[rank.index()]).collect();
    for node in world.ranks.clone() {
        let node = &mut world.nodes[node];
        if node.is_alive {
            node.agreed = None;
            node.member.shrink(schedule.clone()).expect("decided");
            (node.entered, node.exited) = (0, 0);
            node.failures.clear();
        }
    }
}

/// Goal: a member that leaves is known at once, and one that the transport sees die, too; one that is wrongly believed dead
/// learns that it is out, and disturbs no other member. Method: each of the three, in every algorithm; the time-out is
/// never reached.
#[test]
fn departures_and_reports_take_no_time() {
    for_each_seed(5, |seed| {
        for algorithm in algorithms(5) {
            for way in 0..3 {
                let what = format!("{algorithm}, {way}");
                let mut world = World::new(seed, algorithm, 5, &config(seed));
                world.begin(u32::MAX);
                world.run(5 * MILLISECOND, |_| false);
                let victim = world.random.usize(..5);
                let rank = Rank(u32::try_from(victim).expect("small"));
                let now = world.instant(victim);
                let witness = (victim + 1) % 5;
                if way == 0 {
                    world.nodes[victim].member.leave(now);
                    world.after(victim);
                    world.kill(victim);
                } else {
                    let now = world.instant(witness);
                    if way == 1 {
                        world.kill(victim);
                    }
                    world.nodes[witness].member.report_dead(now, rank);
                    world.after(witness);
                }
                let start = world.now;
                let agreed = |world: &World| {
                    let living = world.alive().filter(|(node, _)| *node != victim);
                    living.into_iter().all(|(_, node)| node.agreed.is_some())
                };
                assert!(world.run(50 * MILLISECOND, agreed), "{what}: {world:#?}");
                assert!(world.now - start < 50 * MILLISECOND);
                let reason = [DeathReason::Left, DeathReason::Reported, DeathReason::Reported][way];
                assert_eq!(world.nodes[witness].failures[0].2, reason, "{what}");
                if way == 2 {
                    let told = |world: &World| !world.nodes[victim].failures.is_empty();
                    assert!(world.run(SECOND, told), "{what}");
                    let (_, ranks, reason) = &world.nodes[victim].failures[0];
                    assert_eq!((&ranks[..], *reason), (&[rank][..], DeathReason::Excluded));
                    let now = world.instant(victim);
                    assert!(world.nodes[victim].member.enter(now, &[]).is_err());
                    world.kill(victim);
                }
                expect_smaller_group(&mut world, &what);
            }
        }
    });
}

/// Goal: a group of which one survives goes on alone. Method: all others die.
#[test]
fn the_last_one_goes_on_alone() {
    for_each_seed(3, |seed| {
        for algorithm in algorithms(3) {
            let config = config(seed).failure_timeout(Duration::from_secs(4));
            let mut world = World::new(seed, algorithm, 3, &config);
            world.kill(0);
            world.kill(2);
            world.begin(1);
            expect_failure(&mut world, &[0, 2], &algorithm.to_string());
            expect_smaller_group(&mut world, "alone");
        }
    });
}
