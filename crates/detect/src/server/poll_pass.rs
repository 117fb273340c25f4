//! Poll passes: a host's work at a task switch, and before and after a sleep.

use std::{mem, time::Duration};

use super::{
    awake_host,
    driver_state::DriverState,
    park_state::{Park, Parked},
    poller::RoutedEvent,
    registered::{BeforeSleep, PollCause, Registered},
    shared::ServerShared,
};
use crate::{
    clock::{Instant, Timeout},
    detector::{HandleAddress, WakeList},
    sync::{Arc, AtomicU64, MutexGuard, Ordering, lock, try_lock},
};

pub(super) enum SpinOutcome {
    Events(usize),
    Notified,
    Nothing,
}

/// A polling host that is stopped for longer has lost its core to another thread.
const PREEMPTED: Duration = Duration::from_micros(100);

/// A sleep that is shorter does not count: the event was there already.
const NO_SLEEP: Duration = Duration::from_micros(4);

/// A host whose last poll pass is more recent than this is not inside a long poll of a task, and will soon poll again.
const SEEN_SOON: Duration = Duration::from_micros(100);

pub(super) enum Prepared {
    Events(usize),
    Sleep(Timeout),
}

/// The number of times that a host that wants to sleep retries while another one only polls.
pub(super) const TRIES_MAX: u32 = 1_000;

impl ServerShared {
    /// Takes the driver's lock for a host that wants to sleep, if at most `sleepers_max` may. Waits for a host that only
    /// polls, which holds the lock for a few microseconds, or until it has its core again: sleeping elsewhere because of it would leave the
    /// poller unwatched, since that host may be about to sleep elsewhere because of this one.
    pub(super) fn driver_to_sleep(&self, sleepers_max: u32) -> Option<MutexGuard<'_, DriverState>> {
        for _ in 0..TRIES_MAX {
            let driver = try_lock(&self.driver);
            // More can park only under the lock.
            if !self.has_place(sleepers_max) {
                return None;
            }
            if let Some(driver) = driver {
                return self.may_sleep_with(&driver).then_some(driver);
            }
            std::hint::spin_loop();
        }
        let driver = lock(&self.driver);
        (self.has_place(sleepers_max) && self.may_sleep_with(&driver)).then_some(driver)
    }

    /// Returns whether one more host may sleep in the poller.
    fn has_place(&self, sleepers_max: u32) -> bool {
        let parked_count = self.park_state.parked_count();
        parked_count == 0 || parked_count < sleepers_max && self.may_share(self.now())
    }

    /// Returns whether those that sleep in the poller share it. A watcher would lose its calls to another host, which does not run what the
    /// watcher was called for.
    fn may_sleep_with(&self, driver: &DriverState) -> bool {
        driver.is_shared || !self.park_state.is_parked()
    }
}

/// Poll passes. Every function here runs under the driver's lock.
impl ServerShared {
    /// One pass over everything that is due, without waiting.
    pub(super) fn poll_pass(&self, driver: &mut DriverState, batch: &mut WakeList) -> usize {
        self.refresh(driver);
        driver.routed.clear();
        self.wait(false, &mut driver.routed);
        self.take_in(driver, batch, self.now())
    }

    pub(super) fn wait(&self, may_sleep: bool, routed: &mut Vec<RoutedEvent>) {
        if let Err(error) = self.poller_handle().wait(may_sleep, routed) {
            tracing::error!(%error, "the poller failed");
        }
    }

    /// Takes in the announcements up to `now`, and what is due.
    pub(super) fn take_in(
        &self,
        driver: &mut DriverState,
        batch: &mut WakeList,
        now: Instant,
    ) -> usize {
        self.schedule_pass(now);
        let mut events = self.handle_notifications(driver, batch, now);
        events += self.deliver(driver, batch, now);
        events += self.poll_due(driver, batch, now);
        events += self.poll_deadlines(driver, batch, now);
        self.metrics.count_poll(events);
        if self.park_state.is_parked() {
            events += self.watch_for_others(driver, batch, now);
        }
        awake_host::take_deferred_wakeup();
        events
    }

    /// Called when a host that may sleep beside another one was woken by an event or a deadline at `now`, after a sleep that began at
    /// `began`. The wake-up was spurious if another host was about to poll, or had been awake a moment before.
    pub(super) fn judge_sharing(&self, began: Instant, now: Instant) {
        let is_wasted = if self.park_state.is_parked() {
            // An event that was there before the sleep has woken the other host too.
            now - began < NO_SLEEP
        } else {
            let last_pass = Instant::from_nanos(self.last_pass.load(Ordering::Relaxed));
            now - last_pass < SEEN_SOON
        };
        if is_wasted {
            self.sharing.note_wasted(now);
        }
    }

