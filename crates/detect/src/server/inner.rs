//! One registered detector with its pending requests, history and decision, behind one lock: what a
//! [`Handle`](crate::Handle) points to and what the server polls.
//!
//! Lock order: driver, then one handle's core, then one slot. Wakers run, and requests and events are
//! dropped, with none of them held.

use std::{mem, time::Duration};

use super::{
    helper::{Helper, RETRY_AFTER},
    metrics::{Detection, HandleReport},
    registered::{BeforeSleep, Cause, Due, Registered},
    registration::Registration,
    shared::Shared,
    signals::Listening,
    watch_state::WatchState,
};
use crate::{
    budget,
    clock::{Instant, nanos},
    detector::{
        Armed, Arming, Batch, Cancel, Detector, Key, Methods, Mode, Pending, Round, Site, Submitted,
    },
    error::{RegisterError, WaitError, caught, discard, in_callback},
    policy::{
        Adaptive, Costs, Decision, Frequency, History, Policy, Situation, Stakes, Strategy,
        strategies,
    },
    request::{PendingSet, Slot, Trash},
    sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, lock, try_lock},
};

/// How often a poll is timed: once in so many rounds.
const POLLS_TIMED_ONE_IN: u64 = 16;

pub(crate) struct Inner<D: Detector> {
    core: Mutex<Core<D>>,
    watch: WatchState,
    methods: Methods,
    arming: Arming,
    shared: Arc<Shared>,
    /// What the detector is given.
    pub(crate) site: Site,
    pub(crate) name: &'static str,
    max_pending: usize,
    stream_capacity: usize,
    budget: usize,
    policy: Box<dyn Policy>,
    /// Blocking calls are begun only when nothing else is runnable; polls at switches see events
    /// meanwhile.
    blocks_when_idle: bool,
    /// There is no thread for blocking calls: the host polls. Written under the core's lock.
    lacks_helper: AtomicBool,
}

struct Core<D: Detector> {
    /// Gone once it may no longer be called: the server closed, or a callback panicked.
    detector: Option<D>,
    pending: PendingSet<D::Request, D::Event>,
    history: History,
    decision: Decision,
    stakes: Stakes,
    /// The last idle period in which the host polled for this handle in vain.
    missed_in: Option<Instant>,
    ended_by: Option<WaitError>,
    /// The last round found a waiter without room for an event.
    is_held_back: bool,
    /// The last round was full: when the rest is polled, if its deadlines have come. Tasks that this round has woken run
    /// meanwhile, and other events join them; a host without tasks does not wait for it.
    rest_at: Option<Instant>,
    /// How many rounds were full in a row.
    full_rounds: u32,
    /// Of a detector that can block.
    helper: Option<Helper>,
    /// On its signal, if it has one.
    listening: Option<Listening>,
    /// No user holds the handle any more; it goes once nothing is in flight.
    is_draining: bool,
}

/// What a detector of this crate is told before it gets the request, under the same lock.
pub(crate) type BeforeSubmit<D> = (fn(&mut D, Duration), Duration);

/// What came of a new request.
pub(crate) enum Submission<D: Detector> {
    Ready(D::Event),
    Pending(Key, Arc<Slot<D::Event>>),
}

impl<D: Detector> Inner<D> {
    pub(crate) fn new(
        detector: D,
        (methods, arming): (Methods, Arming),
        registration: Registration,
        policy: Box<dyn Policy>,
        (shared, site): (&Arc<Shared>, Site),
    ) -> Self {
        let history = History::default();
        let situation = shared.situation(site.now(), methods, &history, 0);
        let decision = decide(&*policy, &situation);
        let stakes = stakes(&*policy, &situation.costs);
        let blocks_when_idle = strategies(site.flavor(), methods).block_only_when_idle();
        let inner = Self {
            core: Mutex::new(Core {
                detector: Some(detector),
                pending: PendingSet::new(),
                history,
                decision,
                stakes,
                missed_in: None,
                ended_by: None,
                is_held_back: false,
                rest_at: None,
                full_rounds: 0,
                helper: None,
                listening: None,
                is_draining: false,
            }),
            watch: WatchState::new(),
            methods,
            arming,
            shared: Arc::clone(shared),
            site,
            name: registration.name,
            max_pending: registration.max_pending,
            stream_capacity: registration.stream_capacity,
            budget: registration.batch,
            policy,
            blocks_when_idle,
            lacks_helper: AtomicBool::new(false),
        };
        inner.publish(decision.strategy);
        inner
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Takes the lock that all requests of the handle share.
    fn lock_core(&self) -> MutexGuard<'_, Core<D>> {
        #[cfg(test)]
        lock_count::CORES.with(|count| count.set(count.get() + 1));
        lock(&self.core)
    }

