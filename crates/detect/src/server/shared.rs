//! The state that all clones of a server share: the table of handles, the notifications, the
//! deadlines.

use std::{
    io, mem,
    os::fd::{BorrowedFd, RawFd},
};

use super::{
    blocking_executor::BlockingExecutor,
    driver_state::DriverState,
    handle_table::{HandleRow, HandleTable},
    metrics::{HandleReport, Metrics},
    park_state::ParkState,
    poller::{Poller, PollerHandle},
    raised_signals::RaisedSignals,
    registered::Registered,
    sharing::Sharing,
    waits::WaitReport,
};
use crate::{
    clock::{ClockSource, Instant},
    detector::{Flavor, HANDLES_MAX, HandleAddress, Methods, Registry, WakeList, Watch},
    error::RegisterError,
    fork::ForkGeneration,
    policy::{Adaptive, CostMeter, History, IdlePeriod, LoadMeter, Situation},
    sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, lock, try_lock},
};

pub(crate) struct ServerShared {
    clock: ClockSource,
    flavor: Flavor,
    pub(crate) park_state: ParkState,
    poller_handle: PollerHandle,
    /// Handles whose notifier was called, each at most once.
    pub(crate) notified: Mutex<Vec<HandleAddress>>,
    pub(crate) table: Mutex<HandleTable>,
    /// Incremented with every change of `table`; the driver copies the table when its own copy is
    /// older.
    pub(crate) version: AtomicUsize,
    pub(crate) driver: Mutex<DriverState>,
    /// The latest time of the next poll pass required by deadlines, in nanoseconds; `u64::MAX` for none.
    /// Lowered by submitters, recomputed by the driver.
    pub(crate) next_deadline: AtomicU64,
    /// The time from which a poll pass finds an expired deadline, written in the same way. Not after
    /// `next_deadline`, except for a moment.
    pub(crate) next_due: AtomicU64,
    /// The time at which the poller's timer ends a sleep, in nanoseconds; `u64::MAX` if it does not. Written by the driver. `Relaxed`: a
    /// hint.
    pub(crate) armed: AtomicU64,
    /// A detector must be polled, or armed before a sleep. Written by the driver; also a hint.
    pub(crate) has_active: AtomicBool,
    pub(crate) sharing: Sharing,
    /// A policy wants the host to poll before it sleeps. Written by the driver; also a hint.
    pub(crate) polls_first: AtomicBool,
    /// The time at which the next poll pass is due while tasks run.
    pub(crate) next_pass: AtomicU64,
    /// The interval between poll passes as the driver last computed it, in nanoseconds; `u64::MAX` for
    /// none.
    pub(crate) pass_interval_ns: AtomicU64,
    /// The time at which a host last ran a poll pass between two tasks, or found that another one watches.
    pub(crate) last_pass: AtomicU64,
    /// The time at which a host was last late for a poll pass although tasks ran.
    pub(crate) last_gap: AtomicU64,
    /// The number of switches between poll passes; zero for none.
    pub(crate) pass_switches: AtomicUsize,
    pub(crate) frequencies_changed: AtomicBool,
    /// The next deadline may be that of something that has ended, or has slack: set without order, for hosts that move the clock.
    pub(crate) is_deadline_doubtful: AtomicBool,
    is_closed: AtomicBool,
    generation: ForkGeneration,
    pub(crate) idle: IdlePeriod,
    pub(crate) costs: CostMeter,
    pub(crate) load: LoadMeter,
    /// For handles registered without their own policy.
    pub(crate) default_policy: Adaptive,
    pub(crate) metrics: Metrics,
    pub(crate) raised: RaisedSignals,
    pub(crate) blocking: BlockingExecutor,
}

