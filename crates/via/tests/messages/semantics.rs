//! The guarantees of messages, seen through the futures.

use std::io::IoSlice;

use tokio::join;
use vigie_via::{
    message::{Communicator, SourceFilter, TagFilter},
    protocol::{EngineConfig, Layout, SendMode},
    shm::Shm,
};

use super::hosts::{Ranks, scarce, with_ranks};
use crate::pattern::pattern;

const MODES: [SendMode; 4] =
    [SendMode::Standard, SendMode::Buffered, SendMode::Synchronous, SendMode::Ready];

fn two(ranks: Ranks) -> (Communicator<Shm>, Communicator<Shm>) {
    let mut ranks = ranks.into_iter();
    (ranks.next().expect("rank 0"), ranks.next().expect("rank 1"))
}

async fn send_in(all: &Communicator<Shm>, mode: SendMode, tag: u32, bytes: &[u8]) {
    let sent = match mode {
        SendMode::Standard => all.send(1, tag, bytes).await,
        SendMode::Buffered => all.send_buffered(1, tag, bytes),
        SendMode::Synchronous => all.send_sync(1, tag, bytes).await,
        SendMode::Ready => all.send_ready(1, tag, bytes).await,
    };
    sent.unwrap_or_else(|error| panic!("{mode:?}, {} bytes: {error}", bytes.len()));
}

/// Goal: every mode carries messages of every length, whole and in order. Method: send lengths around
/// the limits of frames and windows up to 1 MiB, with much credit and with little, while the other rank
/// receives.
#[test]
fn all_modes_carry_all_lengths() {
    for mut config in [EngineConfig::default(), scarce()] {
        // Enough for all of them at once.
        config = config.buffered_bytes_max(4 << 20);
        with_ranks(2, config, |_, ranks| async move {
            let (a, b) = two(ranks);
            let lengths = [0, 1, 7, 8, 40, 41, 63, 64, 1000, 1024, 4096, 70_000, 1 << 20];
            let send = async {
                for mode in MODES {
                    for (tag, length) in (0..).zip(lengths) {
                        send_in(&a, mode, tag, &pattern(length, length)).await;
                    }
                }
            };
            let receive = async {
                for mode in MODES {
                    for (tag, length) in (0..).zip(lengths) {
                        let message = b.recv(0, tag).await.expect("a message");
                        assert_eq!(message.status.source, 0);
                        assert_eq!(message.status.tag, tag);
                        assert_eq!(message.status.length, length as u64);
                        assert!(!message.status.is_truncated());
                        assert!(message.bytes == pattern(length, length), "{mode:?} {length}");
                    }
                }
            };
            join!(send, receive);
        });
    }
}

/// Goal: wildcards take messages in the order in which they were sent; tags and communicators keep
/// messages apart. Method: send to one rank from two others and from itself, and receive by each kind of
/// pattern.
#[test]
fn wildcards_tags_and_communicators() {
    with_ranks(3, EngineConfig::default(), |_, ranks| async move {
        let other: Vec<_> = ranks.iter().map(|all| all.duplicate().expect("a context")).collect();
        for (all, rank) in ranks.iter().zip(0u8..) {
            for round in 0..3 {
                all.send(0, round, &[rank, 10]).await.expect("sent");
            }
            other[usize::from(rank)].send(0, 0, &[rank, 20]).await.expect("sent");
        }
        let (all, other) = (&ranks[0], &other[0]);
        let by_tag = all.recv(2, 1).await.expect("a message");
        assert_eq!((by_tag.status.tag, by_tag.bytes), (1, vec![2, 10]));
        let mut tags_of_rank_2 = Vec::new();
        for _ in 0..2 {
            let message = all.recv(2, TagFilter::Any).await.expect("a message");
            tags_of_rank_2.push(message.status.tag);
        }
        assert_eq!(tags_of_rank_2, [0, 2], "in the order in which they were sent");
        let mut left = [Vec::new(), Vec::new()];
        for _ in 0..6 {
            let message = all.recv(SourceFilter::Any, TagFilter::Any).await.expect("a message");
            assert_eq!(message.bytes[1], 10, "of this communicator");
            left[message.status.source as usize].push(message.status.tag);
        }
        assert_eq!(left, [[0, 1, 2], [0, 1, 2]]);
        let mut senders = Vec::new();
        for _ in 0..3 {
            let message = other.recv(SourceFilter::Any, 0).await.expect("a message");
            assert_eq!(message.bytes[1], 20, "of the other communicator");
            senders.push(message.status.source);
        }
        senders.sort_unstable();
        assert_eq!(senders, [0, 1, 2]);
        assert_eq!(all.try_probe(SourceFilter::Any, TagFilter::Any), None, "nothing is left");
    });
}