    pub(crate) fn attach(&self, listening: Option<Listening>) -> Result<(), RegisterError> {
        let panicked = |error: WaitError| RegisterError::Panicked { message: error.to_string() };
        let mut guard = self.lock_core();
        let core = &mut *guard;
        core.listening = listening;
        let Some(detector) = core.detector.as_mut() else {
            return Err(RegisterError::ServerClosed);
        };
        let attached = caught("attach", || detector.attach(&self.site)).map_err(panicked)?;
        attached.map_err(RegisterError::Attach)?;
        if self.methods.contains(Methods::BLOCK) {
            let blocker = caught("block", || detector.block()).map_err(panicked)?;
            core.helper = Some(Helper::new(blocker.ok_or(RegisterError::NoBlocker)?, self.name));
        }
        Ok(())
    }

    /// Hands a new request to the detector: inline, on the waiter's thread, so that an event which is
    /// there already costs no hop to the host.
    pub(crate) fn submit(
        &self,
        request: D::Request,
        mode: Mode,
        before: Option<BeforeSubmit<D>>,
    ) -> Result<Submission<D>, WaitError> {
        if self.shared.is_inherited() {
            return Err(WaitError::ServerClosed);
        }
        self.submit_here(request, mode, before)
    }

    fn submit_here(
        &self,
        request: D::Request,
        mode: Mode,
        before: Option<BeforeSubmit<D>>,
    ) -> Result<Submission<D>, WaitError> {
        let mut guard = self.lock_core();
        let core = &mut *guard;
        let (Some(detector), None) = (core.detector.as_mut(), &core.ended_by) else {
            return Err(why_ended(core.ended_by.as_ref()));
        };
        // Those in cancellation count: a device that answers none must not collect them without end.
        if core.pending.len() + core.pending.cancelling_count() >= self.max_pending {
            return Err(WaitError::TooManyPending { limit: self.max_pending });
        }
        let was_idle = core.pending.len() + core.pending.cancelling_count() == 0;
        let key = core.pending.insert(request, mode);
        let slot = core.pending.slot(key);
        if let Some((tell, value)) = before {
            tell(detector, value);
        }
        let submitted = {
            let request = core.pending.request_mut(key).expect("invariant: just inserted");
            caught("submit", || detector.submit(key, request, mode))
        };
        let mut is_queued = false;
        match submitted {
            Ok(Submitted::Pending) => {}
            Ok(Submitted::Queued) => is_queued = true,
            Ok(Submitted::Ready(event)) if mode == Mode::Once && !budget::may_proceed() => {
                // The waiter gives way: it finds the event in its slot, where nobody waits yet.
                core.pending.end(key, event, &mut Vec::new());
                return Ok(Submission::Pending(key, slot));
            }
            Ok(Submitted::Ready(event)) if mode == Mode::Once => {
                let request = core.pending.release(key, |_| Some(Cancel::Released));
                drop(guard);
                drop(request);
                return Ok(Submission::Ready(event));
            }
            Ok(Submitted::Ready(event)) => {
                let mut nobody = Vec::new();
                let full = slot.push(event, self.stream_capacity, D::merge, &mut nobody);
                debug_assert!(full.is_ok() && nobody.is_empty(), "invariant: a new slot is empty");
                // The first event does not say that it is the only one.
                is_queued = true;
            }
            Ok(Submitted::Rejected(error)) => {
                let request = core.pending.release(key, |_| Some(Cancel::Released));
                drop(guard);
                drop(request);
                return Err(WaitError::Failed(error));
            }
            Err(panicked) => {
                core.pending.release(key, |_| None);
                return Err(panicked);
            }
        }
        let deadline = match core.due() {
            Ok(deadline) => deadline,
            Err(panicked) => {
                // This request has its error in its slot, like all others.
                let mut batch = Batch::default();
                self.give_up(core, &panicked, &mut batch);
                drop(guard);
                batch.wake_all();
                return Ok(Submission::Pending(key, slot));
            }
        };
        // A host that found the handle idle sleeps without it.
        let sleeps_without_it = if was_idle && self.watch.is_active.load(Ordering::Relaxed) {
            let known = core.pending.len() + core.pending.cancelling_count();
            self.shared().word.raise(&self.watch.known_count, known)
        } else {
            self.publish_known(core);
            false
        };
        self.keep_blocking(core, self.blocks_when_idle);
        drop(guard);
        self.tell_host(deadline, is_queued, sleeps_without_it);
        Ok(Submission::Pending(key, slot))
    }

