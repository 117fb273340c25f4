//! Look, give the core away, sleep: what a wait does until it sleeps, as a machine without a clock.
//!
//! ```text
//!             (1) looks left          (2) else             (3) the plan's time is over
//!   begin ──▶ Step::Look ──────────▶ Step::GiveAway ─────▶ Step::Sleep
//!               │    ▲                 │    ▲
//!               ▼    │ begin_turn      ▼    │ begin_turn
//!             Step::Pause (4)        Step::Pause (4): the turn is over, of one who waits inside of a poll
//! ```
//!
//! Every arrow is [`Stage::next`], except for the first, which is [`Stage::begin`]. How long each part may last says a
//! [`WaitPlan`], which the [`Policy`](crate::Policy) makes.

use std::time::Duration;

use super::{
    cost::{Costs, YieldMeter},
    history::Stakes,
    load::Load,
};
use crate::clock::Instant;

/// A turn inside of a poll lasts no longer than this, however dear a sleep is: less than a look is apart from the next one,
/// and so less than what an event may be late anyway.
const TURN_MAX: Duration = Duration::from_micros(20);

/// The core is given away at most so often between two looks at the clock.
const YIELDS_MAX: u32 = 4;

/// Who waits for each other on this machine, each as likely as the others to be the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers, nothing to add")]
pub struct Peers {
    /// How many, the waiter included.
    pub count: u32,
    /// For how many cores they compete.
    pub cores: u32,
}

impl Peers {
    /// Returns whether not all can have a core at the same time: then those who are awaited may have none before the waiter
    /// gives its own away.
    #[must_use]
    pub const fn are_crowded(self) -> bool {
        self.count > self.cores
    }

    /// Returns how many sleeps and wake-ups follow on each other if all sleep: whoever comes last wakes the others one after the
    /// other, and of a pair each sleeps once. (As many as share a core would be too few: with them, crowds of threads slept
    /// before they had to, and all sleeps that follow from one are more than its own.)
    #[must_use]
    pub const fn sleeps_in_a_row(self) -> u32 {
        if self.count < 2 { 2 } else { self.count }
    }
}

/// What a policy plans a wait from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WaitSituation {
    /// Who waits alike.
    pub peers: Peers,
    /// What sleeping and waking cost on this machine.
    pub costs: Costs,
    /// Who else has use for the core, as far as it is known.
    pub load: Load,
    /// Whether trying before the sleep has paid lately.
    pub is_hopeful: bool,
    /// Whether the core was away for long when it was given away last: to somebody who computes.
    pub are_yields_dear: bool,
}

impl WaitSituation {
    /// Returns the situation of a waiter of whom nothing is known yet, on a machine that nobody else uses.
    #[must_use]
    pub const fn new(peers: Peers, costs: Costs) -> Self {
        let load = Load { is_crowded: false, was_stopped: false, has_quota: false };
        Self { peers, costs, load, is_hopeful: true, are_yields_dear: false }
    }
}

/// What a wait does before it sleeps, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "policies must be able to make one")]
pub struct WaitPlan {
    /// How long it looks again and again.
    pub look: Duration,
    /// How long it gives the core away between two looks, after that. Together no longer than what it
    /// costs if all sleep: see [`History::spin_balance`](crate::History::spin_balance).
    pub give_away: Duration,
    /// The longest turn of one who waits inside of a poll.
    pub turn: Duration,
    /// What it costs if all sleep.
    pub sleep: Duration,
}

impl WaitPlan {
    /// Returns the plan of [`Adaptive`](crate::Adaptive): see [`Policy::plan_wait`](crate::Policy::plan_wait).
    ///
    /// `spin_max` is the longest time to look, zero for no tries at all; `delay_weight` is as there.
    pub(super) fn adaptive(
        situation: &WaitSituation,
        spin_max: Duration,
        delay_weight: u32,
    ) -> Self {
        let WaitSituation { peers, costs, load, is_hopeful, are_yields_dear } = *situation;
        let one = costs.sleep_cpu.saturating_add(costs.wake_delay.saturating_mul(delay_weight));
        let sleep = one.saturating_mul(peers.sleeps_in_a_row());
        let turn = costs.sleep_cpu.saturating_add(costs.wake_delay).min(TURN_MAX);
        if spin_max.is_zero() || !is_hopeful {
            return Self { look: Duration::ZERO, give_away: Duration::ZERO, turn, sleep };
        }
        let looks = !peers.are_crowded() && load.is_core_free();
        let look = if looks { spin_max.min(one) } else { Duration::ZERO };
        // A quota is used up by those who look for nothing; those who are awaited it lets run.
        let gives = !are_yields_dear && (peers.are_crowded() || !load.has_quota);
        let give_away = if gives { sleep.saturating_sub(look) } else { Duration::ZERO };
        Self { look, give_away, turn, sleep }
    }

    /// Returns whether the wait does anything before it sleeps.
    #[must_use]
    pub const fn tries(&self) -> bool {
        !(self.look.is_zero() && self.give_away.is_zero())
    }

    pub(super) fn stakes(&self) -> Stakes {
        Stakes { spin: self.look.saturating_add(self.give_away), sleep: self.sleep }
    }
}