/// Goal: probes find a message and leave it, matched probes make it unavailable to others; both wait for
/// it if necessary. Method: probe before and after messages were sent, and try to receive what was
/// taken.
#[test]
fn probes() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        let (a, b) = two(ranks);
        assert_eq!(b.try_probe(0, 5), None);
        assert!(b.try_matched_probe(0, 5).is_none());
        let waiting = {
            let b = b.clone();
            host.spawn(async move { b.probe(SourceFilter::Any, 5).await })
        };
        let matching = {
            let b = b.clone();
            host.spawn(async move { b.matched_probe(0, 6).await })
        };
        host.pause().await;
        a.send(1, 5, b"five").await.expect("sent");
        let long = pattern(100_000, 6);
        let taken = async {
            let mut matched = matching.await.expect("it ran").expect("matched");
            assert_eq!(matched.status().length, 100_000);
            assert!(matched.recv().await.expect("received").bytes == pattern(100_000, 6));
        };
        let (sent, ()) = join!(a.send(1, 6, &long), taken);
        sent.expect("sent");
        let status = waiting.await.expect("it ran").expect("probed");
        assert_eq!((status.source, status.tag, status.length), (0, 5, 4));
        let again = b.probe(0, TagFilter::Any).await.expect("still there");
        assert_eq!(again, status);
        let mut matched = b.matched_probe(0, 5).await.expect("taken");
        assert_eq!(matched.status(), status);
        assert_eq!(b.try_probe(0, 5), None, "invisible to others");
        a.send(1, 5, b"next").await.expect("sent");
        assert_eq!(b.recv(0, 5).await.expect("received").bytes, b"next");
        assert_eq!(matched.recv().await.expect("received").bytes, b"five");
    });
}

/// Goal: requests can be cancelled until they are matched. Method: cancel receives before and after
/// their message, and a synchronous send before and after it was received.
#[test]
fn cancelling() {
    with_ranks(2, EngineConfig::default(), |_, ranks| async move {
        let (a, b) = two(ranks);
        b.start_recv(0, 1).cancel().expect("nothing was matched");
        let request = b.start_recv(0, 1);
        a.send_sync(1, 1, b"one").await.expect("matched");
        let mut request = request.cancel().expect_err("too late");
        assert_eq!(request.wait().await.expect("the message").bytes, b"one");

        let send = a.start_send(1, 2, SendMode::Synchronous, b"two".to_vec()).expect("begun");
        assert!(send.cancel().await.expect("answered"), "not yet matched");
        a.send(1, 2, b"three").await.expect("sent");
        assert_eq!(b.recv(0, 2).await.expect("received").bytes, b"three", "not the other");

        let mut send = a.start_send(1, 3, SendMode::Synchronous, b"four".to_vec()).expect("begun");
        let (sent, received) = join!(send.wait(), b.recv(0, 3));
        sent.expect("matched");
        assert_eq!(received.expect("received").bytes, b"four");
        assert!(!send.cancel().await.expect("answered"), "it was delivered");
    });
}

/// Goal: persistent requests can be used again and again. Method: exchange numbers with them, started before
/// and after their counterparts.
#[test]
fn persistent_requests() {
    with_ranks(2, EngineConfig::default(), |_, ranks| async move {
        let (a, b) = two(ranks);
        let sender = a.persistent_send(1, 4, SendMode::Standard);
        let receiver = b.persistent_recv(0, 4);
        for round in 0..50u8 {
            let mut early = receiver.start();
            let mut sending = sender.start(vec![round, 1]).expect("begun");
            assert_eq!(early.wait().await.expect("received").bytes, [round, 1]);
            sending.wait().await.expect("sent");
            assert!(sending.test().expect("sent"), "again, without harm");
            sender.send(&[round, 2]).await.expect("sent");
            assert_eq!(receiver.start().wait().await.expect("received").bytes, [round, 2]);
        }
    });
}

