//! One registered detector with its pending requests, history and decision, behind one lock: the
//! target of a [`Handle`](crate::Handle), and the object that the server polls.
//!
//! Lock order: driver, then one handle's core, then one slot. Wakers run, and requests and events are dropped, with none of them held.

use std::{mem, time::Duration};

use super::{
    false_ready::FalseReady,
    helper::{Helper, RETRY_AFTER},
    metrics::HandleReport,
    registered::{BeforeSleep, Due, PollCause, Registered},
    registration::Registration,
    shared::ServerShared,
    signals::SignalRegistration,
    waits::WaitReport,
    watch_state::WatchState,
};
use crate::{
    budget,
    clock::{Instant, nanos},
    detector::{
        ArmOutcome, Arming, CancelOutcome, Detector, DriverHandle, Key, Methods, Mode, Pending,
        PollContext, SubmitOutcome, WakeList,
    },
    error::{RegisterError, WaitError, caught, discard, in_callback},
    policy::{
        Adaptive, Costs, Decision, Frequency, History, Policy, Situation, SpinCosts, Strategy,
        strategies,
    },
    request::{EventSlot, PendingSet, Trash},
    sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, lock},
};

/// One in this many polls is timed.
const POLLS_TIMED_ONE_IN: u64 = 16;

pub(crate) struct HandleInner<D: Detector> {
    pub(super) core: Mutex<HandleCore<D>>,
    pub(super) watch: WatchState,
    methods: Methods,
    arming: Arming,
    shared: Arc<ServerShared>,
    /// The detector's connection to the server.
    pub(crate) driver: DriverHandle,
    pub(crate) name: &'static str,
    max_pending: usize,
    stream_capacity: usize,
    budget: usize,
    policy: Box<dyn Policy>,
    /// Blocking calls start only when nothing else is runnable; until then polls at switches see events.
    blocks_when_idle: bool,
    /// There is no thread for blocking calls: the host polls. Written under the core's lock.
    lacks_helper: AtomicBool,
}

pub(super) struct HandleCore<D: Detector> {
    /// `None` once it may no longer be called: the server closed, or a callback panicked.
    pub(super) detector: Option<D>,
    pub(super) pending: PendingSet<D::Request, D::Event>,
    pub(super) history: History,
    pub(super) decision: Decision,
    spin_costs: SpinCosts,
    /// The last idle period in which the host polled for this handle and found nothing.
    missed_in: Option<Instant>,
    ended_by: Option<WaitError>,
    /// The last poll found a waiter without room for an event.
    is_held_back: bool,
    /// Set if the last poll was full: when to poll the rest, if their deadlines have come. Meanwhile the tasks woken
    /// by this poll run, and other events join them; a host without tasks does not wait for this time.
    rest_at: Option<Instant>,
    /// The number of full polls in a row.
    full_polls: u32,
    false_ready: FalseReady,
    /// Only for a detector that can block.
    helper: Option<Helper>,
    /// Only for a detector with a signal.
    signal_registration: Option<SignalRegistration>,
    /// The handle has no users left; it is removed once nothing is in flight.
    is_draining: bool,
}

/// A call that a detector of this crate receives before the request, under the same lock.
pub(crate) type BeforeSubmit<D> = (fn(&mut D, Duration), Duration);

/// The outcome of a new request.
pub(crate) enum Submission<D: Detector> {
    Ready(D::Event),
    Pending(Key, Arc<EventSlot<D::Event>>),
}

