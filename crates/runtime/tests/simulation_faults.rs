//! Faults that a seed draws.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    panic::catch_unwind,
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_runtime::{
    fs,
    simulation::{FaultKind, Link, Node, NodeChange, RandomFaults, TraceEventKind, World},
    time,
};

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Answers each connection with one byte.
async fn answer() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        // A peer may be gone.
        let _ = stream.write_u8(1).await;
    }
}

/// Makes a world of nodes that answer, over links without jitter.
fn world_of<const N: usize>(seed: u64) -> (World, [Node; N]) {
    let mut world = World::new(seed);
    world.default_link(Link::new().jitter(Duration::ZERO));
    let nodes = std::array::from_fn(|number| world.node(&number.to_string()).run(answer));
    (world, nodes)
}

/// The faults of a run, with their times in milliseconds and nodes.
fn faults_of(world: &World) -> Vec<(u64, String, String)> {
    let events = world.events();
    let fault = |event: &vigie_runtime::simulation::TraceEvent| match &event.kind {
        TraceEventKind::Fault { what, .. } => {
            Some((event.at.as_nanos() / 1_000_000, world.node_of(event).name(), what.clone()))
        }
        _ => None,
    };
    events.iter().filter_map(fault).collect()
}

/// Goal: a seed draws every kind of fault, at any node and in any order, within the bounds of time, duration and nodes that are
/// down. Method: five nodes and `main`, by 40 seeds, whose records are replayed.
#[test]
fn drawn_faults_have_their_bounds() {
    let (mut kinds, mut targets, mut firsts) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for seed in 0..40 {
        let (mut world, nodes) = world_of::<5>(seed);
        world.record(1 << 20);
        let main = world.main();
        world.block_on(async {
            let mut faults = RandomFaults::new(nodes.iter().chain([&main]));
            faults =
                faults.every(FaultKind::Pause, millis(3000)).lasting(millis(200)..=millis(4000));
            faults.length(millis(50_000)).run().await;
            assert_eq!(time::Instant::now().as_nanos(), 50_000_000_000, "seed {seed}");
            // The last restarts happen before the next poll.
            time::sleep(millis(1)).await;
        });

        let mut down = BTreeMap::new();
        for event in world.events() {
            let name = world.node_of(&event).name();
            let TraceEventKind::Node(change) = event.kind else { continue };
            match change {
                NodeChange::Started => continue,
                NodeChange::Crashed | NodeChange::Killed | NodeChange::Paused => {
                    let before = down.insert(name.clone(), event.at);
                    assert_eq!(before, None, "seed {seed}: {name} is down already");
                }
                _ => {
                    let lasted = down.remove(&name).map(|since| event.at - since);
                    let is_last = event.at.as_nanos() == 50_000_000_000;
                    let bounds = if is_last { Duration::ZERO } else { millis(200) }..=millis(4000);
                    assert!(
                        lasted.is_none_or(|it| bounds.contains(&it)),
                        "seed {seed}: {lasted:?}"
                    );
                }
            }
            assert!(name != "main" && down.len() <= 2, "seed {seed}: {down:?}");
        }
        assert!(down.is_empty(), "seed {seed}: {down:?}");
        let faults = faults_of(&world);
        assert!(faults.len() > 20 && faults.is_sorted_by_key(|fault| fault.0), "seed {seed}");
        firsts.insert(faults[0].clone());
        for (_, node, what) in faults {
            kinds.insert(what.split([' ', ':']).next().unwrap_or_default().to_owned());
            targets.insert(node);
        }
    }
    let expected = "SIGTERM clock crash cut disk full kill link pause restart slow";
    assert_eq!(kinds.into_iter().collect::<Vec<_>>().join(" "), expected);
    assert_eq!(targets.len(), 6, "{targets:?}");
    assert!(firsts.len() > 35, "the seeds differ");
}

/// Goal: when the faults are over, nodes answer, and links, disks and clocks are what they were before. Method: by 30 seeds, after many
/// faults: a call of each node, which takes the time of its link; the time of a write to its disk; its clock. One link is another one.
#[test]
fn all_is_healed_in_the_end() {
    for seed in 0..30 {
        let (mut world, nodes) = world_of::<3>(seed);
        let main = world.main();
        nodes[2].link(&main, Link::new().delay(millis(7)).jitter(Duration::ZERO));
        nodes[1].clock_forward(millis(1000));
        world.record(1 << 20);
        world.block_on(async {
            let mut faults = RandomFaults::new(nodes.iter().chain([&main])).length(millis(30_000));
            for kind in [FaultKind::Partition, FaultKind::SlowLink, FaultKind::FullDisk] {
                faults = faults.every(kind, millis(2000));
            }
            faults.every(FaultKind::ClockJump, millis(2000)).run().await;
            time::sleep(millis(500)).await;
            for (index, node) in nodes.iter().enumerate() {
                let begin = time::Instant::now();
                let mut stream = TcpStream::connect((node.ip(), 7)).await.expect("it listens");
                stream.read_u8().await.expect("it answers");
                let round_trip = if index == 2 { millis(14) } else { millis(2) };
                let taken = begin.elapsed();
                assert!(
                    taken >= 2 * round_trip && taken < 3 * round_trip,
                    "seed {seed}: {taken:?}"
                );

                let write = async {
                    let (clock, begin) = (time::system_time(), time::Instant::now());
                    fs::write("/file", "some bytes").await.map(|()| (clock, begin.elapsed()))
                };
                let right = time::system_time();
                let written = node.spawn(write).await.expect("it is up");
                let (clock, taken) = written.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert!(taken < millis(2), "seed {seed}: {taken:?}");
                let wrong = if index == 1 { millis(1000) } else { Duration::ZERO };
                assert_eq!(clock, right + wrong, "seed {seed}");
            }
        });
        assert!(faults_of(&world).len() > 20, "seed {seed}");
    }
}

/// Goal: the faults of one kind depend on nothing but the seed: not on other kinds, not on what the nodes do. Method: the times of all crashes
/// with and without wrong clocks, and with nodes that do nothing.
#[test]
fn kinds_are_drawn_independently() {
    let crashes = |kinds: &[FaultKind], is_idle: bool| {
        let mut world = World::new(6);
        let nodes = ["one", "two", "three"].map(|name| match is_idle {
            true => world.node(name).start(),
            false => world.node(name).run(answer),
        });
        world.record(1 << 16);
        let faults = RandomFaults::new(&nodes).only(kinds.iter().copied());
        world.block_on(faults.every(FaultKind::Crash, millis(4000)).run());
        let mut faults = faults_of(&world);
        let count = faults.len();
        faults.retain(|fault| fault.2 == "crash");
        (faults, count)
    };
    let (alone, count) = crashes(&[FaultKind::Crash], false);
    assert!(alone.len() == count && count > 5, "{alone:?}");
    let (with_clocks, more) = crashes(&[FaultKind::ClockJump, FaultKind::Crash], false);
    assert!(with_clocks == alone && more > count, "{with_clocks:?}");
    assert_eq!(crashes(&[FaultKind::Crash], true).0, alone);
    // None at all ends at once, and after its time.
    World::new(1).block_on(RandomFaults::new([]).run());
    let mut world = World::new(1);
    let main = world.main();
    world.block_on(RandomFaults::new([&main]).only([FaultKind::Crash]).run());
    catch_unwind(|| RandomFaults::new([]).every(FaultKind::Kill, Duration::ZERO))
        .expect_err("no end");
    catch_unwind(|| RandomFaults::new([]).lasting(millis(2)..=millis(1))).expect_err("no time");
}
