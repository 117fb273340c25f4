//! The thread that notices when no thread watches, or when threads sleep inside polls, and calls others.
//!
//! It never runs a task, so nothing can hold it. It sleeps on a
//! [`Watchdog`](crate::parking::watchdog::Watchdog) that threads keep postponing while they switch, so it
//! fires only if a poll is long while no thread watches, or while tasks wait behind it. Then it checks the
//! slots, calls an idle worker or reserve threads, and keeps checking while there is reason to.

use vigie_detect::{Driver, Instant, clock::monotonic_now};

use super::{
    census::{self, Census, SupervisorHistory},
    deadlock::{self, DeadlockWatch},
    local::Remote,
    order::{self, Parts, ReserveMode},
    reserve::{self, Activated},
    shared::HybridShared,
};
use crate::{
    kernel_help,
    panics::contained,
    sync::{Arc, Ordering},
    task_cell::TaskKind,
};

pub(super) struct Supervisor {
    shared: Arc<HybridShared>,
    driver: Driver,
    last_call: Instant,
    /// The time at which a reserve thread was last allowed to take any task.
    last_any: Instant,
    deadlock: DeadlockWatch,
}

impl Supervisor {
    pub(super) fn run(shared: Arc<HybridShared>) {
        let driver = shared.server.driver();
        if shared.options.kernel_help.short_slices {
            // If this thread is late to notice that no thread watches, every event is late.
            kernel_help::shorten_slice();
        }
        let long_ago = Instant::from_nanos(0);
        let (last_call, last_any) = (long_ago, long_ago);
        let deadlock = DeadlockWatch::default();
        let mut supervisor = Self { shared, driver, last_call, last_any, deadlock };
        supervisor.work();
        // The last thread cancels the remaining tasks, which may use the runtime.
        let shared = Arc::clone(&supervisor.shared);
        let entered = (shared.enter)(Arc::clone(&shared));
        supervisor.shared.end_thread();
        drop(entered);
    }

    fn work(&mut self) {
        let watchdog = &Arc::clone(&self.shared).watchdog;
        loop {
            watchdog.sleep();
            if self.shared.is_shutdown.load(Ordering::SeqCst) {
                return;
            }
            let was_resting = watchdog.is_resting();
            let now = monotonic_now();
            let options = &self.shared.options;
            let census = Census::take(&*self.shared, now, options.long_poll);
            let needs_more = self.call(census, now);
            self.help_against_hogs(now);
            self.check_for_deadlock(census, now);
            self.shared.has_long_polls.store(census.caught > 0, Ordering::Relaxed);
            let watched = (self.driver.is_watched(), self.shared.options.long_poll);
            census.plan_next_check(&*self.shared, now, (needs_more, was_resting), watched);
        }
    }

    /// Calls the threads that are needed. Returns whether to check again soon: a thread was called, or a
    /// needed one may come unasked.
    fn call(&mut self, census: Census, now: Instant) -> bool {
        let shared = &*self.shared;
        let since = SupervisorHistory {
            long_poll: shared.options.long_poll,
            call: (now - self.last_call).as_nanos() / shared.options.long_poll.as_nanos(),
            any: now - self.last_any,
        };
        let (orders, needs_more) =
            census.decide(shared, self.is_unwatched(now), since, shared.options.quantum);
        if shared.serves.load() == ReserveMode::AnyOne {
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

    /// Returns whether no thread would see an event in time.
    fn is_unwatched(&self, now: Instant) -> bool {
        let (pass, gap) = (self.driver.last_pass(), self.driver.last_gap());
        // Whether the threads that run tasks poll for events as often as the policies want.
        let is_steady = || order::is_steady(now, pass, gap, self.shared.options.long_poll);
        !self.driver.is_watched() && !is_steady()
    }

    /// Lets the kernel take the processor from threads that are stuck in long polls when an event waits.
    fn help_against_hogs(&self, now: Instant) {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        // It was called a moment ago by the thread that set the watchdog: long enough to have run by now.
        let is_somebody_called = kernel_help::is_somebody_called();
        let workers = shared.workers().len();
        for place in (0..workers).chain(shared.serving()) {
            let (remote, is_reserve) = (&shared.remotes[place], place >= workers);
            let Some((began, _)) = remote.worker_slot.current() else { continue };
            if !remote.worker_slot.is_caught(now, long_poll) {
                continue;
            }

            self.log_hog(remote, began, now);
            if remote.worker_slot.is_blocked() {
                continue;
            }

            if let Some(word) = remote.worker_slot.early_word()
                && let Some((kind, early)) = TaskKind::from_word(word)
            {
                let beside = census::caught_beside(shared, place, word, now, long_poll);
                if let Some(nanos) = remote.worker_slot.lesson(now, shared.options.quantum) {
                    kind.note_running(early, nanos, beside);
                }
                kind.note_caught(early, beside + 1);
            }

            if remote.worker_slot.log_once(began)
                && is_reserve
                && shared.options.kernel_help.short_slices
                && let Some(thread) = remote.worker_slot.thread()
            {
                // It computes like others now, and should get no shorter slice than they do.
                remote.worker_slot.give_long_slice();
                kernel_help::restore_slice(thread);
            }

            if is_somebody_called {
                remote.hog_timer.ask_now();
            }
            if is_somebody_called || shared.reserves.is_serving() {
                remote.worker_slot.help(&remote.hog_timer);
            }
        }
    }

    /// Logs if all threads sleep waiting for a task that has no thread to run on.
    fn check_for_deadlock(&mut self, census: Census, now: Instant) {
        let shared = &*self.shared;
        let standstill = || shared.standstill(census.waiting_count(), now);
        if self.deadlock.check(now, shared.do_all_sleep(), standstill) {
            log_deadlock(shared);
        }
    }

    /// Names the task that has held its thread since `began`, once it counts as a hog.
    fn log_hog(&self, remote: &Remote, began: Instant, now: Instant) {
        let shared = &*self.shared;
        if shared.hogs.is_hog(now - began)
            && let Some(poll) = remote.worker_slot.current_task(now, &shared.live)
            && shared.hogs.is_hog(poll.elapsed)
            && remote.worker_slot.log_hog_once(began)
        {
            shared.hogs.log_running(poll.name, poll.site, poll.elapsed, now);
        }
    }
}

/// Logs that all threads sleep, where their tasks were spawned, and where they sleep in the kernel.
#[cold]
fn log_deadlock(shared: &HybridShared) {
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
            "a deadlock, unless something outside the runtime wakes a thread: every thread that the runtime may have has been \
             asleep in the kernel for a second, and no thread is left for the ready tasks. Hold no blocking lock across an \
             `await` (an asynchronous one occupies no thread), raise `RuntimeBuilder::reserve_threads`, or make blocking \
             calls through `spawn_blocking`"
        );
    });
}
