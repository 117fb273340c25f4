//! Measuring live transports: what members find, agree on, and report. What is found depends on the machine, so that the
//! values are not tested here; `leader.rs` does that in virtual time.

use std::time::Duration;

use tokio::time::timeout;
use vigie_barrier::{
    Algorithm, BarrierError,
    logp::{CoreAllocation, LogP, MeasuredCosts},
    net::{Faults, MeasureError, NetBarrier, WaitMode},
    reduction::{Builtin, Element, Reduction},
};

use crate::stage::{Entries, Failed, play};

/// All members have found the same, and something.
fn assert_agreed(found: &[MeasuredCosts]) {
    for other in found {
        assert_eq!(other, &found[0]);
    }
    let costs = found[0].costs();
    assert!(costs.send > Duration::ZERO && costs.receive > Duration::ZERO, "{:?}", found[0]);
    // The fewest that make a result: a machine that is busy elsewhere has no time for more.
    assert!(found[0].round_trip.samples >= 8, "{:?}", found[0]);
    assert!(found[0].receive_asleep.median >= found[0].receive.median);
}

/// Goal: all members find the same, barriers go on around it, and the report says what was expected and observed.
/// Method: groups of several sizes with and without multicast, twice each, with barriers between.
#[test]
fn members_agree_on_what_they_find() {
    for (size, name) in [(2, "shuffle-exchange"), (3, "concurrent"), (6, "dissemination")] {
        let algorithm: Algorithm = name.parse().expect("a name");
        let entries = Entries::default();
        let body = move |mut barrier: NetBarrier| {
            let entries = entries.clone();
            async move {
                let assumed = barrier.report()?;
                assert!(!assumed.is_measured && assumed.observed.is_none());
                let mut found = Vec::new();
                for round in 0..2 {
                    found.push(barrier.measure().await?);
                    for epoch in 0..20 {
                        entries.enter();
                        barrier.wait().await?;
                        entries.check(round * 20 + epoch, size);
                    }
                    let report = barrier.report()?;
                    assert_eq!(report.costs, found[found.len() - 1].costs());
                    assert!(report.is_measured && report.ratio().is_some(), "{report}");
                    assert_eq!(report.observed.map(|observed| observed.waits), Some(20));
                    assert_eq!(report.advice.algorithm, algorithm);
                }
                Ok::<_, Failed>(found)
            }
        };
        let found = play(size, |_, builder| builder.algorithm(algorithm), body);
        for round in 0..2 {
            assert_agreed(&found.iter().map(|found| found[round]).collect::<Vec<_>>());
        }
    }
}

/// Goal: members that measure when they form a group choose the same algorithm by what they have found, and pass barriers with
/// it; one that was set stays. Method: both, and each way of waiting.
#[test]
fn groups_are_planned_by_what_was_found() {
    for waiting in [WaitMode::Adaptive, WaitMode::Polling, WaitMode::Sleeping] {
        for fixed in [None, Some(Algorithm::DISSEMINATION)] {
            let entries = Entries::default();
            let body = move |mut barrier: NetBarrier| {
                let entries = entries.clone();
                async move {
                    for epoch in 0..50 {
                        entries.enter();
                        barrier.wait().await?;
                        entries.check(epoch, 5);
                    }
                    let report = barrier.report()?;
                    assert!(report.is_measured);
                    Ok::<_, Failed>((barrier.algorithm(), report.costs))
                }
            };
            let found = play(
                5,
                |_, builder| {
                    let builder = builder.measure_costs().wait_mode(waiting);
                    match fixed {
                        Some(algorithm) => builder.algorithm(algorithm),
                        None => builder,
                    }
                },
                body,
            );
            let (algorithm, costs) = found[0];
            assert!(found.iter().all(|other| *other == (algorithm, costs)), "{found:?}");
            assert!(fixed.is_none_or(|fixed| fixed == algorithm));
        }
    }
}

/// Goal: lost, duplicated and late probes make no difference but in numbers. Method: 20 % lost, 5 % duplicated, 5 %
/// delayed; the algorithm is chosen anew amid it.
#[test]
fn losses_do_not_matter() {
    let faults = Faults::losing(7, 200).with_duplicates_and_delays(50, 50);
    let entries = Entries::default();
    let body = move |mut barrier: NetBarrier| {
        let entries = entries.clone();
        async move {
            let chosen = barrier.replan().await?.algorithm;
            for epoch in 0..30 {
                entries.enter();
                barrier.wait().await?;
                entries.check(epoch, 4);
            }
            barrier.leave(Duration::from_secs(2)).await?;
            Ok::<_, Failed>(chosen)
        }
    };
    let chosen = play(4, |_, builder| builder.faults(faults), body);
    assert!(chosen.iter().all(|other| *other == chosen[0]), "{chosen:?}");
}