    /// Makes the sleep that begins now end with `timeout`.
    pub(super) fn arm(&self, driver: &mut DriverState, timeout: Timeout) {
        if let Timeout::Until(deadline) = timeout
            && let Err(error) = driver.poller.arm(deadline)
        {
            tracing::error!(%error, "the poller's timer could not be set");
        }
        // A timer set to a past time fires at once.
        let at_once = if let Timeout::Until(deadline) = timeout { Some(deadline) } else { None };
        let armed = driver.poller.armed_after(driver.prepared_at).or(at_once);
        self.armed.store(armed.map_or(u64::MAX, Instant::as_nanos), Ordering::Relaxed);
    }

    /// Called while others sleep: polls what must be polled and is not announced to them, and makes sure that they wake up for the next
    /// event, poll and deadline, whatever the tasks of this host do.
    pub(super) fn watch_for_others(
        &self,
        driver: &mut DriverState,
        batch: &mut WakeList,
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

        // A time in the past would make the timer fire at once.
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
        // What was deferred here has been handled.
        awake_host::take_deferred_wakeup();
        events
    }

    /// Copies the table if it has changed, and the shortest polling interval if it has. Returns whether anything had
    /// changed.
    pub(super) fn refresh(&self, driver: &mut DriverState) -> bool {
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
                // Notifiers and deadlines announce when a pass is due.
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
        self.pass_interval_ns.store(every_ns, Ordering::Relaxed);
        driver.spin = Duration::from_nanos(spin_ns);
        self.polls_first.store(spin_ns > 0, Ordering::Relaxed);
        self.pass_switches.store(switches, Ordering::Relaxed);
        true
    }

    /// Asks the policies of the handles that were due when an event came; not at that moment, since
    /// the event's task was waiting.
    #[cold]
    fn reconsider(&self, driver: &mut DriverState) {
        let mut stale = mem::take(&mut driver.stale);
        for address in stale.drain(..) {
            if let Some(handle) = self.find(driver, address) {
                handle.reconsider(driver.stale_at);
            }
        }
        driver.stale = stale;
    }

    fn handle_notifications(
        &self,
        driver: &mut DriverState,
        batch: &mut WakeList,
        now: Instant,
    ) -> usize {
        if !self.park_state.take_notification() {
            return 0;
        }

        driver.was_notified = true;
        let mut addresses = mem::take(&mut driver.notified);
        addresses.append(&mut lock(&self.notified));
        self.raised.collect(&mut addresses);

        let mut events = 0;
        for address in addresses.drain(..) {
            if let Some(handle) = self.find(driver, address) {
                // Cleared before the poll: a notification during the poll asks for another one. Acquire, with
                // the notifier's release: the poll sees what was done before the notification.
                handle.watch_state().is_notified.swap(false, Ordering::AcqRel);
                events += handle.poll(PollCause::Poll, now, batch);
            }
        }

        driver.notified = addresses;
        events
    }

    /// Finds the handle of `address`, in the table if the driver's copy is older.
    fn find(&self, driver: &DriverState, address: HandleAddress) -> Option<Arc<dyn Registered>> {
        driver.find(address).cloned().or_else(|| {
            let table = lock(&self.table);
            let row = table.rows.get(address.index as usize)?;
            if row.generation == address.generation { row.handle.clone() } else { None }
        })
    }

    /// Delivers the readiness events: one call for each run for the same handle.
    fn deliver(&self, driver: &mut DriverState, batch: &mut WakeList, now: Instant) -> usize {
        let routed = mem::take(&mut driver.routed);
        let mut ready_events = mem::take(&mut driver.ready_events);

        let mut events = 0;
        let mut rest = &routed[..];
        while let Some(first) = rest.first() {
            let count = rest.iter().take_while(|r| r.address == first.address).count();
            let (run, others) = rest.split_at(count);

            ready_events.clear();
            ready_events.extend(run.iter().map(|routed| routed.ready_event));
            match driver.find(first.address) {
                Some(handle) => {
                    events += handle.poll(PollCause::Ready(&ready_events), now, batch);
                    if mem::take(&mut batch.is_stale) {
                        driver.stale.push(first.address);
                        driver.stale_at = now;
                    }
                }
                None => {
                    // The handle was registered after the driver copied the table.
                    if let Some(handle) = self.find(driver, first.address) {
                        events += handle.poll(PollCause::Ready(&ready_events), now, batch);
                    }
                    batch.is_stale = false;
                }
            }
            rest = others;
        }

        driver.routed = routed;
        driver.ready_events = ready_events;
        events
    }

    fn poll_due(&self, driver: &DriverState, batch: &mut WakeList, now: Instant) -> usize {
        let mut events = 0;
        for handle in driver.active() {
            if now.as_nanos() >= handle.watch_state().next_poll_ns.load(Ordering::Relaxed) {
                events += handle.poll(PollCause::Poll, now, batch);
            }
        }
        events
    }

