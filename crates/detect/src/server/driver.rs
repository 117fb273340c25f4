//! The host's side of a server: poll for events at task switches, sleep when there is nothing to
//! run.

use std::{fmt, mem, os::fd::BorrowedFd};

use super::{
    awake_host,
    driver_state::DriverState,
    park_state::Parked,
    poll_pass::{Prepared, SpinOutcome, TRIES_MAX},
    poller::RoutedEvent,
    shared::ServerShared,
};
use crate::{
    budget,
    clock::{Instant, Timeout},
    detector::WakeList,
    error::discard,
    sync::{Arc, MutexGuard, Ordering, lock, try_lock},
};

/// The host's side of a server: detection at task switches, and sleep. Each hosting thread has one.
pub struct Driver {
    shared: Arc<ServerShared>,
    batch: WakeList,
    switches: usize,
    is_watcher: bool,
    /// The most hosts that may sleep in the poller, including this one.
    sleepers_max: u32,
    /// True if hosts were allowed to share the poller when this one last asked.
    was_allowed: bool,
    /// The events announced at the end of a sleep.
    routed: Vec<RoutedEvent>,
    /// A sleep has been announced, which lasts until the next poll pass.
    is_asleep: bool,
    /// A policy is to be asked in the next poll pass.
    has_stale: bool,
}

/// The most hosts that may sleep in the poller. While one handles an event, the other waits for the next; a third can
/// be woken before it is needed.
const SLEEPERS_MAX: u32 = 2;

impl Driver {
    pub(crate) fn new(shared: Arc<ServerShared>) -> Self {
        Self {
            shared,
            batch: WakeList::default(),
            switches: 0,
            is_watcher: false,
            sleepers_max: 1,
            was_allowed: true,
            routed: Vec::new(),
            is_asleep: false,
            has_stale: false,
        }
    }

    /// Returns whether the host should call [`detect`](Self::detect) at this switch: three loads while nothing is due.
    #[inline]
    pub fn is_due(&mut self, now: Instant) -> bool {
        let shared = &*self.shared;
        let nanos = now.as_nanos();
        // What a sleeping host was woken for, or will be, is left to it: this host would find nothing, at each of its
        // switches, until that one runs.
        if shared.park_state.is_for_awake_hosts()
            || nanos >= shared.next_deadline.load(Ordering::Relaxed) && !shared.is_covered()
            || nanos >= shared.next_pass.load(Ordering::Relaxed)
        {
            return true;
        }
        let every = shared.pass_switches.load(Ordering::Relaxed);
        if every == 0 {
            return false;
        }
        self.switches += 1;
        self.switches >= every
    }

    /// Polls for events without sleeping and wakes the tasks that wait for them.
    ///
    /// # Cost
    /// One `epoll_wait`, one lock for each handle that is polled. No allocation.
    pub fn detect(&mut self) -> Detected {
        self.switches = 0;
        self.note_host();
        let now = self.shared.now();
        if !self.is_watcher {
            self.shared.note_pass(now);
        }
        self.note_interval();
        // A host that sleeps there sees what arrives, and would wake spuriously if it were taken here. No host falls asleep while
        // the lock is held.
        let is_left_to_others = || self.shared.park_state.is_parked();
        let driver = if is_left_to_others() { None } else { try_lock(&self.shared.driver) };
        let Some(mut driver) = driver.filter(|_| !is_left_to_others()) else {
            let detected = self.settle(now, false);
            // Do not try again at every switch.
            self.shared.schedule_pass(now);
            return detected;
        };
        let events = self.shared.poll_pass(&mut driver, &mut self.batch);
        // The pass that follows `prepare` ends a sleep in virtual time.
        self.shared.idle.end();
        self.has_stale = !driver.stale.is_empty();
        finish(driver, &mut self.batch, events)
    }

    /// Sleeps until an event is delivered, [`Server::unpark`](crate::Server::unpark) is called or `until` has passed. If
    /// the policies want it, polls for a while first. May return early.
    pub fn park(&mut self, until: Option<Instant>) -> Detected {
        self.park_unless(until, || false)
    }

