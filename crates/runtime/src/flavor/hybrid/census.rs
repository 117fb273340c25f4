//! What the supervisor sees when it looks at all threads, whom it calls, and when it looks again.

use std::time::Duration;

use vigie_detect::Instant;

use super::{
    need::{self, Orders, Situation},
    order::Parts,
};
use crate::{lane::ComputeQueue, sync::Ordering};

/// How often the supervisor looks while threads are inside long polls, somebody watches, and nothing waits.
const BACKSTOP: Duration = Duration::from_millis(10);

/// The same while tasks wait that need no thread yet.
const WAITING: Duration = Duration::from_millis(1);

/// What is known of all threads at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Census {
    /// Threads inside long polls.
    pub(crate) caught: usize,
    /// A thread is inside a poll that is not long yet.
    has_young_poll: bool,
    free_reserves: usize,
    computing_reserves: usize,
    reaction_waits: bool,
    waiting_count: usize,
    all_compute_for_long: bool,
}

impl Census {
    /// Looks at all threads, and asks of those inside long polls whether they sleep in the kernel.
    pub(crate) fn take(
        parts: &impl Parts,
        now: Instant,
        long_poll: Duration,
        quantum: Duration,
    ) -> Self {
        let [long_poll, quantum] =
            [long_poll, quantum].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let mut census = Self {
            waiting_count: parts.injected().compute.len() + parts.injected().reaction.len(),
            all_compute_for_long: true,
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
                census.all_compute_for_long &= queues.is_none();
                census.free_reserves += usize::from(queues.is_none());
                continue;
            };
            census.caught += 1;
            seat.ask(began, now, parts.blocked());
            if let Some((reacting, computing)) = queues {
                census.reaction_waits |= !reacting.is_empty();
                census.waiting_count += reacting.len() + computing.len();
                census.all_compute_for_long &= !seat.is_blocked() && seat.is_caught(now, quantum);
            } else {
                census.computing_reserves += usize::from(!seat.is_blocked());
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
        looks_since_call: u128,
    ) -> (Orders, bool) {
        let mut computing = parts.computing().iter().chain([&parts.injected().compute]);
        let short_waits = self.all_compute_for_long && computing.any(ComputeQueue::has_short);
        parts.serves_short().store(short_waits, Ordering::Relaxed);
        let situation = Situation {
            workers: parts.computing().len(),
            has_idle_worker: parts.idle().has_sleepers(),
            is_unwatched: self.caught > 0 && is_unwatched,
            has_sentinel: parts.baton().holder().is_some(),
            free_reserves: self.free_reserves,
            computing_reserves: self.computing_reserves,
            reaction_waits: self.reaction_waits,
            waiting_count: self.waiting_count,
            short_waits,
            vacancies: parts.blocked().vacancies(),
            looks_since_call,
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
        } else if self.waiting_count > 0 {
            WAITING
        } else {
            BACKSTOP
        }
    }
}
