//! What the server sees of a registered detector, whatever that is.

use super::{metrics::HandleReport, watch_state::WatchState};
use crate::{
    clock::Instant,
    detector::{Batch, Notice},
};

/// Why a round runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause<'a> {
    /// The strategy, a bell or a deadline wants a poll.
    Poll,
    /// The wait point announced these.
    Notices(&'a [Notice]),
}

/// What one handle says before a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeforeSleep {
    /// Events came in: do not sleep.
    Events(usize),
    /// Sleep until then at most.
    Until(Option<Instant>),
}

/// From when on a poll finds a deadline that has come, and the latest time of that poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) soft: Instant,
    pub(crate) hard: Instant,
}

/// What the server sees of a registered detector: dynamic dispatch once per round.
pub(crate) trait Registered: Send + Sync {
    fn round(&self, cause: Cause<'_>, now: Instant, batch: &mut Batch) -> usize;
    fn before_sleep(&self, now: Instant, batch: &mut Batch) -> BeforeSleep;
    /// Another host sleeps: polls if a poll is due, and sees to it that the one that sleeps is told of the next event. Returns how many
    /// events were reported, and the time of the next poll.
    fn watch_for_others(&self, now: Instant, batch: &mut Batch) -> (usize, Option<Instant>);
    /// Polls if a deadline has come. Returns how many events were reported, and the next deadline.
    fn poll_deadline(&self, now: Instant, batch: &mut Batch) -> (usize, Option<Due>);
    /// Returns when the host should wake up for the next deadline.
    fn wakeup(&self) -> Option<Instant>;
    /// Asks the policy, if that is due at `now`.
    fn reconsider(&self, now: Instant);
    /// The host has polled for this handle in vain and goes to sleep.
    fn spin_missed(&self, now: Instant);
    fn close(&self, batch: &mut Batch);
    fn watch_state(&self) -> &WatchState;
    fn report(&self) -> HandleReport;
}
