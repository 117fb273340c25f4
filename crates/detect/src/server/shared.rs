//! What all clones of a server share: the table of handles, the rings, the deadlines.

use std::{
    io, mem,
    os::fd::{BorrowedFd, RawFd},
};

use super::{
    driver::Driver,
    metrics::{HandleReport, Metrics},
    park::ParkWord,
    raised::Raised,
    sharing::Sharing,
    table::{Row, Table},
    wait_point::{Gate, WaitPoint},
};
use crate::{
    clock::{ClockSource, Instant},
    detector::{Address, Batch, Flavor, HANDLES_MAX, Home, Interest, Methods},
    error::RegisterError,
    fork::ForkGeneration,
    policy::{Adaptive, CostMeter, History, IdlePeriod, LoadMeter, Situation},
    sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, lock, try_lock},
};

pub(crate) struct Shared {
    clock: ClockSource,
    flavor: Flavor,
    pub(crate) word: ParkWord,
    gate: Gate,
    /// Handles whose bell was rung, each at most once.
    pub(crate) rung: Mutex<Vec<Address>>,
    pub(crate) table: Mutex<Table>,
    /// Raised with every change of `table`; the driver copies the table when its own copy is older.
    pub(crate) version: AtomicUsize,
    pub(crate) driver: Mutex<Driver>,
    /// The latest time of the next look that deadlines need, in nanoseconds; `u64::MAX` for none. Lowered
    /// by submitters, recomputed by the driver.
    pub(crate) next_deadline: AtomicU64,
    /// The time from which on a look finds a deadline that has come, written likewise. Not after
    /// `next_deadline`, but for a moment.
    pub(crate) next_due: AtomicU64,
    /// When the wait point's timer ends a sleep, in nanoseconds; `u64::MAX` if it does not. Written by the driver. `Relaxed`: a
    /// hint.
    pub(crate) armed: AtomicU64,
    /// Some detector must be polled, or armed before a sleep. Written by the driver; a hint likewise.
    pub(crate) has_active: AtomicBool,
    pub(crate) sharing: Sharing,
    /// Some policy wants the host to poll before it sleeps. Written by the driver; a hint likewise.
    pub(crate) polls_first: AtomicBool,
    /// When the next look is due while tasks run.
    pub(crate) next_look: AtomicU64,
    /// The looking interval as the driver last computed it, in nanoseconds; `u64::MAX` for none.
    pub(crate) look_every_ns: AtomicU64,
    /// When a host last looked between two polls, or found that another one watches.
    pub(crate) last_look: AtomicU64,
    /// When a host was last late for a look although tasks ran.
    pub(crate) last_gap: AtomicU64,
    /// Looks by switches: how many; zero for none.
    pub(crate) look_switches: AtomicUsize,
    pub(crate) frequencies_changed: AtomicBool,
    is_closed: AtomicBool,
    generation: ForkGeneration,
    pub(crate) idle: IdlePeriod,
    pub(crate) costs: CostMeter,
    pub(crate) load: LoadMeter,
    /// For handles that are registered without a policy of their own.
    pub(crate) default_policy: Adaptive,
    pub(crate) metrics: Metrics,
    pub(crate) raised: Raised,
}

