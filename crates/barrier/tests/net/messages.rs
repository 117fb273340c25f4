//! Packets as messages of `via`, over its providers.

use std::{net::Ipv4Addr, time::Duration};

use vigie_barrier::{
    Algorithm, Rank,
    net::{MeasureError, NetBarrier, WaitMode},
};
use vigie_detect::Server;
use vigie_via::{
    message::Endpoint,
    protocol::EngineConfig,
    shm::Shm,
    software_nic::{self, Secret},
    udp::Udp,
    vi::Provider,
    world,
};

use crate::stage::{Entries, on_threads};

/// After how long a member asks: much longer than it takes a busy machine to let it run.
const REPEAT_AFTER: Duration = Duration::from_secs(3);

fn shm() -> Shm {
    Shm::open().expect("shared memory")
}

/// A NIC on the loopback interface, of one group with all others that have this secret.
fn udp() -> Udp {
    let at = (Ipv4Addr::LOCALHOST, 0).into();
    Udp::bind(at, Secret::new([9; 16]), software_nic::SoftwareNicConfig::default())
        .expect("a socket")
}

/// Lets members meet, over NICs of one kind, beside the user's own messages; the third leaves then.
fn carry<P: Provider + Send + 'static>(name: &'static str, nic: fn() -> P) {
    let algorithm: Algorithm = name.parse().expect("a name");
    let host = Server::spawn_thread().expect("a host thread");
    let (_launcher, worlds) = world::local(host.server(), 4).expect("a world");
    let entries = Entries::default();
    on_threads(async {
        let tasks = worlds.into_iter().map(|world| {
            let (server, entries) = (host.server().clone(), entries.clone());
            tokio::spawn(async move {
                let deadline = server.now() + Duration::from_secs(30);
                let endpoint =
                    Endpoint::join_over(&server, &world, nic(), EngineConfig::default(), deadline)
                        .await
                        .expect("joined");
                let communicator = endpoint.communicator();
                let builder = NetBarrier::builder().server(&server).algorithm(algorithm);
                let mut barrier = builder.over(&communicator).expect("a barrier");
                let next = (communicator.rank() + 1) % 4;
                for epoch in 0..50 {
                    communicator.send(next, 0, &[1]).await.expect("sent");
                    entries.enter();
                    barrier.wait().await.expect("passed");
                    entries.check(epoch, 4);
                    communicator.recv((next + 2) % 4, 0).await.expect("received");
                }
                if barrier.rank() == Rank(2) {
                    return endpoint;
                }
                let error = barrier.wait().await.expect_err("one has left");
                assert_eq!(error.lost(), [Rank(2)], "{name}: {error}");
                assert_eq!(barrier.shrink().await.expect("shrunk").len(), 3);
                for _ in 0..20 {
                    barrier.wait().await.expect("passed");
                }
                endpoint
            })
        });
        let mut endpoints = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            endpoints.push(task.await.expect("a member"));
        }
    });
}

/// Goal: a barrier over messages keeps all in, beside the user's own messages, and one that leaves is named. Method:
/// several algorithms over shared memory.
#[test]
fn messages_carry_a_barrier() {
    for name in ["dissemination", "central", "concurrent"] {
        carry(name, shm);
    }
}

/// Goal: the same over a provider that has its own packets and repeats them. Method: UDP on the loopback interface.
#[test]
fn messages_over_udp_carry_a_barrier() {
    for name in ["dissemination", "concurrent"] {
        carry(name, udp);
    }
}

