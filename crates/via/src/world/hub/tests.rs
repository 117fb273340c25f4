use super::*;
use crate::world::wire::Decoder;

fn hub(size: u32) -> Hub {
    Hub::new(size, Identity { id: [1; 16], secret: [2; 32] })
}

fn joined(size: u32) -> Hub {
    let mut hub = hub(size);
    for rank in (0..size).map(Rank) {
        hub.handle(rank, Request::Hello { version: VERSION });
    }
    assert_eq!(said(&mut hub).len(), usize::try_from(size).unwrap());
    hub
}

fn said(hub: &mut Hub) -> Vec<(u32, Reply)> {
    let mut said = Vec::new();
    while let Some((rank, bytes)) = hub.poll_transmit() {
        let mut decoder = Decoder::new();
        decoder.feed(&bytes);
        let frame = decoder.next_frame().unwrap().unwrap();
        said.push((rank.0, Reply::decode(frame).unwrap()));
    }
    said
}

fn put(key: &str) -> Request {
    Request::Put { key: key.to_owned(), value: b"v".to_vec() }
}

fn get(rank: Option<u32>, key: &str) -> Request {
    Request::Get { rank: rank.map(Rank), key: key.to_owned() }
}

fn value(rank: u32, key: &str) -> Reply {
    Reply::Value { rank: Rank(rank), key: key.to_owned(), value: b"v".to_vec() }
}

fn absent(rank: u32, key: &str) -> Reply {
    Reply::Absent { rank: Rank(rank), key: key.to_owned() }
}

const fn ended(rank: u32) -> Event {
    Event::Ended { rank: Rank(rank), ending: Ending::Killed(9) }
}

/// Goal: questions are answered once each, before or after the value comes. Method: one and all.
#[test]
fn questions() {
    let mut hub = joined(2);
    hub.handle(Rank(0), get(Some(1), "k"));
    hub.handle(Rank(0), get(None, "k"));
    assert_eq!(said(&mut hub), []);
    hub.handle(Rank(1), put("k"));
    assert_eq!(said(&mut hub), [(0, value(1, "k"))]);
    hub.handle(Rank(0), put("k"));
    assert_eq!(said(&mut hub), [(0, value(0, "k"))]);
    assert!(hub.questions.is_empty());
    assert!(hub.members.iter().all(|member| member.open_gets == 0));
    hub.handle(Rank(1), get(None, "k"));
    assert_eq!(said(&mut hub), [(1, value(0, "k")), (1, value(1, "k"))]);
}

/// Goal: nobody waits for the value of a rank that is gone; and what it had put stays. Method: each way
/// to go, with questions before and after.
#[test]
fn questions_for_the_gone() {
    for way in 0..3 {
        let mut hub = joined(3);
        hub.handle(Rank(1), put("a"));
        hub.handle(Rank(0), get(Some(1), "b"));
        hub.handle(Rank(2), get(None, "b"));
        match way {
            0 => hub.handle(Rank(1), Request::Leave),
            1 => hub.expel(Rank(1), "reason"),
            _ => hub.end(Rank(1), Ending::Killed(9)),
        }
        let said_now = said(&mut hub);
        assert!(said_now.contains(&(0, absent(1, "b"))), "{said_now:?}");
        assert!(said_now.contains(&(2, absent(1, "b"))), "{said_now:?}");
        hub.handle(Rank(0), get(Some(1), "a"));
        hub.handle(Rank(0), get(Some(1), "c"));
        assert_eq!(said(&mut hub), [(0, value(1, "a")), (0, absent(1, "c"))]);
        // The end of one that was gone already is told, and answers nothing twice.
        hub.end(Rank(1), Ending::Killed(9));
        let again = if way == 2 { vec![] } else { vec![ended(1)] };
        let expected = again.into_iter().flat_map(|event| [0, 2].map(|to| (to, event)));
        let expected = expected.map(|(to, event)| (to, Reply::Event(event)));
        assert_eq!(said(&mut hub), expected.collect::<Vec<_>>());
    }
}

