//! [`Adaptive`](super::Adaptive) on traces of waits, in virtual time: its cost against that of the
//! fixed strategies on the same trace.
//!
//! The model of a machine: a wait ends `t` after the host has nothing to run. Polling until then costs
//! `t`; sleeping costs [`Machine::sleep`], whenever it ends; polling for `s` without success costs
//! both.

use proptest::{prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::policy::history::IdleEvent;

/// Nanoseconds.
type Nanos = u64;

const MICRO: Nanos = 1_000;

#[derive(Clone, Copy, Debug)]
struct Machine {
    sleep_cpu: Nanos,
    wake_delay: Nanos,
    /// The delay that the policy is told, in percent of the true one.
    told_percent: u64,
}

const MACHINE: Machine = Machine { sleep_cpu: 3_000, wake_delay: 30_000, told_percent: 100 };

/// One host that waits, with the policy that advises it.
struct Host<'a> {
    policy: &'a dyn Policy,
    machine: Machine,
    load: Load,
    history: History,
    now: Instant,
    spent: Nanos,
}

impl<'a> Host<'a> {
    fn new(policy: &'a dyn Policy, machine: Machine) -> Self {
        let now = Instant::from_nanos(0);
        let history = History::default();
        Self { policy, machine, load: Load::default(), history, now, spent: 0 }
    }

    fn costs(&self) -> Costs {
        let told = self.machine.wake_delay * self.machine.told_percent / 100;
        Costs {
            sleep_cpu: Duration::from_nanos(self.machine.sleep_cpu),
            wake_delay: Duration::from_nanos(told),
        }
    }

    /// How long the policy would poll before the next sleep.
    fn spin(&self) -> Nanos {
        let methods = Methods::NOTIFY | Methods::GROUP;
        let mut situation = Situation::new(self.now, Flavor::Hybrid, methods, &self.history);
        situation.costs = self.costs();
        situation.load = self.load;
        nanos(self.policy.decide(&situation).strategy.spin())
    }

    /// The true cost of a sleep, in the policy's currency.
    fn sleep_cost(&self) -> Nanos {
        let Machine { sleep_cpu, wake_delay, .. } = self.machine;
        let (sleep_cpu, wake_delay) =
            (Duration::from_nanos(sleep_cpu), Duration::from_nanos(wake_delay));
        nanos(self.policy.spin_costs(&Costs { sleep_cpu, wake_delay }).sleep)
    }

    fn wait(&mut self, t: Nanos) {
        let spin_costs = self.policy.spin_costs(&self.costs());
        let spin = self.spin();
        let seen;
        if spin > 0 && t <= spin {
            self.spent += t;
            seen = t;
            self.history.record_idle(Duration::from_nanos(t), IdleEvent::Awake, &spin_costs);
        } else {
            self.spent += spin + self.sleep_cost();
            seen = t + self.machine.wake_delay;
            if spin > 0 {
                self.history.record_spin_miss(&spin_costs);
            } else {
                let found = IdleEvent::Asleep { wake_delay: self.costs().wake_delay };
                self.history.record_idle(Duration::from_nanos(seen), found, &spin_costs);
            }
        }
        self.now += Duration::from_nanos(seen);
        self.history.record(self.now, 1);
    }
}

/// The cost of polling `spin` before each sleep for `trace`.
fn fixed_cost(trace: &[Nanos], spin: Nanos, sleep: Nanos) -> Nanos {
    trace.iter().map(|&t| if spin > 0 && t <= spin { t } else { spin + sleep }).sum()
}

/// The costs of `policy` for `trace`, of the better fixed strategy, of the best choice at each wait,
/// and of one sleep.
#[derive(Debug)]
struct SpinBalance {
    spent: Nanos,
    better: Nanos,
    best: Nanos,
    sleep: Nanos,
}

fn settle(policy: &dyn Policy, machine: Machine, trace: &[Nanos]) -> SpinBalance {
    let mut host = Host::new(policy, machine);
    for &t in trace {
        host.wait(t);
    }
    account(&host, trace)
}

fn account(host: &Host<'_>, trace: &[Nanos]) -> SpinBalance {
    let sleep = host.sleep_cost();
    let spin = nanos(host.policy.spin_costs(&host.costs()).spin);
    SpinBalance {
        spent: host.spent,
        better: fixed_cost(trace, 0, sleep).min(fixed_cost(trace, spin, sleep)),
        best: trace.iter().map(|&t| t.min(sleep)).sum(),
        sleep,
    }
}

/// Returns an error if `policy` paid more than twice the better fixed strategy plus one sleep.
fn bound(account: &SpinBalance) -> Result<(), String> {
    if account.spent <= 2 * account.better + account.sleep {
        Ok(())
    } else {
        Err(format!("{account:?}"))
    }
}

/// Returns an error if `policy` paid more than a tenth above the better fixed strategy plus the
/// cost of learning.
fn convergence(account: &SpinBalance) -> Result<(), String> {
    let learning = 12 * account.sleep;
    if account.spent <= account.better + account.better / 10 + learning {
        Ok(())
    } else {
        Err(format!("{account:?}"))
    }
}

