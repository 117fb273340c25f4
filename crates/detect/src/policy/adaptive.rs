//! Policies: what they are, the one that always says the same, and the one that adapts.

use std::{fmt, time::Duration};

use super::{
    cost::Costs,
    history::{History, Stakes},
    load::Load,
    reactivity::Reactivity,
    stage::{WaitPlan, WaitSituation},
    strategies::{Watch, strategies},
    strategy::{Frequency, Strategy},
};
use crate::{
    clock::{Instant, nanos},
    detector::{Flavor, Methods},
};

#[cfg(test)]
mod traces;

/// What a policy decides from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Situation<'a> {
    /// The time of the decision.
    pub now: Instant,
    /// The flavor of the scheduler that hosts the server.
    pub flavor: Flavor,
    /// The methods that the detector offers.
    pub methods: Methods,
    /// What was seen of this handle so far.
    pub history: &'a History,
    /// How many requests of this handle wait.
    pub pending_count: usize,
    /// What sleeping and waking cost on this machine.
    pub costs: Costs,
    /// Who else has use for the core, when that was last asked.
    pub load: Load,
}

impl<'a> Situation<'a> {
    /// Returns the situation of a handle whose machine is idle and of unknown costs: for the tests of
    /// a policy, which then set what matters to them.
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

/// What a policy decided, and for how long that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "policies must be able to make one")]
pub struct Decision {
    /// What to do from now on.
    pub strategy: Strategy,
    /// When to ask again.
    pub until: Instant,
}

/// Chooses the strategy for a handle.
///
/// # Implementing
/// A policy is a pure function of the [`Situation`]: state belongs into the history. It is asked when
/// a handle is registered and at the first round after [`Decision::until`].
///
/// # Contract
/// It returns only strategies that [`Strategy::is_offered_by`] the methods; the server replaces any
/// other by the one that [`Adaptive`] would choose, and counts that. It does not block.
pub trait Policy: Send + Sync + fmt::Debug + 'static {
    /// Returns what to do in `situation`.
    fn decide(&self, situation: &Situation<'_>) -> Decision;

    /// Returns what is at stake when the host has nothing to run: with these, the history keeps
    /// [`History::spin_balance`]. Default: the stakes of [`Reactivity::Balanced`].
    fn stakes(&self, costs: &Costs) -> Stakes {
        Adaptive::default().stakes(costs)
    }

    /// Returns what one who waits for peers, rather than for a device, does before it sleeps: [`Waiter`](crate::Waiter)
    /// carries it out. Default: the plan of [`Reactivity::Balanced`].
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
/// A detector that announces its events is slept on. If polling before each sleep would have paid
/// lately ([`History::spin_balance`]), and nobody else has use for the core ([`Load`]), the server
/// polls first, for no longer than a sleep costs and at most [`spin_max`](Self::spin_max). That costs
/// at most twice what the better of both would have cost, always to poll so first or never to, and one
/// sleep. (Who knows the future and chooses at each wait pays at least a third of it, if `spin_max` is
/// no less than a sleep costs; a bound in the face of such a rival is what a shorter one gives up.)
///
/// A detector that cannot announce is polled: often when polls hit, less and less often when they do
/// not, within [`interval_min`](Self::interval_min) and [`interval_max`](Self::interval_max), and such
/// that polls take no more than [`poll_share`](Self::poll_share) of the time.
///
/// # Source
/// The wait that is never worse than twice the best one is [spin91, §3]; the mix of both,
/// [bouge02, §2.1].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Adaptive {
    /// How often to look for announcements while tasks run. Default 50 µs.
    pub every: Duration,
    /// The longest time to poll before a sleep. Default 10 µs; zero never polls first.
    pub spin_max: Duration,
    /// The shortest time between two polls of a detector that cannot announce. Default 5 µs.
    pub interval_min: Duration,
    /// The longest time between two polls of a detector that cannot announce. Default 500 µs.
    pub interval_max: Duration,
    /// How many microseconds of processor time a microsecond of delay is worth. Default 1.
    pub delay_weight: u32,
    /// Polls of a detector that cannot announce take at most one in so many microseconds, at least
    /// 1. Default 8.
    pub poll_share: u32,
    /// How much later than its deadline a timer may fire to share a wake-up with others, unless it says so
    /// itself ([`Wait::slack`](crate::Wait::slack)). Default 50 µs. Matters in the policy that a
    /// server is made with, and nowhere else.
    pub timer_slack: Duration,
}

impl Adaptive {
    /// Returns the policy for `reactivity`. [`Reactivity`] says what differs.
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

/// How long a decision of [`Adaptive`] holds.
const ADAPT_EVERY: Duration = Duration::from_millis(1);

/// The time to poll first is a multiple of this, so that the strategy stays the same while the
/// measured cost of a sleep wavers.
const SPIN_STEP_NS: u64 = 1_000;

impl Policy for Adaptive {
    fn decide(&self, situation: &Situation<'_>) -> Decision {
        let methods = situation.methods;
        let history = situation.history;
        let until = situation.now + ADAPT_EVERY;
        let every = Frequency::Time(self.every);
        let strategy = if methods.contains(Methods::NOTIFY) {
            let spin = self.stakes(&situation.costs).spin;
            if history.spin_balance() > 0 && !spin.is_zero() && situation.load.is_core_free() {
                Strategy::PollThenSleep { every, spin }
            } else {
                Strategy::Sleep { every }
            }
        } else if methods.contains(Methods::SIGNAL) {
            Strategy::Signal
        } else if methods.contains(Methods::BLOCK)
            && strategies(situation.flavor, methods).preferred() == Some(Watch::Block)
        {
            Strategy::Block
        } else if methods.can_poll() {
            // An event is found half an interval late on average: an eighth of the time between
            // events keeps that small beside what the waiter waits anyway.
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

    fn stakes(&self, costs: &Costs) -> Stakes {
        let sleep =
            costs.sleep_cpu.saturating_add(costs.wake_delay.saturating_mul(self.delay_weight));
        let spin_ns = nanos(self.spin_max.min(sleep)) / SPIN_STEP_NS * SPIN_STEP_NS;
        Stakes { spin: Duration::from_nanos(spin_ns), sleep }
    }

    /// Looks where all peers can have a core, for no longer than a sleep costs and at most
    /// [`spin_max`](Self::spin_max); then gives the core away between two looks, until it costs as much as if all peers slept.
    /// At once, if there are more peers than cores or others want the core. Not at all, if that did not pay lately or `spin_max` is zero.
    fn plan_wait(&self, situation: &WaitSituation) -> WaitPlan {
        WaitPlan::adaptive(situation, self.spin_max, self.delay_weight)
    }
}
