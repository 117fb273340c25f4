//! The guarantees of message passing: one test for each that implementations get wrong.

use std::{io::IoSlice, task::Poll};

use crate::cluster::{Cluster, bytes_of, from, scarce, small};
use vigie_via::{
    protocol::{
        CancelState, EngineConfig, Layout, Pattern, Payload, RequestError, SendError, SendMode,
        SendState, Sink,
    },
    sim::FaultPlan,
};

fn pair() -> Cluster {
    Cluster::new(1, FaultPlan::reliable(), 2, EngineConfig::default())
}

/// Goal: messages of all lengths around the limits of a frame and of the window arrive whole, through
/// areas of either size and buffers of either kind. Method: lengths around each limit, before and after
/// the receive is posted.
#[test]
fn lengths_around_every_limit() {
    // With the longest frame and the window of each configuration.
    for (config, attributes, frame, window) in [
        (
            EngineConfig::default(),
            vigie_via::vi::NicAttributes::named("sim"),
            (32 << 10) + 64,
            128 << 10,
        ),
        (small(), scarce(), 512, 2048),
    ] {
        let mut cluster = Cluster::with(1, FaultPlan::reliable(), 2, config, attributes);
        let limits = [0_usize, 1, 24, 48, 64, frame - 16, frame, 2 * frame, window, 3 * window + 5];
        let lengths = limits.iter().flat_map(|one| [one.saturating_sub(1), *one, one + 1]);
        for (number, length) in (0_u64..).zip(lengths) {
            let body = bytes_of(number, length);
            let tag = u32::try_from(number).expect("few");
            let posted =
                number.is_multiple_of(2).then(|| cluster.engine(1).post_receive(from(0, tag)));
            let state = cluster.send(0, 1, tag, SendMode::Standard, &body);
            let id = posted.unwrap_or_else(|| {
                cluster.settle();
                cluster.engine(1).post_receive(from(0, tag))
            });
            let (mut found, mut state) = (Vec::new(), Some(state));
            let status = loop {
                if let Some(SendState::Pending(one)) = state
                    && cluster.is_done(0, one, &body)
                {
                    state = None;
                }
                if let Poll::Ready(result) = cluster.engine(1).poll_receive(id, &mut found) {
                    break result.expect("received");
                }
                assert!(cluster.tick(), "{length} bytes hang");
            };
            assert_eq!((status.source, status.tag, status.is_truncated()), (0, tag, false));
            assert_eq!(status.length, body.len() as u64);
            assert!(found == body, "{length} bytes are not those that were sent");
            if let Some(state) = state {
                cluster.finish(0, state, &body).expect("sent");
            }
        }
        cluster.settle();
        assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0), "nothing leaks");
    }
}

/// Goal: credits return and the area wraps, indefinitely. Method: far more messages than descriptors,
/// entries and area, each answered.
#[test]
fn credits_and_wraps_for_ever() {
    let mut cluster = Cluster::with(1, FaultPlan::reliable(), 2, small(), scarce());
    for number in 0..3000_u64 {
        let body = bytes_of(number, usize::try_from(number % 400).expect("small"));
        for (from_rank, to) in [(0, 1), (1, 0)] {
            let state = cluster.send(from_rank, to, 7, SendMode::Standard, &body);
            let (_, found) = cluster.receive(to, from(from_rank, 7));
            assert!(found == body, "message {number}");
            cluster.finish(from_rank, state, &body).expect("sent");
        }
    }
}

/// Goal: a message never overtakes one sent before it, whatever the modes and protocols. Method: a large
/// message, followed by small ones of all modes, received with wildcards in order.
#[test]
fn messages_do_not_overtake() {
    let mut cluster = pair();
    let large = bytes_of(1, 500_000);
    let modes = [SendMode::Standard, SendMode::Buffered, SendMode::Synchronous, SendMode::Ready];
    let first = cluster.send(0, 1, 5, SendMode::Standard, &large);
    let mut states = Vec::new();
    for (number, mode) in (0_u8..).zip(modes) {
        states.push((cluster.send(0, 1, 5, mode, &[number]), [number]));
    }
    cluster.settle();
    let id = cluster.engine(1).post_receive(from(None, 5));
    let mut behind = Vec::new();
    for _ in modes {
        behind.push(cluster.engine(1).post_receive(from(0, None)));
    }
    let SendState::Pending(sending) = first else { panic!("a large message takes its time") };
    let (mut found, mut is_sent) = (Vec::new(), false);
    loop {
        if let Poll::Ready(result) = cluster.engine(1).poll_receive(id, &mut found) {
            assert_eq!(result.expect("received").length, 500_000);
            break;
        }
        is_sent = is_sent || cluster.is_done(0, sending, &large);
        assert!(cluster.tick(), "hangs");
    }
    assert!(found == large, "the large message is whole");
    for (number, id) in (0_u8..).zip(behind) {
        let mut found = [255];
        cluster.receive_into(1, id, &mut found[..]).expect("received");
        assert_eq!(found, [number]);
    }
    for (state, body) in states {
        cluster.finish(0, state, &body).expect("sent");
    }
}

