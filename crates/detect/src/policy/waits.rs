//! What came of the waits of one waiter: by that it tries before the next sleep, or does not.

use std::time::Duration;

use super::{
    account::{Account, amount},
    adaptive::Policy,
    cost::YieldMeter,
    history::Stakes,
    stage::{Peers, Stage, Step, WaitPlan, WaitSituation},
};
use crate::clock::Instant;

/// A wait that lasted longer than so many costs of a sleep was not to be shortened by looking.
const FAR_SLEEPS: u32 = 4;

/// After the core was away twice in a row for longer than the sleeps of all take, it is not given away for so many times as long, and twice as long
/// as the time before: at most a fiftieth of the time is lost.
const PAUSES: u32 = 50;

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// One wait of so many looks at the clock before and after it gives the core away first.
const TIMED_ONE_IN: u32 = 32;

/// What came of the waits of one waiter, and what it does at the next one.
///
/// The [account](crate::History::spin_balance) is that of a host that polls first, with the price of all peers' sleeps. What
/// differs: how long a sleep lasted is the peers' doing too. Where all sleep because one was late, the next wait takes
/// as long as all of them need to wake up. So a wait that slept, and was no longer than a few times that, says that trying pays.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    peers: Peers,
    looks: u32,
    plan: WaitPlan,
    account: Account,
    /// More than this the account cannot hold.
    is_full: bool,
    yields: YieldMeter,
    /// Until when the core is not given away, and how long that was decided for.
    pause: Option<(Instant, Duration)>,
    /// The core was away for long when it was given away last.
    was_away: bool,
    waits: u32,
    /// Whether the last wait tried before it slept.
    tried: bool,
}

impl Waits {
    /// For a waiter that looks at the clock after so many looks.
    pub(crate) fn new(policy: &dyn Policy, situation: &WaitSituation, looks: u32) -> Self {
        let plan = policy.plan_wait(situation);
        let account = Account::hopeful(&plan.stakes());
        let (yields, peers) = (YieldMeter::default(), situation.peers);
        let (is_full, pause, was_away, waits, tried) = (true, None, false, 0, false);
        Self { peers, looks, plan, account, is_full, yields, pause, was_away, waits, tried }
    }

    /// Returns whether who else wants the core makes no difference.
    pub(crate) const fn are_crowded(&self) -> bool {
        self.peers.are_crowded()
    }

    #[cfg(test)]
    pub(crate) const fn planned(&self) -> &WaitPlan {
        &self.plan
    }

    /// Begins a wait, inside of polls if it `has_turns`: returns the first step.
    #[inline]
    pub(crate) fn first(&mut self, has_turns: bool) -> Step {
        self.tried = self.plan.tries();
        if !self.plan.look.is_zero() {
            return Step::Look(self.looks);
        }
        self.stage(has_turns).first()
    }

    /// The first step has found nothing.
    pub(crate) const fn begin(&self, has_turns: bool, first: Step) -> Stage {
        self.stage(has_turns).after(first)
    }

    /// As [`begin`](Self::begin), at a time before the first step, if this wait is one of those that are timed.
    #[inline]
    pub(crate) fn begin_timed(
        &mut self,
        has_turns: bool,
        first: Step,
        now: impl FnOnce() -> Instant,
    ) -> Option<Stage> {
        if !matches!(first, Step::GiveAway(_)) {
            return None;
        }
        self.waits = self.waits.wrapping_add(1);
        let is_timed = self.waits.is_multiple_of(TIMED_ONE_IN) || self.was_away;
        is_timed.then(|| self.begin(has_turns, first).begin_at(now()))
    }

    const fn stage(&self, has_turns: bool) -> Stage {
        Stage::with(self.plan, has_turns, self.looks, self.yields)
    }

    /// The first step has found what was waited for.
    #[inline]
    pub(crate) fn found_first(&mut self) {
        if !self.is_full {
            self.settle_found(Duration::ZERO);
        }
    }

    /// A later one has.
    pub(crate) fn found(&mut self, stage: &Stage) {
        self.learn_yields(stage);
        self.settle_found(stage.waited());
    }

    /// Learns what became of the core that was given away.
    fn learn_yields(&mut self, stage: &Stage) {
        self.yields = stage.yields();
        let Some((away, now)) = stage.away() else { return };
        let is_long = away > self.plan.sleep;
        // Once may be chance.
        if is_long && std::mem::replace(&mut self.was_away, is_long) {
            let last = self.pause.map_or(Duration::ZERO, |(_, pause)| pause);
            let pause = (away * PAUSES).max(last * 2).min(PAUSE_MAX);
            self.pause = Some((now + pause, pause));
        } else if !is_long {
            (self.was_away, self.pause) = (false, None);
        }
    }

    fn settle_found(&mut self, waited: Duration) {
        if self.tried {
            let stakes = self.plan.stakes();
            let _ = self.account.settle(amount(stakes.sleep.saturating_sub(waited)), &stakes);
            self.is_full = self.account == Account::hopeful(&stakes);
        }
    }

    /// The wait sleeps now.
    pub(crate) fn gave_up(&mut self, stage: &Stage) {
        self.learn_yields(stage);
    }

    /// The sleep of a wait that `began` is over `now`. Plans the next one.
    pub(crate) fn slept(
        &mut self,
        (began, now): (Instant, Instant),
        policy: &dyn Policy,
        situation: impl FnOnce(Peers) -> WaitSituation,
    ) {
        let stakes = Stakes { spin: self.plan.sleep, ..self.plan.stakes() };
        let is_far = now - began > stakes.sleep * FAR_SLEEPS;
        let gain = match (is_far, self.tried) {
            (true, _) => -amount(stakes.spin),
            (false, true) => 0,
            (false, false) => amount(stakes.sleep),
        };
        let _ = self.account.settle(gain, &stakes);
        self.is_full = false;
        self.plan(now, policy, situation);
    }

    /// Plans the next wait, by what is known `now`.
    pub(crate) fn plan(
        &mut self,
        now: Instant,
        policy: &dyn Policy,
        situation: impl FnOnce(Peers) -> WaitSituation,
    ) {
        let is_hopeful = self.account.is_positive();
        let are_yields_dear = self.pause.is_some_and(|(until, _)| now < until);
        let situation = situation(self.peers);
        self.plan = policy.plan_wait(&WaitSituation { is_hopeful, are_yields_dear, ..situation });
    }
}

#[cfg(test)]
mod traces;
