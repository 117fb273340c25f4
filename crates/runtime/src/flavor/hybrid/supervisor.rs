//! The thread that sees when nobody watches, or when threads sleep inside polls, and calls others.
//!
//! It never runs a task, so that nothing can hold it. It sleeps on an [`Alarm`](crate::alarm::Alarm) that
//! threads keep ahead of themselves while they switch, so that it rings only if a poll is long while
//! nobody watches, or while tasks wait behind it. Then it looks at the seats, calls an idle worker or
//! reserve threads, and goes on looking while there is reason to.

use std::time::Duration;

use vigie_detect::{Instant, Lookout, clock::monotonic_now};

use super::{
    Remote, Shared,
    need::{self, Situation},
    reserve::Activated,
};
use crate::{
    context,
    handle::{Handle, Scheduler},
    kernel_help,
    sync::{Arc, Ordering},
};

/// How long looks must have come regularly before workers are trusted to look by themselves.
const STEADY: Duration = Duration::from_millis(2);

/// How often the supervisor looks while threads are inside long polls, somebody watches, and nothing waits.
const BACKSTOP: Duration = Duration::from_millis(10);

/// The same while tasks wait that need no thread yet.
const WAITING: Duration = Duration::from_millis(1);

pub(super) struct Supervisor {
    shared: Arc<Shared>,
    lookout: Lookout,
}

/// What is known of all threads at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Census {
    /// Threads inside long polls.
    caught: usize,
    free_reserves: usize,
    computing_reserves: usize,
    reaction_waits: bool,
    waiting_count: usize,
    all_compute_for_long: bool,
}

impl Supervisor {
    pub(super) fn run(shared: Arc<Shared>) {
        let lookout = shared.server.lookout();
        if shared.options.kernel_help.short_slices {
            // Who is late to see that nobody watches is late for every event.
            kernel_help::shorten_slice();
        }
        let mut supervisor = Self { shared, lookout };
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
            let has_called = self.call(census);
            self.help_against_hogs(now);
            let has_long_polls = census.caught > 0;
            self.shared.has_long_polls.store(has_long_polls, Ordering::Relaxed);
            let long_poll = self.shared.options.long_poll;
            if has_called || self.shared.blocked.vacancies() > 0 && census.waiting_count > 0 {
                alarm.hold(now.as_nanos(), long_poll / 2);
            } else if has_long_polls {
                let is_waiting = census.waiting_count > 0;
                alarm.hold(now.as_nanos(), if is_waiting { WAITING } else { BACKSTOP });
            } else if !was_resting {
                alarm.begin_rest();
            }
        }
    }

    /// Looks at all threads, and asks of those inside long polls whether they sleep in the kernel.
    fn take_census(&self, now: Instant) -> Census {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        let quantum = u64::try_from(shared.options.quantum.as_nanos()).unwrap_or(u64::MAX);
        let mut census = Census {
            waiting_count: shared.injected.compute.len() + shared.injected.reaction.len(),
            all_compute_for_long: true,
            ..Census::default()
        };
        let mut is_everybody_caught = true;
        let reserves = shared.reserves.serving().map(|slot| (shared.reserve(slot), None));
        let workers = shared.workers().iter().zip(shared.computing.iter().map(Some));
        for (remote, computing) in workers.chain(reserves) {
            let seat = &remote.seat;
            seat.forget_earlier(&shared.blocked);
            let began = seat.current().map(|(began, _)| began);
            let Some(began) = began.filter(|_| seat.is_caught(now, long_poll)) else {
                is_everybody_caught = false;
                census.all_compute_for_long &= computing.is_none();
                census.free_reserves += usize::from(computing.is_none());
                continue;
            };
            census.caught += 1;
            seat.ask(began, now, &shared.blocked);
            let reacting = remote.stealer.len();
            census.reaction_waits |= reacting > 0;
            census.waiting_count += reacting;
            if let Some(computing) = computing {
                census.waiting_count += computing.len();
                census.all_compute_for_long &= !seat.is_blocked() && seat.is_caught(now, quantum);
            } else {
                census.computing_reserves += usize::from(!seat.is_blocked());
            }
        }
        census.reaction_waits |= is_everybody_caught && !shared.injected.reaction.is_empty();
        census
    }

    /// Calls those that are needed. Returns whether there were any.
    fn call(&self, census: Census) -> bool {
        let shared = &*self.shared;
        let now = monotonic_now();
        let computing = shared.computing.iter().chain([&shared.injected.compute]);
        let orders = need::decide(&Situation {
            workers: shared.options.workers,
            has_idle_worker: shared.idle.has_sleepers(),
            is_unwatched: census.caught > 0 && self.is_unwatched(now),
            has_sentinel: shared.baton.holder().is_some(),
            free_reserves: census.free_reserves,
            computing_reserves: census.computing_reserves,
            reaction_waits: census.reaction_waits,
            waiting_count: census.waiting_count,
            short_waits: census.all_compute_for_long
                && computing.into_iter().any(|q| q.has_short()),
            all_compute_for_long: census.all_compute_for_long,
            vacancies: shared.blocked.vacancies(),
        });
        if orders.wakes_worker {
            shared.wake_one();
        }
        if orders.wakes_sentinel {
            shared.call_sentinel();
        }
        if shared.reserves.limit() == 0 {
            return orders.wakes_worker;
        }
        for _ in 0..orders.activates {
            let activated = shared.reserves.activate(&self.shared);
            shared.reserve_counters.count(activated);
            if activated == Activated::Refused {
                break;
            }
        }
        orders.calls_anybody()
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
