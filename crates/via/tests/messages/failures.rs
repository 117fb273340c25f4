//! Ranks that disappear.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use vigie_detect::Instant;
use vigie_via::{
    message::{Endpoint, JoinError, MessageError, SourceFilter, TagFilter},
    protocol::{EngineConfig, EngineEvent, MessageEngine, SendMode},
    shm::Shm,
    vi::{Address, DisconnectReason},
    world::{Rank, World, local},
};

use super::hosts::{BOUND, Kind, on_each_host};

/// More receives that fail than a budget lasts.
const FAILURES_MAX: u32 = 200_000;

#[track_caller]
fn names_rank_2<T: std::fmt::Debug>(result: Result<T, MessageError>) {
    let error = result.expect_err("rank 2 has gone");
    let failed = error.failed_rank().map(|(rank, _)| rank);
    assert_eq!(failed, Some(2), "{error}");
}

/// Goal: a rank that joins alone or twice gets an error that says what is wrong, not which keys the
/// launcher keeps. Method: one rank of two, for a while; a rank that is its whole world, twice.
#[test]
fn joining_alone_or_twice() {
    on_each_host(|host| async move {
        let server = host.server(0).clone();
        let join = async |world: &World, patience: Duration| {
            let nic = Shm::open().expect("a NIC");
            let deadline = Instant::now() + patience;
            Endpoint::join_over(&server, world, nic, EngineConfig::default(), deadline).await
        };
        let (_launcher, pair) = local(&server, 2).expect("a world");
        let alone = join(&pair[0], Duration::from_millis(20)).await.expect_err("no other rank");
        assert!(matches!(alone, JoinError::Missing(_)), "{alone}");
        let (_launcher, single) = local(&server, 1).expect("a world");
        let _first = join(&single[0], BOUND).await.expect("it is its whole world");
        let second = join(&single[0], BOUND).await.expect_err("the second");
        assert!(matches!(second, JoinError::AlreadyJoined), "{second}");
    });
}

/// Goal: in a world whose launcher hands out keys, a rank cannot pass for another one, and the real one is connected afterwards.
/// Method: a rank that has joined, and knows the world's secret and its own keys, calls rank 0 as rank 1.
#[test]
fn a_rank_cannot_pass_for_another() {
    on_each_host(|host| async move {
        let (_launcher, worlds) = local(host.server(0), 3).expect("a world");
        let joins: Vec<_> = (0..)
            .zip(&worlds)
            .map(|(number, world)| {
                let (server, world) = (host.server(number).clone(), world.clone());
                host.spawn(async move {
                    let (nic, deadline) = (Shm::open().expect("a NIC"), Instant::now() + BOUND);
                    let config = EngineConfig::default();
                    Endpoint::join_over(&server, &world, nic, config, deadline).await
                })
            })
            .collect();
        let mut endpoints = Vec::new();
        for join in joins {
            endpoints.push(join.await.expect("no panic").expect("all ranks have joined"));
        }

        let hostile = &worlds[2];
        let deadline = Instant::now() + BOUND;
        let address = hostile.get(Rank(0), "vigie-via-address", deadline).await;
        let address = Address(address.expect("the launcher answers").expect("it was put"));
        let keys = hostile.pair_keys(deadline).await.expect("the launcher answers");
        let keys = keys.expect("it hands out keys");
        assert_eq!(keys.len(), 3);
        let real = worlds[1].pair_keys(deadline).await.expect("the launcher answers");
        assert!(real.as_ref().is_some_and(|real| real[2] == keys[1] && real[0] != keys[0]));
        let discriminator = [b"vigie-messages".as_slice(), &hostile.identity().id].concat();
        let nic = Shm::open().expect("a NIC");
        let mut engine = MessageEngine::new(nic, 1, 3, EngineConfig::default()).expect("an engine");
        engine.require_proof(0, keys[0].clone()).expect("a rank");
        let posing = Endpoint::new(host.server(2), engine).expect("a server");
        posing
            .with(|engine| engine.connect(0, &address, &discriminator, deadline))
            .expect("it asks");
        let event = posing.next_event().await.expect("an event");
        let is_refused =
            matches!(event, EngineEvent::Refused { rank: 0, reason: DisconnectReason::Rejected });
        assert!(is_refused, "{event:?}");

        endpoints[1].communicator().send(0, 7, b"truth").await.expect("sent");
        let message = endpoints[0].communicator().recv(1, TagFilter::Any).await;
        assert_eq!(message.expect("received").bytes, b"truth");
    });
}

