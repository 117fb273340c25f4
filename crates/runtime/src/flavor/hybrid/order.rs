//! The order of the steps: which task a thread takes next, and which thread it calls for what it has queued.
//!
//! These are decisions over queues and counts. They start no thread, read no clock and do not sleep, so the simulation in
//! `tests/scheduler.rs` can make them in virtual time just as the real threads do.

use std::{cell::Cell, time::Duration};

use crossbeam::deque::{Steal, Stealer, Worker as Queue};
use vigie_detect::Instant;

pub(crate) use super::{
    injected::{BRIEF_NS, Injected, SMALL_NS, short_limit},
    need::ReserveMode,
};
use super::{
    sentinel::Sentinel,
    worker_slot::{Blocked, WorkerSlot},
};
use crate::{
    lane::{Account, Cause, ComputeQueue, Lane, Rank, Share, average},
    parking::{
        idle::{Idle, SearcherSwap},
        watchdog::Watchdog,
    },
    sync::{AtomicCell, Ordering},
};

/// After how many delays of the watchdog the supervisor makes its check where a long poll blocks events or reacting tasks, and where it
/// blocks only computation.
pub(crate) const SOON: u64 = 1;
const LATER: u64 = 5;

/// The same if a worker polls a brief task and no poll was long lately.
const BRIEF: u64 = 3;

/// The time between two checks of a computing worker for reactions that wait at other threads.
const ROB_EVERY: Duration = Duration::from_micros(50);

/// A task whose usual poll is no longer than this may wake others without calling a worker for them.
const SHORT_NS: u32 = 20_000;

/// Other workers take what waits behind a poll that has lasted longer than this: twice a brief one. Earlier they would only mix up
/// the order in which events came.
fn late_ns(long_poll_ns: u64) -> u64 {
    long_poll_ns.min(2 * BRIEF_NS)
}

/// A worker's absence counts for no more than this.
const AWAY_NS: u64 = 1_000_000;

/// The time for which poll passes must have come regularly before workers are trusted to poll unprompted.
const STEADY: Duration = Duration::from_millis(2);

/// This many short sleeps in a row make a conversation: the next one is expected to be short too. If it is not, the watchdog fires
/// once for nothing. A sleep is short if it ends before the watchdog that was set when it began fires.
const CONVERSATION: u8 = 4;

/// The calling thread's own queues.
pub(crate) struct OwnQueues<'a, T> {
    /// The reaction lane; empty for a reserve thread.
    pub(crate) reacting: &'a Queue<T>,
    /// The worker's index; `None` for a reserve thread, which has no lanes of its own.
    pub(crate) worker: Option<usize>,
}

/// The context in which a task becomes ready on a thread of the runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeContext {
    pub(crate) cause: Cause,
    /// The task is being polled, or was a moment ago.
    pub(crate) was_running: bool,
    /// The task that is polled usually has short polls.
    pub(crate) is_short: bool,
    /// The time at which the poll or the poll pass began.
    pub(crate) switched_at: u64,
}

/// The parts of a runtime that its threads share, and the decisions that depend on them alone. A *place* is the index of a thread:
/// the workers come first, then the slots of the reserve threads.
pub(crate) trait Parts {
    type Task;

    /// Tasks that were not made ready by a worker.
    fn injected(&self) -> &Injected<Self::Task>;
    /// The workers' reaction lanes, from which others take.
    fn reacting(&self) -> &[Stealer<Self::Task>];
    /// The workers' compute lanes.
    fn computing(&self) -> &[ComputeQueue<Self::Task>];
    /// Returns whether a waiting task is known to be short by now.
    fn is_short_now(&self, task: &Self::Task) -> bool;
    /// Grants a waiting task a trial, if it only waits because others of its kind were long.
    fn is_tried_now(&self, task: &Self::Task) -> bool;
    /// Returns the number of times that a kind of tasks has turned out to be short after all.
    fn turned_short(&self) -> u64;
    fn worker_slot(&self, place: usize) -> &WorkerSlot;
    /// The places of the serving reserve threads.
    fn serving(&self) -> impl Iterator<Item = usize> + '_;
    /// Returns the number of them: one load.
    fn serving_count(&self) -> usize;
    fn idle(&self) -> &Idle;
    fn sentinel(&self) -> &Sentinel;
    fn watchdog(&self) -> &Watchdog;
    fn blocked(&self) -> &Blocked;
    /// Returns the mode of the reserve threads. Set by the supervisor.
    fn serves(&self) -> &AtomicCell<ReserveMode>;
    /// Wakes the thread at `place`, or keeps it from its next sleep.
    fn unpark(&self, place: usize);
    /// Returns whether the thread at `place` sleeps in the poller, or is about to, and has been woken since.
    fn is_called(&self, place: usize) -> bool;
    /// Withdraws the call. Returns whether the thread had not noticed it yet.
    fn take_back(&self, place: usize) -> bool;
    /// Wakes any one thread that sleeps in the poller.
    fn notify(&self);

