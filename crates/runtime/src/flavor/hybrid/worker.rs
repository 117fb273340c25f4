//! A thread that runs tasks: a worker, which runs both lanes, or a reserve thread, which runs the
//! reaction lane alone.

use vigie_detect::{Detected, Instant, Lookout, clock::monotonic_now};

use super::{
    Cause, LOCAL, Local, PerLane, Queue, Remote, Runnable, Shared, Woken, supervisor, take,
};
use crate::{
    context,
    flavor::user_level::drop_task,
    handle::{Handle, Scheduler},
    kernel_help,
    lane::{Lane, Share},
    metrics::Sampler,
    panics::contained,
    sync::{Arc, Ordering},
    task_cell::TaskInfo,
};
use std::{cell::Cell, rc::Rc, time::Duration};

/// How long no task is trusted after one that was has had a long poll.
const DISTRUST: Duration = Duration::from_secs(10);

/// A poll longer than this is no accident of the kernel's scheduler.
const HUGE_POLL: Duration = Duration::from_millis(20);

struct Worker {
    /// Its place among the remotes.
    index: usize,
    shared: Arc<Shared>,
    local: Rc<Local>,
    lookout: Lookout,
    share: Share,
    random: fastrand::Rng,
    is_searching: bool,
}

/// What a worker's thread does, from its beginning to its end.
pub(super) fn run(shared: Arc<Shared>, index: usize, queues: PerLane<Queue<Runnable>>) {
    let lookout = shared.server.lookout();
    let (mut worker, entered) = Worker::new(shared, index, queues, lookout, false);
    worker.shared.remotes[index].parker.bind();
    worker.work();
    worker.stop_searching();
    worker.leave();
    drop(entered);
}

/// What a reserve thread does, from its beginning to its end.
pub(super) fn run_reserve(shared: Arc<Shared>, slot: usize, queues: PerLane<Queue<Runnable>>) {
    let index = shared.options.workers + slot;
    let lookout = shared.server.lookout().for_watcher();
    let (mut reserve, entered) = Worker::new(shared, index, queues, lookout, true);
    let shared = Arc::clone(&reserve.shared);
    loop {
        reserve.serve();
        if !shared.reserves.rest(slot) {
            break;
        }
    }
    let queues = reserve.leave();
    // After everything else: another thread may take the slot at once.
    if let Some(queues) = queues {
        shared.reserves.leave(slot, queues);
    }
    // Inside the runtime: what it cancels may use it.
    shared.end_thread();
    drop(entered);
}

impl Worker {
    fn new(
        shared: Arc<Shared>,
        index: usize,
        queues: PerLane<Queue<Runnable>>,
        lookout: Lookout,
        is_reserve: bool,
    ) -> (Self, context::Entered) {
        let handle = Handle { scheduler: Scheduler::Hybrid(Arc::clone(&shared)) };
        let entered = context::enter(handle);
        let owner = Arc::as_ptr(&shared);
        let cause = Cell::new(Cause::Foreign);
        let sampler = Sampler::new(u32::try_from(index).unwrap_or(0));
        let woken_at = Cell::new(Woken::Nobody);
        let local = Rc::new(Local { owner, queues, is_reserve, cause, sampler, woken_at });
        LOCAL.with(|current| *current.borrow_mut() = Some(Rc::clone(&local)));
        let remote = &shared.remotes[index];
        remote.seat.take();
        if let (Some(signal), Some(descriptor)) = (shared.signal, shared.server.wait_point()) {
            remote.hog_timer.bind(signal, descriptor);
        }
        if is_reserve && shared.options.kernel_help.short_slices {
            kernel_help::shorten_slice();
        }
        let worker = Self {
            index,
            lookout,
            share: Share::new(shared.options.reaction_slice),
            random: fastrand::Rng::with_seed(index as u64),
            is_searching: false,
            local,
            shared,
        };
        (worker, entered)
    }

    fn remote(&self) -> &Remote {
        &self.shared.remotes[self.index]
    }

    fn work(&mut self) {
        let mut now = monotonic_now();
        context::bound_processor_time(now.as_nanos());
        while !self.shared.is_shutdown.load(Ordering::Relaxed) {
            now = self.look_if_due(now);
            if let Some((task, lane)) = self.next() {
                self.stop_searching();
                self.share_out();
                now = self.poll(task, lane, now);
            } else if let Some((task, lane)) = self.search() {
                self.stop_searching();
                now = self.poll(task, lane, monotonic_now());
            } else {
                self.rest();
                self.sleep();
                now = self.local.take_woken_at();
                context::bound_processor_time(now.as_nanos());
                self.lookout.resume(now);
            }
        }
        self.rest();
    }

    /// Nothing is polled any more.
    fn rest(&self) {
        let remote = self.remote();
        remote.seat.rest(&remote.hog_timer);
    }

