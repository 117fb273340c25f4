//! The time for which the host has had nothing to run: the subject of the bet on polling first.
//!
//! Written and read under the driver's lock, by the polls of one pass; atomic because handles see it
//! through the shared part of the server. `Relaxed` throughout.

use std::time::Duration;

use super::history::IdleEvent;
use crate::{
    clock::Instant,
    sync::{AtomicBool, AtomicU64, Ordering},
};

/// The present idle period of the host.
#[derive(Debug)]
pub(crate) struct IdlePeriod {
    /// The beginning of the period, in nanoseconds; zero while tasks run.
    since_ns: AtomicU64,
    is_asleep: AtomicBool,
}

impl IdlePeriod {
    pub(crate) fn none() -> Self {
        Self { since_ns: AtomicU64::new(0), is_asleep: AtomicBool::new(false) }
    }

    /// The host has had nothing to run since `since`, and what was there at once has been found:
    /// later events would have ended a sleep.
    pub(crate) fn begin(&self, since: Instant) {
        self.is_asleep.store(false, Ordering::Relaxed);
        self.since_ns.store(since.as_nanos().max(1), Ordering::Relaxed);
    }

    /// The host falls asleep now, at the beginning of the period or after polling without success.
    pub(crate) fn fall_asleep(&self, now: Instant) {
        if self.since().is_none() {
            self.begin(now);
        }
        self.is_asleep.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.since_ns.store(0, Ordering::Relaxed);
    }

    /// Returns when the period began, which also identifies it.
    pub(crate) fn since(&self) -> Option<Instant> {
        match self.since_ns.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }

    /// Returns how an event seen now was found.
    pub(crate) fn found(&self, wake_delay: Duration) -> IdleEvent {
        if self.is_asleep.load(Ordering::Relaxed) {
            IdleEvent::Asleep { wake_delay }
        } else {
            IdleEvent::Awake
        }
    }
}
