//! Sets of requests, exchanges, and communicators that come and go.

use std::time::Duration;

use fastrand::Rng;
use vigie_via::{
    message::{Communicator, Ended, RequestOutcome, RequestSet, SourceFilter, TagFilter},
    protocol::{EngineConfig, SendMode},
    shm::Shm,
};

use super::hosts::{Host, Kind, on_each_host, poll_and_drop, with_ranks};
use crate::pattern::pattern;

/// More duplicates than there are contexts.
const DUPLICATES: u32 = 100_000;

fn length_of(tag: usize) -> usize {
    if tag.is_multiple_of(50) { 40_000 } else { 8 }
}

fn check(ended: Ended, seen: &mut [bool]) {
    let (number, result) = ended;
    let RequestOutcome::Received(message) = result.expect("received") else { panic!("no send") };
    assert_eq!(message.status.tag as usize, number);
    assert!(message.bytes == pattern(length_of(number), number), "of {number}");
    assert!(!std::mem::replace(&mut seen[number], true), "{number} twice");
}

async fn receives(all: &Communicator<Shm>, count: u32) -> RequestSet<Shm> {
    let mut set = all.request_set();
    for tag in 0..count {
        let number = set.push_recv(all.start_recv(0, tag)).expect("of this endpoint");
        assert_eq!(number, tag as usize);
    }
    set
}

fn send_all(host: &Host, all: &Communicator<Shm>, count: u32) {
    let (all, host, mut tags) = (all.clone(), host.clone(), Vec::from_iter(0..count));
    Rng::with_seed(7).shuffle(&mut tags);
    drop(host.clone().spawn(async move {
        for (at, tag) in tags.into_iter().enumerate() {
            let tag_bytes = pattern(length_of(tag as usize), tag as usize);
            all.send(1, tag, &tag_bytes).await.expect("sent");
            if at % 100 == 0 {
                host.wait(Duration::from_millis(1)).await;
            }
        }
    }));
}

/// Goal: each request of a set ends once, with its own message, by each of the six calls, and waits that are dropped lose nothing.
/// Method: receives whose messages come in random order, with pauses; one set for each call.
#[test]
fn sets_return_each_request_once() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        const COUNT: u32 = 300;
        for call in 0..6 {
            let mut set = receives(&ranks[1], COUNT).await;
            assert!(set.test_any().is_none() && set.test_some().is_empty());
            assert!(set.test_all().is_none());
            send_all(&host, &ranks[0], COUNT);
            let mut seen = vec![false; COUNT as usize];
            while !set.is_empty() {
                if let Some(all) = poll_and_drop(&host, 1, set.wait_all()).await {
                    all.into_iter().for_each(|one| check(one, &mut seen));
                }
                match call {
                    0 => set.wait_any().await.into_iter().for_each(|one| check(one, &mut seen)),
                    1 => set.wait_some().await.into_iter().for_each(|one| check(one, &mut seen)),
                    2 => {
                        let all = set.wait_all().await;
                        assert!(all.is_sorted_by_key(|(number, _)| *number));
                        all.into_iter().for_each(|one| check(one, &mut seen));
                    }
                    3 => set.test_any().into_iter().for_each(|one| check(one, &mut seen)),
                    4 => set.test_some().into_iter().for_each(|one| check(one, &mut seen)),
                    _ => set.test_all().into_iter().flatten().for_each(|one| check(one, &mut seen)),
                }
                host.pause().await;
            }
            assert!(seen.iter().all(|seen| *seen), "call {call}");
            assert!(set.wait_any().await.is_none() && set.wait_some().await.is_empty());
            assert_eq!(set.wait_all().await.len() + set.test_all().map_or(1, |all| all.len()), 0);
        }
    });
}

