//! Many requests at once, and requests that are dropped.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use fastrand::Rng;
use vigie_runtime::yield_now;
use vigie_via::{
    message::{Communicator, Endpoint, MessageErrorKind},
    protocol::{EngineConfig, RequestError, SendMode},
    shm::Shm,
};

use super::hosts::{on_each_host, poll_and_drop, scarce, with_ranks};
use crate::pattern::pattern;

/// Goal: many tasks wait at one endpoint, and each gets its own message. Method: 1000 tasks receive one tag
/// each; the messages are sent in random order.
#[test]
fn a_thousand_receives() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        let mut tags: Vec<u32> = (0..1000).collect();
        let tasks: Vec<_> = tags
            .iter()
            .map(|&tag| {
                let all = ranks[1].clone();
                host.spawn(async move { all.recv(0, tag).await.expect("received").bytes })
            })
            .collect();
        Rng::with_seed(3).shuffle(&mut tags);
        for tag in tags {
            let length = if tag % 100 == 0 { 20_000 } else { 8 };
            ranks[0].send(1, tag, &pattern(length, tag as usize)).await.expect("sent");
        }
        for (tag, task) in tasks.into_iter().enumerate() {
            let bytes = task.await.expect("no panic");
            assert!(bytes == pattern(bytes.len(), tag), "tag {tag}");
        }
    });
}

/// An owner of bytes that tells when it is dropped; it gives fewer of them once that is asked for.
struct Watched {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
    shrinks: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        if self.shrinks.load(Ordering::Relaxed) { &self.bytes[..10] } else { &self.bytes }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// Goal: bytes that a request keeps are sent while only the receiver is polled, whatever their length and the mode, also if the request
/// is dropped; their owner is dropped once, when the request has ended. One that gives fewer bytes than before breaks the
/// connection. Method: owners that count; receives that come before and after the sends.
#[test]
fn kept_bytes_are_sent_by_themselves() {
    with_ranks(2, scarce(), |_, ranks| async move {
        let (drops, shrinks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let start = |tag, mode, length| {
            let (drops, shrinks) = (Arc::clone(&drops), Arc::clone(&shrinks));
            let owner = Watched { bytes: pattern(length, 3), drops, shrinks };
            ranks[0].start_send_kept(1, tag, mode, owner)
        };
        let mut ended = 0;
        for length in [0, 8, 600, 3000, 200_000] {
            for mode in [SendMode::Standard, SendMode::Synchronous, SendMode::Buffered] {
                for is_dropped in [false, true] {
                    let late = ranks[1].start_recv(0, 2);
                    let send = start(1, mode, length).expect("begins");
                    let other = start(2, mode, length).expect("begins");
                    let send = (!is_dropped).then_some(send);
                    for mut receive in [ranks[1].start_recv(0, 1), late] {
                        let bytes = receive.wait().await.expect("received").bytes;
                        assert!(bytes == pattern(length, 3), "{length} bytes, {mode:?}");
                    }
                    for mut send in send.into_iter().chain([other]) {
                        send.wait().await.expect("sent");
                    }
                    ended += 2;
                    while drops.load(Ordering::Relaxed) < ended {
                        yield_now().await;
                    }
                    assert_eq!(drops.load(Ordering::Relaxed), ended);
                }
            }
        }
        let mut send = start(1, SendMode::Standard, 200_000).expect("begins");
        shrinks.store(true, Ordering::Relaxed);
        let received = ranks[1].recv(0, 1).await;
        assert!(received.is_err() && send.wait().await.is_err(), "{received:?}");
        assert_eq!(drops.load(Ordering::Relaxed), ended + 1);
    });
}

/// Goal: receives may be dropped at any point: at most the message matched to them is lost, and the
/// remaining ones stay in order. Method: poll receives a few times and drop them while numbered messages
/// arrive; then check that the last one, received properly, is the last.
#[test]
fn dropped_receives() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        const COUNT: u32 = 300;
        let sender = {
            let all = ranks[0].clone();
            host.spawn(async move {
                for number in 0..COUNT {
                    let mut bytes = pattern(if number % 10 == 0 { 40_000 } else { 16 }, 0);
                    bytes[..4].copy_from_slice(&number.to_le_bytes());
                    all.send(1, 0, &bytes).await.expect("sent");
                }
                all.send(1, 1, b"end").await.expect("sent");
            })
        };
        let (all, mut last, mut polls) = (&ranks[1], None, 0);
        // Anything sent before the end has arrived when the end has.
        while all.try_probe(0, 1).is_none() || all.try_probe(0, 0).is_some() {
            polls = (polls + 1) % 4;
            let Some(message) = poll_and_drop(&host, polls, all.recv(0, 0)).await else {
                host.pause().await;
                continue;
            };
            let message = message.expect("received");
            let (number, rest) = message.bytes.split_first_chunk().expect("a number");
            let number = u32::from_le_bytes(*number);
            assert!(last.is_none_or(|last| number > last), "{number} after {last:?}");
            assert!(rest == &pattern(message.bytes.len(), 0)[4..], "of {number}");
            last = Some(number);
        }
        assert_eq!(all.recv(0, 1).await.expect("received").bytes, b"end");
        sender.await.expect("no panic");
        // Dropped requests do not get in the way of others.
        ranks[0].send(1, 0, b"after").await.expect("sent");
        assert_eq!(all.recv(0, 0).await.expect("received").bytes, b"after");
    });
}