/// Goal: a message that does not fit is truncated, which is reported; strided layouts are sent and
/// received as such. Method: receive into slices that are too short, and send every second block of a
/// buffer into every third of another, in one frame and in many.
#[test]
fn truncation_and_layouts() {
    with_ranks(2, EngineConfig::default(), |_, ranks| async move {
        let (a, b) = two(ranks);
        for length in [100, 300_000] {
            let bytes = pattern(length, 1);
            let mut short = vec![0; length / 2];
            let (sent, status) = join!(a.send(1, 1, &bytes), b.recv_into(0, 1, &mut short[..]));
            sent.expect("sent");
            let status = status.expect("received");
            assert!(status.is_truncated());
            assert_eq!(status.length, length as u64);
            assert!(short == bytes[..length / 2]);
        }
        for (count, block) in [(4, 3), (300, 1000)] {
            let from = Layout::strided(count, block, 2 * block);
            let to = Layout::strided(count, block, 3 * block);
            let source = pattern(count * block * 2, 2);
            let mut target = vec![0; count * block * 3];
            let slices: Vec<IoSlice<'_>> = from.slices(&source).expect("inside");
            let mut sink = to.sink(&mut target);
            let (sent, status) = join!(
                a.send_slices(1, 2, SendMode::Standard, &slices),
                b.recv_into(0, 2, &mut sink)
            );
            sent.expect("sent");
            assert_eq!(status.expect("received").length, (count * block) as u64);
            for index in 0..count {
                let there = &target[index * 3 * block..][..3 * block];
                assert!(there[..block] == source[index * 2 * block..][..block], "block {index}");
                assert!(there[block..].iter().all(|byte| *byte == 0), "beside block {index}");
            }
        }
    });
}

/// Goal: a rank can send to itself, before and after it receives, in all modes and lengths, even if
/// another task already waits. Method: do so.
#[test]
fn to_oneself() {
    with_ranks(2, EngineConfig::default(), |host, ranks| async move {
        let all = ranks[1].clone();
        for length in [0, 8, 5000, 1 << 20] {
            let bytes = pattern(length, 3);
            let (sent, message) = join!(all.send_sync(1, 1, &bytes), all.recv(1, 1));
            sent.expect("matched");
            assert!(message.expect("received").bytes == bytes);
            let waiting = {
                let all = all.clone();
                host.spawn(async move { all.recv(SourceFilter::Any, 2).await })
            };
            let probing = {
                let all = all.clone();
                host.spawn(async move { all.probe(1, 3).await })
            };
            // Both wait by now, and the host sleeps if it is a separate thread.
            host.wait(std::time::Duration::from_millis(2)).await;
            all.send_buffered(1, 2, &bytes[..length.min(1 << 16)]).expect("sent");
            let message = waiting.await.expect("it ran").expect("received");
            assert!(message.bytes == bytes[..length.min(1 << 16)]);
            let mut sending =
                all.start_send(1, 3, SendMode::Standard, bytes.clone()).expect("begun");
            let status = probing.await.expect("it ran").expect("probed");
            assert_eq!(status.length, length as u64);
            assert!(all.recv(1, 3).await.expect("received").bytes == bytes);
            sending.wait().await.expect("sent");
        }
    });
}

/// Goal: registered memory is sent, whole or in part. Method: send pieces of an allocated region.
#[test]
fn regions() {
    super::hosts::on_each_host(|host| async move {
        use vigie_via::vi::{MemoryAttributes, Provider};
        let endpoints = host.endpoints(2, EngineConfig::default()).await;
        let (a, b) = (endpoints[0].communicator(), endpoints[1].communicator());
        let bytes = pattern(1 << 20, 4);
        let region = endpoints[0].with(|engine| {
            let tag = engine.tag(1).expect("a rank");
            let attributes = MemoryAttributes { tag, allows_write: false, allows_read: true };
            engine.nic_mut().allocate(1 << 20, attributes).expect("memory")
        });
        region.memory.write(0, &bytes).expect("inside");
        for (offset, length) in [(0, 1 << 20), (4096, 100_000), (64, 8)] {
            let piece = (&region, offset as u64, length as u64);
            let mut sending = a.start_send_region(1, 1, SendMode::Standard, piece).expect("begun");
            let message = b.recv(0, 1).await.expect("received");
            assert!(message.bytes == bytes[offset..offset + length]);
            sending.wait().await.expect("read");
        }
        let beyond = a.start_send_region(1, 1, SendMode::Standard, (&region, 1, 1 << 20));
        assert!(beyond.is_err(), "beyond its end");
    });
}
