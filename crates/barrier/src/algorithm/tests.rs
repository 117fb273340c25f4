use std::time::Duration;

use super::*;
use crate::{
    group::Rank,
    schedule::{Network, Round, Source, Step, Target},
};

fn group(size: u32) -> Group {
    Group::new(size).expect("a size")
}

fn send(to: u32, round: u16, network: Network) -> Step {
    Step::Send { to: Target::Member(Rank(to)), round: Round(round), network }
}

fn receive(sources: &[(u32, u16, Network)]) -> Step {
    let source = |(rank, round, network): &(u32, u16, Network)| {
        Source::new(Rank(*rank), Round(*round), *network)
    };
    Step::Receive(sources.iter().map(source).collect())
}

const MULTICAST: Step =
    Step::Send { to: Target::Everyone, round: Round(0), network: Network::First };
const A: Network = Network::First;
const B: Network = Network::Second;

/// Goal: schedules are those that the literature draws. Method: small groups by hand.
#[test]
fn small_groups_by_hand() {
    let steps = |algorithm: Algorithm, size: u32, rank: u32| {
        algorithm.schedule(group(size)).expect("suits").steps(Rank(rank)).to_vec()
    };
    assert_eq!(
        steps(Algorithm::ShuffleExchange, 4, 1),
        [send(0, 0, A), receive(&[(0, 0, A)]), send(3, 1, A), receive(&[(3, 1, A)])]
    );
    assert_eq!(
        steps(Algorithm::DISSEMINATION, 5, 0),
        [
            send(1, 0, A),
            receive(&[(4, 0, A)]),
            send(2, 1, A),
            receive(&[(3, 1, A)]),
            send(4, 2, A),
            receive(&[(1, 2, A)])
        ]
    );
    // Two partners would reach 9; the third and fourth of the last round are not needed.
    assert_eq!(
        steps(Algorithm::Dissemination { ways: 2 }, 6, 1),
        [
            send(2, 0, A),
            send(3, 1, A),
            receive(&[(0, 0, A), (5, 1, A)]),
            send(4, 2, A),
            receive(&[(4, 2, A)])
        ]
    );
    assert_eq!(
        steps(Algorithm::BINARY, 7, 4),
        [receive(&[(5, 0, A)]), receive(&[(6, 0, A)]), send(0, 0, A), receive(&[(0, 0, A)])]
    );
    assert_eq!(
        steps(Algorithm::Nomial { k: 3 }, 9, 0),
        [receive(&[(1, 0, A), (2, 0, A)]), receive(&[(3, 0, A), (6, 0, A)]), MULTICAST]
    );
    let two = Algorithm::Heap { children: 2, networks: Networks::Two };
    assert_eq!(
        steps(two, 7, 1),
        [receive(&[(3, 0, A), (4, 0, B)]), send(0, 0, A), receive(&[(0, 0, A)])]
    );
    assert_eq!(steps(two, 7, 2)[1], send(0, 0, B));
    let two = Algorithm::Concurrent { networks: Networks::Two };
    assert_eq!(steps(two, 4, 0), [receive(&[(1, 0, A), (2, 0, B), (3, 0, A)]), MULTICAST]);
    // Of rank 4: its loser 6 has a loser of its own, so that it is woken first.
    assert_eq!(
        steps(Algorithm::Tournament, 8, 4),
        [
            receive(&[(5, 0, A)]),
            receive(&[(6, 0, A)]),
            send(0, 0, A),
            receive(&[(0, 0, A)]),
            send(6, 1, A),
            send(5, 2, A)
        ]
    );
    assert_eq!(steps(Algorithm::Tournament, 8, 5)[1], receive(&[(4, 2, A)]));
    assert_eq!(steps(Algorithm::Tournament, 8, 7)[1], receive(&[(6, 1, A)]));
    assert_eq!(
        steps(Algorithm::Pairwise, 6, 1),
        [
            receive(&[(5, 0, A)]),
            send(0, 0, A),
            receive(&[(0, 0, A)]),
            send(3, 1, A),
            receive(&[(3, 1, A)]),
            send(5, 2, A)
        ]
    );
    assert_eq!(steps(Algorithm::Pairwise, 6, 5), [send(1, 0, A), receive(&[(1, 2, A)])]);
    assert_eq!(steps(Algorithm::Central, 3, 2), [send(0, 0, A), receive(&[(0, 1, A)])]);
}