impl<D: Detector> HandleInner<D> {
    pub(crate) fn new(
        detector: D,
        (methods, arming): (Methods, Arming),
        registration: Registration,
        policy: Box<dyn Policy>,
        (shared, driver): (&Arc<ServerShared>, DriverHandle),
    ) -> Self {
        let history = History::default();
        let situation = shared.situation(driver.now(), methods, &history, 0);
        let decision = decide(&*policy, &situation);
        let spin_costs = spin_costs(&*policy, &situation.costs);
        let blocks_when_idle = strategies(driver.flavor(), methods).block_only_when_idle();
        let inner = Self {
            core: Mutex::new(HandleCore {
                detector: Some(detector),
                pending: PendingSet::new(),
                history,
                decision,
                spin_costs,
                missed_in: None,
                ended_by: None,
                is_held_back: false,
                rest_at: None,
                full_polls: 0,
                false_ready: FalseReady::default(),
                helper: None,
                signal_registration: None,
                is_draining: false,
            }),
            watch: WatchState::new(),
            methods,
            arming,
            shared: Arc::clone(shared),
            driver,
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

    pub(crate) fn shared(&self) -> &ServerShared {
        &self.shared
    }

    /// Takes the lock that all requests of the handle share.
    fn lock_core(&self) -> MutexGuard<'_, HandleCore<D>> {
        #[cfg(test)]
        lock_count::CORES.with(|count| count.set(count.get() + 1));
        lock(&self.core)
    }

    pub(crate) fn attach(
        &self,
        signal_registration: Option<SignalRegistration>,
    ) -> Result<(), RegisterError> {
        let panicked = |error: WaitError| RegisterError::Panicked { message: error.to_string() };
        let mut guard = self.lock_core();
        let core = &mut *guard;
        core.signal_registration = signal_registration;
        let Some(detector) = core.detector.as_mut() else {
            return Err(RegisterError::ServerClosed);
        };
        let attached = caught("attach", || detector.attach(&self.driver)).map_err(panicked)?;
        attached.map_err(RegisterError::Attach)?;
        if self.methods.contains(Methods::BLOCK) {
            let blocker = caught("blocker", || detector.blocker()).map_err(panicked)?;
            core.helper = Some(Helper::new(blocker.ok_or(RegisterError::NoBlocker)?, self.name));
        }
        Ok(())
    }

    /// Passes a new request to the detector inline, on the waiter's thread, so that an event that is
    /// already there needs no hop to the host.
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
        // Requests being cancelled count: with a device that answers none, they must not pile up without bound.
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
            Ok(SubmitOutcome::Pending) => {}
            Ok(SubmitOutcome::Queued) => is_queued = true,
            Ok(SubmitOutcome::Ready(event)) if mode == Mode::Once && !budget::may_proceed() => {
                // The waiter must yield: it finds the event in its slot, which has no waiter yet.
                core.pending.end(key, event, &mut Vec::new());
                return Ok(Submission::Pending(key, slot));
            }
            Ok(SubmitOutcome::Ready(event)) if mode == Mode::Once => {
                let request = core.pending.release(key, |_| Some(CancelOutcome::Released));
                drop(guard);
                drop(request);
                return Ok(Submission::Ready(event));
            }
            Ok(SubmitOutcome::Ready(event)) => {
                let mut nobody = Vec::new();
                let full = slot.push(event, self.stream_capacity, D::merge, &mut nobody);
                debug_assert!(full.is_ok() && nobody.is_empty(), "invariant: a new slot is empty");
                // There may be more than this first event.
                is_queued = true;
            }
            Ok(SubmitOutcome::Rejected(error)) => {
                let request = core.pending.release(key, |_| Some(CancelOutcome::Released));
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
                // Like all others, this request finds its error in its slot.
                let mut batch = WakeList::default();
                self.give_up(core, &panicked, &mut batch);
                drop(guard);
                batch.wake_all();
                return Ok(Submission::Pending(key, slot));
            }
        };
        // A host that found the handle idle sleeps without it.
        let sleeps_without_it = if was_idle && self.watch.is_active.load(Ordering::Relaxed) {
            let known = core.pending.len() + core.pending.cancelling_count();
            self.shared().park_state.raise(&self.watch.known_count, known)
        } else {
            self.publish_known(core);
            false
        };
        self.keep_blocking(core, self.blocks_when_idle);
        drop(guard);
        self.notify_host(deadline, is_queued, sleeps_without_it);
        Ok(Submission::Pending(key, slot))
    }

    /// Notifies the host of a new request, if it must know before its next poll pass.
    fn notify_host(&self, deadline: Option<Due>, is_queued: bool, sleeps_without_it: bool) {
        if let Some(deadline) = deadline {
            self.publish_deadline(deadline);
        }
        if is_queued {
            self.shared.notify(self.driver.address());
        } else if sleeps_without_it {
            self.shared().unpark();
        }
    }

    /// Called when the waiter of `key` leaves.
    pub(crate) fn release(&self, key: Key, slot: &Arc<EventSlot<D::Event>>) {
        if self.shared.is_inherited() {
            return;
        }
        let mut guard = self.lock_core();
        let core = &mut *guard;
        let detector = &mut core.detector;
        let request = core.pending.release(key, |request| match detector {
            Some(detector) => {
                self.doubt_deadlines();
                caught("cancel", || detector.cancel(key, request)).ok()
            }
            None => None,
        });
        let mut leftover = slot.reset();
        let mut was_claimed = false;
        // All are dropped outside the lock.
        let mut unwanted = Vec::new();
        let mut batch = WakeList::default();
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
            // A cancellation to submit and completions to collect, or an event for another waiter.
            self.shared.notify(self.driver.address());
        }
    }

    /// Called when the last user of the handle leaves. Returns whether the handle may be removed at once.
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

    /// Returns why the handle takes no more requests.
    pub(crate) fn end(&self) -> WaitError {
        why_ended(self.lock_core().ended_by.as_ref())
    }

    pub(crate) fn pending_count(&self) -> usize {
        self.lock_core().pending.len()
    }

    /// Calls `f` with the detector; returns `None` once the detector is gone, and in a forked child.
    pub(crate) fn with_detector<T>(&self, f: impl FnOnce(&mut D) -> T) -> Option<T> {
        if self.shared.is_inherited() {
            return None;
        }
        let mut core = self.lock_core();
        self.doubt_deadlines();
        core.detector.as_mut().map(|detector| in_callback(|| f(detector)))
    }

    /// The known deadline may end.
    fn doubt_deadlines(&self) {
        if self.watch.has_deadlines.load(Ordering::Relaxed) {
            self.shared().is_deadline_doubtful.store(true, Ordering::Relaxed);
        }
    }

    fn can_be_armed(&self) -> bool {
        self.methods.contains(Methods::NOTIFY) && self.arming == Arming::BeforeSleep
    }

    /// Returns whether the detector must be armed before a sleep.
    fn must_be_armed(&self, core: &HandleCore<D>) -> bool {
        self.can_be_armed() && !core.decision.strategy.is_polling()
    }

    fn publish_known(&self, core: &HandleCore<D>) {
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

    /// Makes sure that a blocking call is in progress if the strategy wants one, unless it `must_wait`
    /// for idleness or earlier events still wait for room. Returns whether there is a thread for it.
    fn keep_blocking(&self, core: &mut HandleCore<D>, must_wait: bool) -> bool {
        let known = core.pending.len() + core.pending.cancelling_count();
        let is_wanted = known > 0 && !must_wait && !core.is_held_back;
        if core.decision.strategy != Strategy::Block || !is_wanted {
            return true;
        }
        let Some(helper) = &mut core.helper else { return true };
        let has_thread = helper.want(&self.driver, self.driver.now());
        if self.lacks_helper.swap(!has_thread, Ordering::Relaxed) == has_thread {
            self.publish(Strategy::Block);
            // The host may be sleeping by the earlier state.
            self.shared.notify(self.driver.address());
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

    fn ask_policy(&self, core: &mut HandleCore<D>, now: Instant) {
        let shared = self.shared();
        if core.history.spin_balance() > 0 && !core.spin_costs.spin.is_zero() {
            shared.load.refresh(now);
        }
        let situation = shared.situation(now, self.methods, &core.history, core.pending.len());
        core.spin_costs = spin_costs(&*self.policy, &situation.costs);
        let decision = decide(&*self.policy, &situation);
        if decision.strategy != core.decision.strategy {
            tracing::trace!(handle = self.name, strategy = %decision.strategy, "strategy changed");
            self.publish(decision.strategy);
        }
        core.decision = decision;
    }

    /// Records an event that came while the host had nothing to run. Returns whether the policy must
    /// be asked at once: the balance of polling first has changed its sign.
    fn record_idle(&self, core: &mut HandleCore<D>, now: Instant) -> bool {
        let shared = self.shared();
        let Some(since) = shared.idle.since() else { return false };
        if core.missed_in == Some(since) {
            // Accounted for when the host gave up polling.
            return false;
        }
        let found = shared.idle.found(shared.costs.costs().wake_delay);
        core.history.record_idle(now - since, found, &core.spin_costs)
    }

    /// Polls under the lock and updates all records. Returns how many events were reported.
    fn poll_core(
        &self,
        core: &mut HandleCore<D>,
        cause: PollCause<'_>,
        now: Instant,
        batch: &mut WakeList,
    ) -> usize {
        if let Some(failure) = core.helper.as_ref().and_then(Helper::take_failure) {
            return self.give_up(core, &failure, batch);
        }

        self.doubt_deadlines();
        // Most polled detectors announce nothing until they are armed again.
        self.watch.is_armed.store(false, Ordering::Relaxed);
        let Some(detector) = core.detector.as_mut() else { return 0 };
        if mem::take(&mut core.pending.changed) && self.methods.contains(Methods::GROUP) {
            let pending = Pending::new(&core.pending);
            if let Err(panicked) = caught("group", || detector.group(&pending)) {
                return self.give_up(core, &panicked, batch);
            }
        }

        let is_cancelling = core.pending.cancelling_count() > 0;
        let mut context =
            PollContext::new(&mut core.pending, batch, now, self.budget, self.stream_capacity);
        let strategy = core.decision.strategy;
        let is_timed =
            strategy.is_polling() && core.history.polls().is_multiple_of(POLLS_TIMED_ONE_IN);
        let timed_from = is_timed.then(|| self.driver.now());
        let outcome = match cause {
            PollCause::Ready(ready_events) => {
                caught("notified", || detector.notified(ready_events, &mut context))
            }
            // A check tests pending requests; only a poll completes those being cancelled.
            PollCause::Poll if matches!(strategy, Strategy::CheckEach { .. }) && !is_cancelling => {
                caught("check", || context.check_each(detector))
            }
            PollCause::Poll => caught("poll", || detector.poll(&mut context)),
        };

        let (reported, more) = (context.reported(), context.wants_more());
        core.is_held_back = context.is_held_back();
        if let Err(panicked) = outcome {
            return reported + self.give_up(core, &panicked, batch);
        }
        if let Some(begin) = timed_from {
            core.history.record_poll_cost(self.driver.now() - begin);
        }

        core.history.record(now, reported);
        let has_changed_sign = reported > 0 && self.record_idle(core, now);
        let is_due = now >= core.decision.until;
        if is_due && reported > 0 && !has_changed_sign && matches!(cause, PollCause::Ready(_)) {
            // A task waits for this poll: see `DriverState::stale`.
            batch.is_stale = true;
        } else if is_due || has_changed_sign {
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
        core.full_polls = if more { core.full_polls.saturating_add(1) } else { 0 };
        if more && due.is_some_and(|due| due.soft <= now) {
            let rest = if core.is_flooded() { REST_OF_FLOOD } else { REST_AFTER };
            core.rest_at = Some(now + rest);
            due = due.map(|due| core.after_rest(due));
        } else if more {
            self.shared.notify(self.driver.address());
        }
        if let Some(due) = due {
            self.publish_deadline(due);
        }
        self.publish_known(core);
        self.keep_blocking(core, self.blocks_when_idle);
        reported
    }

    /// Ends every request and leaks the detector, after a callback panicked, or an error after which it cannot detect anything.
    fn give_up(&self, core: &mut HandleCore<D>, error: &WaitError, batch: &mut WakeList) -> usize {
        tracing::error!(handle = self.name, %error, "a detector is given up");
        core.ended_by = Some(error.duplicate());
        core.signal_registration = None;
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

    fn finish_poll(&self, mut guard: MutexGuard<'_, HandleCore<D>>) {
        let trash: Vec<Trash<D::Request, D::Event>> = mem::take(&mut guard.pending.trash);
        let is_over =
            guard.is_draining && guard.pending.cancelling_count() == 0 && guard.pending.len() == 0;
        drop(guard);
        discard_all(trash);
        if is_over {
            self.shared().deregister(self.driver.address());
        }
    }
}

impl<D: Detector> Registered for HandleInner<D> {
    fn poll(&self, cause: PollCause<'_>, now: Instant, batch: &mut WakeList) -> usize {
        let mut guard = self.lock_core();
        let reported = self.poll_core(&mut guard, cause, now, batch);
        self.finish_poll(guard);
        reported
    }

    fn before_sleep(&self, now: Instant, batch: &mut WakeList) -> BeforeSleep {
        let mut guard = self.lock_core();
        let core = &mut *guard;
        if core.pending.len() + core.pending.cancelling_count() == 0 {
            return BeforeSleep::Until(None);
        }
        let strategy = core.decision.strategy;
        if self.must_be_armed(core)
            && let Some(detector) = core.detector.as_mut()
        {
            let armed = caught("arm", || detector.arm());
            let armed = match armed.and_then(|armed| armed.map_err(WaitError::Failed)) {
                Ok(armed) => armed,
                Err(error) => {
                    let ended = self.give_up(core, &error, batch);
                    self.finish_poll(guard);
                    return BeforeSleep::Events(ended);
                }
            };
            let reported = self.poll_core(core, PollCause::Poll, now, batch);
            let is_false = armed == ArmOutcome::Ready && reported == 0;
            let poll_again = core.false_ready.record(is_false, now, self.name);
            self.watch.is_armed.store(reported == 0 && !is_false, Ordering::Relaxed);
            self.finish_poll(guard);
            // The poll has published the detector's deadline.
            return if reported > 0 {
                BeforeSleep::Events(reported)
            } else {
                BeforeSleep::Until(poll_again)
            };
        }
        let next_poll = self.watch.next_poll_ns.load(Ordering::Relaxed);
        if strategy.is_polling() && now.as_nanos() < next_poll {
            // Polled in the previous pass; anything missed then would not be announced now.
            return BeforeSleep::Until(Some(Instant::from_nanos(next_poll)));
        }
        let reported = self.poll_core(core, PollCause::Poll, now, batch);
        let has_helper = self.keep_blocking(core, reported > 0);
        let next = match core.decision.strategy.every() {
            _ if !has_helper => Some(now + RETRY_AFTER),
            _ if !core.decision.strategy.is_polling() => None,
            Some(Frequency::Time(every)) => Some(now + every),
            Some(Frequency::Switches(_)) | None => Some(now),
        };
        self.finish_poll(guard);
        if reported > 0 { BeforeSleep::Events(reported) } else { BeforeSleep::Until(next) }
    }

    fn watch_for_others(&self, now: Instant, batch: &mut WakeList) -> (usize, Option<Instant>) {
        let watch = &self.watch;
        // New events are announced to the sleepers; a poll might disarm the detector.
        if watch.is_armed.load(Ordering::Relaxed) {
            return (0, None);
        }
        if !self.must_be_armed(&self.lock_core()) {
            let is_due = now.as_nanos() >= watch.next_poll_ns.load(Ordering::Relaxed);
            let reported = if is_due { self.poll(PollCause::Poll, now, batch) } else { 0 };
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
        // It keeps having events to report: a sleeper takes over.
        self.shared.notify(self.driver.address());
        (reported, None)
    }

    fn poll_deadline(&self, now: Instant, batch: &mut WakeList) -> (usize, Option<Due>) {
        let mut guard = self.lock_core();
        // A poll will hit the panic again and end what is pending.
        let next = |core: &HandleCore<D>| core.due().unwrap_or(Some(Due { soft: now, hard: now }));
        let Some(due) = next(&guard).filter(|_| is_known(&guard)) else { return (0, None) };
        if due.soft > now {
            return (0, Some(due));
        }
        let reported = self.poll_core(&mut guard, PollCause::Poll, now, batch);
        let due = next(&guard);
        self.finish_poll(guard);
        // A detector that leaves its deadline in the past is polled in each pass.
        (reported, due)
    }

    fn wake_at(&self) -> Option<Instant> {
        let core = self.lock_core();
        let detector = core.detector.as_ref()?;
        let wakeup =
            caught("wake_at", || detector.wake_at()).unwrap_or(Some(Instant::from_nanos(0)));
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
        if core.history.record_spin_miss(&core.spin_costs) || now >= core.decision.until {
            self.ask_policy(core, now);
        }
    }

    fn close(&self, batch: &mut WakeList) {
        let mut guard = self.lock_core();
        let core = &mut *guard;
        if core.ended_by.is_none() {
            core.ended_by = Some(WaitError::ServerClosed);
        }
        core.signal_registration = None;
        if let Some(helper) = core.helper.take() {
            helper.close();
        }
        let Some(mut detector) = core.detector.take() else { return };
        let mut in_flight = Vec::new();
        for key in core.pending.known() {
            if core.pending.is_cancelling(key) {
                // The detector was told once; a second answer might free the memory.
                in_flight.push(key);
                continue;
            }
            let Some(request) = core.pending.request_mut(key) else { continue };
            match caught("cancel", || detector.cancel(key, request)) {
                Ok(CancelOutcome::Released) => {
                    core.pending.fail(key, WaitError::ServerClosed, false, &mut batch.wakers);
                }
                Ok(CancelOutcome::InFlight) => {
                    // A buffer that its completion returns is still delivered; but the end of a
                    // stream must not look like that of its peer.
                    core.pending.cancel_at_shutdown(
                        key,
                        WaitError::ServerClosed,
                        &mut batch.wakers,
                    );
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
            tracing::warn!(handle = self.name, "requests still in flight at shutdown were leaked");
            mem::forget(detector);
        }
    }

    fn watch_state(&self) -> &WatchState {
        &self.watch
    }

    fn report(&self) -> HandleReport {
        self.detection_report()
    }

    fn append_waits(&self, waits: &mut Vec<WaitReport>) {
        self.append_waits(waits);
    }
}

/// The number of times that a host arms a detector for a sleeping host before it wakes that host.
const ARM_TRIES_MAX: u32 = 3;

/// Drops requests and events one by one, since each drop may panic.
fn discard_all<R, E>(trash: Vec<(R, E)>) {
    for (request, event) in trash {
        discard(request);
        discard(event);
    }
}

/// The longest time that a closing server waits for requests whose memory a device may still write to.
const COLLECT_MAX: Duration = Duration::from_millis(100);

impl<D: Detector> HandleInner<D> {
    /// Polls until nothing is in flight, for a bounded time. Returns whether that succeeded.
    fn collect(
        &self,
        core: &mut HandleCore<D>,
        detector: &mut D,
        in_flight: &mut Vec<Key>,
        batch: &mut WakeList,
    ) -> bool {
        // A virtual clock stands still here, so the number of polls is bounded too.
        let deadline = self.driver.now() + COLLECT_MAX;
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
            let now = self.driver.now();
            let mut context =
                PollContext::new(&mut core.pending, batch, now, usize::MAX, usize::MAX);
            if caught("poll", || detector.poll(&mut context)).is_err() {
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

/// The interval between polls of a handle at switches while its blocking call waits for idleness.
const POLL_MEANWHILE: Duration = Duration::from_micros(50);

/// The time that tasks run before the rest of a full poll is polled, if its deadlines have come: the default interval between two
/// poll passes.
pub(crate) const REST_AFTER: Duration = Duration::from_micros(50);

/// After this many full polls in a row, the rest is not polled sooner than after `REST_OF_FLOOD`: if there are more deadlines than
/// the machine can handle, only as many are handled as leave time for other work. So two thousand timers of 0.1 ms each end every 3
/// ms, and use half of a core.
pub(crate) const BURST_POLLS: u32 = 32;
pub(crate) const REST_OF_FLOOD: Duration = Duration::from_micros(100);

impl<D: Detector> HandleCore<D> {
    /// Returns from when on, and until when, a deadline needs a poll.
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

    /// Deadlines come faster than they can be handled, for longer than a burst.
    fn is_flooded(&self) -> bool {
        self.full_polls > BURST_POLLS
    }
}

/// Returns whether a request is pending or being cancelled.
fn is_known<D: Detector>(core: &HandleCore<D>) -> bool {
    core.pending.len() + core.pending.cancelling_count() > 0
}

/// Asks the policy; uses the default policy if the answer does not fit the methods, or if the policy panics.
fn decide(policy: &dyn Policy, situation: &Situation<'_>) -> Decision {
    match caught("decide", || policy.decide(situation)) {
        Ok(decision)
            if strategies(situation.flavor, situation.methods).allow(decision.strategy) =>
        {
            return decision;
        }
        Ok(Decision { strategy, .. }) => {
            tracing::warn!(%strategy, "the policy chose a strategy that the detector lacks");
        }
        Err(_) => {}
    }
    Adaptive::default().decide(situation)
}

/// Asks the policy for the costs of spinning; uses the default policy if it panics.
fn spin_costs(policy: &dyn Policy, costs: &Costs) -> SpinCosts {
    caught("spin_costs", || policy.spin_costs(costs))
        .unwrap_or_else(|_| Adaptive::default().spin_costs(costs))
}

/// Returns why a handle takes no more requests.
fn why_ended(ended_by: Option<&WaitError>) -> WaitError {
    ended_by.map_or(WaitError::ServerClosed, WaitError::duplicate)
}

/// The number of times that the calling thread has taken a lock that all requests of a handle share: for tests that show that a wait needs none.
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