/// Goal: of several receives that fit, the one posted first gets the message, across exact ones and
/// wildcards. Method: four patterns in two orders.
#[test]
fn the_earliest_posted_receive_matches() {
    let patterns = [from(0, 3), from(None, 3), from(0, None), from(None, None)];
    for shift in 0..4 {
        let mut cluster = pair();
        let mut order = patterns;
        order.rotate_left(shift);
        let ids = order.map(|pattern| cluster.engine(1).post_receive(pattern));
        for number in 0..4 {
            let state = cluster.send(0, 1, 3, SendMode::Standard, &[number]);
            assert_eq!(state, SendState::Done);
        }
        cluster.settle();
        for (number, id) in (0..).zip(ids) {
            let mut found = [255];
            cluster.receive_into(1, id, &mut found[..]).expect("received");
            assert_eq!(found, [number], "order {shift}");
        }
    }
}

/// Goal: if several messages wait, a receive gets the one that arrived first. Method: messages of two
/// tags, taken by tag and by wildcard in turn.
#[test]
fn the_earliest_arrived_message_matches() {
    let mut cluster = pair();
    for (number, tag) in (0..).zip([1, 2, 1, 2, 1]) {
        assert_eq!(cluster.send(0, 1, tag, SendMode::Standard, &[number]), SendState::Done);
    }
    cluster.settle();
    for (pattern, expected) in [
        (from(0, 2), 1),
        (from(None, None), 0),
        (from(0, None), 2),
        (from(None, 1), 4),
        (from(0, 2), 3),
    ] {
        assert_eq!(cluster.receive(1, pattern).1, [expected]);
    }
}

/// Goal: contexts are separate. Method: the same source and tag in two contexts, taken in the other order.
#[test]
fn contexts_do_not_mix() {
    let mut cluster = pair();
    for context in [1, 2] {
        let body = [u8::try_from(context).expect("small")];
        let sent = cluster.engine(0).send(
            1,
            context,
            9,
            SendMode::Standard,
            Payload::Owned(body.to_vec()),
        );
        assert_eq!(sent, Ok(SendState::Done));
    }
    for context in [2, 1] {
        let (status, found) = cluster.receive(1, Pattern { context, source: None, tag: None });
        assert_eq!((status.tag, found), (9, vec![u8::try_from(context).expect("small")]));
    }
}

/// Goal: a probed message is the one that the next receive gets, and a matched probe makes it
/// unavailable to others. Method: probe twice, take it by matched probe, receive the next by wildcard,
/// then the first.
#[test]
fn a_probe_and_a_matched_probe() {
    let mut cluster = pair();
    assert_eq!(cluster.engine(1).probe(from(None, None)), None);
    for (number, tag) in [(0, 4), (1, 5)] {
        assert_eq!(cluster.send(0, 1, tag, SendMode::Standard, &[number; 3]), SendState::Done);
    }
    cluster.settle();
    for _ in 0..2 {
        let status = cluster.engine(1).probe(from(None, None)).expect("there");
        assert_eq!((status.source, status.tag, status.length), (0, 4, 3));
    }
    let (id, status) = cluster.engine(1).matched_probe(from(0, None)).expect("there");
    assert_eq!(status.tag, 4);
    assert_eq!(cluster.receive(1, from(None, None)).1, [1; 3], "the next, not the probed one");
    assert!(cluster.engine(1).probe(from(None, None)).is_none());
    let mut found = [9; 3];
    cluster.receive_into(1, id, &mut found[..]).expect("received");
    assert_eq!(found, [0; 3]);
}

