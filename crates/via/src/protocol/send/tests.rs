//! Sends step by step: what is sent, what waits, and what remains of a send that was abandoned.

use super::*;
use crate::protocol::{CancelState, Control};
use crate::{
    protocol::{
        EngineConfig,
        tests::{Pair, small, tagged},
    },
    vi::DisconnectReason,
};

/// A window of more than the area, and a buffer for each frame.
fn wide_open() -> EngineConfig {
    EngineConfig { staging_frames: 16, window_bytes: 8192, ..small() }
}

/// Begins to send bytes that stay with their owner.
fn lend_slot(pair: &mut Pair, mode: SendMode, body: &[u8]) -> RequestId {
    match pair.engine(0).send(1, 0, 1, mode, Payload::Borrowed(&[IoSlice::new(body)])) {
        Ok(SendState::Pending(id)) => id,
        other => panic!("{other:?}"),
    }
}

/// Goal: pieces of long messages are whole cache lines. Method: lengths around one.
#[test]
fn pieces_are_whole_lines() {
    assert_eq!([0, 63, 64, 65, 200, 448].map(whole_lines), [0, 0, 64, 64, 192, 448]);
}

/// Goal: a send that cannot reach a rank says why. Method: a rank that does not exist, one without a
/// connection, one that has failed.
#[test]
fn a_send_to_nobody_is_refused() {
    let mut pair = Pair::new(small());
    pair.engine(0).peer_failed(1, DisconnectReason::TimedOut);
    for (rank, error) in [
        (3, SendError::NoSuchRank { rank: 3, size: 3 }),
        (2, SendError::NotConnected { rank: 2 }),
        (1, SendError::PeerFailed { rank: 1, reason: DisconnectReason::TimedOut }),
    ] {
        let engine = pair.engine(0);
        let sent = engine.send(rank, 0, 0, SendMode::Standard, Payload::Owned(vec![1]));
        assert_eq!(sent, Err(error.clone()));
        assert_eq!(engine.send_bytes(rank, 0, 0, SendMode::Standard, &[1]), Err(error));
        assert_eq!(engine.kept(), 0);
    }
}

/// Goal: a message that finds credit is sent from where it is, up to the longest frame, and takes nothing of the
/// buffer for buffered sends; what does not fit there is refused. Method: the longest frame and one byte more.
#[test]
fn what_finds_credit_takes_no_buffer() {
    let mut pair = Pair::new(EngineConfig { buffered_bytes_max: 10, ..wide_open() });
    let mut count = 0;
    for length in [496, 497, 0] {
        let body = &[5; 497][..length];
        for is_short_way in [false, true] {
            let engine = pair.engine(0);
            let sent = if is_short_way {
                engine.send_bytes(1, 0, 0, SendMode::Buffered, body)
            } else {
                engine.send(1, 0, 0, SendMode::Buffered, Payload::Borrowed(&[IoSlice::new(body)]))
            };
            if length == 497 {
                assert_eq!(sent, Err(SendError::BufferFull { needed: 497, free: 10 }));
            } else {
                assert_eq!(sent, Ok(SendState::Done));
                count += 1;
            }
            assert_eq!((engine.counters().messages_sent, engine.kept()), (count, 0));
            assert_eq!(engine.counters().blocked, 0);
        }
    }
}

/// Goal: messages are counted, as are those in ready mode that found no posted receive. Method: each way to
/// send, in each mode that ends at once.
#[test]
fn messages_are_counted() {
    let mut pair = Pair::new(small());
    for mode in [SendMode::Standard, SendMode::Ready] {
        let engine = pair.engine(0);
        let owned = Payload::Owned(vec![1]);
        assert_eq!(engine.send(1, 0, 7, mode, owned), Ok(SendState::Done));
        let loaned = [IoSlice::new(&[1])];
        assert_eq!(engine.send(1, 0, 7, mode, Payload::Borrowed(&loaned)), Ok(SendState::Done));
        assert_eq!(engine.send_bytes(1, 0, 7, mode, &[1]), Ok(SendState::Done));
    }
    let synchronous = pair.engine(0).send_bytes(1, 0, 7, SendMode::Synchronous, &[1]);
    assert!(matches!(synchronous, Ok(SendState::Pending(_))));
    assert_eq!(pair.engine(0).counters().messages_sent, 7);
    assert_eq!((pair.travel(0), pair.take(1)), (7, 7));
    let found = pair.engine(1).counters();
    assert_eq!((found.messages_received, found.unexpected, found.ready_unexpected), (7, 7, 3));
    // A receive waits: nothing is unexpected.
    pair.engine(1).post_receive(tagged(8));
    assert_eq!(pair.send(8, SendMode::Ready, 10), SendState::Done);
    pair.travel(0);
    assert_eq!(pair.take(1), 1);
    let found = pair.engine(1).counters();
    assert_eq!((found.messages_received, found.unexpected, found.ready_unexpected), (8, 7, 3));
}

