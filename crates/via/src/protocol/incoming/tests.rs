//! The handling of each frame and control entry, alone.

use std::task::Poll;

use vigie_detect::Instant;

use super::*;
use crate::{
    protocol::{
        EngineEvent, Payload, SendMode,
        peer::STREAMS_MAX,
        request::ReceiveRequest,
        tests::{Pair, small, tagged},
    },
    sim::{FaultPlan, SimNetwork, SimNic},
};

/// The heap that a message's bookkeeping occupies.
const BOOKS: u64 = size_of::<IncomingMessage>() as u64;

/// Returns rank 0 of three that are not connected, so that what it tells them waits.
fn lone() -> MessageEngine<SimNic> {
    let nic = SimNetwork::new(1, FaultPlan::reliable()).nic();
    MessageEngine::new(nic, 0, 3, small()).expect("an engine")
}

/// Takes what would be told to rank 1.
fn told(engine: &mut MessageEngine<SimNic>) -> Vec<Control> {
    engine.peers[1].controls.drain(..).collect()
}

fn label(tag: u32) -> Label {
    Label { context: 0, source: 1, tag }
}

/// Makes a frame of rank 1 with a payload of as many bytes as its envelope says.
fn arrival(envelope: &Envelope, head: &[u8]) -> ArrivedFrame {
    let mut bytes = envelope.encode().to_vec();
    bytes.extend_from_slice(head);
    bytes.extend(std::iter::repeat_n(7, envelope.length as usize));
    ArrivedFrame::new(1, bytes.len(), Origin::Heap(bytes))
}

fn envelope(kind: FrameKind, tag: u32, length: u32) -> Envelope {
    Envelope { kind, flags: 0, context: 0, tag, id: 0, length }
}

/// Delivers a whole message of five bytes, for a caller that wants `interest`.
fn eager(
    engine: &mut MessageEngine<SimNic>,
    interest: ReceiveInterest<'_>,
    tag: u32,
) -> (Option<Status>, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut direct = DirectReceive::new(interest, &mut bytes);
    let frame = arrival(&envelope(FrameKind::Eager, tag, 5), &[]);
    assert_eq!(engine.frame(frame, &mut direct), Ok(()));
    (direct.result, bytes)
}

/// Delivers the beginning of a message of `total` bytes, `length` of them. Returns its key.
fn first(engine: &mut MessageEngine<SimNic>, tag: u32, total: u64, length: u32) -> u64 {
    let id = u32::try_from(engine.messages.len()).expect("few");
    let head = Envelope { id, ..envelope(FrameKind::First, tag, length) };
    let opening = Opening { total, request: (1 << 32) + u64::from(tag), ..Opening::default() };
    let frame = arrival(&head, &opening.encode());
    assert_eq!(engine.frame(frame, &mut DirectReceive::nothing(&mut Discard)), Ok(()));
    engine.peers[1].stream(id).expect("it is open")
}

fn data(
    engine: &mut MessageEngine<SimNic>,
    id: u32,
    flags: u8,
    length: u32,
) -> Result<(), &'static str> {
    let head = Envelope { id, flags, ..envelope(FrameKind::Data, 0, length) };
    engine.frame(arrival(&head, &[]), &mut DirectReceive::nothing(&mut Discard))
}

/// Goal: the caller gets its message at once, straight from its place, and no other caller's. Method: everything
/// that a caller can want, against a message that fits or not, with and without a receive posted before.
#[test]
fn a_caller_gets_its_own_at_once() {
    let taken =
        |engine: &MessageEngine<SimNic>| (engine.unexpected.len(), engine.counters.unexpected);
    for posts in [false, true] {
        for (interest, tag, is_taken) in [
            (ReceiveInterest::Nothing, 1, false),
            (ReceiveInterest::Now(&tagged(1)), 1, true),
            (ReceiveInterest::Now(&tagged(1)), 2, false),
            (ReceiveInterest::Begin(&tagged(1)), 1, true),
            (ReceiveInterest::Begin(&tagged(1)), 2, false),
            // It is not in the area, so that it cannot be read there.
            (ReceiveInterest::View(&tagged(1)), 1, false),
        ] {
            let mut engine = lone();
            let posted = posts.then(|| engine.post_receive(tagged(tag)));
            let (status, bytes) = eager(&mut engine, interest, tag);
            let is_taken = is_taken && !posts;
            assert_eq!((status.is_some(), bytes.len()), (is_taken, if is_taken { 5 } else { 0 }));
            let waits = usize::from(!is_taken && !posts);
            assert_eq!(taken(&engine), (waits, to_u64(waits)), "{interest:?} {tag} {posts}");
            let matched = posted.map(|id| engine.requests.get(id.0).is_some_and(|one| {
                matches!(one, RequestEntry::Receive(one) if matches!(one.state, ReceiveState::Matched { .. }))
            }));
            assert_ne!(matched, Some(false));
            assert_eq!(engine.counters.messages_received, 1);
        }
    }
}