    /// Queues a task on the thread that made it ready: at its rank in the compute lane, or without a rank in the reaction lane.
    fn queue_here(
        &self,
        own: &OwnQueues<'_, Self::Task>,
        task: Self::Task,
        rank: Option<Rank>,
        waking: WakeContext,
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
        // A task that woke itself is queued when its poll is over. After any other poll's wake-up, the rest of the poll may be
        // long; where that is usual, no task should wait for it.
        if waking.cause == Cause::Poll
            && !waking.was_running
            && (waking.is_short || !self.idle().may_need_waking() || !self.wake_one())
        {
            let (watchdog, now) = (self.watchdog(), waking.switched_at);
            let delays = match rank {
                None if waking.is_short => delays_of_brief(watchdog, now),
                None => SOON,
                Some(_) => LATER,
            };
            watchdog.guard(now, delays, || false);
        }
    }

    /// Queues a task that was not made ready by a thread of the runtime.
    fn queue_from_outside(&self, task: Self::Task, rank: Option<Rank>, now: u64) {
        match rank {
            None => self.injected().reaction.push(task),
            Some(rank) => self.injected().compute.push(task, rank),
        }
        if !self.wake_one() && (rank.is_some() || !self.call_sentinel()) {
            self.watchdog().guard(now, SOON, || false);
        }
    }

    /// Wakes a worker for work that was just queued, if one sleeps and none searches. Returns whether it did.
    fn wake_one(&self) -> bool {
        let chosen = self.idle().choose();
        if let Some(worker) = chosen {
            self.unpark(worker);
        }
        chosen.is_some()
    }

    /// Wakes the reserve thread in the poller, if there is one. Returns whether there was.
    fn call_sentinel(&self) -> bool {
        // The fence in `Idle::choose` comes between our push to a queue and this check.
        let sentinel = self.sentinel().holder();
        if let Some(place) = sentinel {
            self.unpark(place);
        }
        sentinel.is_some()
    }

    /// Returns whether a task waits anywhere.
    fn has_work(&self) -> bool {
        !self.injected().reaction.is_empty()
            || !self.injected().compute.is_empty()
            || self.computing().iter().any(|queue| !queue.is_empty())
            || self.reacting().iter().any(|queue| !queue.is_empty())
    }
}

/// Returns whether enough threads run or wait for a processor that another one would only wait too. The supervisor, which knows
/// more, then decides.
fn has_enough_threads(parts: &impl Parts) -> bool {
    let workers = parts.computing().len();
    let running = (workers + parts.serving_count()).saturating_sub(parts.blocked().count());
    running > 2 * workers + 1
}

/// The total expected time, as far as is known, of the tasks that one poll wakes and that go before computation. The rest of a
/// broadcast waits its turn, so that events do not wait for all of it.
const WOKEN_MOST_NS: u64 = 1_000_000;

/// The cost of a switch to a task, besides its poll.
const SWITCH_NS: u64 = 1_000;

/// The facts by which a task that becomes ready is judged, besides its account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The longest usual poll of a task that reacts.
    pub(crate) brief_ns: u64,
    pub(crate) quantum: Duration,
    /// The task was polled, and yielded at the end of its budget.
    pub(crate) gave_way: bool,
    /// No computation waits that the task could delay.
    pub(crate) is_free: bool,
}