    /// Like [`park`](Self::park), but does not sleep if `is_awaited` returns true: this host is wanted awake.
    /// `is_awaited` is called after the host has announced its sleep. So if a thread makes it true and then
    /// calls [`Server::unpark`](crate::Server::unpark), the host notices, even if another host that polls has
    /// taken that call for itself.
    ///
    /// If hosts [share](Self::sharing) the poller, `unpark` wakes any one of them: a host that returns from here must check
    /// whether another sleeper is wanted, and either do that host's work or call `unpark` again.
    pub fn park_unless(
        &mut self,
        until: Option<Instant>,
        is_awaited: impl FnOnce() -> bool,
    ) -> Detected {
        let shared = &*self.shared;
        let Some(mut driver) = shared.driver_to_sleep(self.sleepers_max) else {
            return self.settle(shared.now(), true);
        };

        // Polling would take events for which the kernel has woken another host.
        let is_only_one = !shared.park_state.is_parked();
        if is_only_one {
            driver.is_shared = self.sleepers_max > 1;
            driver.sleepers_until = u64::MAX;
        }

        let spun = if self.is_watcher || !is_only_one {
            SpinOutcome::Nothing
        } else {
            shared.spin(&mut driver, &mut self.batch)
        };

        let events = match spun {
            SpinOutcome::Events(count) => count,
            SpinOutcome::Notified => 0,
            SpinOutcome::Nothing => {
                let prepared = shared.prepare(&mut driver, &mut self.batch, until);
                let parked = Parked(&shared.park_state);
                match prepared {
                    Prepared::Events(count) => count,
                    Prepared::Sleep(_) if is_awaited() => 0,
                    Prepared::Sleep(Timeout::Zero) => {
                        shared.metrics.count_sleep();
                        // No real sleep: whatever is found was there already.
                        shared.idle.end();
                        drop(parked);
                        shared.poll_pass(&mut driver, &mut self.batch)
                    }
                    Prepared::Sleep(timeout) => {
                        shared.metrics.count_sleep();
                        if !self.is_watcher {
                            shared.idle.fall_asleep(driver.prepared_at);
                        }
                        let sleep = shared.costs.begin(timeout, || shared.now());
                        shared.arm(&mut driver, sleep.timeout);
                        let began = driver.prepared_at;
                        drop(driver);
                        awake_host::forget();

                        shared.wait(true, &mut self.routed);

                        // Before anything is delivered: a detector that reports its next deadline would
                        // otherwise notify the host that asks it, which is awake.
                        drop(parked);
                        if self.sleepers_max > 1 {
                            shared.note_host();
                        }
                        let now = shared.now();
                        let is_event = !self.routed.is_empty() || shared.is_deadline_over(now);
                        if self.sleepers_max > 1 && is_event {
                            shared.judge_sharing(began, now);
                        }

                        shared.costs.end(&sleep, now, self.routed.is_empty());
                        driver = lock(&shared.driver);
                        shared.refresh(&mut driver);
                        driver.routed.clear();
                        mem::swap(&mut driver.routed, &mut self.routed);
                        shared.take_in(&mut driver, &mut self.batch, now)
                    }
                }
            }
        };

        shared.idle.end();
        finish(driver, &mut self.batch, events)
    }

