use std::num::NonZeroU32;

use super::*;
use crate::algorithm::Networks;

fn group(size: u32) -> Group {
    Group::new(size).expect("a size")
}

fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

/// In nanoseconds.
fn predicted(logp: &LogP, algorithm: Algorithm, size: u32) -> u128 {
    logp.predict(algorithm, group(size)).as_nanos()
}

const CONCURRENT: Algorithm = Algorithm::Concurrent { networks: Networks::One };
/// Four members become one: the 4-ary tree of the paper's closing claim.
const QUATERNARY: Algorithm = Algorithm::Nomial { k: 4 };

/// Goal: the closed forms are those of the paper. Method: its parameters, X = 30 µs and o_r = 9.5 µs, put into
/// [eth-barrier, §5.1.2] by hand.
#[test]
fn closed_forms_of_the_paper() {
    let logp = LogP::OF_THE_PAPER;
    assert_eq!(logp.hop(), Duration::from_micros(30));
    assert_eq!(predicted(&logp, Algorithm::ShuffleExchange, 32), 150_000);
    assert_eq!(predicted(&logp, Algorithm::DISSEMINATION, 32), 150_000);
    assert_eq!(predicted(&logp, Algorithm::DISSEMINATION, 33), 180_000);
    assert_eq!(predicted(&logp, Algorithm::BINARY, 32), 180_000);
    // (o_s + L + 2 o_r) · log3 27 + X, and (o_s + L + 3 o_r) · log4 16 + X.
    assert_eq!(predicted(&logp, Algorithm::TERNARY, 15), 3 * 39_500 + 30_000);
    assert_eq!(predicted(&logp, Algorithm::TERNARY, 31), 4 * 39_500 + 30_000);
    assert_eq!(predicted(&logp, Algorithm::Nomial { k: 3 }, 27), 3 * 39_500 + 30_000);
    assert_eq!(predicted(&logp, QUATERNARY, 16), 2 * 49_000 + 30_000);
    assert_eq!(predicted(&logp, CONCURRENT, 32), 60_000 + 30 * 9500);
    assert_eq!(predicted(&logp, Algorithm::Dissemination { ways: 3 }, 64), 3 * 49_000);
    assert_eq!(predicted(&logp, Algorithm::Pairwise, 32), 150_000);
    assert_eq!(predicted(&logp, Algorithm::Pairwise, 33), 210_000);
    assert_eq!(predicted(&logp, Algorithm::Tournament, 32), 300_000);
    assert_eq!(predicted(&logp, Algorithm::Central, 32), 60_000 + 30 * 12_500);
    for algorithm in Algorithm::OF_THE_PAPER {
        assert_eq!(predicted(&logp, algorithm, 1), 0);
    }
}

/// Goal: a multicast costs what it was measured to cost. Method: 5 µs and 0.9 µs a port instead of o_s.
#[test]
fn multicasts_have_costs_of_their_own() {
    let costs = Multicast::new(nanos(5000), nanos(900));
    let logp = LogP::OF_THE_PAPER.with_multicast(costs);
    let more = 5000 + 31 * 900 - 3000;
    for algorithm in [CONCURRENT, Algorithm::BINARY, Algorithm::Optimal(logp.timing())] {
        let before = predicted(&LogP::OF_THE_PAPER, algorithm, 32);
        assert_eq!(predicted(&logp, algorithm, 32), before + more);
    }
    assert_eq!(predicted(&logp, Algorithm::ShuffleExchange, 32), 150_000);
}

/// Relative gain of the 4-ary tree over shuffle exchange at 16, in percent.
fn gain(receive: f64, gap: f64) -> f64 {
    let nanos = |micros: f64| Duration::from_secs_f64(micros * 1e-6);
    let logp = LogP::new(nanos(3.0), nanos(17.5), nanos(receive)).with_gap(nanos(gap));
    let tree = logp.predict(QUATERNARY, group(16)).as_secs_f64();
    let exchange = logp.predict(Algorithm::ShuffleExchange, group(16)).as_secs_f64();
    100.0 * (1.0 - tree / exchange)
}