/// Goal: a receive that is polled gets its message at once; a message for another receive goes there. Method:
/// two receives, of which the first or the second is polled; a caller that has already got one.
#[test]
fn a_polled_receive_gets_its_own_at_once() {
    for polled in [0, 1] {
        let mut engine = lone();
        let ids = [(); 2].map(|()| engine.post_receive(tagged(1)));
        let (status, bytes) = eager(&mut engine, ReceiveInterest::Request(ids[polled].0), 1);
        assert_eq!((status.is_some(), bytes.len()), (polled == 0, [5, 0][polled]));
        assert_eq!(engine.requests.get(ids[0].0).is_none(), polled == 0, "it has ended");
        assert!(engine.requests.get(ids[1].0).is_some());
        assert_eq!(engine.messages.len(), polled);
    }
    let mut engine = lone();
    let mut bytes = Vec::new();
    let pattern = tagged(1);
    let mut direct = DirectReceive::new(ReceiveInterest::Now(&pattern), &mut bytes);
    for _ in 0..2 {
        let frame = arrival(&envelope(FrameKind::Eager, 1, 5), &[]);
        assert_eq!(engine.frame(frame, &mut direct), Ok(()));
    }
    assert_eq!((direct.result.map(|one| one.length), bytes.len()), (Some(5), 5));
    assert_eq!(engine.unexpected.len(), 1, "the second waits");
}

/// Goal: a caller without room gets what fits, and is told; a synchronous sender is told of the match, others
/// are not. Method: places of all lengths around the message's.
#[test]
fn a_place_that_is_too_short_clips() {
    for (room, flags) in [(0, 0), (4, FLAG_SYNCHRONOUS), (5, 0), (6, FLAG_SYNCHRONOUS)] {
        let mut engine = lone();
        let mut place = vec![0; room];
        let pattern = tagged(1);
        let mut direct = DirectReceive::new(ReceiveInterest::Now(&pattern), &mut place[..]);
        let head = Envelope { flags, id: 3, ..envelope(FrameKind::Eager, 1, 5) };
        assert_eq!(engine.frame(arrival(&head, &[]), &mut direct), Ok(()));
        let status = direct.result.expect("it fits the pattern");
        assert_eq!((status.length, status.is_truncated()), (5, room < 5));
        let filled = room.min(5);
        assert_eq!(
            (&place[..filled], &place[filled..]),
            (&[7; 5][..filled], &[0; 1][..room - filled])
        );
        let expected = if flags == 0 { vec![] } else { vec![Control::Matched { request: 3 }] };
        assert_eq!(told(&mut engine), expected);
    }
}