/// The longest turn of a task of the compute lane that keeps yielding.
const TURN_NS: u64 = 500_000;

/// Returns the position in the compute lane of a task that becomes ready, or `None` if it reacts. If a poll wakes it, `woken_ns` is
/// the expected time of the tasks that this poll has woken before.
pub(crate) fn choose_rank(
    account: &Account,
    woken_ns: Option<&Cell<u64>>,
    was_running: bool,
    now: u64,
    Limits { brief_ns, quantum, gave_way, is_free }: Limits,
) -> Option<Rank> {
    let lane = account.choose_lane(was_running, now);
    let usual = account.usual_ns();
    // Those that an event wakes are few: a core has no more than twenty that use up their credit. In one lane they are served in the order
    // of their events, and in two some of them many times before the others.
    let is_event = woken_ns.is_none() && !was_running;
    let is_small = || usual.is_some_and(|usual| usual <= SMALL_NS);
    if lane == Lane::Compute && is_free && is_event && is_small() {
        return None;
    }
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

/// Called before a task of the reaction lane is polled, with its present expected time. Returns its position in the compute lane
/// instead, if others of its kind have shown since it became ready that it computes.
pub(crate) fn rank_of_late(
    account: &Account,
    expected_ns: Option<u32>,
    now: u64,
    quantum: Duration,
) -> Option<Rank> {
    account.expect(expected_ns);
    (!account.is_credit_sufficient(now)).then(|| rank(account, false, now, quantum))
}

/// Returns whether a task's polls have shown that they end before the supervisor would check.
pub(crate) fn is_brief(account: &Account, is_proven: bool, long_poll_ns: u64) -> bool {
    let most = BRIEF_NS.min(long_poll_ns / 2);
    is_proven && account.usual_ns().is_some_and(|usual| u64::from(usual) <= most)
}

/// Returns after how many delays of the watchdog the supervisor makes its check while a worker polls a brief task: soon if any poll was
/// long lately, since a task that computes now and then cannot be told from one that never does.
fn delays_of_brief(watchdog: &Watchdog, now: u64) -> u64 {
    if watchdog.is_alert(now) { SOON } else { BRIEF }
}

/// Returns whether a task may wake others without calling a worker for them.
pub(crate) fn has_short_polls(account: &Account, is_trusted: bool) -> bool {
    is_trusted && account.usual_ns().is_some_and(|usual| usual <= SHORT_NS)
}

/// Returns whether the threads that run tasks poll for events often enough, given when a poll pass last came, and when one last came late.
pub(crate) fn is_steady(
    now: Instant,
    last_pass: Instant,
    last_gap: Instant,
    long_poll: Duration,
) -> bool {
    now - last_pass <= long_poll && now - last_gap > STEADY
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

impl<T> OwnQueues<'_, T> {
    fn computing<'p, P: Parts<Task = T>>(&self, parts: &'p P) -> Option<&'p ComputeQueue<T>> {
        parts.computing().get(self.worker?)
    }

    /// Returns whether no computation waits here, or for any thread.
    pub(crate) fn is_free<P: Parts<Task = T>>(&self, parts: &P) -> bool {
        let is_empty = |own: &ComputeQueue<T>| own.is_empty();
        self.computing(parts).is_some_and(is_empty) && parts.injected().compute.is_empty()
    }

    /// Returns whether tasks wait where this thread queues those that it makes ready.
    pub(crate) fn has_more<P: Parts<Task = T>>(&self, parts: &P) -> bool {
        match self.computing(parts) {
            Some(own) => !self.reacting.is_empty() || !own.is_empty(),
            None => !parts.injected().reaction.is_empty(),
        }
    }

    /// Makes sure that the supervisor notices if the coming poll is long while no other thread watches, or while tasks wait behind
    /// it. It notices later if the task is brief and either a reserve thread polls it or no poll was long lately: on a virtual
    /// machine, setting the watchdog takes as long as answering an event. `may_put_off` gets whether it notices later.
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
            let (watchdog, now) = (parts.watchdog(), now.as_nanos());
            let delays = match (is_brief, self.worker) {
                (true, None) => LATER,
                (true, Some(_)) => delays_of_brief(watchdog, now),
                (false, _) => SOON,
            };
            watchdog.guard(now, delays, || may_put_off(delays > SOON));
        } else if self.computing(parts).is_some_and(|own| !own.is_empty()) {
            parts.watchdog().guard(now.as_nanos(), LATER, || false);
        }
    }
}

