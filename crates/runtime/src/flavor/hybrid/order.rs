//! The order of the steps: what a thread takes next, and whom it calls for what it has queued.
//!
//! These are decisions over queues and counts. They start no thread, read no clock and do not sleep, so that
//! the simulation in `tests/scheduler.rs` takes them in virtual time as the real threads do.

use std::{cell::Cell, time::Duration};

use crossbeam::deque::{Injector, Steal, Stealer, Worker as Queue};
use vigie_detect::Instant;

use super::{
    baton::Baton,
    seat::{Blocked, Seat},
};
use crate::{
    lane::{Account, Cause, ComputeQueue, Lane, Rank, Share},
    parking::{
        alarm::Alarm,
        idle::{Idle, Places},
    },
    sync::{AtomicCell, AtomicU64, Ordering},
};

/// In how many delays of the alarm the supervisor looks if a poll is long behind which events or tasks wait
/// that react; and if it is only computation that waits there.
pub(crate) const SOON: u64 = 1;
const LATER: u64 = 5;

/// The same if a worker polls a brief task, and no poll was long lately.
const BRIEF: u64 = 3;

/// How often a worker that computes looks whether reactions wait at other threads.
const ROB_EVERY: Duration = Duration::from_micros(50);

/// A task whose usual poll is no longer than this may wake others without calling a worker for them.
const SHORT_NS: u32 = 20_000;

/// A task whose usual poll is no longer than this, and than half a long poll, is brief: the supervisor looks later at its polls.
const BRIEF_NS: u64 = 100_000;

/// Other workers take what waits behind a poll that has lasted for longer: twice as long as a brief one. Earlier they would
/// only mix up the order in which events came.
fn late_ns(long_poll_ns: u64) -> u64 {
    long_poll_ns.min(2 * BRIEF_NS)
}

/// Where the reaction lane has not run empty for so long, more is asked of it than it can do. Then brief tasks alone react.
const CROWDED_NS: u64 = 5_000_000;

/// For how long that is remembered: those that it has put off come back at once otherwise, all together.
const CROWD_LASTS_NS: u64 = 20_000_000;

/// A worker that was away counts for no more than this.
const AWAY_NS: u64 = 1_000_000;

/// The longer the lane is crowded, the briefer must be who reacts, down to this.
const BRIEFEST_NS: u64 = 10_000;

/// How long looks must have come regularly before workers are trusted to look by themselves.
const STEADY: Duration = Duration::from_millis(2);

/// So many short sleeps in a row make a conversation: the next one is taken to be short, too. If it is not, the alarm rings once in
/// vain. A sleep is short if it ends before the alarm rings that was set when it began.
const CONVERSATION: u8 = 4;

/// What reserve threads run beside reactions, unless they compute in the place of a thread that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    Nothing,
    /// Every worker computes for long: tasks that are known to be short.
    Short,
    /// Every worker computes without end: any task, but only one; then short ones. Once its poll has ended, it is the turn of
    /// another one.
    AnyOne,
}

/// Tasks that wait for any thread.
pub(crate) struct Injected<T> {
    pub(crate) reaction: Injector<T>,
    pub(crate) compute: ComputeQueue<T>,
    /// Until this time, reserve threads leave short tasks that have used up their share to the workers.
    short_until: AtomicU64,
    /// When it is the turn of another task that need not be short, or zero while none is known.
    any_from: AtomicU64,
    /// The reaction lane is crowded until this time, and what the usual poll of those takes that react meanwhile, at most.
    crowded_until: AtomicU64,
    brief_ns: AtomicU64,
}

