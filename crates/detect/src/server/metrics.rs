//! A server's counters.

use crate::{
    policy::Strategy,
    sync::{AtomicU64, Ordering},
};

/// Counters of one server. `Relaxed` throughout: the values order nothing.
#[derive(Debug)]
pub(crate) struct Metrics {
    polls: AtomicU64,
    hits: AtomicU64,
    events: AtomicU64,
    sleeps: AtomicU64,
}

/// The counts of a server since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Polls, at switches and after sleeps.
    pub polls: u64,
    /// Polls that found an event.
    pub hits: u64,
    /// Events delivered.
    pub events: u64,
    /// Sleeps at the poller.
    pub sleeps: u64,
}

/// The counts of one handle, and its present strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandleReport {
    /// The name under which it was registered.
    pub name: &'static str,
    /// Requests that are pending or being cancelled.
    pub pending: usize,
    /// The rest. `None` if a callback of the detector was running the whole time: it is slow or
    /// hangs.
    pub detection: Option<Detection>,
}

/// Detection counts of one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detection {
    /// The present strategy for this handle.
    pub strategy: Strategy,
    /// Polls of this handle.
    pub polls: u64,
    /// Polls that found an event.
    pub hits: u64,
    /// Events found.
    pub events: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            polls: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            events: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Only the thread that holds the driver's lock counts, so a load and a store suffice.
    pub(crate) fn count_poll(&self, event_count: usize) {
        add(&self.polls, 1);
        if event_count > 0 {
            add(&self.hits, 1);
            add(&self.events, event_count as u64);
        }
    }

    pub(crate) fn count_sleep(&self) {
        add(&self.sleeps, 1);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            polls: self.polls.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            events: self.events.load(Ordering::Relaxed),
            sleeps: self.sleeps.load(Ordering::Relaxed),
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}