    /// Tells the host of a new request, if it must know before its next look.
    fn tell_host(&self, deadline: Option<Due>, is_queued: bool, sleeps_without_it: bool) {
        if let Some(deadline) = deadline {
            self.publish_deadline(deadline);
        }
        if is_queued {
            self.shared.ring(self.site.address());
        } else if sleeps_without_it {
            self.shared().unpark();
        }
    }

    /// The waiter of `key` goes.
    pub(crate) fn release(&self, key: Key, slot: &Arc<Slot<D::Event>>) {
        if self.shared.is_inherited() {
            return;
        }
        let mut guard = self.lock_core();
        let core = &mut *guard;
        let detector = &mut core.detector;
        let request = core.pending.release(key, |request| match detector {
            Some(detector) => caught("cancel", || detector.cancel(key, request)).ok(),
            None => None,
        });
        let mut leftover = slot.reset();
        let mut was_claimed = false;
        // All of them are dropped outside the lock.
        let mut unwanted = Vec::new();
        let mut batch = Batch::default();
        for event in leftover.events.by_ref().rev() {
            let Some(detector) = &mut core.detector else {
                unwanted.push(event);
                continue;
            };
            match caught("unclaimed", || detector.unclaimed(event)) {
                Ok(given_back) => {
                    was_claimed |= given_back.is_none();
                    unwanted.extend(given_back);
                }
                Err(panicked) => {
                    self.give_up(core, &panicked, &mut batch);
                }
            }
        }
        self.publish_known(core);
        let in_flight = core.pending.cancelling_count() > 0;
        drop(guard);
        drop(request);
        drop(leftover);
        drop(unwanted);
        batch.wake_all();
        if in_flight || was_claimed {
            // A cancellation to submit and completions to collect, or an event for somebody else.
            self.shared.ring(self.site.address());
        }
    }

    /// The last user of the handle goes. Returns whether it may be removed at once.
    pub(crate) fn drain(&self) -> bool {
        if self.shared.is_inherited() {
            return false;
        }
        let mut core = self.lock_core();
        core.is_draining = true;
        core.pending.cancelling_count() == 0
    }

    pub(crate) fn history(&self) -> (History, Strategy) {
        let core = self.lock_core();
        (core.history, core.decision.strategy)
    }

    /// Returns why the handle takes no request any more.
    pub(crate) fn end(&self) -> WaitError {
        why_ended(self.lock_core().ended_by.as_ref())
    }

    pub(crate) fn pending_count(&self) -> usize {
        self.lock_core().pending.len()
    }

    /// Calls `f` with the detector, or returns `None` once it is gone, and in a forked child.
    pub(crate) fn with_detector<T>(&self, f: impl FnOnce(&mut D) -> T) -> Option<T> {
        if self.shared.is_inherited() {
            return None;
        }
        let mut core = self.lock_core();
        core.detector.as_mut().map(|detector| in_callback(|| f(detector)))
    }

    fn can_be_armed(&self) -> bool {
        self.methods.contains(Methods::NOTIFY) && self.arming == Arming::BeforeSleep
    }

    /// Returns whether the detector must be armed before a sleep.
    fn must_be_armed(&self, core: &Core<D>) -> bool {
        self.can_be_armed() && !core.decision.strategy.is_polling()
    }

    fn publish_known(&self, core: &Core<D>) {
        let known = core.pending.len() + core.pending.cancelling_count();
        self.watch.known_count.store(known, Ordering::Release);
    }