/// One thread's turns: a worker's, or a reserve thread's.
pub(crate) struct Turns {
    /// Its place.
    index: usize,
    share: Share,
    random: fastrand::Rng,
    is_searching: bool,
    /// The time at which it last searched other threads for reactions.
    stole_at: Instant,
    /// The time at which it last searched for reactions behind late polls, and counted all waiting computation.
    relieved_at: Instant,
    /// The time for which its reaction lane has not run empty, and the lane's usual poll.
    busy_ns: u64,
    reaction_ns: u32,
    /// The number of tasks that waited in all compute lanes then: a worker's part of them, since the workers share the debt to computation.
    computing: usize,
    /// The thread whose reaction lane it searches first.
    victim: usize,
    /// It is a reserve thread that computes in the place of a sleeping one.
    is_substitute: bool,
    /// The time at which a reserve thread was called, or last woken in the poller.
    called_at: Instant,
    /// It was called for workers that switch again.
    is_relieved: bool,
    /// The time at which the watchdog was due as the worker last fell asleep, and the number of short sleeps in a row before.
    fires_at: u64,
    short_sleeps: u8,
    /// The time since which a reserve thread runs a short task beside computing workers.
    extra_since: Option<u64>,
    /// The time since which a reserve thread runs a task of any kind beside endlessly computing workers.
    any_since: Option<u64>,
    /// A reserve thread runs short tasks beside computing workers, since it last slept without one that waits for its turn.
    runs_short: bool,
}

impl Turns {
    pub(crate) fn new(index: usize, reaction_slice: Duration) -> Self {
        Self {
            index,
            share: Share::new(reaction_slice),
            random: fastrand::Rng::with_seed(index as u64),
            is_searching: false,
            stole_at: Instant::from_nanos(0),
            relieved_at: Instant::from_nanos(0),
            busy_ns: 0,
            reaction_ns: 0,
            computing: 0,
            victim: 0,
            is_substitute: false,
            called_at: Instant::from_nanos(0),
            is_relieved: false,
            fires_at: 0,
            short_sleeps: 0,
            extra_since: None,
            any_since: None,
            runs_short: false,
        }
    }

    // -------------------------------------------------------------------------------- a worker

    /// The next task of its own queues or of the injected ones; before a computation, also a reaction that waits at another thread.
    pub(crate) fn next<P: Parts>(
        &mut self,
        parts: &P,
        own: &OwnQueues<'_, P::Task>,
        now: Instant,
    ) -> Option<(P::Task, Lane)> {
        let reacting = own.reacting;
        // Injected tasks join the end of the lane, so that neither source starves the other.
        if !parts.injected().reaction.is_empty() {
            let _ = take(|| parts.injected().reaction.steal_batch(reacting));
        }

        // Computation is owed so much time that it goes first, although reactions may wait.
        if self.share.first() == Lane::Compute
            && let Some(task) = compute(parts, own).or_else(|| self.take_computation(parts, own))
        {
            return Some((task, Lane::Compute));
        }

        if now - self.relieved_at >= ROB_EVERY {
            self.note_busy(parts, now);
            self.computing = count_waiting(parts).div_ceil(parts.computing().len());
            self.relieve(parts, own, now);
        }

        if let Some(task) = reacting.pop() {
            return Some((task, Lane::Reaction));
        }

        // The reaction lane has run empty.
        self.busy_ns = 0;

        // A computation may be long: reactions of other threads go before it. A worker without computation searches
        // the other threads anyway.
        if now - self.stole_at >= ROB_EVERY
            && own.computing(parts).is_some_and(|own| !own.is_empty())
        {
            self.stole_at = now;
            if let Some(task) = self.take_reaction(parts) {
                return Some((task, Lane::Reaction));
            }
        }
        Some((compute(parts, own)?, Lane::Compute))
    }

