//! Spin, yield the core, sleep: the steps of a wait until it sleeps, as a state machine without a
//! clock.
//!
//! ```text
//!             (1) polls left          (2) else             (3) the plan's time is over
//!   begin ──▶ SpinStep::Spin ──────▶ SpinStep::Yield ────▶ SpinStep::Sleep
//!               │    ▲                 │    ▲
//!               ▼    │ begin_burst      ▼    │ begin_burst
//!             SpinStep::Pause (4)    SpinStep::Pause (4): the burst of a wait inside a task's poll is over
//! ```
//!
//! Every arrow is [`SpinWait::next`], except for the first, which is [`SpinWait::begin`]. A [`WaitPlan`], made by the
//! [`Policy`](crate::Policy), limits the time of each part.

use std::time::Duration;

use super::{
    cost::{Costs, YieldMeter},
    history::SpinCosts,
    load::Load,
};
use crate::clock::Instant;

/// A burst inside a task's poll lasts no longer than this, however expensive a sleep is: less than the interval between two
/// poll passes, and so less than the delay that an event may have anyway.
const BURST_MAX: Duration = Duration::from_micros(20);

/// The most times that the core is yielded between two clock readings.
const YIELDS_MAX: u32 = 4;

/// The threads that wait for each other on this machine, each equally likely to be the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers, nothing to add")]
pub struct Peers {
    /// The number of peers, including the waiter.
    pub count: u32,
    /// The number of cores for which they compete.
    pub cores: u32,
}

impl Peers {
    /// Returns whether there are more peers than cores: then an awaited peer may have no core until the waiter yields its
    /// own.
    #[must_use]
    pub const fn are_oversubscribed(self) -> bool {
        self.count > self.cores
    }

    /// Returns how many sleeps and wake-ups follow on each other if all sleep: the last to come wakes the others one after the
    /// other, and of a pair each sleeps once. (The number of peers per core would be too small: with it, crowds of threads slept
    /// too early, and one sleep causes more sleeps than its own.)
    #[must_use]
    pub const fn sequential_sleeps(self) -> u32 {
        if self.count < 2 { 2 } else { self.count }
    }
}

/// The information from which a policy plans a wait.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WaitSituation {
    /// The peers of the wait.
    pub peers: Peers,
    /// The number of sleeps and wake-ups that follow on each other if all sleep: in a [`new`](Self::new) situation
    /// [those of its peers](Peers::sequential_sleeps); two if each waits for one other peer only.
    pub sequential_sleeps: u32,
    /// The cost of sleeping and waking on this machine.
    pub costs: Costs,
    /// The other demand for the core, as far as it is known.
    pub load: Load,
    /// True if spinning before the sleep has paid lately.
    pub spinning_pays: bool,
    /// True if the core was away for long when it was last yielded: to a thread that computes.
    pub are_yields_expensive: bool,
}

impl WaitSituation {
    /// Returns the situation of a waiter without history, on a machine with no other load.
    #[must_use]
    pub const fn new(peers: Peers, costs: Costs) -> Self {
        let load = Load { is_oversubscribed: false, was_preempted: false, has_quota: false };
        let sequential_sleeps = peers.sequential_sleeps();
        Self {
            peers,
            sequential_sleeps,
            costs,
            load,
            spinning_pays: true,
            are_yields_expensive: false,
        }
    }

    /// Like [`new`](Self::new), for a wait whose event comes from one peer, whatever the others do: a message rather than a
    /// barrier.
    #[must_use]
    pub const fn of_one(peers: Peers, costs: Costs) -> Self {
        Self { sequential_sleeps: 2, ..Self::new(peers, costs) }
    }
}

/// The steps of a wait before it sleeps, and their lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "policies must be able to make one")]
pub struct WaitPlan {
    /// The time for which it polls repeatedly.
    pub spin: Duration,
    /// The time for which it then yields the core between polls. Together no longer than `sleep`, than twice that beside other programs, or than
    /// `all` if there are more peers than cores and each waits for one other: see [`History::spin_balance`](crate::History::spin_balance).
    pub yield_core: Duration,
    /// The longest burst of polls of a wait inside a task's poll.
    pub burst: Duration,
    /// The cost if the waiter and the awaited peers sleep.
    pub sleep: Duration,
    /// The cost if all peers sleep, one after the other, at most eight of them, or 64 if they have fewer cores: like `sleep`, or longer if
    /// each waits for one other peer. A core that is away for longer was given to a thread that computes.
    pub all: Duration,
}