    fn publish(&self, strategy: Strategy) {
        let (nanos, switches) = match strategy.every() {
            Some(Frequency::Time(time)) => (nanos(time), 0),
            Some(Frequency::Switches(count)) => (u64::MAX, count.max(1) as usize),
            None if strategy != Strategy::Block => (u64::MAX, 0),
            None if self.lacks_helper.load(Ordering::Relaxed) => (nanos(RETRY_AFTER), 0),
            None if self.blocks_when_idle => (nanos(POLL_MEANWHILE), 0),
            None => (u64::MAX, 0),
        };
        let watch = &self.watch;
        let changed = watch.every_ns.swap(nanos, Ordering::Relaxed) != nanos
            || watch.every_switches.swap(switches, Ordering::Relaxed) != switches;
        let spin = self::nanos(strategy.spin());
        let changed = watch.spin_ns.swap(spin, Ordering::Relaxed) != spin || changed;
        let polls_meanwhile = strategy == Strategy::Block
            && (self.blocks_when_idle || self.lacks_helper.load(Ordering::Relaxed));
        let is_active = strategy.is_polling() || self.can_be_armed() || polls_meanwhile;
        if watch.is_active.swap(is_active, Ordering::Relaxed) != is_active || changed {
            self.shared().frequencies_changed();
        }
    }

    /// Sees to it that a call is under way if the strategy wants one: unless it `must_wait` for idleness,
    /// or there are events already that wait for room. Returns whether there is a thread for it.
    fn keep_blocking(&self, core: &mut Core<D>, must_wait: bool) -> bool {
        let known = core.pending.len() + core.pending.cancelling_count();
        let is_wanted = known > 0 && !must_wait && !core.is_held_back;
        if core.decision.strategy != Strategy::Block || !is_wanted {
            return true;
        }
        let Some(helper) = &mut core.helper else { return true };
        let has_thread = helper.want(&self.site, self.site.now());
        if self.lacks_helper.swap(!has_thread, Ordering::Relaxed) == has_thread {
            self.publish(Strategy::Block);
            // The host may sleep by what held before.
            self.shared.ring(self.site.address());
        }
        has_thread
    }

    fn publish_deadline(&self, deadline: Due) {
        if !self.watch.has_deadlines.load(Ordering::Relaxed) {
            self.watch.has_deadlines.store(true, Ordering::Release);
            self.shared().frequencies_changed();
        }
        self.shared().publish_deadline(deadline);
    }

    fn ask_policy(&self, core: &mut Core<D>, now: Instant) {
        let shared = self.shared();
        if core.history.spin_balance() > 0 && !core.stakes.spin.is_zero() {
            shared.load.refresh(now);
        }
        let situation = shared.situation(now, self.methods, &core.history, core.pending.len());
        core.stakes = stakes(&*self.policy, &situation.costs);
        let decision = decide(&*self.policy, &situation);
        if decision.strategy != core.decision.strategy {
            tracing::trace!(handle = self.name, strategy = %decision.strategy, "strategy changed");
            self.publish(decision.strategy);
        }
        core.decision = decision;
    }

    /// Takes note of an event that came while the host had nothing to run. Returns whether the policy
    /// must be asked at once: the balance of polling first has changed its sign.
    fn record_idle(&self, core: &mut Core<D>, now: Instant) -> bool {
        let shared = self.shared();
        let Some(since) = shared.idle.since() else { return false };
        if core.missed_in == Some(since) {
            // Settled when the host gave up polling.
            return false;
        }
        let found = shared.idle.found(shared.costs.costs().wake_delay);
        core.history.record_idle(now - since, found, &core.stakes)
    }

