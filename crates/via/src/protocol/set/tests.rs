use std::{io::IoSlice, task::Poll};

use super::*;
use crate::{
    protocol::{
        EngineConfig, Pattern, Payload, RequestError, SendError, SendMode, SendState,
        tests::{Pair, small, tagged},
    },
    vi::DisconnectReason,
};

fn listed(engine: &mut MessageEngine<impl Provider>, set: RequestId) -> Vec<RequestId> {
    std::iter::from_fn(|| engine.next_in_set(set)).collect()
}

/// Goal: of many requests, those that became ready are found, in that order and once each, and their set is named instead of
/// them; the others are not polled. Method: a thousand receives and some sends in a set; messages of one and of several frames for
/// four of the receives, one of which has left the set.
#[test]
fn only_ready_requests_are_polled() {
    let mut pair = Pair::new(EngineConfig { area_bytes: 64 << 10, ..small() });
    let engine = pair.engine(1);
    let set = engine.open_set();
    let receives: Vec<_> = (0..1000).map(|tag| engine.post_receive(tagged(tag))).collect();
    receives.iter().for_each(|id| engine.join_set(*id, set));
    assert_eq!(listed(engine, set), []);
    engine.leave_set(receives[5]);
    for (tag, length) in [(700, 8), (5, 8), (3, 1900), (999, 8)] {
        if let SendState::Pending(id) = pair.send(tag, SendMode::Standard, length) {
            pair.engine(0).drop_send(id);
        }
    }
    pair.serve(0);
    pair.serve(1);
    let engine = pair.engine(1);
    let mut named = Vec::new();
    engine.take_ready(&mut named);
    named.dedup();
    assert!(named.contains(&set) && named.contains(&receives[5]), "{named:?}");
    assert!(!named.contains(&receives[700]), "{named:?}");
    assert_eq!(listed(engine, set), [receives[700], receives[3], receives[999]]);
    assert_eq!(listed(engine, set), []);
    for tag in [700, 5, 3, 999] {
        let mut found = Vec::new();
        let ended = engine.poll_receive(receives[tag], &mut found);
        assert!(matches!(ended, Poll::Ready(Ok(_))), "{tag}: {ended:?}");
    }

    // What is ready before it joins is polled once.
    let _ = pair.send(2000, SendMode::Standard, 8);
    pair.serve(1);
    let engine = pair.engine(1);
    let early = engine.post_receive(tagged(2000));
    engine.join_set(early, set);
    assert_eq!(listed(engine, set), [early]);
    assert_eq!(listed(engine, set), []);

    engine.peer_failed(0, DisconnectReason::TimedOut);
    assert_eq!(listed(engine, set).len(), 996, "each once");
    engine.close_set(set);
    assert_eq!(engine.next_in_set(set), None);
}

/// Goal: sends of a set are found when they end. Method: synchronous sends, some of which are matched.
#[test]
fn ended_sends_are_found() {
    let mut pair = Pair::new(small());
    let set = pair.engine(0).open_set();
    let sends: Vec<_> = (0..4).map(|tag| pair.begin(tag, SendMode::Synchronous, 8)).collect();
    sends.iter().for_each(|id| pair.engine(0).join_set(*id, set));
    pair.serve(0);
    assert_eq!(listed(pair.engine(0), set), []);
    for tag in [2, 1] {
        let id = pair.engine(1).post_receive(tagged(tag));
        assert!(pair.engine(1).poll_receive(id, &mut Vec::new()).is_ready());
    }
    pair.serve(1);
    let engine = pair.engine(0);
    assert_eq!(listed(engine, set), [sends[2], sends[1]]);
    assert_eq!(engine.poll_send(sends[2], None), Poll::Ready(Ok(())));
}

/// Goal: a receive that is left to itself takes its message from the others, which is discarded, and nothing of it is left.
/// Method: one that waits and one that is matched, messages of one and of several frames, and a rank that fails.
#[test]
fn forgotten_receives_take_their_messages() {
    for length in [8, 6000] {
        for is_matched in [false, true] {
            let mut pair = Pair::new(small());
            let sent = |pair: &mut Pair| {
                if let SendState::Pending(id) = pair.send(1, SendMode::Standard, length) {
                    pair.engine(0).drop_send(id);
                }
                for _ in 0..50 {
                    pair.serve(0);
                    pair.serve(1);
                }
            };
            if is_matched {
                sent(&mut pair);
            }
            let first = pair.engine(1).post_receive(tagged(1));
            pair.engine(1).forget_receive(first);
            let second = pair.engine(1).post_receive(tagged(1));
            if !is_matched {
                sent(&mut pair);
            }
            let what = format!("{length} {is_matched}");
            assert!(pair.engine(1).poll_receive(second, &mut Vec::new()).is_pending(), "{what}");
            let lost = pair.engine(1).poll_receive(first, &mut Vec::new());
            assert_eq!(lost, Poll::Ready(Err(RequestError::Unknown)), "{what}");
            sent(&mut pair);
            let mut found = Vec::new();
            let mut polled = pair.engine(1).poll_receive(second, &mut found);
            for _ in 0..50 {
                if polled.is_ready() {
                    break;
                }
                pair.serve(0);
                pair.serve(1);
                polled = pair.engine(1).poll_receive(second, &mut found);
            }
            assert!(matches!(polled, Poll::Ready(Ok(_))), "{what}: {polled:?}");
            assert_eq!(found, vec![7; length]);
            let last = pair.engine(1).post_receive(Pattern { source: Some(0), ..tagged(1) });
            pair.engine(1).forget_receive(last);
            pair.engine(1).peer_failed(0, DisconnectReason::TimedOut);
            pair.serve(1);
            assert_eq!(pair.engine(1).kept(), 0, "{what}");
        }
    }
}

