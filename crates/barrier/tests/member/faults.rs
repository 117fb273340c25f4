//! The network's faults: no member leaves early, waits for ever, or is wrongly believed dead.

use std::time::Duration;

use vigie_barrier::{Algorithm, Member, Network, Rank, algorithm::Networks, packet::Key};

use crate::{
    kit::seeds::for_each_seed,
    quiet::algorithms,
    world::{CLASSES, Class, Faults, MILLISECOND, SECOND, Seen, World, config, schedule, sums},
};

/// Runs barriers under faults, with an algorithm and a size that the seed chooses.
fn run(seed: u64, faults: Faults, is_tagged: bool) -> Seen {
    let mut random = fastrand::Rng::with_seed(seed);
    let size = random.u32(2..=9);
    let of_size = algorithms(size);
    let algorithm = of_size[random.usize(..of_size.len())];
    let mut config = config(seed);
    config = config.key(is_tagged.then(|| Key::new([7; 16])));
    config = config.reduction(sums());
    if Member::new(schedule(algorithm, size), Rank(0), config.clone()).is_err() {
        config = config.reduction(None);
    }
    let mut world = World::new(seed, algorithm, size, &config);
    world.faults = faults;
    world.begin(8);
    let is_done = world.run(120 * SECOND, World::is_done);
    for node in &world.nodes {
        assert!(node.failures.is_empty(), "{algorithm}, {size}: {:?}", node.failures);
    }
    assert!(is_done, "{algorithm}, {size}: hangs: {world:#?}");
    world.total()
}

/// Goal: any class of message may be lost at any rate. Method: each class, and all together, lost by 1, 10 and 30 %;
/// each barrier checks that no member leaves early, and the reduced value.
#[test]
fn losses_are_recovered() {
    for parts in [10, 100, 300] {
        for classes in CLASSES.map(|class| vec![class]).into_iter().chain([CLASSES.to_vec()]) {
            let mut total = Seen::default();
            for_each_seed(if parts < 100 { 64 } else { 16 }, |seed| {
                let lost = classes.iter().map(|class| (*class, parts)).collect();
                let mut faults = Faults { lost, ..Faults::default() };
                if !classes.contains(&Class::Signal) && !classes.contains(&Class::Multicast) {
                    // No member asks if nothing else is lost.
                    faults.lost.insert(Class::Signal, 300);
                    faults.lost.insert(Class::Multicast, 300);
                }
                total.add(&run(seed, faults, false));
            });
            // One in a hundred of few questions may be none.
            let is_certain =
                |class: &&Class| **class != Class::View && (parts > 10 || classes.len() == 1);
            for class in classes.iter().filter(is_certain) {
                assert!(
                    total.lost.get(class).is_some_and(|lost| *lost > 0),
                    "{class:?}: {total:?}"
                );
            }
            assert!(total.nacks > 0 && total.retransmitted > 0, "{total:?}");
        }
    }
}

/// Goal: whatever else a network does, alone and together with losses, does no harm. Method: duplicates, packets that
/// come barriers later, wrong bits that tags reveal, packets out of order, clocks that jump ahead or stand still; each
/// kind is counted and must have been there.
#[test]
fn everything_else_that_networks_do_is_survived() {
    let mut total = Seen::default();
    for_each_seed(300, |seed| {
        let mut random = fastrand::Rng::with_seed(!seed);
        let mut part = |most: u32| if random.bool() { random.u32(..=most) } else { 0 };
        let faults = Faults {
            lost: CLASSES.iter().map(|class| (*class, part(300))).collect(),
            duplicated: part(300),
            late: part(300),
            changed: part(100),
            replayed: part(200),
            jumps: part(50),
        };
        total.add(&run(seed, faults, true));
    });
    println!("{total:#?}");
    let counts = [
        ("doubled", total.duplicated),
        ("late", total.late),
        ("changed", total.changed),
        ("replayed", total.replayed),
        ("jumps", total.jumps),
        ("stood still", total.stood_still),
        ("stale", total.stale),
        ("duplicates", total.duplicates),
        ("refused", total.refused),
        ("asked", total.nacks),
        ("repeated", total.retransmitted),
        ("answered", total.alive_replies),
    ];
    for (what, count) in counts {
        assert!(count > 0, "no {what}: {total:?}");
    }
}

/// Goal: messages of the next barrier that come before the member has left this one, or before it has entered, are
/// kept, not lost: no member needs to ask for them. Method: out of order, but without losses, and with time-outs that are
/// longer than the disorder; both cases are counted.
#[test]
fn messages_of_the_next_barrier_are_kept() {
    let mut total = Seen::default();
    for_each_seed(40, |seed| {
        for algorithm in algorithms(8) {
            let mut config = config(seed);
            // Disorder delays each of at most six hops in a row by 20 ms.
            config = config.repeat_after(Duration::from_millis(200));
            config = config.failure_timeout(Duration::from_secs(8));
            let mut world = World::new(seed, algorithm, 8, &config);
            world.faults.late = 300;
            world.skew = 5 * MILLISECOND;
            world.begin(4);
            assert!(world.run(SECOND, World::is_done), "{algorithm}");
            total.add(&world.total());
        }
    });
    assert!(total.early > 0 && total.next_epoch > 0, "{total:?}");
    assert_eq!((total.nacks, total.stale, total.refused), (0, 0, 0), "{total:?}");
}

/// Goal: barriers over two networks go on, if more slowly, when one of them is down. Method: either brings nothing, and
/// the other loses every tenth packet.
#[test]
fn one_of_two_networks_may_be_down() {
    let networks = Networks::Two;
    for_each_seed(10, |seed| {
        for algorithm in
            [Algorithm::Heap { children: 2, networks }, Algorithm::Concurrent { networks }]
        {
            for down in [Network::First, Network::Second] {
                let mut world = World::new(seed, algorithm, 7, &config(seed));
                world.down = Some(down);
                world.faults.lost = CLASSES.map(|class| (class, 100)).into();
                world.begin(5);
                assert!(world.run(30 * SECOND, World::is_done), "{algorithm}: {world:#?}");
                assert!(world.nodes.iter().all(|node| node.failures.is_empty()));
            }
        }
    });
}
