//! The supervisor's census of all threads, from which it decides which threads to call and when to check again.

use std::time::Duration;

use vigie_detect::Instant;

use super::{
    need::{self, Situation, WakePlan},
    order::{self, BRIEF_NS, Parts, ReserveMode},
    worker_slot::ASK_AGAIN_NS,
};
use crate::lane::Account;

/// The interval between the supervisor's checks while threads are inside long polls, another thread watches, and nothing
/// waits: as late as the watchdog for a brief poll of a reserve thread may fire, so that such polls do not
/// set it.
const BACKSTOP: Duration = Duration::from_millis(2);

/// The same while tasks wait that need no thread yet.
const WAITING: Duration = Duration::from_millis(1);

/// A thread called within this many long polls may have fallen asleep in its first poll since.
const CALLED_LATELY: u128 = 3;

/// Once every worker has been computing for this many quanta in one poll, a reserve thread takes one task of
/// any kind, so that it does not wait for ever; and another one when that poll has ended and is paid for, or
/// else after the same time. So a few endless tasks do not cause a crowd of threads. 2 s by default.
const ENDLESS: u32 = 2_000;

/// Once every worker has been computing for this many quanta in one poll, reserve threads run short tasks.
/// Behind polls of a few quanta these wait for little longer than they take, and each reserve thread that
/// they hold costs another one. 4 ms by default.
const LONG: u32 = 4;

/// A short task that has waited for this long beyond its place in the compute lane is run by a reserve thread also where a worker switches,
/// or several of them are caught by such tasks: where more threads compute than there are workers, a worker that switches has only a small
/// share of a processor. In nanoseconds.
const OVERDUE_NS: u64 = 20_000_000;

/// So many reserve threads may be caught by short tasks before those that are overdue wait like others.
const OVERDUE_RESERVES: usize = 6;

/// So many reserve threads may be caught by short tasks before the next one is put off. A thread that is called for events finds such a task
/// where no event waits, and events call threads more often.
const SHORT_RESERVES: usize = 4;

/// The supervisor's past actions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SupervisorHistory {
    /// The length of a long poll.
    pub(crate) long_poll: Duration,
    /// The number of long polls since a reserve thread was called.
    pub(crate) call: u128,
    /// The time since a reserve thread was last allowed to take any task.
    pub(crate) any: Duration,
}

/// A snapshot of all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Census {
    /// The time at which it was taken, in nanoseconds.
    now: u64,
    /// Threads inside long polls.
    pub(crate) caught: usize,
    /// A thread is inside a poll that is not long yet.
    has_young_poll: bool,
    /// A thread was found asleep for the first time.
    must_ask_again: bool,
    /// A brief poll is late for the first time, and no other worker switches.
    must_check_again: bool,
    /// A brief poll is late, and the switching worker has not yet taken all that waits behind it, or the next check will tell what
    /// keeps it.
    leaves_some: bool,
    free_reserves: usize,
    computing_reserves: usize,
    delayed_reserves: usize,
    /// Those of both that run short tasks of the compute lane.
    short_reserves: usize,
    /// The time that the one that began last has waited.
    delayed_for: Duration,
    reaction_waits: bool,
    waiting_count: usize,
    sleeping_workers: usize,
}

/// Returns how many other threads are inside long polls of the kind of the one at `place`, an early poll.
pub(crate) fn caught_beside(
    parts: &impl Parts,
    place: usize,
    word: u64,
    now: Instant,
    long_poll: u64,
) -> usize {
    (0..parts.computing().len())
        .chain(parts.serving())
        .filter(|&other| {
            other != place && parts.worker_slot(other).is_long_like(word, now, long_poll)
        })
        .count()
}

/// Returns whether a task's next poll is one of the first and expected to be brief by now, and its own polls were not longer.
pub(crate) fn is_short_now(account: &Account, expected_ns: Option<u32>) -> bool {
    let is_brief = |nanos: u32| u64::from(nanos) <= BRIEF_NS;
    expected_ns.is_some_and(is_brief) && account.own_usual_ns().is_none_or(is_brief)
}

/// Returns whether a task's own polls were brief. One that had none may have been tried when it was spawned.
pub(crate) fn was_brief(account: &Account) -> bool {
    account.own_usual_ns().is_some_and(|nanos| u64::from(nanos) <= BRIEF_NS)
}

