//! The state shared by hosts that go to sleep and threads that notify them.
//!
//! ```text
//!              begin_park (1)
//!      awake ─────────────────▶ parked
//!        │  ▲     end_park (2)    │
//! notify │  └─────────────────────┘ notify: the notifier wakes a host
//!        ▼
//!      notified: begin_park refuses, the host polls again
//! ```
//!
//! All transitions are read-modify-writes of one state, so they have one total order: either the host sees
//! the notification when it parks, or the notifier sees the parked host and wakes it. No wake-up can be lost
//! in between.
//!
//! The state counts the parked hosts. A notification wakes one of them, chosen by the kernel: a host that takes a
//! notification that may be for another [hands it on](crate::Driver::park_unless).

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, order_for_loom};

const NOTIFIED: u32 = 1;
/// One parked host: hosts are counted above `NOTIFIED`.
const PARKED: u32 = 2;

#[derive(Debug)]
pub(crate) struct ParkState {
    /// Written by hosts (`PARKED`, clear `NOTIFIED`) and by notifiers (`NOTIFIED`). The notifier's release
    /// pairs with the host's acquire in [`take_notification`](Self::take_notification) and
    /// [`begin_park`](Self::begin_park), so the host sees what the notifier did before it notified.
    /// `SeqCst` because deadlines and requests are published beside the state: see
    /// [`begin_park`](Self::begin_park).
    bits: AtomicU32,
}

/// The result of a host's attempt to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a host that sleeps although it was notified loses an event"]
pub(crate) enum Park {
    Sleep,
    Notified,
}

impl ParkState {
    pub(crate) fn new() -> Self {
        Self { bits: AtomicU32::new(0) }
    }

    /// Announces that the host will sleep, unless there is a notification.
    ///
    /// Other threads publish data beside the state with a `SeqCst` read-modify-write, then check
    /// whether the host [is parked](Self::is_parked). Either a `SeqCst` load after this call sees the
    /// data, or the publisher sees the parked host: all four operations are in the total order of
    /// `SeqCst` operations.
    pub(crate) fn begin_park(&self) -> Park {
        let before = self.bits.fetch_add(PARKED, Ordering::SeqCst);
        order_for_loom();
        if before & NOTIFIED == 0 { Park::Sleep } else { Park::Notified }
    }

    /// Announces that the host is awake: once for each [`begin_park`](Self::begin_park).
    pub(crate) fn end_park(&self) {
        self.bits.fetch_sub(PARKED, Ordering::SeqCst);
    }

    /// Returns whether a host sleeps or is about to.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked_count() > 0
    }

    /// Returns how many hosts sleep or are about to.
    pub(crate) fn parked_count(&self) -> u32 {
        order_for_loom();
        self.bits.load(Ordering::SeqCst) / PARKED
    }

    /// Returns whether there was a notification since the last [`take_notification`](Self::take_notification):
    /// one load.
    pub(crate) fn is_notified(&self) -> bool {
        self.bits.load(Ordering::Relaxed) & NOTIFIED != 0
    }

    /// Returns whether there was a notification and no host sleeps, so that none was woken for it: one load.
    pub(crate) fn is_for_awake_hosts(&self) -> bool {
        self.bits.load(Ordering::Relaxed) == NOTIFIED
    }

    /// Takes the notification: everything done before it is visible now.
    pub(crate) fn take_notification(&self) -> bool {
        self.is_notified() && self.bits.fetch_and(!NOTIFIED, Ordering::SeqCst) & NOTIFIED != 0
    }

    /// Lowers a deadline that the host reads after [`begin_park`](Self::begin_park). Returns whether
    /// the host may be sleeping past it: then it must be notified.
    #[must_use = "a parked host sleeps past the deadline if it is not notified"]
    pub(crate) fn lower(&self, deadline: &AtomicU64, nanos: u64) -> bool {
        deadline.fetch_min(nanos, Ordering::SeqCst) > nanos && self.is_parked()
    }

    /// Publishes a count of requests that the host reads after [`begin_park`](Self::begin_park).
    /// Returns whether the host may be sleeping without them: then it must be notified.
    #[must_use = "a parked host sleeps over the request if it is not notified"]
    pub(crate) fn raise(&self, known_count: &AtomicUsize, count: usize) -> bool {
        // A swap: a plain store may pass the load that follows it.
        known_count.swap(count, Ordering::SeqCst);
        self.is_parked()
    }

    /// Notifies. Returns whether the caller must wake a host: a host sleeps, and this notification was the
    /// first.
    #[must_use = "a parked host sleeps on if it is not woken"]
    pub(crate) fn notify(&self) -> bool {
        let before = self.bits.fetch_or(NOTIFIED, Ordering::SeqCst);
        before & NOTIFIED == 0 && before >= PARKED
    }
}