/// Goal: a message in several frames that finds an immediate receive goes straight to it, but not past
/// receives that were posted before; what does not fit is truncated. Method: one receive posted, one
/// immediate receive with a buffer that is too short, and two long messages, in both orders of sending
/// and receiving.
#[test]
fn long_messages_keep_the_order_of_receives() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        const LENGTH: usize = 300_000;
        for polls_first in [true, false] {
            let mut posted = ranks[1].start_recv(0, 7);
            let sender = {
                let (all, host) = (ranks[0].clone(), host.clone());
                host.clone().spawn(async move {
                    if polls_first {
                        host.pause().await;
                    }
                    all.send(1, 7, &pattern(LENGTH, 1)).await.expect("sent");
                    all.send(1, 7, &pattern(LENGTH, 2)).await.expect("sent");
                })
            };
            let other = {
                let all = ranks[1].clone();
                host.spawn(async move {
                    let mut clipped = vec![0; 100_001];
                    let status = all.recv_into(0, 7, &mut clipped[..]).await.expect("received");
                    (status, clipped)
                })
            };
            let first = posted.wait().await.expect("received");
            assert!(first.bytes == pattern(LENGTH, 1), "the receive that was posted first");
            let (status, clipped) = other.await.expect("no panic");
            assert!(status.is_truncated() && status.length == LENGTH as u64, "{status:?}");
            assert!(clipped == pattern(LENGTH, 2)[..100_001], "the receive that polled");
            sender.await.expect("no panic");
        }
    });
}

/// Goal: sends may be dropped at any point: their message arrives whole, or its receiver is told that it
/// was given up, or it was never sent. Method: poll sends of all lengths a few times and drop them; the
/// receiver takes what it finds before the message after them.
#[test]
fn dropped_sends() {
    on_each_host(|host| async move {
        for config in [EngineConfig::default(), scarce()] {
            let endpoints = host.endpoints(2, config).await;
            let (a, b) = (endpoints[0].communicator(), endpoints[1].communicator());
            let receiver = host.spawn(async move { receive_until_told(&b).await });
            for round in 0..60usize {
                let length = [8, 2000, 30_000, 1 << 20][round % 4];
                let bytes = pattern(length, 1);
                let polls = round / 4;
                if round % 3 == 0 {
                    poll_and_drop(&host, polls, a.send_sync(1, 0, &bytes)).await;
                } else {
                    poll_and_drop(&host, polls, a.send(1, 0, &bytes)).await;
                }
            }
            a.send(1, 1, b"end").await.expect("sent");
            receiver.await.expect("no panic");
            for (rank, endpoint) in endpoints.iter().enumerate() {
                settled(&host, rank, endpoint).await;
            }
        }
    });
}

async fn receive_until_told(all: &Communicator<Shm>) {
    loop {
        let mut matched =
            all.matched_probe(0, vigie_via::message::TagFilter::Any).await.expect("probed");
        let status = matched.status();
        match matched.recv().await {
            Ok(message) if status.tag == 1 => {
                assert_eq!(message.bytes, b"end");
                return;
            }
            Ok(message) => {
                assert_eq!(message.bytes.len() as u64, status.length);
                assert!(message.bytes == pattern(message.bytes.len(), 1), "it came whole");
            }
            Err(error) => match error.kind() {
                MessageErrorKind::Request(RequestError::Aborted { rank: 0 }) => {}
                other => panic!("{other}"),
            },
        }
    }
}

/// Waits until nothing is kept of requests that have ended or were dropped.
async fn settled(host: &super::hosts::Host, rank: usize, endpoint: &Endpoint<Shm>) {
    for _ in 0..1000 {
        if endpoint.with(|engine| engine.kept()) == 0 {
            return;
        }
        host.wait(std::time::Duration::from_millis(1)).await;
    }
    panic!("rank {rank} keeps {}", endpoint.with(|engine| engine.kept()));
}

