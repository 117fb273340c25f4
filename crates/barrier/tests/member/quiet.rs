//! Without faults: the cost of a barrier, and its use.

use std::{sync::Arc, time::Duration};

use vigie_barrier::{
    Algorithm, Group, Member, Rank, Target,
    algorithm::{HopTiming, Networks},
    member::{EnterError, Event, MemberConfig, MemberError, ShrinkError},
    packet::GroupId,
    reduction::{Builtin, Counting, Element, Reduction},
};
use vigie_detect::Instant;

use crate::{
    kit::seeds::for_each_seed,
    world::{SECOND, World, config, schedule, sums},
};

/// Every algorithm that suits the size.
pub(crate) fn algorithms(size: u32) -> Vec<Algorithm> {
    let timing = HopTiming::new(Duration::from_micros(30), Duration::from_nanos(9500));
    let mut all = Algorithm::OF_THE_PAPER.to_vec();
    all.extend([
        Algorithm::Pairwise,
        Algorithm::DISSEMINATION,
        Algorithm::Dissemination { ways: 3 },
        Algorithm::Nomial { k: 3 },
        Algorithm::Heap { children: 3, networks: Networks::One },
        Algorithm::Optimal(timing),
        Algorithm::Tournament,
        Algorithm::Central,
    ]);
    let group = Group::new(size).expect("a size");
    all.retain(|algorithm| algorithm.check(group).is_ok());
    all
}

/// Goal: while nothing is lost, nothing is sent but the schedule's messages, and what is reduced is right. Method: all
/// algorithms, sizes 1 to 9 and 16, five barriers of members that come at different times; every packet is counted.
#[test]
fn nothing_extra_is_sent_while_nothing_is_lost() {
    for_each_seed(3, |seed| {
        for size in (1..=9).chain([16]) {
            for algorithm in algorithms(size) {
                let mut config = config(seed).reduction(sums());
                if Member::new(schedule(algorithm, size), Rank(0), config.clone()).is_err() {
                    config = config.reduction(None);
                }
                let mut world = World::new(seed, algorithm, size, &config);
                world.begin(5);
                assert!(world.run(SECOND, World::is_done), "{algorithm}, {size}: no end");
                let messages = algorithm.messages(Group::new(size).expect("a size"));
                let seen = world.total();
                assert_eq!(seen.sent, 5 * (messages.unicast + messages.multicast), "{algorithm}");
                assert_eq!((seen.nacks, seen.retransmitted, seen.alive_replies), (0, 0, 0));
                assert_eq!(
                    world.nodes.iter().map(|n| n.member.counters().dropped()).sum::<u64>(),
                    0
                );
            }
        }
    });
}

/// Goal: a late member costs the others little, and none believes it dead. Method: one is late by ten times the
/// failure time-out, but its machine answers; then it enters.
#[test]
fn late_members_are_waited_for() {
    for_each_seed(3, |seed| {
        for algorithm in algorithms(8) {
            let mut world = World::new(seed, algorithm, 8, &config(seed));
            world.begin(1);
            let late = world.random.usize(..8);
            world.nodes[late].entered = 1;
            assert!(!world.run(40 * SECOND, |_| false));
            assert!(world.nodes.iter().all(|node| node.exited == 0 && node.failures.is_empty()));
            // 62.5 ms between questions at last: in 40 s, 640 from each that waits for a member, and as many answers.
            assert!(world.seen.sent < 40 * 1000, "{algorithm}: {}", world.seen.sent);
            let now = world.instant(late);
            world.nodes[late].member.enter(now, &[]).expect("outside");
            world.after(late);
            assert!(world.run(SECOND, World::is_done), "{algorithm}");
        }
    });
}

