use std::time::Duration;

use super::*;
use crate::{
    algorithm::{Algorithm, HopTiming, Networks},
    group::Group,
    schedule::{Network, Round, Source, Step, Target},
};

fn group(size: u32) -> Group {
    Group::new(size).expect("a size")
}

/// All algorithms, with several parameters each.
fn algorithms() -> Vec<Algorithm> {
    let timing = |hop, gap| {
        Algorithm::Optimal(HopTiming::new(Duration::from_nanos(hop), Duration::from_nanos(gap)))
    };
    let mut all = vec![
        Algorithm::ShuffleExchange,
        Algorithm::Pairwise,
        Algorithm::Tournament,
        Algorithm::Central,
        timing(30_000, 9500),
        timing(10, 4),
        timing(10, 10),
        timing(1, 7),
        timing(7, 0),
        timing(0, 0),
    ];
    all.extend([1, 2, 3, 4, 7].map(|ways| Algorithm::Dissemination { ways }));
    all.extend([2, 3, 4, 5, 8, 16, 200].map(|k| Algorithm::Nomial { k }));
    for networks in [Networks::One, Networks::Two] {
        all.push(Algorithm::Concurrent { networks });
        all.extend([1, 2, 3, 4, 7, 15, 200].map(|children| Algorithm::Heap { children, networks }));
    }
    all
}

/// Goal: every algorithm is a barrier, of every size, and takes as many messages as its formula says. Method: 1 to 128
/// members, and some larger groups.
#[test]
fn every_algorithm_is_a_barrier() {
    let mut proved = 0;
    for algorithm in algorithms() {
        for size in (1..=128).chain([255, 256, 257]) {
            let group = group(size);
            let Ok(schedule) = algorithm.schedule(group) else {
                assert!(algorithm == Algorithm::ShuffleExchange && !size.is_power_of_two());
                continue;
            };
            let proof =
                prove(&schedule).unwrap_or_else(|error| panic!("{algorithm}, {size}: {error}"));
            assert_eq!(proof.messages, algorithm.messages(group), "{algorithm}, {size}");
            proved += 1;
        }
    }
    assert_eq!(proved, (algorithms().len() - 1) * 131 + 9);
    // More partners than members: one round.
    for (ways, size) in [(63, 64), (63, 65), (500, 100)] {
        let (algorithm, group) = (Algorithm::Dissemination { ways }, group(size));
        let proof = prove(&algorithm.schedule(group).expect("suits")).expect("a barrier");
        assert_eq!(proof.messages, algorithm.messages(group));
    }
}

/// Goal: barriers are as deep as they should be. Method: hops against the closed forms of the literature.
#[test]
fn chains_are_as_long_as_they_should_be() {
    for size in 2..=128_u32 {
        let hops = |algorithm: Algorithm| {
            prove(&algorithm.schedule(group(size)).expect("suits")).expect("a barrier").hops
        };
        let log = |base: u32| (1..).find(|power| base.pow(*power) >= size).expect("small");
        assert_eq!(hops(Algorithm::DISSEMINATION), log(2), "{size}");
        assert_eq!(hops(Algorithm::Dissemination { ways: 3 }), log(4), "{size}");
        assert_eq!(hops(Algorithm::Concurrent { networks: Networks::Two }), 2);
        assert_eq!(hops(Algorithm::Central), 2);
        assert_eq!(hops(Algorithm::TERNARY), size.ilog2() + 1, "{size}: depth, and the exit");
        // The chain from one folded member to another changes every bit of the rank between them.
        let inner = 1 << size.ilog2();
        let folded = match size - inner {
            0 => 0,
            few if few <= inner / 2 => 1,
            _ => 2,
        };
        assert_eq!(hops(Algorithm::Pairwise), size.ilog2() + folded, "{size}");
        if size.is_power_of_two() {
            assert_eq!(hops(Algorithm::ShuffleExchange), log(2));
            assert_eq!(hops(Algorithm::BINARY), log(2) + 1);
            assert_eq!(hops(Algorithm::Tournament), 2 * log(2));
        }
    }
}

/// Goal: it is known which schedules carry any reduction. Method: those in which no member counts twice; dissemination is
/// one of them only for powers of its base.
#[test]
fn exactness_is_known() {
    for algorithm in algorithms() {
        for size in 1..=64_u32 {
            let Ok(schedule) = algorithm.schedule(group(size)) else { continue };
            let expected = match algorithm {
                Algorithm::Dissemination { ways } => {
                    let base = u64::from(ways) + 1;
                    let mut power = 1;
                    while power < u64::from(size) {
                        power *= base;
                    }
                    // With only one round every member hears every other one once.
                    power == u64::from(size) || u64::from(size) <= base || divides(base, size)
                }
                _ => true,
            };
            let proof = prove(&schedule).expect("a barrier");
            assert_eq!(proof.is_exact(), expected, "{algorithm}, {size}");
        }
    }
}

/// Returns whether the last round, too, tells nothing twice: the number known before it divides the size.
fn divides(base: u64, size: u32) -> bool {
    let mut known = 1;
    while known * base < u64::from(size) {
        known *= base;
    }
    u64::from(size).is_multiple_of(known)
}