    /// Returns the descriptor that becomes readable when an event, a deadline or a notification ends an
    /// [announced sleep](Self::announce_sleep). `None` in virtual time.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.shared.poller_handle().as_fd()
    }

    /// For a host that sleeps elsewhere, with an eye on the [descriptor](Self::descriptor): does everything that
    /// [`park_unless`](Self::park_unless) does before a sleep. [`Detected::Nothing`]: the host is asleep until it calls
    /// [`poll`](Self::poll), and the descriptor becomes readable when it should. Otherwise it has to poll at once.
    pub fn announce_sleep(&mut self, is_awaited: impl FnOnce() -> bool) -> Detected {
        let shared = &*self.shared;
        let mut driver = lock(&shared.driver);
        let prepared = shared.prepare(&mut driver, &mut self.batch, None);
        let parked = Parked(&shared.park_state);
        let (events, timeout) = match prepared {
            Prepared::Events(count) => (count, Timeout::Zero),
            Prepared::Sleep(timeout) => (0, timeout),
        };
        if timeout == Timeout::Zero || is_awaited() || shared.poller_handle().has_events() {
            drop(parked);
            return match finish(driver, &mut self.batch, events) {
                Detected::Nothing => Detected::Busy,
                detected => detected,
            };
        }
        shared.metrics.count_sleep();
        shared.idle.fall_asleep(driver.prepared_at);
        shared.arm(&mut driver, timeout);
        mem::forget(parked);
        self.is_asleep = true;
        finish(driver, &mut self.batch, 0)
    }

    /// For a host that sleeps elsewhere: ends an [announced sleep](Self::announce_sleep), polls for events and wakes the tasks
    /// that wait for them.
    pub fn poll(&mut self) -> Detected {
        self.end_sleep();
        let shared = &*self.shared;
        let mut driver = lock(&shared.driver);
        let events = shared.poll_pass(&mut driver, &mut self.batch);
        shared.idle.end();
        shared.last_pass.store(shared.now().as_nanos(), Ordering::Relaxed);
        finish(driver, &mut self.batch, events)
    }

    /// Makes the [descriptor](Self::descriptor) readable.
    pub fn interrupt(&self) {
        self.shared.poller_handle().wake();
    }

    /// Ends an [announced sleep](Self::announce_sleep) without a poll pass, for a host that goes on as others do.
    pub fn end_sleep(&mut self) {
        if mem::take(&mut self.is_asleep) {
            self.shared.park_state.end_park();
        }
    }

    /// Lets this host sleep in the poller beside another one, while that pays. The kernel wakes one of them for each event;
    /// while that host runs tasks, the other one [watches](Self::is_watched) without having been called.
    #[must_use]
    pub fn sharing(mut self) -> Self {
        self.sleepers_max = SLEEPERS_MAX;
        self
    }

    /// Makes this the driver of a host that watches while others run the tasks. It never polls before
    /// it sleeps, whatever the policies want, since others need the processor; its poll passes do not count
    /// as theirs (see [`last_gap`](Self::last_gap)).
    #[must_use]
    pub fn for_watcher(mut self) -> Self {
        self.is_watcher = true;
        self
    }
    /// Returns whether a host that sleeps elsewhere should be woken, to sleep in the poller beside this one, which is about to
    /// sleep at `now`: the pause in sharing is over.
    #[must_use]
    pub fn wants_second_sleeper(&mut self, now: Instant) -> bool {
        let is_due = self.shared.may_share(now);
        let was_due = mem::replace(&mut self.was_allowed, is_due);
        self.sleepers_max > 1 && is_due && !was_due && !self.shared.park_state.is_parked()
    }

    /// Returns whether a host sleeps in the poller, or is about to: then an announcement or the next deadline wakes it,
    /// and detectors that must be polled are polled.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.shared.is_covered()
    }

    /// Reports that this host runs tasks again after a sleep, so that the time without poll passes
    /// does not count as a [gap](Self::last_gap).
    pub fn resume(&self, now: Instant) {
        self.shared.last_pass.store(now.as_nanos(), Ordering::Relaxed);
        self.note_interval();
    }

    /// Called when others sleep in the poller and this host runs no poll pass: polls what must be polled, and makes sure that
    /// the sleepers learn of the next event and of the deadlines deferred to this host, at the latest before it `sleeps` elsewhere.
    fn settle(&mut self, now: Instant, sleeps: bool) -> Detected {
        let shared = &*self.shared;
        let (must_poll, has_deferred) = (shared.must_poll(), awake_host::take_deferred_wakeup());
        if !must_poll && !has_deferred && !shared.is_deadline_lost(now) {
            return Detected::Busy;
        }

        if !must_poll {
            // It costs as much as a spurious wake-up, and causes one if this host is about to poll.
            shared.sharing.note_wasted(now);
        }

        for _ in 0..if sleeps { TRIES_MAX } else { 1 } {
            let Some(mut driver) = try_lock(&shared.driver) else {
                std::hint::spin_loop();
                continue;
            };
            if !shared.park_state.is_parked() {
                // The host that slept there is awake, and does all this before it sleeps again.
                return Detected::Busy;
            }
            if must_poll {
                shared.refresh(&mut driver);
            }
            let events = shared.watch_for_others(&mut driver, &mut self.batch, now);
            return match finish(driver, &mut self.batch, events) {
                Detected::Nothing => Detected::Busy,
                detected => detected,
            };
        }

        if sleeps {
            shared.unpark();
        } else if has_deferred {
            // Try in the next pass.
            awake_host::defer_wakeup();
        }
        Detected::Busy
    }

    /// Only a host that shares defers deadlines to its next poll pass: it stays on its thread, and polls or sleeps between any two
    /// tasks.
    fn note_host(&self) {
        if self.sleepers_max > 1 {
            self.shared.note_host();
        }
    }

    /// The budgets of the polls of this host's tasks last as long as the interval between its poll passes.
    #[inline]
    fn note_interval(&self) {
        budget::note_pass_interval(self.shared.pass_interval_ns.load(Ordering::Relaxed));
    }

    /// Returns when a host last ran a poll pass between two tasks, or tried to while another one watched;
    /// [`Instant`] zero if no host ever did.
    #[must_use]
    pub fn last_pass(&self) -> Instant {
        Instant::from_nanos(self.shared.last_pass.load(Ordering::Relaxed))
    }

    /// Returns when a poll pass last came more than half an interval late although the host was awake,
    /// because its tasks did not let it poll as often as the policies want.
    #[must_use]
    pub fn last_gap(&self) -> Instant {
        Instant::from_nanos(self.shared.last_gap.load(Ordering::Relaxed))
    }

    /// Returns the earliest deadline reported by a detector: the latest time of the next poll pass. It may belong to something that
    /// has ended since.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let nanos = self.shared.next_deadline.load(Ordering::Relaxed);
        (nanos < u64::MAX).then(|| Instant::from_nanos(nanos))
    }

    /// Returns from when on a poll pass may find something because of a deadline: no later than [`next_deadline`](Self::next_deadline).
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let shared = &*self.shared;
        let nanos = shared.next_due.load(Ordering::Relaxed);
        let nanos = nanos.min(shared.next_deadline.load(Ordering::Relaxed));
        (nanos < u64::MAX).then(|| Instant::from_nanos(nanos))
    }

    /// Returns whether a notification has arrived since the last poll pass.
    pub(crate) fn is_notified(&self) -> bool {
        self.shared.park_state.is_notified()
    }

    /// For a host that moves the clock, and has known the next deadline: returns whether that has changed or a poll pass may find something
    /// although nothing of the server has run.
    pub(crate) fn is_disturbed(&self, known: Option<Instant>) -> bool {
        let shared = &*self.shared;
        shared.park_state.is_notified()
            || shared.has_active.load(Ordering::Relaxed)
            || shared.frequencies_changed.load(Ordering::Relaxed)
            || self.next_deadline() != known
    }

    /// For a host that moves the clock: returns whether a poll pass at `now` may find something beside what the poller announces.
    pub(crate) fn needs_pass(&self, now: Instant) -> bool {
        let (shared, nanos) = (&*self.shared, now.as_nanos());
        self.has_stale
            || shared.park_state.is_notified()
            || shared.has_active.load(Ordering::Relaxed)
            || shared.frequencies_changed.load(Ordering::Relaxed)
            || nanos >= shared.next_due.load(Ordering::Relaxed)
            || nanos >= shared.next_deadline.load(Ordering::Relaxed)
    }

    /// The same as [`detect`](Self::detect) for the only host of a server, which moves the clock: nothing is measured, and `routed` has what
    /// was announced.
    pub(crate) fn pass_in_virtual_time(&mut self, routed: &mut Vec<RoutedEvent>) -> Detected {
        let shared = &*self.shared;
        let Some(mut driver) = try_lock(&shared.driver) else { return Detected::Busy };
        shared.refresh(&mut driver);
        driver.routed.clear();
        mem::swap(&mut driver.routed, routed);
        let events = shared.take_in(&mut driver, &mut self.batch, shared.now());
        // The pass that follows `prepare` ends a sleep.
        self.shared.idle.end();
        self.has_stale = !driver.stale.is_empty();
        finish(driver, &mut self.batch, events)
    }

    /// For a host that moves the clock, in place of [`prepare`](Self::prepare) if no [pass is needed](Self::needs_pass): it has
    /// nothing to run from `now` on.
    pub(crate) fn begin_idle(&self, now: Instant) {
        self.shared.idle.begin(now);
    }

    /// Finds the [next deadline](Self::next_deadline) anew, if the known one may belong to something that has ended.
    pub(crate) fn examine_deadlines(&mut self) {
        if self.shared.is_deadline_doubtful.load(Ordering::Relaxed)
            && let Some(mut driver) = try_lock(&self.shared.driver)
        {
            self.shared.find_deadline(&mut driver);
        }
    }

    /// Does everything that [`park`](Self::park) does before it sleeps, for a host that moves the
    /// clock instead.
    pub(crate) fn prepare(&mut self) -> Result<Option<Instant>, Detected> {
        let Some(mut driver) = try_lock(&self.shared.driver) else { return Err(Detected::Busy) };
        let shared = Arc::clone(&self.shared);
        let prepared = shared.prepare(&mut driver, &mut self.batch, None);
        shared.park_state.end_park();
        self.has_stale = !driver.stale.is_empty();
        match prepared {
            Prepared::Events(count) => Err(finish(driver, &mut self.batch, count)),
            Prepared::Sleep(timeout) => {
                if timeout != Timeout::Zero {
                    // In virtual time a pass is never late: what is found was found awake.
                    shared.idle.begin(shared.now());
                }
                finish(driver, &mut self.batch, 0);
                match timeout {
                    Timeout::Zero => Ok(Some(shared.now())),
                    Timeout::Until(deadline) => Ok(Some(deadline)),
                    Timeout::Never => Ok(None),
                }
            }
        }
    }
}