/// Goal: a message that is too long is truncated, at the receiver only, and the next one is whole.
/// Method: short and long messages into short buffers, by each way to receive.
#[test]
fn truncation_is_the_receivers_alone() {
    for length in [100, 40_000, 400_000_usize] {
        let mut cluster = pair();
        let body = bytes_of(3, length);
        let id = cluster.engine(1).post_receive(from(0, 1));
        let state = cluster.send(0, 1, 1, SendMode::Standard, &body);
        let mut found = [0; 10];
        let status = loop {
            if let Poll::Ready(result) = cluster.engine(1).poll_receive(id, &mut found[..]) {
                break result.expect("received");
            }
            if let SendState::Pending(sending) = state {
                let _ = cluster.engine(0).poll_send(sending, Some(&[IoSlice::new(&body)]));
            }
            assert!(cluster.tick(), "hangs");
        };
        assert_eq!((status.length, status.is_truncated()), (length as u64, true));
        assert_eq!(found, body[..10]);
        let _ = cluster.send(0, 1, 1, SendMode::Standard, &[1, 2, 3]);
        assert_eq!(cluster.receive(1, from(0, 1)).1, [1, 2, 3], "the stream is intact");
    }
}

/// Goal: an empty message matches and, in synchronous mode, synchronises. Method: one of each.
#[test]
fn empty_messages_match_and_synchronise() {
    let mut cluster = pair();
    assert_eq!(cluster.send(0, 1, 1, SendMode::Standard, &[]), SendState::Done);
    let SendState::Pending(id) = cluster.send(0, 1, 2, SendMode::Synchronous, &[]) else {
        panic!("not yet matched")
    };
    cluster.settle();
    assert!(!cluster.is_done(0, id, &[]), "arrived, not matched");
    assert_eq!(cluster.receive(1, from(0, 2)).0.length, 0);
    cluster.settle();
    assert!(cluster.is_done(0, id, &[]), "matched");
    assert_eq!(cluster.receive(1, from(0, 1)).0.length, 0);
}

/// Goal: synchronous mode completes at the match, not at the arrival; for short and long messages, to
/// others and to oneself. Method: let it arrive, check, match, check.
#[test]
fn synchronous_mode_completes_at_the_match() {
    for (to, length) in [(1, 8), (1, 100_000), (0, 8), (0, 100_000)] {
        let mut cluster = pair();
        let body = bytes_of(2, length);
        let SendState::Pending(id) = cluster.send(0, to, 2, SendMode::Synchronous, &body) else {
            panic!("not yet matched")
        };
        for _ in 0..5 {
            assert!(!cluster.is_done(0, id, &body), "{length} bytes to {to}: not matched");
            cluster.settle();
        }
        let receive = cluster.engine(to).post_receive(from(0, 2));
        let mut found = vec![0; length];
        let mut is_received = false;
        let mut is_sent = false;
        while !(is_received && is_sent) {
            is_received =
                is_received || cluster.engine(to).poll_receive(receive, &mut found[..]).is_ready();
            is_sent = is_sent || cluster.is_done(0, id, &body);
            assert!(cluster.tick() || (is_received && is_sent), "hangs");
        }
        assert!(found == body, "{length} bytes to {to}");
    }
}

/// Goal: buffered mode completes at once, with bounded memory, even if the peer receives nothing.
/// Method: a peer without credit; fill the buffer to the last byte, and one more; then let it drain.
#[test]
fn buffered_mode_completes_locally_within_its_buffer() {
    let config = small().buffered_bytes_max(10_000);
    let mut cluster = Cluster::new(1, FaultPlan::reliable(), 2, config);
    let body = bytes_of(1, 400);
    let mut count = 0;
    let error = loop {
        let payload = [IoSlice::new(&body)];
        match cluster.engine(0).send(1, 0, count, SendMode::Buffered, Payload::Borrowed(&payload)) {
            Ok(state) => assert_eq!(state, SendState::Done),
            Err(error) => break error,
        }
        count += 1;
    };
    assert_eq!(error, SendError::BufferFull { needed: 400, free: 0 });
    assert!(count > 25, "the area took some: {count}");
    for tag in 0..count {
        assert!(cluster.receive(1, from(0, tag)).1 == body, "message {tag}");
    }
    cluster.settle();
    assert_eq!(cluster.send(0, 1, 0, SendMode::Buffered, &bytes_of(1, 10_000)), SendState::Done);
    assert_eq!(cluster.receive(1, from(0, 0)).1.len(), 10_000);
}