/// Goal: waiting for a send request can be abandoned and resumed; requests that are dropped continue.
/// Method: do so while the receiver is slow.
#[test]
fn send_requests_outlive_their_waits() {
    with_ranks(2, scarce(), |host, ranks| async move {
        for polls in 0..6 {
            let bytes = pattern(50_000, polls);
            let mut request =
                ranks[0].start_send(1, 0, SendMode::Synchronous, bytes.clone()).expect("begun");
            drop(ranks[0].start_send(1, 0, SendMode::Standard, b"next".to_vec()).expect("begun"));
            assert!(poll_and_drop(&host, polls, request.wait()).await.is_none(), "unmatched");
            assert!(!request.test().expect("no error"));
            let (sent, message) = tokio::join!(request.wait(), ranks[1].recv(0, 0));
            sent.expect("matched");
            assert!(message.expect("received").bytes == bytes);
            assert!(request.test().expect("no error"), "over");
            assert_eq!(ranks[1].recv(0, 0).await.expect("received").bytes, b"next");
        }
    });
}

/// Goal: waiting for a receive request can be abandoned and resumed without losing a byte of its
/// message; what does not fit is truncated as usual. Method: abandon after any number of polls while a
/// message in several frames arrives, and end in each of the ways; the last into a buffer shorter than
/// what had already arrived.
#[test]
fn receive_requests_outlive_their_waits() {
    with_ranks(2, scarce(), |host, ranks| async move {
        const LENGTH: usize = 60_000;
        for round in 0..48usize {
            let (polls, way) = (round / 4, round % 4);
            let mut request = ranks[1].start_recv(0, 0);
            assert!(poll_and_drop(&host, polls, request.wait()).await.is_none(), "unsent");
            assert_eq!(request.test().expect("no error"), None, "unsent");
            let bytes = pattern(LENGTH, round);
            let mut sending =
                ranks[0].start_send(1, 0, SendMode::Standard, bytes.clone()).expect("begun");
            let early = poll_and_drop(&host, polls, request.wait()).await;
            let early = early.map(|early| early.expect("received").bytes);
            let is_early = early.is_some();
            let found = match way {
                _ if is_early => early.unwrap_or_default(),
                0 => request.wait().await.expect("received").bytes,
                1 => loop {
                    if let Some(message) = request.test().expect("no error") {
                        break message.bytes;
                    }
                    host.pause().await;
                },
                2 => {
                    let mut whole = vec![0; LENGTH];
                    let given_up = request.wait_into(&mut whole[..]);
                    if poll_and_drop(&host, polls, given_up).await.is_none() {
                        request.wait_into(&mut whole[..]).await.expect("received");
                    }
                    whole
                }
                _ => {
                    let mut clipped = [0; 100];
                    let status = request.wait_into(&mut clipped[..]).await.expect("received");
                    assert!(status.is_truncated() && status.length == LENGTH as u64, "{status:?}");
                    assert_eq!(clipped, bytes[..100]);
                    bytes.clone()
                }
            };
            assert!(found == bytes, "round {round}");
            sending.wait().await.expect("sent");
            let again = request.wait().await.expect_err("it was handed out");
            let kind = again.kind();
            assert!(matches!(kind, MessageErrorKind::Request(RequestError::Unknown)), "{again}");
        }
    });
}

/// Goal: a loan whose send is abandoned is still sent, and nothing is kept of it. Method: loans that
/// cannot be written in place, abandoned after any number of polls, and received after that.
#[test]
fn dropped_loans() {
    on_each_host(|host| async move {
        const LENGTH: u32 = 700_000;
        let endpoints = host.endpoints(2, EngineConfig::default()).await;
        let (a, b) = (endpoints[0].communicator(), endpoints[1].communicator());
        for polls in 1..5 {
            let loan = a.loan(1, LENGTH).expect("a loan");
            let bytes = pattern(LENGTH as usize, polls);
            loan.write_at(0, &bytes).expect("inside");
            let given_up = poll_and_drop(&host, polls, a.send_loaned(loan, 0)).await;
            assert!(given_up.is_none(), "not yet received");
            assert!(b.recv(0, 0).await.expect("received").bytes == bytes, "it came whole");
        }
        for (rank, endpoint) in endpoints.iter().enumerate() {
            settled(&host, rank, endpoint).await;
        }
    });
}

/// Goal: tasks on any executor may hold these futures: they are `Send`. Method: ask the compiler.
#[test]
fn futures_are_send() {
    fn is_send<T: Send>(_: T) {}
    fn check(all: &Communicator<Shm>, nic: &vigie_via::Nic<Shm>, cq: vigie_via::vi::CqId) {
        is_send(all.send(0, 0, b""));
        is_send(all.send_sync(0, 0, b""));
        is_send(all.recv(0, 0));
        is_send(all.start_recv(0, 0).wait());
        is_send(all.probe(0, 0));
        is_send(all.matched_probe(0, 0));
        is_send(nic.next_completion(cq));
        is_send(nic.next_event());
    }
    // Only its type matters.
    let _: fn(&Communicator<Shm>, &vigie_via::Nic<Shm>, vigie_via::vi::CqId) = check;
}