impl Shared {
    pub(crate) fn new(
        flavor: Flavor,
        clock: ClockSource,
        wait_point: WaitPoint,
        gate: Gate,
        default_policy: Adaptive,
    ) -> Self {
        let is_virtual = matches!(gate, Gate::Virtual);
        Self {
            clock,
            flavor,
            word: ParkWord::new(),
            gate,
            rung: Mutex::new(Vec::new()),
            table: Mutex::new(Table::default()),
            version: AtomicUsize::new(0),
            driver: Mutex::new(Driver::new(wait_point)),
            next_deadline: AtomicU64::new(u64::MAX),
            next_due: AtomicU64::new(u64::MAX),
            armed: AtomicU64::new(u64::MAX),
            has_active: AtomicBool::new(false),
            sharing: Sharing::new(),
            polls_first: AtomicBool::new(false),
            next_look: AtomicU64::new(0),
            look_every_ns: AtomicU64::new(u64::MAX),
            last_look: AtomicU64::new(0),
            last_gap: AtomicU64::new(0),
            look_switches: AtomicUsize::new(0),
            frequencies_changed: AtomicBool::new(true),
            is_closed: AtomicBool::new(false),
            generation: ForkGeneration::current(),
            idle: IdlePeriod::none(),
            costs: CostMeter::new(),
            load: LoadMeter::new(is_virtual),
            default_policy,
            metrics: Metrics::default(),
            raised: Raised::default(),
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

    pub(crate) const fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Returns whether this is the copy of a forked child, which must touch neither the locks nor what the
    /// kernel keeps for the parent.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation.is_inherited()
    }

    /// Takes a free row of the table.
    pub(crate) fn reserve(&self) -> Result<Address, RegisterError> {
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
                table.rows.push(Row::default());
                u32::try_from(table.rows.len() - 1).expect("invariant: HANDLES_MAX fits in a u32")
            }
        };
        let row = &mut table.rows[index as usize];
        row.generation = row.generation.wrapping_add(1);
        Ok(Address { index, generation: row.generation })
    }

    /// Removes a handle from the table; the driver forgets it with its next round.
    pub(crate) fn deregister(&self, address: Address) {
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
            let mut batch = Batch::default();
            handle.close(&mut batch);
            batch.wake_all();
        }
    }

    /// What a policy decides from.
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
        let handles: Vec<_> =
            lock(&self.table).rows.iter().filter_map(|row| row.handle.clone()).collect();
        // Outside the table's lock. Those that went meanwhile are closed: nothing foreign is dropped.
        handles.iter().map(|handle| handle.report()).collect()
    }

    pub(crate) fn table_changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
        self.frequencies_changed();
    }

    /// Makes the next switch look, which takes over what has changed.
    pub(crate) fn frequencies_changed(&self) {
        // SeqCst, and in this order: see `Shared::plan_look`.
        self.frequencies_changed.store(true, Ordering::SeqCst);
        self.next_look.store(0, Ordering::SeqCst);
    }

    /// Says when the next look is due while tasks run.
    pub(crate) fn plan_look(&self, next: u64) {
        if next < u64::MAX {
            self.next_look.store(next, Ordering::Relaxed);
            return;
        }
        // Nothing asks for looks, so whoever comes to do so must be heard: of its two stores and our
        // two operations, either its second comes after our first, or its first before our second.
        self.next_look.swap(next, Ordering::SeqCst);
        if self.frequencies_changed.load(Ordering::SeqCst) {
            self.next_look.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn unpark(&self) {
        if !self.is_inherited() && self.word.ring() {
            self.costs.ring(self.now());
            self.gate.wake();
        }
    }

    pub(crate) fn ring(&self, address: Address) {
        if self.is_inherited() {
            return;
        }
        {
            let table = lock(&self.table);
            let Some(row) = table.rows.get(address.index as usize) else { return };
            let Some(handle) = &row.handle else { return };
            if row.generation != address.generation
                || handle.watch_state().is_rung.swap(true, Ordering::AcqRel)
            {
                // Gone, or rung already: the host has not looked yet.
                return;
            }
        }
        lock(&self.rung).push(address);
        self.unpark();
    }

    pub(crate) fn has_events(&self, now: Instant) -> bool {
        self.word.is_rung()
            || now.as_nanos() >= self.next_deadline.load(Ordering::Relaxed)
            || self.gate.has_events()
    }

    /// Says when the next look is due.
    pub(crate) fn schedule_look(&self, now: Instant) {
        let every = self.look_every_ns.load(Ordering::Relaxed);
        self.plan_look(now.as_nanos().saturating_add(every));
    }

    /// Takes note of a look at `now` between two polls, or of an attempt at one. `Relaxed` throughout:
    /// these are hints about how regularly the hosts look.
    pub(crate) fn note_look(&self, now: Instant) {
        let (nanos, every) = (now.as_nanos(), self.look_every_ns.load(Ordering::Relaxed));
        let last = self.last_look.swap(nanos, Ordering::Relaxed);
        if nanos.saturating_sub(last) > every.saturating_add(every / 2) {
            self.last_gap.store(nanos, Ordering::Relaxed);
        }
    }

    /// A detector watches a descriptor: from now on, looks are for it too.
    pub(crate) fn watches(&self, address: Address) {
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
        // A host inside the wait point leaves it and sees the closed server.
        self.unpark();
        let mut batch = Batch::default();
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

impl Home for Shared {
    fn is_inherited(&self) -> bool {
        self.is_inherited()
    }

    fn watch(
        &self,
        descriptor: RawFd,
        address: Address,
        key: u32,
        interest: Interest,
    ) -> io::Result<()> {
        self.gate.watch(descriptor, address, key, interest)?;
        self.watches(address);
        Ok(())
    }

    fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.gate.unwatch(descriptor)
    }

    fn ring(&self, address: Address) {
        self.ring(address);
    }
}
