//! The host's side of a server: looking at switches, sleeping when there is nothing to run.

use std::{fmt, mem};

use super::{
    awake_host,
    driver::Driver,
    park::Parked,
    rounds::{Prepared, Spun, TRIES_MAX},
    shared::Shared,
    wait_point::Routed,
};
use crate::{
    budget,
    clock::{Instant, Timeout},
    detector::Batch,
    error::discard,
    sync::{Arc, MutexGuard, Ordering, lock, try_lock},
};

/// The host's side of a server: detection at switches, and sleep. One for each thread that hosts.
pub struct Lookout {
    shared: Arc<Shared>,
    batch: Batch,
    switches: usize,
    is_watcher: bool,
    /// The most hosts that sleep in the wait point, this one included.
    sleepers_max: u32,
    /// Hosts were allowed to share the wait point when this one was asked last.
    was_allowed: bool,
    /// What was announced at the end of a sleep.
    routed: Vec<Routed>,
}

/// The most hosts that sleep in the wait point. While one handles an event, the other one waits for the next: more would not
/// be needed sooner than they can be called.
const SLEEPERS_MAX: u32 = 2;

impl Lookout {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            batch: Batch::default(),
            switches: 0,
            is_watcher: false,
            sleepers_max: 1,
            was_allowed: true,
            routed: Vec::new(),
        }
    }

    /// Returns whether the host should [`detect`](Self::detect) at this switch: three loads.
    #[inline]
    pub fn is_due(&mut self, now: Instant) -> bool {
        let shared = &*self.shared;
        let nanos = now.as_nanos();
        if shared.word.is_rung()
            || nanos >= shared.next_deadline.load(Ordering::Relaxed)
            || nanos >= shared.next_look.load(Ordering::Relaxed)
        {
            return true;
        }
        let every = shared.look_switches.load(Ordering::Relaxed);
        if every == 0 {
            return false;
        }
        self.switches += 1;
        self.switches >= every
    }

    /// Looks for events without sleeping and wakes the tasks that waited for them.
    ///
    /// # Cost
    /// One `epoll_wait`, one lock for each handle that is polled. No allocation.
    pub fn detect(&mut self) -> Detected {
        self.switches = 0;
        self.note_host();
        let now = self.shared.now();
        if !self.is_watcher {
            self.shared.note_look(now);
        }
        self.note_interval();
        // Whoever sleeps there sees what comes, and would wake up in vain if it were taken here. None falls asleep under the lock.
        let is_left_to_others = || self.shared.word.is_parked();
        let driver = if is_left_to_others() { None } else { try_lock(&self.shared.driver) };
        let Some(mut driver) = driver.filter(|_| !is_left_to_others()) else {
            let detected = self.settle(now, false);
            // No need to try again at every switch.
            self.shared.schedule_look(now);
            return detected;
        };
        let events = self.shared.look(&mut driver, &mut self.batch);
        // The look that follows `prepare` ends a sleep in virtual time.
        self.shared.idle.end();
        finish(driver, &mut self.batch, events)
    }

    /// Sleeps until an event is delivered, [`Server::unpark`](crate::Server::unpark) is called or `until` has passed. Polls
    /// for a while first where the policies want that. May return early.
    pub fn park(&mut self, until: Option<Instant>) -> Detected {
        self.park_unless(until, || false)
    }

    /// Like [`park`](Self::park), but does not sleep if `is_awaited` says that somebody wants this
    /// host awake. It is asked after the host has announced its sleep: whoever makes it true and then
    /// calls [`Server::unpark`](crate::Server::unpark) is heard, even if another host that looks has taken that
    /// call for its own.
    ///
    /// Where hosts [share](Self::sharing) the wait point, `unpark` wakes either of them: one that is back from here must see whether
    /// another one that sleeps here is awaited, and do what that one was called for, or call `unpark` again.
    pub fn park_unless(
        &mut self,
        until: Option<Instant>,
        is_awaited: impl FnOnce() -> bool,
    ) -> Detected {
        let shared = &*self.shared;
        let Some(mut driver) = shared.driver_to_sleep(self.sleepers_max) else {
            return self.settle(shared.now(), true);
        };
        // Polling would take from another host what the kernel has woken it for.
        let is_only_one = !shared.word.is_parked();
        if is_only_one {
            driver.is_shared = self.sleepers_max > 1;
            driver.sleepers_until = u64::MAX;
        }
        let spun = if self.is_watcher || !is_only_one {
            Spun::Nothing
        } else {
            shared.spin(&mut driver, &mut self.batch)
        };
        let events = match spun {
            Spun::Events(count) => count,
            Spun::Rung => 0,
            Spun::Nothing => {
                let prepared = shared.prepare(&mut driver, &mut self.batch, until);
                let parked = Parked(&shared.word);
                match prepared {
                    Prepared::Events(count) => count,
                    Prepared::Sleep(_) if is_awaited() => 0,
                    Prepared::Sleep(Timeout::Zero) => {
                        shared.metrics.count_sleep();
                        // Rung for: whatever is found was there already.
                        shared.idle.end();
                        drop(parked);
                        shared.look(&mut driver, &mut self.batch)
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

                        // Before anything is delivered: a detector that tells its next deadline would ring for
                        // the host that asks it, which is awake.
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

    /// Lets this host sleep in the wait point beside another one, while that pays. The kernel wakes one of them for each event, and
    /// while that one runs tasks, the other one [watches](Self::is_watched) without anybody having called it.
    #[must_use]
    pub fn sharing(mut self) -> Self {
        self.sleepers_max = SLEEPERS_MAX;
        self
    }

    /// Makes this the lookout of a host that watches while others run the tasks: it never polls before
    /// it sleeps, whatever the policies want, since others have use for the processor; and its looks
    /// do not count as theirs (see [`last_gap`](Self::last_gap)).
    #[must_use]
    pub fn for_watcher(mut self) -> Self {
        self.is_watcher = true;
        self
    }

    /// Returns whether a host that sleeps elsewhere should be woken, to sleep in the wait point beside this one, which is about to
    /// sleep at `now`: the time is over in which that did not pay.
    #[must_use]
    pub fn wants_company(&mut self, now: Instant) -> bool {
        let is_due = self.shared.may_share(now);
        let was_due = mem::replace(&mut self.was_allowed, is_due);
        self.sleepers_max > 1 && is_due && !was_due && !self.shared.word.is_parked()
    }

    /// Returns whether some host sleeps at the wait point, or is about to: then whatever is announced wakes it, and the next
    /// deadline does. Detectors that must be polled are, too.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.shared.is_covered()
    }

    /// Tells that this host runs tasks again after a sleep: that it did not look meanwhile is no
    /// [gap](Self::last_gap).
    pub fn resume(&self, now: Instant) {
        self.shared.last_look.store(now.as_nanos(), Ordering::Relaxed);
        self.note_interval();
    }

    /// Others sleep in the wait point, and this host does not look: it polls what must be polled, and sees to it that those who sleep are
    /// told of the next event and of the deadlines that were left to this host, at the latest before it `sleeps` elsewhere.
    fn settle(&mut self, now: Instant, sleeps: bool) -> Detected {
        let shared = &*self.shared;
        let (must_poll, owes) = (shared.must_poll(), awake_host::take_debt());
        if !must_poll && !owes && !shared.is_deadline_lost(now) {
            return Detected::Busy;
        }
        if !must_poll {
            // It costs as much as a wake-up in vain, and ends in one if this host is about to look.
            shared.sharing.note_wasted(now);
        }
        for _ in 0..if sleeps { TRIES_MAX } else { 1 } {
            let Some(mut driver) = try_lock(&shared.driver) else {
                std::hint::spin_loop();
                continue;
            };
            if !shared.word.is_parked() {
                // Who slept there is awake, and does all that before it sleeps again.
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
        } else if owes {
            // At the next look.
            awake_host::owe();
        }
        Detected::Busy
    }

    /// Only a host that shares leaves its deadlines to its next look: it stays on its thread, and looks or sleeps between any two polls.
    fn note_host(&self) {
        if self.sleepers_max > 1 {
            self.shared.note_host();
        }
    }

    /// The budgets of this host's polls are as long as the interval between its looks.
    #[inline]
    fn note_interval(&self) {
        budget::note_look_interval(self.shared.look_every_ns.load(Ordering::Relaxed));
    }

    /// Returns when a host last looked between two polls, or tried to while another one watched.
    /// [`Instant`] zero if none ever did.
    #[must_use]
    pub fn last_look(&self) -> Instant {
        Instant::from_nanos(self.shared.last_look.load(Ordering::Relaxed))
    }

    /// Returns when a look last came more than half an interval late although the host was awake: the
    /// tasks that it runs do not let it look as often as the policies want.
    #[must_use]
    pub fn last_gap(&self) -> Instant {
        Instant::from_nanos(self.shared.last_gap.load(Ordering::Relaxed))
    }

    /// Returns the earliest deadline that a detector has told: when a look is due at the latest. It may be of something that is over
    /// meanwhile.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let nanos = self.shared.next_deadline.load(Ordering::Relaxed);
        (nanos < u64::MAX).then(|| Instant::from_nanos(nanos))
    }

    /// Does everything that [`park`](Self::park) does before it sleeps, for a host that moves the
    /// clock instead.
    pub(crate) fn prepare(&mut self) -> Result<Option<Instant>, Detected> {
        let Some(mut driver) = try_lock(&self.shared.driver) else { return Err(Detected::Busy) };
        let shared = Arc::clone(&self.shared);
        let prepared = shared.prepare(&mut driver, &mut self.batch, None);
        shared.word.end_park();
        match prepared {
            Prepared::Events(count) => Err(finish(driver, &mut self.batch, count)),
            Prepared::Sleep(timeout) => {
                if timeout != Timeout::Zero {
                    // In virtual time, nobody is late: what is found was found awake.
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

impl Drop for Lookout {
    /// The thread looks no more. A server that closed while this host turned it could not take its handles from the driver,
    /// which would keep each other alive for ever.
    fn drop(&mut self) {
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

impl fmt::Debug for Lookout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookout").finish_non_exhaustive()
    }
}

/// What a host's look or sleep brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detected {
    /// Nothing happened.
    Nothing,
    /// So many events were delivered and their tasks woken.
    Events(usize),
    /// Another thread is turning the server at this moment.
    Busy,
}

impl Detected {
    fn from_count(count: usize) -> Self {
        if count == 0 { Self::Nothing } else { Self::Events(count) }
    }
}

/// Releases the lock, then wakes: what a waker runs may use the server.
fn finish(mut driver: MutexGuard<'_, Driver>, batch: &mut Batch, events: usize) -> Detected {
    let retired =
        if driver.retired.is_empty() { Vec::new() } else { mem::take(&mut driver.retired) };
    drop(driver);
    retired.into_iter().for_each(discard);
    batch.wake_all();
    Detected::from_count(events)
}

#[cfg(test)]
mod tests;
