//! The thread that sees when nobody watches, or when threads sleep inside polls, and calls others.
//!
//! It never runs a task, so that nothing can hold it. It sleeps on an [`Alarm`](crate::parking::alarm::Alarm) that
//! threads keep ahead of themselves while they switch, so that it rings only if a poll is long while
//! nobody watches, or while tasks wait behind it. Then it looks at the seats, calls an idle worker or
//! reserve threads, and goes on looking while there is reason to.

use vigie_detect::{Instant, Lookout, clock::monotonic_now};

use super::{
    census::{self, Census, Since},
    deadlock::{self, DeadlockWatch},
    local::Remote,
    order::{self, Parts, Serves},
    reserve::{self, Activated},
    shared::Shared,
};
use crate::{
    kernel_help,
    panics::contained,
    sync::{Arc, Ordering},
    task_cell::Kind,
};

pub(super) struct Supervisor {
    shared: Arc<Shared>,
    lookout: Lookout,
    last_call: Instant,
    /// When a reserve thread was last allowed to take any task.
    last_any: Instant,
    deadlock: DeadlockWatch,
}

impl Supervisor {
    pub(super) fn run(shared: Arc<Shared>) {
        let lookout = shared.server.lookout();
        if shared.options.kernel_help.short_slices {
            // Who is late to see that nobody watches is late for every event.
            kernel_help::shorten_slice();
        }
        let long_ago = Instant::from_nanos(0);
        let (last_call, last_any) = (long_ago, long_ago);
        let deadlock = DeadlockWatch::default();
        let mut supervisor = Self { shared, lookout, last_call, last_any, deadlock };
        supervisor.work();
        // The last thread cancels what is left, which may use the runtime.
        let shared = Arc::clone(&supervisor.shared);
        let entered = (shared.enter)(Arc::clone(&shared));
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
            let options = &self.shared.options;
            let census = Census::take(&*self.shared, now, options.long_poll);
            let needs_more = self.call(census, now);
            self.help_against_hogs(now);
            self.look_for_deadlock(census, now);
            self.shared.has_long_polls.store(census.caught > 0, Ordering::Relaxed);
            let watched = (self.lookout.is_watched(), self.shared.options.long_poll);
            census.plan_next_look(&*self.shared, now, (needs_more, was_resting), watched);
        }
    }

    /// Calls those that are needed. Returns whether it should look again soon: somebody was called, or
    /// somebody is needed who may come by itself.
    fn call(&mut self, census: Census, now: Instant) -> bool {
        let shared = &*self.shared;
        let since = Since {
            look: shared.options.long_poll,
            call: (now - self.last_call).as_nanos() / shared.options.long_poll.as_nanos(),
            any: now - self.last_any,
        };
        let (orders, needs_more) =
            census.decide(shared, self.is_unwatched(now), since, shared.options.quantum);
        if shared.serves.load() == Serves::AnyOne {
            self.last_any = now;
        }
        if orders.activates > 0 || orders.wakes_sentinel {
            self.last_call = now;
        }
        for _ in 0..orders.activates.min(shared.reserves.limit()) {
            let activated = shared.reserves.activate(&self.shared);
            shared.count(activated);
            if activated == Activated::Refused {
                break;
            }
        }
        needs_more
    }

    /// Returns whether nobody would see an event in time.
    fn is_unwatched(&self, now: Instant) -> bool {
        let (look, gap) = (self.lookout.last_look(), self.lookout.last_gap());
        // Those who run tasks look for events as often as the policies want, or not.
        let is_steady = || order::is_steady(now, look, gap, self.shared.options.long_poll);
        !self.lookout.is_watched() && !is_steady()
    }

    /// Lets the kernel take the processor from those that are caught in long polls when an event waits.
    fn help_against_hogs(&self, now: Instant) {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        // It was called a moment ago by the thread that set the alarm: long enough to run by itself.
        let is_somebody_called = kernel_help::is_somebody_called();
        let workers = shared.workers().len();
        for place in (0..workers).chain(shared.serving()) {
            let (remote, is_reserve) = (&shared.remotes[place], place >= workers);
            let Some((began, _)) = remote.seat.current() else { continue };
            if !remote.seat.is_caught(now, long_poll) {
                continue;
            }
            self.tell_of_hog(remote, began, now);
            if remote.seat.is_blocked() {
                continue;
            }
            if let Some((word, nanos)) = remote.seat.lesson(now, shared.options.quantum)
                && let Some((kind, early)) = Kind::from_word(word)
            {
                let beside = census::caught_beside(shared, place, word, now, long_poll);
                kind.note_lasting(early, nanos, beside);
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

    /// Tells if all threads sleep for what only a task can do for which there is no thread.
    fn look_for_deadlock(&mut self, census: Census, now: Instant) {
        let shared = &*self.shared;
        let standstill = || shared.standstill(census.waiting_count(), now);
        if self.deadlock.look(now, shared.do_all_sleep(), standstill) {
            tell_of_deadlock(shared);
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

/// Says that all threads sleep, where their tasks were spawned, and where they sleep in the kernel.
#[cold]
fn tell_of_deadlock(shared: &Shared) {
    let caught = shared.caught_in();
    let mut places = caught.iter().filter_map(|(_, place)| place.as_deref());
    if places.any(deadlock::ends_by_itself) {
        return;
    }
    contained("a subscriber", || {
        tracing::error!(
            reserve_threads = shared.reserves.limit(),
            asleep = caught.len(),
            examples = %reserve::examples(&caught),
            "a deadlock, unless somebody outside of the runtime lets go: all threads that it may have have been asleep in \
             the kernel for a second, and none is left for the tasks that are ready. Hold no blocking lock across an \
             `await` (an asynchronous one occupies no thread), raise `RuntimeBuilder::reserve_threads`, or call what blocks \
             through `spawn_blocking`"
        );
    });
}
