//! Policies: the trait, one that always gives the same answer, and one that adapts.

use std::{fmt, time::Duration};

use super::{
    cost::Costs,
    history::{History, SpinCosts},
    load::Load,
    reactivity::Reactivity,
    spin_wait::{WaitPlan, WaitSituation},
    strategies::{StrategyKind, strategies},
    strategy::{Frequency, Strategy},
};
use crate::{
    clock::{Instant, nanos},
    detector::{Flavor, Methods},
};

#[cfg(test)]
mod traces;

/// The information from which a policy decides.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Situation<'a> {
    /// The time of the decision.
    pub now: Instant,
    /// The flavor of the scheduler that hosts the server.
    pub flavor: Flavor,
    /// The methods that the detector offers.
    pub methods: Methods,
    /// The history of this handle.
    pub history: &'a History,
    /// The number of pending requests of this handle.
    pub pending_count: usize,
    /// The cost of sleeping and waking on this machine.
    pub costs: Costs,
    /// The other demand for the core, at the last sample.
    pub load: Load,
}

impl<'a> Situation<'a> {
    /// Returns the situation of a handle on an idle machine with unknown costs: for tests of a
    /// policy, which then set the fields that matter to them.
    #[must_use]
    pub fn new(now: Instant, flavor: Flavor, methods: Methods, history: &'a History) -> Self {
        Self {
            now,
            flavor,
            methods,
            history,
            pending_count: 0,
            costs: Costs::default(),
            load: Load::default(),
        }
    }
}

/// A policy's decision, and how long it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "policies must be able to make one")]
pub struct Decision {
    /// The strategy from now on.
    pub strategy: Strategy,
    /// The time at which the policy is asked again.
    pub until: Instant,
}

/// Chooses the strategy for a handle.
///
/// # Implementing
/// A policy is a pure function of the [`Situation`]; keep state in the history. It is asked when a
/// handle is registered and at the first poll after [`Decision::until`].
///
/// # Contract
/// It returns only strategies for which [`Strategy::is_offered_by`] accepts the methods; the server
/// replaces any other by the one that [`Adaptive`] would choose, and logs it. It does not
/// block.
pub trait Policy: Send + Sync + fmt::Debug + 'static {
    /// Returns the strategy for `situation`.
    fn decide(&self, situation: &Situation<'_>) -> Decision;

    /// Returns the costs of spinning and sleeping when the host has nothing to run; from these the
    /// history keeps [`History::spin_balance`]. Default: the costs of spinning of
    /// [`Reactivity::Balanced`].
    fn spin_costs(&self, costs: &Costs) -> SpinCosts {
        Adaptive::default().spin_costs(costs)
    }

    /// Returns what a waiter for peers, rather than for a device, does before it sleeps; [`Waiter`](crate::Waiter)
    /// carries out the plan. Default: the plan of [`Reactivity::Balanced`].
    fn plan_wait(&self, situation: &WaitSituation) -> WaitPlan {
        Adaptive::default().plan_wait(situation)
    }
}

/// Always the same strategy: for experiments.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a named strategy, nothing to add")]
pub struct Fixed(pub Strategy);

impl Policy for Fixed {
    fn decide(&self, _: &Situation<'_>) -> Decision {
        Decision { strategy: self.0, until: Instant::MAX }
    }
}

/// Chooses by methods, history, costs and load.
///
/// For a detector that announces its events, the server sleeps. If polling before each sleep would
/// have paid lately ([`History::spin_balance`]) and nothing else needs the core ([`Load`]), it polls
/// first, for no longer than a sleep costs and at most [`spin_max`](Self::spin_max). That costs at
/// most twice as much as the better of always polling first and never doing so, plus one sleep. (An
/// oracle that chooses optimally for each wait pays at least a third of it, if `spin_max` is no less
/// than the cost of a sleep; with a shorter `spin_max` there is no such bound.)
///
/// A detector that cannot announce is polled: often while polls hit, ever more rarely while they do
/// not, between [`interval_min`](Self::interval_min) and [`interval_max`](Self::interval_max), and so
/// that polls take no more than [`poll_share`](Self::poll_share) of the time.
///
/// # Source
/// The wait that costs at most twice the best one is from [spin91, §3]; the mix of both from
/// [bouge02, §2.1].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Adaptive {
    /// The interval between polls for readiness events while tasks run. Default 50 µs.
    pub every: Duration,
    /// The longest time to poll before a sleep. Default 10 µs; with zero it never polls first. Beside other programs, waits for
    /// peers with a core each poll for longer, twice [`WaitPlan::sleep`](crate::WaitPlan::sleep), and then yield no core.
    pub spin_max: Duration,
    /// The shortest time between two polls of a detector that cannot announce. Default 5 µs.
    pub interval_min: Duration,
    /// The longest time between two polls of a detector that cannot announce. Default 500 µs.
    pub interval_max: Duration,
    /// The microseconds of processor time that a microsecond of delay is worth. Default 1.
    pub delay_weight: u32,
    /// Polls of a detector that cannot announce take at most one in this many microseconds, at
    /// least 1. Default 8.
    pub poll_share: u32,
    /// The longest time after its deadline at which a timer may fire to share a wake-up with others, unless it sets
    /// its own slack ([`Wait::slack`](crate::Wait::slack)). Default 50 µs. Only used in the policy with
    /// which a server is created.
    pub timer_slack: Duration,
}

