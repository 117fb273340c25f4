//! The thread that sees when nobody watches, and finds somebody who does.
//!
//! It never runs a task, so that nothing can hold it. It sleeps on an [`Alarm`] that workers set when
//! they leave the wait point, and before they poll a task while others wait behind it; it wakes up a
//! little later, looks whether anybody is inside a long poll, and if so calls an idle worker or
//! a reserve thread. While workers switch quickly it stays away for longer, and while a thread is in
//! the wait point and no work lies behind a long poll, it sleeps without a timer.

use std::time::Duration;

use vigie_detect::{Instant, Lookout, clock::monotonic_now};

use super::{Shared, reserve::Activated};
use crate::{
    context,
    handle::{Handle, Scheduler},
    kernel_help,
    lane::Lane,
    sync::{Arc, Ordering},
};

/// How long looks must have come regularly before workers are trusted to look by themselves.
pub(super) const STEADY: Duration = Duration::from_millis(2);

/// How long the supervisor looks often after it had to call somebody.
const ALERT: Duration = Duration::from_millis(250);

/// More polls than this between two looks of the supervisor, and it goes on looking.
const ACTIVE_POLLS: u64 = 8;

/// How often the supervisor looks while a reserve thread watches and workers are inside long polls.
const BACKSTOP: Duration = Duration::from_millis(10);

/// How often it looks otherwise, in multiples of the long poll.
const CALM_FACTOR: u32 = 5;

pub(super) struct Supervisor {
    shared: Arc<Shared>,
    lookout: Lookout,
    last_call: Instant,
    /// Polls of all threads when it last looked.
    polls: u64,
}

/// What the supervisor found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// Somebody watches, and nothing lies behind a long poll.
    Quiet,
    /// Workers run, and look by themselves so far.
    Busy,
    /// Somebody was called.
    Called,
}