/// Goal: what is left of a context can be discarded, no other context loses anything, and a context counts as idle when nothing of
/// it is left. Method: messages of two contexts, one of them synchronous and one long.
#[test]
fn contexts_are_forgotten() {
    let mut pair = Pair::new(small());
    let mut synchronous = None;
    for (context, mode, length) in
        [(5, SendMode::Synchronous, 8), (4, SendMode::Standard, 8), (5, SendMode::Standard, 1900)]
    {
        let payload = Payload::Owned(vec![u8::try_from(context).expect("small"); length]);
        match pair.engine(0).send(1, context, 1, mode, payload).expect("the send begins") {
            SendState::Pending(id) if mode == SendMode::Synchronous => synchronous = Some(id),
            SendState::Pending(id) => pair.engine(0).drop_send(id),
            SendState::Done => {}
        }
    }
    for _ in 0..10 {
        pair.serve(0);
        pair.serve(1);
    }
    let engine = pair.engine(1);
    assert!(!engine.is_context_idle(5) && !engine.is_context_idle(4));
    assert!(engine.is_context_idle(3));
    engine.forget_context(5);
    assert!(engine.is_context_idle(5) && !engine.is_context_idle(4));
    let waits = engine.post_receive(Pattern { context: 5, source: None, tag: None });
    assert!(!engine.is_context_idle(5));
    assert_eq!(engine.cancel_receive(waits), CancelState::Cancelled);
    let mut found = Vec::new();
    let left = engine.try_recv(Pattern { context: 4, source: None, tag: None }, &mut found);
    assert!(left.is_some() && found == [4; 8]);
    assert_eq!(engine.kept(), 0);
    pair.serve(1);
    let ended = pair.engine(0).poll_send(synchronous.expect("it waits"), None);
    assert_eq!(ended, Poll::Ready(Ok(())), "its sender does not wait for ever");
    assert!(pair.engine(0).is_context_idle(5));
}

/// Goal: a context's own buffer has its own bound, apart from the engine's, and its room comes back as messages leave; another one
/// can be attached then. Method: fill both while the peer gives no credit, then let the peer take.
#[test]
fn contexts_have_buffers_of_their_own() {
    let mut pair = Pair::new(EngineConfig { buffered_bytes_max: 100, ..small() });
    // Without credit, messages wait.
    while pair.send(99, SendMode::Standard, 0) == SendState::Done {}
    let send = |pair: &mut Pair, context, length| {
        let body = vec![1; length];
        let slices = [IoSlice::new(&body)];
        let payload = Payload::Borrowed(&slices);
        pair.engine(0).send(1, context, 1, SendMode::Buffered, payload)
    };
    assert!(pair.engine(0).attach_buffer(3, 5000));
    assert!(!pair.engine(0).attach_buffer(3, 50));
    let mut held = 0;
    while let Ok(SendState::Done) = send(&mut pair, 3, 1000) {
        held += 1;
        assert!(held < 100, "it has no bound");
    }
    assert!(held >= 5, "{held}");
    let full = send(&mut pair, 3, 1000);
    assert!(matches!(full, Err(SendError::BufferFull { needed: 1000, free: 0 })), "{full:?}");
    assert_eq!(send(&mut pair, 0, 100), Ok(SendState::Done), "the engine's is apart");
    let full = send(&mut pair, 0, 1);
    assert!(matches!(full, Err(SendError::BufferFull { needed: 1, free: 0 })), "{full:?}");
    assert!(pair.engine(0).poll_buffer(3).is_pending());
    let name = pair.engine(0).buffer_name(3).expect("it has one");
    for _ in 0..200 {
        pair.serve(1);
        pair.serve(0);
        while pair.engine(1).try_recv(tagged(99), &mut Vec::new()).is_some() {}
        let all = Pattern { context: 3, source: None, tag: None };
        let id = pair.engine(1).post_receive(all);
        let _ = pair.engine(1).poll_receive(id, &mut Vec::new());
        pair.engine(1).drop_receive(id);
    }
    let mut ready = Vec::new();
    pair.engine(0).take_ready(&mut ready);
    assert!(ready.contains(&name), "its waiter is woken");
    assert!(pair.engine(0).poll_buffer(3).is_ready());
    pair.engine(0).detach_buffer(3);
    assert_eq!(pair.engine(0).buffer_name(3), None);
    assert!(pair.engine(0).attach_buffer(3, 1));
}
