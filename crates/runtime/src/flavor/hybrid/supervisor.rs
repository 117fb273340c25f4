//! The thread that sees when nobody watches, or when threads sleep inside polls, and calls others.
//!
//! It never runs a task, so that nothing can hold it. It sleeps on an [`Alarm`](crate::alarm::Alarm) that
//! threads keep ahead of themselves while they switch, so that it rings only if a poll is long while
//! nobody watches, or while tasks wait behind it. Then it looks at the seats, calls an idle worker or
//! reserve threads, and goes on looking while there is reason to.

use std::time::Duration;

use vigie_detect::{Instant, Lookout, clock::monotonic_now};

use super::{
    Remote, Serves, Shared,
    need::{self, Situation},
    reserve::Activated,
    seat::ASK_AGAIN_NS,
};
use crate::{
    context,
    handle::{Handle, Scheduler},
    kernel_help,
    lane::ComputeQueue,
    sync::{Arc, Ordering},
};

/// How long looks must have come regularly before workers are trusted to look by themselves.
const STEADY: Duration = Duration::from_millis(2);

/// How often the supervisor looks while threads are inside long polls, somebody watches, and nothing waits.
const BACKSTOP: Duration = Duration::from_millis(10);

/// The same while tasks wait that need no thread yet.
const WAITING: Duration = Duration::from_millis(1);

/// Where so many reserve threads compute, the others mind whom they serve.
const SOME: usize = 2;
const CROWD: usize = 6;

/// Where every worker has been computing for so many quanta in one poll, a reserve thread runs any task, one at a
/// time.
const ENDLESS: u32 = 100;

pub(super) struct Supervisor {
    shared: Arc<Shared>,
    lookout: Lookout,
    last_call: Instant,
}

/// What is known of all threads at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Census {
    /// Threads inside long polls.
    caught: usize,
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

impl Supervisor {
    pub(super) fn run(shared: Arc<Shared>) {
        let lookout = shared.server.lookout();
        if shared.options.kernel_help.short_slices {
            // Who is late to see that nobody watches is late for every event.
            kernel_help::shorten_slice();
        }
        let mut supervisor = Self { shared, lookout, last_call: Instant::from_nanos(0) };
        supervisor.work();
        // The last thread cancels what is left, which may use the runtime.
        let shared = Arc::clone(&supervisor.shared);
        let handle = Handle { scheduler: Scheduler::Hybrid(shared) };
        let entered = context::enter(handle);
        supervisor.shared.end_thread();
        drop(entered);
    }

    fn work(&mut self) {
        let alarm = &Arc::clone(&self.shared).alarm;
        loop {
            alarm.sleep();
            if self.shared.is_shutdown.load(Ordering::SeqCst) {
                return;
            }
            let was_resting = alarm.is_resting();
            let now = monotonic_now();
            let census = self.take_census(now);
            let needs_more = self.call(census, now);
            self.help_against_hogs(now);
            let has_long_polls = census.caught > 0;
            self.shared.has_long_polls.store(has_long_polls, Ordering::Relaxed);
            if needs_more {
                alarm.hold(now.as_nanos(), self.shared.options.long_poll / 2);
            } else if has_long_polls {
                alarm.hold(now.as_nanos(), self.next_look(census));
            } else if !was_resting {
                alarm.begin_rest();
            }
        }
    }

    /// Returns when to look again while threads are inside long polls, and nobody was called.
    fn next_look(&self, census: Census) -> Duration {
        if census.has_young_poll && !self.lookout.is_watched() {
            // It began after the alarm rang, and did not set it again.
            self.shared.options.long_poll
        } else if census.must_ask_again {
            Duration::from_nanos(ASK_AGAIN_NS)
        } else if census.waiting_count > 0 {
            WAITING
        } else {
            BACKSTOP
        }
    }

