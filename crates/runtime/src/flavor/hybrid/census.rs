//! What the supervisor sees when it looks at all threads, whom it calls, and when it looks again.

use std::time::Duration;

use vigie_detect::Instant;

use super::{
    need::{self, Orders, Situation},
    order::{self, Parts, Serves},
    seat::ASK_AGAIN_NS,
};

/// How often the supervisor looks while threads are inside long polls, somebody watches, and nothing waits: as late as an
/// alarm for a brief poll of a reserve thread may be, so that these do not set it.
const BACKSTOP: Duration = Duration::from_millis(2);

/// The same while tasks wait that need no thread yet.
const WAITING: Duration = Duration::from_millis(1);

/// A thread that was called so many long polls ago may have fallen asleep since in its first poll.
const CALLED_LATELY: u128 = 3;

/// Where every worker has been computing for so many quanta in one poll, a reserve thread takes any one task, lest
/// it wait for ever; another one when that poll has ended and is paid for, or else after the same time. So a few endless
/// tasks make no crowd. 2 s by default.
const ENDLESS: u32 = 2_000;

/// Where every worker has been computing for so many quanta in one poll, reserve threads run short tasks. Behind polls of
/// a few quanta these wait for little longer than they take, and each reserve thread that they hold costs another one. 4 ms
/// by default.
const LONG: u32 = 4;

/// What the supervisor did before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since {
    /// What counts as a long poll.
    pub(crate) look: Duration,
    /// How many long polls ago a reserve thread was called.
    pub(crate) call: u128,
    /// How long ago one was last allowed to take any task.
    pub(crate) any: Duration,
}

/// What is known of all threads at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Census {
    /// When it was, in nanoseconds.
    now: u64,
    /// Threads inside long polls.
    pub(crate) caught: usize,
    /// A thread is inside a poll that is not long yet.
    has_young_poll: bool,
    /// A thread was found asleep once.
    must_ask_again: bool,
    /// A brief poll is late for the first time, and no other worker switches.
    must_look_again: bool,
    /// One is late, and not all that waits behind it was taken yet by the worker that switches.
    leaves_some: bool,
    free_reserves: usize,
    computing_reserves: usize,
    delayed_reserves: usize,
    /// For how long the one of them has waited that began last.
    delayed_for: Duration,
    reaction_waits: bool,
    waiting_count: usize,
    sleeping_workers: usize,
}

/// Returns how many threads beside the one at `place` are inside long polls like its own, an early one of its kind.
pub(crate) fn caught_beside(
    parts: &impl Parts,
    place: usize,
    word: u64,
    now: Instant,
    long_poll: u64,
) -> usize {
    (0..parts.computing().len())
        .chain(parts.serving())
        .filter(|&other| other != place && parts.seat(other).is_long_like(word, now, long_poll))
        .count()
}