const WAITS: usize = 5_000;

fn periodic(t: Nanos) -> Vec<Nanos> {
    vec![t; WAITS]
}

fn bursty(count: usize, within: Nanos, between: Nanos) -> Vec<Nanos> {
    (0..WAITS).map(|index| if index % (count + 1) == count { between } else { within }).collect()
}

fn poisson(mean: Nanos, seed: u64) -> Vec<Nanos> {
    let mut random = fastrand::Rng::with_seed(seed);
    let wait = |uniform: f64| -(1.0 - uniform).ln() * mean as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a random time")]
    (0..WAITS).map(|_| wait(random.f64()) as Nanos).collect()
}

/// An adversary that knows the policy: events come just after it gave up polling, and at once if it
/// sleeps.
fn adversarial(policy: &dyn Policy, machine: Machine, early: Nanos) -> SpinBalance {
    let mut host = Host::new(policy, machine);
    let mut trace = Vec::new();
    for _ in 0..WAITS {
        let spin = host.spin();
        trace.push(if spin > 0 { spin + 1 } else { early });
        host.wait(*trace.last().expect("just pushed"));
    }
    account(&host, &trace)
}

fn policies() -> [(Reactivity, Adaptive); 3] {
    [Reactivity::LowCpu, Reactivity::Balanced, Reactivity::LowLatency]
        .map(|reactivity| (reactivity, Adaptive::new(reactivity)))
}

/// Stationary traces, on which a policy has time to learn.
fn stationary() -> Vec<(String, Vec<Nanos>)> {
    let mut traces = vec![("idle".to_owned(), Vec::new())];
    for micros in [1, 4, 9, 11, 25, 60, 199, 201, 1_000, 100_000] {
        traces.push((format!("periodic {micros} µs"), periodic(micros * MICRO)));
    }
    for (count, within, between) in [(1, 4, 5_000), (10, 4, 10_000), (100, 50, 1_000), (3, 15, 90)]
    {
        let name = format!("bursts of {count}: {within} µs, then {between} µs");
        traces.push((name, bursty(count, within * MICRO, between * MICRO)));
    }
    for mean in [2, 8, 20, 50, 200, 5_000] {
        traces.push((format!("Poisson, {mean} µs"), poisson(mean * MICRO, mean)));
    }
    traces
}

/// Goal: on stationary traces the policy learns which strategy is the better one. Method: periodic,
/// bursty, Poisson and idle traces, for each reactivity; at most a tenth above the better one.
#[test]
fn it_converges() {
    for (reactivity, policy) in policies() {
        for (name, trace) in stationary() {
            let account = settle(&policy, MACHINE, &trace);
            let both = bound(&account).and_then(|()| convergence(&account));
            assert_eq!(both, Ok(()), "{reactivity}, {name}");
        }
    }
}

/// Goal: an adversary that knows the policy cannot make it pay more than twice the better fixed
/// strategy.
/// Method: an adversary that decides each wait after the policy did.
#[test]
fn an_adversary_gains_little() {
    for (reactivity, policy) in policies() {
        for early in [0, 1, 3, 9].map(|micros| micros * MICRO) {
            let account = adversarial(&policy, MACHINE, early);
            assert_eq!(bound(&account), Ok(()), "{reactivity}, {early} ns");
        }
    }
}

proptest! {
    /// Goal: the bound holds for any trace on any machine. Method: waits of all sizes, in runs of
    /// random length, on machines with cheap and expensive sleeps; with `spin_max` as large as a
    /// sleep, it pays at most three times as much as the best choice at each wait.
    #[test]
    fn it_never_pays_more_than_twice(
        runs in proptest::collection::vec((0u32..20, 1usize..60), 1..40),
        sleep_cpu in 1u64..20,
        wake_delay in 1u64..100,
    ) {
        let trace: Vec<Nanos> =
            runs.iter().flat_map(|&(log2, count)| vec![(1 << log2) * 100; count]).collect();
        let machine = Machine {
            sleep_cpu: sleep_cpu * MICRO,
            wake_delay: wake_delay * MICRO,
            told_percent: 100,
        };
        for (reactivity, policy) in policies() {
            let account = settle(&policy, machine, &trace);
            prop_assert_eq!(bound(&account), Ok(()), "{}", reactivity);
            let unbounded = Adaptive { spin_max: Duration::from_secs(1), ..policy };
            let account = settle(&unbounded, machine, &trace);
            prop_assert_eq!(bound(&account), Ok(()), "{} without a bound", reactivity);
            prop_assert!(account.spent <= 3 * account.best + account.sleep, "{:?}", account);
        }
    }
}