    /// Serves the reaction lane and watches, until there is nothing to serve and somebody else who
    /// watches.
    fn serve(&mut self) {
        context::sample_processor_time(true);
        let mut now = monotonic_now();
        while !self.shared.is_shutdown.load(Ordering::Relaxed) {
            now = self.look_if_due(now);
            let task = self.local.queues.reaction.pop().or_else(|| self.take_reaction());
            if let Some(task) = task {
                self.share_out();
                now = self.poll(task, Lane::Reaction, now);
                continue;
            }
            self.rest();
            if self.remote().seat.take_long_slice() {
                kernel_help::shorten_slice();
            }
            // Now rather than after the sleep: an event is waited for then.
            context::sample_processor_time(true);
            if !self.watch(now) {
                break;
            }
            now = self.local.take_woken_at();
        }
        self.rest();
    }

    /// Sleeps in the wait point. Returns whether this thread is still needed.
    fn watch(&mut self, now: Instant) -> bool {
        let shared = &*self.shared;
        if shared.idle.has_sleepers() || self.is_steady(now) {
            // An idle worker takes the wait point, or the busy ones look by themselves. The supervisor
            // sees to it that this is so.
            let _ = shared.wake_one();
            shared.alarm.set();
            return false;
        }
        let mut is_free = false;
        let (index, lookout) = (self.index, &mut self.lookout);
        shared.remotes[index].counters.count_sleep();
        self.local.begin_detection();
        shared.remotes[index].parker.park(|is_awaited| {
            let slept = contained("a sleep", || {
                lookout.park_unless(None, || {
                    let has_work = || !shared.injected.reaction.is_empty();
                    shared.baton.take(index, || is_awaited() || has_work())
                })
            });
            is_free = slept != Some(Detected::Busy);
            // Not our thread's own sleep: whoever is in the wait point instead watches.
            true
        });
        shared.baton.give_up(index);
        is_free
    }

    /// Returns whether the workers look for events by themselves, often enough.
    fn is_steady(&self, now: Instant) -> bool {
        supervisor::is_steady(&self.lookout, now, self.shared.options.long_poll)
    }

    /// A task of the reaction lane that lies elsewhere.
    fn take_reaction(&mut self) -> Option<Runnable> {
        if let Some(task) = take(|| self.shared.injected.reaction.steal()) {
            return Some(task);
        }
        let shared = &*self.shared;
        let reserves = shared.reserves.serving().map(|slot| shared.reserve(slot));
        // One at a time: if this one holds us, the others can still be had by somebody else.
        shared
            .workers()
            .iter()
            .chain(reserves)
            .find_map(|remote| take(|| remote.stealers.reaction.steal()))
    }

    /// Looks for events at `now` if that is due. Returns the time.
    fn look_if_due(&mut self, now: Instant) -> Instant {
        if !self.lookout.is_due(now) {
            return now;
        }
        self.local.cause.set(Cause::Detection);
        contained("a look", || self.lookout.detect());
        self.local.woken_at.set(Woken::Nobody);
        // Who hogs matters only where somebody computes.
        let judges = self.local.is_reserve || !self.local.queues.compute.is_empty();
        context::sample_processor_time(judges);
        // The look is no part of the poll that follows, nor older than the tasks that it made ready.
        let now = monotonic_now();
        if !judges {
            context::bound_processor_time(now.as_nanos());
        }
        now
    }

    /// The next task of this worker's own queues or of the injected ones.
    fn next(&self) -> Option<(Runnable, Lane)> {
        let order = match self.share.first() {
            Lane::Reaction => [Lane::Reaction, Lane::Compute],
            Lane::Compute => [Lane::Compute, Lane::Reaction],
        };
        order.into_iter().find_map(|lane| {
            let queue = self.local.queues.of(lane);
            let injected = self.shared.injected.of(lane);
            // Injected tasks join the end of the lane, so that neither source starves the other.
            if !injected.is_empty() {
                let _ = take(|| injected.steal_batch(queue));
            }
            Some((queue.pop()?, lane))
        })
    }

    /// Wakes another worker if there is more to do here than the task about to be polled.
    fn share_out(&self) {
        let queues = &self.local.queues;
        if self.shared.idle.may_need_waking()
            && !(queues.reaction.is_empty() && queues.compute.is_empty())
        {
            self.shared.wake_one();
        }
    }

    /// Sees to it that somebody notices if the poll that comes is a long one: nobody watches, or a
    /// task of the reaction lane waits behind it.
    #[inline]
    fn guard(&self, task: &TaskInfo, now: Instant) -> bool {
        let shared = &*self.shared;
        let timer = &self.remote().hog_timer;
        // A known hog: an event that comes meanwhile should not have to wait for the kernel's tick.
        if task.is_on_probation() {
            if !timer.is_set() && shared.reserves.is_serving() {
                timer.start();
            }
        } else if timer.is_set() {
            timer.stop();
        }
        let is_trusted = task.is_trusted()
            && shared.has_backstop.load(Ordering::Relaxed)
            && now.as_nanos() > shared.distrust_until.load(Ordering::Relaxed);
        if !shared.alarm.is_set()
            && !is_trusted
            && (!self.lookout.is_watched() || !self.local.queues.reaction.is_empty())
        {
            shared.alarm.set();
        }
        is_trusted
    }