/// Goal: frames that no honest peer would send are refused, and the longest that are allowed are not. Method:
/// lengths that are not those announced, more than was granted, streams that are not open.
#[test]
fn impossible_frames_are_refused() {
    let refused = |head: &Envelope, more: &[u8]| {
        let mut engine = lone();
        engine.frame(arrival(head, more), &mut DirectReceive::nothing(&mut Discard)).is_err()
    };
    let whole = envelope(FrameKind::Eager, 0, 0);
    assert!(!refused(&whole, &[]) && refused(&whole, &[0]));
    assert!(refused(&envelope(FrameKind::Reserved, 0, 4), &[]), "not in the area");
    let begin = |length: u32| envelope(FrameKind::First, 0, length);
    let opening = |total: u64| Opening { total, ..Opening::default() }.encode();
    assert!(refused(&begin(0), &opening(9)[1..]), "no whole opening");
    assert!(!refused(&begin(9), &opening(10)) && refused(&begin(11), &opening(10)));
    let longer = [&opening(10)[..], &[0]].concat();
    assert!(refused(&begin(5), &longer), "more than announced");
    assert!(!refused(&begin(2048), &opening(5000)) && refused(&begin(2049), &opening(5000)));
    let outside = Envelope { id: STREAMS_MAX, ..begin(9) };
    assert!(refused(&outside, &opening(10)), "no such stream");
    let keyed = Envelope { flags: FLAG_KEY, ..begin(0) };
    assert!(!refused(&keyed, &opening(10)));
    assert!(refused(&Envelope { length: 1, ..keyed }, &opening(10)), "it is in its memory");
    let announced = Envelope { flags: FLAG_ANNOUNCED, ..begin(0) };
    assert!(!refused(&announced, &opening(10)));
    assert!(refused(&Envelope { length: 1, ..announced }, &opening(10)), "it is only announced");
}

/// Goal: data continues the message of its stream, up to what was granted, and its last frame says so. Method: a
/// message of three frames, and frames that are wrong at each point.
#[test]
fn data_is_counted() {
    let start = || {
        let mut engine = lone();
        let key = first(&mut engine, 1, 2048 + 10, 48);
        (engine, key)
    };
    let (mut engine, key) = start();
    assert_eq!(data(&mut engine, 0, 0, 2000), Ok(()));
    let message = engine.messages.get(key).expect("it is kept");
    assert_eq!((message.arrived, message.granted, message.has_all_arrived()), (2048, 2048, false));
    assert!(data(&mut engine, 0, FLAG_LAST, 10).is_err(), "more than was granted");
    for (id, flags, length) in [(1, 0, 5), (0, 0, 0), (0, FLAG_LAST, 5), (0, 0, 2001)] {
        let (mut engine, _) = start();
        assert!(data(&mut engine, id, flags, length).is_err(), "{id} {flags} {length}");
    }
    for flags in [0, FLAG_LAST] {
        let mut engine = lone();
        let key = first(&mut engine, 1, 100, 48);
        assert_eq!(data(&mut engine, 0, flags, 52).is_ok(), flags != 0);
        assert_eq!(engine.peers[1].stream(0).is_none(), flags != 0);
        assert!(engine.messages.get(key).is_some_and(|one| one.has_all_arrived() == (flags != 0)));
    }
    let (mut engine, _) = start();
    let mut nowhere = Discard;
    let mut direct = DirectReceive::nothing(&mut nowhere);
    let head = envelope(FrameKind::Data, 0, 5);
    assert!(engine.frame(arrival(&head, &[0]), &mut direct).is_err(), "not as announced");
    let other = Envelope { id: 0, ..envelope(FrameKind::First, 2, 1) };
    let opening = Opening { total: 10, ..Opening::default() }.encode();
    let (mut engine, _) = start();
    assert!(engine.frame(arrival(&other, &opening), &mut direct).is_err(), "it is in use");
}