impl<T> Injected<T> {
    pub(crate) fn new() -> Self {
        Self {
            reaction: Injector::new(),
            compute: ComputeQueue::new(),
            short_until: AtomicU64::new(0),
            any_from: AtomicU64::new(0),
            crowded_until: AtomicU64::new(0),
            brief_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// A thread's reaction lane has not run empty for `busy_ns`.
    fn note_busy(&self, now: u64, busy_ns: u64) {
        if busy_ns >= CROWDED_NS {
            let halvings = (busy_ns / CROWDED_NS).ilog2();
            self.brief_ns.store((BRIEF_NS >> halvings.min(63)).max(BRIEFEST_NS), Ordering::Relaxed);
            self.crowded_until.store(now.saturating_add(CROWD_LASTS_NS), Ordering::Relaxed);
        }
    }

    /// Returns what the usual poll of a task takes at most that reacts at `now`.
    pub(crate) fn brief_ns(&self, now: u64) -> u64 {
        let is_crowded = now < self.crowded_until.load(Ordering::Relaxed);
        if is_crowded { self.brief_ns.load(Ordering::Relaxed) } else { u64::MAX }
    }

    /// It is the turn of another task that need not be short from this time on, or of nobody if it is zero.
    pub(crate) fn set_turn_of_any(&self, from: u64) {
        self.any_from.store(from, Ordering::Relaxed);
    }

    /// Returns whether the task that reserve threads ran last beside workers that compute without end has come back, and
    /// paid for its poll.
    pub(crate) fn is_turn_of_any(&self, now: u64) -> bool {
        let from = self.any_from.load(Ordering::Relaxed);
        from != 0 && now >= from
    }
}

/// A short task that has used so much more than its bucket held has used up its share: 3 ms.
const USED_UP_NS: u64 = 60_000_000;

/// Reserve threads leave such tasks to the workers for no longer than this at a time.
const EXTRA_PAUSE_MAX_NS: u64 = 20_000_000;

/// Returns up to where in the compute lanes reserve threads run short tasks at `now`.
pub(crate) fn short_limit<T>(injected: &Injected<T>, now: u64) -> u64 {
    let may_run_all = now >= injected.short_until.load(Ordering::Relaxed);
    if may_run_all { u64::MAX } else { now.saturating_add(USED_UP_NS) }
}

/// What the calling thread has of its own.
pub(crate) struct Own<'a, T> {
    /// The reaction lane; empty for a reserve thread.
    pub(crate) reacting: &'a Queue<T>,
    /// The worker's place; none for a reserve thread, which has no lanes of its own.
    pub(crate) worker: Option<usize>,
}

/// In what a task becomes ready on a thread of the runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waking {
    pub(crate) cause: Cause,
    /// The task is polled at this moment, or was a moment ago.
    pub(crate) was_running: bool,
    /// The task that is polled has short polls as a rule.
    pub(crate) is_short: bool,
    /// When the poll or the look began.
    pub(crate) turn_began: u64,
}

/// The parts of a runtime that its threads share, and what they decide by them alone. A *place* is the index
/// of a thread: the workers come first, then the slots of the reserve threads.
pub(crate) trait Parts {
    type Task;

    /// Tasks that no worker made ready.
    fn injected(&self) -> &Injected<Self::Task>;
    /// The workers' reaction lanes, from which others take.
    fn reacting(&self) -> &[Stealer<Self::Task>];
    /// The workers' compute lanes.
    fn computing(&self) -> &[ComputeQueue<Self::Task>];
    fn seat(&self, place: usize) -> &Seat;
    /// The places of the reserve threads that serve.
    fn serving(&self) -> impl Iterator<Item = usize> + '_;
    /// How many they are: one load.
    fn serving_count(&self) -> usize;
    fn idle(&self) -> &Idle;
    fn baton(&self) -> &Baton;
    fn alarm(&self) -> &Alarm;
    fn blocked(&self) -> &Blocked;
    /// What reserve threads run. The supervisor's.
    fn serves(&self) -> &AtomicCell<Serves>;
    /// Wakes the thread at `place`, or keeps it from its next sleep.
    fn unpark(&self, place: usize);
    /// Returns whether the thread at `place` sleeps in the wait point, or is about to, and has been woken since.
    fn is_called(&self, place: usize) -> bool;
    /// Takes the call back. Returns whether the thread had not taken note of it.
    fn take_back(&self, place: usize) -> bool;
    /// Wakes any one thread that sleeps in the wait point.
    fn ring(&self);

    /// Queues a task on the thread that made it ready: at its rank in the compute lane, or without one in the
    /// reaction lane.
    fn queue_here(
        &self,
        own: &Own<'_, Self::Task>,
        task: Self::Task,
        rank: Option<Rank>,
        waking: Waking,
    ) {
        match (rank, own.worker) {
            (None, Some(_)) => own.reacting.push(task),
            (None, None) => self.injected().reaction.push(task),
            (Some(rank), Some(worker)) => self.computing()[worker].push(task, rank),
            (Some(rank), None) => {
                self.injected().compute.push(task, rank);
                self.wake_one();
                return;
            }
        }
        // A task that woke itself is queued when its poll is over. The rest of any other poll may be long;
        // where that is usual, nobody should wait for it.
        if waking.cause == Cause::Poll
            && !waking.was_running
            && (waking.is_short || !self.idle().may_need_waking() || !self.wake_one())
        {
            let (alarm, now) = (self.alarm(), waking.turn_began);
            let delays = match rank {
                None if waking.is_short => delays_of_brief(alarm, now),
                None => SOON,
                Some(_) => LATER,
            };
            alarm.guard(now, delays, || false);
        }
    }

