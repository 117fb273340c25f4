//! The state of the thread that drives a server.

use std::{mem, time::Duration};

use super::{
    handle_table::HandleRow,
    poller::{Poller, RoutedEvent},
    registered::Registered,
};
use crate::{
    clock::Instant,
    detector::{HandleAddress, PollerEvent},
    sync::{Arc, Ordering},
};

/// The state of the thread that drives the server.
pub(crate) struct DriverState {
    pub(super) poller: Poller,
    pub(super) version: usize,
    pub(super) rows: Vec<HandleRow>,
    /// Handles that left the table, dropped after the lock is released.
    pub(super) retired: Vec<HandleRow>,
    pub(super) routed: Vec<RoutedEvent>,
    pub(super) ready_events: Vec<PollerEvent>,
    pub(super) notified: Vec<HandleAddress>,
    /// The rows that the server must poll itself, and those that have had a deadline.
    pub(super) active: Vec<u32>,
    pub(super) with_deadlines: Vec<u32>,
    /// The time at which a host last prepared for a sleep.
    pub(super) prepared_at: Instant,
    /// Another host may join the one that sleeps.
    pub(super) is_shared: bool,
    /// The time until which the sleepers want to sleep, in nanoseconds.
    pub(super) sleepers_until: u64,
    /// The last poll pass took a notification.
    pub(super) was_notified: bool,
    /// Handles whose policy must be asked before the next poll pass or sleep, and the time of the pass that
    /// found them.
    pub(super) stale: Vec<HandleAddress>,
    pub(super) stale_at: Instant,
    /// The time to poll before a sleep.
    pub(super) spin: Duration,
}

impl DriverState {
    pub(crate) const fn new(poller: Poller) -> Self {
        Self {
            poller,
            version: 0,
            rows: Vec::new(),
            retired: Vec::new(),
            routed: Vec::new(),
            ready_events: Vec::new(),
            notified: Vec::new(),
            active: Vec::new(),
            with_deadlines: Vec::new(),
            prepared_at: Instant::from_nanos(0),
            is_shared: false,
            sleepers_until: u64::MAX,
            was_notified: false,
            stale: Vec::new(),
            stale_at: Instant::from_nanos(0),
            spin: Duration::ZERO,
        }
    }

    /// Removes all handles, to be dropped by the caller outside the lock.
    pub(crate) fn take_rows(&mut self) -> impl Sized + use<> {
        (mem::take(&mut self.rows), mem::take(&mut self.retired))
    }

    pub(super) fn find(&self, address: HandleAddress) -> Option<&Arc<dyn Registered>> {
        let row = self.rows.get(address.index as usize)?;
        if row.generation == address.generation { row.handle.as_ref() } else { None }
    }

    /// The handles that the server must poll itself and that have requests.
    pub(super) fn active(&self) -> impl Iterator<Item = &Arc<dyn Registered>> {
        let rows = self.active.iter().filter_map(|&index| self.rows.get(index as usize));
        rows.filter_map(|row| row.handle.as_ref())
            // SeqCst: see `ParkState::begin_park`.
            .filter(|handle| handle.watch_state().known_count.load(Ordering::SeqCst) > 0)
    }
}
