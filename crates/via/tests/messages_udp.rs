//! Messages over UDP: ranks in one process, each with a NIC of its own on the loopback interface.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "kit/pattern.rs"]
mod pattern;
#[path = "kit/ranks.rs"]
mod ranks;

use vigie_detect::Instant;
use vigie_via::{
    protocol::{EngineConfig, EngineEvent, MessageEngine, Pattern, SendMode, SendState},
    software_nic::{Secret, SoftwareNicConfig},
    udp::Udp,
    vi::Provider,
};

use crate::{
    pattern::pattern,
    ranks::{BOUND, with_ranks},
};

fn nic() -> Udp {
    let address = "127.0.0.1:0".parse().expect("an address");
    Udp::bind(address, Secret::new([6; 16]), SoftwareNicConfig::default()).expect("a NIC")
}

/// Goal: messages of all lengths arrive whole and in order. Method: there and back, with pauses in which both
/// ranks fall asleep.
#[test]
fn messages_go_there_and_back() {
    with_ranks(|| vec![nic(), nic()], ranks::there_and_back);
}

/// Goal: a message that arrives together with the packet that establishes the connection is not lost,
/// whichever call takes both. Method: two engines by hand. The answerer accepts and does not poll until
/// the other is connected and has sent; then it receives in each of the ways that take arrivals.
#[test]
fn a_message_comes_with_its_connection() {
    let engine =
        |rank| MessageEngine::new(nic(), rank, 2, EngineConfig::default()).expect("an engine");
    let whole = pattern(1000, 7);
    let from = Pattern { context: 0, source: Some(0), tag: Some(1) };
    for way in 0..3 {
        let (mut one, mut other) = (engine(0), engine(1));
        other.nic_mut().listen(b"messages").expect("no other listener");
        let address = other.nic().address();
        one.connect(1, &address, b"messages", Instant::MAX).expect("idle");
        let bound = Instant::now() + BOUND;
        let mut is_accepted = false;
        loop {
            assert!(Instant::now() < bound, "they do not meet");
            one.progress(Instant::now());
            if !is_accepted && let Some(EngineEvent::Requested { request, .. }) = other.next_event()
            {
                other.accept(request, 0).expect("it is asked for");
                is_accepted = true;
            }
            match one.next_event() {
                Some(EngineEvent::Connected { rank: 1 }) => break,
                None => {}
                Some(event) => panic!("{event:?}"),
            }
        }
        let sent = one.send_bytes(1, 0, 1, SendMode::Standard, &whole);
        assert_eq!(sent.expect("connected"), SendState::Done);
        one.progress(Instant::now());
        let mut found = vec![0; whole.len()];
        let request = (way == 1).then(|| other.post_receive(from));
        loop {
            assert!(Instant::now() < bound, "it is lost, by way {way}");
            let done = match request {
                Some(request) => other.poll_receive(request, &mut found[..]).is_ready(),
                None if way == 2 && other.probe(from).is_none() => false,
                None => other.try_recv(from, &mut found[..]).is_some(),
            };
            if done {
                break;
            }
            one.progress(Instant::now());
        }
        assert_eq!(found, whole);
    }
}

/// Goal: many ranks exchange messages at once. Method: five ranks, all to all, several rounds.
#[test]
fn all_to_all() {
    with_ranks(|| (0..5).map(|_| nic()).collect(), ranks::all_to_all);
}
