//! What the supervisor sees when it looks at all threads, whom it calls, and when it looks again.

use std::time::Duration;

use vigie_detect::Instant;

use super::{
    need::{self, Orders, Situation},
    order::{Parts, Serves},
    seat::ASK_AGAIN_NS,
};
use crate::lane::ComputeQueue;

/// How often the supervisor looks while threads are inside long polls, somebody watches, and nothing waits.
const BACKSTOP: Duration = Duration::from_millis(10);

/// The same while tasks wait that need no thread yet.
const WAITING: Duration = Duration::from_millis(1);

/// Where every worker has been computing for so many quanta in one poll, a reserve thread takes any one task, lest
/// it wait for ever; and another one after the same time. So a few endless tasks make no crowd. 2 s by default.
const ENDLESS: u32 = 2_000;

/// What the supervisor did before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since {
    /// How many long polls ago a reserve thread was called.
    pub(crate) call: u128,
    /// How long ago one was last allowed to take any task.
    pub(crate) any: Duration,
}

/// What is known of all threads at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Census {
    /// Threads inside long polls.
    pub(crate) caught: usize,
    /// A thread is inside a poll that is not long yet.
    has_young_poll: bool,
    /// A thread was found asleep once.
    must_ask_again: bool,
    free_reserves: usize,
    computing_reserves: usize,
    delayed_reserves: usize,
    reaction_waits: bool,
    waiting_count: usize,
    /// For how long every worker has been computing in one poll at least; zero if one has not.
    all_compute_for: Duration,
}

impl Census {
    /// Looks at all threads, and asks of those inside long polls whether they sleep in the kernel.
    pub(crate) fn take(parts: &impl Parts, now: Instant, long_poll: Duration) -> Self {
        let long_poll = u64::try_from(long_poll.as_nanos()).unwrap_or(u64::MAX);
        let mut census = Self {
            waiting_count: parts.injected().compute.len() + parts.injected().reaction.len(),
            all_compute_for: Duration::MAX,
            ..Self::default()
        };
        let mut is_everybody_caught = true;
        let reserves = parts.serving().map(|place| (place, None));
        let queues = parts.reacting().iter().zip(parts.computing()).map(Some);
        for (place, queues) in (0..).zip(queues).chain(reserves) {
            let seat = parts.seat(place);
            seat.forget_earlier(parts.blocked());
            let began = seat.current().map(|(began, _)| began);
            let caught = began.filter(|_| seat.is_caught(now, long_poll));
            let Some(began) = caught else {
                is_everybody_caught = false;
                census.has_young_poll |= began.is_some();
                if queues.is_some() {
                    census.all_compute_for = Duration::ZERO;
                } else {
                    census.free_reserves += 1;
                }
                continue;
            };
            census.caught += 1;
            census.must_ask_again |= seat.ask(began, now, parts.blocked());
            if let Some((reacting, computing)) = queues {
                census.reaction_waits |= !reacting.is_empty();
                census.waiting_count += reacting.len() + computing.len();
                let computes_for = if seat.is_blocked() { Duration::ZERO } else { now - began };
                census.all_compute_for = census.all_compute_for.min(computes_for);
            } else if !seat.is_blocked() {
                let computes = seat.computes(began);
                census.computing_reserves += usize::from(computes);
                census.delayed_reserves += usize::from(!computes);
            }
        }
        census.reaction_waits |= is_everybody_caught && !parts.injected().reaction.is_empty();
        census
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
        let serves = self.serves(parts.serves().load(), since.any, quantum);
        let short_waits = match serves {
            Serves::Short => computing.any(ComputeQueue::has_short),
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
            computing_reserves: self.computing_reserves,
            delayed_reserves: self.delayed_reserves,
            reaction_waits: self.reaction_waits,
            waiting_count: self.waiting_count,
            short_waits,
            vacancies: parts.blocked().vacancies(),
            looks_since_call: since.call,
        };
        let orders = need::decide(&situation);
        if orders.wakes_worker {
            parts.wake_one();
        }
        if orders.wakes_sentinel {
            parts.call_sentinel();
        }
        (orders, orders.calls_anybody() || situation.needs_somebody())
    }

    /// Returns what reserve threads run now.
    fn serves(self, before: Serves, since_any: Duration, quantum: Duration) -> Serves {
        let endless = quantum.saturating_mul(ENDLESS);
        let is_due = before == Serves::AnyOne || since_any >= endless;
        if self.all_compute_for >= endless && is_due {
            Serves::AnyOne
        } else if self.all_compute_for > quantum {
            Serves::Short
        } else {
            Serves::Nothing
        }
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
        if needs_more {
            alarm.hold(now.as_nanos(), long_poll / 2);
        } else if self.caught > 0 {
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
        } else if self.waiting_count > 0 {
            WAITING
        } else {
            BACKSTOP
        }
    }
}