    /// Records the time since the last search of the other threads, during which the reaction lane has not run empty.
    fn note_busy(&mut self, parts: &impl Parts, now: Instant) {
        let passed = u64::try_from((now - self.relieved_at).as_nanos()).unwrap_or(u64::MAX);
        self.relieved_at = now;
        self.busy_ns = self.busy_ns.saturating_add(passed.min(AWAY_NS));
        parts.injected().note_busy(now.as_nanos(), self.busy_ns, self.reaction_ns);
    }

    /// A worker without computation of its own pays its reactions' debt to the computation of other threads.
    #[cold]
    fn take_computation<P: Parts>(
        &mut self,
        parts: &P,
        own: &OwnQueues<'_, P::Task>,
    ) -> Option<P::Task> {
        let own = own.computing(parts)?;
        let begin = self.random.usize(..parts.computing().len());
        let (before, after) = parts.computing().split_at(begin);
        let task = after.iter().chain(before).find_map(|queue| queue.steal_batch_and_pop(own));
        if task.is_none() {
            // No computation waits anywhere: nothing is owed until the next search.
            self.computing = 0;
        }
        task
    }

    /// Takes half of the reactions that wait behind another worker's late poll, for example where the kernel has given its
    /// processor to another program: no other thread need be called for them.
    fn relieve<P: Parts>(&self, parts: &P, own: &OwnQueues<'_, P::Task>, now: Instant) {
        let late_ns = late_ns(parts.watchdog().delay_ns());
        for (place, queue) in parts.reacting().iter().enumerate() {
            let worker_slot = parts.worker_slot(place);
            let is_late =
                || worker_slot.is_late(now, late_ns) && !worker_slot.is_caught(now, late_ns);
            if place != self.index && !queue.is_empty() && is_late() {
                let _ = take(|| queue.steal_batch(own.reacting));
            }
        }
    }

