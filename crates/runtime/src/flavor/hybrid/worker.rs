//! A thread that runs tasks: a worker, which runs both lanes, or a reserve thread, which runs the reaction
//! lane, tasks that are known to be short, and anything in the place of a sleeping thread.

use std::{cell::Cell, os::fd::AsRawFd, rc::Rc};

use crossbeam::deque::Worker as Queue;
use vigie_detect::{Detected, Instant};

use super::{
    Driver,
    local::{Local, Remote, Woken},
    monotonic_now, need,
    order::{self, OwnQueues, Parts, Turns, WakeContext},
    shared::{HybridShared, LOCAL, was_asleep},
};
use crate::{
    context::EnteredContext,
    kernel_help,
    lane::{Cause, Lane, Rank},
    measure::Sampler,
    panics::contained,
    sync::{Arc, Ordering},
    task_cell::{Runnable, TaskInfo, drop_task, poll},
};

struct Worker {
    /// Its index among the remotes.
    index: usize,
    shared: Arc<HybridShared>,
    local: Rc<Local<HybridShared>>,
    driver: Driver,
    turns: Turns,
}

/// The main function of a worker's thread.
pub(super) fn run(shared: Arc<HybridShared>, index: usize, queue: Queue<Runnable>) {
    // A single worker has no other thread to watch beside it.
    let driver = shared.server.driver();
    let driver = if shared.options.workers > 1 { driver.sharing() } else { driver };
    let (mut worker, entered) = Worker::new(shared, index, queue, driver, false);
    worker.shared.remotes[index].parker.bind();
    worker.work();
    worker.turns.stop_searching(&*worker.shared);
    worker.leave();
    drop(entered);
}

/// The main function of a reserve thread.
pub(super) fn run_reserve(shared: Arc<HybridShared>, slot: usize) {
    let index = shared.options.workers + slot;
    let driver = shared.server.driver().for_watcher();
    let (mut reserve, entered) = Worker::new(shared, index, Queue::new_fifo(), driver, true);
    let shared = Arc::clone(&reserve.shared);
    loop {
        reserve.serve();
        if !shared.reserves.rest(slot, shared.blocked_count()) {
            break;
        }
    }
    reserve.leave();
    // After everything else: another thread may take the slot at once.
    shared.reserves.leave(slot);
    // Inside the runtime: the tasks that it cancels may use it.
    shared.end_thread();
    drop(entered);
}

impl Worker {
    fn new(
        shared: Arc<HybridShared>,
        index: usize,
        queue: Queue<Runnable>,
        driver: Driver,
        is_reserve: bool,
    ) -> (Self, EnteredContext) {
        let entered = (shared.enter)(Arc::clone(&shared));
        let local = Rc::new(Local {
            owner: Arc::clone(&shared),
            reacting: queue,
            place: index,
            worker: (!is_reserve).then_some(index),
            cause: Cell::new(Cause::Foreign),
            switched_at: Cell::new(0),
            is_short: Cell::new(false),
            woken_ns: Cell::new(0),
            sampler: Sampler::new(u32::try_from(index).unwrap_or(0)),
            woken_at: Cell::new(Woken::None),
        });

        LOCAL.with(|current| *current.borrow_mut() = Some(Rc::clone(&local)));
        poll::is_watched_by(was_asleep);
        let remote = &shared.remotes[index];
        remote.worker_slot.take();
        if let (Some(signal), Some(descriptor)) = (shared.signal, shared.server.poller_fd()) {
            remote.hog_timer.bind(signal, descriptor.as_raw_fd());
        }
        if is_reserve && shared.options.kernel_help.short_slices {
            kernel_help::shorten_slice();
        }

        let worker = Self {
            index,
            driver,
            turns: Turns::new(index, shared.options.reaction_slice),
            local,
            shared,
        };
        (worker, entered)
    }

    fn remote(&self) -> &Remote {
        &self.shared.remotes[self.index]
    }

