//! Checks of targets that become black holes, and targets by name, in virtual time.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_forward::relay::{
    Endpoint, HealthCheckConfig, Relay, RelayHandle, TargetState, TargetStats, Transfer, Upstream,
};
use vigie_runtime::{
    simulation::{self, World},
    spawn, time,
};

use super::millis;

/// A service that sends its letter.
async fn serve(letter: u8) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        // The relay's checks do not wait for it.
        let _ = stream.write_all(&[letter]).await;
    }
}

/// Relays to 10.1.0.1 and 10.1.0.2 in this order.
async fn relay(
    handle: Arc<OnceLock<RelayHandle>>,
    check: Option<HealthCheckConfig>,
) -> io::Result<()> {
    let to = |text: &str| text.parse::<Endpoint>().expect("an endpoint");
    let builder = Relay::builder(to("0.0.0.0:80")).transfer(Transfer::Copy);
    let builder = builder.upstream(to("10.1.0.1:7")).upstream(to("10.1.0.2:7"));
    let builder = builder.setup_timeout(Duration::from_secs(10));
    let builder = match check {
        Some(check) => builder.check(check),
        None => builder,
    };
    let relay = builder.bind().map_err(io::Error::other)?;
    handle.set(relay.handle()).expect("it starts once");
    relay.serve(|task| spawn(task).detach()).await.map(drop)
}

/// Connects to the relay, and returns who answered, after how long.
async fn ask() -> io::Result<(u8, Duration)> {
    let begin = time::Instant::now();
    let letter = TcpStream::connect("relay:80").await?.read_u8().await?;
    Ok((letter, begin.elapsed()))
}

fn states(targets: &[TargetStats]) -> [TargetState; 2] {
    [targets[0].state, targets[1].state]
}

/// Goal: a target that has become a black hole is down after `fall` checks, and no client meets it; it is used again after `rise` checks
/// have passed. Without checks, the first client waits for it. Method: a partition in virtual time between two checks, with the state
/// just before and after the times that the settings say; many seeds.
#[test]
fn no_client_meets_a_black_hole() {
    simulation::for_each_seed(20, |world| {
        let handle = Arc::new(OnceLock::new());
        let (relay, hole, _) = start(world, &handle, Some(HealthCheckConfig::default()));
        let targets = || handle.get().expect("it has started").targets();
        world
            .block_on(async {
                time::sleep(millis(500)).await;
                assert_eq!(ask().await?.0, b'a');
                relay.partition(&hole);
                // Checks every 2 s from 0; that of 2 s has failed at 3 s, that of 6 s at 7 s.
                time::sleep(millis(6_400)).await;
                assert_eq!(states(&targets()), [TargetState::Available; 2]);
                time::sleep(millis(300)).await;
                assert_eq!(states(&targets()), [TargetState::Down, TargetState::Available]);
                for _ in 0..20 {
                    let (letter, after) = ask().await?;
                    assert_eq!(letter, b'b');
                    assert!(after < millis(500), "{after:?}");
                }
                let stats = handle.get().expect("it has started").stats();
                assert_eq!((stats.connects_failed, stats.connects_timed_out), (0, 0), "{stats:?}");
                relay.heal(&hole);
                let begin = time::Instant::now();
                while states(&targets())[0] == TargetState::Down {
                    assert_eq!(ask().await?.0, b'b');
                    time::sleep(millis(100)).await;
                }
                // Two checks; that at which the partition ends may still fail.
                let after = begin.elapsed();
                assert!((millis(2_000)..millis(6_200)).contains(&after), "{after:?}");
                assert_eq!(ask().await?.0, b'a');
                Ok::<(), io::Error>(())
            })
            .expect("sockets of the world");
    });
}

/// Goal: the test before does show what checks are for. Method: the same without checks: the first client waits for a second and more.
#[test]
fn without_checks_a_client_meets_it() {
    let mut world = World::new(1);
    let handle = Arc::new(OnceLock::new());
    let (relay, hole, _) = start(&mut world, &handle, None);
    world
        .block_on(async {
            time::sleep(millis(500)).await;
            relay.partition(&hole);
            let (letter, after) = ask().await?;
            assert_eq!(letter, b'b');
            assert!(after >= millis(10_000), "{after:?}");
            Ok::<(), io::Error>(())
        })
        .expect("sockets of the world");
}

