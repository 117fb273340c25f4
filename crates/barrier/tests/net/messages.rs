//! Packets as messages of `via`.

use vigie_barrier::{Algorithm, Rank, net::NetBarrier};
use vigie_detect::Server;
use vigie_via::{message::Endpoint, protocol::Config, shm::Shm, world};

use crate::stage::{Entries, on_threads};

/// Goal: a barrier over messages keeps all in, beside the user's own messages, and one that leaves is named. Method:
/// several algorithms over shared memory.
#[test]
fn messages_carry_a_barrier() {
    for name in ["dissemination", "central", "concurrent"] {
        let algorithm: Algorithm = name.parse().expect("a name");
        let host = Server::spawn_thread().expect("a host thread");
        let (_launcher, worlds) = world::local(host.server(), 4).expect("a world");
        let entries = Entries::default();
        on_threads(async {
            let tasks = worlds.into_iter().map(|world| {
                let (server, entries) = (host.server().clone(), entries.clone());
                tokio::spawn(async move {
                    let deadline = server.now() + std::time::Duration::from_secs(30);
                    let nic = Shm::open().expect("shared memory");
                    let endpoint =
                        Endpoint::join_over(&server, &world, nic, Config::default(), deadline)
                            .await
                            .expect("joined");
                    let communicator = endpoint.communicator();
                    let builder = NetBarrier::builder().server(&server).algorithm(algorithm);
                    let mut barrier = builder.over(&communicator).expect("a barrier");
                    let next = (communicator.rank() + 1) % 4;
                    for turn in 0..50 {
                        communicator.send(next, 0, &[1]).await.expect("sent");
                        entries.enter();
                        barrier.wait().await.expect("passed");
                        entries.check(turn, 4);
                        communicator.receive((next + 2) % 4, 0).await.expect("received");
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
}