/// Goal: a group that reduces measures too, and reduces on. Method: a sum around a plan by what was found.
#[test]
fn groups_that_reduce_measure_too() {
    let body = |mut barrier: NetBarrier| async move {
        let own = u64::from(barrier.rank().0) + 1;
        for _ in 0..2 {
            let (_, sum) = barrier.reduce(&own.to_le_bytes()).await?;
            assert_eq!(sum, 6_u64.to_le_bytes());
            barrier.replan().await?;
        }
        let (_, sum) = barrier.reduce(&own.to_le_bytes()).await?;
        assert_eq!(sum, 6_u64.to_le_bytes());
        Ok::<_, Failed>(())
    };
    let sum = Reduction::builtin(Builtin::Sum, Element::U64, 1).expect("one number");
    play(3, |_, builder| builder.reduction(sum.clone()), body);
}

/// Goal: a group of one, and a member inside a barrier, are errors that leave the barrier as it was. Method: a
/// group of one; a measurement between arriving and departing.
#[test]
fn mistakes_are_errors() {
    let alone = |mut barrier: NetBarrier| async move {
        assert!(matches!(barrier.measure().await, Err(MeasureError::Alone)));
        barrier.wait().await?;
        Ok::<_, Failed>(())
    };
    play(1, |_, builder| builder.measure_costs(), alone);
    let inside = |mut barrier: NetBarrier| async move {
        let token = barrier.arrive(&[])?;
        let error = barrier.measure().await.expect_err("it is inside");
        assert!(matches!(error, MeasureError::Barrier(ref error) if !error.is_final()), "{error}");
        barrier.depart(token).await?;
        barrier.wait().await?;
        Ok::<_, Failed>(())
    };
    play(2, |_, builder| builder, inside);
}

/// Goal: costs that were given are those of the report. Method: the paper's.
#[test]
fn reports_say_by_which_costs() {
    let body = |mut barrier: NetBarrier| async move {
        for _ in 0..5 {
            barrier.wait().await?;
        }
        let report = barrier.report()?;
        assert!(!report.is_measured);
        assert_eq!(report.costs, LogP::OF_THE_PAPER);
        assert!(report.advice.expected >= LogP::OF_THE_PAPER.hop(), "{report}");
        assert!(report.to_string().contains("assumed costs"), "{report}");
        Ok::<_, Failed>(())
    };
    play(2, |_, builder| builder.costs(LogP::OF_THE_PAPER), body);
    // Nothing of a group is needed for the same prediction.
    let group = vigie_barrier::Group::new(2).expect("a size");
    let all = [Algorithm::ShuffleExchange];
    let advice =
        vigie_barrier::logp::plan(group, &LogP::OF_THE_PAPER, CoreAllocation::Dedicated, &all);
    assert_eq!(advice.expect("one").expected, LogP::OF_THE_PAPER.hop());
}

/// Goal: a measurement that is cancelled wherever it is goes on when it is called again, and nothing else does meanwhile;
/// all find the same. Method: each member, also the leader, cancels it after times that differ, twice over, and then
/// replanning; barriers between.
#[test]
fn cancelled_measurements_go_on() {
    const SIZE: u32 = 4;
    const CANCELS: u32 = 12;
    let entries = Entries::default();
    let body = move |mut barrier: NetBarrier| {
        let entries = entries.clone();
        async move {
            let mut random = fastrand::Rng::with_seed(barrier.rank().0.into());
            let mut found = Vec::new();
            for round in 0..2 {
                for cancels in 0.. {
                    let time = if cancels < CANCELS { random.u64(0..30_000) } else { 100_000_000 };
                    let measuring = barrier.measure();
                    let measured = timeout(Duration::from_micros(time), measuring).await;
                    if let Ok(measured) = measured {
                        found.push(measured?);
                        break;
                    }
                    let error = barrier.wait().await.expect_err("the others wait");
                    let is_named = matches!(error, BarrierError::Measuring { call: "measure" });
                    assert!(is_named && !error.is_final(), "{error}");
                    assert!(barrier.arrive(&[]).is_err());
                    let error = barrier.replan().await.expect_err("the others do not");
                    let MeasureError::Barrier(error) = error else { panic!("{error}") };
                    assert!(matches!(error, BarrierError::Measuring { call: "measure" }));
                }
                for epoch in 0..10 {
                    entries.enter();
                    barrier.wait().await?;
                    entries.check(round * 10 + epoch, SIZE);
                }
            }
            for cancels in 0.. {
                let time = if cancels < CANCELS { random.u64(0..30_000) } else { 100_000_000 };
                let planned = timeout(Duration::from_micros(time), barrier.replan()).await;
                if let Ok(planned) = planned {
                    planned?;
                    break;
                }
                assert!(barrier.measure().await.is_err());
            }
            for epoch in 0..10 {
                entries.enter();
                barrier.wait().await?;
                entries.check(20 + epoch, SIZE);
            }
            Ok::<_, Failed>((found, barrier.algorithm()))
        }
    };
    let found = play(SIZE, |_, builder| builder, body);
    assert!(found.iter().all(|other| *other == found[0]) && found[0].0.len() == 2);
}