/// Goal: messages that are not received count by their bytes and their number; the sender is told once to pause when they
/// exceed a limit, and to resume when half of it is left. Method: to the byte, and to the message.
#[test]
fn a_flood_is_paused_and_resumed() {
    let mut engine = lone();
    first(&mut engine, 1, 3000, 100);
    let (_, _) = eager(&mut engine, ReceiveInterest::Nothing, 2);
    let peer = &engine.peers[1];
    assert_eq!((peer.parked_bytes, peer.parked_messages), (2048 + 5, 2));
    assert!(told(&mut engine).is_empty());

    let mut engine = lone();
    let messages = [4096, 1, 1, 4094].map(|parked| {
        let key = engine.messages.insert(IncomingMessage::new(label(1), 0, 0, parked));
        let message = engine.messages.get_mut(key).expect("just made");
        (message.parked, message.counts_as) = (parked, UnmatchedKind::Kept);
        assert_eq!(engine.park(1, parked), Ok(()));
        key
    });
    assert_eq!((told(&mut engine), engine.counters.pauses), (vec![], 0), "the limit itself");
    assert_eq!(engine.park(1, 2), Ok(()));
    assert_eq!(engine.park(1, 0), Ok(()));
    assert_eq!((told(&mut engine), engine.counters.pauses), (vec![Control::Pause], 1));
    assert_eq!(engine.park(2, 8192), Ok(()), "another rank");
    assert!(!engine.peers[2].has_paused);
    engine.unpark(messages[3]);
    assert_eq!((engine.peers[1].parked_bytes, told(&mut engine)), (4100, vec![]));
    engine.unpark(messages[1]);
    engine.unpark(messages[1]);
    engine.unpark(messages[2]);
    assert_eq!((engine.peers[1].parked_bytes, told(&mut engine)), (4098, vec![]));
    engine.peers[1].parked_bytes -= 1;
    let message = engine.messages.get_mut(messages[2]).expect("it is there");
    (message.parked, message.counts_as) = (1, UnmatchedKind::Kept);
    engine.unpark(messages[2]);
    assert_eq!((engine.peers[1].parked_bytes, told(&mut engine)), (4096, vec![Control::Resume]));
    engine.unpark(messages[0]);
    assert_eq!((engine.peers[1].parked_bytes, told(&mut engine)), (0, vec![]), "once");

    let mut engine = lone();
    engine.config.unexpected_messages_max = 5;
    for tag in 0..6 {
        assert!(told(&mut engine).is_empty());
        eager(&mut engine, ReceiveInterest::Nothing, tag);
    }
    assert_eq!((told(&mut engine), engine.kept()), (vec![Control::Pause], 6));
    for (tag, left) in (0..6).zip([5, 4, 3, 2, 1, 0]) {
        assert!(engine.receive_unexpected(&tagged(tag), &mut Vec::new()).is_some());
        let peer = &engine.peers[1];
        assert_eq!((peer.parked_bytes, peer.parked_messages), (left * 5, left));
        let due = if left == 2 { vec![Control::Resume] } else { vec![] };
        assert_eq!(told(&mut engine), due, "{left}");
    }
}

/// Goal: a peer that keeps sending when it should pause is cut off once it has sent more than could be under
/// way. Method: all that, and one byte more.
#[test]
fn a_flood_that_goes_on_is_cut_off() {
    // Both limits, four areas, and for each unit of one a message and its window. The one that comes last counts, too.
    let most = 8192 + 100 * BOOKS + 4 * 4096 + 64 * (BOOKS + 2048) - BOOKS;
    for (bytes, is_cut) in [(most, false), (most + 1, true)] {
        let mut engine = lone();
        engine.config.unexpected_messages_max = 100;
        assert_eq!(engine.park(1, bytes).is_err(), is_cut);
        assert_eq!(engine.peers[1].parked_bytes, bytes);
    }
}

/// Goal: a pause does not stop a message that a receive takes: its sender is told at once how far it may go.
/// Method: a message of each kind, before the pause; and one that is matched after it.
#[test]
fn matched_messages_go_on_in_a_pause() {
    let mut engine = lone();
    let taken = engine.post_receive(tagged(3));
    for (tag, total, length) in [(2, 3000, 10), (3, 3000, 10)] {
        first(&mut engine, tag, total, length);
    }
    let whole = engine.post_receive(tagged(4));
    eager(&mut engine, ReceiveInterest::Nothing, 4);
    let fetched = engine.post_receive(tagged(5));
    let keyed = Envelope { flags: FLAG_KEY, id: 9, ..envelope(FrameKind::First, 5, 0) };
    let opening = Opening { total: 3000, request: (1 << 32) + 5, ..Opening::default() }.encode();
    let mut nowhere = Discard;
    let mut direct = DirectReceive::nothing(&mut nowhere);
    assert_eq!(engine.frame(arrival(&keyed, &opening), &mut direct), Ok(()));
    for id in [taken, whole, fetched] {
        assert!(matches!(
            engine.requests.get(id.0),
            Some(RequestEntry::Receive(ReceiveRequest { state: ReceiveState::Matched { .. }, .. }))
        ));
    }
    assert!(told(&mut engine).is_empty());
    assert_eq!(engine.park(1, 8192), Ok(()));
    let grant = |tag: u64| Control::Grant { request: (1 << 32) + tag, limit: 2048 };
    assert_eq!(told(&mut engine), [Control::Pause, grant(3)]);
    engine.post_receive(tagged(2));
    assert_eq!(told(&mut engine), [grant(2)], "matched now");
}