    /// Queues a task that no thread of the runtime made ready.
    fn queue_from_outside(&self, task: Self::Task, rank: Option<Rank>, now: u64) {
        match rank {
            None => self.injected().reaction.push(task),
            Some(rank) => self.injected().compute.push(task, rank),
        }
        if !self.wake_one() && (rank.is_some() || !self.call_sentinel()) {
            self.alarm().guard(now, SOON, || false);
        }
    }

    /// Wakes a worker for work that was just queued, if one sleeps and none searches. Returns whether
    /// it did.
    fn wake_one(&self) -> bool {
        let chosen = self.idle().choose();
        if let Some(worker) = chosen {
            self.unpark(worker);
        }
        chosen.is_some()
    }

    /// Wakes the reserve thread in the wait point, if there is one. Returns whether there was.
    fn call_sentinel(&self) -> bool {
        // The fence in `Idle::choose` stands between our push to a queue and this look.
        let sentinel = self.baton().holder();
        if let Some(place) = sentinel {
            self.unpark(place);
        }
        sentinel.is_some()
    }

    /// Returns whether a task waits somewhere.
    fn has_work(&self) -> bool {
        !self.injected().reaction.is_empty()
            || !self.injected().compute.is_empty()
            || self.computing().iter().any(|queue| !queue.is_empty())
            || self.reacting().iter().any(|queue| !queue.is_empty())
    }
}

/// Returns whether so many threads run, or wait for a processor, that another one would only wait, too. The supervisor
/// decides then, which knows more.
fn has_enough_threads(parts: &impl Parts) -> bool {
    let workers = parts.computing().len();
    let running = (workers + parts.serving_count()).saturating_sub(parts.blocked().count());
    running > 2 * workers + 1
}

/// How much the tasks may use, as far as is known, that one poll wakes and that go before computation. The rest of a
/// broadcast waits its turn, so that events do not wait for all of it.
const WOKEN_MOST_NS: u64 = 1_000_000;

/// What a switch to a task costs beside its poll.
const SWITCH_NS: u64 = 1_000;

/// By what a task that becomes ready is judged, beside its account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The longest usual poll of those that react.
    pub(crate) brief_ns: u64,
    pub(crate) quantum: Duration,
    /// The task was polled, and gave way at the end of its budget.
    pub(crate) gave_way: bool,
}

/// The longest turn of a task of the compute lane that gives way again and again.
const TURN_NS: u64 = 500_000;

/// Returns where a task that becomes ready stands in the compute lane, or none if it reacts. If a poll wakes it,
/// `woken_ns` is what those use that the poll has woken before.
pub(crate) fn choose_rank(
    account: &Account,
    woken_ns: Option<&Cell<u64>>,
    was_running: bool,
    now: u64,
    Limits { brief_ns, quantum, gave_way }: Limits,
) -> Option<Rank> {
    let lane = account.choose_lane(was_running, now);
    let usual = account.usual_ns();
    let is_one_of_many = woken_ns.is_some_and(|woken_ns| {
        let cost = SWITCH_NS + u64::from(usual.unwrap_or(0));
        woken_ns.replace(woken_ns.get().saturating_add(cost)) > WOKEN_MOST_NS
    });
    let is_too_long = usual.is_some_and(|usual| u64::from(usual) > brief_ns);
    (lane == Lane::Compute || is_one_of_many || is_too_long)
        .then(|| rank(account, gave_way, now, quantum))
}

fn rank(account: &Account, gave_way: bool, now: u64, quantum: Duration) -> Rank {
    let is_short = |usual: u32| u128::from(usual) <= quantum.as_nanos();
    let turn_ns = u64::try_from(quantum.as_nanos() / 2).unwrap_or(u64::MAX).min(TURN_NS);
    let usual = account.usual_ns();
    Rank {
        place: account.place(gave_way, now, turn_ns),
        needs_ns: usual.unwrap_or(0),
        is_short: usual.is_some_and(is_short),
    }
}

/// A task of the reaction lane is about to be polled, and so much is expected of it now. Returns where it stands in
/// the compute lane instead, if others of its kind have shown since it became ready that it computes.
pub(crate) fn rank_of_late(
    account: &Account,
    expected_ns: Option<u32>,
    now: u64,
    quantum: Duration,
) -> Option<Rank> {
    account.expect(expected_ns);
    (!account.is_credit_sufficient(now)).then(|| rank(account, false, now, quantum))
}

