//! The rounds of detection: what a host does at a look, and before and after a sleep.

use std::{mem, time::Duration};

use super::{
    awake_host,
    driver::Driver,
    park::{Park, Parked},
    registered::{BeforeSleep, Cause, Registered},
    shared::Shared,
    wait_point::Routed,
};
use crate::{
    clock::{Instant, Timeout},
    detector::{Address, Batch},
    sync::{Arc, AtomicU64, MutexGuard, Ordering, lock, try_lock},
};

pub(super) enum Spun {
    Events(usize),
    Rung,
    Nothing,
}

/// A host that polls and is stopped for longer has lost its core to somebody else.
const STOPPED: Duration = Duration::from_micros(100);

/// A sleep that is shorter was none: the event was there already.
const NO_SLEEP: Duration = Duration::from_micros(4);

/// A host that has looked within this is not inside a long poll, and will soon look again.
const SEEN_SOON: Duration = Duration::from_micros(100);

pub(super) enum Prepared {
    Events(usize),
    Sleep(Timeout),
}

/// How often a host that wants to sleep tries again while another one only looks.
pub(super) const TRIES_MAX: u32 = 1_000;

impl Shared {
    /// The driver's lock, for a host that wants to sleep where at most `sleepers_max` do. One that only looks holds it for a
    /// few microseconds, and is waited for: to sleep elsewhere because of it would leave the wait point empty.
    pub(super) fn driver_to_sleep(&self, sleepers_max: u32) -> Option<MutexGuard<'_, Driver>> {
        for _ in 0..TRIES_MAX {
            let driver = try_lock(&self.driver);
            // More come only under the lock.
            let parked_count = self.word.parked_count();
            if parked_count >= sleepers_max || parked_count > 0 && !self.may_share(self.now()) {
                return None;
            }
            if let Some(driver) = driver {
                // A watcher would lose its calls to another one, which does not run what it was called for.
                return (parked_count == 0 || driver.is_shared).then_some(driver);
            }
            std::hint::spin_loop();
        }
        None
    }
}

/// The rounds of detection. Every function here runs under the driver's lock.
impl Shared {
    /// One round over everything that is due, without waiting.
    pub(super) fn look(&self, driver: &mut Driver, batch: &mut Batch) -> usize {
        self.refresh(driver);
        driver.routed.clear();
        self.wait(false, &mut driver.routed);
        self.take_in(driver, batch, self.now())
    }

    pub(super) fn wait(&self, may_sleep: bool, routed: &mut Vec<Routed>) {
        if let Err(error) = self.gate().wait(may_sleep, routed) {
            tracing::error!(%error, "the wait point failed");
        }
    }

    /// Takes in what was announced until `now`, and what is due.
    pub(super) fn take_in(&self, driver: &mut Driver, batch: &mut Batch, now: Instant) -> usize {
        self.schedule_look(now);
        let mut events = self.answer_rings(driver, batch, now);
        events += self.deliver(driver, batch, now);
        events += self.poll_due(driver, batch, now);
        events += self.poll_deadlines(driver, batch, now);
        self.metrics.count_round(events);
        if self.word.is_parked() {
            events += self.watch_for_others(driver, batch, now);
        }
        awake_host::take_debt();
        events
    }

    /// A host that may sleep beside another one was woken by an event or a deadline at `now`, after a sleep that began at `began`. It was woken in
    /// vain if another one was about to look, or had been awake a moment before.
    pub(super) fn judge_sharing(&self, began: Instant, now: Instant) {
        let is_wasted = if self.word.is_parked() {
            // What was there before the sleep has woken the other one, too.
            now - began < NO_SLEEP
        } else {
            let last_look = Instant::from_nanos(self.last_look.load(Ordering::Relaxed));
            now - last_look < SEEN_SOON
        };
        if is_wasted {
            self.sharing.note_wasted(now);
        }
    }

    /// Ends the sleep that begins at the end of `timeout`.
    pub(super) fn arm(&self, driver: &mut Driver, timeout: Timeout) {
        if let Timeout::Until(deadline) = timeout
            && let Err(error) = driver.wait_point.arm(deadline)
        {
            tracing::error!(%error, "the wait point's timer could not be set");
        }
        // A timer that is set to what has passed fires at once.
        let at_once = if let Timeout::Until(deadline) = timeout { Some(deadline) } else { None };
        let armed = driver.wait_point.armed_after(driver.prepared_at).or(at_once);
        self.armed.store(armed.map_or(u64::MAX, Instant::as_nanos), Ordering::Relaxed);
    }