impl ServerShared {
    pub(crate) fn new(
        flavor: Flavor,
        clock: ClockSource,
        poller: Poller,
        poller_handle: PollerHandle,
        default_policy: Adaptive,
    ) -> Self {
        let is_virtual = matches!(poller_handle, PollerHandle::Virtual(_));
        Self {
            clock,
            flavor,
            park_state: ParkState::new(),
            poller_handle,
            notified: Mutex::new(Vec::new()),
            table: Mutex::new(HandleTable::default()),
            version: AtomicUsize::new(0),
            driver: Mutex::new(DriverState::new(poller)),
            next_deadline: AtomicU64::new(u64::MAX),
            next_due: AtomicU64::new(u64::MAX),
            armed: AtomicU64::new(u64::MAX),
            has_active: AtomicBool::new(false),
            sharing: Sharing::new(),
            polls_first: AtomicBool::new(false),
            next_pass: AtomicU64::new(0),
            pass_interval_ns: AtomicU64::new(u64::MAX),
            last_pass: AtomicU64::new(0),
            last_gap: AtomicU64::new(0),
            pass_switches: AtomicUsize::new(0),
            frequencies_changed: AtomicBool::new(true),
            is_deadline_doubtful: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            generation: ForkGeneration::current(),
            idle: IdlePeriod::none(),
            costs: CostMeter::new(),
            load: LoadMeter::new(is_virtual),
            default_policy,
            metrics: Metrics::default(),
            raised: RaisedSignals::default(),
            blocking: BlockingExecutor::default(),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) const fn clock(&self) -> &ClockSource {
        &self.clock
    }

    pub(crate) const fn flavor(&self) -> Flavor {
        self.flavor
    }

    pub(crate) const fn poller_handle(&self) -> &PollerHandle {
        &self.poller_handle
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Returns whether this is a forked child's copy, which must not touch the locks or the parent's
    /// kernel objects.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation.is_inherited()
    }

    /// Takes a free row of the table.
    pub(crate) fn reserve(&self) -> Result<HandleAddress, RegisterError> {
        let mut table = lock(&self.table);
        if self.is_closed() {
            return Err(RegisterError::ServerClosed);
        }
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.rows.len() >= HANDLES_MAX => {
                return Err(RegisterError::TooManyHandles { limit: HANDLES_MAX });
            }
            None => {
                table.rows.push(HandleRow::default());
                u32::try_from(table.rows.len() - 1).expect("invariant: HANDLES_MAX fits in a u32")
            }
        };
        let row = &mut table.rows[index as usize];
        row.generation = row.generation.wrapping_add(1);
        Ok(HandleAddress { index, generation: row.generation })
    }

    /// Removes a handle from the table; the driver forgets it with its next poll.
    pub(crate) fn deregister(&self, address: HandleAddress) {
        if self.is_inherited() {
            return;
        }
        let removed = {
            let mut table = lock(&self.table);
            let Some(row) = table.rows.get_mut(address.index as usize) else { return };
            if row.generation != address.generation {
                return;
            }
            let removed = row.handle.take();
            if removed.is_some() {
                table.free.push(address.index);
            }
            removed
        };
        if let Some(handle) = removed {
            self.table_changed();
            let mut batch = WakeList::default();
            handle.close(&mut batch);
            batch.wake_all();
        }
    }