/// Goal: a match is reported to a synchronous sender, and during a pause to any sender whose message is not
/// whole. Method: all combinations.
#[test]
fn a_match_is_told() {
    for case in 0..16 {
        let [is_synchronous, has_paused, is_whole, is_remote] =
            [1, 2, 4, 8].map(|bit| case & bit > 0);
        let mut engine = lone();
        engine.peers[1].has_paused = has_paused;
        let flags = if is_synchronous { FLAG_SYNCHRONOUS } else { 0 };
        let mut message = IncomingMessage::new(label(1), flags, 77, 100);
        message.arrived = if is_whole { 100 } else { 10 };
        message.remote = is_remote.then_some((RemoteKey(1), 0));
        let key = engine.messages.insert(message);
        let request = engine.post_receive(tagged(9));
        engine.matched(key, request.0);
        let mut expected = Vec::new();
        expected.extend(is_synchronous.then_some(Control::Matched { request: 77 }));
        let is_granted = has_paused && !is_whole && !is_remote;
        expected.extend(is_granted.then_some(Control::Grant { request: 77, limit: 100 }));
        assert_eq!(told(&mut engine), expected, "{case}");
        assert_eq!(engine.messages.get(key).and_then(|one| one.request), Some(request.0));
    }
}

/// Goal: more is granted when half of the window was taken, up to the end of the message, and not to messages
/// that need no grant. Method: to the byte; and each kind that needs none.
#[test]
fn grants_follow_what_was_taken() {
    let mut engine = lone();
    let key = engine.messages.insert(IncomingMessage::new(label(1), 0, 77, 4000));
    engine.messages.get_mut(key).expect("just made").granted = 2048;
    engine.consumed(key, 1023);
    assert!(told(&mut engine).is_empty());
    engine.consumed(key, 1);
    assert_eq!(told(&mut engine), [Control::Grant { request: 77, limit: 3072 }]);
    engine.consumed(key, 1024);
    assert_eq!(told(&mut engine), [Control::Grant { request: 77, limit: 4000 }]);
    engine.consumed(key, 1900);
    assert!(told(&mut engine).is_empty(), "all of it is granted");
    for case in 0..4 {
        let mut message = IncomingMessage::new(label(1), 0, 77, 4000);
        message.granted = if case == 1 { 4000 } else { 2048 };
        message.remote = (case == 2).then_some((RemoteKey(1), 0));
        message.is_cancelled = case == 3;
        let key = engine.messages.insert(message);
        engine.consumed(key, 2000);
        assert_eq!(told(&mut engine).len(), usize::from(case == 0), "{case}");
        assert_eq!(engine.messages.get(key).map(|one| one.consumed), Some(2000));
    }
}

/// Goal: a sender gets its message back unless a receive has matched it, and only its own. Method: messages that
/// each differ in one thing from the one asked for, by its whole number or its index.
#[test]
fn a_message_is_given_back() {
    const ASKED: u64 = 5 << 32 | 6;
    for (source, sender, waits, is_found) in [
        (1, ASKED, true, true),
        (1, 6, true, true),
        (1, ASKED + 1, true, false),
        (1, 7, true, false),
        (2, ASKED, true, false),
        (1, ASKED, false, false),
    ] {
        let mut engine = lone();
        let mut message = IncomingMessage::new(Label { source, ..label(1) }, 0, sender, 100);
        (message.parked, message.counts_as) = (100, UnmatchedKind::Kept);
        (message.arrived, message.consumed) = (20, 20);
        engine.peers[source as usize].parked_bytes = 300;
        engine.peers[source as usize].parked_messages = 1;
        let key = engine.messages.insert(message);
        if waits {
            let node = engine.unexpected.insert(
                Label { source, ..label(1) },
                Unexpected::Begun { key, sender: sender.index() },
            );
            engine.messages.get_mut(key).expect("just made").node = Some(node);
        }
        engine.cancel_wanted(1, ASKED);
        let answer = Control::Cancelled { request: ASKED, is_cancelled: is_found };
        assert_eq!(told(&mut engine), [answer], "{source} {sender} {waits}");
        let message = engine.messages.get(key).expect("the rest is still to come");
        assert_eq!((message.is_cancelled, message.is_discarded), (is_found, is_found));
        assert_eq!(engine.unexpected.len(), usize::from(waits && !is_found));
        assert_eq!(engine.peers[source as usize].parked_bytes, if is_found { 200 } else { 300 });
    }
}