/// Goal: a receive that is cancelled is either cancelled or received, never both. Method: before and
/// after the match.
#[test]
fn a_receive_is_cancelled_or_received() {
    let mut cluster = pair();
    let id = cluster.engine(1).post_receive(from(0, 1));
    assert_eq!(cluster.engine(1).cancel_receive(id), CancelState::Cancelled);
    assert_eq!(cluster.send(0, 1, 1, SendMode::Standard, &[5]), SendState::Done);
    cluster.settle();
    let polled = cluster.engine(1).poll_receive(id, &mut [0; 1][..]);
    assert_eq!(polled, Poll::Ready(Err(RequestError::Unknown)));
    let id = cluster.engine(1).post_receive(from(0, 1));
    assert_eq!(cluster.engine(1).cancel_receive(id), CancelState::TooLate);
    let mut found = [0];
    cluster.receive_into(1, id, &mut found[..]).expect("received");
    assert_eq!(found, [5], "the message was not lost");
}

/// Goal: cancelling a send takes a round trip, after which the message is delivered or cancelled, never both
/// and never neither. Method: short and long messages, cancelled before and after the match.
#[test]
fn a_send_is_cancelled_or_delivered() {
    for length in [8, 300_000] {
        for is_matched in [false, true] {
            let mut cluster = pair();
            let body = bytes_of(4, length);
            let SendState::Pending(id) = cluster.send(0, 1, 1, SendMode::Synchronous, &body) else {
                panic!("not yet matched")
            };
            let receive = is_matched.then(|| {
                cluster.settle();
                cluster.engine(1).post_receive(from(0, 1))
            });
            assert_eq!(cluster.engine(0).cancel_send(id), CancelState::Asked);
            let mut found = Vec::new();
            let mut received = None;
            let sent = loop {
                if let Some(receive) = receive
                    && received.is_none()
                    && let Poll::Ready(result) = cluster.engine(1).poll_receive(receive, &mut found)
                {
                    received = Some(result);
                }
                let polled = cluster.engine(0).poll_send(id, Some(&[IoSlice::new(&body)]));
                if let Poll::Ready(result) = polled
                    && (receive.is_none() || received.is_some())
                {
                    break result;
                }
                if let Poll::Ready(result) = polled {
                    let receive = receive.expect("just polled");
                    received = Some(cluster.receive_into(1, receive, &mut found));
                    break result;
                }
                assert!(cluster.tick(), "hangs");
            };
            if is_matched {
                assert_eq!(
                    (sent, received.map(|one| one.map(|s| s.length))),
                    (Ok(()), Some(Ok(length as u64)))
                );
                assert!(found == body, "whole");
            } else {
                assert_eq!(sent, Err(RequestError::Cancelled));
                cluster.settle();
                assert_eq!(cluster.engine(1).probe(from(None, None)), None, "never seen");
                let _ = cluster.send(0, 1, 1, SendMode::Standard, &[1]);
                assert_eq!(cluster.receive(1, from(None, None)).1, [1], "the stream is intact");
            }
            cluster.settle();
            assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
        }
    }
}

/// Goal: two ranks that send each other large messages before they receive do not block each other.
/// Method: both in synchronous mode, with scarce resources; then the receives.
#[test]
fn rendezvous_head_to_head() {
    let mut cluster = Cluster::with(1, FaultPlan::reliable(), 2, small(), scarce());
    let body = bytes_of(5, 200_000);
    let ids =
        [0, 1].map(|rank| match cluster.send(rank, 1 - rank, 1, SendMode::Synchronous, &body) {
            SendState::Pending(id) => id,
            SendState::Done => panic!("too large"),
        });
    cluster.settle();
    let receives = [0, 1].map(|rank| cluster.engine(rank).post_receive(from(1 - rank, 1)));
    let mut found = [Vec::new(), Vec::new()];
    let mut open = 4;
    let (mut sent, mut received) = ([false; 2], [false; 2]);
    while open > 0 {
        for rank in 0..2 {
            let number = rank as usize;
            if !sent[number] && cluster.is_done(rank, ids[number], &body) {
                sent[number] = true;
                open -= 1;
            }
            let polled = cluster.engine(rank).poll_receive(receives[number], &mut found[number]);
            if !received[number] && polled.is_ready() {
                received[number] = true;
                open -= 1;
            }
        }
        assert!(cluster.tick() || open == 0, "hangs");
    }
    assert!(found.iter().all(|one| *one == body));
}