/// The most peers that are assumed to wait for each other in a chain, each for one other.
const CHAIN_MAX: u32 = 8;

/// The same if there are more peers than cores: they pass their cores on through the whole chain.
const CROWD_CHAIN_MAX: u32 = 64;

/// Peers with a core each do not offer it beside other programs: a program that takes it keeps it until the kernel's next tick, some
/// milliseconds, where the awaited peer answers within microseconds. They poll for this many times as long as the sleeps take ([`WaitPlan::sleep`]): a
/// wake-up waits for the other programs, too, now and then for milliseconds.
const BESIDE_OTHERS: u32 = 2;

impl WaitPlan {
    /// Returns the plan of [`Adaptive`](crate::Adaptive): see [`Policy::plan_wait`](crate::Policy::plan_wait).
    ///
    /// `spin_max` is the longest time to poll while nothing else needs the core; zero means no spin wait at all. `delay_weight` has
    /// the same meaning as there.
    pub(super) fn adaptive(
        situation: &WaitSituation,
        spin_max: Duration,
        delay_weight: u32,
    ) -> Self {
        let WaitSituation { peers, costs, load, spinning_pays, are_yields_expensive, .. } =
            *situation;
        let one = costs.sleep_cpu.saturating_add(costs.wake_delay.saturating_mul(delay_weight));
        let in_a_row = situation.sequential_sleeps;
        let sleep = one.saturating_mul(in_a_row);
        let are_oversubscribed = peers.are_oversubscribed();
        // Many peers on few cores, each of which waits for one other.
        let is_crowd = are_oversubscribed && in_a_row < peers.sequential_sleeps();
        let chain = if is_crowd { CROWD_CHAIN_MAX } else { CHAIN_MAX };
        let all = one.saturating_mul(peers.sequential_sleeps().min(chain).max(in_a_row));
        let burst = costs.sleep_cpu.saturating_add(costs.wake_delay).min(BURST_MAX);
        if spin_max.is_zero() || !spinning_pays {
            return Self { spin: Duration::ZERO, yield_core: Duration::ZERO, burst, sleep, all };
        }
        // Peers without a core need this one. Polling without result uses up a quota.
        let spin = if are_oversubscribed || load.has_quota {
            Duration::ZERO
        } else if load.is_core_free() {
            spin_max.min(one)
        } else {
            sleep.saturating_mul(BESIDE_OTHERS)
        };
        // A crowd yields for as long as all of it may take, also beside a thread that computes: each one that sleeps is woken by all others.
        let helps = are_oversubscribed || load.is_core_free();
        let gives = is_crowd || (helps && !are_yields_expensive);
        let longest = if is_crowd { all } else { sleep };
        let yield_core = if gives { longest.saturating_sub(spin) } else { Duration::ZERO };
        Self { spin, yield_core, burst, sleep, all }
    }

    /// Returns whether the wait does anything before it sleeps.
    #[must_use]
    pub const fn tries(&self) -> bool {
        !(self.spin.is_zero() && self.yield_core.is_zero())
    }

    pub(super) fn spin_costs(&self) -> SpinCosts {
        SpinCosts { spin: self.spin.saturating_add(self.yield_core), sleep: self.sleep }
    }
}

/// The next step of a wait. The caller carries it out, polls after each part, and ends the wait when it has found what it
/// waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every case")]
#[must_use = "a wait goes on by what it is told"]
pub enum SpinStep {
    /// Poll this many times in a row.
    Spin(u32),
    /// Yield the core this many times, and poll after each.
    Yield(u32),
    /// The burst is over: let other tasks of this executor run, then [begin another
    /// burst](SpinWait::begin_burst).
    Pause,
    /// Sleep.
    Sleep,
}

/// One wait, up to its sleep.
#[derive(Clone, Debug)]
pub struct SpinWait {
    plan: WaitPlan,
    /// True if the wait runs in bursts that have an end: inside a task's polls.
    has_bursts: bool,
    /// Polls per clock reading.
    spins: u32,
    yields: YieldMeter,
    began: Option<Instant>,
    /// The last clock reading of this burst.
    seen: Option<Instant>,
    /// The duration of this burst; untimed parts count with their usual duration.
    burst_time: Duration,
    /// The duration of the last timed step.
    took: Duration,
    /// The longest timed absence of the core.
    away: Duration,
    last: SpinStep,
}