    /// Others sleep: polls what must be polled and is not announced to them, and sees to it that they wake up for the next event, poll and
    /// deadline, whatever the tasks of this host do.
    pub(super) fn watch_for_others(
        &self,
        driver: &mut Driver,
        batch: &mut Batch,
        now: Instant,
    ) -> usize {
        let has_active = !driver.active.is_empty();
        let mut events = if has_active { self.poll_deadlines(driver, batch, now) } else { 0 };
        let mut wake_at = u64::MAX;
        for handle in driver.active() {
            let (count, next_poll) = handle.watch_for_others(now, batch);
            events += count;
            wake_at = wake_at.min(next_poll.map_or(u64::MAX, Instant::as_nanos));
        }
        if driver.sleepers_until <= now.as_nanos() {
            driver.sleepers_until = u64::MAX;
        }
        wake_at = wake_at.min(driver.sleepers_until);
        wake_at = wake_at.min(self.next_deadline.load(Ordering::SeqCst));
        driver.prepared_at = now;
        let deadline = Instant::from_nanos(wake_at);
        self.arm(
            driver,
            if wake_at < u64::MAX { Timeout::Until(deadline) } else { Timeout::Never },
        );
        // What was told here is seen to.
        awake_host::take_debt();
        events
    }

    /// Copies the table if it has changed, and the shortest polling interval if one has. Returns whether anything had.
    pub(super) fn refresh(&self, driver: &mut Driver) -> bool {
        if !driver.stale.is_empty() {
            self.reconsider(driver);
        }
        if !self.frequencies_changed.load(Ordering::Relaxed)
            || !self.frequencies_changed.swap(false, Ordering::AcqRel)
        {
            return false;
        }
        let version = self.version.load(Ordering::Acquire);
        if version != driver.version {
            let rows = lock(&self.table).rows.clone();
            driver.retired.append(&mut driver.rows);
            driver.rows = rows;
            driver.version = version;
        }
        let (mut every_ns, mut switches, mut spin_ns) = (u64::MAX, 0, 0);
        driver.active.clear();
        driver.with_deadlines.clear();
        for (row, index) in driver.rows.iter().zip(0..) {
            let Some(watch) = row.handle.as_ref().map(|handle| handle.watch_state()) else {
                continue;
            };
            if watch.is_active.load(Ordering::Relaxed) {
                driver.active.push(index);
            }
            if watch.has_deadlines.load(Ordering::Relaxed) {
                driver.with_deadlines.push(index);
            }
            if watch.watches.load(Ordering::Relaxed) || watch.is_active.load(Ordering::Relaxed) {
                // Bells and deadlines say by themselves when a look is due.
                every_ns = every_ns.min(watch.every_ns.load(Ordering::Relaxed));
            }
            spin_ns = spin_ns.max(watch.spin_ns.load(Ordering::Relaxed));
            let count = watch.every_switches.load(Ordering::Relaxed);
            if count > 0 && (switches == 0 || count < switches) {
                switches = count;
            }
        }
        let has_active = !driver.active.is_empty();
        self.has_active.store(has_active, Ordering::Relaxed);
        self.look_every_ns.store(every_ns, Ordering::Relaxed);
        driver.spin = Duration::from_nanos(spin_ns);
        self.polls_first.store(spin_ns > 0, Ordering::Relaxed);
        self.look_switches.store(switches, Ordering::Relaxed);
        true
    }

    /// Asks the policies of those handles that were due when an event came: not then, since its task
    /// waited.
    #[cold]
    fn reconsider(&self, driver: &mut Driver) {
        let mut stale = mem::take(&mut driver.stale);
        for address in stale.drain(..) {
            if let Some(handle) = self.find(driver, address) {
                handle.reconsider(driver.stale_at);
            }
        }
        driver.stale = stale;
    }

