use super::*;
use crate::world::wire::Decoder;

fn hub(size: u32) -> Hub {
    Hub::new(size, Identity { id: [1; 16], secret: [2; 32] })
}

fn joined(size: u32) -> Hub {
    let mut hub = hub(size);
    for rank in (0..size).map(Rank) {
        hub.handle(rank, HubRequest::Hello { version: VERSION });
    }
    assert_eq!(said(&mut hub).len(), usize::try_from(size).unwrap());
    hub
}

fn said(hub: &mut Hub) -> Vec<(u32, HubReply)> {
    let mut said = Vec::new();
    while let Some((rank, bytes)) = hub.poll_transmit() {
        let mut decoder = Decoder::new();
        decoder.feed(&bytes);
        let frame = decoder.next_frame().unwrap().unwrap();
        said.push((rank.0, HubReply::decode(frame).unwrap()));
    }
    said
}

fn put(key: &str) -> HubRequest {
    HubRequest::Put { key: key.to_owned(), value: b"v".to_vec() }
}

fn get(rank: Option<u32>, key: &str) -> HubRequest {
    HubRequest::Get { rank: rank.map(Rank), key: key.to_owned() }
}

fn value(rank: u32, key: &str) -> HubReply {
    HubReply::Value { rank: Rank(rank), key: key.to_owned(), value: b"v".to_vec() }
}

fn absent(rank: u32, key: &str) -> HubReply {
    HubReply::Absent { rank: Rank(rank), key: key.to_owned() }
}