/// Goal: polling alone makes progress. Method: a send and its receive with nothing but polls.
#[test]
fn a_poll_takes_in_what_has_come() {
    let mut pair = Pair::new(small());
    let id = pair.begin(3, SendMode::Synchronous, 8);
    pair.travel(0);
    assert!(pair.engine(1).probe(tagged(4)).is_none());
    assert!(pair.engine(1).probe(tagged(3)).is_some(), "the poll before took it in");
    assert!(pair.engine(1).try_recv(tagged(3), &mut Vec::new()).is_some());
    assert_eq!(pair.engine(0).poll_send(id, None), Poll::Pending);
    pair.travel(1);
    assert_eq!(pair.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
    assert_eq!(pair.engine(0).poll_send(id, None), Poll::Ready(Err(RequestError::Unknown)));

    let receive = pair.engine(1).post_receive(tagged(5));
    let other = pair.engine(1).post_receive(tagged(6));
    for tag in [6, 5] {
        assert_eq!(pair.send(tag, SendMode::Standard, 8), SendState::Done);
    }
    pair.travel(0);
    for id in [receive, other] {
        assert!(pair.engine(1).poll_receive(id, &mut Vec::new()).is_ready());
    }
    assert_eq!((pair.engine(0).kept(), pair.engine(1).kept()), (0, 0));
}

/// Goal: messages that the peer had paused continue when it resumes, as far as they may without a receive, and no others are
/// considered. Method: pause a message in its middle, announce others, give credit, and resume.
#[test]
fn paused_messages_go_on() {
    let mut pair = Pair::new(EngineConfig { staging_frames: 16, ..small() });
    for _ in 0..6 {
        assert_eq!(pair.send(9, SendMode::Standard, 400), SendState::Done);
    }
    let id = pair.begin(1, SendMode::Standard, 5000);
    assert_eq!(pair.request(id).sent, 896, "two frames fit");
    assert_eq!(pair.engine(0).control(1, Control::Pause), Ok(()));
    pair.serve(1);
    let now = pair.network.now();
    while pair.engine(0).progress(now) {}
    assert_eq!(pair.request(id).sent, 896);
    for tag in 0..5 {
        pair.begin(tag, SendMode::Synchronous, 10);
    }
    pair.serve(1);
    while pair.engine(0).progress(now) {}
    assert_eq!((pair.engine(0).kept(), &pair.engine(0).peers[1].paused), (6, &[id.0].into()));
    assert!(!pair.engine(0).peers[1].is_clear());
    assert_eq!(pair.engine(0).control(1, Control::Resume), Ok(()));
    assert_eq!(pair.request(id).sent, 2048, "its window");
    assert!(pair.engine(0).peers[1].paused.is_empty());
    assert!(pair.engine(0).peers[1].is_clear());
    pair.travel(0);
    assert_eq!(pair.take(1), 5 + 3, "the others, and data alone");
}

/// Goal: only its receiver can report what became of a message, and only once. Method: each answer from
/// another rank, and answers to what was not asked.
#[test]
fn only_the_receiver_answers() {
    let mut pair = Pair::new(small());
    let id = pair.begin(1, SendMode::Synchronous, 8);
    let short = u64::from(id.0.index());
    let engine = pair.engine(0);
    assert_eq!(engine.control(2, Control::Matched { request: short }), Ok(()));
    assert_eq!(engine.control(2, Control::Matched { request: id.0 }), Ok(()));
    assert_eq!(engine.control(2, Control::Grant { request: id.0, limit: 5 }), Ok(()));
    assert!(engine.control(2, Control::Finished { request: id.0 }).is_err());
    let answer = Control::Cancelled { request: id.0, is_cancelled: true };
    assert_eq!(engine.control(2, answer), Ok(()));
    assert!(engine.control(1, answer).is_err(), "nothing was asked");
    assert!(engine.control(1, Control::Finished { request: id.0 }).is_err(), "it has left");
    assert!(engine.control(1, Control::Matched { request: 77 }).is_err());
    let send = pair.request(id);
    assert_eq!((send.is_matched, send.result), (false, None));
    assert_eq!(pair.engine(0).control(1, Control::Matched { request: short }), Ok(()));
    assert_eq!(pair.engine(0).poll_send(id, None), Poll::Ready(Ok(())));
    assert_eq!(pair.engine(0).control(1, Control::Grant { request: id.0, limit: 5 }), Ok(()));
    assert_eq!(pair.engine(0).kept(), 0);
}

/// Goal: only a message whose memory its receiver may read ends by being read. Method: a long one that is sent.
#[test]
fn a_message_that_is_sent_is_not_finished() {
    let mut pair = Pair::new(wide_open());
    let id = pair.begin(1, SendMode::Standard, 20_000);
    assert!(pair.engine(0).control(1, Control::Finished { request: id.0 }).is_err());
    assert!(pair.request(id).sent < 20_000);
}

/// Goal: a flush reports whether anything was sent. Method: a message, data, and control entries that wait,
/// before and after there is credit.
#[test]
fn a_flush_tells_what_it_did() {
    for case in 0..3 {
        let mut pair = Pair::new(wide_open());
        match case {
            0 => {
                pair.fill(20);
                assert_eq!(pair.engine(0).counters().blocked, 0);
                pair.begin(1, SendMode::Standard, 100);
                assert_eq!(pair.engine(0).counters().blocked, 1);
            }
            1 => {
                let id = pair.begin(1, SendMode::Standard, 5000);
                assert_eq!(pair.request(id).sent, 8 * 448);
            }
            _ => (0..9).for_each(|_| pair.engine(0).queue_control(1, Control::Resume)),
        }
        let sent = pair.engine(0).counters().messages_sent;
        for _ in 0..2 {
            assert!(!pair.engine(0).flush() && !pair.engine(0).has_all_left(), "{case}");
        }
        pair.serve(1);
        assert!(pair.engine(0).flush(), "{case}");
        assert!(pair.engine(0).has_all_left(), "{case}");
        assert!(!pair.engine(0).flush(), "{case}");
        let more = pair.engine(0).counters().messages_sent - sent;
        assert_eq!(more, u64::from(case == 0), "{case}");
    }
}

/// Goal: the owner of borrowed bytes that stall is told when there is credit, and not before. Method: a message
/// that fills the area, before and after its receiver has taken it.
#[test]
fn a_stalled_owner_is_told() {
    let mut pair = Pair::new(wide_open());
    let body = [3; 5000];
    let id = lend_slot(&mut pair, SendMode::Standard, &body);
    let mut ready = Vec::new();
    for _ in 0..2 {
        assert!(!pair.engine(0).flush());
        pair.engine(0).take_ready(&mut ready);
        assert!(ready.is_empty(), "{ready:?}");
    }
    pair.serve(1);
    assert!(pair.engine(0).flush());
    pair.engine(0).take_ready(&mut ready);
    assert_eq!(ready, [id]);
    assert_eq!(pair.request(id).sent, 8 * 448, "its bytes are not here");
    let body = [IoSlice::new(&body)];
    assert_eq!(pair.engine(0).poll_send(id, Some(&body)), Poll::Ready(Ok(())));
    assert!(!pair.engine(0).flush() && pair.engine(0).peers[1].stalled.is_empty());
}

/// Goal: a borrowed message that has not begun to leave is never seen once its owner was dropped; those around
/// it are. Method: three in the queue, of which the middle one is dropped, or cancelled.
#[test]
fn a_queued_message_is_forgotten() {
    for is_cancelled in [false, true] {
        let mut pair = Pair::new(wide_open());
        pair.fill(20);
        pair.begin(1, SendMode::Standard, 100);
        let id = lend_slot(&mut pair, SendMode::Standard, &[3; 5000]);
        pair.begin(1, SendMode::Standard, 100);
        if is_cancelled {
            assert_eq!(pair.engine(0).cancel_send(id), CancelState::Cancelled);
            assert_eq!(pair.engine(0).cancel_send(id), CancelState::TooLate);
        } else {
            pair.engine(0).drop_send(id);
        }
        assert_eq!((pair.engine(0).requests.len(), pair.engine(0).peers[1].outbox.len()), (2, 2));
        pair.serve(1);
        pair.serve(0);
        pair.serve(1);
        assert_eq!((pair.engine(1).kept(), pair.engine(1).counters().messages_received), (22, 22));
    }
}

/// Goal: a send that has ended is forgotten with its owner, and cannot be cancelled, nor can one that was
/// matched; the receiver is asked once. Method: a synchronous message before and after the match.
#[test]
fn a_send_that_has_ended_is_forgotten() {
    let mut pair = Pair::new(small());
    let id = pair.begin(1, SendMode::Synchronous, 8);
    assert_eq!(pair.travel(0), 1);
    for _ in 0..2 {
        assert_eq!(pair.engine(0).cancel_send(id), CancelState::Asked);
    }
    assert_eq!(pair.travel(0), 1, "asked once");
    assert_eq!(pair.engine(0).cancel_answered(1, id.0, false), Ok(()));
    assert_eq!(pair.request(id).result, Some(Ok(())));
    assert_eq!(pair.engine(0).cancel_send(id), CancelState::TooLate);
    pair.engine(0).drop_send(id);
    assert_eq!(pair.engine(0).kept(), 0);

    let id = pair.begin(1, SendMode::Synchronous, 8);
    pair.request(id).is_matched = true;
    assert_eq!(pair.engine(0).cancel_send(id), CancelState::TooLate);
}

/// Goal: a message that was taken back in its middle is announced as over as soon as there is credit, whatever
/// its owner does meanwhile, and leaves nothing behind. Method: an abort that finds no credit, and an owner that
/// is dropped, polls, or polls later.
#[test]
fn an_abort_outlives_its_owner() {
    for owner in 0..3 {
        let mut pair = Pair::new(EngineConfig { staging_frames: 16, ..small() });
        let id = lend_slot(&mut pair, SendMode::Synchronous, &[3; 5000]);
        assert_eq!(pair.request(id).sent, 2048);
        // The rest of the area.
        for _ in 0..13 {
            assert_eq!(pair.send(2, SendMode::Standard, 112), SendState::Done);
        }
        pair.fill(1);
        pair.request(id).awaits_answer = true;
        assert_eq!(pair.engine(0).cancel_answered(1, id.0, true), Ok(()));
        assert!(!pair.engine(0).flush(), "the area is full");
        let cancelled = Poll::Ready(Err(RequestError::Cancelled));
        match owner {
            0 => pair.engine(0).drop_send(id),
            1 => assert_eq!(pair.engine(0).poll_send(id, None), cancelled),
            _ => {}
        }
        assert_eq!((pair.engine(0).kept(), pair.engine(0).peers[1].pumps.len()), (1, 1), "{owner}");
        pair.serve(1);
        assert_eq!(pair.engine(1).kept(), 15);
        pair.engine(0).flush();
        assert!(pair.engine(0).peers[1].pumps.is_empty());
        assert_eq!(pair.engine(0).kept(), usize::from(owner == 2));
        if owner == 2 {
            assert_eq!(pair.engine(0).poll_send(id, None), cancelled);
        }
        pair.serve(1);
        assert_eq!((pair.engine(0).kept(), pair.engine(1).kept()), (0, 14), "{owner}");
        // The stream is used again.
        assert_eq!(pair.send(3, SendMode::Standard, 1000), SendState::Done);
        pair.serve(1);
        assert_eq!((pair.engine(1).kept(), pair.engine(1).failure(0)), (15, None));
    }
}