    fn answer_rings(&self, driver: &mut Driver, batch: &mut Batch, now: Instant) -> usize {
        if !self.word.take_ring() {
            return 0;
        }
        driver.was_rung = true;
        let mut addresses = mem::take(&mut driver.rung);
        addresses.append(&mut lock(&self.rung));
        self.raised.collect(&mut addresses);
        let mut events = 0;
        for address in addresses.drain(..) {
            if let Some(handle) = self.find(driver, address) {
                // Cleared before the poll: a ring during the poll asks for another one. Acquire, with
                // the ringer's release: the poll sees what was done before the ring.
                handle.watch_state().is_rung.swap(false, Ordering::AcqRel);
                events += handle.round(Cause::Poll, now, batch);
            }
        }
        driver.rung = addresses;
        events
    }

    /// Finds the handle of `address`, in the table itself if the driver's copy is older.
    fn find(&self, driver: &Driver, address: Address) -> Option<Arc<dyn Registered>> {
        driver.find(address).cloned().or_else(|| {
            let table = lock(&self.table);
            let row = table.rows.get(address.index as usize)?;
            if row.generation == address.generation { row.handle.clone() } else { None }
        })
    }

    /// Hands the announcements over: one call for each run that is for the same handle.
    fn deliver(&self, driver: &mut Driver, batch: &mut Batch, now: Instant) -> usize {
        let routed = mem::take(&mut driver.routed);
        let mut notices = mem::take(&mut driver.notices);
        let mut events = 0;
        let mut rest = &routed[..];
        while let Some(first) = rest.first() {
            let count = rest.iter().take_while(|r| r.address == first.address).count();
            let (run, others) = rest.split_at(count);
            notices.clear();
            notices.extend(run.iter().map(|routed| routed.notice));
            match driver.find(first.address) {
                Some(handle) => {
                    events += handle.round(Cause::Notices(&notices), now, batch);
                    if mem::take(&mut batch.is_stale) {
                        driver.stale.push(first.address);
                        driver.stale_at = now;
                    }
                }
                None => {
                    if let Some(handle) = self.find(driver, first.address) {
                        events += handle.round(Cause::Notices(&notices), now, batch);
                    }
                    batch.is_stale = false;
                }
            }
            rest = others;
        }
        driver.routed = routed;
        driver.notices = notices;
        events
    }

    fn poll_due(&self, driver: &Driver, batch: &mut Batch, now: Instant) -> usize {
        let mut events = 0;
        for handle in driver.active() {
            if now.as_nanos() >= handle.watch_state().next_poll_ns.load(Ordering::Relaxed) {
                events += handle.round(Cause::Poll, now, batch);
            }
        }
        events
    }

    /// Polls the handles whose deadline has come, also where that could be put off: now it costs no wake-up.
    /// Finds the next one.
    fn poll_deadlines(&self, driver: &mut Driver, batch: &mut Batch, now: Instant) -> usize {
        let is_before = |word: &AtomicU64| now.as_nanos() < word.load(Ordering::Relaxed);
        if is_before(&self.next_due) && is_before(&self.next_deadline) {
            return 0;
        }
        // Raised first: a deadline that is submitted during the search lowers them again. Swaps, so
        // that the first deadline of a handle is seen together with the changed table.
        self.next_due.swap(u64::MAX, Ordering::SeqCst);
        self.next_deadline.swap(u64::MAX, Ordering::SeqCst);
        self.refresh(driver);
        let mut events = 0;
        for &index in &driver.with_deadlines {
            let Some(handle) = driver.rows.get(index as usize).and_then(|row| row.handle.as_ref())
            else {
                continue;
            };
            if handle.watch_state().known_count.load(Ordering::Acquire) == 0 {
                continue;
            }
            let (count, next) = handle.poll_deadline(now, batch);
            events += count;
            if let Some(due) = next {
                self.next_due.fetch_min(due.soft.as_nanos(), Ordering::SeqCst);
                self.next_deadline.fetch_min(due.hard.as_nanos(), Ordering::SeqCst);
            }
        }
        events
    }