impl Adaptive {
    /// Returns the policy for `reactivity`; [`Reactivity`] lists the differences.
    #[must_use]
    pub const fn new(reactivity: Reactivity) -> Self {
        let (spin_max, timer_slack) = (reactivity.spin_max(), reactivity.timer_slack());
        match reactivity {
            Reactivity::LowCpu => Self {
                every: Duration::from_micros(100),
                spin_max,
                interval_min: Duration::from_micros(20),
                interval_max: Duration::from_millis(1),
                delay_weight: 0,
                poll_share: 50,
                timer_slack,
            },
            Reactivity::Balanced => Self {
                every: Duration::from_micros(50),
                spin_max,
                interval_min: Duration::from_micros(5),
                interval_max: Duration::from_micros(500),
                delay_weight: 1,
                poll_share: 8,
                timer_slack,
            },
            Reactivity::LowLatency => Self {
                every: Duration::from_micros(20),
                spin_max,
                interval_min: Duration::from_micros(1),
                interval_max: Duration::from_micros(100),
                delay_weight: 8,
                poll_share: 2,
                timer_slack,
            },
        }
    }
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new(Reactivity::Balanced)
    }
}

impl From<Reactivity> for Adaptive {
    fn from(reactivity: Reactivity) -> Self {
        Self::new(reactivity)
    }
}

/// The time for which a decision of [`Adaptive`] holds.
const ADAPT_EVERY: Duration = Duration::from_millis(1);

/// The time to poll first is a multiple of this, so that the strategy stays the same while the
/// measured cost of a sleep fluctuates.
const SPIN_STEP_NS: u64 = 1_000;

impl Policy for Adaptive {
    fn decide(&self, situation: &Situation<'_>) -> Decision {
        let methods = situation.methods;
        let history = situation.history;
        let until = situation.now + ADAPT_EVERY;
        let every = Frequency::Time(self.every);
        if methods.contains(Methods::NOTIFY) && self.spin_max.is_zero() {
            // It never polls first, whatever happens.
            return Decision { strategy: Strategy::Sleep { every }, until: Instant::MAX };
        }
        let strategy = if methods.contains(Methods::NOTIFY) {
            let spin = self.spin_costs(&situation.costs).spin;
            if history.spin_balance() > 0 && !spin.is_zero() && situation.load.is_core_free() {
                Strategy::PollThenSleep { every, spin }
            } else {
                Strategy::Sleep { every }
            }
        } else if methods.contains(Methods::SIGNAL) {
            Strategy::Signal
        } else if methods.contains(Methods::BLOCK)
            && strategies(situation.flavor, methods).preferred() == Some(StrategyKind::Block)
        {
            Strategy::Block
        } else if methods.can_poll() {
            // An event is found half an interval late on average: with an eighth of the time
            // between events, that is small beside the waiter's own wait.
            let cheapest = history.poll_cost().unwrap_or_default() * self.poll_share.max(1);
            let interval = history
                .event_interval()
                .map_or(self.interval_min * 4, |expected| expected / 8)
                .max(history.idle(situation.now) / 8)
                .max(cheapest)
                .clamp(self.interval_min, self.interval_max.max(self.interval_min));
            let every = Frequency::Time(interval);
            if methods.contains(Methods::GROUP) {
                Strategy::PollGroup { every }
            } else {
                Strategy::CheckEach { every }
            }
        } else if methods.contains(Methods::BLOCK) {
            Strategy::Block
        } else {
            Strategy::Signal
        };
        Decision { strategy, until }
    }

    fn spin_costs(&self, costs: &Costs) -> SpinCosts {
        let sleep =
            costs.sleep_cpu.saturating_add(costs.wake_delay.saturating_mul(self.delay_weight));
        let spin_ns = nanos(self.spin_max.min(sleep)) / SPIN_STEP_NS * SPIN_STEP_NS;
        SpinCosts { spin: Duration::from_nanos(spin_ns), sleep }
    }

    /// If all peers can have a core, polls for no longer than a sleep costs and at most [`spin_max`](Self::spin_max); then yields the
    /// core between polls, until it has cost as much as a sleep of all peers. If there are more peers than cores or others want the core,
    /// yields from the start. Does neither if that did not pay lately or `spin_max` is zero.
    fn plan_wait(&self, situation: &WaitSituation) -> WaitPlan {
        WaitPlan::adaptive(situation, self.spin_max, self.delay_weight)
    }
}