/// Goal: a receive of a message that was asked for before asks no second time, and one of fewer bytes than came says so. Method: by hand.
#[test]
fn what_was_asked_for_is_not_asked_for_again() {
    for granted in [0, 100] {
        let mut engine = lone();
        engine.peers[1].has_paused = true;
        let receive = ReceiveRequest::new(tagged(1), ReceiveState::Posted { node: 0 });
        let request = engine.requests.insert(RequestEntry::Receive(receive));
        let mut message = IncomingMessage::new(label(1), 0, 77, 100);
        (message.is_announced, message.granted) = (true, granted);
        let key = engine.messages.insert(message);
        engine.matched(key, request);
        assert_eq!(told(&mut engine).len(), usize::from(granted == 0));
    }
    let mut engine = lone();
    eager(&mut engine, ReceiveInterest::Nothing, 2);
    let received = engine.receive_unexpected(&tagged(2), &mut [0; 3][..]).flatten();
    assert!(received.is_some_and(|status| status.is_truncated() && status.length == 5));
}

/// Goal: the same for a whole message, of few bytes or many, which is not among the engine's messages. Method: one by one.
#[test]
fn a_whole_message_is_given_back() {
    const ASKED: u64 = 5 << 32 | 6;
    for length in [5, 500] {
        for (source, sender, is_found) in [(1, 6, true), (1, 7, false), (2, 6, false)] {
            let mut engine = lone();
            let whole = if length == 5 {
                WholeMessage::few(ShortBody::new(&[7; 5]).expect("short"), 0, sender)
            } else {
                WholeMessage::many(vec![7; length + 16], 16, 0, sender)
            };
            let place = Label { source, ..label(1) };
            assert_eq!(engine.keep_whole(place, 0, whole), Ok(()));
            assert_eq!(engine.kept(), 1);
            engine.cancel_wanted(1, ASKED);
            let answer = Control::Cancelled { request: ASKED, is_cancelled: is_found };
            assert_eq!(told(&mut engine), [answer], "{source} {sender} {length}");
            assert_eq!(engine.kept(), usize::from(!is_found));
            let left = if is_found { 0 } else { to_u64(length) };
            assert_eq!(engine.peers[source as usize].parked_bytes, left);
        }
    }
}

/// Goal: as many answers are kept for a peer as there can be: some, one for each message that is kept before a receive matches it, and four for
/// each thing under way. Method: three things, as many answers, and one more.
#[test]
fn answers_are_bounded_by_what_is_on_its_way() {
    let mut engine = lone();
    engine.post_receive(tagged(1));
    engine.post_receive(tagged(2));
    engine.messages.insert(IncomingMessage::new(label(3), 0, 0, 10));
    engine.config.unexpected_messages_max = 100;
    for _ in 0..CONTROLS_WAITING_MAX + 100 + 12 {
        engine.queue_control(1, Control::Resume);
    }
    assert_eq!(engine.failure(1), None);
    engine.queue_control(1, Control::Resume);
    assert!(engine.failure(1).is_some());
    engine.queue_control(1, Control::Resume);
    assert!(told(&mut engine).is_empty(), "nothing is kept for it");
    assert!(matches!(engine.next_event(), Some(EngineEvent::Failed { rank: 1, .. })));
}

/// Goal: a frame that the caller does not want is read, and that is reported. Method: a message to oneself.
#[test]
fn a_step_aside_reads_one_thing() {
    let mut engine = lone();
    let payload = Payload::Owned(vec![1]);
    assert!(engine.send(0, 0, 1, SendMode::Standard, payload).is_ok());
    assert!(engine.step_aside() && engine.unexpected.len() == 1);
    assert!(!engine.step_aside());
}