    /// Finds anew when deadlines should end the sleep that is prepared: the time that is known may be of
    /// something that is over, and would end the sleep for nothing; or another one finds more deadlines.
    /// Returns false if a handle came meanwhile.
    fn find_deadline(&self, driver: &mut Driver) -> bool {
        // As in `poll_deadlines`; whoever lowers it from here on finds the host parked, and rings.
        self.next_deadline.swap(u64::MAX, Ordering::SeqCst);
        let is_same = !self.refresh(driver);
        for &index in &driver.with_deadlines {
            let row = driver.rows.get(index as usize);
            let Some(handle) = row.and_then(|row| row.handle.as_ref()) else { continue };
            if handle.watch_state().known_count.load(Ordering::Acquire) > 0
                && let Some(deadline) = handle.wakeup()
            {
                self.next_deadline.fetch_min(deadline.as_nanos(), Ordering::SeqCst);
            }
        }
        is_same
    }

    /// Polls for as long as the policies find that cheaper than sleeping.
    ///
    /// Whoever rings ends this as it would end a sleep: a host that polls is no less willing to work.
    pub(super) fn spin(&self, driver: &mut Driver, batch: &mut Batch) -> Spun {
        if driver.spin.is_zero() {
            return Spun::Nothing;
        }
        let since = self.now();
        let (mut last, mut end) = (since, since + driver.spin);
        loop {
            driver.was_rung = false;
            let events = self.look(driver, batch);
            if events > 0 {
                return Spun::Events(events);
            }
            if driver.was_rung {
                // The look has taken a ring that may be for somebody else than a handle.
                return Spun::Rung;
            }
            if last == since {
                // Events that were there at once would have prevented a sleep as well.
                self.idle.begin(since);
            }
            let now = self.now();
            if now - last > STOPPED {
                self.load.stopped(now);
                end = now;
            }
            if now >= end {
                break;
            }
            last = now;
            std::hint::spin_loop();
        }
        for handle in driver.rows.iter().filter_map(|row| row.handle.as_ref()) {
            if handle.watch_state().spin_ns.load(Ordering::Relaxed) > 0 {
                handle.spin_missed(last);
            }
        }
        Spun::Nothing
    }

    /// Arms and re-polls everything before a sleep, and says how long that may be. Leaves the host
    /// parked: the caller ends that.
    pub(super) fn prepare(
        &self,
        driver: &mut Driver,
        batch: &mut Batch,
        until: Option<Instant>,
    ) -> Prepared {
        self.refresh(driver);
        let is_only_one = !self.word.is_parked();
        // Somebody who rings while another host sleeps has woken that one.
        if self.word.begin_park() == Park::Rung && is_only_one {
            return Prepared::Sleep(Timeout::Zero);
        }
        let parked = Parked(&self.word);
        let prepared = self.arm_all(driver, batch, until);
        mem::forget(parked);
        prepared
    }

    fn arm_all(&self, driver: &mut Driver, batch: &mut Batch, until: Option<Instant>) -> Prepared {
        let now = self.now();
        driver.prepared_at = now;
        let mut events = 0;
        let until = until.map_or(u64::MAX, Instant::as_nanos);
        let mut wake_at = until;
        for handle in driver.active() {
            match handle.before_sleep(now, batch) {
                BeforeSleep::Events(count) => events += count,
                BeforeSleep::Until(Some(deadline)) => wake_at = wake_at.min(deadline.as_nanos()),
                BeforeSleep::Until(None) => {}
            }
        }
        if events > 0 {
            return Prepared::Events(events);
        }
        // SeqCst: see `ParkWord::begin_park`.
        let known = self.next_deadline.load(Ordering::SeqCst);
        let due = self.next_due.load(Ordering::SeqCst);
        if due <= now.as_nanos() {
            // It could be put off, but a look at once costs no wake-up.
            wake_at = 0;
        } else if known > now.as_nanos() && due < wake_at && !self.find_deadline(driver) {
            wake_at = 0;
        }
        wake_at = wake_at.min(self.next_deadline.load(Ordering::SeqCst));
        if self.frequencies_changed.load(Ordering::Acquire) {
            // A handle came while we armed the others: look again.
            wake_at = 0;
        }
        if wake_at > now.as_nanos() {
            driver.sleepers_until = driver.sleepers_until.min(until);
            if driver.sleepers_until > now.as_nanos() {
                wake_at = wake_at.min(driver.sleepers_until);
            }
        }
        Prepared::Sleep(match wake_at {
            u64::MAX => Timeout::Never,
            nanos if nanos <= now.as_nanos() => Timeout::Zero,
            nanos => Timeout::Until(Instant::from_nanos(nanos)),
        })
    }
}