/// Goal: sends and receives mix in a set; what ends at once counts too; a set of another endpoint gives the request back; a rank that
/// fails ends what waits for it, and the rest goes on; a dropped set takes its receives back. Method: each of these.
#[test]
fn sets_of_all_kinds() {
    on_each_host(|host| async move {
        let mut endpoints = host.endpoints(3, EngineConfig::default()).await;
        let gone = endpoints.pop().expect("rank 2");
        let [one, other] = [0, 1].map(|rank: usize| endpoints[rank].communicator());
        let mut set = one.request_set();
        set.push_send(one.start_send(1, 1, SendMode::Synchronous, vec![1; 8]).expect("taken"))
            .expect("of this endpoint");
        set.push_send(one.start_send(1, 2, SendMode::Standard, vec![2; 8]).expect("taken"))
            .expect("of this endpoint");
        set.push_recv(one.start_recv(2, 3)).expect("of this endpoint");
        set.push_recv(one.start_recv(1, 4)).expect("of this endpoint");
        let foreign = set.push_recv(other.start_recv(0, 9)).expect_err("of another endpoint");
        drop(foreign);
        assert_eq!(set.len(), 4);
        let (number, ended) = set.wait_any().await.expect("some");
        assert!(number == 1 && matches!(ended, Ok(RequestOutcome::Sent)), "{number} {ended:?}");
        drop(gone);
        let (number, ended) = set.wait_any().await.expect("some");
        let failed = ended.expect_err("rank 2 has gone").failed_rank().map(|(rank, _)| rank);
        assert_eq!((number, failed), (2, Some(2)));
        assert_eq!(other.recv(0, 1).await.expect("received").bytes, [1; 8]);
        other.send(0, 4, b"last").await.expect("sent");
        let rest = set.wait_all().await;
        assert!(matches!(rest[..], [(0, Ok(RequestOutcome::Sent)), (3, Ok(_))]), "{rest:?}");

        let mut set = one.request_set();
        set.push_recv(one.start_recv(1, 5)).expect("of this endpoint");
        drop(set);
        other.send(0, 5, b"left").await.expect("sent");
        assert_eq!(one.recv(1, 5).await.expect("received").bytes, b"left");
    });
}