    /// Polls a task, or drops it if it is aborted. Returns the time.
    fn poll(&mut self, task: Runnable, lane: Lane, now: Instant) -> Instant {
        self.local.cause.set(Cause::Poll(lane));
        if task.metadata().is_aborted() {
            drop_task(task);
            return monotonic_now();
        }
        let was_trusted = self.guard(task.metadata(), now);
        let remote = self.remote();
        remote.seat.begin(now, task.metadata());
        remote.counters.begin_poll(task.metadata().ready_time(), now.as_nanos());
        let options = &self.shared.options;
        context::begin_poll(now.as_nanos(), options.quantum, options.long_poll);
        // The future's panics are caught inside; what may come out is that of a waker.
        contained("a poll", || task.run());
        let end = context::take_poll_end().map_or_else(monotonic_now, Instant::from_nanos);
        let elapsed = end - now;
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.share.record(lane, nanos);
        self.remote().counters.end_poll(lane, nanos);
        if elapsed > self.shared.options.long_poll {
            self.after_long_poll(was_trusted, lane, elapsed, end);
        }
        end
    }

    #[cold]
    fn after_long_poll(&self, was_trusted: bool, lane: Lane, elapsed: Duration, end: Instant) {
        if let Some(poll) = context::take_long_poll() {
            let is_hog = self.shared.hogs.record(poll, lane, end);
            self.remote().counters.count_long_poll(is_hog);
        }
        let long_poll = self.shared.options.long_poll;
        // Not if the thread only waited for a processor; but blocking for so long counts.
        let is_surprise = || elapsed > HUGE_POLL || context::processor_time_used() > long_poll;
        if was_trusted && is_surprise() {
            let until = (end + DISTRUST).as_nanos();
            self.shared.distrust_until.store(until, Ordering::Relaxed);
        }
    }

    fn search(&mut self) -> Option<(Runnable, Lane)> {
        if !self.is_searching {
            self.is_searching = self.shared.idle.begin_search();
        }
        if !self.is_searching {
            return None;
        }
        let shared = &*self.shared;
        let workers = shared.workers();
        let begin = self.random.usize(..workers.len());
        let victims = || {
            let (later, first) = (&workers[begin..], &workers[..begin]);
            later.iter().chain(first).filter(|remote| !std::ptr::eq(*remote, self.remote()))
        };
        for lane in [Lane::Reaction, Lane::Compute] {
            let queue = self.local.queues.of(lane);
            if let Some(task) = take(|| shared.injected.of(lane).steal_batch_and_pop(queue)) {
                return Some((task, lane));
            }
            // A reserve has nothing in its compute lane.
            let reserves = shared.reserves.serving().map(|slot| shared.reserve(slot));
            for remote in victims().chain(reserves) {
                let stealer = remote.stealers.of(lane);
                if let Some(task) = take(|| stealer.steal_batch_and_pop(queue)) {
                    return Some((task, lane));
                }
            }
        }
        None
    }

    fn stop_searching(&mut self) {
        if self.is_searching {
            self.is_searching = false;
            if self.shared.idle.end_search() {
                self.shared.wake_one();
            }
        }
    }

    fn sleep(&mut self) {
        self.remote().counters.count_sleep();
        let was_last = self.shared.idle.begin_sleep(self.index, self.is_searching);
        self.is_searching = false;
        if was_last && self.shared.has_work() {
            // Perhaps ourselves: then the sleep below ends at once.
            self.shared.wake_one();
        }
        loop {
            self.local.begin_detection();
            self.shared.remotes[self.index].parker.park(|is_awaited| {
                let slept = contained("a sleep", || self.lookout.park_unless(None, is_awaited));
                slept != Some(Detected::Busy)
            });
            let has_work = {
                let queues = &self.local.queues;
                !(queues.reaction.is_empty() && queues.compute.is_empty())
            };
            if has_work || self.shared.is_shutdown.load(Ordering::SeqCst) {
                // Somebody may have chosen us meanwhile: then we are a searcher, with work.
                self.is_searching = !self.shared.idle.end_sleep(self.index);
                return;
            }
            if !self.shared.idle.is_sleeping(self.index) {
                self.is_searching = true;
                return;
            }
        }
    }

    /// Gives up what is queued here, and the queues.
    fn leave(self) -> Option<PerLane<Queue<Runnable>>> {
        let remote = self.remote();
        remote.hog_timer.unbind();
        remote.seat.leave();
        LOCAL.with(|current| current.borrow_mut().take());
        let Self { local, shared, .. } = self;
        for lane in [Lane::Reaction, Lane::Compute] {
            while let Some(task) = local.queues.of(lane).pop() {
                shared.injected.of(lane).push(task);
            }
        }
        if !local.is_reserve {
            shared.end_thread();
        }
        // Nobody else has it: the thread's variable was the other owner.
        Rc::into_inner(local).map(|local| local.queues)
    }
}