/// Goal: the paper's closing claim, with the wire taken into account. Method: the o_r at which the 4-ary tree is as fast
/// as shuffle exchange, by bisection, for wires up to g = 0.7 µs; the best gain at the g of Fast Ethernet, 6.72 µs; and
/// 75 against 90 µs at o_r = 2, g = 0.67.
#[test]
fn four_ary_trees_win_where_receiving_is_cheap() {
    for gap in [0.0, 0.067, 0.35, 0.67, 0.7] {
        let (mut low, mut high) = (1.0, 20.0);
        assert!(gain(low, gap) > 0.0 && gain(high, gap) < 0.0);
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if gain(middle, gap) > 0.0 { low = middle } else { high = middle }
        }
        assert!((low - 6.83).abs() <= 0.2, "g = {gap}: crossing at {low}");
    }
    let best = (0..2000).map(|step| gain(f64::from(step) * 0.01, 6.72)).fold(f64::MIN, f64::max);
    assert!((0.0..=1.0).contains(&best), "at g = 6.72 the best gain is {best} %");
    let fast = LogP::new(nanos(3000), nanos(17_500), nanos(2000)).with_gap(nanos(670));
    assert_eq!(predicted(&fast, Algorithm::ShuffleExchange, 16), 90_000);
    assert_eq!(predicted(&fast, QUATERNARY, 16), 75_500);
}

/// Goal: the algorithms from theory are worth it, as far as LogP can say. Method: with the paper's parameters at 32 members the
/// optimal tree and multicast at least 8 % below shuffle exchange; three-way dissemination below it at 16, 32 and 64.
#[test]
fn theory_beats_shuffle_exchange() {
    let logp = LogP::OF_THE_PAPER;
    let gain = |algorithm, size| {
        let exchange = logp.predict(Algorithm::ShuffleExchange, group(size)).as_secs_f64();
        100.0 * (1.0 - logp.predict(algorithm, group(size)).as_secs_f64() / exchange)
    };
    let optimal = Algorithm::Optimal(logp.timing());
    assert!(gain(optimal, 32) >= 8.0, "{}", gain(optimal, 32));
    for size in [16, 32, 64] {
        let gain = gain(Algorithm::Dissemination { ways: 3 }, size);
        assert!(gain >= 14.0, "{size}: {gain}");
    }
    // No tree gathers faster than the optimal one, at its own timing.
    for size in 2..=128 {
        let best = predicted(&logp, optimal, size);
        for other in [Algorithm::BINARY, QUATERNARY, CONCURRENT, Algorithm::Nomial { k: 3 }] {
            assert!(best <= predicted(&logp, other, size), "{other}, {size}");
        }
        // A tree for another timing is slower here, or at best as fast.
        let other = Algorithm::Optimal(HopTiming::new(nanos(30_000), nanos(30_000)));
        assert!(best <= predicted(&logp, other, size));
    }
}

/// Goal: F is the inverse of N(t) = N(t − G) + N(t − X). Method: the recursion, evaluated as it stands, for several
/// paces and up to 200 members.
#[test]
fn the_optimal_tree_obeys_its_recursion() {
    fn members(time: i64, hop: i64, gap: i64) -> u32 {
        // The members through its later messages, and those through its first message.
        if time < hop { 1 } else { members(time - gap, hop, gap) + members(time - hop, hop, gap) }
    }
    for (hop, gap) in [(30, 9), (10, 4), (10, 10), (7, 1)] {
        let timing = HopTiming::new(nanos(hop), nanos(gap));
        let (hop, gap) = (i64::try_from(hop).expect("small"), i64::try_from(gap).expect("small"));
        for size in 2..=200 {
            let time = i64::try_from(timing.gather_time(group(size)).as_nanos()).expect("small");
            assert!(members(time, hop, gap) >= size && members(time - 1, hop, gap) < size);
        }
    }
}

fn two() -> CoreAllocation {
    CoreAllocation::Shared(NonZeroU32::new(2).expect("two"))
}

/// A veth pair and a bridge on a machine of two cores: sending does all the work of the way.
fn on_one_machine() -> LogP {
    LogP::new(nanos(6000), nanos(3000), nanos(1000))
        .with_multicast(Multicast::new(nanos(5000), nanos(900)))
}

/// Goal: on few cores the work decides. Method: 32 members on two cores and on 32: the paper's order is turned round,
/// and the reason says so.
#[test]
fn few_cores_turn_the_order_round() {
    let logp = on_one_machine();
    let group = group(32);
    let considered = [Algorithm::ShuffleExchange, Algorithm::DISSEMINATION, CONCURRENT];
    let cluster = plan(group, &logp, CoreAllocation::Dedicated, &considered).expect("candidates");
    assert_eq!(cluster.algorithm, Algorithm::ShuffleExchange);
    assert_eq!(cluster.expected, Duration::from_micros(50));
    assert!(cluster.reason.contains("shortest chain"), "{}", cluster.reason);

    let machine = plan(group, &logp, two(), &considered).expect("candidates");
    assert_eq!(machine.algorithm, CONCURRENT);
    // 31 messages of 7 µs, a multicast of 5 + 31 · 0.9 µs and 31 receptions, on two cores.
    assert_eq!(machine.expected, nanos((31 * 7000 + 5000 + 31 * 900 + 31 * 1000) / 2));
    assert!(machine.reason.contains("32 members share 2 cores"), "{}", machine.reason);
    assert!(machine.reason.contains("shuffle-exchange"), "{}", machine.reason);
    assert!(machine.candidates.windows(2).all(|w| w[0].expected() <= w[1].expected()));
    let exchange = machine.candidates.iter().find(|c| c.algorithm == Algorithm::ShuffleExchange);
    assert_eq!(exchange.map(Candidate::expected), Some(Duration::from_micros(160 * 7 / 2)));
}