/// Returns whether a task's polls have shown that they end before anybody would look.
pub(crate) fn is_brief(account: &Account, is_proven: bool, long_poll_ns: u64) -> bool {
    let most = BRIEF_NS.min(long_poll_ns / 2);
    is_proven && account.usual_ns().is_some_and(|usual| u64::from(usual) <= most)
}

/// Returns in how many delays of the alarm the supervisor looks if a worker polls a brief task: soon if any poll was long
/// lately, since a task that computes now and then cannot be told from one that never does.
fn delays_of_brief(alarm: &Alarm, now: u64) -> u64 {
    if alarm.is_alert(now) { SOON } else { BRIEF }
}

/// Returns whether a task may wake others without calling a worker for them.
pub(crate) fn has_short_polls(account: &Account, is_trusted: bool) -> bool {
    is_trusted && account.usual_ns().is_some_and(|usual| usual <= SHORT_NS)
}

/// Returns whether those who run tasks look for events as often as the policies want: by when a look last
/// came, and when one last came late.
pub(crate) fn is_steady(
    now: Instant,
    last_look: Instant,
    last_gap: Instant,
    long_poll: Duration,
) -> bool {
    now - last_look <= long_poll && now - last_gap > STEADY
}

/// Steals until the attempt has an answer.
pub(crate) fn take<T>(steal: impl Fn() -> Steal<T>) -> Option<T> {
    loop {
        match steal() {
            Steal::Success(value) => return Some(value),
            Steal::Empty => return None,
            Steal::Retry => {}
        }
    }
}

impl<T> Own<'_, T> {
    fn computing<'p, P: Parts<Task = T>>(&self, parts: &'p P) -> Option<&'p ComputeQueue<T>> {
        parts.computing().get(self.worker?)
    }

    /// Returns whether tasks wait where this thread puts those that it makes ready.
    pub(crate) fn has_more<P: Parts<Task = T>>(&self, parts: &P) -> bool {
        match self.computing(parts) {
            Some(own) => !self.reacting.is_empty() || !own.is_empty(),
            None => !parts.injected().reaction.is_empty(),
        }
    }

    /// Sees to it that the supervisor notices if the poll that comes is a long one while no other thread
    /// watches, or while tasks wait behind it. It notices later if the task is brief, and either a reserve thread polls it or no
    /// poll was long lately: on a virtual machine, setting the alarm takes as long as answering an event. `may_put_off` is told
    /// whether it notices later.
    #[inline]
    pub(crate) fn guard<P: Parts<Task = T>>(
        &self,
        parts: &P,
        now: Instant,
        is_watched: bool,
        is_brief: bool,
        may_put_off: impl FnOnce(bool) -> bool,
    ) {
        let reacts = match self.worker {
            Some(_) => !self.reacting.is_empty(),
            None => !parts.injected().reaction.is_empty(),
        };
        if !is_watched || reacts {
            let (alarm, now) = (parts.alarm(), now.as_nanos());
            let delays = match (is_brief, self.worker) {
                (true, None) => LATER,
                (true, Some(_)) => delays_of_brief(alarm, now),
                (false, _) => SOON,
            };
            alarm.guard(now, delays, || may_put_off(delays > SOON));
        } else if self.computing(parts).is_some_and(|own| !own.is_empty()) {
            parts.alarm().guard(now.as_nanos(), LATER, || false);
        }
    }
}

/// One thread's turns: a worker's, or those of a reserve thread.
pub(crate) struct Turns {
    /// Its place.
    index: usize,
    share: Share,
    random: fastrand::Rng,
    is_searching: bool,
    /// When it last looked for reactions at other threads.
    robbed_at: Instant,
    /// When it last looked for those behind polls that are late, and how much computation waits anywhere.
    relieved_at: Instant,
    /// For how long its reaction lane has not run empty.
    busy_ns: u64,
    /// How many tasks waited in all compute lanes then: a worker's part of them, since each owes its part of what all owe together.
    computing: usize,
    /// Which other thread's reaction lane it looks into first.
    victim: usize,
    /// A reserve thread that computes in the place of one that sleeps.
    is_substitute: bool,
    /// When the alarm was to ring as a worker fell asleep last, and how many of its sleeps before were short, one after another.
    rings_at: u64,
    short_sleeps: u8,
    /// Since when a reserve thread runs a short task beside workers that compute.
    extra_since: Option<u64>,
    /// Since when a reserve thread runs a task of any kind beside workers that compute without end.
    any_since: Option<u64>,
}

