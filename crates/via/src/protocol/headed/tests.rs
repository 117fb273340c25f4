//! Frames that come with their head, handed to an engine as a NIC would.

use vigie_detect::Instant;

use super::*;
use crate::{
    protocol::{
        EngineConfig, EngineEvent, SendState,
        envelope::FLAG_READY,
        payload::Discard,
        tests::{Pair, small, tagged},
    },
    shm::Shm,
    sim::SimNic,
    vi::{Reliability, ShortBody},
};

/// Returns the write of a frame of rank 0 to rank 1, whose bytes are in the area already if they are many.
fn write(pair: &mut Pair, envelope: &Envelope, body: &[u8]) -> HeadedWrite {
    let link = reliable_mut(&mut pair.engine(1).peers, 0).expect("a link");
    let length = u32::try_from(16 + body.len()).expect("few");
    let next = link.reader.next_body(length).0 - 16;
    let begins_anew = next + length > link.reader.size_units() * 64;
    let offset = u64::from(if begins_anew { next % 64 } else { next });
    let length = i32::try_from(length).expect("few");
    let immediate = if begins_anew { -length } else { length };
    let body = match ShortBody::new(body) {
        Some(short) => HeadedBody::Here(short),
        None => {
            link.area.memory.write(offset + 16, body).expect("inside");
            HeadedBody::InPlace(u32::try_from(body.len()).expect("few"))
        }
    };
    HeadedWrite {
        vi: link.vi,
        cookie: 0,
        immediate,
        key: link.area.key,
        offset,
        head: u128::from_le_bytes(envelope.encode()),
        body,
    }
}

fn eager(tag: u32, length: usize) -> Envelope {
    let length = u32::try_from(length).expect("few");
    Envelope { kind: FrameKind::Eager, flags: 0, context: 0, tag, id: u32::MAX, length }
}

fn take(
    engine: &mut MessageEngine<SimNic>,
    write: HeadedWrite,
    sink: &mut Vec<u8>,
    tag: u32,
) -> Option<Status> {
    let pattern = tagged(tag);
    let mut direct = DirectReceive::new(ReceiveInterest::Begin(&pattern), sink);
    engine.take_headed(write, &mut direct);
    direct.result
}

/// Goal: a whole message goes to the caller that waits for it, to a posted receive, or to the heap, with all of its bytes and whatever its
/// length, and leaves nothing in the area. Method: bodies around the longest that travels with its head, for each taker.
#[test]
fn messages_reach_their_takers() {
    for length in [0, 1, 8, 24, 25, 300] {
        let mut pair = Pair::new(small());
        let body: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).expect("small")).collect();
        for round in 0..40 {
            let tag = round % 4;
            let mut envelope = eager(tag, length);
            envelope.flags = FLAG_READY;
            let arrived = write(&mut pair, &envelope, &body);
            let engine = pair.engine(1);
            let mut sink = Vec::new();
            let before = engine.counters();
            match tag {
                0 => {
                    let status = take(engine, arrived, &mut sink, 0).expect("for the caller");
                    assert_eq!((status.length, status.is_truncated()), (length as u64, false));
                }
                1 => {
                    let id = engine.post_receive(tagged(1));
                    assert_eq!(take(engine, arrived, &mut sink, 1), None, "posted before");
                    assert!(engine.poll_receive(id, &mut sink).is_ready());
                }
                2 => {
                    assert_eq!(take(engine, arrived, &mut sink, 77), None, "another tag");
                    assert_eq!(engine.counters().ready_unexpected, before.ready_unexpected + 1);
                    assert!(engine.try_recv(tagged(2), &mut sink).is_some());
                }
                _ => {
                    let id = engine.post_receive(tagged(3));
                    let mut direct = DirectReceive::new(ReceiveInterest::Request(id.0), &mut sink);
                    engine.take_headed(arrived, &mut direct);
                    assert!(direct.result.is_some());
                }
            }
            assert_eq!(sink, body);
            assert_eq!(engine.counters().messages_received, before.messages_received + 1);
            assert_eq!((engine.kept(), engine.failure(0)), (0, None));
            let link = reliable_mut(&mut engine.peers, 0).expect("a link");
            assert_eq!(link.reader.held(), 0, "all was released");
            // The peer is told as for any other: it may use the place again.
            pair.serve(1);
        }
    }
}

/// Goal: the peer gets the credits of such messages, a quarter of its descriptors at a time or when this side sleeps. Method: one less than a
/// quarter, a quarter; one and sleep.
#[test]
fn credits_come_back() {
    let mut pair = Pair::new(small());
    let receive = |pair: &mut Pair| {
        let arrived = write(pair, &eager(0, 8), &[1; 8]);
        assert!(take(pair.engine(1), arrived, &mut Vec::new(), 0).is_some());
        pair.travel(1)
    };
    let told: Vec<u64> = (0..17).map(|_| receive(&mut pair)).collect();
    let due = (1..=17).map(|count: u64| u64::from(count.is_multiple_of(8)));
    assert!(told.iter().copied().eq(due), "{told:?}");
    let _ = pair.engine(1).arm().expect("arms");
    assert_eq!(pair.travel(1), 1);
}