    fn own(&self) -> OwnQueues<'_, Runnable> {
        self.local.own()
    }

    /// Records a time that was read, and returns it.
    fn note_time(&self, now: Instant) -> Instant {
        self.local.switched_at.set(now.as_nanos());
        poll::sample_processor_time(now.as_nanos());
        now
    }

    fn work(&mut self) {
        let mut now = self.note_time(monotonic_now());
        while !self.shared.is_shutdown.load(Ordering::Relaxed) {
            now = self.poll_if_due(now);
            let Self { shared, local, turns, .. } = &mut *self;
            let (parts, own) = (&**shared, &local.own());
            if let Some((task, lane)) = turns.next(parts, own, now) {
                turns.stop_searching(parts);
                turns.distribute(parts, own);
                now = self.poll(task, lane, now);
            } else if let Some((task, lane)) = turns.search(parts, own) {
                turns.stop_searching(parts);
                now = self.poll(task, lane, monotonic_now());
            } else {
                self.rest();
                self.sleep(now);
                now = self.local.take_woken_at();
                self.turns.note_wake(now);
                poll::note_sleep(now.as_nanos());
                self.note_time(now);
                self.driver.resume(now);
            }
        }
        self.rest();
    }

    /// Nothing is polled any more.
    fn rest(&self) {
        let remote = self.remote();
        remote.worker_slot.rest(&remote.hog_timer);
    }

    /// Serves the reaction lane and watches, until there is nothing to serve and another thread watches.
    fn serve(&mut self) {
        let mut now = self.note_time(monotonic_now());
        self.turns.answer_call(&*self.shared, now);
        let mut has_served = true;
        while !self.shared.is_shutdown.load(Ordering::Relaxed) {
            now = self.poll_if_due(now);
            let Self { shared, local, turns, .. } = &mut *self;
            let (parts, own) = (&**shared, &local.own());
            if let Some((task, lane)) = turns.next_of_reserve(parts, own, now) {
                turns.distribute(parts, own);
                now = self.poll(task, lane, now);
                has_served = true;
                continue;
            }
            self.rest();
            if self.remote().worker_slot.take_long_slice() {
                kernel_help::shorten_slice();
            }
            self.turns.end_substitution(&*self.shared);
            // Now rather than after the sleep: an event is awaited then.
            self.note_time(now);
            if !self.watch(now) {
                break;
            }
            now = self.local.take_woken_at();
            poll::note_sleep(now.as_nanos());
            self.local.switched_at.set(now.as_nanos());
            if std::mem::take(&mut has_served) {
                self.turns.begin_service(now);
            } else {
                self.turns.continue_service(now, self.shared.options.long_poll);
            }
        }
        self.turns.end_substitution(&*self.shared);
        self.rest();
    }

    /// Sleeps in the poller. Returns whether this thread is still needed.
    fn watch(&mut self, now: Instant) -> bool {
        let shared = &*self.shared;
        if !self.turns.should_watch(shared, now, self.is_steady(now)) {
            return false;
        }
        // A call that came before the sleep also means to stay awake.
        let mut is_free = true;
        let until = self.turns.resumes_at(shared, now);
        let (index, turns, driver) = (self.index, &self.turns, &mut self.driver);
        shared.remotes[index].counters.count_sleep();
        self.local.begin_detection();
        shared.remotes[index].parker.park(|is_awaited| {
            let slept = contained("a sleep", || {
                driver.park_unless(until, || turns.become_sentinel(shared, is_awaited))
            });
            is_free = slept != Some(Detected::Busy);
            // It does not sleep on its own thread: the thread that occupies the poller watches.
            true
        });
        shared.sentinel.give_up(index);
        is_free
    }

    /// Returns whether the workers poll for events unprompted, often enough.
    fn is_steady(&self, now: Instant) -> bool {
        let (pass, gap) = (self.driver.last_pass(), self.driver.last_gap());
        order::is_steady(now, pass, gap, self.shared.options.long_poll)
    }

    /// Polls for events at `now` if a poll pass is due. Returns the time.
    fn poll_if_due(&mut self, now: Instant) -> Instant {
        if !self.driver.is_due(now) {
            return now;
        }
        self.local.begin_detection();
        contained("a poll pass", || self.driver.detect());
        self.local.woken_at.set(Woken::None);
        // The poll pass is not part of the poll that follows, nor older than the tasks that it made ready.
        let now = monotonic_now();
        self.note_time(now);
        now
    }

    /// Makes sure that the supervisor notices if the coming poll is long while no other thread watches, or
    /// while tasks wait behind it.
    #[inline]
    fn guard(&self, task: &TaskInfo, is_brief: bool, now: Instant) {
        let shared = &*self.shared;
        let timer = &self.remote().hog_timer;
        let usual = task.account.usual_ns();
        self.local.is_short.set(order::has_short_polls(&task.account, task.is_proven()));
        // A known hog: an event that comes meanwhile should not have to wait for the kernel's tick.
        let quantum = shared.options.quantum.as_nanos();
        if usual.is_some_and(|usual| u128::from(usual) > quantum) {
            if !timer.is_set() && shared.reserves.is_serving() {
                timer.start();
            }
        } else if timer.is_set() {
            timer.stop();
        }
        let is_watched = self.driver.is_watched();
        self.own().guard(shared, now, is_watched, is_brief, |is_later| {
            let is_seen = self.driver.is_watched() || self.is_steady(now);
            self.turns.may_put_off(shared, now, shared.long_poll_ns(), (is_seen, is_later))
        });
    }

    /// Polls a task, or drops it if it is aborted. Returns the time.
    fn poll(&mut self, task: Runnable, lane: Lane, now: Instant) -> Instant {
        self.local.cause.set(Cause::Poll);
        self.local.woken_ns.set(0);
        self.local.switched_at.set(now.as_nanos());

        let info = task.metadata();
        if info.is_aborted() {
            drop_task(task);
            return monotonic_now();
        }

        if lane == Lane::Reaction && info.early().is_some() {
            let may_try = need::may_try(self.shared.options.workers, self.shared.serving_count());
            if !may_try {
                info.end_trial();
            }
            let (expected, quantum) = (info.expected_ns(), self.shared.options.quantum);
            let judged_at = info.judged_at(now.as_nanos());
            let rank = order::rank_of_late(&info.account, expected, judged_at, quantum);
            if let Some(rank) = rank
                && !(may_try && info.is_tried_now())
            {
                self.put_back(task, rank, now);
                return now;
            }
        }

        let remote = self.remote();
        let sleeps = info.sleeps();
        // A sleeping worker is replaced, and a reserve thread is not relieved.
        let long_poll = self.shared.watchdog.delay_ns();
        let is_brief = !sleeps && order::is_brief(&info.account, info.is_proven(), long_poll);
        remote.worker_slot.set_brief(is_brief && self.local.worker.is_some());
        // In this order: whatever keeps this thread from its processor in between, the supervisor sees the poll or is called.
        remote.worker_slot.begin(now, info);
        self.guard(info, is_brief && !info.was_late(), now);
        if sleeps {
            self.expect_sleep(now);
        }

        remote.counters.begin_poll(info.ready_time(), now.as_nanos());
        poll::begin_poll(
            now.as_nanos(),
            info.account.credit(),
            info.is_proven(),
            self.shared.options.long_poll,
        );
        // The future's panics are caught inside; only a waker's panic can get here.
        contained("a poll", || task.run());

        let end = poll::take_poll_end().map_or_else(monotonic_now, Instant::from_nanos);
        let elapsed = end - now;
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.turns.record(&*self.shared, &self.local.own(), lane, nanos);
        self.remote().counters.end_poll(lane, nanos);
        if sleeps || elapsed > self.shared.options.long_poll {
            self.after_long_poll(lane, end);
        }
        end
    }

    /// Moves a task that was about to be polled to the compute lane.
    #[cold]
    fn put_back(&self, task: Runnable, rank: Rank, now: Instant) {
        let (cause, switched_at) = (Cause::Poll, now.as_nanos());
        let waking = WakeContext { cause, was_running: false, is_short: false, switched_at };
        self.shared.queue_here(&self.own(), task, Some(rank), waking);
    }

    /// The task about to be polled slept in the kernel in its last poll: another thread takes our place at
    /// once, before the supervisor notices.
    #[cold]
    fn expect_sleep(&self, now: Instant) {
        let shared = &self.shared;
        if self.turns.expect_sleep(&**shared, &self.own(), now, self.driver.is_watched()) {
            shared.count(shared.reserves.activate(shared));
        }
    }

    #[cold]
    fn after_long_poll(&self, lane: Lane, end: Instant) {
        let worker_slot = &self.remote().worker_slot;
        let has_slept = worker_slot.is_blocked();
        worker_slot.end_long_poll(&self.shared.blocked);
        if let Some(poll) = poll::take_long_poll() {
            if poll.has_computed || has_slept {
                self.shared.watchdog.note_long_poll(end.as_nanos(), poll.elapsed_ns);
            }
            let is_hog = self.shared.hogs.record(poll, lane, end);
            self.remote().counters.count_long_poll(is_hog);
        }
    }

    fn sleep(&mut self, now: Instant) {
        self.remote().counters.count_sleep();
        self.turns.begin_sleep(&*self.shared, now, self.driver.next_deadline());
        if self.driver.wants_second_sleeper(now)
            && let Some(place) = self.shared.idle.other_sleeper(self.index)
        {
            // It sleeps on its thread, and goes to the poller next time.
            self.shared.unpark(place);
        }
        loop {
            self.local.begin_detection();
            self.shared.remotes[self.index].parker.park(|is_awaited| {
                let slept = contained("a sleep", || self.driver.park_unless(None, is_awaited));
                slept != Some(Detected::Busy)
            });
            let is_shutdown = self.shared.is_shutdown.load(Ordering::SeqCst);
            if self.turns.ends_sleep(&*self.shared, &self.local.own(), is_shutdown) {
                return;
            }
        }
    }

    /// Gives up the tasks that are queued here.
    fn leave(self) {
        let remote = self.remote();
        remote.hog_timer.unbind();
        remote.worker_slot.leave();
        LOCAL.with(|current| current.borrow_mut().take());
        let Self { local, shared, .. } = self;
        while let Some(task) = local.reacting.pop() {
            shared.injected.reaction.push(task);
        }
        if local.worker.is_some() {
            // The last thread drops what is left in the compute lanes.
            shared.end_thread();
        }
    }
}