/// Goal: of members that poll for their messages on few cores, those with short chains are faster than those with little
/// work, and the planner knows. Method: costs as 8 members on two cores have found them over UDP; there a tournament took
/// 45 µs, and the central and the concurrent barrier 33.
#[test]
fn turns_of_others_count() {
    let polling = LogP::new(nanos(2240), nanos(340), nanos(990))
        .with_multicast(Multicast::new(nanos(4), nanos(2880)));
    let group = group(8);
    let all = candidates(group, &polling, true);
    let chosen = |logp| plan(group, &logp, two(), &all).expect("candidates");
    assert_eq!(chosen(polling).algorithm, Algorithm::Tournament, "the least work");
    let advice = chosen(polling.with_poll(nanos(990)));
    assert_eq!(advice.algorithm, Algorithm::Central, "as fast as the concurrent barrier there");
    assert!(advice.reason.contains("take turns on 2 cores"), "{}", advice.reason);
    // Three others have their turns before each message of the chain.
    let [tournament, concurrent] = [Algorithm::Tournament, CONCURRENT].map(|algorithm| {
        let of = |one: &&Candidate| one.algorithm == algorithm;
        let found = advice.candidates.iter().find(of).expect("considered");
        found.predicted_sharing - found.predicted
    });
    assert_eq!((tournament, concurrent), (nanos(6 * 3 * 990), nanos(2 * 3 * 990)));
    let alone = plan(group, &polling.with_poll(nanos(990)), CoreAllocation::Dedicated, &all)
        .expect("candidates");
    assert!(alone.candidates.iter().all(|one| one.predicted_sharing == one.predicted));
}

/// Goal: the planner's own list suits every group, is better than any of the paper's algorithms, and does without
/// multicast where there is none. Method: all sizes to 130, with and without.
#[test]
fn plans_suit_every_group() {
    for size in 1..=130 {
        let group = group(size);
        for has_multicast in [false, true] {
            for cores in [CoreAllocation::Dedicated, two()] {
                let logp = on_one_machine();
                let all = candidates(group, &logp, has_multicast);
                let advice = plan(group, &logp, cores, &all).expect("candidates");
                assert!(advice.algorithm.schedule(group).is_ok());
                assert!(has_multicast || !advice.algorithm.is_multicast());
                let of_paper = Algorithm::OF_THE_PAPER.into_iter().filter(|algorithm| {
                    algorithm.check(group).is_ok() && (has_multicast || !algorithm.is_multicast())
                });
                let of_paper: Vec<_> = of_paper.collect();
                if let Ok(other) = plan(group, &logp, cores, &of_paper) {
                    assert!(advice.expected <= other.expected, "{size}");
                }
            }
        }
    }
    let logp = LogP::OF_THE_PAPER;
    assert_eq!(
        plan(group(4), &logp, CoreAllocation::Dedicated, &[]),
        Err(crate::algorithm::AlgorithmError::NoCandidates)
    );
    let unsuitable =
        plan(group(5), &logp, CoreAllocation::Dedicated, &[Algorithm::ShuffleExchange]);
    assert!(unsuitable.is_err_and(|error| error != crate::algorithm::AlgorithmError::NoCandidates));
}

/// Goal: advice says what it expected and what came of it. Method: an observation of twice the expectation.
#[test]
fn expectation_and_observation_are_reported() {
    let logp = LogP::OF_THE_PAPER;
    let mut advice = plan(
        group(32),
        &logp,
        CoreAllocation::Dedicated,
        &[Algorithm::ShuffleExchange, CONCURRENT],
    )
    .expect("two");
    assert_eq!(advice.deviation(), None);
    assert!(advice.to_string().contains("expected 150.0 µs"), "{advice}");
    advice.observe(Duration::from_micros(300));
    assert_eq!(advice.deviation(), Some(2.0));
    assert!(advice.to_string().contains("observed 300.0 µs (2.00 times"), "{advice}");
    let mut alone = plan(group(1), &logp, CoreAllocation::Dedicated, &[CONCURRENT]).expect("one");
    alone.observe(Duration::from_nanos(10));
    assert_eq!(alone.deviation(), None, "nothing was expected of it");
}
