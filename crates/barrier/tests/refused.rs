//! Barriers in a simulated world that have no meaning there, and those that have one.

#![cfg(not(loom))]

use std::{io, time::Duration};

use vigie_barrier::{
    BarrierError, Group, Rank,
    local::{
        TaskBarrier, ThreadBarrier,
        shm::{BootstrapPoint, ShmBootstrap, ShmFormationError},
    },
    net::NetBarrier,
};
use vigie_detect::{Instant, Server};
use vigie_runtime::{simulation::World, spawn};
use vigie_via::{
    datagram::UdpConfig,
    message::Endpoint,
    protocol::EngineConfig,
    software_nic::{Secret, SoftwareNicConfig},
    udp::Udp,
    world,
};

/// Returns the error of the kernel's kind that is the cause.
#[track_caller]
fn cause<T>(what: &str, result: Result<T, ShmFormationError>) -> io::Error {
    match result.map(drop).expect_err(what) {
        ShmFormationError::Io { source, .. } => source,
        other => panic!("{what}: {other}"),
    }
}

/// Goal: barriers of processes and of threads are refused in a simulation with a typed error that names another one, instead of waiting for
/// what cannot come. Method: each way into them; a barrier of tasks, which is none of these, beside them.
#[test]
fn processes_and_threads_are_refused() {
    let mut simulated = World::new(1);
    let refused = simulated.block_on(async {
        let server = Server::current().expect("the task's server");
        let (_launcher, worlds) = world::local(&server, 1).expect("a world");
        let soon = Instant::now() + Duration::from_secs(5);
        let group = Group::new(2).expect("two members");
        let bootstrap = |rank| {
            let point = BootstrapPoint::new("refused", [7; 16]).expect("a name");
            ShmBootstrap::new(group, Rank(rank), point)
        };
        let mut refused = vec![
            ("ShmBootstrap::join", cause("join", bootstrap(0).join(soon).await)),
            ("ShmBootstrap::join_on", cause("join_on", bootstrap(1).join_on(&server, soon).await)),
            (
                "ShmBootstrap::in_world",
                cause("in_world", ShmBootstrap::in_world(&worlds[0], "key", soon).await),
            ),
        ];
        let mut threads: Vec<_> = ThreadBarrier::new(group).into_members().collect();
        let mut blocked = |what| match threads[0].wait() {
            Err(BarrierError::Io { source, .. }) => refused.push((what, source)),
            other => panic!("{what}: {other:?}"),
        };
        blocked("ThreadMember::wait");
        blocked("ThreadMember::wait, again");
        let _ = threads[1].arrive().expect("the first is there");
        threads[0].wait().expect("nobody is awaited any more");

        let members = TaskBarrier::new(group).into_members();
        let tasks: Vec<_> =
            members.map(|mut member| spawn(async move { member.wait().await.map(drop) })).collect();
        for task in tasks {
            task.await.expect("no panic").expect("all enter");
        }
        refused
    });
    for (what, error) in refused {
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{what}: {error}");
        assert!(error.to_string().contains("a simulation has no"), "{what}: {error}");
    }
}

/// Goal: groups over the network form in a simulation in each way: by a rendezvous at an address, and over messages. Method: two members
/// on nodes of their own, each way; ten barriers.
#[test]
fn groups_over_the_network_form_in_every_way() {
    let mut simulated = World::new(2);
    let nodes = ["zero", "one"].map(|name| simulated.node(name).start());
    simulated.block_on(async {
        let server = Server::current().expect("the task's server");
        let (_launcher, worlds) = world::local(&server, 2).expect("a world");
        let meeting = (nodes[0].ip(), 9000).into();
        let mut tasks = Vec::new();
        for (world, node) in worlds.into_iter().zip(&nodes) {
            let ip = node.ip();
            tasks.push(node.spawn(async move {
                let rank = world.rank();
                let builder = NetBarrier::builder().network(UdpConfig::new(ip));
                let builder = builder.secret([3; 32]);
                let mut met = builder.form_at(meeting, rank, 2).await.expect("both come");
                let server = Server::current().expect("the rank's node");
                let config = SoftwareNicConfig::default();
                let nic = Udp::bind((ip, 7000).into(), Secret::new([7; 16]), config);
                let deadline = Instant::now() + Duration::from_secs(30);
                let config = EngineConfig::default();
                let nic = nic.expect("a free port");
                let endpoint = Endpoint::join_over(&server, &world, nic, config, deadline).await;
                let endpoint = endpoint.expect("both join");
                let over = NetBarrier::builder().over(&endpoint.communicator());
                let mut over = over.expect("messages carry it");
                for _ in 0..10 {
                    met.wait().await.expect("both are there");
                    over.wait().await.expect("both are there");
                }
                met.leave(Duration::from_secs(10)).await.expect("the server lives");
                vigie_runtime::time::sleep(Duration::from_secs(10)).await;
            }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}