// ----------------------------------------------------------------------------- planted faults

const A: Network = Network::First;

fn steps_of(algorithm: Algorithm, size: u32) -> Vec<Vec<Step>> {
    let schedule = algorithm.schedule(group(size)).expect("suits");
    group(size).ranks().map(|rank| schedule.steps(rank).to_vec()).collect()
}

fn error(steps: Vec<Vec<Step>>) -> ScheduleError {
    let size = u32::try_from(steps.len()).expect("small");
    prove(&Schedule::from_steps(group(size), steps)).expect_err("a fault was planted")
}

/// Goal: a checker that always says yes would be noticed. Method: one planted schedule for each kind of fault.
#[test]
fn every_kind_of_fault_is_caught() {
    let nobody = Rank(7);
    let mut steps = steps_of(Algorithm::BINARY, 4);
    steps[1][0] = Step::Send { to: Target::Member(nobody), round: Round(0), network: A };
    assert_eq!(error(steps), ScheduleError::Outsider { rank: Rank(1), other: nobody });

    let mut steps = steps_of(Algorithm::BINARY, 4);
    steps[1][0] = Step::Send { to: Target::Member(Rank(1)), round: Round(0), network: A };
    assert_eq!(error(steps), ScheduleError::Outsider { rank: Rank(1), other: Rank(1) });

    let mut steps = steps_of(Algorithm::ShuffleExchange, 4);
    steps[2][2] = Step::Send { to: Target::Member(Rank(0)), round: Round(0), network: A };
    assert_eq!(error(steps), ScheduleError::SameRound { rank: Rank(2), round: Round(0) });

    let mut steps = steps_of(Algorithm::Concurrent { networks: Networks::Two }, 4);
    let Some(Step::Receive(sources)) = steps[0].first_mut() else { panic!("the master waits") };
    sources[0].network = Network::Second;
    assert!(matches!(
        error(steps),
        ScheduleError::NeverSent { receiver: Rank(0), sender: Rank(1), .. }
    ));

    let mut steps = steps_of(Algorithm::BINARY, 4);
    steps[1].push(Step::Receive(vec![Source::new(Rank(0), Round(0), A)]));
    assert!(matches!(error(steps), ScheduleError::AwaitedTwice { receiver: Rank(1), .. }));

    let mut steps = steps_of(Algorithm::BINARY, 4);
    steps[3].truncate(1);
    assert!(matches!(error(steps), ScheduleError::NeverAwaited { receiver: Rank(3), .. }));

    let mut steps = steps_of(Algorithm::ShuffleExchange, 4);
    for member in &mut steps {
        member.swap(0, 1);
    }
    assert_eq!(error(steps), ScheduleError::Deadlock { rank: Rank(0), others: 3 });

    let too_large = Algorithm::DISSEMINATION.schedule(group(SIZE_MAX + 1)).expect("suits");
    assert!(matches!(prove(&too_large), Err(ScheduleError::TooLarge { .. })));
}

/// Goal: members that leave too early are named. Method: the master does not wait for one child; dissemination lacks
/// a round; a parent tells its own parent before its children have told it; two groups that never meet.
#[test]
fn early_exits_are_caught() {
    let mut steps = steps_of(Algorithm::BINARY, 8);
    // Rank 4 tells rank 0 before it has heard of 5.
    steps[4].swap(0, 2);
    assert_eq!(error(steps), ScheduleError::EarlyExit { rank: Rank(0), unheard: Rank(5) });

    let mut steps = steps_of(Algorithm::DISSEMINATION, 8);
    for member in &mut steps {
        member.truncate(4);
    }
    assert_eq!(error(steps), ScheduleError::EarlyExit { rank: Rank(0), unheard: Rank(1) });

    let mut steps = steps_of(Algorithm::Concurrent { networks: Networks::One }, 5);
    steps[0].rotate_right(1);
    assert_eq!(error(steps), ScheduleError::EarlyExit { rank: Rank(1), unheard: Rank(2) });

    let mut steps = steps_of(Algorithm::ShuffleExchange, 4);
    for member in &mut steps {
        member.truncate(2);
    }
    assert!(matches!(error(steps), ScheduleError::EarlyExit { .. }));

    assert!(matches!(error(vec![Vec::new(); 2]), ScheduleError::EarlyExit { rank: Rank(0), .. }));
}

/// Goal: wherever a message or a wait is missing from a barrier, or two steps are exchanged so that it no longer
/// is one, that is noticed. Method: every step of every algorithm is left out once, for groups of 2 to 9.
#[test]
fn no_step_can_be_left_out() {
    for algorithm in algorithms() {
        for size in 2..=9 {
            if algorithm.check(group(size)).is_err() {
                continue;
            }
            let steps = steps_of(algorithm, size);
            for (member, all) in steps.iter().enumerate() {
                for step in 0..all.len() {
                    let mut steps = steps.clone();
                    steps[member].remove(step);
                    error(steps);
                }
            }
        }
    }
}