/// Goal: the optimal tree is the known one. Method: the broadcast of [logp, §3] with P = 8, L = 6, g = 4, o = 2, takes
/// 24: a hop of 10 and a gap of 4; and with a gap as long as a hop it is the binary tree.
#[test]
fn the_optimal_tree_is_that_of_the_paper() {
    let timing = HopTiming::new(Duration::from_nanos(10), Duration::from_nanos(4));
    assert_eq!(timing.gather_time(group(8)), Duration::from_nanos(24));
    let slow = HopTiming::new(Duration::from_nanos(10), Duration::from_nanos(10));
    for (size, hops) in [(1, 0), (2, 1), (4, 2), (32, 5), (33, 6)] {
        assert_eq!(slow.gather_time(group(size)), Duration::from_nanos(10) * hops);
    }
    let schedule = Algorithm::Optimal(timing).schedule(group(8)).expect("suits");
    let Some(Step::Receive(children)) = schedule.steps(Rank(0)).first() else {
        panic!("the master waits")
    };
    // Broadcast messages leave at 0, 4, 8 and 12, and arrive at 10, 14, 18 and 22.
    assert_eq!(children.len(), 4);
    assert_eq!(children.last().map(|child| child.rank), Some(Rank(1)), "reached first, heard last");
}

/// Goal: names are read as they are printed, and nothing else is read. Method: every algorithm; wrong names.
#[test]
fn names_are_read_as_printed() {
    let timing = HopTiming::new(Duration::from_micros(30), Duration::from_nanos(9500));
    let more = [
        Algorithm::Pairwise,
        Algorithm::DISSEMINATION,
        Algorithm::Dissemination { ways: 3 },
        Algorithm::Nomial { k: 3 },
        Algorithm::Heap { children: 3, networks: Networks::One },
        Algorithm::Heap { children: 5, networks: Networks::Two },
        Algorithm::Optimal(timing),
        Algorithm::Tournament,
        Algorithm::Central,
    ];
    for algorithm in Algorithm::OF_THE_PAPER.into_iter().chain(more) {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
    }
    assert_eq!("nomial-2".parse(), Ok(Algorithm::BINARY));
    assert_eq!("heap-2-two-networks".parse(), Ok(Algorithm::OF_THE_PAPER[4]));
    assert_eq!(Algorithm::Optimal(timing).to_string(), "optimal-30000-9500");
    for wrong in [
        "",
        "binary-two-networks",
        "central-two-networks",
        "heap",
        "heap-",
        "heap--1",
        "nomial-99999",
        "optimal-3",
        "optimal-3-4-5",
        "-two-networks",
    ] {
        let error = wrong.parse::<Algorithm>().expect_err(wrong);
        assert!(error.to_string().contains("pairwise"), "{error}");
    }
}

/// Goal: an algorithm that does not suit a group is refused, and the error says what does. Method: each such parameter.
#[test]
fn what_does_not_suit_is_refused() {
    let refused = [
        (Algorithm::ShuffleExchange, 6),
        (Algorithm::Dissemination { ways: 0 }, 4),
        (Algorithm::Nomial { k: 1 }, 4),
        (Algorithm::Heap { children: 0, networks: Networks::Two }, 4),
    ];
    for (algorithm, size) in refused {
        assert!(algorithm.schedule(group(size)).is_err(), "{algorithm}");
    }
    let error = Algorithm::ShuffleExchange.schedule(group(6)).expect_err("no power of two");
    assert!(error.to_string().contains("`pairwise`"), "{error}");
}