/// What a wait does next. Whoever carries it out looks after each part of a step, and ends the wait when it has found what it
/// waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "whoever carries it out must know all")]
#[must_use = "a wait goes on by what it is told"]
pub enum Step {
    /// Look so many times in a row.
    Look(u32),
    /// Give the core away so many times, and look after each.
    GiveAway(u32),
    /// The turn is over: let others of this executor run, then [begin another one](Stage::begin_turn).
    Pause,
    /// Sleep.
    Sleep,
}

/// One wait, before it sleeps.
#[derive(Clone, Debug)]
pub struct Stage {
    plan: WaitPlan,
    /// Whether turns have an end.
    has_turns: bool,
    /// Looks for each look at the clock.
    looks: u32,
    yields: YieldMeter,
    began: Option<Instant>,
    /// When the clock was seen last in this turn.
    seen: Option<Instant>,
    /// What this turn has taken, what was not timed as it usually is.
    turn: Duration,
    /// What the last step took that was timed.
    took: Duration,
    /// The longest that the core was away, of what was timed.
    away: Duration,
    last: Step,
}

impl Stage {
    /// Begins a wait that looks at the clock after so many `looks`, inside of polls if it `has_turns`. Returns it with its first step,
    /// which needs no clock.
    pub fn begin(plan: WaitPlan, has_turns: bool, looks: u32) -> (Self, Step) {
        let mut stage = Self::with(plan, has_turns, looks, YieldMeter::default());
        let first = stage.first();
        stage.last = first;
        (stage, first)
    }

    /// A wait that has not begun.
    pub(super) const fn with(
        plan: WaitPlan,
        has_turns: bool,
        looks: u32,
        yields: YieldMeter,
    ) -> Self {
        let (turn, took, away) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (began, seen, last) = (None, None, Step::Pause);
        Self { plan, has_turns, looks, yields, began, seen, turn, took, away, last }
    }

    /// A wait that has done its first step.
    pub(super) const fn after(self, first: Step) -> Self {
        Self { last: first, ..self }
    }

    /// Returns the first step.
    pub(super) fn first(&self) -> Step {
        self.step(Duration::ZERO)
    }

    /// Begins a turn after a [pause](Step::Pause): [`next`](Self::next) says with what.
    #[inline]
    pub const fn begin_turn(&mut self) {
        self.seen = None;
        self.turn = Duration::ZERO;
        self.last = Step::Pause;
    }

    /// Returns what to do after a step that has found nothing. `now`: the time after the step.
    pub fn next(&mut self, now: Instant) -> Step {
        self.note(now);
        self.last = self.step(self.waited());
        self.last
    }

    /// Takes note of the time after a step.
    pub(crate) fn note(&mut self, now: Instant) {
        self.began.get_or_insert(now);
        if let Some(seen) = self.seen.replace(now) {
            self.took = now - seen;
            self.turn += self.took;
            if let Step::GiveAway(count) = self.last {
                let each = self.took / count.max(1);
                self.yields.took(each);
                self.away = self.away.max(each);
            }
        } else if let Step::GiveAway(count) = self.last {
            self.turn += self.yields.usual().unwrap_or(self.plan.turn) * count;
        }
    }

    /// Returns what it usually costs to give the core away, as far as this wait has seen.
    pub(super) const fn yields(&self) -> YieldMeter {
        self.yields
    }

    /// Sees the clock before the first step.
    pub(super) const fn begin_at(self, now: Instant) -> Self {
        Self { began: Some(now), seen: Some(now), ..self }
    }

    /// Returns how long the core was away at most, of what was timed, and when that was known.
    pub(super) fn away(&self) -> Option<(Duration, Instant)> {
        self.seen.filter(|_| !self.away.is_zero()).map(|seen| (self.away, seen))
    }

    /// Returns whether the core was given to somebody who computes: then the sleeps of all would have been shorter.
    fn was_away_for_long(&self) -> bool {
        self.away > self.plan.sleep
    }

    /// Returns how long it has waited when the clock was seen last: zero before.
    pub(super) fn waited(&self) -> Duration {
        self.began.zip(self.seen).map_or(Duration::ZERO, |(began, seen)| seen - began)
    }

    fn step(&self, waited: Duration) -> Step {
        let plan = self.plan;
        let is_first = self.last == Step::Pause;
        if waited < plan.look {
            // The next step, and the first one, which was not timed, take as long as the last one.
            let is_over = self.has_turns && self.turn + 2 * self.took > plan.turn;
            if is_over && !is_first { Step::Pause } else { Step::Look(self.looks) }
        } else if waited < plan.look.saturating_add(plan.give_away) && !self.was_away_for_long() {
            self.give_away(is_first)
        } else {
            Step::Sleep
        }
    }

    /// As often as the turn has room for, but once in each turn.
    fn give_away(&self, is_first: bool) -> Step {
        if !self.has_turns {
            return Step::GiveAway(YIELDS_MAX);
        }
        let left = self.plan.turn.saturating_sub(self.turn);
        let room = self.yields.usual().map_or(0, |each| left.as_nanos() / each.as_nanos().max(1));
        match u32::try_from(room).unwrap_or(YIELDS_MAX).min(YIELDS_MAX) {
            0 if is_first => Step::GiveAway(1),
            0 => Step::Pause,
            count => Step::GiveAway(count),
        }
    }
}

#[cfg(test)]
mod tests;
