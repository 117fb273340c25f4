//! The account of a bet: what spinning before a sleep has saved or would have saved, minus what it has cost or
//! would have cost.

use super::history::SpinCosts;
use crate::clock::nanos;

/// The balance stays within this many costs of a sleep: the distant past does not count.
const SLEEPS_MAX: i64 = 4;

/// The balance of a waiter that may spin before it sleeps: [`History::spin_balance`](crate::History::spin_balance)
/// explains what it guarantees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpinBalance(i64);

impl SpinBalance {
    /// Returns the account of a waiter that begins by spinning.
    pub(crate) const fn optimistic(spin_costs: &SpinCosts) -> Self {
        Self(Self::limit(spin_costs))
    }

    /// Returns the account with a balance obtained earlier.
    pub(crate) const fn of(balance: i64) -> Self {
        Self(balance)
    }

    /// Returns the balance in nanoseconds of the costs of spinning.
    pub(crate) const fn balance(self) -> i64 {
        self.0
    }

    /// Returns whether spinning pays.
    #[inline]
    pub(crate) const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Records what a wait has saved, or lost if negative. Returns whether the balance has changed its sign.
    #[inline]
    pub(crate) fn settle(&mut self, amount: i64, spin_costs: &SpinCosts) -> bool {
        let (before, limit) = (self.0, Self::limit(spin_costs));
        self.0 = before.saturating_add(amount).clamp(-limit, limit);
        (before > 0) != (self.0 > 0)
    }

    const fn limit(spin_costs: &SpinCosts) -> i64 {
        #[expect(clippy::cast_possible_truncation, reason = "longer than all sleeps of a year")]
        let sleep = spin_costs.sleep.as_nanos() as i64;
        sleep.saturating_mul(SLEEPS_MAX).saturating_abs()
    }
}

/// Returns a duration as an amount.
#[inline]
pub(crate) fn amount(time: std::time::Duration) -> i64 {
    i64::try_from(nanos(time)).unwrap_or(i64::MAX)
}