impl Census {
    /// Reads the slots of all threads, and checks whether those inside long polls sleep in the kernel.
    pub(crate) fn take(parts: &impl Parts, now: Instant, long_poll: Duration) -> Self {
        let long_poll = u64::try_from(long_poll.as_nanos()).unwrap_or(u64::MAX);
        let mut census = Self {
            now: now.as_nanos(),
            waiting_count: parts.injected().compute.len() + parts.injected().reaction.len(),
            delayed_for: Duration::MAX,
            ..Self::default()
        };

        // The thread in the poller runs nothing unless it is called.
        let sentinel = parts.sentinel().holder();
        let mut is_everybody_caught = true;
        let is_late = |place: usize| parts.worker_slot(place).is_late(now, long_poll);
        let switches =
            |place: usize| parts.worker_slot(place).current().is_some() && !is_late(place);
        let is_relieved = (0..parts.computing().len()).any(switches);

        let reserves = parts.serving().map(|place| (place, None));
        let queues = parts.reacting().iter().zip(parts.computing()).map(Some);
        for (place, queues) in (0..).zip(queues).chain(reserves) {
            let worker_slot = parts.worker_slot(place);
            worker_slot.forget_earlier(parts.blocked());
            let began = worker_slot.current().map(|(began, _)| began);

            if let Some(began) = began
                && is_late(place)
                && !worker_slot.is_caught(now, long_poll)
            {
                // Perhaps its thread only waits for a processor.
                if is_relieved {
                    census.leaves_some |= queues.is_some_and(|(reacting, _)| !reacting.is_empty());
                    census.leaves_some |= worker_slot.examine(began, now, parts.blocked());
                } else if parts.idle().has_sleepers() {
                    worker_slot.take_as_caught(began);
                } else {
                    census.must_check_again |= worker_slot.doubt(began);
                }
            }

            let caught = began.filter(|_| worker_slot.is_caught(now, long_poll));
            let Some(began) = caught else {
                is_everybody_caught &= sentinel == Some(place);
                census.has_young_poll |= began.is_some() && !is_late(place);
                census.free_reserves += usize::from(queues.is_none());
                continue;
            };

            census.caught += 1;
            census.must_ask_again |= worker_slot.ask(began, now, parts.blocked());
            let is_blocked = worker_slot.is_blocked();
            let computes = !is_blocked && worker_slot.computes(began);
            if is_blocked || computes {
                parts.watchdog().note_lasting_poll(census.now, census.now - began.as_nanos());
            }

            if let Some((reacting, computing)) = queues {
                census.reaction_waits |= !reacting.is_empty();
                census.waiting_count += reacting.len() + computing.len();
                census.sleeping_workers += usize::from(is_blocked);
            } else if !is_blocked {
                census.short_reserves += usize::from(worker_slot.serves_short());
                if computes {
                    census.computing_reserves += 1;
                } else {
                    census.delayed_reserves += 1;
                    census.delayed_for = census.delayed_for.min(now - began);
                }
            }
        }

        census.reaction_waits |= is_everybody_caught && !parts.injected().reaction.is_empty();
        census
    }