impl Turns {
    pub(crate) fn new(index: usize, reaction_slice: Duration) -> Self {
        Self {
            index,
            share: Share::new(reaction_slice),
            random: fastrand::Rng::with_seed(index as u64),
            is_searching: false,
            robbed_at: Instant::from_nanos(0),
            relieved_at: Instant::from_nanos(0),
            busy_ns: 0,
            computing: 0,
            victim: 0,
            is_substitute: false,
            rings_at: 0,
            short_sleeps: 0,
            extra_since: None,
            any_since: None,
        }
    }

    // -------------------------------------------------------------------------------- a worker

    /// The next task of this worker's own queues or of the injected ones; before a computation, also a
    /// reaction that waits at another thread.
    pub(crate) fn next<P: Parts>(
        &mut self,
        parts: &P,
        own: &Own<'_, P::Task>,
        now: Instant,
    ) -> Option<(P::Task, Lane)> {
        let reacting = own.reacting;
        // Injected tasks join the end of the lane, so that neither source starves the other.
        if !parts.injected().reaction.is_empty() {
            let _ = take(|| parts.injected().reaction.steal_batch(reacting));
        }
        if self.share.first() == Lane::Compute
            && let Some(task) = compute(parts, own).or_else(|| self.take_computation(parts, own))
        {
            return Some((task, Lane::Compute));
        }
        if now - self.relieved_at >= ROB_EVERY {
            self.note_busy(parts, now);
            self.computing = count_computing(parts).div_ceil(parts.computing().len());
            self.relieve(parts, own, now);
        }
        if let Some(task) = reacting.pop() {
            return Some((task, Lane::Reaction));
        }
        self.busy_ns = 0;
        if now - self.robbed_at >= ROB_EVERY
            && own.computing(parts).is_some_and(|own| !own.is_empty())
        {
            self.robbed_at = now;
            if let Some(task) = self.take_reaction(parts) {
                return Some((task, Lane::Reaction));
            }
        }
        Some((compute(parts, own)?, Lane::Compute))
    }

    /// Takes note of the time since the last look at the others, in which the reaction lane has not run empty.
    fn note_busy(&mut self, parts: &impl Parts, now: Instant) {
        let passed = u64::try_from((now - self.relieved_at).as_nanos()).unwrap_or(u64::MAX);
        self.relieved_at = now;
        self.busy_ns = self.busy_ns.saturating_add(passed.min(AWAY_NS));
        parts.injected().note_busy(now.as_nanos(), self.busy_ns);
    }

    /// A worker without computation of its own pays what its reactions owe to that of others.
    #[cold]
    fn take_computation<P: Parts>(&mut self, parts: &P, own: &Own<'_, P::Task>) -> Option<P::Task> {
        let own = own.computing(parts)?;
        let begin = self.random.usize(..parts.computing().len());
        let (before, after) = parts.computing().split_at(begin);
        let task = after.iter().chain(before).find_map(|queue| queue.steal_batch_and_pop(own));
        if task.is_none() {
            // Nothing is owed to nobody, until the next look.
            self.computing = 0;
        }
        task
    }

    /// Takes half of the reactions that wait behind another worker's poll which is late, as where the kernel has given its
    /// processor to another program: nobody else need be called for them.
    fn relieve<P: Parts>(&self, parts: &P, own: &Own<'_, P::Task>, now: Instant) {
        let late_ns = late_ns(parts.alarm().delay_ns());
        for (place, queue) in parts.reacting().iter().enumerate() {
            let seat = parts.seat(place);
            let is_late = || seat.is_late(now, late_ns) && !seat.is_caught(now, late_ns);
            if place != self.index && !queue.is_empty() && is_late() {
                let _ = take(|| queue.steal_batch(own.reacting));
            }
        }
    }