    /// Polls under the lock and brings all books up to date. Returns how many events were reported.
    fn poll_core(
        &self,
        core: &mut Core<D>,
        cause: Cause<'_>,
        now: Instant,
        batch: &mut Batch,
    ) -> usize {
        if let Some(failure) = core.helper.as_ref().and_then(Helper::take_failure) {
            return self.give_up(core, &failure, batch);
        }
        // Most detectors that are polled announce nothing until they are armed again.
        self.watch.is_armed.store(false, Ordering::Relaxed);
        let Some(detector) = core.detector.as_mut() else { return 0 };
        if mem::take(&mut core.pending.changed) && self.methods.contains(Methods::GROUP) {
            let pending = Pending::new(&core.pending);
            if let Err(panicked) = caught("group", || detector.group(&pending)) {
                return self.give_up(core, &panicked, batch);
            }
        }
        let is_cancelling = core.pending.cancelling_count() > 0;
        let mut round =
            Round::new(&mut core.pending, batch, now, self.budget, self.stream_capacity);
        let strategy = core.decision.strategy;
        let is_timed =
            strategy.is_polling() && core.history.rounds().is_multiple_of(POLLS_TIMED_ONE_IN);
        let timed_from = is_timed.then(|| self.site.now());
        let outcome = match cause {
            Cause::Notices(notices) => {
                caught("notified", || detector.notified(notices, &mut round))
            }
            // A check tests what is pending; only a poll completes what is being cancelled.
            Cause::Poll if matches!(strategy, Strategy::CheckEach { .. }) && !is_cancelling => {
                caught("check", || round.check_each(detector))
            }
            Cause::Poll => caught("poll", || detector.poll(&mut round)),
        };
        let (reported, more) = (round.reported(), round.wants_more());
        core.is_held_back = round.is_held_back();
        if let Err(panicked) = outcome {
            return reported + self.give_up(core, &panicked, batch);
        }
        if let Some(begin) = timed_from {
            core.history.record_poll_cost(self.site.now() - begin);
        }
        core.history.record(now, reported);
        let has_turned = reported > 0 && self.record_idle(core, now);
        let is_due = now >= core.decision.until;
        if is_due && reported > 0 && !has_turned && matches!(cause, Cause::Notices(_)) {
            // A task waits for this round: see `Driver::stale`.
            batch.is_stale = true;
        } else if is_due || has_turned {
            self.ask_policy(core, now);
        }
        if self.watch.is_active.load(Ordering::Relaxed) {
            let every = self.watch.every_ns.load(Ordering::Relaxed);
            let next = if every == u64::MAX { 0 } else { now.as_nanos().saturating_add(every) };
            self.watch.next_poll_ns.store(next, Ordering::Relaxed);
        }
        core.rest_at = None;
        let mut due = match core.due() {
            Ok(due) => due,
            Err(panicked) => return reported + self.give_up(core, &panicked, batch),
        };
        core.full_rounds = if more { core.full_rounds.saturating_add(1) } else { 0 };
        if more && due.is_some_and(|due| due.soft <= now) {
            let rest = if core.is_flooded() { REST_OF_FLOOD } else { REST_AFTER };
            core.rest_at = Some(now + rest);
            due = due.map(|due| core.after_rest(due));
        } else if more {
            self.shared.ring(self.site.address());
        }
        if let Some(due) = due {
            self.publish_deadline(due);
        }
        self.publish_known(core);
        self.keep_blocking(core, self.blocks_when_idle);
        reported
    }

    /// Ends every request and forgets the detector, after one of its callbacks panicked.
    fn give_up(&self, core: &mut Core<D>, error: &WaitError, batch: &mut Batch) -> usize {
        core.ended_by = Some(error.duplicate());
        core.listening = None;
        if let Some(helper) = core.helper.take() {
            helper.close();
        }
        // Neither the detector nor what its requests own may be freed: a device may still use both.
        mem::forget(core.detector.take());
        let known = core.pending.known();
        for &key in &known {
            core.pending.fail(key, error.duplicate(), true, &mut batch.wakers);
        }
        self.publish_known(core);
        known.len()
    }

    fn finish_round(&self, mut guard: MutexGuard<'_, Core<D>>) {
        let trash: Vec<Trash<D::Request, D::Event>> = mem::take(&mut guard.pending.trash);
        let is_over =
            guard.is_draining && guard.pending.cancelling_count() == 0 && guard.pending.len() == 0;
        drop(guard);
        discard_all(trash);
        if is_over {
            self.shared().deregister(self.site.address());
        }
    }
}

impl<D: Detector> Registered for Inner<D> {
    fn round(&self, cause: Cause<'_>, now: Instant, batch: &mut Batch) -> usize {
        let mut guard = self.lock_core();
        let reported = self.poll_core(&mut guard, cause, now, batch);
        self.finish_round(guard);
        reported
    }