impl Census {
    /// Looks at all threads, and asks of those inside long polls whether they sleep in the kernel.
    pub(crate) fn take(parts: &impl Parts, now: Instant, long_poll: Duration) -> Self {
        let long_poll = u64::try_from(long_poll.as_nanos()).unwrap_or(u64::MAX);
        let mut census = Self {
            now: now.as_nanos(),
            waiting_count: parts.injected().compute.len() + parts.injected().reaction.len(),
            delayed_for: Duration::MAX,
            ..Self::default()
        };
        // The one in the wait point runs nothing unless it is called.
        let sentinel = parts.baton().holder();
        let mut is_everybody_caught = true;
        let is_late = |place: usize| parts.seat(place).is_late(now, long_poll);
        let switches = |place: usize| parts.seat(place).current().is_some() && !is_late(place);
        let is_relieved = (0..parts.computing().len()).any(switches);
        let reserves = parts.serving().map(|place| (place, None));
        let queues = parts.reacting().iter().zip(parts.computing()).map(Some);
        for (place, queues) in (0..).zip(queues).chain(reserves) {
            let seat = parts.seat(place);
            seat.forget_earlier(parts.blocked());
            let began = seat.current().map(|(began, _)| began);
            if let Some(began) = began
                && is_late(place)
                && !seat.is_caught(now, long_poll)
            {
                // Perhaps its thread only waits for a processor.
                if is_relieved {
                    census.leaves_some |= queues.is_some_and(|(reacting, _)| !reacting.is_empty());
                } else if parts.idle().has_sleepers() {
                    seat.take_as_caught(began);
                } else {
                    census.must_look_again |= seat.doubt(began);
                }
            }
            let caught = began.filter(|_| seat.is_caught(now, long_poll));
            let Some(began) = caught else {
                is_everybody_caught &= sentinel == Some(place);
                census.has_young_poll |= began.is_some() && !is_late(place);
                census.free_reserves += usize::from(queues.is_none());
                continue;
            };
            census.caught += 1;
            census.must_ask_again |= seat.ask(began, now, parts.blocked());
            let is_blocked = seat.is_blocked();
            let computes = !is_blocked && seat.computes(began);
            if is_blocked || computes {
                parts.alarm().note_lasting_poll(census.now, census.now - began.as_nanos());
            }
            if let Some((reacting, computing)) = queues {
                census.reaction_waits |= !reacting.is_empty();
                census.waiting_count += reacting.len() + computing.len();
                census.sleeping_workers += usize::from(is_blocked);
            } else if !is_blocked {
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

    /// Decides whom to call; `is_unwatched` says whether nobody would see an event in time. Returns also
    /// whether to look again soon: somebody is called, or somebody is needed who may come by itself.
    pub(crate) fn decide(
        self,
        parts: &impl Parts,
        is_unwatched: bool,
        since: Since,
        quantum: Duration,
    ) -> (Orders, bool) {
        let mut computing = parts.computing().iter().chain([&parts.injected().compute]);
        let serves = self.serves(parts, since.any, quantum);
        let short_waits = match serves {
            Serves::Short => {
                let limit = order::short_limit(parts.injected(), self.now);
                computing.any(|queue| queue.has_short(limit))
            }
            Serves::AnyOne => computing.any(|queue| !queue.is_empty()),
            Serves::Nothing => false,
        };
        parts.serves().store(serves);
        let situation = Situation {
            workers: parts.computing().len(),
            has_idle_worker: parts.idle().has_sleepers(),
            is_unwatched: self.caught > 0 && is_unwatched,
            has_sentinel: parts.baton().holder().is_some(),
            free_reserves: self.free_reserves,
            // Those in the place of workers that sleep are as good as workers.
            computing_reserves: self.computing_reserves.saturating_sub(self.sleeping_workers),
            delayed_reserves: self.delayed_reserves,
            delayed_looks: self.delayed_for.as_nanos() / since.look.as_nanos().max(1),
            reaction_waits: self.reaction_waits,
            waiting_count: self.waiting_count,
            short_waits,
            vacancies: self.vacancies(parts),
            looks_since_call: since.call,
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

    /// Returns whether threads that were called a moment ago run what may sleep in the kernel as others do, while more waits for them:
    /// if each of them were noticed only at the next usual look, a burst of blocking calls would wait for one look for each.
    fn may_have_to_grow(self, parts: &impl Parts, looks_since_call: u128) -> bool {
        let sleeps = parts.blocked().count() > 0;
        sleeps && self.has_young_poll && self.waiting_count > 0 && looks_since_call < CALLED_LATELY
    }

    /// Returns what reserve threads run now.
    fn serves(self, parts: &impl Parts, since_any: Duration, quantum: Duration) -> Serves {
        let endless = quantum.saturating_mul(ENDLESS);
        let is_due = parts.serves().load() == Serves::AnyOne
            || since_any >= endless
            || parts.injected().is_turn_of_any(self.now);
        if is_due && self.do_all_compute_for(parts, endless) {
            Serves::AnyOne
        } else if self.do_all_compute_for(parts, quantum.saturating_mul(LONG)) {
            Serves::Short
        } else {
            Serves::Nothing
        }
    }

    /// Returns whether as many threads as there are workers have been computing in one poll for more than `time`, the
    /// workers that do not sleep in the kernel among them.
    fn do_all_compute_for(self, parts: &impl Parts, time: Duration) -> bool {
        let now = Instant::from_nanos(self.now);
        let is_awake = |place: &usize| !parts.seat(*place).is_blocked();
        let computes = |place: &usize| {
            parts.seat(*place).current().is_some_and(|(began, _)| now - began > time)
        };
        let workers = parts.computing().len();
        (0..workers).filter(is_awake).all(|worker| computes(&worker))
            && (0..workers).chain(parts.serving()).filter(is_awake).filter(computes).count()
                >= workers
    }

    /// Returns how many threads that sleep should have another one in their place.
    fn vacancies(self, parts: &impl Parts) -> usize {
        let blocked = parts.blocked();
        blocked.vacancies() + if self.reaction_waits { blocked.extra() } else { 0 }
    }

    /// Sets the alarm for the next look. `was_resting` says that nobody had set it for this one.
    pub(crate) fn plan_next_look(
        self,
        parts: &impl Parts,
        now: Instant,
        (needs_more, was_resting): (bool, bool),
        (is_watched, long_poll): (bool, Duration),
    ) {
        let alarm = parts.alarm();
        if needs_more || self.must_look_again {
            alarm.hold(now.as_nanos(), long_poll / 2);
        } else if self.caught > 0 || self.leaves_some {
            alarm.hold(now.as_nanos(), self.next_look(is_watched, long_poll));
        } else if !was_resting {
            alarm.begin_rest();
        }
    }

    /// Returns when to look again while threads are inside long polls, and nobody was called.
    fn next_look(self, is_watched: bool, long_poll: Duration) -> Duration {
        if self.has_young_poll && !is_watched {
            // It began after the alarm rang, and did not set it again.
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