/// Goal: the bytes of a flood that is not received are bounded at the receiver and, of sends that are done, at the
/// sender; it delays no other message, in either direction, and is delivered in the end. Method: more messages than
/// both hold; meanwhile a rendezvous the other way, and a message that is received at once, in another context too.
#[test]
fn unexpected_floods_hold_no_other_message_up() {
    let config = small().held_bytes_max(30_000);
    let mut cluster = Cluster::with(1, FaultPlan::reliable(), 2, config, scarce());
    let body = bytes_of(6, 300);
    let mut pending = Vec::new();
    for tag in 0..500 {
        if let SendState::Pending(id) = cluster.send(0, 1, tag, SendMode::Standard, &body) {
            pending.push(id);
        }
        cluster.settle();
    }
    // A message costs its bytes and some 200 more at the receiver; then 100 of 300 bytes are kept here.
    assert!((370..390).contains(&pending.len()), "{} wait at the sender", pending.len());
    assert!(cluster.engine(1).counters().pauses > 0);
    assert!(!cluster.engine(0).has_all_left(), "a program would have to wait");
    for context in 0..2 {
        let body = [IoSlice::new(b"passes")];
        let engine = cluster.engine(0);
        let state = engine.send(1, context, 999, SendMode::Standard, Payload::Borrowed(&body));
        let pattern = Pattern { context, source: None, tag: Some(999) };
        assert_eq!(cluster.receive(1, pattern).1, b"passes");
        cluster.finish(0, state.expect("the send begins"), b"passes").expect("sent");
    }
    let large = bytes_of(7, 50_000);
    let state = cluster.send(1, 0, 9, SendMode::Synchronous, &large);
    let id = cluster.engine(0).post_receive(from(1, 9));
    let mut found = Vec::new();
    let SendState::Pending(sending) = state else { panic!("not yet matched") };
    let mut is_sent = false;
    while cluster.engine(0).poll_receive(id, &mut found).is_pending() || !is_sent {
        is_sent = is_sent || cluster.is_done(1, sending, &large);
        assert!(cluster.tick() || found.len() == large.len(), "the flood holds others up");
    }
    assert!(found == large);
    for tag in 0..500 {
        assert!(cluster.receive(1, from(0, tag)).1 == body, "message {tag}");
    }
    for id in pending {
        assert!(cluster.is_done(0, id, &body));
    }
    cluster.settle();
    assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0), "nothing leaks");
}

/// Goal: the announced messages of a peer are bounded: the send beyond fails, says so, and works again when some were
/// received. What is announced waits for its turn, is found by all kinds of receives, and can be taken back. Method: a
/// bound of ten, to the message, of all modes, and of no bytes.
#[test]
fn announced_messages_are_bounded() {
    let config = small().unexpected_bytes_max(0).announced_messages_max(10);
    let mut cluster = Cluster::with(1, FaultPlan::reliable(), 2, config, scarce());
    cluster.finish(0, SendState::Done, b"").expect("nothing");
    let first = cluster.send(0, 1, 100, SendMode::Standard, b"it pauses");
    assert_eq!(first, SendState::Done);
    cluster.settle();
    let (long, modes) = (
        bytes_of(1, 9000),
        [
            SendMode::Standard,
            SendMode::Buffered,
            SendMode::Ready,
            SendMode::Synchronous,
            SendMode::Synchronous,
        ],
    );
    let bodies: [&[u8]; 5] = [b"", b"buffered", b"ready", b"synchronous", b""];
    let mut sent = Vec::new();
    for (tag, (mode, body)) in (0..).zip(modes.into_iter().zip(bodies)) {
        sent.push((cluster.send(0, 1, tag, mode, body), body));
        let is_done = matches!(sent[sent.len() - 1].0, SendState::Done);
        assert_eq!(is_done, mode != SendMode::Synchronous, "{mode:?}");
    }
    for tag in 5..10 {
        sent.push((cluster.send(0, 1, tag, SendMode::Standard, &long), &long));
    }
    let refused = cluster.engine(0).send(1, 0, 10, SendMode::Standard, Payload::Borrowed(&[]));
    assert_eq!(refused, Err(SendError::TooManyUnmatched { rank: 1, max: 10 }));
    cluster.settle();

    assert_eq!(cluster.engine(1).probe(from(0, 9)).map(|status| status.length), Some(9000));
    let SendState::Pending(last) = sent[9].0 else { panic!("nothing can have been sent") };
    assert_eq!(cluster.engine(0).cancel_send(last), CancelState::Asked);
    cluster.settle();
    let ended = cluster.engine(0).poll_send(last, None);
    assert_eq!(ended, Poll::Ready(Err(RequestError::Cancelled)));
    assert_eq!(cluster.engine(1).probe(from(0, 9)), None);
    let again = cluster.send(0, 1, 10, SendMode::Standard, b"again");
    assert_eq!(again, SendState::Done);

    let mut found = Vec::new();
    while cluster.engine(1).try_recv(from(0, 2), &mut found).is_none() {
        assert!(cluster.tick(), "what is only announced is asked for");
    }
    assert_eq!(found, b"ready");
    for (tag, (state, body)) in (0..9).zip(sent).filter(|(tag, _)| *tag != 2) {
        let id = cluster.engine(1).post_receive(from(0, tag));
        cluster.finish(0, state, body).expect("sent");
        let mut found = Vec::new();
        cluster.receive_into(1, id, &mut found).expect("received");
        assert!(found == body, "message {tag}");
    }
    for (tag, body) in [(10, &b"again"[..]), (100, b"it pauses")] {
        assert_eq!(cluster.receive(1, from(0, tag)).1, body);
    }
    cluster.settle();
    assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0), "nothing leaks");
    assert!(cluster.engine(0).has_all_left());
    assert!(matches!(cluster.send(0, 1, 0, SendMode::Standard, b"short"), SendState::Done));
}