/// Sleeps in many barriers over NICs of one kind, each member with a host of its own, as processes are.
fn sleep_often<P: Provider + Send + 'static>(nic: fn() -> P, waiting: WaitMode) {
    const SIZE: u32 = 4;
    let meeting = Server::spawn_thread().expect("a host thread");
    let (_launcher, worlds) = world::local(meeting.server(), SIZE).expect("a world");
    on_threads(async {
        let tasks = worlds.into_iter().map(|world| {
            tokio::spawn(async move {
                let host = Server::spawn_thread().expect("a host thread");
                let server = host.server();
                let deadline = server.now() + Duration::from_secs(30);
                let endpoint =
                    Endpoint::join_over(server, &world, nic(), EngineConfig::default(), deadline)
                        .await
                        .expect("joined");
                let mut barrier = NetBarrier::builder()
                    .server(server)
                    .algorithm(Algorithm::DISSEMINATION)
                    .wait_mode(waiting)
                    .repeat_after(REPEAT_AFTER)
                    .failure_timeout(REPEAT_AFTER * 40)
                    .over(&endpoint.communicator())
                    .expect("a barrier");
                for _ in 0..400 {
                    barrier.wait().await.expect("passed");
                }
                let counters = barrier.counters().member;
                assert_eq!((counters.nacks, counters.retransmitted), (0, 0), "{waiting:?}");
                let alone = barrier.leave(Duration::from_secs(2)).await;
                assert!(alone.is_ok());
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("a member");
        }
    });
}

/// Goal: a sleeping member is woken by every message, so that no member asks for one where none is lost. Method: members that
/// sleep at once, and that poll for a while before, ask after a time that no wake-up takes.
#[test]
fn every_message_wakes_who_sleeps() {
    for waiting in [WaitMode::Sleeping, WaitMode::Adaptive] {
        sleep_often(shm, waiting);
        sleep_often(udp, waiting);
    }
}

/// Measures over NICs of one kind, chooses the algorithm, and goes on.
fn measure<P: Provider + Send + 'static>(nic: fn() -> P) {
    let host = Server::spawn_thread().expect("a host thread");
    let (_launcher, worlds) = world::local(host.server(), 3).expect("a world");
    on_threads(async {
        let tasks = worlds.into_iter().map(|world| {
            let server = host.server().clone();
            tokio::spawn(async move {
                let deadline = server.now() + Duration::from_secs(30);
                let endpoint =
                    Endpoint::join_over(&server, &world, nic(), EngineConfig::default(), deadline)
                        .await
                        .expect("joined");
                let builder = NetBarrier::builder().server(&server);
                let mut barrier = builder.over(&endpoint.communicator()).expect("a barrier");
                let measured = barrier.measure().await.expect("measured");
                let advice = barrier.replan().await.expect("planned");
                for _ in 0..30 {
                    barrier.wait().await.expect("passed");
                }
                let report = barrier.report().expect("a report");
                assert!(report.is_measured && report.ratio().is_some(), "{report}");
                // All enter it, so that no member leaves before.
                barrier.wait().await.expect("passed");
                let alone = barrier.leave(Duration::from_secs(2)).await;
                assert!(alone.is_ok());
                (endpoint, measured, advice.algorithm)
            })
        });
        let mut found = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            found.push(task.await.expect("a member"));
        }
        for (_, measured, algorithm) in &found {
            assert_eq!((measured, algorithm), (&found[0].1, &found[0].2));
        }
    });
}

/// Goal: messages are measured as datagrams are, and all ranks find and choose the same. Method: shared memory and UDP;
/// a group of one has no other member to measure with.
#[test]
fn messages_are_measured() {
    measure(shm);
    measure(udp);
    let host = Server::spawn_thread().expect("a host thread");
    let (_launcher, worlds) = world::local(host.server(), 1).expect("a world");
    on_threads(async {
        let server = host.server();
        let deadline = server.now() + Duration::from_secs(30);
        let endpoint =
            Endpoint::join_over(server, &worlds[0], shm(), EngineConfig::default(), deadline)
                .await
                .expect("joined");
        let builder = NetBarrier::builder().server(server);
        let mut barrier = builder.over(&endpoint.communicator()).expect("a barrier");
        assert!(matches!(barrier.replan().await, Err(MeasureError::Alone)));
        barrier.wait().await.expect("it works as before");
    });
}