    fn before_sleep(&self, now: Instant, batch: &mut Batch) -> BeforeSleep {
        let mut guard = self.lock_core();
        let core = &mut *guard;
        if core.pending.len() + core.pending.cancelling_count() == 0 {
            return BeforeSleep::Until(None);
        }
        let strategy = core.decision.strategy;
        if self.must_be_armed(core)
            && let Some(detector) = core.detector.as_mut()
        {
            let armed = match caught("arm", || detector.arm()) {
                Ok(Ok(armed)) => armed,
                Ok(Err(error)) => {
                    let ended = self.give_up(core, &WaitError::Failed(error), batch);
                    self.finish_round(guard);
                    return BeforeSleep::Events(ended);
                }
                Err(panicked) => {
                    let ended = self.give_up(core, &panicked, batch);
                    self.finish_round(guard);
                    return BeforeSleep::Events(ended);
                }
            };
            let mut reported = self.poll_core(core, Cause::Poll, now, batch);
            if armed == Armed::Ready {
                reported = reported.max(1);
            }
            self.watch.is_armed.store(reported == 0, Ordering::Relaxed);
            self.finish_round(guard);
            return if reported > 0 {
                BeforeSleep::Events(reported)
            } else {
                // The poll has published the detector's deadline.
                BeforeSleep::Until(None)
            };
        }
        let next_poll = self.watch.next_poll_ns.load(Ordering::Relaxed);
        if strategy.is_polling() && now.as_nanos() < next_poll {
            // Polled by the look before; nothing that was missed then would be announced now.
            return BeforeSleep::Until(Some(Instant::from_nanos(next_poll)));
        }
        let reported = self.poll_core(core, Cause::Poll, now, batch);
        let has_helper = self.keep_blocking(core, reported > 0);
        let next = match core.decision.strategy.every() {
            _ if !has_helper => Some(now + RETRY_AFTER),
            _ if !core.decision.strategy.is_polling() => None,
            Some(Frequency::Time(every)) => Some(now + every),
            Some(Frequency::Switches(_)) | None => Some(now),
        };
        self.finish_round(guard);
        if reported > 0 { BeforeSleep::Events(reported) } else { BeforeSleep::Until(next) }
    }

    fn watch_for_others(&self, now: Instant, batch: &mut Batch) -> (usize, Option<Instant>) {
        let watch = &self.watch;
        // Whatever comes is announced to those who sleep; a poll might end that.
        if watch.is_armed.load(Ordering::Relaxed) {
            return (0, None);
        }
        if !self.must_be_armed(&self.lock_core()) {
            let is_due = now.as_nanos() >= watch.next_poll_ns.load(Ordering::Relaxed);
            let reported = if is_due { self.round(Cause::Poll, now, batch) } else { 0 };
            let next_poll = watch.next_poll_ns.load(Ordering::Relaxed);
            return (reported, Some(Instant::from_nanos(next_poll)));
        }
        let mut reported = 0;
        for _ in 0..ARM_TRIES_MAX {
            match self.before_sleep(now, batch) {
                BeforeSleep::Events(count) => reported += count,
                BeforeSleep::Until(next) => return (reported, next),
            }
        }
        // It has more and more to report: one that sleeps goes on.
        self.shared.ring(self.site.address());
        (reported, None)
    }

    fn poll_deadline(&self, now: Instant, batch: &mut Batch) -> (usize, Option<Due>) {
        let mut guard = self.lock_core();
        // A poll meets a panic again, and ends what is pending.
        let next = |core: &Core<D>| core.due().unwrap_or(Some(Due { soft: now, hard: now }));
        let Some(due) = next(&guard).filter(|_| is_known(&guard)) else { return (0, None) };
        if due.soft > now {
            return (0, Some(due));
        }
        let reported = self.poll_core(&mut guard, Cause::Poll, now, batch);
        let due = next(&guard);
        self.finish_round(guard);
        // A detector that leaves its deadline in the past is polled at each look.
        (reported, due)
    }