/// Goal: no client waits for the first round of checks: one whose target answers is served before the check of another target has ended, and one
/// that meets a black hole tries it for a second. From the end of that check on, none meets it. Method: each of the targets in turn is a black hole from
/// the start; the order of events in virtual time: a client at 100 ms, the end of the first check at 1 s, another client.
#[test]
fn no_client_waits_for_the_first_check() {
    for is_first in [false, true] {
        let mut world = World::new(1);
        let handle = Arc::new(OnceLock::new());
        let (relay, a, b) = start(&mut world, &handle, Some(HealthCheckConfig::default()));
        let (hole, letter) = if is_first { (&a, b'b') } else { (&b, b'a') };
        relay.partition(hole);
        let targets = || handle.get().expect("it has started").targets();
        world
            .block_on(async {
                time::sleep(millis(100)).await;
                let (answer, after) = ask().await?;
                assert_eq!(answer, letter);
                if is_first {
                    assert!((millis(1_000)..millis(1_500)).contains(&after), "{after:?}");
                } else {
                    // The check of the other target goes on.
                    assert!(targets().iter().all(|target| target.checks_failed == 0));
                    assert_eq!(states(&targets()), [TargetState::Available; 2]);
                }
                time::sleep(millis(1_000)).await;
                let down = targets().into_iter().position(|one| one.state == TargetState::Down);
                assert_eq!(down, Some(usize::from(!is_first)));
                let (answer, after) = ask().await?;
                assert_eq!(answer, letter);
                assert!(after < millis(500), "{after:?}");
                Ok::<(), io::Error>(())
            })
            .expect("sockets of the world");
    }
}

/// Goal: targets by name are served from the first client on, and a name without an address is passed over, said, and known to have no
/// target; each target is checked once. Method: a name of the world's and one that does not exist, before and behind, and a port that is
/// closed; a client that connects at once.
#[test]
fn names_are_resolved_before_the_first_client() {
    for nobody_first in [true, false] {
        let mut world = World::new(1);
        world.node("b").ip([10, 1, 0, 2]).run(|| serve(b'b'));
        let handle = Arc::new(OnceLock::new());
        let told = Arc::clone(&handle);
        world.node("relay").run(move || {
            let told = Arc::clone(&told);
            async move {
                let listen = "0.0.0.0:80".parse::<Endpoint>().expect("an endpoint");
                let (nobody, b) = (Upstream::named("nobody", 7), Upstream::named("b", 7).weight(3));
                let [one, other] = if nobody_first { [nobody, b] } else { [b, nobody] };
                let builder = Relay::builder(listen).transfer(Transfer::Copy);
                let closed = "10.1.0.2:9".parse::<Endpoint>().expect("an endpoint");
                let builder = builder.upstream(one).upstream(other).upstream(closed);
                let builder = builder.check(HealthCheckConfig::default());
                let relay = builder.bind().map_err(io::Error::other)?;
                told.set(relay.handle()).expect("it starts once");
                relay.serve(|task| spawn(task).detach()).await.map(drop)
            }
        });
        let letter = world.block_on(async {
            time::sleep(millis(100)).await;
            let answer = ask().await;
            // The first round of checks, at the latest.
            time::sleep(millis(1_000)).await;
            answer
        });
        assert_eq!(letter.expect("sockets of the world").0, b'b');
        let targets = handle.get().expect("it has started").targets();
        let shown: Vec<_> = targets
            .iter()
            .map(|one| (one.target.as_str(), one.host.as_deref(), one.weight))
            .collect();
        assert_eq!(shown, [("tcp://10.1.0.2:7", Some("b"), 3), ("tcp://10.1.0.2:9", None, 1)]);
        let checks: Vec<_> = targets.iter().map(|one| (one.state, one.checks_failed)).collect();
        assert_eq!(checks, [(TargetState::Available, 0), (TargetState::Down, 1)]);
    }
}

fn start(
    world: &mut World,
    handle: &Arc<OnceLock<RelayHandle>>,
    check: Option<HealthCheckConfig>,
) -> (simulation::Node, simulation::Node, simulation::Node) {
    let a = world.node("a").ip([10, 1, 0, 1]).run(|| serve(b'a'));
    let b = world.node("b").ip([10, 1, 0, 2]).run(|| serve(b'b'));
    let handle = Arc::clone(handle);
    let node = world.node("relay").run(move || relay(Arc::clone(&handle), check.clone()));
    (node, a, b)
}