    /// A worker without work looks for it elsewhere.
    pub(crate) fn search<P: Parts>(
        &mut self,
        parts: &P,
        own: &Own<'_, P::Task>,
    ) -> Option<(P::Task, Lane)> {
        if !self.is_searching {
            self.is_searching = parts.idle().begin_search();
        }
        if !self.is_searching {
            return None;
        }
        let (injected, reacting) = (parts.injected(), parts.reacting());
        let begin = self.random.usize(..reacting.len());
        if let Some(task) = take(|| injected.reaction.steal_batch_and_pop(own.reacting)) {
            return Some((task, Lane::Reaction));
        }
        // Our own queue among them is empty.
        for queue in reacting[begin..].iter().chain(&reacting[..begin]) {
            if let Some(task) = take(|| queue.steal_batch_and_pop(own.reacting)) {
                return Some((task, Lane::Reaction));
            }
        }
        let own = own.computing(parts)?;
        let others = parts.computing()[begin..].iter().chain(&parts.computing()[..begin]);
        [&injected.compute]
            .into_iter()
            .chain(others)
            .filter(|queue| !std::ptr::eq(*queue, own))
            .find_map(|queue| queue.steal_batch_and_pop(own))
            .map(|task| (task, Lane::Compute))
    }

    /// The search is over, if there was one: work was found, or the runtime ends.
    pub(crate) fn stop_searching(&mut self, parts: &impl Parts) {
        if self.is_searching {
            self.is_searching = false;
            if parts.idle().end_search() {
                parts.wake_one();
            }
        }
    }

    /// A worker announces at `now` that it sleeps; a timer will end the sleep at `deadline`, if any is set.
    pub(crate) fn begin_sleep(
        &mut self,
        parts: &impl Parts,
        now: Instant,
        deadline: Option<Instant>,
    ) {
        let was_last = parts.idle().begin_sleep(self.index, self.is_searching);
        self.is_searching = false;
        if was_last && parts.has_work() {
            // Perhaps ourselves: then the sleep below ends at once.
            parts.wake_one();
        }
        self.rings_at = parts.alarm().due();
        // Between the messages of a conversation the alarm stays as it is: stopped and set for each, it would cost more than they.
        let is_over = self.short_sleeps < CONVERSATION;
        if is_over && parts.idle().is_everyone_asleep() && parts.serving_count() == 0 {
            let (alarm, now) = (parts.alarm(), now.as_nanos());
            alarm.stop(now, deadline.map(Instant::as_nanos), delays_of_brief(alarm, now));
        }
    }

    /// A worker's sleep has ended at `now`.
    pub(crate) fn note_wake(&mut self, now: Instant) {
        let is_short = now.as_nanos() < self.rings_at;
        self.short_sleeps = if is_short { self.short_sleeps.saturating_add(1) } else { 0 };
    }

    /// A worker has woken. Returns whether its sleep is over, in any case if the runtime ends; otherwise it
    /// sleeps again.
    pub(crate) fn ends_sleep<P: Parts>(
        &mut self,
        parts: &P,
        own: &Own<'_, P::Task>,
        is_shutdown: bool,
    ) -> bool {
        if is_shutdown {
            // The wake-up may have been another worker's.
            parts.ring();
        }
        let (index, mut has_changed) = (self.index, false);
        for called in (0..parts.computing().len()).filter(|&other| other != index) {
            has_changed |= !is_shutdown && parts.is_called(called) && self.answer(parts, called);
        }
        if has_changed {
            return true;
        }
        if own.has_more(parts) || is_shutdown {
            // Somebody may have chosen us meanwhile: then we are a searcher, with work.
            self.is_searching = !parts.idle().end_sleep(self.index);
            return true;
        }
        if !parts.idle().is_sleeping(self.index) {
            self.is_searching = true;
            return true;
        }
        false
    }

    /// A worker that sleeps in the wait point was called, and perhaps the kernel has woken this one in its place, which is back from
    /// there. Returns whether this one does what the other one was called for: then they have changed places.
    #[cold]
    fn answer(&mut self, parts: &impl Parts, called: usize) -> bool {
        let places = parts.idle().change_places(self.index, called, || parts.take_back(called));
        match places {
            Places::Changed => self.is_searching = true,
            Places::BothChosen => parts.ring(),
            Places::NoneNeeded => {}
        }
        places == Places::Changed
    }

    // ------------------------------------------------------------------------ a reserve thread

    /// The next task for a reserve thread: reactions first; then anything in the place of a thread that
    /// sleeps; then short tasks, which should not wait behind long polls.
    pub(crate) fn next_of_reserve<P: Parts>(
        &mut self,
        parts: &P,
        own: &Own<'_, P::Task>,
        now: Instant,
    ) -> Option<(P::Task, Lane)> {
        if self.is_substitute && parts.blocked().is_overfull() {
            self.end_substitution(parts);
        }
        if now - self.relieved_at >= ROB_EVERY {
            self.note_busy(parts, now);
            self.computing = count_computing(parts);
        }
        parts.seat(self.index).set_extra(!self.is_substitute);
        let computes_first = self.share.first() == Lane::Compute;
        let compute = |turns: &mut Self| {
            Some((turns.compute_of_reserve(parts, now.as_nanos())?, Lane::Compute))
        };
        if computes_first && let Some(next) = compute(self) {
            return Some(next);
        }
        if let Some(task) = own.reacting.pop().or_else(|| self.take_reaction(parts)) {
            return Some((task, Lane::Reaction));
        }
        self.busy_ns = 0;
        if computes_first { None } else { compute(self) }
    }

