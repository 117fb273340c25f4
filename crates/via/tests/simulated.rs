//! Messages in a simulated world: ranks on nodes of their own, over UDP, through loss, partitions and crashes.

use std::{sync::Arc, time::Duration};

use vigie_detect::{Instant, Server};
use vigie_runtime::{
    JoinHandle,
    simulation::{self, Link, Node, World},
    time,
};
use vigie_via::{
    message::{Communicator, Endpoint},
    protocol::{EngineConfig, SendMode},
    software_nic::{Secret, SoftwareNicConfig},
    udp::Udp,
    world,
};

const RANKS: u32 = 3;

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The bytes of a message, which nothing else has.
fn message(from: u32, round: u32) -> Vec<u8> {
    let length = usize::try_from(round * 700).expect("few");
    let byte = u8::try_from(from * 50 + round).expect("few");
    vec![byte; length]
}

/// Adds a node for each rank.
fn nodes(world: &mut World) -> Vec<Node> {
    (0..RANKS).map(|rank| world.node(&format!("rank {rank}")).start()).collect()
}

/// Connects the ranks, each on its node, and runs `body` there.
fn ranks<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    nodes: &[Node],
    body: impl Fn(Communicator<Udp>) -> F + Send + Sync + 'static,
) -> Vec<JoinHandle<T>> {
    let server = Server::current().expect("the test's node");
    let (_launcher, worlds) = world::local(&server, RANKS).expect("a world");
    let body = Arc::new(body);
    let start = |(world, node): (world::World, &Node)| {
        let (body, address) = (Arc::clone(&body), (node.ip(), 7000).into());
        node.spawn(async move {
            let server = Server::current().expect("the rank's node");
            let config = SoftwareNicConfig::default();
            let nic = Udp::bind(address, Secret::new([7; 16]), config).expect("a free port");
            let deadline = Instant::now() + secs(30);
            let config = EngineConfig::default();
            let endpoint = Endpoint::join_over(&server, &world, nic, config, deadline).await;
            body(endpoint.expect("all ranks join").communicator()).await
        })
    };
    worlds.into_iter().zip(nodes).map(start).collect()
}

/// Goal: messages arrive whole, once and in order although the network loses, repeats and reorders packets and separates ranks for a while.
/// Method: three ranks exchange messages of up to 13 kB, all to all, over a bad link, two of them across a partition of 4 s, by 16 seeds,
/// of which two are compared with a second run.
#[test]
fn messages_outlive_a_partition() {
    simulation::for_each_seed(16, |world| {
        world.default_link(Link::new().loss(0.05).duplication(0.02));
        let nodes = nodes(world);
        world.block_on(async {
            let all = ranks(&nodes, |ranks| async move {
                for round in 0..20 {
                    let others = || (0..RANKS).filter(|rank| *rank != ranks.rank());
                    let start = |rank| {
                        let bytes = message(ranks.rank(), round);
                        ranks.start_send(rank, round, SendMode::Standard, bytes).expect("taken")
                    };
                    let sends: Vec<_> = others().map(start).collect();
                    for rank in others() {
                        let found = ranks.recv(rank, round).await.expect("a message");
                        assert!(found.bytes == message(rank, round), "of {rank} in round {round}");
                    }
                    for mut sent in sends {
                        sent.wait().await.expect("sent");
                    }
                    time::sleep(Duration::from_millis(100)).await;
                }
                Instant::now()
            });
            time::sleep(secs(1)).await;
            let begin = Instant::now();
            nodes[0].partition(&nodes[1]);
            time::sleep(secs(4)).await;
            nodes[0].heal(&nodes[1]);
            for rank in all {
                let end = rank.await.expect("no panic");
                assert!(end > begin + secs(4), "the rounds wait for the slowest");
            }
        });
    });
}

/// Goal: a rank whose machine crashes fails at the others, and what they say to each other goes on. Method: a rank crashes while the others wait for
/// a message of it; both learn of it, and then exchange one.
#[test]
fn a_crashed_rank_fails_at_the_others() {
    simulation::for_each_seed(8, |world| {
        let nodes = nodes(world);
        world.block_on(async {
            let mut all = ranks(&nodes, |ranks| async move {
                if ranks.rank() == 2 {
                    for rank in 0..2 {
                        ranks.send(rank, 0, b"here").await.expect("sent");
                    }
                    return std::future::pending().await;
                }
                assert_eq!(ranks.recv(2, 0).await.expect("a message").bytes, b"here");
                ranks.recv(2, 1).await.expect_err("it has crashed");
                let lasted = Instant::now();
                let other = 1 - ranks.rank();
                ranks.send(other, 2, b"alone").await.expect("sent");
                assert_eq!(ranks.recv(other, 2).await.expect("a message").bytes, b"alone");
                // The other one may not have all of it yet.
                time::sleep(secs(5)).await;
                lasted
            });
            time::sleep(secs(2)).await;
            let crash = Instant::now();
            nodes[2].crash();
            all.pop().expect("rank 2").await.expect_err("its task is dropped");
            for rank in all {
                let lasted = rank.await.expect("no panic") - crash;
                // By silence: `SoftwareNicConfig::dead_after`.
                assert!(lasted > secs(8) && lasted < secs(30), "{lasted:?}");
            }
        });
    });
}