/// A host that [is parked](ParkState::begin_park) until this is dropped, even by a panic, since poll passes are left to parked hosts.
#[must_use = "the host is awake at once otherwise"]
pub(crate) struct Parked<'a>(pub(crate) &'a ParkState);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.end_park();
    }
}

// The models of `tests/loom.rs` compile this file too, without the tests below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Goal: a notification is kept until it is taken, asleep or awake, and only the first one of a sleep wakes.
    /// Method: the transitions of the diagram, one after another, checking all queries in between.
    #[test]
    fn notifications_are_kept_until_they_are_taken() {
        let state = ParkState::new();
        let is = || {
            let for_awake_hosts = state.is_notified() && !state.is_parked();
            assert_eq!(state.is_for_awake_hosts(), for_awake_hosts);
            (state.is_parked(), state.is_notified())
        };
        assert_eq!((is(), state.take_notification()), ((false, false), false));
        assert!(!state.notify(), "no host sleeps");
        assert_eq!(is(), (false, true));
        assert_eq!(state.begin_park(), Park::Notified);
        assert_eq!((is(), state.notify()), ((true, true), false));
        state.end_park();
        assert_eq!(is(), (false, true));
        assert!(state.take_notification() && !state.take_notification());
        assert_eq!(is(), (false, false));

        assert_eq!(state.begin_park(), Park::Sleep);
        assert_eq!((is(), state.take_notification()), ((true, false), false));
        assert!(state.notify() && !state.notify());
        assert!(state.take_notification(), "by another host that polls");
        assert_eq!(is(), (true, false));
        assert!(state.notify());
        state.end_park();
        assert_eq!(is(), (false, true));
    }

    /// Goal: a notification wakes one of several hosts, and each counts until it is awake. Method: two hosts, one after the other.
    #[test]
    fn several_hosts_are_counted() {
        let state = ParkState::new();
        assert_eq!(state.begin_park(), Park::Sleep);
        assert_eq!(state.begin_park(), Park::Sleep);
        assert_eq!(state.parked_count(), 2);
        assert!(state.notify() && !state.notify());
        state.end_park();
        assert!(state.take_notification());
        assert_eq!(
            (state.parked_count(), state.notify()),
            (1, true),
            "the other one is woken for the next notification"
        );
        state.end_park();
        assert_eq!((state.parked_count(), state.take_notification()), (0, true));
    }

    /// Goal: a host is notified if it may sleep past a deadline or a request. Method: deadlines around the
    /// present one, asleep and awake.
    #[test]
    fn sleepers_are_notified() {
        for sleeps in [false, true] {
            let (state, deadline, count) =
                (ParkState::new(), AtomicU64::new(100), AtomicUsize::new(3));
            if sleeps {
                assert_eq!(state.begin_park(), Park::Sleep);
            }
            for (nanos, is_sooner, left) in [(101, false, 100), (100, false, 100), (99, true, 99)] {
                assert_eq!(state.lower(&deadline, nanos), sleeps && is_sooner);
                assert_eq!(deadline.load(Ordering::SeqCst), left);
            }
            assert_eq!((state.raise(&count, 5), count.load(Ordering::SeqCst)), (sleeps, 5));
        }
    }
}
