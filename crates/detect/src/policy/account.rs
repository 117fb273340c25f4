//! The account of a bet: what trying before a sleep has saved or would have saved, minus what it has cost or would
//! have cost.

use super::history::Stakes;
use crate::clock::nanos;

/// The balance lies within so many costs of a sleep: what was long ago does not count.
const SLEEPS_MAX: i64 = 4;

/// The balance of one who may try before it sleeps: [`History::spin_balance`](crate::History::spin_balance) says what
/// that guarantees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account(i64);

impl Account {
    /// Returns the account of one who begins by trying.
    pub(crate) const fn hopeful(stakes: &Stakes) -> Self {
        Self(Self::limit(stakes))
    }

    /// Returns the account with a balance that was asked for before.
    pub(crate) const fn of(balance: i64) -> Self {
        Self(balance)
    }

    /// Returns the balance in nanoseconds of the stakes.
    pub(crate) const fn balance(self) -> i64 {
        self.0
    }

    /// Returns whether trying pays.
    #[inline]
    pub(crate) const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Enters what a wait has saved, or has lost if it is negative. Returns whether the balance has changed its sign.
    #[inline]
    pub(crate) fn settle(&mut self, amount: i64, stakes: &Stakes) -> bool {
        let (before, limit) = (self.0, Self::limit(stakes));
        self.0 = before.saturating_add(amount).clamp(-limit, limit);
        (before > 0) != (self.0 > 0)
    }

    const fn limit(stakes: &Stakes) -> i64 {
        #[expect(clippy::cast_possible_truncation, reason = "longer than all sleeps of a year")]
        let sleep = stakes.sleep.as_nanos() as i64;
        sleep.saturating_mul(SLEEPS_MAX).saturating_abs()
    }
}

/// Returns a duration as an amount.
#[inline]
pub(crate) fn amount(time: std::time::Duration) -> i64 {
    i64::try_from(nanos(time)).unwrap_or(i64::MAX)
}