/// Goal: what a receive takes of its message is all that is kept of it while it is not polled. Method: a long message
/// to a short buffer, with mapped memory and without.
#[test]
fn what_a_receive_does_not_take_is_not_kept() {
    for has_window in [false, true] {
        let mut attributes = vigie_via::vi::NicAttributes::named("sim");
        attributes.has_window = has_window;
        let config = small();
        let mut cluster = Cluster::with(1, FaultPlan::reliable(), 2, config, attributes);
        let body = bytes_of(4, 50_000);
        let id = cluster.engine(1).post_receive(from(0, 1));
        let memory = cluster.engine(0).buffer(body.len()).expect("memory");
        memory.write(0, &body).expect("inside");
        let payload = Payload::Memory { memory, offset: 0, length: 50_000 };
        let state = cluster.engine(0).send(1, 0, 1, SendMode::Standard, payload).expect("begins");
        let mut found = [0; 700];
        cluster.finish(0, state, &[]).expect("the receive need not be polled");
        let status = cluster.receive_into(1, id, &mut found[..]).expect("received");
        assert!(status.is_truncated() && found[..] == body[..700], "{has_window}");
        assert_eq!(status.length, 50_000);
    }
}

/// Goal: the same guarantees hold for a rank that sends to itself. Method: short, long, matched before
/// and after, by wildcard.
#[test]
fn a_rank_sends_to_itself() {
    let mut cluster = Cluster::new(1, FaultPlan::reliable(), 1, small());
    for (number, length) in (0..).zip([0, 1, 400, 600, 30_000]) {
        let body = bytes_of(number, length);
        let early = number.is_multiple_of(2).then(|| cluster.engine(0).post_receive(from(None, 3)));
        let state = cluster.send(0, 0, 3, SendMode::Standard, &body);
        let id = early.unwrap_or_else(|| cluster.engine(0).post_receive(from(0, None)));
        let mut found = Vec::new();
        loop {
            if let SendState::Pending(sending) = state {
                let _ = cluster.engine(0).poll_send(sending, Some(&[IoSlice::new(&body)]));
            }
            if cluster.engine(0).poll_receive(id, &mut found).is_ready() {
                break;
            }
        }
        assert!(found == body, "{length} bytes");
    }
}

/// Goal: vectored and strided layouts on both sides make one message. Method: columns of a matrix, sent
/// in pieces of one length and received in pieces of another, through frames that cut both.
#[test]
fn vectored_and_strided_layouts() {
    let mut cluster = Cluster::with(1, FaultPlan::reliable(), 2, small(), scarce());
    let matrix = bytes_of(8, 30_000);
    let columns = Layout::strided(300, 7, 100);
    let slices = columns.slices(&matrix).expect("inside");
    let sent = cluster.engine(0).send(1, 0, 1, SendMode::Standard, Payload::Borrowed(&slices));
    let Ok(SendState::Pending(sending)) = sent else { panic!("too long for one frame: {sent:?}") };
    let rows = Layout::strided(140, 15, 16);
    let mut target = vec![0; 140 * 16];
    let id = cluster.engine(1).post_receive(from(0, 1));
    let mut is_sent = false;
    while cluster.engine(1).poll_receive(id, &mut rows.sink(&mut target)).is_pending() {
        is_sent = is_sent || cluster.engine(0).poll_send(sending, Some(&slices)).is_ready();
        assert!(cluster.tick(), "hangs");
    }
    let gather = |layout: &Layout, buffer: &[u8]| -> Vec<u8> {
        layout.slices(buffer).expect("inside").iter().flat_map(|one| one.to_vec()).collect()
    };
    assert!(gather(&rows, &target) == gather(&columns, &matrix));
    assert!(target.chunks(16).all(|row| row[15] == 0), "nothing between the pieces");
}