/// Goal: when a rank leaves, everything that waits for it ends with an error that names it, and the
/// others continue. Method: wait for rank 2 in all ways, in tasks of ranks 0 and 1, then drop its
/// endpoint.
#[test]
fn a_rank_that_goes_ends_all_waits() {
    on_each_host(|host| async move {
        let mut endpoints = host.endpoints(3, EngineConfig::default()).await;
        let gone = endpoints.pop().expect("rank 2");
        let mut waits = Vec::new();
        for endpoint in &endpoints {
            let all = endpoint.communicator();
            let names = [
                "receive",
                "any source",
                "sync",
                "long",
                "probe",
                "any probe",
                "request",
                "posted",
            ];
            for name in names {
                let all = all.clone();
                let wait = async move {
                    match name {
                        "receive" => all.recv(2, 1).await.map(drop),
                        "any source" => all.recv(SourceFilter::Any, 2).await.map(drop),
                        "sync" => all.send_sync(2, 3, b"never matched").await,
                        "long" => all.send(2, 4, &vec![0; 8 << 20]).await,
                        "probe" => all.probe(2, 5).await.map(drop),
                        "any probe" => all.matched_probe(SourceFilter::Any, 6).await.map(drop),
                        "request" => {
                            let mode = SendMode::Synchronous;
                            all.start_send(2, 7, mode, vec![0; 100])?.wait().await
                        }
                        _ => all.start_recv(2, TagFilter::Any).wait().await.map(drop),
                    }
                };
                waits.push((name, host.spawn_waiting(wait).await));
            }
        }
        let events: Vec<_> = endpoints
            .iter()
            .map(|endpoint| {
                let endpoint = endpoint.clone();
                host.spawn(async move { endpoint.next_event().await.expect("an event") })
            })
            .collect();
        // All of them wait; now their hosts fall asleep.
        host.wait(Duration::from_millis(5)).await;
        drop(gone);
        for (name, wait) in waits {
            let result = wait.await.unwrap_or_else(|_| panic!("{name} panicked"));
            names_rank_2(result);
        }
        for event in events {
            let event = event.await.expect("no panic");
            assert!(matches!(event, EngineEvent::Failed { rank: 2, .. }), "{event:?}");
        }
        let (a, b) = (endpoints[0].communicator(), endpoints[1].communicator());
        names_rank_2(a.send(2, 0, b"").await);
        names_rank_2(a.recv(2, 0).await);
        names_rank_2(a.probe(2, 0).await);
        let receiving = host.spawn(async move { b.recv(SourceFilter::Any, TagFilter::Any).await });
        a.send(1, 9, b"we are left").await.expect("sent");
        let message = receiving.await.expect("no panic").expect("received");
        assert_eq!(message.bytes, b"we are left");
    });
}

/// Goal: an exchange whose send fails ends with the error of that, and its receive takes no message of a later one. Method: sends that
/// fail at once, and one that fails when its receiver goes, each with a receive from a rank that sends nothing until then.
#[test]
fn an_exchange_ends_with_its_send() {
    on_each_host(|host| async move {
        let mut endpoints = host.endpoints(3, EngineConfig::default()).await;
        let gone = endpoints.pop().expect("rank 2");
        let (all, other) = (endpoints[0].communicator(), endpoints[1].communicator());
        let error = all.send_recv((9, 1), b"", (1, 1)).await.expect_err("no such rank");
        assert_eq!(error.to_string(), "there is no rank 9 among 3");
        let mut buffer = vec![0; 10];
        let error = all.send_recv_replace((9, 1), &mut buffer, (1, 1)).await;
        error.expect_err("no such rank");

        let long = vec![0; 8 << 20];
        let pending = {
            let (all, mut long) = (all.clone(), long.clone());
            let borrowed = all.clone();
            let bytes = long.clone();
            let first = host.spawn_waiting(async move {
                borrowed.send_recv((2, 1), &bytes, (1, 1)).await.map(drop)
            });
            let first = first.await;
            let second = host.spawn_waiting(async move {
                all.send_recv_replace((2, 2), &mut long, (1, 1)).await.map(drop)
            });
            [first, second.await]
        };
        drop(gone);
        for exchange in pending {
            names_rank_2(exchange.await.expect("no panic"));
        }
        names_rank_2(all.send_recv((2, 1), b"", (1, 1)).await);
        other.send(0, 1, b"for a later receive").await.expect("sent");
        let message = all.recv(1, 1).await.expect("no receive was left");
        assert_eq!(message.bytes, b"for a later receive");
    });
}

