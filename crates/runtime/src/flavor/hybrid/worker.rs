//! A thread that runs tasks: a worker, which runs both lanes, or a reserve thread, which runs the
//! reaction lane, tasks that are known to be short, and anything in the place of a thread that sleeps.

use vigie_detect::{Detected, Instant, Lookout, clock::monotonic_now};

use super::{
    Cause, LATER, LOCAL, Local, Queue, Remote, Runnable, SOON, Serves, Shared, Woken, supervisor,
    take,
};
use crate::{
    context,
    flavor::user_level::drop_task,
    handle::{Handle, Scheduler},
    kernel_help,
    lane::{ComputeQueue, Lane, Share},
    metrics::Sampler,
    panics::contained,
    sync::{Arc, Ordering},
    task_cell::TaskInfo,
};
use std::{cell::Cell, rc::Rc, time::Duration};

/// How often a worker that computes looks whether reactions wait at other threads.
const ROB_EVERY: Duration = Duration::from_micros(50);

/// A task whose usual poll is no longer than this may wake others without calling a worker for them.
const SHORT_NS: u32 = 20_000;

struct Worker {
    /// Its place among the remotes.
    index: usize,
    shared: Arc<Shared>,
    local: Rc<Local>,
    lookout: Lookout,
    share: Share,
    random: fastrand::Rng,
    is_searching: bool,
    /// When it last looked for reactions at other threads.
    robbed_at: Instant,
    /// A reserve thread that computes in the place of one that sleeps.
    is_substitute: bool,
}

/// What a worker's thread does, from its beginning to its end.
pub(super) fn run(shared: Arc<Shared>, index: usize, queue: Queue<Runnable>) {
    let lookout = shared.server.lookout();
    let (mut worker, entered) = Worker::new(shared, index, queue, lookout, false);
    worker.shared.remotes[index].parker.bind();
    worker.work();
    worker.stop_searching();
    worker.leave();
    drop(entered);
}

/// What a reserve thread does, from its beginning to its end.
pub(super) fn run_reserve(shared: Arc<Shared>, slot: usize) {
    let index = shared.options.workers + slot;
    let lookout = shared.server.lookout().for_watcher();
    let (mut reserve, entered) = Worker::new(shared, index, Queue::new_fifo(), lookout, true);
    let shared = Arc::clone(&reserve.shared);
    loop {
        reserve.serve();
        if !shared.reserves.rest(slot) {
            break;
        }
    }
    reserve.leave();
    // After everything else: another thread may take the slot at once.
    shared.reserves.leave(slot);
    // Inside the runtime: what it cancels may use it.
    shared.end_thread();
    drop(entered);
}