    fn compute_of_reserve<P: Parts>(&mut self, parts: &P, now: u64) -> Option<P::Task> {
        let mut queues = parts.computing().iter().chain([&parts.injected().compute]);
        if !self.is_substitute {
            self.is_substitute = parts.blocked().substitute();
            parts.seat(self.index).set_extra(!self.is_substitute);
        }
        if self.is_substitute {
            queues.max_by_key(|queue| queue.len()).and_then(ComputeQueue::pop)
        } else {
            match parts.serves().load() {
                Serves::AnyOne
                    if parts.serves().compare_exchange(Serves::AnyOne, Serves::Short).is_ok() =>
                {
                    parts.injected().set_turn_of_any(0);
                    let task = queues.find_map(ComputeQueue::pop);
                    self.any_since = task.is_some().then_some(now);
                    task
                }
                Serves::Short | Serves::AnyOne => {
                    let limit = short_limit(parts.injected(), now);
                    let task = queues.find_map(|queue| queue.pop_short(limit));
                    self.extra_since = task.is_some().then_some(now);
                    task
                }
                Serves::Nothing => None,
            }
        }
    }

    /// A reserve thread computes no longer in the place of one that sleeps.
    pub(crate) fn end_substitution(&mut self, parts: &impl Parts) {
        if std::mem::take(&mut self.is_substitute) {
            parts.blocked().leave();
        }
    }

    /// Returns whether a reserve thread without work is still needed in the wait point.
    pub(crate) fn should_watch(&self, parts: &impl Parts, now: Instant, is_steady: bool) -> bool {
        if parts.idle().has_sleepers() || is_steady {
            // An idle worker takes the wait point, or the busy ones look by themselves. The supervisor
            // sees to it that this is so.
            let _ = parts.wake_one();
            parts.alarm().guard(now.as_nanos(), SOON, || false);
            return false;
        }
        true
    }

    /// Announces the sleep of a reserve thread in the wait point. Returns whether it must stay awake.
    pub(crate) fn take_baton(&self, parts: &impl Parts, is_awaited: impl FnOnce() -> bool) -> bool {
        let has_work = || !parts.injected().reaction.is_empty();
        parts.baton().take(self.index, || is_awaited() || has_work())
    }

    // ------------------------------------------------------------------------------------ both

    /// A task of the reaction lane that lies elsewhere. The workers and the injected tasks take turns:
    /// otherwise tasks that wake one another through one of these queues would keep us from those that wait
    /// behind a long poll in another.
    fn take_reaction<P: Parts>(&mut self, parts: &P) -> Option<P::Task> {
        let (queues, injected) = (parts.reacting(), &parts.injected().reaction);
        for victim in (self.victim..=queues.len()).chain(0..self.victim) {
            // One at a time: if this one holds us, the others can still be had by other threads.
            let task = match queues.get(victim) {
                Some(queue) if queue.is_empty() => None,
                Some(queue) => take(|| queue.steal()),
                None => take(|| injected.steal()),
            };
            if task.is_some() {
                self.victim = if victim == queues.len() { 0 } else { victim + 1 };
                return task;
            }
        }
        None
    }

    /// Wakes another worker if there is more to do here than the task about to be polled.
    pub(crate) fn share_out<P: Parts>(&self, parts: &P, own: &Own<'_, P::Task>) {
        if parts.idle().may_need_waking() && own.has_more(parts) {
            parts.wake_one();
        }
    }

    /// Returns whether the supervisor is not needed for others: no other worker is inside a long poll, nothing waits behind one
    /// that is late, and, unless looks are as frequent as the policies want (`is_seen`), none is inside a poll that may become long.
    /// For a look that comes `later`, none is inside a poll that is not brief as a rule.
    #[cold]
    pub(crate) fn may_put_off<P: Parts>(
        &self,
        parts: &P,
        now: Instant,
        long_poll: u64,
        (is_seen, is_later): (bool, bool),
    ) -> bool {
        // A worker takes what waits there by itself.
        let relieves = self.index < parts.computing().len();
        let needs_look = |(worker, queue): (usize, &Stealer<P::Task>)| {
            let seat = parts.seat(worker);
            worker != self.index
                && (seat.is_caught(now, if is_seen && !is_later { long_poll } else { 0 })
                    || !relieves && seat.is_late(now, long_poll) && !queue.is_empty())
        };
        !parts.reacting().iter().enumerate().any(needs_look)
    }