/// Goal: a wrong delay of waking up costs little: a server whose first waits are slept through finds
/// out that they were short. Method: short waits on a machine that is slower, or faster, than known.
#[test]
fn a_wrong_delay_is_corrected() {
    for told_percent in [20, 50, 80, 150, 300] {
        let machine = Machine { told_percent, ..MACHINE };
        let policy = Adaptive::default();
        let account = settle(&policy, machine, &periodic(4 * MICRO));
        assert!(
            account.spent <= account.better * 11 / 10 + 12 * account.sleep,
            "{told_percent}: {account:?}"
        );
        // Long waits must not look short enough for many attempts.
        let account = settle(&policy, machine, &periodic(1_000 * MICRO));
        assert_eq!(convergence(&account), Ok(()), "{told_percent}");
    }
}

/// Goal: a host does not poll if another thread needs the core. Method: short waits, under each kind
/// of load, after the policy has learnt to poll.
#[test]
fn a_core_that_others_want_is_left() {
    let loads = [
        Load { is_oversubscribed: true, ..Load::default() },
        Load { was_preempted: true, ..Load::default() },
        Load { has_quota: true, ..Load::default() },
    ];
    for (reactivity, policy) in policies() {
        for load in loads {
            let mut host = Host::new(&policy, MACHINE);
            (0..100).for_each(|_| host.wait(4 * MICRO));
            assert_eq!(host.spin() > 0, reactivity != Reactivity::LowCpu, "{reactivity}");
            host.load = load;
            assert_eq!(host.spin(), 0, "{reactivity}, {load:?}");
            host.load = Load::default();
            assert_eq!(host.spin() > 0, reactivity != Reactivity::LowCpu, "{reactivity}");
        }
    }
}

/// Goal: the bound on polling is kept. Method: the longest of all waits that are polled for.
#[test]
fn polling_is_bounded() {
    for (reactivity, policy) in policies() {
        let mut host = Host::new(&policy, Machine { wake_delay: 1_000 * MICRO, ..MACHINE });
        for _ in 0..100 {
            host.wait(MICRO);
            assert!(host.spin() <= nanos(reactivity.spin_max()), "{reactivity}");
        }
    }
}

/// Goal: polls of a detector that cannot announce take no more than their share. Method: frequent
/// events with expensive polls.
#[test]
fn expensive_polls_are_rare() {
    let mut history = History::default();
    for round in 0..100 {
        history.record(Instant::from_nanos(round * MICRO), 1);
        history.record_poll_cost(Duration::from_micros(30));
    }
    let now = Instant::from_nanos(100 * MICRO);
    let situation = Situation::new(now, Flavor::Hybrid, Methods::GROUP, &history);
    let policy = Adaptive::default();
    let Some(Frequency::Time(every)) = policy.decide(&situation).strategy.every() else {
        panic!("a polling strategy polls in units of time");
    };
    let share = Duration::from_micros(30) * policy.poll_share;
    assert!(every >= share * 9 / 10 && every <= share, "{every:?}");
}

/// Policies with a fault each, which the tests above must notice.
#[derive(Debug)]
enum Mutant {
    AlwaysSleeps,
    AlwaysPolls,
    PollsTooLong,
    /// Expects what it saw last; keeps no account.
    BelievesTheLast,
}

impl Policy for Mutant {
    fn decide(&self, situation: &Situation<'_>) -> Decision {
        let every = Frequency::Time(Duration::from_micros(50));
        let spin_costs = self.spin_costs(&situation.costs);
        let polls = match self {
            Self::AlwaysSleeps => false,
            Self::AlwaysPolls | Self::PollsTooLong => true,
            Self::BelievesTheLast => situation
                .history
                .event_interval()
                .is_some_and(|interval| interval <= spin_costs.spin),
        };
        let strategy = if polls {
            Strategy::PollThenSleep { every, spin: spin_costs.spin }
        } else {
            Strategy::Sleep { every }
        };
        Decision { strategy, until: situation.now }
    }

    fn spin_costs(&self, costs: &Costs) -> SpinCosts {
        let spin_costs = Adaptive::default().spin_costs(costs);
        match self {
            Self::PollsTooLong => SpinCosts { spin: spin_costs.sleep * 5, ..spin_costs },
            _ => spin_costs,
        }
    }
}

/// Goal: the tests of the bound and of convergence can fail. Method: each faulty policy fails one.
#[test]
fn faulty_policies_are_noticed() {
    let fails = |mutant: &Mutant, test: &dyn Fn(&SpinBalance) -> Result<(), String>| {
        let traces = stationary();
        traces.iter().any(|(_, trace)| test(&settle(mutant, MACHINE, trace)).is_err())
    };
    assert!(fails(&Mutant::AlwaysSleeps, &bound), "always sleeping costs more than twice");
    assert!(fails(&Mutant::AlwaysPolls, &convergence), "always polling never learns");
    assert!(
        fails(&Mutant::PollsTooLong, &bound),
        "polling longer than a sleep costs more than twice"
    );
    assert!(fails(&Mutant::BelievesTheLast, &bound), "intervals contain the host's own delay");
    assert!(
        adversarial(&Mutant::AlwaysSleeps, MACHINE, MICRO).spent > 10 * MICRO * WAITS as u64,
        "the adversary finds who always sleeps"
    );
}