    /// A worker without work searches for it elsewhere.
    pub(crate) fn search<P: Parts>(
        &mut self,
        parts: &P,
        own: &OwnQueues<'_, P::Task>,
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

    /// Ends the search, if there was one: work was found, or the runtime ends.
    pub(crate) fn stop_searching(&mut self, parts: &impl Parts) {
        if self.is_searching {
            self.is_searching = false;
            if parts.idle().end_search() {
                parts.wake_one();
            }
        }
    }

    /// A worker announces at `now` that it sleeps; a timer will end the sleep at `deadline`, if one is set.
    pub(crate) fn begin_sleep(
        &mut self,
        parts: &impl Parts,
        now: Instant,
        deadline: Option<Instant>,
    ) {
        let was_last = parts.idle().begin_sleep(self.index, self.is_searching);
        self.is_searching = false;
        if was_last && parts.has_work() {
            // Possibly ourselves: then the sleep below ends at once.
            parts.wake_one();
        }
        self.fires_at = parts.watchdog().due();
        // Between the messages of a conversation the watchdog stays as it is: stopping and setting it for each would cost more than
        // the messages.
        let is_over = self.short_sleeps < CONVERSATION;
        if is_over && parts.idle().is_everyone_asleep() && parts.serving_count() == 0 {
            let (watchdog, now) = (parts.watchdog(), now.as_nanos());
            watchdog.stop(now, deadline.map(Instant::as_nanos), delays_of_brief(watchdog, now));
        }
    }

    /// A worker's sleep has ended at `now`.
    pub(crate) fn note_wake(&mut self, now: Instant) {
        let is_short = now.as_nanos() < self.fires_at;
        self.short_sleeps = if is_short { self.short_sleeps.saturating_add(1) } else { 0 };
    }

    /// A worker has woken. Returns whether its sleep is over, which it always is if the runtime ends; otherwise it goes back to
    /// sleep.
    pub(crate) fn ends_sleep<P: Parts>(
        &mut self,
        parts: &P,
        own: &OwnQueues<'_, P::Task>,
        is_shutdown: bool,
    ) -> bool {
        if is_shutdown {
            // The wake-up may have been meant for another worker.
            parts.notify();
        }
        let (index, mut has_changed) = (self.index, false);
        for called in (0..parts.computing().len()).filter(|&other| other != index) {
            has_changed |= !is_shutdown && parts.is_called(called) && self.answer(parts, called);
        }
        if has_changed {
            return true;
        }
        if own.has_more(parts) || is_shutdown {
            // We may have been chosen meanwhile: then we are a searcher, with work.
            self.is_searching = !parts.idle().end_sleep(self.index);
            return true;
        }
        if !parts.idle().is_sleeping(self.index) {
            self.is_searching = true;
            return true;
        }
        false
    }

    /// A worker that sleeps in the poller was called, and the kernel may have woken this one, which is back from there, in its
    /// place. Returns whether this one does the called one's work: then they have changed places.
    #[cold]
    fn answer(&mut self, parts: &impl Parts, called: usize) -> bool {
        let places =
            parts.idle().swap_with_searcher(self.index, called, || parts.take_back(called));
        match places {
            SearcherSwap::Changed => self.is_searching = true,
            SearcherSwap::BothChosen => parts.notify(),
            SearcherSwap::NoneNeeded => {}
        }
        places == SearcherSwap::Changed
    }

    // ------------------------------------------------------------------------ a reserve thread

    /// A reserve thread was called.
    pub(crate) fn answer_call(&mut self, parts: &impl Parts, now: Instant) {
        self.runs_short = false;
        let _ = parts.worker_slot(self.index).take_serves_short();
        self.begin_service(now);
    }

    /// A reserve thread was called, or woken in the poller.
    pub(crate) const fn begin_service(&mut self, now: Instant) {
        (self.called_at, self.is_relieved) = (now, false);
    }

    /// A reserve thread was woken in the poller again, after it had found nothing to serve: each event of a flood wakes it while a worker polls the task
    /// that the flood is for. It was called when the first of them came, up to `long_poll` ago; called anew by each, it would never see the workers switch, and
    /// stay.
    pub(crate) fn continue_service(&mut self, now: Instant, long_poll: Duration) {
        if now - self.called_at > long_poll {
            self.begin_service(now);
        }
        self.is_relieved = false;
    }

    /// Returns whether a reserve thread leaves what waits to the workers: each of them has switched since it was called, and one polls
    /// a brief task at this moment, after which it takes reactions from all queues. Where the cores are all in use, one more thread
    /// would only take turns with them, for as long as the lanes do not run empty. Reactions that are not small are the exception: a
    /// few of them make the next one late.
    fn may_leave(&self, parts: &impl Parts, now: Instant) -> bool {
        let worker_slots = || (0..parts.computing().len()).map(|place| parts.worker_slot(place));
        parts.blocked().count() == 0
            && self.reaction_ns <= SMALL_NS
            && worker_slots().all(|worker_slot| worker_slot.has_switched(self.called_at))
            && worker_slots()
                .any(|worker_slot| worker_slot.switches(now, parts.watchdog().delay_ns()))
    }

    /// The next task for a reserve thread: reactions first; then anything, in the place of a sleeping thread; then short tasks,
    /// which should not wait behind long polls. None once it [may leave](Self::may_leave).
    pub(crate) fn next_of_reserve<P: Parts>(
        &mut self,
        parts: &P,
        own: &OwnQueues<'_, P::Task>,
        now: Instant,
    ) -> Option<(P::Task, Lane)> {
        // A thread that slept has woken: if this one still computed in its place, too many threads would compute.
        if self.is_substitute && parts.blocked().is_overfull() {
            self.end_substitution(parts);
        }

        if now - self.relieved_at >= ROB_EVERY {
            self.note_busy(parts, now);
            self.computing = count_waiting(parts);
            self.is_relieved = self.may_leave(parts, now);
        }
        if self.is_relieved {
            return None;
        }

        // If the coming poll sleeps, this says whether another thread may compute in the place of this one.
        parts.worker_slot(self.index).set_extra(!self.is_substitute);
        self.runs_short |= parts.worker_slot(self.index).take_serves_short();

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

        // The reactions have run out.
        self.busy_ns = 0;
        if computes_first { None } else { compute(self) }
    }

    fn compute_of_reserve<P: Parts>(&mut self, parts: &P, now: u64) -> Option<P::Task> {
        let mut queues = lanes(parts);
        if !self.is_substitute {
            self.is_substitute = parts.blocked().substitute();
            parts.worker_slot(self.index).set_extra(!self.is_substitute);
        }

        if self.is_substitute {
            queues.max_by_key(|queue| queue.len()).and_then(ComputeQueue::pop)
        } else {
            match parts.serves().load() {
                ReserveMode::NoMoreShort if !self.runs_short => None,
                ReserveMode::AnyOne
                    if parts
                        .serves()
                        .compare_exchange(ReserveMode::AnyOne, ReserveMode::Short)
                        .is_ok() =>
                {
                    // Only one thread gets this turn. `charge_any` sets the next turn when the poll has ended.
                    parts.injected().set_turn_of_any(0);
                    let task = queues.find_map(ComputeQueue::pop);
                    self.any_since = task.is_some().then_some(now);
                    task
                }
                ReserveMode::Short | ReserveMode::NoMoreShort | ReserveMode::AnyOne => {
                    let limit = short_limit(parts.injected(), now, self.runs_short);
                    let task = queues.find_map(|queue| queue.pop_short(limit));
                    parts.worker_slot(self.index).set_serves_short(task.is_some());
                    self.extra_since = task.is_some().then_some(now);
                    task
                }
                ReserveMode::Nothing => None,
            }
        }
    }

    /// A reserve thread that has run short tasks goes to sleep. Returns when it goes on with those that wait, and that have used up
    /// their share for now: the supervisor would call a thread for them later, the later the more are caught.
    pub(crate) fn resumes_at(&mut self, parts: &impl Parts, now: Instant) -> Option<Instant> {
        // Threads that run none read nothing.
        if !std::mem::take(&mut self.runs_short) {
            return None;
        }
        let until = Instant::from_nanos(parts.injected().short_until.load(Ordering::Relaxed));
        self.runs_short = now < until && lanes(parts).any(|queue| queue.short_len() > 0);
        self.runs_short.then_some(until)
    }

    /// A reserve thread stops computing in the place of a sleeping one.
    pub(crate) fn end_substitution(&mut self, parts: &impl Parts) {
        if std::mem::take(&mut self.is_substitute) {
            parts.blocked().leave();
        }
    }

    /// Returns whether a reserve thread without work is still needed in the poller.
    pub(crate) fn should_watch(&self, parts: &impl Parts, now: Instant, is_steady: bool) -> bool {
        if self.is_relieved || parts.idle().has_sleepers() || is_steady {
            // An idle worker takes the poller, or the busy ones poll unprompted. The supervisor ensures that this is so.
            let _ = parts.wake_one();
            parts.watchdog().guard(now.as_nanos(), SOON, || false);
            return false;
        }
        true
    }

    /// Announces the sleep of a reserve thread in the poller. Returns whether it must stay awake.
    pub(crate) fn become_sentinel(
        &self,
        parts: &impl Parts,
        is_awaited: impl FnOnce() -> bool,
    ) -> bool {
        let has_work = || !parts.injected().reaction.is_empty();
        parts.sentinel().take(self.index, || is_awaited() || has_work())
    }

    // ------------------------------------------------------------------------------------ both

    /// A task of the reaction lane from elsewhere. The workers' queues and the injected tasks take turns: otherwise tasks that wake
    /// one another through one of these queues would keep us from those that wait behind a long poll in another.
    fn take_reaction<P: Parts>(&mut self, parts: &P) -> Option<P::Task> {
        let (queues, injected) = (parts.reacting(), &parts.injected().reaction);
        for victim in (self.victim..=queues.len()).chain(0..self.victim) {
            // One task only: if it holds us, other threads can still take the rest.
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

    /// Wakes another worker if more waits here than the task about to be polled.
    pub(crate) fn distribute<P: Parts>(&self, parts: &P, own: &OwnQueues<'_, P::Task>) {
        if parts.idle().may_need_waking() && own.has_more(parts) {
            parts.wake_one();
        }
    }

    /// Returns whether the other threads do not need the supervisor: no other worker is inside a long poll, nothing waits behind a
    /// late one, and, unless poll passes are as frequent as the policies want (`is_seen`), none is inside a poll that may become long.
    /// For a `later` check: none is inside a poll that is not usually brief.
    #[cold]
    pub(crate) fn may_put_off<P: Parts>(
        &self,
        parts: &P,
        now: Instant,
        long_poll: u64,
        (is_seen, is_later): (bool, bool),
    ) -> bool {
        // A worker takes what waits there without being called.
        let relieves = self.index < parts.computing().len();
        let needs_check = |(worker, queue): (usize, &Stealer<P::Task>)| {
            let worker_slot = parts.worker_slot(worker);
            worker != self.index
                && (worker_slot.needs_check(now, if is_seen && !is_later { long_poll } else { 0 })
                    || !relieves && worker_slot.is_late(now, long_poll) && !queue.is_empty())
        };
        !parts.reacting().iter().enumerate().any(needs_check)
    }

    /// The task about to be polled slept in the kernel in its last poll: another thread takes our place at once, before the
    /// supervisor notices. Returns whether that must be a reserve thread, which the caller activates.
    #[cold]
    #[must_use = "no thread takes our place otherwise"]
    pub(crate) fn expect_sleep<P: Parts>(
        &self,
        parts: &P,
        own: &OwnQueues<'_, P::Task>,
        now: Instant,
        is_watched: bool,
    ) -> bool {
        parts.worker_slot(self.index).expect_sleep(now, parts.blocked());
        let is_needed = !is_watched || own.has_more(parts) || parts.has_work();
        is_needed && !parts.wake_one() && !parts.call_sentinel() && !has_enough_threads(parts)
    }

    /// Records a poll of `nanos` in `lane`.
    pub(crate) fn record<P: Parts>(
        &mut self,
        parts: &P,
        own: &OwnQueues<'_, P::Task>,
        lane: Lane,
        nanos: u64,
    ) {
        if lane == Lane::Reaction {
            let used = u32::try_from(nanos).unwrap_or(u32::MAX);
            self.reaction_ns = average(self.reaction_ns, used);
        }
        if let Some(since) = self.extra_since.take() {
            let (workers, waiting) = (parts.computing().len(), count_waiting(parts));
            let short: usize = lanes(parts).map(ComputeQueue::short_len).sum();
            parts.injected().charge_extra(workers, (waiting, short), since, nanos);
        }
        if let Some(since) = self.any_since.take() {
            let (workers, waiting) = (parts.computing().len(), count_waiting(parts));
            parts.injected().charge_any(workers, waiting, since, nanos);
        }
        let injected = &parts.injected().compute;
        let computing = match own.computing(parts) {
            Some(own) => own.len().max(self.computing),
            None if self.is_substitute || parts.blocked().vacancies() > 0 => {
                self.computing.max(injected.len())
            }
            // It owes nothing to tasks that it does not run.
            None => usize::from(
                parts.serves().load() != ReserveMode::Nothing && injected.short_len() > 0,
            ),
        };
        let reacting = if computing > 0 { own.reacting.len() } else { 0 };
        self.share.record(lane, nanos, reacting, computing);
    }
}

/// Returns all compute lanes.
fn lanes<P: Parts>(parts: &P) -> impl Iterator<Item = &ComputeQueue<P::Task>> {
    parts.computing().iter().chain([&parts.injected().compute])
}

/// Returns how many tasks wait in all compute lanes.
fn count_waiting(parts: &impl Parts) -> usize {
    lanes(parts).map(ComputeQueue::len).sum()
}

/// The next task of a worker's compute lane, which injected tasks join.
fn compute<P: Parts>(parts: &P, own: &OwnQueues<'_, P::Task>) -> Option<P::Task> {
    let (own, injected) = (own.computing(parts)?, &parts.injected().compute);
    if !injected.is_empty() {
        own.take_batch(injected);
    }
    own.pop()
}
