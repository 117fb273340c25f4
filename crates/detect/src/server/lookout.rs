//! The host's side of a server: looking at switches, sleeping when there is nothing to run.

use std::{fmt, mem, time::Duration};

use super::{
    awake_host,
    park::{Park, Parked},
    registered::{BeforeSleep, Cause, Registered},
    shared::{Row, Shared},
    wait_point::{Address, Routed, Timeout, WaitPoint},
};
use crate::{
    budget,
    clock::Instant,
    detector::Notice,
    error::discard,
    pending::Batch,
    sync::{Arc, AtomicU64, MutexGuard, Ordering, lock, try_lock},
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

/// What the thread that turns the server works with.
pub(crate) struct Driver {
    wait_point: WaitPoint,
    version: usize,
    rows: Vec<Row>,
    /// Handles that left the table, dropped after the lock is released.
    retired: Vec<Row>,
    routed: Vec<Routed>,
    notices: Vec<Notice>,
    rung: Vec<Address>,
    /// The rows that the server must poll by itself, and those that have had a deadline.
    active: Vec<u32>,
    with_deadlines: Vec<u32>,
    /// When a host last made ready for a sleep.
    prepared_at: Instant,
    /// Another host may join the one that sleeps.
    is_shared: bool,
    /// Until when those who sleep want to, in nanoseconds.
    sleepers_until: u64,
    /// The last look has taken a ring.
    was_rung: bool,
    /// Handles of which the policy must be asked before the next look or sleep, and the time of the look
    /// that found them.
    stale: Vec<Address>,
    stale_at: Instant,
    /// How long to poll before a sleep.
    spin: Duration,
}

enum Spun {
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

enum Prepared {
    Events(usize),
    Sleep(Timeout),
}

/// How often a host that wants to sleep tries again while another one only looks.
const TRIES_MAX: u32 = 1_000;

impl Shared {
    /// The driver's lock, for a host that wants to sleep where at most `sleepers_max` do. One that only looks holds it for a
    /// few microseconds, and is waited for: to sleep elsewhere because of it would leave the wait point empty.
    fn driver_to_sleep(&self, sleepers_max: u32) -> Option<MutexGuard<'_, Driver>> {
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
    fn look(&self, driver: &mut Driver, batch: &mut Batch) -> usize {
        self.refresh(driver);
        driver.routed.clear();
        self.wait(false, &mut driver.routed);
        self.take_in(driver, batch, self.now())
    }

    fn wait(&self, may_sleep: bool, routed: &mut Vec<Routed>) {
        if let Err(error) = self.gate().wait(may_sleep, routed) {
            tracing::error!(%error, "the wait point failed");
        }
    }

    /// Takes in what was announced until `now`, and what is due.
    fn take_in(&self, driver: &mut Driver, batch: &mut Batch, now: Instant) -> usize {
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
    fn judge_sharing(&self, began: Instant, now: Instant) {
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
    fn arm(&self, driver: &mut Driver, timeout: Timeout) {
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
    fn watch_for_others(&self, driver: &mut Driver, batch: &mut Batch, now: Instant) -> usize {
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
    fn refresh(&self, driver: &mut Driver) -> bool {
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
        self.signals.collect(&mut addresses);
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
    fn spin(&self, driver: &mut Driver, batch: &mut Batch) -> Spun {
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
    fn prepare(&self, driver: &mut Driver, batch: &mut Batch, until: Option<Instant>) -> Prepared {
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

    fn find(&self, address: Address) -> Option<&Arc<dyn Registered>> {
        let row = self.rows.get(address.index as usize)?;
        if row.generation == address.generation { row.handle.as_ref() } else { None }
    }

    /// The handles that the server must poll by itself and that have requests.
    fn active(&self) -> impl Iterator<Item = &Arc<dyn Registered>> {
        let rows = self.active.iter().filter_map(|&index| self.rows.get(index as usize));
        rows.filter_map(|row| row.handle.as_ref())
            // SeqCst: see `ParkWord::begin_park`.
            .filter(|handle| handle.watch_state().known_count.load(Ordering::SeqCst) > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task};

    use super::*;
    use crate::{Flavor, Server, VirtualClock};

    /// Goal: what is over ends no sleep, and what is left does. Method: in virtual time, a host with two timers makes
    /// ready for a sleep, after the earlier one was given up, and then the other one too.
    #[test]
    fn a_deadline_that_is_over_ends_no_sleep() {
        let server = Server::new_virtual(Flavor::UserLevel, Arc::new(VirtualClock::new()))
            .expect("a virtual server");
        let (mut lookout, timers) = (server.lookout(), server.timers());
        let at = |millis| Instant::from_nanos(0) + Duration::from_millis(millis);
        let mut cx = task::Context::from_waker(task::Waker::noop());
        let mut sleep = || {
            // The first one of all may be ended by handles that are new.
            let _ = lookout.detect();
            lookout.prepare().expect("nothing has come")
        };
        {
            let mut late = pin!(timers.wait(at(9)));
            assert!(late.as_mut().poll(&mut cx).is_pending());
            {
                let mut early = pin!(timers.wait(at(2)));
                assert!(early.as_mut().poll(&mut cx).is_pending());
                assert_eq!(sleep(), Some(at(2)));
            }
            assert_eq!(sleep(), Some(at(9)));
            let mut again = pin!(timers.wait(at(5)));
            assert!(again.as_mut().poll(&mut cx).is_pending());
            assert_eq!(sleep(), Some(at(5)), "it is lowered again");
        }
        assert_eq!(sleep(), None);
    }
}
