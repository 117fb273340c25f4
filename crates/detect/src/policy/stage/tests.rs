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

/// The steps of a wait that finds nothing, with their times: a look takes `look`, the core is away for `away`.
fn steps(plan: WaitPlan, has_turns: bool, look: u64, away: u64) -> Vec<(Step, Duration)> {
    let (mut stage, mut step) = Stage::begin(plan, has_turns, 8);
    let (mut now, mut steps) = (Instant::from_nanos(5), Vec::new());
    loop {
        let took = match step {
            Step::Look(count) => u64::from(count) * look,
            Step::GiveAway(count) => u64::from(count) * (away + look),
            Step::Pause => {
                // Others run.
                stage.begin_turn();
                1_000
            }
            Step::Sleep => 0,
        };
        let took = Duration::from_nanos(took);
        now = now + took;
        steps.push((step, took));
        if step == Step::Sleep {
            return steps;
        }
        step = stage.next(now);
    }
}

proptest! {
    /// Goal: a wait ends, does each part in its order and no longer than planned, and inside of a poll no burst is longer than a
    /// sleep costs or 20 µs, but for the last step; the core is given away once in each turn at least. Method: machines and
    /// peers at random, in virtual time.
    #[test]
    fn turns_are_bounded(
        (count, cores) in (1u32..100, 1u32..9),
        (cpu, delay) in (500u64..20_000, 500u64..100_000),
        (look, away) in (5u64..500, 100u64..200_000),
        has_turns: bool,
    ) {
        let situation = situation(count, cores, cpu, delay);
        for reactivity in REACTIVITIES {
            let plan = Adaptive::new(reactivity).plan_wait(&situation);
            let bound = Duration::from_nanos(cpu + delay).min(TURN_MAX);
            prop_assert!(plan.turn <= bound);
            prop_assert!(plan.look + plan.give_away <= plan.sleep);
            let steps = steps(plan, has_turns, look, away);
            let (mut turn, mut gives, mut total) = (Duration::ZERO, 0, Duration::ZERO);
            let (mut has_given, mut steps_of_turn) = (false, 0);
            for &(step, took) in &steps {
                match step {
                    Step::Pause => {
                        prop_assert!(has_turns);
                        (turn, gives, steps_of_turn) = (Duration::ZERO, 0, 0);
                    }
                    Step::Look(_) => prop_assert!(!has_given, "looks come first"),
                    Step::GiveAway(_) => {
                        gives += 1;
                        has_given = true;
                    }
                    Step::Sleep => {}
                }
                if let Step::Look(_) | Step::GiveAway(_) = step {
                    steps_of_turn += 1;
                    // How dear a step is, is known after the second one; how long the core is away, nobody knows before.
                    let fits = turn + took <= bound || steps_of_turn <= 2;
                    prop_assert!(!has_turns || fits || gives == 1, "{steps:?}");
                    prop_assert!(!has_turns || gives <= 1 || turn < bound, "{steps:?}");
                }
                if step != Step::Pause {
                    turn += took;
                }
                total += took;
            }
            let longest = steps.iter().map(|&(_, took)| took).max().unwrap_or_default();
            prop_assert!(total <= plan.look + plan.give_away + 3 * longest, "{total:?} {steps:?}");
            prop_assert_eq!(steps.last().map(|&(step, _)| step), Some(Step::Sleep));
        }
    }
}

/// Goal: who has a core each looks, who has not gives it away at once, and nobody does either where it is in vain. Method: the
/// first step in each case.
#[test]
fn the_first_step_suits_the_peers() {
    let first = |situation: &WaitSituation, reactivity| {
        let plan = Adaptive::new(reactivity).plan_wait(situation);
        Stage::begin(plan, false, 8).1
    };
    let balanced = Reactivity::Balanced;
    let (pair, many) = (situation(2, 2, 3_000, 20_000), situation(32, 2, 3_000, 20_000));
    assert_eq!(first(&pair, balanced), Step::Look(8));
    assert_eq!(first(&many, balanced), Step::GiveAway(YIELDS_MAX));
    for situation in [pair, many] {
        assert_eq!(first(&situation, Reactivity::LowCpu), Step::Sleep);
        let hopeless = WaitSituation { is_hopeful: false, ..situation };
        assert_eq!(first(&hopeless, balanced), Step::Sleep);
        let crowded = Load { is_crowded: true, ..Load::default() };
        let situation = WaitSituation { load: crowded, ..situation };
        assert_eq!(first(&situation, balanced), Step::GiveAway(YIELDS_MAX));
    }
    let quota = Load { has_quota: true, ..Load::default() };
    assert_eq!(first(&WaitSituation { load: quota, ..pair }, balanced), Step::Sleep);
    assert!(matches!(first(&WaitSituation { load: quota, ..many }, balanced), Step::GiveAway(_)));
}

/// Goal: a core that comes back late is given away once in a turn, one that comes back at once several times. Method: steps in
/// virtual time, after what it costs has been learnt.
#[test]
fn yields_fill_a_turn() {
    let plan = Adaptive::default().plan_wait(&situation(32, 2, 3_000, 20_000));
    let most = |away| {
        let all = steps(plan, true, 100, away);
        let learnt = all.len() / 2;
        all[learnt..]
            .iter()
            .filter_map(|&(step, _)| match step {
                Step::GiveAway(count) => Some(count),
                _ => None,
            })
            .max()
    };
    assert_eq!(most(60_000), Some(1));
    assert_eq!(most(1_000), Some(YIELDS_MAX));
}