impl SpinWait {
    /// Begins a wait that reads the clock after every `spins` polls, inside the polls of a task if it `has_bursts`. Returns it with
    /// its first step, which needs no clock.
    pub fn begin(plan: WaitPlan, has_bursts: bool, spins: u32) -> (Self, SpinStep) {
        let mut spin_wait = Self::with(plan, has_bursts, spins, YieldMeter::default());
        let first = spin_wait.first();
        spin_wait.last = first;
        (spin_wait, first)
    }

    /// A wait that has not begun.
    pub(super) const fn with(
        plan: WaitPlan,
        has_bursts: bool,
        spins: u32,
        yields: YieldMeter,
    ) -> Self {
        let (burst_time, took, away) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (began, seen, last) = (None, None, SpinStep::Pause);
        Self { plan, has_bursts, spins, yields, began, seen, burst_time, took, away, last }
    }

    /// A wait that has done its first step.
    pub(super) const fn after(self, first: SpinStep) -> Self {
        Self { last: first, ..self }
    }

    /// Returns the first step.
    pub(super) fn first(&self) -> SpinStep {
        self.step(Duration::ZERO)
    }

    /// Begins a burst after a [pause](SpinStep::Pause); [`next`](Self::next) returns its first step.
    #[inline]
    pub const fn begin_burst(&mut self) {
        self.seen = None;
        self.burst_time = Duration::ZERO;
        self.last = SpinStep::Pause;
    }

    /// Call this on progress: the time limit of the wait starts again with the next step.
    #[inline]
    pub const fn restart(&mut self) {
        self.began = None;
    }

    /// Returns the step after one that found nothing. `now`: the time after that step.
    pub fn next(&mut self, now: Instant) -> SpinStep {
        self.note(now);
        self.last = self.step(self.waited());
        self.last
    }

    /// Records the time after a step.
    pub(crate) fn note(&mut self, now: Instant) {
        self.began.get_or_insert(now);
        if let Some(seen) = self.seen.replace(now) {
            self.took = now - seen;
            self.burst_time += self.took;
            if let SpinStep::Yield(count) = self.last {
                let each = self.took / count.max(1);
                self.yields.took(each);
                self.away = self.away.max(each);
            }
        } else if let SpinStep::Yield(count) = self.last {
            self.burst_time += self.yields.usual().unwrap_or(self.plan.burst) * count;
        }
    }

    /// Returns the usual cost of yielding the core, as far as this wait has measured it.
    pub(super) const fn yields(&self) -> YieldMeter {
        self.yields
    }

    /// Reads the clock before the first step.
    pub(super) const fn begin_at(self, now: Instant) -> Self {
        Self { began: Some(now), seen: Some(now), ..self }
    }

    /// Returns the longest timed absence of the core, and when it was measured.
    pub(super) fn away(&self) -> Option<(Duration, Instant)> {
        self.seen.filter(|_| !self.away.is_zero()).map(|seen| (self.away, seen))
    }

    /// Returns whether the core was given to a thread that computes: then sleeping would have been shorter for all.
    fn was_away_for_long(&self) -> bool {
        self.away > self.plan.all
    }

    /// Returns how long it had waited at the last clock reading; zero before the first.
    pub(super) fn waited(&self) -> Duration {
        self.began.zip(self.seen).map_or(Duration::ZERO, |(began, seen)| seen - began)
    }

    fn step(&self, waited: Duration) -> SpinStep {
        let plan = self.plan;
        let is_first = self.last == SpinStep::Pause;
        if waited < plan.spin {
            // The next step, and the untimed first one, take as long as the last one.
            let is_over = self.has_bursts && self.burst_time + 2 * self.took > plan.burst;
            if is_over && !is_first { SpinStep::Pause } else { SpinStep::Spin(self.spins) }
        } else if waited < plan.spin.saturating_add(plan.yield_core) && !self.was_away_for_long() {
            self.yield_core(is_first)
        } else {
            SpinStep::Sleep
        }
    }

    /// As many times as the burst has time for, but at least once per burst; once after polls, so that its time is known even if the event
    /// is there then.
    fn yield_core(&self, is_first: bool) -> SpinStep {
        let most = if matches!(self.last, SpinStep::Spin(_)) { 1 } else { YIELDS_MAX };
        if !self.has_bursts {
            return SpinStep::Yield(most);
        }
        let left = self.plan.burst.saturating_sub(self.burst_time);
        let room = self.yields.usual().map_or(0, |each| left.as_nanos() / each.as_nanos().max(1));
        match u32::try_from(room).unwrap_or(most).min(most) {
            0 if is_first => SpinStep::Yield(1),
            0 => SpinStep::Pause,
            count => SpinStep::Yield(count),
        }
    }
}

#[cfg(test)]
mod tests;