impl Drop for Driver {
    /// The thread no longer polls. A server that closed while this host drove it could not take its handles from the
    /// driver, and the two would keep each other alive for ever.
    fn drop(&mut self) {
        self.end_sleep();
        if self.shared.is_hosted_here() {
            awake_host::forget();
        }
        if self.shared.is_closed()
            && !self.shared.is_inherited()
            && let Some(mut driver) = try_lock(&self.shared.driver)
        {
            let rows = driver.take_rows();
            drop(driver);
            drop(rows);
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// The result of a host's poll pass or sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detected {
    /// Nothing happened.
    Nothing,
    /// This many events were delivered and their tasks woken.
    Events(usize),
    /// Another thread is driving the server at this moment.
    Busy,
}

impl Detected {
    fn from_count(count: usize) -> Self {
        if count == 0 { Self::Nothing } else { Self::Events(count) }
    }
}

/// Releases the lock, then wakes: the code that a waker runs may use the server.
fn finish(
    mut driver: MutexGuard<'_, DriverState>,
    batch: &mut WakeList,
    events: usize,
) -> Detected {
    let retired =
        if driver.retired.is_empty() { Vec::new() } else { mem::take(&mut driver.retired) };
    drop(driver);
    retired.into_iter().for_each(discard);
    batch.wake_all();
    Detected::from_count(events)
}

#[cfg(test)]
mod tests;