const fn ended(rank: u32) -> WorldEvent {
    WorldEvent::Ended { rank: Rank(rank), ending: RankExit::Killed(9) }
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

/// Goal: no rank waits for the value of a rank that is gone, and what that rank had put stays. Method: each
/// way to go, with questions before and after.
#[test]
fn questions_for_the_gone() {
    for way in 0..3 {
        let mut hub = joined(3);
        hub.handle(Rank(1), put("a"));
        hub.handle(Rank(0), get(Some(1), "b"));
        hub.handle(Rank(2), get(None, "b"));
        match way {
            0 => hub.handle(Rank(1), HubRequest::Leave),
            1 => hub.expel(Rank(1), "reason"),
            _ => hub.end(Rank(1), RankExit::Killed(9)),
        }
        let said_now = said(&mut hub);
        assert!(said_now.contains(&(0, absent(1, "b"))), "{said_now:?}");
        assert!(said_now.contains(&(2, absent(1, "b"))), "{said_now:?}");
        hub.handle(Rank(0), get(Some(1), "a"));
        hub.handle(Rank(0), get(Some(1), "c"));
        assert_eq!(said(&mut hub), [(0, value(1, "a")), (0, absent(1, "c"))]);
        // The end of a rank that was already gone is reported, and answers nothing twice.
        hub.end(Rank(1), RankExit::Killed(9));
        let again = if way == 2 { vec![] } else { vec![ended(1)] };
        let expected = again.into_iter().flat_map(|event| [0, 2].map(|to| (to, event)));
        let expected = expected.map(|(to, event)| (to, HubReply::Event(event)));
        assert_eq!(said(&mut hub), expected.collect::<Vec<_>>());
    }
}

/// Goal: a barrier waits for all ranks that are there or have not joined yet, and for no others; a rank that
/// passes has been told of those before. Method: an end, a late rank, a second round.
#[test]
fn barriers() {
    let mut hub = hub(3);
    for rank in [0, 1] {
        hub.handle(Rank(rank), HubRequest::Hello { version: VERSION });
        hub.handle(Rank(rank), HubRequest::Enter { round: 1 });
    }
    assert_eq!(said(&mut hub).len(), 2);
    hub.end(Rank(1), RankExit::Killed(9));
    assert_eq!(said(&mut hub), [(0, HubReply::Event(ended(1)))]);
    hub.handle(Rank(2), HubRequest::Hello { version: VERSION });
    // It is told what happened before.
    assert_eq!(said(&mut hub)[1], (2, HubReply::Event(ended(1))));
    hub.handle(Rank(2), HubRequest::Enter { round: 1 });
    let passed = |round| [0, 2].map(|to| (to, HubReply::Passed { round }));
    assert_eq!(said(&mut hub), passed(1));
    hub.handle(Rank(0), HubRequest::Enter { round: 2 });
    hub.end(Rank(2), RankExit::Exited(0));
    let told = said(&mut hub);
    assert_eq!(told[1], (0, HubReply::Passed { round: 2 }), "{told:?}");
}

/// Goal: each broken rule expels its rank, and only that. Method: one violation for each rule, beside a rank
/// that continues.
#[test]
fn broken_rules() {
    let hello = || HubRequest::Hello { version: VERSION };
    let flood = |count: usize, make: fn(&str) -> HubRequest| {
        (0..count).map(|i| make(&format!("k{i}"))).collect::<Vec<_>>()
    };
    for (requests, why) in [
        (vec![put("k")], "the first message must be a greeting"),
        (vec![HubRequest::Hello { version: 0 }], "another version of the protocol"),
        (vec![hello(), hello()], "a second greeting"),
        (vec![hello(), put("k"), put("k")], "a key was put twice"),
        (vec![hello(), get(Some(2), "k")], "a question for a rank that does not exist"),
        (vec![hello(), HubRequest::Enter { round: 0 }], "a barrier out of order"),
        (vec![hello(), HubRequest::Enter { round: 2 }], "a barrier out of order"),
        (
            vec![hello(), HubRequest::Enter { round: 1 }, HubRequest::Enter { round: 2 }],
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
        let expelled = (0, HubReply::Expelled { why: why.to_owned() });
        assert_eq!(told.iter().filter(|&one| *one == expelled).count(), 1, "{told:?}");
        assert_eq!(
            told.last(),
            Some(&(1, HubReply::Event(WorldEvent::Expelled { rank: Rank(0) })))
        );
        hub.handle(Rank(1), HubRequest::Enter { round: 1 });
        assert_eq!(said(&mut hub), [(1, HubReply::Passed { round: 1 })], "{why}");
        // Nothing that it sends is handled any more, and nothing is sent to it.
        hub.handle(Rank(0), put("late"));
        hub.handle(Rank(1), get(Some(0), "late"));
        assert_eq!(said(&mut hub), [(1, absent(0, "late"))]);
    }
}

/// Goal: ranks that do not exist do no harm. Method: one beyond the end.
#[test]
fn no_such_rank() {
    let mut hub = joined(1);
    hub.handle(Rank(1), HubRequest::Leave);
    hub.expel(Rank(u32::MAX), "reason");
    hub.end(Rank(1), RankExit::Exited(0));
    assert_eq!(said(&mut hub), []);
    assert!(!hub.is_heard(Rank(1)));
}

/// Goal: ranks that do not arrive are named to those that have, whose waiting ends. Method: two of four.
#[test]
fn missing_ranks() {
    let mut hub = hub(4);
    for rank in [0, 2] {
        hub.handle(Rank(rank), HubRequest::Hello { version: VERSION });
        hub.handle(Rank(rank), HubRequest::Enter { round: 1 });
    }
    assert_eq!(said(&mut hub).len(), 2);
    assert_eq!(hub.missing(), [Rank(1), Rank(3)]);
    assert!(!hub.is_over());
    hub.dissolve();
    let missing = HubReply::Missing { count: 2, ranks: vec![Rank(1), Rank(3)] };
    assert_eq!(said(&mut hub), [(0, missing.clone()), (2, missing)]);
    assert!(hub.is_over() && hub.missing().is_empty());
    assert_eq!((hub.never_joined(), hub.lost()), (vec![Rank(1), Rank(3)], vec![]));
    // A rank that comes later has no place any more.
    hub.handle(Rank(1), HubRequest::Hello { version: VERSION });
    assert_eq!(said(&mut hub), []);
}

/// Goal: the two ranks of a pair learn the same key, no third one learns it, and no rank can put one. Method: all keys of more ranks
/// than one value holds; a rank that puts the key's name, and one that asks for all ranks at once.
#[test]
fn pair_keys() {
    let size = 40;
    let mut hub = hub(size).pair_keys_from(Secret::new([3; 16]));
    for rank in (0..size).map(Rank) {
        hub.handle(rank, HubRequest::Hello { version: VERSION });
    }
    said(&mut hub);
    let mut keys = BTreeMap::new();
    for rank in 0..size {
        for first in [0, 31] {
            hub.handle(Rank(rank), get(Some(first), PAIR_KEYS));
            let (to, reply) = said(&mut hub).pop().expect("an answer");
            let HubReply::Value { rank: told, value, .. } = reply else { panic!("{reply:?}") };
            assert_eq!((to, told), (rank, Rank(first)));
            for (other, key) in (first..).zip(value.chunks(16)) {
                keys.insert((rank, other), key.to_vec());
            }
        }
    }
    assert_eq!(keys.len(), 40 * 40);
    assert!(keys.iter().all(|(&(one, other), key)| keys[&(other, one)] == *key));
    let different: BTreeSet<_> = keys.values().collect();
    assert_eq!(different.len(), 40 * 41 / 2);

    hub.handle(Rank(0), put(PAIR_KEYS));
    hub.handle(Rank(1), get(None, PAIR_KEYS));
    assert!(!hub.is_heard(Rank(0)) && !hub.is_heard(Rank(1)));
    let mut without = joined(2);
    without.handle(Rank(0), get(Some(0), PAIR_KEYS));
    assert_eq!(said(&mut without), [(0, absent(0, PAIR_KEYS))]);
}