impl Supervisor {
    pub(super) fn run(shared: Arc<Shared>) {
        let lookout = shared.server.lookout();
        let mut supervisor = Self { shared, lookout, last_call: Instant::from_nanos(0), polls: 0 };
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
            let was_resting = !alarm.is_set();
            let now = monotonic_now();
            let is_active = self.is_active();
            let mut finding = self.inspect(now);
            if finding == Finding::Quiet && is_active {
                // The next poll would only set the alarm again.
                finding = Finding::Busy;
            }
            let has_hogs = self.help_against_hogs(now);
            self.shared.has_backstop.store(has_hogs, Ordering::Relaxed);
            match finding {
                Finding::Quiet if was_resting && has_hogs => alarm.wake_in(BACKSTOP),
                Finding::Quiet if was_resting => {}
                Finding::Quiet => alarm.begin_rest(),
                Finding::Busy => {
                    alarm.keep();
                    let is_alert = now - self.last_call < ALERT;
                    let long_poll = self.shared.options.long_poll;
                    alarm.wake_in(if is_alert { long_poll } else { long_poll * CALM_FACTOR });
                }
                Finding::Called => {
                    self.last_call = now;
                    alarm.keep();
                    alarm.wake_in(self.shared.options.long_poll);
                }
            }
        }
    }

    /// Returns whether there were many polls since the last look.
    fn is_active(&mut self) -> bool {
        let shared = &*self.shared;
        let reserves = shared.reserves.serving().map(|slot| shared.reserve(slot));
        let remotes = shared.workers().iter().chain(reserves);
        let polls = remotes.map(|remote| remote.counters.polls()).fold(0, u64::wrapping_add);
        polls.wrapping_sub(std::mem::replace(&mut self.polls, polls)) > ACTIVE_POLLS
    }

    fn inspect(&mut self, now: Instant) -> Finding {
        let shared = &*self.shared;
        let is_watched = self.lookout.is_watched();
        let is_unwatched = !is_watched && !is_steady(&self.lookout, now, shared.options.long_poll);
        let lies_behind = self.lies_behind(now);
        let has_idle = shared.idle.has_sleepers();
        if !is_unwatched && !lies_behind {
            // What idle workers may run: children of a hog, and tasks that it woke.
            if has_idle && self.is_stranded(now) {
                shared.wake_one();
                return Finding::Called;
            }
            return if is_watched { Finding::Quiet } else { Finding::Busy };
        }
        let long_poll = shared.long_poll_ns();
        let is_free = |slot: usize| !shared.reserve_seat(slot).is_caught(now, long_poll);
        if shared.reserves.serving().any(is_free) {
            // It comes back to the wait point by itself; in there, it must be told.
            if lies_behind {
                shared.call_sentinel();
            }
            return Finding::Called;
        }
        if has_idle && shared.wake_one() {
            return Finding::Called;
        }
        if shared.reserves.limit() == 0 {
            return Finding::Busy;
        }
        let activated = shared.reserves.activate(&self.shared);
        shared.reserve_counters.count(activated);
        match activated {
            Activated::Spare | Activated::NewThread => Finding::Called,
            Activated::Refused => Finding::Busy,
        }
    }

    /// Lets the kernel take the processor from those that are caught in long polls when an event waits.
    /// Returns whether there are any.
    fn help_against_hogs(&self, now: Instant) -> bool {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        // Whoever set the alarm has called it a moment ago: long enough to run by itself.
        let is_somebody_called = kernel_help::is_somebody_called();
        let mut has_hogs = false;
        let reserves = shared.reserves.serving().map(|slot| (shared.reserve(slot), true));
        let workers = shared.workers().iter().map(|worker| (worker, false));
        for (remote, is_reserve) in workers.chain(reserves) {
            let Some((began, _)) = remote.seat.current() else { continue };
            if !remote.seat.is_caught(now, long_poll) {
                continue;
            }
            has_hogs = true;
            self.tell_of_hog(remote, began, now);
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
        has_hogs
    }

    /// Names the task that has held its thread since `began`, once it counts as a hog.
    fn tell_of_hog(&self, remote: &super::Remote, began: Instant, now: Instant) {
        let shared = &*self.shared;
        if shared.hogs.is_hog(now - began)
            && let Some(poll) = remote.seat.current_task(now, &shared.live)
            && shared.hogs.is_hog(poll.elapsed)
            && remote.seat.tell_hog_once(began)
        {
            shared.hogs.tell_lasting(poll.name, poll.site, poll.elapsed, now);
        }
    }

    /// Returns whether tasks of any lane wait behind a long poll, or for any worker. What another worker
    /// has queued it polls in a moment: to call somebody for that would be a wake-up for nothing.
    fn is_stranded(&self, now: Instant) -> bool {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        let lanes = [Lane::Reaction, Lane::Compute];
        let mut remotes = shared
            .workers()
            .iter()
            .chain(shared.reserves.serving().map(|slot| shared.reserve(slot)));
        lanes.iter().any(|&lane| !shared.injected.of(lane).is_empty())
            || remotes.any(|remote| {
                remote.seat.is_caught(now, long_poll)
                    && lanes.iter().any(|&lane| !remote.stealers.of(lane).is_empty())
            })
    }

    /// Returns whether a task of the reaction lane waits behind a long poll.
    fn lies_behind(&self, now: Instant) -> bool {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        let is_stuck = |remote: &super::Remote| remote.seat.is_caught(now, long_poll);
        let workers = shared.workers();
        let reserves = shared.reserves.serving().map(|slot| shared.reserve(slot));
        let mut is_everybody_stuck = true;
        for remote in workers.iter().chain(reserves) {
            if !is_stuck(remote) {
                is_everybody_stuck = false;
            } else if !remote.stealers.of(Lane::Reaction).is_empty() {
                return true;
            }
        }
        is_everybody_stuck && !shared.injected.of(Lane::Reaction).is_empty()
    }
}

/// Returns whether those who run tasks look for events as often as the policies want.
pub(super) fn is_steady(lookout: &Lookout, now: Instant, long_poll: Duration) -> bool {
    now - lookout.last_look() <= long_poll && now - lookout.last_gap() > STEADY
}