impl Worker {
    fn new(
        shared: Arc<Shared>,
        index: usize,
        queue: Queue<Runnable>,
        lookout: Lookout,
        is_reserve: bool,
    ) -> (Self, context::Entered) {
        let handle = Handle { scheduler: Scheduler::Hybrid(Arc::clone(&shared)) };
        let entered = context::enter(handle);
        let local = Rc::new(Local {
            owner: Arc::as_ptr(&shared),
            reacting: queue,
            place: index,
            worker: (!is_reserve).then_some(index),
            cause: Cell::new(Cause::Foreign),
            switched_at: Cell::new(0),
            is_short: Cell::new(false),
            sampler: Sampler::new(u32::try_from(index).unwrap_or(0)),
            woken_at: Cell::new(Woken::Nobody),
        });
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
            robbed_at: Instant::from_nanos(0),
            is_substitute: false,
            local,
            shared,
        };
        (worker, entered)
    }

    fn remote(&self) -> &Remote {
        &self.shared.remotes[self.index]
    }

    fn computing(&self) -> Option<&ComputeQueue<Runnable>> {
        self.shared.computing.get(self.local.worker?)
    }

    /// Takes note of a time that was read.
    fn note_time(&self, now: Instant) {
        self.local.switched_at.set(now.as_nanos());
        context::sample_processor_time(now.as_nanos());
    }

    fn work(&mut self) {
        let mut now = monotonic_now();
        self.note_time(now);
        while !self.shared.is_shutdown.load(Ordering::Relaxed) {
            now = self.look_if_due(now);
            if let Some((task, lane)) = self.next(now) {
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
                self.note_time(now);
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

    /// Serves the reaction lane and watches, until there is nothing to serve and another thread
    /// watches.
    fn serve(&mut self) {
        let mut now = monotonic_now();
        self.note_time(now);
        while !self.shared.is_shutdown.load(Ordering::Relaxed) {
            now = self.look_if_due(now);
            if let Some((task, lane)) = self.next_of_reserve() {
                self.share_out();
                now = self.poll(task, lane, now);
                continue;
            }
            self.rest();
            if self.remote().seat.take_long_slice() {
                kernel_help::shorten_slice();
            }
            self.end_substitution();
            // Now rather than after the sleep: an event is waited for then.
            self.note_time(now);
            if !self.watch(now) {
                break;
            }
            now = self.local.take_woken_at();
            self.local.switched_at.set(now.as_nanos());
        }
        self.end_substitution();
        self.rest();
    }

    /// The next task for a reserve thread: reactions first; then anything in the place of a thread that
    /// sleeps; then short tasks, which should not wait behind long polls.
    fn next_of_reserve(&mut self) -> Option<(Runnable, Lane)> {
        if self.is_substitute && self.shared.blocked.is_overfull() {
            self.end_substitution();
        }
        let computes_first = self.share.first() == Lane::Compute;
        let compute = |reserve: &mut Self| Some((reserve.compute_of_reserve()?, Lane::Compute));
        if computes_first && let Some(next) = compute(self) {
            return Some(next);
        }
        while let Some(task) = self.local.reacting.pop().or_else(|| self.take_reaction()) {
            if self.is_substitute || self.may_serve(task.metadata()) {
                return Some((task, Lane::Reaction));
            }
            // It waits for a worker, before all that has used more.
            let rank = self.shared.rank(&task, self.local.switched_at.get());
            self.shared.injected.compute.push(task, rank);
        }
        if computes_first { None } else { compute(self) }
    }

    /// Returns whether a reserve thread runs the task's reaction, by what is known of the task: where several
    /// reserve threads are caught, one more that is would only make events wait for the next one.
    fn may_serve(&self, task: &TaskInfo) -> bool {
        match self.shared.serves.load() {
            Serves::ShortReactions => !task.is_distrusted(),
            Serves::TrustedReactions => task.is_trusted(),
            Serves::Reactions | Serves::Short | Serves::All => true,
        }
    }

    fn compute_of_reserve(&mut self) -> Option<Runnable> {
        let shared = Arc::clone(&self.shared);
        let mut queues = shared.computing.iter().chain([&shared.injected.compute]);
        if !self.is_substitute {
            self.is_substitute = shared.blocked.substitute();
        }
        if self.is_substitute {
            queues.max_by_key(|queue| queue.len()).and_then(ComputeQueue::pop)
        } else {
            match shared.serves.load() {
                Serves::Short => queues.find_map(ComputeQueue::pop_short),
                Serves::All => queues.find_map(ComputeQueue::pop),
                _ => None,
            }
        }
    }

    fn end_substitution(&mut self) {
        if std::mem::take(&mut self.is_substitute) {
            self.shared.blocked.leave();
        }
    }

    /// Sleeps in the wait point. Returns whether this thread is still needed.
    fn watch(&mut self, now: Instant) -> bool {
        let shared = &*self.shared;
        if shared.idle.has_sleepers() || self.is_steady(now) {
            // An idle worker takes the wait point, or the busy ones look by themselves. The supervisor
            // sees to it that this is so.
            let _ = shared.wake_one();
            shared.alarm.guard(now.as_nanos(), SOON, || false);
            return false;
        }
        // A call that came before the sleep wants us awake, too.
        let mut is_free = true;
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
    fn take_reaction(&self) -> Option<Runnable> {
        let shared = &*self.shared;
        if let Some(task) = take(|| shared.injected.reaction.steal()) {
            return Some(task);
        }
        // One at a time: if this one holds us, the others can still be had by other threads.
        let queues = shared.reacting.iter().filter(|queue| !queue.is_empty());
        queues.into_iter().find_map(|queue| take(|| queue.steal()))
    }

    /// Looks for events at `now` if that is due. Returns the time.
    fn look_if_due(&mut self, now: Instant) -> Instant {
        if !self.lookout.is_due(now) {
            return now;
        }
        self.local.cause.set(Cause::Detection);
        contained("a look", || self.lookout.detect());
        self.local.woken_at.set(Woken::Nobody);
        // The look is no part of the poll that follows, nor older than the tasks that it made ready.
        let now = monotonic_now();
        self.note_time(now);
        now
    }

    /// The next task of this worker's own queues or of the injected ones; before a computation, also a
    /// reaction that waits at another thread.
    fn next(&mut self, now: Instant) -> Option<(Runnable, Lane)> {
        let reacting = &self.local.reacting;
        // Injected tasks join the end of the lane, so that neither source starves the other.
        if !self.shared.injected.reaction.is_empty() {
            let _ = take(|| self.shared.injected.reaction.steal_batch(reacting));
        }
        if self.share.first() == Lane::Compute
            && let Some(task) = self.compute()
        {
            return Some((task, Lane::Compute));
        }
        if let Some(task) = reacting.pop() {
            return Some((task, Lane::Reaction));
        }
        if now - self.robbed_at >= ROB_EVERY && self.computing().is_some_and(|own| !own.is_empty())
        {
            self.robbed_at = now;
            if let Some(task) = self.take_reaction() {
                return Some((task, Lane::Reaction));
            }
        }
        Some((self.compute()?, Lane::Compute))
    }

    /// The next task of this worker's compute lane, which injected tasks join.
    fn compute(&self) -> Option<Runnable> {
        let (own, injected) = (self.computing()?, &self.shared.injected.compute);
        if !injected.is_empty() {
            own.take_batch(injected);
        }
        own.pop()
    }

    /// Wakes another worker if there is more to do here than the task about to be polled.
    fn share_out(&self) {
        if self.shared.idle.may_need_waking() && self.has_more() {
            self.shared.wake_one();
        }
    }

    /// Returns whether tasks wait where this thread puts those that it makes ready.
    fn has_more(&self) -> bool {
        match self.computing() {
            Some(own) => !self.local.reacting.is_empty() || !own.is_empty(),
            None => !self.shared.injected.reaction.is_empty(),
        }
    }

    /// Sees to it that the supervisor notices if the poll that comes is a long one while no other thread
    /// watches, or while tasks wait behind it.
    #[inline]
    fn guard(&self, task: &TaskInfo, now: Instant) {
        let shared = &*self.shared;
        let timer = &self.remote().hog_timer;
        let usual = task.account.usual_ns();
        self.local.is_short.set(task.is_trusted() && usual.is_some_and(|usual| usual <= SHORT_NS));
        // A known hog: an event that comes meanwhile should not have to wait for the kernel's tick.
        let quantum = shared.options.quantum.as_nanos();
        if usual.is_some_and(|usual| u128::from(usual) > quantum) {
            if !timer.is_set() && shared.reserves.is_serving() {
                timer.start();
            }
        } else if timer.is_set() {
            timer.stop();
        }
        if !self.lookout.is_watched() || !self.local.reacting.is_empty() {
            shared.alarm.guard(now.as_nanos(), SOON, || self.may_put_off(now));
        } else if self.computing().is_some_and(|own| !own.is_empty()) {
            shared.alarm.guard(now.as_nanos(), LATER, || false);
        }
    }

    /// Returns whether the supervisor is not needed for others: none is inside a long poll, and looks are
    /// as frequent as the policies want.
    #[cold]
    fn may_put_off(&self, now: Instant) -> bool {
        let shared = &*self.shared;
        let long_poll = shared.long_poll_ns();
        let is_caught = |remote: &Remote| {
            !std::ptr::eq(remote, self.remote()) && remote.seat.is_caught(now, long_poll)
        };
        (self.lookout.is_watched() || self.is_steady(now))
            && !shared.workers().iter().any(is_caught)
    }

    /// Polls a task, or drops it if it is aborted. Returns the time.
    fn poll(&mut self, task: Runnable, lane: Lane, now: Instant) -> Instant {
        self.local.cause.set(Cause::Poll);
        self.local.switched_at.set(now.as_nanos());
        let info = task.metadata();
        if info.is_aborted() {
            drop_task(task);
            return monotonic_now();
        }
        self.guard(info, now);
        let remote = self.remote();
        remote.seat.begin(now, info);
        let sleeps = info.sleeps();
        if sleeps {
            self.expect_sleep(now);
        }
        remote.counters.begin_poll(info.ready_time(), now.as_nanos());
        context::begin_poll(
            now.as_nanos(),
            info.account.credit(),
            info.is_proven(),
            self.shared.options.long_poll,
        );
        // The future's panics are caught inside; what may come out is that of a waker.
        contained("a poll", || task.run());
        let end = context::take_poll_end().map_or_else(monotonic_now, Instant::from_nanos);
        let elapsed = end - now;
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let computing = self.computing().unwrap_or(&self.shared.injected.compute).len();
        let reacting = if computing > 0 { self.local.reacting.len() } else { 0 };
        self.share.record(lane, nanos, reacting, computing);
        self.remote().counters.end_poll(lane, nanos);
        if sleeps || elapsed > self.shared.options.long_poll {
            self.after_long_poll(lane, end);
        }
        end
    }

    /// The task that is about to be polled slept in the kernel when it was polled last: another thread
    /// takes our place at once, without waiting for the supervisor to see it.
    #[cold]
    fn expect_sleep(&self, now: Instant) {
        let shared = &self.shared;
        self.remote().seat.expect_sleep(now, &shared.blocked);
        let is_needed = !self.lookout.is_watched() || self.has_more() || shared.has_work();
        if is_needed && !shared.wake_one() && !shared.call_sentinel() {
            shared.reserve_counters.count(shared.reserves.activate(shared));
        }
    }

    #[cold]
    fn after_long_poll(&self, lane: Lane, end: Instant) {
        self.remote().seat.end_long_poll(&self.shared.blocked);
        if let Some(poll) = context::take_long_poll() {
            let is_hog = self.shared.hogs.record(poll, lane, end);
            self.remote().counters.count_long_poll(is_hog);
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
        let begin = self.random.usize(..shared.reacting.len());
        let own = &self.local.reacting;
        if let Some(task) = take(|| shared.injected.reaction.steal_batch_and_pop(own)) {
            return Some((task, Lane::Reaction));
        }
        // Our own queue among them is empty.
        for queue in shared.reacting[begin..].iter().chain(&shared.reacting[..begin]) {
            if let Some(task) = take(|| queue.steal_batch_and_pop(own)) {
                return Some((task, Lane::Reaction));
            }
        }
        let own = self.computing()?;
        let others = shared.computing[begin..].iter().chain(&shared.computing[..begin]);
        [&shared.injected.compute]
            .into_iter()
            .chain(others)
            .filter(|queue| !std::ptr::eq(*queue, own))
            .find_map(|queue| queue.steal_batch_and_pop(own))
            .map(|task| (task, Lane::Compute))
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
        if self.shared.idle.is_everyone_asleep() && !self.shared.reserves.is_serving() {
            self.shared.alarm.stop();
        }
        loop {
            self.local.begin_detection();
            self.shared.remotes[self.index].parker.park(|is_awaited| {
                let slept = contained("a sleep", || self.lookout.park_unless(None, is_awaited));
                slept != Some(Detected::Busy)
            });
            if self.has_more() || self.shared.is_shutdown.load(Ordering::SeqCst) {
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

    /// Gives up what is queued here.
    fn leave(self) {
        let remote = self.remote();
        remote.hog_timer.unbind();
        remote.seat.leave();
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
