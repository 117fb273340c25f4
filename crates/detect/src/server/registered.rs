//! The server's view of a registered detector of any type.

use super::{metrics::HandleReport, waits::WaitReport, watch_state::WatchState};
use crate::{
    clock::Instant,
    detector::{PollerEvent, WakeList},
};

/// The reason for a poll.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PollCause<'a> {
    /// The strategy, a notifier or a deadline asks for a poll.
    Poll,
    /// The poller announced these events.
    Ready(&'a [PollerEvent]),
}

/// A handle's answer before a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeforeSleep {
    /// Events arrived: do not sleep.
    Events(usize),
    /// Sleep at most until then.
    Until(Option<Instant>),
}

/// The time from which a poll finds an expired deadline, and the latest time of that poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) soft: Instant,
    pub(crate) hard: Instant,
}

/// The server's view of a registered detector: dynamic dispatch once per poll.
pub(crate) trait Registered: Send + Sync {
    fn poll(&self, cause: PollCause<'_>, now: Instant, batch: &mut WakeList) -> usize;
    fn before_sleep(&self, now: Instant, batch: &mut WakeList) -> BeforeSleep;
    /// Called while another host sleeps: polls if a poll is due, and makes sure that the sleeper learns of the next event. Returns how
    /// many events were reported, and the time of the next poll.
    fn watch_for_others(&self, now: Instant, batch: &mut WakeList) -> (usize, Option<Instant>);
    /// Polls if a deadline has come. Returns how many events were reported, and the next deadline.
    fn poll_deadline(&self, now: Instant, batch: &mut WakeList) -> (usize, Option<Due>);
    /// Returns when the host should wake up for the next deadline.
    fn wake_at(&self) -> Option<Instant>;
    /// Asks the policy, if it is due at `now`.
    fn reconsider(&self, now: Instant);
    /// The host has polled for this handle, found nothing and goes to sleep.
    fn spin_missed(&self, now: Instant);
    fn close(&self, batch: &mut WakeList);
    fn watch_state(&self) -> &WatchState;
    fn report(&self) -> HandleReport;
    fn append_waits(&self, waits: &mut Vec<WaitReport>);
}
