//! Barriers in a simulated world: members on nodes of their own, of which one pauses or crashes.

use std::{sync::Arc, time::Duration};

use vigie_barrier::{BarrierError, net::NetBarrier};
use vigie_detect::{Instant, Server};
use vigie_runtime::{
    JoinHandle,
    simulation::{self, Link, Node, World},
    time,
};
use vigie_via::{datagram::UdpConfig, world};

const MEMBERS: u32 = 3;

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Adds a node for each member.
fn nodes(world: &mut World) -> Vec<Node> {
    (0..MEMBERS).map(|rank| world.node(&format!("member {rank}")).start()).collect()
}

/// Forms the group over UDP, each member on its node, and runs `body` there.
fn members<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    nodes: &[Node],
    body: impl Fn(NetBarrier) -> F + Send + Sync + 'static,
) -> Vec<JoinHandle<T>> {
    let server = Server::current().expect("the test's node");
    let (_launcher, worlds) = world::local(&server, MEMBERS).expect("a world");
    let body = Arc::new(body);
    let start = |(world, node): (world::World, &Node)| {
        let (body, ip) = (Arc::clone(&body), node.ip());
        node.spawn(async move {
            let builder = NetBarrier::builder().network(UdpConfig::new(ip));
            let barrier = builder.failure_timeout(secs(5)).form(&world).await;
            body(barrier.expect("all members are there")).await
        })
    };
    worlds.into_iter().zip(nodes).map(start).collect()
}

/// Goal: no member passes a barrier before all have entered it, although packets are lost, and one member's node pauses. Method: three members pass 30 barriers
/// over a bad link, by 16 seeds, of which two are compared with a second run; each notes when it enters and passes; one pauses for 2 s, which delays all, and fails
/// none.
#[test]
fn members_wait_for_one_that_pauses() {
    simulation::for_each_seed(16, |world| {
        world.default_link(Link::new().loss(0.05).duplication(0.02));
        let nodes = nodes(world);
        world.block_on(async {
            let all = members(&nodes, |mut barrier| async move {
                let mut times = Vec::new();
                for _ in 0..30 {
                    time::sleep(Duration::from_millis(100)).await;
                    let entered = Instant::now();
                    barrier.wait().await.expect("all are there");
                    times.push((entered, Instant::now()));
                }
                barrier.leave(secs(10)).await.expect("the server lives");
                times
            });
            time::sleep(secs(1)).await;
            nodes[1].pause();
            time::sleep(secs(2)).await;
            nodes[1].resume();
            let mut times = Vec::new();
            for member in all {
                times.push(member.await.expect("no panic"));
            }
            for barrier in 0..30 {
                let last = times.iter().map(|of_member| of_member[barrier].0).max();
                let first = times.iter().map(|of_member| of_member[barrier].1).min();
                assert!(
                    first >= last,
                    "barrier {barrier}: {first:?}, but {last:?} was the last to enter"
                );
            }
            let end = times[0][29].1;
            assert!(end > Instant::from_nanos(5_000_000_000), "the pause delays them: {end:?}");
        });
    });
}

/// Goal: a member whose node crashes is missed by all others, who go on without it. Method: a crash while the others are in a barrier; both learn who is lost, agree on a
/// smaller group, and pass a barrier of it.
#[test]
fn members_go_on_without_one_that_crashes() {
    simulation::for_each_seed(8, |world| {
        let nodes = nodes(world);
        world.block_on(async {
            let mut all = members(&nodes, |mut barrier| async move {
                if barrier.rank().0 == 2 {
                    return std::future::pending().await;
                }
                match barrier.wait().await {
                    Err(BarrierError::Lost { .. }) => {}
                    ended => panic!("a member is lost: {ended:?}"),
                }
                let survivors = barrier.shrink().await.expect("two of three are left");
                barrier.wait().await.expect("both are there");
                barrier.leave(secs(10)).await.expect("the server lives");
                survivors.iter().map(|rank| rank.0).collect::<Vec<_>>()
            });
            time::sleep(secs(2)).await;
            nodes[2].crash();
            all.pop().expect("member 2").await.expect_err("its task is dropped");
            for member in all {
                assert_eq!(member.await.expect("no panic"), [0, 1]);
            }
        });
    });
}