    /// Returns how many tasks wait behind long polls or for any thread.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting_count
    }

    /// Decides which threads to call; `is_unwatched` says whether no thread would see an event in time. Also
    /// returns whether to check again soon: a thread is called, or a needed one may come unasked.
    pub(crate) fn decide(
        self,
        parts: &impl Parts,
        is_unwatched: bool,
        since: SupervisorHistory,
        quantum: Duration,
    ) -> (WakePlan, bool) {
        let mut computing = parts.computing().iter().chain([&parts.injected().compute]);
        let serves = self.serves(parts, since, quantum);
        let may_try = need::may_try(parts.computing().len(), parts.serving_count());
        let short_waits = match serves {
            ReserveMode::Short => {
                let limit = order::short_limit(parts.injected(), self.now, false);
                // Only where no task waits that was known before: each that is taken for short and is not holds a thread.
                computing.clone().any(|queue| queue.has_short(limit))
                    || computing.any(|queue| {
                        queue.reconsider(
                            parts.turned_short(),
                            |task| parts.is_short_now(task),
                            |task| may_try && parts.is_tried_now(task),
                        );
                        queue.has_short(limit)
                    })
            }
            ReserveMode::AnyOne => computing.any(|queue| !queue.is_empty()),
            ReserveMode::NoMoreShort | ReserveMode::Nothing => false,
        };
        parts.serves().store(serves);

        let situation = Situation {
            workers: parts.computing().len(),
            has_idle_worker: parts.idle().has_sleepers(),
            is_unwatched: self.caught > 0 && is_unwatched,
            has_sentinel: parts.sentinel().holder().is_some(),
            free_reserves: self.free_reserves,
            // Those that replace sleeping workers count as workers.
            computing_reserves: self.computing_reserves.saturating_sub(self.sleeping_workers),
            delayed_reserves: self.delayed_reserves,
            delayed_long_polls: self.delayed_for.as_nanos() / since.long_poll.as_nanos().max(1),
            reaction_waits: self.reaction_waits,
            waiting_count: self.waiting_count,
            short_waits,
            vacancies: self.vacancies(parts),
            long_polls_since_call: since.call,
        };

        let orders = need::decide(&situation);
        if orders.wakes_worker {
            parts.wake_one();
        }
        if orders.wakes_sentinel {
            parts.call_sentinel();
        }
        let grows = self.may_have_to_grow(parts, since.call);
        (orders, orders.calls_anybody() || situation.needs_somebody() || grows)
    }

    /// Returns whether recently called threads run tasks that may sleep in the kernel as others do, while
    /// more tasks wait for them: if each were noticed only at the next usual check, a burst of blocking calls
    /// would wait one check per call.
    fn may_have_to_grow(self, parts: &impl Parts, long_polls_since_call: u128) -> bool {
        let sleeps = parts.blocked().count() > 0;
        sleeps
            && self.has_young_poll
            && self.waiting_count > 0
            && long_polls_since_call < CALLED_LATELY
    }

    /// Returns what reserve threads may run now.
    fn serves(
        self,
        parts: &impl Parts,
        since: SupervisorHistory,
        quantum: Duration,
    ) -> ReserveMode {
        let endless = quantum.saturating_mul(ENDLESS);
        let is_due = parts.serves().load() == ReserveMode::AnyOne
            || since.any >= endless
            || parts.injected().is_turn_of_any(self.now);
        if is_due && self.do_all_compute_for(parts, endless) {
            ReserveMode::AnyOne
        } else if self.short_reserves < OVERDUE_RESERVES && self.has_overdue(parts) {
            ReserveMode::Short
        } else if !self.do_all_compute_for(parts, quantum.saturating_mul(LONG)) {
            ReserveMode::Nothing
        } else if self.short_reserves >= SHORT_RESERVES && since.call < need::CALL_DELAY_MAX {
            ReserveMode::NoMoreShort
        } else {
            ReserveMode::Short
        }
    }

    /// Returns whether a short task has waited in a compute lane for much longer than it should.
    fn has_overdue(self, parts: &impl Parts) -> bool {
        let limit = self.now.saturating_sub(OVERDUE_NS);
        let mut queues = parts.computing().iter().chain([&parts.injected().compute]);
        queues.any(|queue| queue.has_short(limit))
    }

    /// Returns whether at least as many threads as there are workers, among them every worker that does not
    /// sleep in the kernel, have been computing in one poll for more than `time`.
    fn do_all_compute_for(self, parts: &impl Parts, time: Duration) -> bool {
        let now = Instant::from_nanos(self.now);
        let is_awake = |place: &usize| !parts.worker_slot(*place).is_blocked();
        let computes = |place: &usize| {
            parts.worker_slot(*place).current().is_some_and(|(began, _)| now - began > time)
        };
        let workers = parts.computing().len();
        (0..workers).filter(is_awake).all(|worker| computes(&worker))
            && (0..workers).chain(parts.serving()).filter(is_awake).filter(computes).count()
                >= workers
    }

    /// Returns how many sleeping threads should be replaced by another one.
    fn vacancies(self, parts: &impl Parts) -> usize {
        let blocked = parts.blocked();
        blocked.vacancies() + if self.reaction_waits { blocked.extra() } else { 0 }
    }

    /// Sets the watchdog for the next check. `was_resting` says that it was not set for this one.
    pub(crate) fn plan_next_check(
        self,
        parts: &impl Parts,
        now: Instant,
        (needs_more, was_resting): (bool, bool),
        (is_watched, long_poll): (bool, Duration),
    ) {
        let watchdog = parts.watchdog();
        if needs_more || self.must_check_again {
            watchdog.hold(now.as_nanos(), long_poll / 2);
        } else if self.caught > 0 || self.leaves_some {
            watchdog.hold(now.as_nanos(), self.next_check(is_watched, long_poll));
        } else if !was_resting {
            watchdog.begin_rest();
        }
    }

    /// Returns when to check again while threads are inside long polls and none was called.
    fn next_check(self, is_watched: bool, long_poll: Duration) -> Duration {
        if self.has_young_poll && !is_watched {
            // It began after the watchdog fired, and did not set it again.
            long_poll
        } else if self.must_ask_again {
            Duration::from_nanos(ASK_AGAIN_NS)
        } else if self.waiting_count > 0 || self.leaves_some {
            WAITING
        } else {
            BACKSTOP
        }
    }
}
