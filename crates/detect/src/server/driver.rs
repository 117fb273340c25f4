//! What the thread that turns a server works with.

use std::{mem, time::Duration};

use super::{
    registered::Registered,
    table::Row,
    wait_point::{Routed, WaitPoint},
};
use crate::{
    clock::Instant,
    detector::{Address, Notice},
    sync::{Arc, Ordering},
};

/// What the thread that turns the server works with.
pub(crate) struct Driver {
    pub(super) wait_point: WaitPoint,
    pub(super) version: usize,
    pub(super) rows: Vec<Row>,
    /// Handles that left the table, dropped after the lock is released.
    pub(super) retired: Vec<Row>,
    pub(super) routed: Vec<Routed>,
    pub(super) notices: Vec<Notice>,
    pub(super) rung: Vec<Address>,
    /// The rows that the server must poll by itself, and those that have had a deadline.
    pub(super) active: Vec<u32>,
    pub(super) with_deadlines: Vec<u32>,
    /// When a host last made ready for a sleep.
    pub(super) prepared_at: Instant,
    /// Another host may join the one that sleeps.
    pub(super) is_shared: bool,
    /// Until when those who sleep want to, in nanoseconds.
    pub(super) sleepers_until: u64,
    /// The last look has taken a ring.
    pub(super) was_rung: bool,
    /// Handles of which the policy must be asked before the next look or sleep, and the time of the look
    /// that found them.
    pub(super) stale: Vec<Address>,
    pub(super) stale_at: Instant,
    /// How long to poll before a sleep.
    pub(super) spin: Duration,
}

impl Driver {
    pub(crate) const fn new(wait_point: WaitPoint) -> Self {
        Self {
            wait_point,
            version: 0,
            rows: Vec::new(),
            retired: Vec::new(),
            routed: Vec::new(),
            notices: Vec::new(),
            rung: Vec::new(),
            active: Vec::new(),
            with_deadlines: Vec::new(),
            prepared_at: Instant::from_nanos(0),
            is_shared: false,
            sleepers_until: u64::MAX,
            was_rung: false,
            stale: Vec::new(),
            stale_at: Instant::from_nanos(0),
            spin: Duration::ZERO,
        }
    }

    /// Gives up all handles, to be dropped by the caller outside the lock.
    pub(crate) fn take_rows(&mut self) -> impl Sized + use<> {
        (mem::take(&mut self.rows), mem::take(&mut self.retired))
    }

    pub(super) fn find(&self, address: Address) -> Option<&Arc<dyn Registered>> {
        let row = self.rows.get(address.index as usize)?;
        if row.generation == address.generation { row.handle.as_ref() } else { None }
    }

    /// The handles that the server must poll by itself and that have requests.
    pub(super) fn active(&self) -> impl Iterator<Item = &Arc<dyn Registered>> {
        let rows = self.active.iter().filter_map(|&index| self.rows.get(index as usize));
        rows.filter_map(|row| row.handle.as_ref())
            // SeqCst: see `ParkWord::begin_park`.
            .filter(|handle| handle.watch_state().known_count.load(Ordering::SeqCst) > 0)
    }
}