/// Goal: a message is cut to what its sink takes, which may take it in pieces. Method: slices that are too short.
#[test]
fn a_sink_may_be_short() {
    for (length, room) in [(8, 0), (8, 3), (24, 23), (300, 299), (300, 7)] {
        let mut pair = Pair::new(small());
        let arrived = write(&mut pair, &eager(1, length), &vec![9; length]);
        let pattern = tagged(1);
        let mut sink = vec![0; room];
        let mut direct = DirectReceive::new(ReceiveInterest::Begin(&pattern), &mut sink[..]);
        pair.engine(1).take_headed(arrived, &mut direct);
        let status = direct.result.expect("received");
        assert_eq!((status.length, status.is_truncated()), (length as u64, true));
        assert_eq!(sink, vec![9; room]);
    }
}

/// Goal: frames of other kinds, views and control entries are handled as always: their bytes are put where they were sent. Method: one of each.
#[test]
fn other_writes_go_to_their_place() {
    let mut pair = Pair::new(small());
    let arrived = write(&mut pair, &eager(1, 8), &[5; 8]);
    let pattern = tagged(1);
    let mut sink = Vec::new();
    let mut direct = DirectReceive::new(ReceiveInterest::View(&pattern), &mut sink);
    pair.engine(1).take_headed(arrived, &mut direct);
    let view = direct.view.take().expect("read in place");
    assert_eq!(direct.result.map(|status| status.length), Some(8));
    let mut bytes = [0; 8];
    view.read(0, &mut bytes).expect("inside");
    assert_eq!(bytes, [5; 8]);

    let control = Control::Pause.encode();
    let (head, rest) = control.split_first_chunk().expect("longer");
    let link = reliable(&pair.engine(1).peers, 0).expect("a link");
    let arrived = HeadedWrite {
        vi: link.vi,
        cookie: 0,
        immediate: crate::protocol::link::CONTROL_IMMEDIATE,
        key: link.control.key,
        offset: 64,
        head: u128::from_le_bytes(*head),
        body: HeadedBody::Here(ShortBody::new(rest).expect("short")),
    };
    assert_eq!(take(pair.engine(1), arrived, &mut Vec::new(), 1), None);
    let engine = pair.engine(1);
    assert_eq!((engine.peers[0].is_paused, engine.failure(0)), (true, None));
}

/// Goal: what no honest peer sends ends the connection, and nothing is received. Method: one thing wrong each.
#[test]
fn a_peer_that_lies_is_given_up() {
    for (what, fault) in [
        ("elsewhere", 0),
        ("another length than announced", 1),
        ("a length beyond the area", 2),
        ("an unknown kind", 3),
        ("outside the area", 4),
    ] {
        let mut pair = Pair::new(small());
        let mut envelope = eager(1, 8);
        envelope.length += u32::from(fault == 1);
        let mut arrived = write(&mut pair, &envelope, &[5; 8]);
        match fault {
            0 => arrived.offset += 64,
            2 => {
                arrived.body = HeadedBody::InPlace(5000);
                arrived.immediate = 5016;
                arrived.head = u128::from_le_bytes(eager(1, 5000).encode());
            }
            3 => arrived.head = 99,
            4 => (arrived.head, arrived.offset) = (99, 1 << 40),
            _ => {}
        }
        let received = take(pair.engine(1), arrived, &mut Vec::new(), 1);
        assert_eq!(received, None, "{what}");
        assert!(pair.engine(1).failure(0).is_some(), "{what}");
    }
}

/// Goal: over unreliable VIs acknowledgements, which are as short, reach the protocol that waits for them. Method: messages one way over shared
/// memory, more than may be under way, at one moment, so that nothing is sent again; the sender polls as those who wait.
#[test]
fn acknowledgements_are_no_frames() {
    for reliability in [Reliability::Unreliable, Reliability::ReliableDelivery] {
        let config = EngineConfig { reliability, ..EngineConfig::default() };
        let mut engines = [0, 1].map(|rank| {
            let mut nic = Shm::open().expect("a NIC");
            nic.listen(b"messages").expect("listens");
            MessageEngine::new(nic, rank, 2, config).expect("an engine")
        });
        let address = engines[1].nic().address();
        engines[0].connect(1, &address, b"messages", Instant::MAX).expect("asks");
        let (mut connected, mut now) = (0, Instant::from_nanos(1));
        while connected < 2 {
            now += std::time::Duration::from_millis(1);
            for engine in &mut engines {
                engine.progress(now);
                while let Some(event) = engine.next_event() {
                    match event {
                        EngineEvent::Requested { request, rank: Some(rank), .. } => {
                            engine.accept(request, rank).expect("accepts");
                        }
                        EngineEvent::Connected { .. } => connected += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
        }

        let [sender, receiver] = &mut engines;
        for number in 0..5000_u32 {
            let sent = sender.send_bytes(1, 0, 7, SendMode::Standard, &number.to_le_bytes());
            assert_eq!(sent, Ok(SendState::Done), "{number} over {reliability:?}");
            let mut found = [0; 4];
            assert!(receiver.try_recv(tagged(7), &mut found[..]).is_some(), "{number}");
            assert_eq!(u32::from_le_bytes(found), number);
            receiver.progress(now);
            assert!(sender.try_recv(tagged(99), &mut Discard).is_none(), "nothing was sent back");
        }
        sender.progress(now);
        assert!(sender.has_all_left(), "{reliability:?}");
    }
}