    /// Looks at all threads, and asks of those inside long polls whether they sleep in the kernel.
    fn take_census(&self, now: Instant) -> Census {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        let mut census = Census {
            waiting_count: shared.injected.compute.len() + shared.injected.reaction.len(),
            all_compute_for: Duration::MAX,
            ..Census::default()
        };
        let mut is_everybody_caught = true;
        let reserves = shared.reserves.serving().map(|slot| (shared.reserve(slot), None));
        let queues = shared.reacting.iter().zip(&shared.computing).map(Some);
        for (remote, queues) in shared.workers().iter().zip(queues).chain(reserves) {
            let seat = &remote.seat;
            seat.forget_earlier(&shared.blocked);
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
            census.must_ask_again |= seat.ask(began, now, &shared.blocked);
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
        census.reaction_waits |= is_everybody_caught && !shared.injected.reaction.is_empty();
        census
    }

    /// Calls those that are needed. Returns whether it should look again soon: somebody was called, or
    /// somebody is needed who may come by itself.
    fn call(&mut self, census: Census, now: Instant) -> bool {
        let shared = &*self.shared;
        let mut computing = shared.computing.iter().chain([&shared.injected.compute]);
        let serves = self.serves(census);
        let short_waits = match serves {
            Serves::Short => computing.any(ComputeQueue::has_short),
            Serves::All => computing.any(|queue| !queue.is_empty()),
            _ => false,
        };
        shared.serves.store(serves);
        let situation = Situation {
            workers: shared.options.workers,
            has_idle_worker: shared.idle.has_sleepers(),
            is_unwatched: census.caught > 0 && self.is_unwatched(now),
            has_sentinel: shared.baton.holder().is_some(),
            free_reserves: census.free_reserves,
            computing_reserves: census.computing_reserves,
            delayed_reserves: census.delayed_reserves,
            reaction_waits: census.reaction_waits,
            waiting_count: census.waiting_count,
            short_waits,
            vacancies: shared.blocked.vacancies(),
            looks_since_call: (now - self.last_call).as_nanos()
                / shared.options.long_poll.as_nanos(),
        };
        let orders = need::decide(&situation);
        if orders.wakes_worker {
            shared.wake_one();
        }
        if orders.wakes_sentinel {
            shared.call_sentinel();
        }
        if orders.activates > 0 {
            self.last_call = now;
        }
        for _ in 0..orders.activates.min(shared.reserves.limit()) {
            let activated = shared.reserves.activate(&self.shared);
            shared.reserve_counters.count(activated);
            if activated == Activated::Refused {
                break;
            }
        }
        orders.calls_anybody() || situation.needs_somebody()
    }

    /// Returns what reserve threads run now.
    fn serves(&self, census: Census) -> Serves {
        let quantum = self.shared.options.quantum;
        if census.computing_reserves >= CROWD {
            Serves::TrustedReactions
        } else if census.computing_reserves >= SOME {
            Serves::ShortReactions
        } else if census.all_compute_for > ENDLESS * quantum && census.computing_reserves == 0 {
            Serves::All
        } else if census.all_compute_for > quantum {
            Serves::Short
        } else {
            Serves::Reactions
        }
    }

    /// Returns whether nobody would see an event in time.
    fn is_unwatched(&self, now: Instant) -> bool {
        !self.lookout.is_watched() && !is_steady(&self.lookout, now, self.shared.options.long_poll)
    }

    /// Lets the kernel take the processor from those that are caught in long polls when an event waits.
    fn help_against_hogs(&self, now: Instant) {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        // It was called a moment ago by the thread that set the alarm: long enough to run by itself.
        let is_somebody_called = kernel_help::is_somebody_called();
        let reserves = shared.reserves.serving().map(|slot| (shared.reserve(slot), true));
        let workers = shared.workers().iter().map(|worker| (worker, false));
        for (remote, is_reserve) in workers.chain(reserves) {
            let Some((began, _)) = remote.seat.current() else { continue };
            if !remote.seat.is_caught(now, long_poll) {
                continue;
            }
            self.tell_of_hog(remote, began, now);
            if remote.seat.is_blocked() {
                continue;
            }
            if remote.seat.tell_once(began)
                && is_reserve
                && shared.options.kernel_help.short_slices
                && let Some(thread) = remote.seat.thread()
            {
                // It computes like others now, and gets no better turns than they.
                remote.seat.give_long_slice();
                kernel_help::restore_slice(thread);
            }
            if is_somebody_called {
                remote.hog_timer.ask_now();
            }
            if is_somebody_called || shared.reserves.is_serving() {
                remote.seat.help(&remote.hog_timer);
            }
        }
    }

    /// Names the task that has held its thread since `began`, once it counts as a hog.
    fn tell_of_hog(&self, remote: &Remote, began: Instant, now: Instant) {
        let shared = &*self.shared;
        if shared.hogs.is_hog(now - began)
            && let Some(poll) = remote.seat.current_task(now, &shared.live)
            && shared.hogs.is_hog(poll.elapsed)
            && remote.seat.tell_hog_once(began)
        {
            shared.hogs.tell_lasting(poll.name, poll.site, poll.elapsed, now);
        }
    }
}

/// Returns whether those who run tasks look for events as often as the policies want.
pub(super) fn is_steady(lookout: &Lookout, now: Instant, long_poll: Duration) -> bool {
    now - lookout.last_look() <= long_poll && now - lookout.last_gap() > STEADY
}
