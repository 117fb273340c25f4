//! Waits on traces, in virtual time: the cost for one waiter, and whether a group synchronizes
//! again.

use proptest::{prop_assert, proptest};

use super::*;
use crate::{
    clock::{Instant, nanos},
    policy::{Adaptive, Costs, Load, Reactivity, SpinStep},
};

type Nanos = u64;

const MICRO: Nanos = 1_000;

fn situation(peers: Peers, told: Nanos) -> WaitSituation {
    let (sleep_cpu, wake_delay) = (Duration::ZERO, Duration::from_nanos(told));
    WaitSituation::new(peers, Costs { sleep_cpu, wake_delay })
}

/// A waiter, and the cost of its waits so far: the time of its spins, and of the sleeps of all.
struct One {
    policy: Adaptive,
    situation: WaitSituation,
    waits: WaitHistory,
    spent: Nanos,
    sleep: Nanos,
}

impl One {
    fn new(policy: Adaptive, situation: WaitSituation) -> Self {
        let waits = WaitHistory::new(&policy, &situation, 8);
        let sleep = nanos(waits.planned().sleep);
        Self { policy, situation, waits, spent: 0, sleep }
    }

    /// A wait whose event comes after `t`, if all are awake then. Returns whether it slept.
    fn wait(&mut self, t: Nanos) -> bool {
        let mut step = self.waits.first(false);
        let (mut now, mut spin_wait) = (0, self.waits.begin(false, step));
        loop {
            match step {
                SpinStep::Sleep => break,
                SpinStep::Spin(count) => now += u64::from(count) * 40,
                SpinStep::Yield(count) => now += u64::from(count) * 250,
                SpinStep::Pause => panic!("a thread has no bursts"),
            }
            if now >= t {
                self.waits.found(&spin_wait);
                self.spent += t;
                return false;
            }
            step = spin_wait.next(Instant::from_nanos(now));
        }
        self.waits.gave_up(&spin_wait);
        self.spent += now + self.sleep;
        let at = Instant::from_nanos;
        let (woken, tried) = (at(t.max(now) + self.sleep), self.waits.planned().tries());
        self.waits.slept((at(0), woken), tried);
        self.waits.plan(woken, &self.policy, self.situation);
        true
    }
}

proptest! {
    /// Goal: on any trace, waiting costs at most twice as much as always sleeping, or twice as much as always spinning, plus the
    /// cost of learning. Method: waits of all sizes in runs of random length, pairs and crowds.
    #[test]
    fn it_never_pays_more_than_twice(
        runs in proptest::collection::vec((0u32..20, 1usize..60), 1..40),
        (count, cores) in (1u32..64, 1u32..9),
        told in 1u64..100,
    ) {
        let trace: Vec<Nanos> =
            runs.iter().flat_map(|&(log2, count)| vec![(1 << log2) * 100; count]).collect();
        for reactivity in [Reactivity::LowCpu, Reactivity::Balanced] {
            let situation = situation(Peers { count, cores }, told * MICRO);
            let mut one = One::new(Adaptive::new(reactivity), situation);
            for &t in &trace {
                one.wait(t);
            }
            let plan = one.policy.plan_wait(&situation);
            let tries = nanos(plan.spin + plan.yield_core);
            let sleeping = trace.len() as u64 * one.sleep;
            let each = |&t: &Nanos| if t <= tries { t } else { tries + one.sleep };
            let trying: u64 = trace.iter().map(each).sum();
            // The step in progress when the time is over.
            let steps = trace.len() as u64 * 1_000;
            let learning = 10 * one.sleep * (1 + runs.len() as u64);
            prop_assert!(one.spent <= 2 * sleeping + steps, "{} {}", one.spent, sleeping);
            prop_assert!(one.spent <= 2 * trying + steps + learning, "{} {}", one.spent, trying);
        }
    }
}

/// Goal: waits that are far apart stop spinning, and the first ones that are near resume it. Method: runs of both.
#[test]
fn far_waits_sleep_at_once() {
    for (count, cores) in [(2, 2), (32, 2), (8, 8)] {
        let situation = situation(Peers { count, cores }, 20 * MICRO);
        let mut one = One::new(Adaptive::default(), situation);
        for _ in 0..10 {
            assert!(one.wait(100_000 * MICRO));
        }
        let before = one.spent;
        assert!(one.wait(100_000 * MICRO));
        assert_eq!(one.spent - before, one.sleep, "it sleeps at once");
        let sleeps = (0..20).take_while(|_| one.wait(MICRO)).count();
        assert!(sleeps <= 5, "{sleeps} near waits are slept through");
        assert!(!one.wait(MICRO));
    }
}

/// Goal: in a pair whose one member always sleeps, the other one spins rarely; and one successful spin ends that. Method:
/// waits that always take a little longer than a spin, and then short ones.
#[test]
fn tries_that_are_always_lost_become_rare() {
    let situation = situation(Peers { count: 2, cores: 2 }, 20 * MICRO);
    let mut one = One::new(Adaptive::default(), situation);
    let plan = *one.waits.planned();
    let longer = nanos(plan.spin + plan.yield_core) + 2 * MICRO;
    let tries = |one: &mut One, waits: u32| -> u32 {
        let each = (0..waits).map(|_| {
            let tries = one.waits.planned().tries();
            assert!(one.wait(longer));
            u32::from(tries)
        });
        each.sum()
    };
    assert!(tries(&mut one, 4) >= 4, "a few are no reason");
    tries(&mut one, 100);
    let rare = tries(&mut one, 10_000);
    assert!((100..=400).contains(&rare), "{rare}");
    let sleeps = (0..100).take_while(|_| one.wait(MICRO)).count();
    assert!(sleeps <= DOUBTS as usize, "{sleeps}");
    for _ in 0..4 {
        assert!(!one.wait(MICRO));
    }
    assert!(tries(&mut one, 4) >= 4, "one that is won ends it");
}