/// Goal: ranks that all send and receive at once do not wait for each other, whatever the length, and the received bytes replace the
/// sent ones. Method: a ring of three, with messages that need their receive.
#[test]
fn exchanges() {
    with_ranks(3, EngineConfig::default(), |host, ranks| async move {
        let tasks: Vec<_> = ranks
            .into_iter()
            .map(|all| {
                host.spawn(async move {
                    let (next, former) = ((all.rank() + 1) % 3, (all.rank() + 2) % 3);
                    for length in [0, 8, 5000, 1 << 20] {
                        let own = pattern(length, all.rank() as usize);
                        let expected = pattern(length, former as usize);
                        let message = all.send_recv((next, 1), &own, (former, 1)).await;
                        assert!(message.expect("exchanged").bytes == expected, "{length}");
                        let mut buffer = own;
                        let from = (SourceFilter::Any, TagFilter::Is(2));
                        let status = all.send_recv_replace((next, 2), &mut buffer, from).await;
                        assert_eq!(status.expect("exchanged").source, former);
                        assert!(buffer == expected, "{length}");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

/// Goal: a probed message can be received later, into memory that the caller gives, and beside others; a forgotten receive takes its
/// message from the others. Method: match a message, start its receive in a set, and see where its bytes are.
#[test]
fn probed_messages_are_started() {
    with_ranks(2, EngineConfig::default(), |_, ranks| async move {
        for length in [8, 5000, 300_000] {
            let sent = pattern(length, 1);
            let mut send =
                ranks[0].start_send(1, 1, SendMode::Standard, sent.clone()).expect("taken");
            let matched = ranks[1].matched_probe(0, 1).await.expect("it comes");
            let buffer: Vec<u8> = Vec::with_capacity(length);
            let place = buffer.as_ptr().addr();
            let mut set = ranks[1].request_set();
            set.push_recv(matched.start().with_buffer(buffer)).expect("of this endpoint");
            let ended = set.wait_any().await.expect("some").1.expect("received");
            let RequestOutcome::Received(message) = ended else { panic!("{ended:?}") };
            assert!(message.bytes == sent && message.bytes.as_ptr().addr() == place, "{length}");
            send.wait().await.expect("sent");
        }
        ranks[1].start_recv(0, 3).forget();
        for word in ["first", "second"] {
            ranks[0].send(1, 3, word.as_bytes()).await.expect("sent");
        }
        assert_eq!(ranks[1].recv(0, 3).await.expect("received").bytes, b"second");
    });
}

/// Goal: a communicator's own buffer holds what it was given, while the endpoint's is too small; it is empty when a flush ends.
/// Method: buffered sends to a rank that does not receive, then a flush beside its receives.
#[test]
fn communicators_have_buffers() {
    let config = EngineConfig::default().buffered_bytes_max(1000).unexpected_bytes_max(10_000);
    with_ranks(2, config, |host, ranks| async move {
        const COUNT: usize = 40;
        let all = &ranks[0];
        all.flush_buffer().await.expect("it has none");
        assert!(all.attach_buffer(4 << 20) && !all.attach_buffer(1));
        for number in 0..COUNT {
            all.send_buffered(1, 1, &pattern(60_000, number)).expect("there is room");
        }
        let receiver = ranks[1].clone();
        let received = host.spawn(async move {
            for number in 0..COUNT {
                let message = receiver.recv(0, 1).await.expect("received");
                assert!(message.bytes == pattern(60_000, number), "{number}");
            }
        });
        all.detach_buffer().await.expect("the server lives");
        received.await.expect("no panic");
        assert!(all.send_buffered(1, 1, &vec![0; 200_000]).is_err(), "only the endpoint's is left");
        assert!(all.attach_buffer(1), "another one can be attached");
    });
}

async fn duplicates(all: Communicator<Shm>, count: u32) {
    let mut kept = Vec::new();
    for number in 0..count {
        let other = all.duplicate_together().await.expect("a context comes back");
        if number % 1000 == 0 {
            // It uses the new one before the others may have it.
            let size = all.size();
            let (next, former) = ((all.rank() + 1) % size, (all.rank() + size - 1) % size);
            let word = number.to_le_bytes();
            let message = other.send_recv((next, 1), &word, (former, 1)).await;
            assert_eq!(message.expect("exchanged").bytes, word);
            kept.push(other);
            kept.drain(..kept.len().saturating_sub(3));
        }
    }
}

/// Goal: communicators of all ranks can come and go, and messages of one never reach another; unreceived ones are discarded. Method:
/// some duplicates on each host, with three ranks that keep some of them for a while, and messages that stay behind.
#[test]
fn duplicates_come_and_go() {
    with_ranks(3, EngineConfig::default(), |host, ranks| async move {
        let tasks: Vec<_> =
            ranks.iter().cloned().map(|all| host.spawn(duplicates(all, 3001))).collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        let tasks: Vec<_> = ranks
            .into_iter()
            .map(|all| {
                host.spawn(async move {
                    for _ in 0..100 {
                        let other = all.duplicate_together().await.expect("a context");
                        let next = (all.rank() + 1) % 3;
                        assert!(other.try_probe(SourceFilter::Any, TagFilter::Any).is_none());
                        let agreed = all.duplicate_together().await.expect("another context");
                        other.send(next, 1, b"stays behind").await.expect("sent");
                        agreed.send(next, 1, b"and is followed").await.expect("sent");
                        agreed.recv(SourceFilter::Any, 1).await.expect("received");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

/// Goal: more communicators can be made one after the other than there are contexts. Method: 100 000 duplicates of two ranks.
#[test]
fn a_hundred_thousand_duplicates() {
    on_each_host(|host| async move {
        if host.kind != Kind::UserLevel {
            return;
        }
        let endpoints = host.endpoints(2, EngineConfig::default()).await;
        let tasks: Vec<_> = endpoints
            .iter()
            .map(|endpoint| host.spawn(duplicates(endpoint.communicator(), DUPLICATES)))
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

/// Goal: if a rank fails, the others are told instead of waiting for it. Method: rank 2 of four, whose answer two ranks pass on, is
/// gone.
#[test]
fn a_failed_rank_ends_an_agreement() {
    on_each_host(|host| async move {
        let mut endpoints = host.endpoints(4, EngineConfig::default()).await;
        let gone = endpoints.remove(2);
        let tasks: Vec<_> = endpoints
            .iter()
            .map(|endpoint| {
                let all = endpoint.communicator();
                host.spawn(async move { all.duplicate_together().await })
            })
            .collect();
        drop(gone);
        for task in tasks {
            let error = task.await.expect("no panic").expect_err("rank 2 has gone");
            assert_eq!(error.failed_rank().map(|(rank, _)| rank), Some(2), "{error}");
        }
    });
}