/// Goal: a message in several frames goes to the caller that wants any, from its beginning on, and its request
/// gets the rest; one that does not fit goes elsewhere. Method: patterns that fit and do not.
#[test]
fn a_message_begins_for_its_caller() {
    for (tag, fits) in [(1, true), (2, false)] {
        let mut engine = lone();
        let mut bytes = Vec::new();
        let pattern = tagged(tag);
        let mut direct = DirectReceive::new(ReceiveInterest::Begin(&pattern), &mut bytes);
        let opening = Opening { total: 100, ..Opening::default() }.encode();
        let frame = arrival(&envelope(FrameKind::First, 1, 40), &opening);
        assert_eq!(engine.frame(frame, &mut direct), Ok(()));
        assert_eq!((direct.begun.is_some(), direct.result), (fits, None));
        let begun = direct.begun;
        assert_eq!(bytes.len(), if fits { 40 } else { 0 });
        assert_eq!(engine.unexpected.len(), usize::from(!fits));
        let Some(id) = begun else { continue };
        let mut direct = DirectReceive::new(ReceiveInterest::Request(id.0), &mut bytes);
        let last = Envelope { flags: FLAG_LAST, ..envelope(FrameKind::Data, 1, 60) };
        assert_eq!(engine.frame(arrival(&last, &[]), &mut direct), Ok(()));
        assert_eq!(direct.result.map(|one| one.length), Some(100));
        assert_eq!((bytes, engine.kept()), (vec![7; 100], 0));
    }
}

/// Goal: messages that the receiver would read from their sender's memory wait for their owner while it receives others of that rank, but
/// not for ever: then one after the other is taken; all are, once it receives nothing. Method: three such messages in virtual time, and
/// what their sender is told.
#[test]
fn messages_in_a_row_wait_for_their_owner() {
    let mut engine = lone();
    for tag in [1, 2, 3] {
        let _ = engine.post_receive_as(tagged(tag), u64::MAX, false);
        let head = Envelope { id: tag, flags: FLAG_KEY, ..envelope(FrameKind::First, tag, 0) };
        let opening = Opening { total: 5000, request: 1 << 32, ..Opening::default() };
        let frame = arrival(&head, &opening.encode());
        assert_eq!(engine.frame(frame, &mut DirectReceive::nothing(&mut Discard)), Ok(()));
    }
    let mut granted_at = Vec::new();
    for millis in 0..200 {
        if millis < 130 {
            engine.has_taken(1);
        }
        engine.serve_unattended(Instant::from_nanos(1 + millis * 1_000_000));
        let granted = told(&mut engine);
        assert!(granted.iter().all(|one| matches!(one, Control::Grant { limit: 2048, .. })));
        granted_at.extend(granted.iter().map(|_| millis));
    }
    assert_eq!(granted_at, [50, 100, 130]);
}

/// Goal: what arrives of a message before its owner polls is kept in one piece, which a vector takes as it is and a slice copies; a receive
/// that takes less keeps no more. Method: a message of many frames for each, and where its bytes are.
#[test]
fn a_message_is_kept_in_one_piece() {
    const LENGTH: usize = 5000;
    for limit in [LENGTH, 1000] {
        let mut pair = Pair::new(small());
        let id = pair.engine(1).post_receive_as(tagged(1), to_u64(limit), false);
        let _ = pair.begin(1, SendMode::Standard, LENGTH);
        for _ in 0..50 {
            pair.serve(0);
            pair.serve(1);
        }
        let engine = pair.engine(1);
        let Some(RequestEntry::Receive(receive)) = engine.requests.get(id.0) else {
            panic!("gone")
        };
        let ReceiveState::Matched { message } = receive.state else { panic!("not matched") };
        let parts: Vec<_> = engine.messages.get_mut(message).expect("kept").parts.drain().collect();
        assert_eq!(parts.iter().map(|part| part.bytes.len()).sum::<usize>(), limit);
        assert_eq!(parts[0].bytes, vec![7; limit]);
        let place = parts[0].bytes.as_ptr();
        parts
            .into_iter()
            .for_each(|part| engine.messages.get_mut(message).expect("kept").parts.push(part));
        let mut bytes = Vec::new();
        let Poll::Ready(Ok(status)) = engine.poll_receive(id, &mut bytes) else {
            panic!("not whole")
        };
        assert_eq!((status.length, status.is_truncated()), (to_u64(LENGTH), limit < LENGTH));
        assert_eq!((bytes.as_ptr(), bytes.len()), (place, limit), "not copied");
    }
}