/// A sink that keeps a sum of a message, and none of its bytes.
struct Sum {
    scratch: Vec<u8>,
    from: u64,
    checked: u64,
}

impl Sink for Sum {
    fn chunk_mut_at(&mut self, offset: u64, length: usize) -> &mut [u8] {
        self.checked += u64::from(offset == self.from);
        self.from = offset + length as u64;
        &mut self.scratch[..length]
    }
}

/// Goal: lengths above 4 GiB work. Method: one buffer many times, into a sink that keeps nothing.
#[test]
fn more_than_four_gibibytes() {
    let config =
        EngineConfig::default().area_bytes(16 << 20).frame_bytes_max(4 << 20).window_bytes(8 << 20);
    let mut cluster = Cluster::new(1, FaultPlan::reliable(), 2, config);
    let buffer = vec![7; 1 << 26];
    let slices = vec![IoSlice::new(&buffer); 65];
    let total = 65 * (1_u64 << 26);
    assert!(total > 1 << 32);
    let sent = cluster.engine(0).send(1, 0, 1, SendMode::Standard, Payload::Borrowed(&slices));
    let Ok(SendState::Pending(sending)) = sent else { panic!("{sent:?}") };
    let id = cluster.engine(1).post_receive(from(0, 1));
    let mut sum = Sum { scratch: vec![0; 4 << 20], from: 0, checked: 0 };
    let status = loop {
        if let Poll::Ready(result) = cluster.engine(1).poll_receive(id, &mut sum) {
            break result.expect("received");
        }
        let _ = cluster.engine(0).poll_send(sending, Some(&slices));
        assert!(cluster.tick(), "hangs");
    };
    assert_eq!((status.length, sum.from, status.is_truncated()), (total, total, false));
    assert!(sum.checked > 1000);
}

/// Goal: finishing a program loses nothing that was sent. Method: owned and buffered sends without
/// credit, whose owners have dropped them, arrive as the peer receives.
#[test]
fn dropped_owners_lose_nothing_that_the_engine_has() {
    let mut cluster = Cluster::with(1, FaultPlan::reliable(), 2, small(), scarce());
    let body = bytes_of(9, 20_000);
    for tag in 0..5 {
        let sent =
            cluster.engine(0).send(1, 0, tag, SendMode::Standard, Payload::Owned(body.clone()));
        if let Ok(SendState::Pending(id)) = sent {
            cluster.engine(0).drop_send(id);
        }
    }
    assert!(!cluster.engine(0).has_all_left(), "a program would have to wait");
    for tag in (0..5).rev() {
        assert!(cluster.receive(1, from(0, tag)).1 == body);
    }
    cluster.settle();
    assert!(cluster.engine(0).has_all_left());
    assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
}

/// Goal: if a sender gives up in the middle of a message, the receiver is told, and later messages
/// arrive. Method: drop a large borrowed send after its beginning.
#[test]
fn a_sender_that_gives_up_is_named() {
    let mut cluster = pair();
    let body = bytes_of(9, 1_000_000);
    let id = cluster.engine(1).post_receive(from(0, 1));
    let SendState::Pending(sending) = cluster.send(0, 1, 1, SendMode::Standard, &body) else {
        panic!("too large")
    };
    cluster.engine(0).drop_send(sending);
    let _ = cluster.send(0, 1, 2, SendMode::Standard, &[3]);
    let mut found = Vec::new();
    assert_eq!(cluster.receive_into(1, id, &mut found), Err(RequestError::Aborted { rank: 0 }));
    assert_eq!(cluster.receive(1, from(0, 2)).1, [3]);
    cluster.settle();
    assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
}

