//! The results of one waiter's waits, which decide whether it spins before the next sleep.

use std::time::Duration;

use super::{
    adaptive::Policy,
    backoff::YieldBackoff,
    cost::YieldMeter,
    history::SpinCosts,
    spin_balance::{SpinBalance, amount},
    spin_wait::{Peers, SpinStep, SpinWait, WaitPlan, WaitSituation},
};
use crate::clock::Instant;

/// A wait longer than this many times the sleep of all peers could not have been shortened by spinning.
const FAR_SLEEPS: u32 = 4;

/// After a lost spin, this many waits that were not far pay for another one.
const DOUBTS: u32 = 32;

/// One in this many waits reads the clock before and after it first yields the core.
const TIMED_ONE_IN: u32 = 32;

/// The results of one waiter's waits, and the plan for the next one.
///
/// The [account](crate::History::spin_balance) is that of a host that polls first, with the cost of all peers' sleeps. The
/// difference: the length of a sleep also depends on the peers. If all sleep because one was late, the next wait takes as long
/// as all of them need to wake up. So a wait that slept, but for no longer than a few times that, counts as evidence for
/// spinning.
#[derive(Clone, Debug)]
pub(crate) struct WaitHistory {
    peers: Peers,
    spins: u32,
    plan: WaitPlan,
    spin_balance: SpinBalance,
    /// The account is at its maximum.
    is_full: bool,
    /// The last spin whose result is known was lost, by a wait that was not far.
    has_lost: bool,
    yields: YieldMeter,
    backoff: YieldBackoff,
    waits: u32,
}

impl WaitHistory {
    /// For a waiter that reads the clock after every `spins` polls.
    pub(crate) fn new(policy: &dyn Policy, situation: &WaitSituation, spins: u32) -> Self {
        let plan = policy.plan_wait(situation);
        let spin_balance = SpinBalance::optimistic(&plan.spin_costs());
        let (yields, peers) = (YieldMeter::default(), situation.peers);
        let (is_full, has_lost) = (true, false);
        let (backoff, waits) = (YieldBackoff::new(), 0);
        Self { peers, spins, plan, spin_balance, is_full, has_lost, yields, backoff, waits }
    }

    pub(crate) const fn peers(&self) -> Peers {
        self.peers
    }

    /// Returns how many polls a wait does in its first step: zero if it does something else then.
    pub(crate) const fn spins_first(&self) -> u32 {
        if self.plan.spin.is_zero() { 0 } else { self.spins }
    }

    /// Returns whether another wait that succeeds in its first step would teach nothing.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    #[cfg(test)]
    pub(crate) const fn planned(&self) -> &WaitPlan {
        &self.plan
    }

    /// Begins a wait, inside the polls of a task if it `has_bursts`; returns the first step.
    #[inline]
    pub(crate) fn first(&self, has_bursts: bool) -> SpinStep {
        match self.spins_first() {
            0 => self.spin_wait(has_bursts).first(),
            spins => SpinStep::Spin(spins),
        }
    }

    /// The first step found nothing.
    pub(crate) const fn begin(&self, has_bursts: bool, first: SpinStep) -> SpinWait {
        self.spin_wait(has_bursts).after(first)
    }

    /// Like [`begin`](Self::begin), at a time before the first step, if this wait is one of those that are
    /// timed. Returns the first step, too: of several yields it is not known how many were done when the event comes.
    #[inline]
    pub(crate) fn begin_timed(
        &mut self,
        has_bursts: bool,
        first: SpinStep,
        now: impl FnOnce() -> Instant,
    ) -> (SpinStep, Option<SpinWait>) {
        if !matches!(first, SpinStep::Yield(_)) {
            return (first, None);
        }
        self.waits = self.waits.wrapping_add(1);
        if !(self.waits.is_multiple_of(TIMED_ONE_IN) || self.backoff.was_long()) {
            return (first, None);
        }
        (first, Some(self.begin(has_bursts, first).begin_at(now())))
    }

    const fn spin_wait(&self, has_bursts: bool) -> SpinWait {
        SpinWait::with(self.plan, has_bursts, self.spins, self.yields)
    }

    /// The first step found the awaited event.
    #[inline]
    pub(crate) fn found_first(&mut self) {
        if !self.is_full {
            self.settle_found(Duration::ZERO);
        }
    }

    /// A later step found it.
    pub(crate) fn found(&mut self, spin_wait: &SpinWait) {
        self.learn_yields(spin_wait);
        self.settle_found(spin_wait.waited());
    }

    /// Learns how long the yielded core was away.
    fn learn_yields(&mut self, spin_wait: &SpinWait) {
        self.yields = spin_wait.yields();
        if let Some((away, now)) = spin_wait.away() {
            self.backoff.learn(away, self.plan.all, now);
        }
    }

    fn settle_found(&mut self, waited: Duration) {
        if self.plan.tries() {
            let spin_costs = self.plan.spin_costs();
            let _ = self
                .spin_balance
                .settle(amount(spin_costs.sleep.saturating_sub(waited)), &spin_costs);
            self.has_lost = false;
            self.is_full = self.spin_balance == SpinBalance::optimistic(&spin_costs);
        }
    }

    /// The wait sleeps now.
    pub(crate) fn gave_up(&mut self, spin_wait: &SpinWait) {
        self.learn_yields(spin_wait);
    }

    /// The sleep of a wait that `began` is over at `now`. Returns whether spinning before the next sleep is worth while; if so,
    /// [plan](Self::plan) it.
    ///
    /// It `tried` if it had a spin wait; if others were spinning at the same place it had none, whatever the plan
    /// says.
    pub(crate) fn slept(&mut self, (began, now): (Instant, Instant), tried: bool) -> bool {
        let spin_costs = SpinCosts { spin: self.plan.sleep, ..self.plan.spin_costs() };
        let is_far = now - began > self.plan.all * FAR_SLEEPS;
        let has_lost = tried && self.is_pair() && !is_far;
        let gain = match (is_far, self.plan.tries()) {
            (true, _) => -amount(spin_costs.spin),
            (false, true) if has_lost => -amount(self.plan.spin_costs().spin),
            (false, true) => 0,
            (false, false) if self.has_lost => amount(spin_costs.sleep / DOUBTS),
            (false, false) => amount(spin_costs.sleep),
        };
        if is_far || tried {
            self.has_lost = has_lost;
        }
        let _ = self.spin_balance.settle(gain, &spin_costs);
        self.is_full = false;
        self.spin_balance.is_positive()
    }

    /// Two waiters that wait for each other synchronize again as soon as one of them spins.
    const fn is_pair(&self) -> bool {
        self.peers.count <= 2
    }

    /// Plans the next wait from what is known at `now`.
    pub(crate) fn plan(&mut self, now: Instant, policy: &dyn Policy, situation: WaitSituation) {
        let spinning_pays = self.spin_balance.is_positive();
        let are_yields_expensive = self.backoff.is_paused(now);
        self.plan =
            policy.plan_wait(&WaitSituation { spinning_pays, are_yields_expensive, ..situation });
    }
}

#[cfg(test)]
mod traces;