    /// The task that is about to be polled slept in the kernel when it was polled last: another thread
    /// takes our place at once, without waiting for the supervisor to see it. Returns whether that must be
    /// a reserve thread, which the caller activates.
    #[cold]
    #[must_use = "nobody takes our place otherwise"]
    pub(crate) fn expect_sleep<P: Parts>(
        &self,
        parts: &P,
        own: &Own<'_, P::Task>,
        now: Instant,
        is_watched: bool,
    ) -> bool {
        parts.seat(self.index).expect_sleep(now, parts.blocked());
        let is_needed = !is_watched || own.has_more(parts) || parts.has_work();
        is_needed && !parts.wake_one() && !parts.call_sentinel() && !has_enough_threads(parts)
    }

    /// Takes note of a poll of `nanos` in `lane`.
    pub(crate) fn record<P: Parts>(
        &mut self,
        parts: &P,
        own: &Own<'_, P::Task>,
        lane: Lane,
        nanos: u64,
    ) {
        if let Some(since) = self.extra_since.take() {
            charge_extra(parts, since, nanos);
        }
        if let Some(since) = self.any_since.take() {
            charge_any(parts, since, nanos);
        }
        let injected = &parts.injected().compute;
        let computing = match own.computing(parts) {
            Some(own) => own.len().max(self.computing),
            None if self.is_substitute || parts.blocked().vacancies() > 0 => {
                self.computing.max(injected.len())
            }
            // It owes nothing to those that it does not run.
            None => {
                usize::from(parts.serves().load() != Serves::Nothing && injected.short_len() > 0)
            }
        };
        let reacting = if computing > 0 { own.reacting.len() } else { 0 };
        self.share.record(lane, nanos, reacting, computing);
    }
}

/// Returns how many tasks wait in all compute lanes.
fn count_computing(parts: &impl Parts) -> usize {
    let injected = &parts.injected().compute;
    parts.computing().iter().chain([injected]).map(ComputeQueue::len).sum()
}

/// A reserve thread has run a short task for `nanos` beside workers that compute: so many short tasks get together the
/// part of the processors that they would have if each task had a thread.
fn charge_extra(parts: &impl Parts, since: u64, nanos: u64) {
    let queues = || parts.computing().iter().chain([&parts.injected().compute]);
    let workers = parts.computing().len();
    let waiting: usize = queues().map(ComputeQueue::len).sum();
    let short = 1 + queues().map(ComputeQueue::short_len).sum::<usize>();
    let all = short.max(1 + waiting) + workers;
    let pause = u128::from(nanos) * all as u128 / (workers * short) as u128;
    let pause = u64::try_from(pause).unwrap_or(EXTRA_PAUSE_MAX_NS);
    // Where another thread does the same, one of the two is forgotten.
    let until = &parts.injected().short_until;
    let after = until.load(Ordering::Relaxed).max(since).saturating_add(pause);
    until.store(after.min(since.saturating_add(EXTRA_PAUSE_MAX_NS)), Ordering::Relaxed);
}

/// A reserve thread has run a task of any kind for `nanos` beside workers that compute without end: such tasks get together the
/// part of the processors that they would have if each task had a thread, and not one turn in two seconds.
fn charge_any(parts: &impl Parts, since: u64, nanos: u64) {
    let queues = parts.computing().iter().chain([&parts.injected().compute]);
    let workers = parts.computing().len();
    let waiting = 1 + queues.map(ComputeQueue::len).sum::<usize>();
    let pause = u128::from(nanos) * (waiting + workers) as u128 / (workers * waiting) as u128;
    let from = since.saturating_add(u64::try_from(pause).unwrap_or(u64::MAX)).max(1);
    parts.injected().set_turn_of_any(from);
}

/// The next task of a worker's compute lane, which injected tasks join.
fn compute<P: Parts>(parts: &P, own: &Own<'_, P::Task>) -> Option<P::Task> {
    let (own, injected) = (own.computing(parts)?, &parts.injected().compute);
    if !injected.is_empty() {
        own.take_batch(injected);
    }
    own.pop()
}