    fn wakeup(&self) -> Option<Instant> {
        let core = self.lock_core();
        let detector = core.detector.as_ref()?;
        let wakeup = caught("wakeup", || detector.wakeup()).unwrap_or(Some(Instant::from_nanos(0)));
        wakeup.max(wakeup.and(core.rest_at).filter(|_| core.is_flooded()))
    }

    fn reconsider(&self, now: Instant) {
        let mut core = self.lock_core();
        if now >= core.decision.until {
            self.ask_policy(&mut core, now);
        }
    }

    fn spin_missed(&self, now: Instant) {
        let mut guard = self.lock_core();
        let core = &mut *guard;
        core.missed_in = self.shared().idle.since();
        if core.history.record_spin_miss(&core.stakes) || now >= core.decision.until {
            self.ask_policy(core, now);
        }
    }

    fn close(&self, batch: &mut Batch) {
        let mut guard = self.lock_core();
        let core = &mut *guard;
        if core.ended_by.is_none() {
            core.ended_by = Some(WaitError::ServerClosed);
        }
        core.listening = None;
        if let Some(helper) = core.helper.take() {
            helper.close();
        }
        let Some(mut detector) = core.detector.take() else { return };
        let mut in_flight = Vec::new();
        for key in core.pending.known() {
            if core.pending.is_cancelling(key) {
                // It was told once; a second answer might take the memory for free.
                in_flight.push(key);
                continue;
            }
            let Some(request) = core.pending.request_mut(key) else { continue };
            match caught("cancel", || detector.cancel(key, request)) {
                Ok(Cancel::Released) => {
                    core.pending.fail(key, WaitError::ServerClosed, false, &mut batch.wakers);
                }
                Ok(Cancel::InFlight) => {
                    // What its completion brings, a buffer, is still delivered; but the end of a
                    // stream must not look like that of its peer.
                    core.pending.doom(key, WaitError::ServerClosed, &mut batch.wakers);
                    in_flight.push(key);
                }
                Err(_) => {
                    core.pending.fail(key, WaitError::ServerClosed, true, &mut batch.wakers);
                }
            }
        }
        let is_clean = self.collect(core, &mut detector, &mut in_flight, batch);
        for key in in_flight {
            core.pending.fail(key, WaitError::ServerClosed, true, &mut batch.wakers);
        }
        self.publish_known(core);
        let trash = mem::take(&mut core.pending.trash);
        drop(guard);
        discard_all(trash);
        if is_clean {
            let _ = caught("drop", || drop(detector));
        } else {
            tracing::warn!(handle = self.name, "requests were in flight at shutdown: leaked");
            mem::forget(detector);
        }
    }

    fn watch_state(&self) -> &WatchState {
        &self.watch
    }

    fn report(&self) -> HandleReport {
        let pending = self.watch.known_count.load(Ordering::Relaxed);
        // Bounded: whoever asks must not hang with a detector that hangs in a callback.
        let core = (0..REPORT_TRIES).find_map(|_| {
            let core = try_lock(&self.core);
            if core.is_none() {
                crate::sync::thread::yield_now();
            }
            core
        });
        let detection = core.map(|core| Detection {
            strategy: core.decision.strategy,
            rounds: core.history.rounds(),
            hits: core.history.hits(),
            events: core.history.events(),
        });
        HandleReport { name: self.name, pending, detection }
    }
}

/// How often a host arms a detector for another one that sleeps, before it wakes that one.
const ARM_TRIES_MAX: u32 = 3;

/// How often a report tries to get at a handle, giving the processor away in between.
const REPORT_TRIES: u32 = 100;

/// Drops requests and events one by one, since each may panic.
fn discard_all<R, E>(trash: Vec<(R, E)>) {
    for (request, event) in trash {
        discard(request);
        discard(event);
    }
}

/// How long a closing server waits for completions of what a device may still write to.
const COLLECT_MAX: Duration = Duration::from_millis(100);

