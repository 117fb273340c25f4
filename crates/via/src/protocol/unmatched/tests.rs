//! The numbers of announced messages, and which of them are asked for.

use std::task::Poll;

use super::*;
use crate::{
    protocol::{
        CancelState, EngineConfig, Payload, RequestError, RequestId, SendMode, SendState,
        announcements::Announcements,
        incoming::CONTROLS_WAITING_MAX,
        tests::{Pair, small, tagged},
    },
    slots::SlotKey,
};

/// Room for six messages of 100 bytes.
fn narrow() -> EngineConfig {
    EngineConfig { unexpected_bytes_max: 600, ..small() }
}

/// Lets all frames and control entries arrive.
fn settle(pair: &mut Pair) {
    for _ in 0..20 {
        pair.serve(0);
        pair.serve(1);
    }
}

/// Sends 100 bytes, of which the first is the tag.
fn send(pair: &mut Pair, tag: u8, mode: SendMode) -> Option<RequestId> {
    let body = vec![tag; 100];
    match pair.engine(0).send(1, 0, tag.into(), mode, Payload::Owned(body)) {
        Ok(SendState::Pending(id)) => Some(id),
        Ok(SendState::Done) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Sends seven messages, of which the last one makes the peer pause, and then those with tags from 10 on.
fn announce(pair: &mut Pair, count: u8) -> Vec<Option<RequestId>> {
    for tag in 0..7 {
        send(pair, tag, SendMode::Standard);
    }
    settle(pair);
    assert!(pair.engine(0).peers[1].is_paused);
    let ids = (0..count).map(|number| send(pair, 10 + number, SendMode::Synchronous)).collect();
    settle(pair);
    assert_eq!(pair.engine(1).peers[0].announced_in, u32::from(count));
    ids
}

fn receive(pair: &mut Pair, tag: u32) -> Option<Status> {
    let mut body = Vec::new();
    let status = pair.engine(1).try_recv(tagged(tag), &mut body)?;
    assert!(body.len() == 100 && body.iter().all(|byte| u32::from(*byte) == tag), "{tag}");
    Some(status)
}

/// Returns how many of the messages with tags from 10 on have all their bytes at the receiver.
fn arrived(pair: &mut Pair) -> usize {
    let messages = &pair.engine(1).messages;
    let is_there = |key| messages.get(key).is_some_and(|one| one.has_all_arrived());
    messages.keys().filter(|key| is_there(*key)).count()
}

/// Goal: numbers rise with each announcement, also of one without bytes, and are taken in order up to a limit; those that have ended
/// are forgotten when they are most. Method: by hand.
#[test]
fn announcements_are_numbered() {
    let mut announcements = Announcements::default();
    for key in [Some(5), None, Some(6), Some(7)] {
        announcements.add(key);
    }
    assert_eq!(announcements.count, 4);
    let mut through = |number| announcements.next_through(number);
    assert_eq!([through(0), through(3), through(3), through(3)], [None, Some(5), Some(6), None]);
    assert_eq!([through(4), through(4)], [Some(7), None]);

    (0..65).for_each(|key| announcements.add(Some(key)));
    announcements.prune(1, |key| key > 60);
    assert_eq!(announcements.waiting.len(), 65, "at most 66 are not searched");
    announcements.prune(0, |key| key > 60);
    assert_eq!(announcements.waiting.iter().map(|one| one.1).collect::<Vec<_>>(), [61, 62, 63, 64]);
    assert_eq!(announcements.waiting.front(), Some(&(66, 61)), "numbers stay");
}

/// Goal: when half of what was kept has been received, the next announced messages come without being asked for one by one, as many as
/// fit, and the peer may send again once none is left. Method: twelve announced messages, in order, by the budget of bytes and by that
/// of messages.
#[test]
fn announced_messages_come_ahead() {
    let by_number = EngineConfig { unexpected_messages_max: 6, ..small() };
    for config in [narrow(), by_number] {
        let mut pair = Pair::new(config);
        let ids = announce(&mut pair, 12);
        for tag in 0..3 {
            assert!(receive(&mut pair, tag).is_some());
            settle(&mut pair);
            assert_eq!(arrived(&mut pair), 0, "more than half is kept");
        }
        // Three are kept, and there is room for three more.
        assert!(receive(&mut pair, 3).is_some());
        settle(&mut pair);
        assert_eq!((arrived(&mut pair), pair.engine(0).peers[1].is_paused), (3, true));
        for (tag, came) in (4..7).zip([3, 3, 6]) {
            assert!(receive(&mut pair, tag).is_some());
            settle(&mut pair);
            assert_eq!(arrived(&mut pair), if tag == 4 { 3 } else { came }, "{tag}");
        }
        for (id, tag) in ids.into_iter().zip(10..) {
            let id = id.expect("synchronous");
            assert_eq!(pair.engine(0).poll_send(id, None), Poll::Pending, "no receive has matched");
            assert!(receive(&mut pair, tag).is_some(), "{tag} is here");
            settle(&mut pair);
            assert_eq!(pair.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
        }
        assert!(!pair.engine(0).peers[1].is_paused);
        assert_eq!((pair.engine(0).kept(), pair.engine(1).kept()), (0, 0));
        let peer = &pair.engine(1).peers[0];
        assert_eq!((peer.parked_bytes, peer.parked_messages, peer.announced_in), (0, 0, 0));
        assert_eq!(pair.engine(0).peers[1].announced_out, 0);

        // What was announced before the sender heard that it may go on comes at once, too.
        pair.engine(0).peers[1].is_paused = true;
        assert!(send(&mut pair, 40, SendMode::Standard).is_none());
        settle(&mut pair);
        assert_eq!(arrived(&mut pair), 1);
    }
}

/// Goal: messages that were matched, taken back or dropped meanwhile are passed over, at both sides. Method: some of each
/// among those that are asked for next.
#[test]
fn what_has_ended_is_passed_over() {
    let mut pair = Pair::new(narrow());
    let ids = announce(&mut pair, 6);
    let receives = [10, 12].map(|tag| pair.engine(1).post_receive(tagged(tag)));
    settle(&mut pair);
    let cancelled = ids[1].expect("synchronous");
    assert_eq!(pair.engine(0).cancel_send(cancelled), CancelState::Asked);
    settle(&mut pair);
    assert!(matches!(pair.engine(0).poll_send(cancelled, None), Poll::Ready(Err(_))));
    for id in receives {
        assert!(pair.engine(1).poll_receive(id, &mut Vec::new()).is_ready());
    }
    assert_eq!(pair.engine(1).peers[0].announced_in, 3);
    for tag in 0..4 {
        assert!(receive(&mut pair, tag).is_some());
    }
    settle(&mut pair);
    assert_eq!((arrived(&mut pair), pair.engine(1).peers[0].announced_in), (3, 0));
    for tag in [15, 14, 13, 6, 5, 4] {
        assert!(receive(&mut pair, tag).is_some(), "{tag}");
    }
    settle(&mut pair);
    assert_eq!(pair.engine(1).kept(), 0);
}

/// Goal: a message whose bytes came ahead can still be taken back, whenever the question arrives. Method: it crosses the request for the
/// bytes, with and without their arrival.
#[test]
fn what_came_ahead_can_be_taken_back() {
    for is_late in [false, true] {
        let mut pair = Pair::new(narrow());
        let ids = announce(&mut pair, 1);
        let id = ids[0].expect("synchronous");
        for tag in 0..4 {
            assert!(receive(&mut pair, tag).is_some());
        }
        if is_late {
            settle(&mut pair);
            assert_eq!(arrived(&mut pair), 1);
        }
        assert_eq!(pair.engine(0).cancel_send(id), CancelState::Asked);
        settle(&mut pair);
        let ended = pair.engine(0).poll_send(id, None);
        assert_eq!(ended, Poll::Ready(Err(RequestError::Cancelled)));
        assert_eq!(pair.engine(0).failure(1), None);
        assert!(receive(&mut pair, 10).is_none());
        let peer = &pair.engine(1).peers[0];
        assert_eq!((peer.parked_bytes, peer.parked_messages, peer.announced_in), (300, 3, 0));
    }
}

/// Goal: a long message comes ahead as far as any message that no receive has matched, and goes on when one does. Method: three windows.
#[test]
fn a_long_message_comes_ahead_by_a_window() {
    let config = EngineConfig { unexpected_bytes_max: 5000, window_bytes: 2048, ..small() };
    let mut pair = Pair::new(config);
    for tag in 0..11 {
        let body = Payload::Owned(vec![tag; 480]);
        let sent = pair.engine(0).send(1, 0, tag.into(), SendMode::Standard, body);
        assert_eq!(sent, Ok(SendState::Done));
        settle(&mut pair);
    }
    assert!(pair.engine(0).peers[1].is_paused);
    let body = vec![9; 6000];
    let state = pair.engine(0).send(1, 0, 20, SendMode::Standard, Payload::Owned(body.clone()));
    let Ok(SendState::Pending(id)) = state else { panic!("{state:?}") };
    settle(&mut pair);
    for tag in 0..6 {
        pair.engine(1).try_recv(tagged(tag), &mut Vec::new()).expect("it is here");
    }
    settle(&mut pair);
    let messages = &pair.engine(1).messages;
    let found: Vec<u64> =
        messages.keys().filter_map(|key| Some(messages.get(key)?.arrived)).collect();
    assert_eq!(found, [2048]);
    let receive = pair.engine(1).post_receive(tagged(20));
    let mut found = Vec::new();
    while pair.engine(1).poll_receive(receive, &mut found).is_pending() {
        settle(&mut pair);
    }
    assert!(found == body);
    assert_eq!(pair.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
}

/// Goal: a peer that asks for more than was announced is given up. Method: the last number, and one more.
#[test]
fn what_was_not_announced_is_not_asked_for() {
    let mut pair = Pair::new(narrow());
    announce(&mut pair, 2);
    assert_eq!(pair.engine(0).sends_admitted(1, 2), Ok(()));
    assert_eq!(pair.engine(0).sends_admitted(1, 1), Ok(()), "again");
    assert!(pair.engine(0).sends_admitted(1, 3).is_err());
}

/// Goal: numbers that wait for credit become one. Method: a peer whose ring of control entries is full.
#[test]
fn waiting_numbers_become_one() {
    let mut pair = Pair::new(narrow());
    announce(&mut pair, 6);
    let peer = &mut pair.engine(1).peers[0];
    peer.controls.push_back(Control::Admit { through: 1 });
    pair.engine(1).peers[0].parked_bytes = 0;
    pair.engine(1).admit_announced(0);
    let waiting: Vec<Control> = pair.engine(1).peers[0].controls.iter().copied().collect();
    assert_eq!(waiting, [Control::Admit { through: 6 }]);
}

/// Goal: a whole message that was probed, matched or asked for by another pattern is received once, in its turn. Method: four of one
/// tag, taken in each way.
#[test]
fn a_whole_message_can_become_a_request() {
    let mut pair = Pair::new(small());
    for length in 1..5 {
        assert_eq!(pair.send(1, SendMode::Standard, length), SendState::Done);
    }
    pair.travel(0);
    pair.take(1);
    let engine = pair.engine(1);
    assert_eq!((engine.kept(), engine.unexpected.wholes()), (4, 4));
    let pattern = tagged(1);
    assert_eq!(engine.probe(pattern).map(|status| status.length), Some(1));
    assert_eq!((engine.kept(), engine.unexpected.wholes()), (4, 3));
    assert_eq!(engine.probe(pattern).map(|status| status.length), Some(1), "it stays");
    let received = engine.try_recv(pattern, &mut Vec::new());
    assert_eq!(received.map(|status| status.length), Some(1));
    let (request, status) = engine.matched_probe(pattern).expect("the second");
    assert_eq!(status.length, 2);
    let posted = engine.post_receive(pattern);
    assert_eq!(engine.cancel_receive(posted), CancelState::TooLate);
    let received = engine.try_recv(pattern, &mut Vec::new());
    assert_eq!(received.map(|status| status.length), Some(4));
    for (id, length) in [(posted, 3), (request, 2)] {
        let mut bytes = Vec::new();
        assert!(engine.poll_receive(id, &mut bytes).is_ready());
        assert_eq!(bytes, vec![7; length]);
    }
    assert_eq!(engine.kept(), 0);
    let peer = &engine.peers[0];
    assert_eq!((peer.parked_bytes, peer.parked_messages, peer.taken), (0, 0, 4));
}

/// Goal: a context is idle only without a whole message. Method: one comes, is forgotten with its context.
#[test]
fn a_whole_message_keeps_its_context() {
    let mut pair = Pair::new(small());
    assert_eq!(pair.send(1, SendMode::Standard, 3), SendState::Done);
    pair.travel(0);
    pair.take(1);
    let engine = pair.engine(1);
    assert!(!engine.is_context_idle(0) && engine.is_context_idle(1));
    engine.forget_context(1);
    assert!(!engine.is_context_idle(0));
    engine.forget_context(0);
    assert!(engine.is_context_idle(0) && engine.kept() == 0);
}

/// Goal: what was asked for is sent although no more messages may be announced. Method: more messages than may be announced, which wait for
/// credit before the peer pauses; all modes of asking.
#[test]
fn data_passes_heads_that_wait() {
    let config = EngineConfig { announced_messages_max: 2, unexpected_bytes_max: 0, ..small() };
    let mut pair = Pair::new(config);
    let ids: Vec<_> = (0..60).map(|tag| send(&mut pair, tag, SendMode::Standard)).collect();
    assert!(!pair.engine(0).peers[1].outbox.is_empty());
    settle(&mut pair);
    assert_eq!(pair.engine(1).peers[0].announced_in, 2);
    assert!(!pair.engine(0).peers[1].outbox.is_empty(), "heads wait");
    for tag in 0..60 {
        let id = pair.engine(1).post_receive(tagged(tag));
        settle(&mut pair);
        let mut body = Vec::new();
        assert!(pair.engine(1).poll_receive(id, &mut body).is_ready(), "{tag}");
        assert_eq!(body.len(), 100);
    }
    settle(&mut pair);
    for id in ids.into_iter().flatten() {
        assert!(pair.engine(0).poll_send(id, None).is_ready());
    }
    assert_eq!((pair.engine(0).kept(), pair.engine(1).kept()), (0, 0));
}

/// Goal: a receive whose sender fails while the receive takes its message fails with it. Method: the sender takes no control entries, so that
/// the one by which it may go on is one too many.
#[test]
fn a_receive_fails_with_its_sender() {
    let mut pair = Pair::new(EngineConfig { unexpected_messages_max: 0, ..small() });
    pair.begin(1, SendMode::Standard, 3000);
    pair.travel(0);
    pair.take(1);
    let engine = pair.engine(1);
    assert!(engine.peers[0].has_paused);
    let waiting = [Control::Resume].repeat(CONTROLS_WAITING_MAX + 100);
    engine.peers[0].controls.extend(waiting);
    let receive = engine.post_receive(tagged(1));
    assert!(engine.failure(0).is_some());
    let polled = engine.poll_receive(receive, &mut Vec::new());
    assert!(matches!(polled, Poll::Ready(Err(RequestError::PeerFailed { rank: 0, .. }))));
    assert_eq!(engine.kept(), 0);
}

/// Goal: a message that was to be taken back keeps its index until the peer has answered, although its owner has gone: another message of that
/// index would be taken instead. Method: the question waits for credit; the end of the message does not.
#[test]
fn an_index_stays_while_the_peer_is_asked() {
    let mut pair = Pair::new(small());
    let body = vec![1; 3000];
    let lent = [std::io::IoSlice::new(&body)];
    let sent = pair.engine(0).send(1, 0, 1, SendMode::Standard, Payload::Borrowed(&lent));
    let Ok(SendState::Pending(id)) = sent else { panic!("{sent:?}") };
    for _ in 0..20 {
        pair.engine(0).queue_control(1, Control::Resume);
    }
    assert_eq!(pair.engine(0).cancel_send(id), CancelState::Asked);
    pair.engine(0).drop_send(id);
    let now = pair.network.now();
    pair.engine(0).progress(now);
    let other = pair.begin(2, SendMode::Synchronous, 10);
    assert_ne!(other.0.index(), id.0.index());
    let waiting = pair.engine(0).peers[1].controls.back().copied();
    assert_eq!(waiting, Some(Control::Cancel { request: id.0 }));
    settle(&mut pair);
    assert!(pair.engine(1).try_recv(tagged(2), &mut Vec::new()).is_some());
    settle(&mut pair);
    assert_eq!(pair.engine(0).poll_send(other, None), Poll::Ready(Ok(())));
    assert_eq!(pair.engine(0).kept(), 0);
}