/// Goal: a receiver that gives up in the middle blocks no other. Method: drop a large receive half-way.
#[test]
fn a_receiver_that_gives_up_blocks_nobody() {
    let mut cluster = pair();
    let body = bytes_of(9, 1_000_000);
    let id = cluster.engine(1).post_receive(from(0, 1));
    let state = cluster.send(0, 1, 1, SendMode::Standard, &body);
    cluster.settle();
    assert!(cluster.engine(1).poll_receive(id, &mut Vec::new()).is_pending());
    cluster.engine(1).drop_receive(id);
    cluster.finish(0, state, &body).expect("sent, and thrown away");
    cluster.settle();
    assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
}

/// Goal: an immediate receive gets the first message that fits, whatever arrived before it; a message in
/// several frames is not yet available, and neither is one behind it. Method: messages of several tags,
/// of which the first is long.
#[test]
fn what_is_received_at_once_is_the_first_that_fits() {
    let mut cluster = pair();
    let large = bytes_of(1, 100_000);
    let owned = Payload::Owned(large.clone());
    assert!(cluster.engine(0).send(1, 0, 1, SendMode::Standard, owned).is_ok());
    for tag in [1, 2, 3, 4] {
        let sent =
            cluster.send(0, 1, tag, SendMode::Standard, &[u8::try_from(tag).expect("small")]);
        assert_eq!(sent, SendState::Done);
    }
    while cluster.network.step() {}
    let mut found = Vec::new();
    for _ in 0..2 {
        assert_eq!(cluster.engine(1).try_recv(from(0, 1), &mut found), None);
        assert!(found.is_empty());
    }
    // Three arrived before it, two of which no call has asked for.
    assert!(cluster.engine(1).try_recv(from(0, 4), &mut found).is_some());
    assert_eq!(found, [4]);
    for tag in [2, 3] {
        assert_eq!(cluster.receive(1, from(None, tag)).0.length, 1);
    }
    assert!(cluster.receive(1, from(0, 1)).1 == large);
    assert_eq!(cluster.receive(1, from(0, 1)).1, [1]);
    cluster.settle();
    assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
}

/// Goal: the sender of a synchronous message that has waited is told of its match, whichever way it is
/// received. Method: one received at once, one probed, one with a posted receive.
#[test]
fn a_match_of_a_waiting_message_is_told() {
    for way in 0..3 {
        let mut cluster = pair();
        let SendState::Pending(id) = cluster.send(0, 1, 2, SendMode::Synchronous, &[1, 2]) else {
            panic!("not yet matched")
        };
        assert_eq!(cluster.send(0, 1, 2, SendMode::Standard, &[3]), SendState::Done);
        cluster.settle();
        let pattern = from(0, 2);
        let mut found = Vec::new();
        let status = match way {
            0 => cluster.engine(1).try_recv(pattern, &mut found),
            1 => {
                let (id, _) = cluster.engine(1).matched_probe(pattern).expect("it is there");
                cluster.receive_into(1, id, &mut found).ok()
            }
            _ => {
                let id = cluster.engine(1).post_receive(pattern);
                cluster.receive_into(1, id, &mut found).ok()
            }
        };
        assert_eq!((status.map(|one| one.length), &found[..]), (Some(2), &[1, 2][..]));
        cluster.settle();
        assert!(cluster.is_done(0, id, &[1, 2]), "{way}");
        assert!(cluster.engine(1).try_recv(pattern, &mut found).is_some());
        cluster.settle();
        assert_eq!((cluster.engine(0).failure(1), cluster.engine(1).failure(0)), (None, None));
        assert_eq!((cluster.engine(0).kept(), cluster.engine(1).kept()), (0, 0));
    }
}

/// Goal: a window that is shorter than a frame is filled exactly. Method: the shortest window, and
/// messages of its length, shorter and longer.
#[test]
fn a_window_may_be_shorter_than_a_frame() {
    let config = small().window_bytes(128);
    let mut cluster = Cluster::new(1, FaultPlan::reliable(), 2, config);
    for (number, length) in (0_u64..).zip([100, 128, 496, 497, 600, 624, 5000]) {
        let body = bytes_of(number, length);
        let owned = Payload::Owned(body.clone());
        let sent = cluster.engine(0).send(1, 0, 1, SendMode::Standard, owned).expect("begins");
        assert!(cluster.receive(1, from(0, 1)).1 == body, "{length} bytes");
        cluster.finish(0, sent, &body).expect("sent");
    }
}