/// Goal: a barrier waits for all who are there, also for those who have not joined yet, and for nobody
/// else; whoever passes has been told before. Method: an end, a late one, a second round.
#[test]
fn barriers() {
    let mut hub = hub(3);
    for rank in [0, 1] {
        hub.handle(Rank(rank), Request::Hello { version: VERSION });
        hub.handle(Rank(rank), Request::Enter { round: 1 });
    }
    assert_eq!(said(&mut hub).len(), 2);
    hub.end(Rank(1), Ending::Killed(9));
    assert_eq!(said(&mut hub), [(0, Reply::Event(ended(1)))]);
    hub.handle(Rank(2), Request::Hello { version: VERSION });
    // Told of what was before.
    assert_eq!(said(&mut hub)[1], (2, Reply::Event(ended(1))));
    hub.handle(Rank(2), Request::Enter { round: 1 });
    let passed = |round| [0, 2].map(|to| (to, Reply::Passed { round }));
    assert_eq!(said(&mut hub), passed(1));
    hub.handle(Rank(0), Request::Enter { round: 2 });
    hub.end(Rank(2), Ending::Exited(0));
    let told = said(&mut hub);
    assert_eq!(told[1], (0, Reply::Passed { round: 2 }), "{told:?}");
}

/// Goal: each broken rule expels its rank, and it alone. Method: one violation for each rule, beside a
/// rank that goes on.
#[test]
fn broken_rules() {
    let hello = || Request::Hello { version: VERSION };
    let flood = |count: usize, make: fn(&str) -> Request| {
        (0..count).map(|i| make(&format!("k{i}"))).collect::<Vec<_>>()
    };
    for (requests, why) in [
        (vec![put("k")], "the first message must be a greeting"),
        (vec![Request::Hello { version: 0 }], "another version of the protocol"),
        (vec![hello(), hello()], "a second greeting"),
        (vec![hello(), put("k"), put("k")], "a key was put twice"),
        (vec![hello(), get(Some(2), "k")], "a question for a rank that does not exist"),
        (vec![hello(), Request::Enter { round: 0 }], "a barrier out of order"),
        (vec![hello(), Request::Enter { round: 2 }], "a barrier out of order"),
        (
            vec![hello(), Request::Enter { round: 1 }, Request::Enter { round: 2 }],
            "a barrier out of order",
        ),
        ([vec![hello()], flood(KEYS_MAX + 1, put)].concat(), "too many keys"),
        (
            [vec![hello()], flood(GETS_MAX + 1, |key| get(Some(1), key))].concat(),
            "too many open questions",
        ),
    ] {
        let mut hub = hub(2);
        hub.handle(Rank(1), hello());
        for request in requests {
            assert!(hub.is_heard(Rank(0)), "{why}: too early");
            hub.handle(Rank(0), request);
        }
        assert!(!hub.is_heard(Rank(0)), "{why}");
        let told = said(&mut hub);
        let expelled = (0, Reply::Expelled { why: why.to_owned() });
        assert_eq!(told.iter().filter(|&one| *one == expelled).count(), 1, "{told:?}");
        assert_eq!(told.last(), Some(&(1, Reply::Event(Event::Expelled { rank: Rank(0) }))));
        hub.handle(Rank(1), Request::Enter { round: 1 });
        assert_eq!(said(&mut hub), [(1, Reply::Passed { round: 1 })], "{why}");
        // Nothing that it says is heard any more, nor is anything said to it.
        hub.handle(Rank(0), put("late"));
        hub.handle(Rank(1), get(Some(0), "late"));
        assert_eq!(said(&mut hub), [(1, absent(0, "late"))]);
    }
}

/// Goal: ranks that do not exist are no harm. Method: one beyond the end.
#[test]
fn no_such_rank() {
    let mut hub = joined(1);
    hub.handle(Rank(1), Request::Leave);
    hub.expel(Rank(u32::MAX), "reason");
    hub.end(Rank(1), Ending::Exited(0));
    assert_eq!(said(&mut hub), []);
    assert!(!hub.is_heard(Rank(1)));
}

/// Goal: ranks that do not arrive are named to those that have, whose waiting ends. Method: two of four.
#[test]
fn missing_ranks() {
    let mut hub = hub(4);
    for rank in [0, 2] {
        hub.handle(Rank(rank), Request::Hello { version: VERSION });
        hub.handle(Rank(rank), Request::Enter { round: 1 });
    }
    assert_eq!(said(&mut hub).len(), 2);
    assert_eq!(hub.missing(), [Rank(1), Rank(3)]);
    assert!(!hub.is_over());
    hub.dissolve();
    let missing = Reply::Missing { count: 2, ranks: vec![Rank(1), Rank(3)] };
    assert_eq!(said(&mut hub), [(0, missing.clone()), (2, missing)]);
    assert!(hub.is_over() && hub.missing().is_empty());
    assert_eq!((hub.never_joined(), hub.lost()), (vec![Rank(1), Rank(3)], vec![]));
    // Who comes later is nobody any more.
    hub.handle(Rank(1), Request::Hello { version: VERSION });
    assert_eq!(said(&mut hub), []);
}