/// Goal: messages that had arrived before a rank left can still be received. Method: receive them afterwards.
#[test]
fn what_has_arrived_stays() {
    on_each_host(|host| async move {
        let mut endpoints = host.endpoints(2, EngineConfig::default()).await;
        let gone = endpoints.pop().expect("rank 1");
        gone.communicator().send(0, 1, b"farewell").await.expect("sent");
        let all = endpoints[0].communicator();
        all.probe(1, 1).await.expect("it has arrived");
        drop(gone);
        let event = endpoints[0].next_event().await.expect("an event");
        assert!(matches!(event, EngineEvent::Failed { rank: 1, .. }), "{event:?}");
        assert_eq!(all.recv(1, 1).await.expect("received").bytes, b"farewell");
        let error = all.recv(1, 1).await.expect_err("no more comes");
        assert_eq!(error.failed_rank().map(|(rank, _)| rank), Some(1));
    });
}

/// Goal: messages that a rank sent before it left in order are received, whether or not they had been
/// polled. Method: send and leave at once, many times, while the other rank waits for all messages and
/// then for one more.
#[test]
fn last_words_are_heard() {
    on_each_host(|host| async move {
        for round in 0..20 {
            let mut endpoints = host.endpoints(2, EngineConfig::default()).await;
            let leaver = endpoints.pop().expect("rank 1");
            let all = endpoints[0].communicator();
            let listener = host.spawn(async move {
                let mut heard = Vec::new();
                loop {
                    match all.recv(1, 0).await {
                        Ok(message) => heard.extend(message.bytes),
                        Err(error) => return (heard, error.failed_rank().map(|(rank, _)| rank)),
                    }
                }
            });
            if round % 2 == 0 {
                host.wait(Duration::from_millis(1)).await;
            }
            let all = leaver.communicator();
            for word in 0..10 {
                all.send(0, 0, &[word]).await.expect("sent");
            }
            drop((leaver, all));
            let (heard, failed) = listener.await.expect("no panic");
            assert_eq!(heard, Vec::from_iter(0..10), "round {round}");
            assert_eq!(failed, Some(1));
        }
    });
}

/// Goal: receives that fail at once, one after the other, leave room for other tasks of a thread. Method: on a host with one thread, a task
/// that receives after its peer has gone until another one has run; by calls that wait, and by requests.
#[test]
fn receives_that_fail_leave_room_for_others() {
    on_each_host(|host| async move {
        if host.kind != Kind::UserLevel {
            return;
        }
        for is_request in [false, true] {
            let mut endpoints = host.endpoints(2, EngineConfig::default()).await;
            drop(endpoints.pop());
            let all = endpoints[0].communicator();
            all.recv(1, 1).await.expect_err("rank 1 has gone");
            let (has_run, runs) = (Arc::new(AtomicBool::new(false)), host.clone());
            let receiver = host.spawn(async move {
                let own = Arc::clone(&has_run);
                runs.spawn(async move { own.store(true, Ordering::Relaxed) });
                for _ in 0..FAILURES_MAX {
                    if has_run.load(Ordering::Relaxed) {
                        return true;
                    }
                    let mut bytes = [0];
                    let received = if is_request {
                        all.start_recv(SourceFilter::Any, 1).wait_into(&mut bytes[..]).await
                    } else {
                        all.recv_into(SourceFilter::Any, 1, &mut bytes[..]).await
                    };
                    received.expect_err("no rank is left");
                }
                false
            });
            assert!(receiver.await.expect("no panic"), "the other task has not run");
        }
    });
}

/// Goal: a host whose endpoint has an untaken event still sleeps. Method: let a rank go, and count the
/// rounds of its server while nothing happens.
#[test]
fn events_that_nobody_takes_keep_nobody_awake() {
    on_each_host(|host| async move {
        let mut endpoints = host.endpoints(2, EngineConfig::default()).await;
        drop(endpoints.pop());
        let all = endpoints[0].communicator();
        all.recv(1, 1).await.expect_err("rank 1 has gone");
        host.wait(Duration::from_millis(5)).await;
        let rounds = || host.server(0).metrics().polls;
        let before = rounds();
        for _ in 0..20 {
            host.wait(Duration::from_millis(1)).await;
        }
        let during = rounds() - before;
        assert!(during < 2000, "{during} rounds without an event");
    });
}
