//! What survivors of a failed rank rely on, between engines over shared memory in one process.

use std::{io::IoSlice, task::Poll};

use vigie_detect::{ArmOutcome, Instant};
use vigie_via::{
    protocol::{
        EngineConfig, EngineEvent, MessageEngine, Pattern, Payload, RequestError, SendError,
        SendMode, SendState,
    },
    shm::Shm,
    vi::{Connect, DisconnectReason, NicEvent, Provider, Reliability, ViAttributes},
};

const POLLS_MAX: u32 = 100_000;

fn engines() -> (MessageEngine<Shm>, MessageEngine<Shm>) {
    let mut engines = [0, 1].map(|rank| {
        let mut nic = Shm::open().expect("a NIC");
        nic.listen(b"messages").expect("no other listener");
        MessageEngine::new(nic, rank, 2, EngineConfig::default()).expect("an engine")
    });
    let address = engines[1].nic().address();
    engines[0].connect(1, &address, b"messages", Instant::MAX).expect("asks");
    let mut connected = 0;
    for _ in 0..POLLS_MAX {
        for engine in &mut engines {
            engine.progress(Instant::now());
            while let Some(event) = engine.next_event() {
                match event {
                    EngineEvent::Requested { request, rank: Some(rank), .. } => {
                        engine.accept(request, rank).expect("accepts");
                    }
                    EngineEvent::Connected { .. } => connected += 1,
                    event => panic!("{event:?}"),
                }
            }
        }
        if connected == 2 {
            let [one, other] = engines;
            return (one, other);
        }
    }
    panic!("not connected");
}

fn from_0() -> Pattern {
    Pattern { context: 0, source: Some(0), tag: None }
}

/// Goal: the last messages of a rank that leaves are received, however late, and only then its failure
/// is reported. Method: messages of one and of several frames, and the end of the sender before the
/// receiver polls.
#[test]
fn last_words_are_heard() {
    let (mut one, mut other) = engines();
    let long = vec![7; 50_000];
    let words: [&[u8]; 3] = [b"first", &long, b"last"];
    for word in words {
        let slices = [IoSlice::new(word)];
        let sent = one.send(1, 0, 0, SendMode::Standard, Payload::Borrowed(&slices));
        assert_eq!(sent, Ok(SendState::Done));
    }
    drop(one);
    for word in words {
        let id = other.post_receive(from_0());
        let mut found = Vec::new();
        let received = (0..POLLS_MAX).find_map(|_| {
            other.progress(Instant::now());
            match other.poll_receive(id, &mut found) {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            }
        });
        let status = received.expect("a message").expect("sent before the end");
        assert_eq!((status.source, found.as_slice()), (0, word));
    }
    let mut found = Vec::new();
    let id = other.post_receive(from_0());
    let failed = (0..POLLS_MAX).find_map(|_| {
        other.progress(Instant::now());
        match other.poll_receive(id, &mut found) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    });
    let reason = DisconnectReason::Disconnected;
    assert_eq!(failed, Some(Err(RequestError::PeerFailed { rank: 0, reason })));
    let slices = [IoSlice::new(b"hello")];
    let sent = other.send(0, 0, 0, SendMode::Standard, Payload::Borrowed(&slices));
    assert_eq!(sent, Err(SendError::PeerFailed { rank: 0, reason }));
}

/// Goal: an engine whose peer has failed can sleep, even if the event is not taken. Method: end the
/// peer, and arm until it succeeds.
#[test]
fn a_failure_that_nobody_asks_about_keeps_nobody_awake() {
    let (one, mut other) = engines();
    drop(one);
    let armed = (0..POLLS_MAX).find(|_| {
        other.progress(Instant::now());
        other.failure(0).is_some() && matches!(other.arm(), Ok(ArmOutcome::Armed))
    });
    assert!(armed.is_some(), "never asleep");
    let reason = DisconnectReason::Disconnected;
    assert_eq!(other.next_event(), Some(EngineEvent::Failed { rank: 0, reason }));
}

/// Goal: connection requests that are not answered do not accumulate. Method: far more callers than the
/// engine keeps requests, each of which is told that it is rejected or leaves.
#[test]
fn requests_that_nobody_answers_are_bounded() {
    let mut nic = Shm::open().expect("a NIC");
    nic.listen(b"messages").expect("no other listener");
    let address = nic.address();
    let mut engine = MessageEngine::new(nic, 0, 2, EngineConfig::default()).expect("an engine");
    let mut caller = Shm::open().expect("a NIC");
    let tag = caller.create_tag();
    let attributes = ViAttributes {
        reliability: Reliability::ReliableDelivery,
        tag,
        send_cq: None,
        receive_cq: None,
        allows_write: true,
        allows_read: true,
    };
    let mut rejected = 0;
    for round in 0..2000 {
        let vi = caller.create_vi(attributes).expect("a VI");
        caller.connect(Connect::new(vi, &address, b"messages", Instant::MAX)).expect("idle");
        // Some leave before they are answered.
        if round % 2 == 1 {
            caller.disconnect(vi).expect("pending");
            caller.destroy_vi(vi).expect("idle");
        }
        for _ in 0..50 {
            engine.progress(Instant::now());
            caller.progress(Instant::now());
        }
        while let Some(event) = caller.next_event() {
            assert!(
                matches!(event, NicEvent::Refused { reason: DisconnectReason::Rejected, .. }),
                "{event:?}"
            );
            rejected += 1;
        }
        if rejected > 20 {
            break;
        }
    }
    assert!(rejected > 20, "{rejected} rejected");
    let kept = std::iter::from_fn(|| engine.next_event()).count();
    assert!((8..100).contains(&kept), "{kept} requests are kept");
}