    /// The information from which a policy decides.
    pub(crate) fn situation<'a>(
        &self,
        now: Instant,
        methods: Methods,
        history: &'a History,
        pending_count: usize,
    ) -> Situation<'a> {
        Situation {
            pending_count,
            costs: self.costs.costs(),
            load: self.load.load(),
            ..Situation::new(now, self.flavor, methods, history)
        }
    }

    pub(crate) fn reports(&self) -> Vec<HandleReport> {
        self.handles().iter().map(|handle| handle.report()).collect()
    }

    pub(crate) fn waits(&self) -> Vec<WaitReport> {
        let mut waits = Vec::new();
        self.handles().iter().for_each(|handle| handle.append_waits(&mut waits));
        waits
    }

    /// Returns the handles, to be asked outside the table's lock. Those that are removed meanwhile are closed: no foreign value is
    /// dropped.
    fn handles(&self) -> Vec<Arc<dyn Registered>> {
        lock(&self.table).rows.iter().filter_map(|row| row.handle.clone()).collect()
    }

    pub(crate) fn table_changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
        self.frequencies_changed();
    }

    /// Makes the host run a poll pass at its next switch, which takes over the changes.
    pub(crate) fn frequencies_changed(&self) {
        // SeqCst, and in this order: see `ServerShared::plan_pass`.
        self.frequencies_changed.store(true, Ordering::SeqCst);
        self.next_pass.store(0, Ordering::SeqCst);
    }

    /// Sets when the next poll pass is due while tasks run.
    pub(crate) fn plan_pass(&self, next: u64) {
        if next < u64::MAX {
            self.next_pass.store(next, Ordering::Relaxed);
            return;
        }
        // No pass is planned, so a request for one must be noticed: of its two stores and our two
        // operations, either its second comes after our first, or its first before our second.
        self.next_pass.swap(next, Ordering::SeqCst);
        if self.frequencies_changed.load(Ordering::SeqCst) {
            self.next_pass.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn unpark(&self) {
        if !self.is_inherited() && self.park_state.notify() {
            self.costs.notify(self.now());
            self.poller_handle.wake();
        }
    }

    /// Returns whether it is in virtual time.
    pub(crate) const fn is_virtual(&self) -> bool {
        matches!(self.poller_handle, PollerHandle::Virtual(_))
    }

    pub(crate) fn notify(&self, address: HandleAddress) {
        if self.is_inherited() {
            return;
        }
        {
            let table = lock(&self.table);
            let Some(row) = table.rows.get(address.index as usize) else { return };
            let Some(handle) = &row.handle else { return };
            if row.generation != address.generation
                || handle.watch_state().is_notified.swap(true, Ordering::AcqRel)
            {
                // Gone, or notified already: the host has not polled it yet.
                return;
            }
        }
        lock(&self.notified).push(address);
        self.unpark();
    }

    pub(crate) fn has_events(&self, now: Instant) -> bool {
        self.park_state.is_notified()
            || now.as_nanos() >= self.next_deadline.load(Ordering::Relaxed)
            || self.poller_handle.has_events()
    }

    /// Sets when the next poll pass is due.
    pub(crate) fn schedule_pass(&self, now: Instant) {
        let every = self.pass_interval_ns.load(Ordering::Relaxed);
        self.plan_pass(now.as_nanos().saturating_add(every));
    }

    /// Records a poll pass at `now` between two tasks, or an attempt at one. `Relaxed` throughout: these
    /// are hints about how regularly the hosts poll.
    pub(crate) fn note_pass(&self, now: Instant) {
        let (nanos, every) = (now.as_nanos(), self.pass_interval_ns.load(Ordering::Relaxed));
        let last = self.last_pass.swap(nanos, Ordering::Relaxed);
        if nanos.saturating_sub(last) > every.saturating_add(every / 2) {
            self.last_gap.store(nanos, Ordering::Relaxed);
        }
    }

    /// A detector watches a descriptor: from now on, poll passes serve it too.
    pub(crate) fn watches(&self, address: HandleAddress) {
        let has_changed = {
            let table = lock(&self.table);
            let row = table.rows.get(address.index as usize);
            row.filter(|row| row.generation == address.generation)
                .and_then(|row| row.handle.as_ref())
                .is_some_and(|handle| !handle.watch_state().watches.swap(true, Ordering::Relaxed))
        };
        if has_changed {
            self.frequencies_changed();
        }
    }

    pub(crate) fn close(&self) {
        if self.is_inherited() {
            return;
        }
        let rows = {
            let mut table = lock(&self.table);
            self.is_closed.store(true, Ordering::Release);
            mem::take(&mut table.rows)
        };
        self.table_changed();
        // A host inside the poller leaves it and sees the closed server.
        self.unpark();
        let mut batch = WakeList::default();
        for handle in rows.iter().filter_map(|row| row.handle.as_ref()) {
            handle.close(&mut batch);
        }
        drop(rows);
        if let Some(mut driver) = try_lock(&self.driver) {
            let rows = driver.take_rows();
            drop(driver);
            drop(rows);
        }
        batch.wake_all();
    }
}

impl Registry for ServerShared {
    fn is_inherited(&self) -> bool {
        self.is_inherited()
    }

    fn name_of(&self, descriptor: BorrowedFd<'_>) -> RawFd {
        self.poller_handle.name_of(descriptor)
    }

    fn watch(&self, watch: Watch) -> io::Result<()> {
        self.poller_handle.watch(watch)?;
        self.watches(watch.address);
        Ok(())
    }

    fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.poller_handle.unwatch(descriptor)
    }

    fn describe(&self, descriptor: RawFd) -> Option<String> {
        self.poller_handle.describe(descriptor)
    }

    fn notify(&self, address: HandleAddress) {
        self.notify(address);
    }
}