impl<D: Detector> Inner<D> {
    /// Polls until nothing is in flight any more, for a bounded time. Returns whether that was so.
    fn collect(
        &self,
        core: &mut Core<D>,
        detector: &mut D,
        in_flight: &mut Vec<Key>,
        batch: &mut Batch,
    ) -> bool {
        // A virtual clock stands still here, hence the bound in rounds as well.
        let deadline = self.site.now() + COLLECT_MAX;
        if !in_flight.is_empty()
            && mem::take(&mut core.pending.changed)
            && self.methods.contains(Methods::GROUP)
        {
            let pending = Pending::new(&core.pending);
            if caught("group", || detector.group(&pending)).is_err() {
                return false;
            }
        }
        for _ in 0..COLLECT_ROUNDS_MAX {
            if in_flight.is_empty() {
                return true;
            }
            let now = self.site.now();
            let mut round = Round::new(&mut core.pending, batch, now, usize::MAX, usize::MAX);
            if caught("poll", || detector.poll(&mut round)).is_err() {
                return false;
            }
            in_flight.retain(|&key| core.pending.request_mut(key).is_some());
            if now >= deadline {
                break;
            }
            crate::sync::thread::yield_now();
        }
        in_flight.is_empty()
    }
}

const COLLECT_ROUNDS_MAX: u32 = 1_000_000;

/// How often a handle is polled at switches while its blocking call waits for idleness.
const POLL_MEANWHILE: Duration = Duration::from_micros(50);

/// How long tasks run before the rest of a full round is polled, if it is of deadlines that have come: as long as between two
/// looks by default.
pub(crate) const REST_AFTER: Duration = Duration::from_micros(50);

/// After so many full rounds in a row, nobody polls the rest sooner than after this time: whoever asks for more deadlines than the
/// machine can see to gets as many as leave it time for something else. So two thousand timers of 0.1 ms end each 3 ms, and use half
/// of a core.
pub(crate) const BURST_ROUNDS: u32 = 32;
pub(crate) const REST_OF_FLOOD: Duration = Duration::from_micros(100);

impl<D: Detector> Core<D> {
    /// Returns from when on, and until when, a deadline wants a poll.
    fn due(&self) -> Result<Option<Due>, WaitError> {
        let Some(detector) = &self.detector else { return Ok(None) };
        let due = caught("next_deadline", || {
            let soft = detector.next_deadline()?;
            Some(Due { soft, hard: detector.hard_deadline().unwrap_or(soft) })
        })?;
        Ok(due.map(|due| self.after_rest(due)))
    }

    fn after_rest(&self, Due { soft, hard }: Due) -> Due {
        let rest_at = self.rest_at.unwrap_or(Instant::from_nanos(0));
        Due {
            soft: if self.is_flooded() { soft.max(rest_at) } else { soft },
            hard: hard.max(rest_at),
        }
    }

    /// Deadlines come faster than they can be seen to, for longer than in a burst.
    fn is_flooded(&self) -> bool {
        self.full_rounds > BURST_ROUNDS
    }
}

/// Returns whether a request is pending, or in cancellation.
fn is_known<D: Detector>(core: &Core<D>) -> bool {
    core.pending.len() + core.pending.cancelling_count() > 0
}

/// Asks the policy, and the default one if its answer does not fit the methods, or if it panics.
fn decide(policy: &dyn Policy, situation: &Situation<'_>) -> Decision {
    match caught("decide", || policy.decide(situation)) {
        Ok(decision)
            if strategies(situation.flavor, situation.methods).allow(decision.strategy) =>
        {
            return decision;
        }
        Ok(Decision { strategy, .. }) => {
            tracing::warn!(%strategy, "the policy chose what the detector lacks");
        }
        Err(_) => {}
    }
    Adaptive::default().decide(situation)
}

/// Asks the policy what is at stake, and the default one if it panics.
fn stakes(policy: &dyn Policy, costs: &Costs) -> Stakes {
    caught("stakes", || policy.stakes(costs)).unwrap_or_else(|_| Adaptive::default().stakes(costs))
}
/// Returns why a handle takes no request any more.
fn why_ended(ended_by: Option<&WaitError>) -> WaitError {
    ended_by.map_or(WaitError::ServerClosed, WaitError::duplicate)
}

/// How often the present thread has taken a lock that all requests of a handle share: for tests which show that a wait
/// does without.
#[cfg(test)]
pub(crate) mod lock_count {
    use std::cell::Cell;

    crate::sync::thread_local! {
        pub(super) static CORES: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn cores() -> u64 {
        CORES.with(Cell::get)
    }
}
