//! One wait, step by step.

use proptest::{prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::policy::{Adaptive, Policy, Reactivity};

const REACTIVITIES: [Reactivity; 3] =
    [Reactivity::LowCpu, Reactivity::Balanced, Reactivity::LowLatency];

fn situation(count: u32, cores: u32, cpu: u64, delay: u64) -> WaitSituation {
    let costs =
        Costs { sleep_cpu: Duration::from_nanos(cpu), wake_delay: Duration::from_nanos(delay) };
    WaitSituation::new(Peers { count, cores }, costs)
}

/// The steps of a wait that finds nothing, with their times: a poll takes `spin`, the core is away for `away`.
fn steps(plan: WaitPlan, has_bursts: bool, spin: u64, away: u64) -> Vec<(SpinStep, Duration)> {
    let (mut spin_wait, mut step) = SpinWait::begin(plan, has_bursts, 8);
    let (mut now, mut steps) = (Instant::from_nanos(5), Vec::new());
    loop {
        let took = match step {
            SpinStep::Spin(count) => u64::from(count) * spin,
            SpinStep::Yield(count) => u64::from(count) * (away + spin),
            SpinStep::Pause => {
                // Others run.
                spin_wait.begin_burst();
                1_000
            }
            SpinStep::Sleep => 0,
        };
        let took = Duration::from_nanos(took);
        now += took;
        steps.push((step, took));
        if step == SpinStep::Sleep {
            return steps;
        }
        step = spin_wait.next(now);
    }
}

proptest! {
    /// Goal: a wait ends, does each part in its order and no longer than planned, and inside a task's poll no burst is longer than
    /// a sleep costs or 20 µs, except for the last step; the core is yielded at least once per burst. Method: machines and peers
    /// at random, in virtual time.
    #[test]
    fn bursts_are_bounded(
        (count, cores) in (1u32..100, 1u32..9),
        (cpu, delay) in (500u64..20_000, 500u64..100_000),
        (spin, away) in (5u64..500, 100u64..200_000),
        has_bursts: bool,
    ) {
        let situation = situation(count, cores, cpu, delay);
        for reactivity in REACTIVITIES {
            let plan = Adaptive::new(reactivity).plan_wait(&situation);
            let bound = Duration::from_nanos(cpu + delay).min(BURST_MAX);
            prop_assert!(plan.burst <= bound);
            prop_assert!(plan.spin + plan.yield_core <= plan.sleep);
            let steps = steps(plan, has_bursts, spin, away);
            let (mut burst_time, mut gives, mut total) = (Duration::ZERO, 0, Duration::ZERO);
            let (mut has_given, mut steps_of_burst) = (false, 0);
            for &(step, took) in &steps {
                match step {
                    SpinStep::Pause => {
                        prop_assert!(has_bursts);
                        (burst_time, gives, steps_of_burst) = (Duration::ZERO, 0, 0);
                    }
                    SpinStep::Spin(_) => prop_assert!(!has_given, "polls come first"),
                    SpinStep::Yield(_) => {
                        gives += 1;
                        has_given = true;
                    }
                    SpinStep::Sleep => {}
                }
                if let SpinStep::Spin(_) | SpinStep::Yield(_) = step {
                    steps_of_burst += 1;
                    // The cost of a step is known after the second one; how long the core will be away is never known
                    // before.
                    let fits = burst_time + took <= bound || steps_of_burst <= 2;
                    prop_assert!(!has_bursts || fits || gives == 1, "{steps:?}");
                    prop_assert!(!has_bursts || gives <= 1 || burst_time < bound, "{steps:?}");
                }
                if step != SpinStep::Pause {
                    burst_time += took;
                }
                total += took;
            }
            let longest = steps.iter().map(|&(_, took)| took).max().unwrap_or_default();
            prop_assert!(total <= plan.spin + plan.yield_core + 3 * longest, "{total:?} {steps:?}");
            prop_assert_eq!(steps.last().map(|&(step, _)| step), Some(SpinStep::Sleep));
        }
    }
}

/// Goal: peers with a core each poll, peers without yield at once, and neither happens if it does not pay. Method: the first
/// step in each case.
#[test]
fn the_first_step_suits_the_peers() {
    let first = |situation: &WaitSituation, reactivity| {
        let plan = Adaptive::new(reactivity).plan_wait(situation);
        SpinWait::begin(plan, false, 8).1
    };
    let balanced = Reactivity::Balanced;
    let (pair, many) = (situation(2, 2, 3_000, 20_000), situation(32, 2, 3_000, 20_000));
    assert_eq!(first(&pair, balanced), SpinStep::Spin(8));
    assert_eq!(first(&many, balanced), SpinStep::Yield(YIELDS_MAX));
    for situation in [pair, many] {
        assert_eq!(first(&situation, Reactivity::LowCpu), SpinStep::Sleep);
        let hopeless = WaitSituation { spinning_pays: false, ..situation };
        assert_eq!(first(&hopeless, balanced), SpinStep::Sleep);
    }
    let quota = Load { has_quota: true, ..Load::default() };
    assert_eq!(first(&WaitSituation { load: quota, ..pair }, balanced), SpinStep::Sleep);
    assert!(matches!(first(&WaitSituation { load: quota, ..many }, balanced), SpinStep::Yield(_)));
}

/// Goal: beside other programs, peers with a core each poll for twice as long as they would sleep, and do not offer a core which those
/// would keep; peers without a core yield as ever. Method: plans under each kind of demand for the core.
#[test]
fn a_pair_keeps_its_cores() {
    let (pair, many) = (situation(2, 2, 3_000, 20_000), situation(32, 2, 3_000, 20_000));
    let loads =
        [(true, false), (false, true), (true, true)].map(|(is_oversubscribed, was_preempted)| {
            Load { is_oversubscribed, was_preempted, has_quota: false }
        });
    for load in loads {
        let plan = |situation| Adaptive::default().plan_wait(&WaitSituation { load, ..situation });
        let planned = plan(pair);
        assert_eq!((planned.spin, planned.yield_core), (2 * planned.sleep, Duration::ZERO));
        assert_eq!(plan(many), Adaptive::default().plan_wait(&many));
        let hopeless = plan(WaitSituation { spinning_pays: false, ..pair });
        assert!(!hopeless.tries(), "{load:?}");
        let low = Adaptive::new(Reactivity::LowCpu).plan_wait(&WaitSituation { load, ..pair });
        assert!(!low.tries(), "{load:?}");
    }
}

/// Goal: a core that comes back late is given away once in a burst, one that comes back at once several times. Method: steps in
/// virtual time, after what it costs has been learnt.
#[test]
fn yields_fill_a_burst() {
    let plan = Adaptive::default().plan_wait(&situation(32, 2, 3_000, 20_000));
    let most = |away| {
        let all = steps(plan, true, 100, away);
        let learnt = all.len() / 2;
        all[learnt..]
            .iter()
            .filter_map(|&(step, _)| match step {
                SpinStep::Yield(count) => Some(count),
                _ => None,
            })
            .max()
    };
    assert_eq!(most(60_000), Some(1));
    assert_eq!(most(1_000), Some(YIELDS_MAX));
}

/// Goal: among more peers than cores, each of which waits for one other, the core is yielded for as long as a chain of all of them takes,
/// up to 64, also if it comes back late; two peers, and peers that all wait for the last one, do not yield it then. Method: plans.
#[test]
fn a_chain_of_peers_goes_on_yielding() {
    let expensive = |situation| WaitSituation { are_yields_expensive: true, ..situation };
    let of_one = |count, cores| WaitSituation {
        sequential_sleeps: 2,
        ..situation(count, cores, 3_000, 20_000)
    };
    let plan = |situation: &WaitSituation| Adaptive::default().plan_wait(situation);
    for count in [3, 16, 64, 100] {
        let planned = plan(&of_one(count, 2));
        assert_eq!(planned.yield_core, planned.sleep / 2 * count.min(64));
        assert_eq!((planned.all, planned.spin), (planned.yield_core, Duration::ZERO));
        assert_eq!(plan(&expensive(of_one(count, 2))), planned);
    }
    for situation in [of_one(2, 1), of_one(16, 16), situation(16, 2, 3_000, 20_000)] {
        assert!(!plan(&situation).yield_core.is_zero());
        assert!(plan(&expensive(situation)).yield_core.is_zero(), "{situation:?}");
    }
}