    /// Polls the handles whose deadline has come, even if that could be delayed: now it costs no wake-up.
    /// Finds the next deadline.
    fn poll_deadlines(
        &self,
        driver: &mut DriverState,
        batch: &mut WakeList,
        now: Instant,
    ) -> usize {
        let is_before = |word: &AtomicU64| now.as_nanos() < word.load(Ordering::Relaxed);
        if is_before(&self.next_due) && is_before(&self.next_deadline) {
            return 0;
        }

        // Raised first: a deadline submitted during the search lowers them again. Swaps, so that
        // the first deadline of a handle is seen together with the changed table.
        self.next_due.swap(u64::MAX, Ordering::SeqCst);
        self.next_deadline.swap(u64::MAX, Ordering::SeqCst);
        self.refresh(driver);

        let (mut events, mut has_slack) = (0, false);
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
                has_slack |= due.soft < due.hard;
                self.next_due.fetch_min(due.soft.as_nanos(), Ordering::SeqCst);
                self.next_deadline.fetch_min(due.hard.as_nanos(), Ordering::SeqCst);
            }
        }
        self.is_deadline_doubtful.store(has_slack, Ordering::Relaxed);
        events
    }

    /// Recomputes when deadlines should end the prepared sleep: the known time may belong to something
    /// that has ended, and would end the sleep for nothing; or another host finds more deadlines.
    /// Returns false if a handle was added meanwhile.
    pub(super) fn find_deadline(&self, driver: &mut DriverState) -> bool {
        // As in `poll_deadlines`; a thread that lowers it from here on finds the host parked, and
        // notifies.
        self.next_deadline.swap(u64::MAX, Ordering::SeqCst);
        self.is_deadline_doubtful.store(false, Ordering::Relaxed);
        let is_same = !self.refresh(driver);
        for &index in &driver.with_deadlines {
            let row = driver.rows.get(index as usize);
            let Some(handle) = row.and_then(|row| row.handle.as_ref()) else { continue };
            if handle.watch_state().known_count.load(Ordering::Acquire) > 0
                && let Some(deadline) = handle.wake_at()
            {
                self.next_deadline.fetch_min(deadline.as_nanos(), Ordering::SeqCst);
            }
        }
        is_same
    }

    /// Polls for as long as the policies consider that cheaper than sleeping.
    ///
    /// A notification ends this as it would end a sleep: a polling host is just as available for work.
    pub(super) fn spin(&self, driver: &mut DriverState, batch: &mut WakeList) -> SpinOutcome {
        if driver.spin.is_zero() {
            return SpinOutcome::Nothing;
        }

        let since = self.now();
        let (mut last, mut end) = (since, since + driver.spin);
        loop {
            driver.was_notified = false;
            let events = self.poll_pass(driver, batch);
            if events > 0 {
                return SpinOutcome::Events(events);
            }
            if driver.was_notified {
                // The pass has taken a notification that may be for something other than a handle.
                return SpinOutcome::Notified;
            }
            if last == since {
                // Events that were there at once would have prevented a sleep too.
                self.idle.begin(since);
            }
            let now = self.now();
            if now - last > PREEMPTED {
                self.load.preempted(now);
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
        SpinOutcome::Nothing
    }

    /// Arms and re-polls everything before a sleep, and returns how long it may last. Leaves the
    /// host parked: the caller ends that.
    pub(super) fn prepare(
        &self,
        driver: &mut DriverState,
        batch: &mut WakeList,
        until: Option<Instant>,
    ) -> Prepared {
        self.refresh(driver);
        let is_only_one = !self.park_state.is_parked();
        // A notification while another host sleeps has woken that host.
        if self.park_state.begin_park() == Park::Notified && is_only_one {
            return Prepared::Sleep(Timeout::Zero);
        }
        let parked = Parked(&self.park_state);
        let prepared = self.arm_all(driver, batch, until);
        mem::forget(parked);
        prepared
    }

    fn arm_all(
        &self,
        driver: &mut DriverState,
        batch: &mut WakeList,
        until: Option<Instant>,
    ) -> Prepared {
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

        // SeqCst: see `ParkState::begin_park`.
        let known = self.next_deadline.load(Ordering::SeqCst);
        let due = self.next_due.load(Ordering::SeqCst);
        if due <= now.as_nanos() {
            // It could be delayed, but a pass now costs no wake-up.
            wake_at = 0;
        } else if known > now.as_nanos() && due < wake_at && !self.find_deadline(driver) {
            wake_at = 0;
        }

        wake_at = wake_at.min(self.next_deadline.load(Ordering::SeqCst));
        if self.frequencies_changed.load(Ordering::Acquire) {
            // A handle was added while we armed the others: poll again.
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