/// Goal: arrival and departure are apart: a member arrives, does other things, and has left when all have arrived.
/// Method: two members by hand; a second arrival before the departure is refused, and harmless.
#[test]
fn arrival_and_departure_are_apart() {
    let schedule = schedule(Algorithm::ShuffleExchange, 2);
    let now = Instant::from_nanos(5);
    let member =
        |rank| Member::new(Arc::clone(&schedule), Rank(rank), MemberConfig::new(GroupId(1)));
    let mut one = member(0).expect("a member");
    let mut other = member(1).expect("a member");
    one.enter(now, &[]).expect("arrives");
    assert_eq!(one.enter(now, &[]), Err(EnterError::Inside));
    assert!(one.is_inside() && one.poll_event().is_none());
    let sent = one.poll_transmit().expect("its message");
    assert_eq!(sent.to, Target::Member(Rank(1)));
    assert!(one.poll_transmit().is_none());
    other.receive(now, &sent.packet).expect("early, and kept");
    assert!(other.poll_event().is_none());
    other.enter(now, &[]).expect("arrives");
    assert_eq!(other.poll_event(), Some(Event::Exited { epoch: 0, value: Vec::new() }));
    let sent = other.poll_transmit().expect("its message");
    one.receive(now, &sent.packet).expect("in time");
    assert_eq!(one.poll_event(), Some(Event::Exited { epoch: 0, value: Vec::new() }));
    assert_eq!(one.next_deadline(), None);
    assert_eq!(one.shrink(Arc::clone(&schedule)), Err(ShrinkError::Whole));
}

/// Goal: incompatible settings are refused, with advice. Method: each such setting.
#[test]
fn wrong_settings_are_refused() {
    let new = |algorithm, size, config: &MemberConfig| {
        Member::new(schedule(algorithm, size), Rank(0), config.clone())
    };
    let mut config = MemberConfig::new(GroupId(1));
    let outsider = Member::new(schedule(Algorithm::Central, 4), Rank(4), config.clone());
    assert!(matches!(outsider, Err(MemberError::Rank { rank: Rank(4), size: 4 })));
    config = config.repeat_after(Duration::ZERO);
    assert!(matches!(new(Algorithm::Central, 4, &config), Err(MemberError::InvalidSetting { .. })));
    config = config.repeat_after(Duration::from_secs(1));
    assert!(matches!(new(Algorithm::Central, 4, &config), Err(MemberError::InvalidSetting { .. })));
    config = config.failure_timeout(None);
    config = config.reduction(sums());
    assert!(new(Algorithm::DISSEMINATION, 8, &config).is_ok());
    let twice = new(Algorithm::DISSEMINATION, 7, &config).expect_err("counts twice");
    assert!(twice.to_string().contains("pairwise"), "{twice}");
    let min = Reduction::builtin(Builtin::Min, Element::I64, 2).expect("short");
    config = config.reduction(min);
    let mut member = new(Algorithm::DISSEMINATION, 7, &config).expect("counts as it likes");
    let wrong = member.enter(Instant::from_nanos(0), &[0; 8]);
    assert_eq!(wrong, Err(EnterError::Value { expected: 16, found: 8 }));
}

/// Goal: a user's function is applied to all values, each once, over every algorithm that can, and to values that may
/// count twice over all. Method: long values, added and or-ed.
#[test]
fn functions_of_users_are_applied() {
    fn on_words(function: fn(u64, u64) -> u64) -> impl Fn(&mut [u8], &[u8]) {
        move |into, other| {
            for (into, other) in into.as_chunks_mut().0.iter_mut().zip(other.as_chunks().0) {
                *into =
                    function(u64::from_le_bytes(*into), u64::from_le_bytes(*other)).to_le_bytes();
            }
        }
    }
    let mut refused = Vec::new();
    let add: fn(u64, u64) -> u64 = |one, other| one + other;
    let or: fn(u64, u64) -> u64 = |one, other| one | other;
    for (counting, function) in [(Counting::Once, add), (Counting::AnyTimes, or)] {
        let reduction = Reduction::user(1024, counting, on_words(function)).expect("short");
        for size in [1, 2, 3, 5, 7, 8] {
            for algorithm in algorithms(size) {
                let config = config(1).reduction(reduction.clone());
                if Member::new(schedule(algorithm, size), Rank(0), config.clone()).is_err() {
                    refused.push((algorithm, size, counting));
                    continue;
                }
                let mut world = World::new(1, algorithm, size, &config);
                world.fold = function;
                world.begin(3);
                assert!(world.run(SECOND, World::is_done), "{algorithm}, {size}");
            }
        }
    }
    // With three partners, 3 and 8 divide into rounds without rest, and 5 and 7 do not.
    let expected = [
        (Algorithm::DISSEMINATION, 3),
        (Algorithm::DISSEMINATION, 5),
        (Algorithm::Dissemination { ways: 3 }, 5),
        (Algorithm::DISSEMINATION, 7),
        (Algorithm::Dissemination { ways: 3 }, 7),
    ];
    let expected = expected.map(|(algorithm, size)| (algorithm, size, Counting::Once));
    assert_eq!(refused, expected);
}