/// Goal: members that all sleep because one was late synchronize again: the sleep of all makes each barrier longer than any member
/// spins. Method: a group in virtual time whose barrier takes as long as the sleeps of all if one of them sleeps, on machines whose
/// sleeps cost more than is known.
#[test]
fn a_group_finds_together_again() {
    for (count, truth) in [(2, 1), (2, 2), (8, 2), (32, 1), (32, 2), (32, 3)] {
        let peers = Peers { count, cores: 2 };
        let situation = situation(peers, 20 * MICRO);
        let policy = Adaptive::default();
        let mut group: Vec<_> =
            (0..count).map(|_| WaitHistory::new(&policy, &situation, 8)).collect();
        let barrier = |group: &mut [WaitHistory], late: Nanos| {
            let sleeps = group.iter().filter(|one| !one.planned().tries()).count();
            let awake = 300 * u64::from(count);
            let together = u64::from(peers.sequential_sleeps()) * 20 * MICRO * truth;
            let lasts = if sleeps > 0 { together } else { awake } + late;
            for one in group {
                let tries = one.planned().spin + one.planned().yield_core;
                let first = one.first(false);
                let spin_wait = one.begin(false, first);
                if Duration::from_nanos(lasts) <= tries {
                    one.found(&spin_wait);
                } else {
                    one.gave_up(&spin_wait);
                    let at = Instant::from_nanos;
                    let woken = at(lasts.max(together));
                    one.slept((at(0), woken), one.planned().tries());
                    one.plan(woken, &policy, situation);
                }
            }
            sleeps
        };
        for _ in 0..20 {
            barrier(&mut group, 100_000 * MICRO);
        }
        assert_eq!(barrier(&mut group, 100_000 * MICRO), count as usize, "all sleep");
        let rounds = (0..100).take_while(|_| barrier(&mut group, 0) > 0).count();
        assert!(rounds <= 8, "{count} members, {truth}: {rounds} barriers");
    }
}

/// Goal: a core that was given to a thread that computes is not yielded for a while, ever longer while that goes on, and again as soon
/// as it comes back early. Method: waits of a crowd in virtual time, where the core is away for 3 ms each time, and then no longer.
#[test]
fn a_core_is_not_given_to_who_computes() {
    let situation = situation(Peers { count: 8, cores: 2 }, 20 * MICRO);
    let policy = Adaptive::default();
    let mut waits = WaitHistory::new(&policy, &situation, 8);
    let at = Instant::from_nanos;
    let (mut now, mut lost) = (0, 0);
    let mut wait = |waits: &mut WaitHistory, away: Nanos| {
        let first = waits.first(true);
        let begun = now;
        let (first, timed) = waits.begin_timed(true, first, || at(now));
        let gives = matches!(first, SpinStep::Yield(_));
        now += if gives { away } else { 0 };
        if let Some(mut spin_wait) = timed {
            spin_wait.note(at(now));
            waits.found(&spin_wait);
            waits.plan(at(now), &policy, situation);
        } else if first == SpinStep::Sleep {
            waits.gave_up(&waits.begin(true, first));
            now += 100 * MICRO;
            waits.slept((at(begun), at(now)), false);
            waits.plan(at(now), &policy, situation);
        } else {
            waits.found_first();
        }
        lost += if gives { away } else { 0 };
        gives
    };
    for _ in 0..100_000 {
        wait(&mut waits, 3_000 * MICRO);
    }
    let until = (0..100_000).take_while(|_| !wait(&mut waits, 2 * MICRO)).count();
    assert!(until < 100_000, "it tries again");
    assert!((0..100).all(|_| wait(&mut waits, 2 * MICRO)));
    // This many waits pass before the first one is timed, and one more.
    assert!(lost - 100_000 * MICRO < now / 50, "{lost} of {now}");
}

/// Goal: a pair beside other programs never yields its core, sleeps at once while its waits are far, and polls again as soon as they are
/// near. Method: waits of each kind on a busy machine.
#[test]
fn a_pair_beside_others_polls_or_sleeps() {
    let busy = Load { is_oversubscribed: true, was_preempted: true, has_quota: false };
    let situation =
        WaitSituation { load: busy, ..situation(Peers { count: 2, cores: 2 }, 20 * MICRO) };
    let mut one = One::new(Adaptive::default(), situation);
    for (length, polls) in [(10 * MICRO, true), (100_000 * MICRO, false), (10 * MICRO, true)] {
        let slept = (0..20).filter(|_| one.wait(length)).count();
        assert_eq!(slept < 10, polls, "{length}: {slept} of 20 slept");
        let plan = *one.waits.planned();
        assert_eq!(plan.tries(), polls, "{length}");
        assert_eq!(plan.yield_core, Duration::ZERO);
    }
}
