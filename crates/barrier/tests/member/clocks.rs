//! Clocks that leap: a machine that was suspended, a guest that was moved, a clock that is set back.

use vigie_barrier::Rank;

use crate::{
    kit::seeds::for_each_seed,
    quiet::algorithms,
    world::{CLASSES, MILLISECOND, SECOND, World, config},
};

const HOUR: u64 = 3600 * SECOND;

/// A world whose clocks can go back by many hours.
fn world(seed: u64) -> World {
    let mut random = fastrand::Rng::with_seed(!seed);
    let size = random.u32(2..=9);
    let of_size = algorithms(size);
    let algorithm = of_size[random.usize(..of_size.len())];
    let mut world = World::new(seed, algorithm, size, &config(seed));
    for node in 0..world.nodes.len() {
        world.leap(node, 1000 * HOUR, true);
    }
    let lost = [0, 10, 100][random.usize(..3)];
    world.faults.lost = CLASSES.map(|class| (class, lost)).into();
    world
}

/// Lets clocks leap by up to ten hours while the world runs, at most `most` times, until `is_over`.
fn run_with_leaps(
    world: &mut World,
    most: u32,
    timeout: u64,
    is_over: impl Fn(&World) -> bool,
) -> (bool, [u32; 2]) {
    let end = world.now + timeout;
    let mut leaps = [0; 2];
    for _ in 0..most {
        let later = world.random.u64(..300 * MILLISECOND);
        if world.run(later, &is_over) {
            return (true, leaps);
        }
        let is_back = world.random.bool();
        leaps[usize::from(is_back)] += 1;
        let far = if world.random.bool() { 10 * HOUR } else { 2 * SECOND };
        let by = world.random.u64(..far);
        // All at once as after a suspension of one machine, or only one.
        let all = world.nodes.len();
        let one = world.random.usize(..all);
        let nodes = if world.random.bool() { 0..all } else { one..one + 1 };
        for node in nodes.filter(|node| world.nodes[*node].is_alive).collect::<Vec<_>>() {
            world.leap(node, by, !is_back);
        }
    }
    (world.run(end.saturating_sub(world.now), is_over), leaps)
}

/// Goal: clocks that leap ahead or back by hours, one or all, stop no barrier, and no member is believed dead. Method: some
/// leaps in each run of barriers, with and without losses; what drives the members calls them after each leap, as
/// a process that sleeps until a deadline must.
#[test]
fn leaps_stop_no_barrier_and_kill_nobody() {
    let mut total = [0; 2];
    for_each_seed(300, |seed| {
        let mut world = world(seed);
        world.skew = 300 * MILLISECOND;
        world.begin(8);
        let (is_done, leaps) = run_with_leaps(&mut world, 20, 120 * SECOND, World::is_done);
        for node in &world.nodes {
            assert!(node.failures.is_empty(), "{seed}: {:?}", node.failures);
        }
        assert!(is_done, "{seed} hangs: {world:#?}");
        total = [total[0] + leaps[0], total[1] + leaps[1]];
    });
    assert!(total.iter().all(|leaps| *leaps > 0), "{total:?}");
}

/// Goal: survivors find out which members are dead and agree, though their clocks leap; they declare no other member
/// dead. Method: one member dies, and the clocks of the others leap until all agree; then barriers of the smaller
/// group, with leaps too.
#[test]
fn survivors_agree_though_clocks_leap() {
    let mut total = [0; 2];
    for_each_seed(150, |seed| {
        let mut world = world(seed);
        world.skew = 200 * MILLISECOND;
        world.begin(u32::MAX);
        let later = world.random.u64(..SECOND);
        world.run(later, |_| false);
        let victim = world.random.usize(..world.nodes.len());
        world.kill(victim);
        let agreed = |world: &World| world.alive().all(|(_, node)| node.agreed.is_some());
        let (is_settled, leaps) = run_with_leaps(&mut world, 20, 30 * SECOND, agreed);
        assert!(is_settled, "{seed}: no agreement: {world:#?}");
        total = [total[0] + leaps[0], total[1] + leaps[1]];
        let dead = [Rank(u32::try_from(victim).expect("small"))];
        for (index, node) in world.alive() {
            let (_, ranks, _) = node.failures.last().expect("one");
            assert_eq!(ranks, &dead, "{seed}: {index}");
        }
        let size = u32::try_from(world.alive().count()).expect("few");
        let of_size = algorithms(size);
        let algorithm = of_size[world.random.usize(..of_size.len())];
        world.shrink(algorithm);
        world.begin(4);
        let (is_done, leaps) = run_with_leaps(&mut world, 10, 120 * SECOND, World::is_done);
        assert!(is_done, "{seed}: the smaller group hangs: {world:#?}");
        assert!(world.alive().all(|(_, node)| node.failures.is_empty()), "{seed}: {world:#?}");
        total = [total[0] + leaps[0], total[1] + leaps[1]];
    });
    assert!(total.iter().all(|leaps| *leaps > 0), "{total:?}");
}
