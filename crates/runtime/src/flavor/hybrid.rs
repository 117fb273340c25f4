//! The hybrid flavor: many tasks over a few kernel threads, with work stealing.
//!
//! Each worker has a queue for each lane, which the others may steal from. At its switches it looks at
//! the detection server when a look is due; whoever looks, runs what it found. A worker without work
//! sleeps in the wait point if nobody else does, on its thread otherwise.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    panic::Location,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Wake, Waker},
};

use async_task::{ScheduleInfo, WithInfo};
use crossbeam::deque::{Injector, Steal, Stealer, Worker as Queue};
use vigie_detect::{Detected, Instant, Lookout, Server, clock::monotonic_now};

use super::user_level::drop_task;
use crate::{
    blocking_pool::BlockingPool,
    builder::Options,
    context,
    handle::{Handle, Scheduler},
    idle::Idle,
    join::JoinHandle,
    lane::{self, Cause, Lane, Share},
    panics::contained,
    parker::Parker,
    sync::{
        Arc, AtomicBool, AtomicUsize, Ordering,
        thread::{self, Thread},
        thread_local,
    },
    task::{self, LiveTasks, Runnable},
};

pub(crate) struct Shared {
    server: Server,
    live: Arc<LiveTasks>,
    pool: Arc<BlockingPool>,
    options: Options,
    /// Tasks that no worker made ready.
    injected: PerLane<Injector<Runnable>>,
    remotes: Box<[Remote]>,
    idle: Idle,
    is_shutdown: AtomicBool,
    /// Workers that have not ended; the last one clears up.
    running_count: AtomicUsize,
}

/// One thing for each lane.
#[derive(Debug)]
struct PerLane<T> {
    reaction: T,
    compute: T,
}

impl<T> PerLane<T> {
    const fn of(&self, lane: Lane) -> &T {
        match lane {
            Lane::Reaction => &self.reaction,
            Lane::Compute => &self.compute,
        }
    }
}

/// What others may do to a worker.
struct Remote {
    stealers: PerLane<Stealer<Runnable>>,
    parker: Parker,
}

/// What a worker's thread knows; schedule functions find it here.
struct Local {
    /// Which runtime this thread works for: compared, never followed.
    owner: *const Shared,
    queues: PerLane<Queue<Runnable>>,
    cause: Cell<Cause>,
}

thread_local! {
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// Makes the workers of a runtime. Their threads hold the shared part until the shutdown.
pub(crate) fn start(
    server: Server,
    options: Options,
) -> std::io::Result<(Arc<Shared>, Vec<thread::JoinHandle<()>>)> {
    let queues: Vec<_> = (0..options.workers)
        .map(|_| PerLane { reaction: Queue::new_fifo(), compute: Queue::new_fifo() })
        .collect();
    let remotes = queues.iter().map(|queues| Remote {
        stealers: PerLane {
            reaction: queues.reaction.stealer(),
            compute: queues.compute.stealer(),
        },
        parker: Parker::new(),
    });
    let pool = BlockingPool::new(options.blocking_threads, options.blocking_keep_alive);
    let shared = Arc::new(Shared {
        live: Arc::new(LiveTasks::new()),
        pool: Arc::new(pool),
        injected: PerLane { reaction: Injector::new(), compute: Injector::new() },
        remotes: remotes.collect(),
        idle: Idle::new(options.workers),
        is_shutdown: AtomicBool::new(false),
        running_count: AtomicUsize::new(options.workers),
        server,
        options,
    });
    let mut threads = Vec::with_capacity(shared.options.workers);
    for (index, queues) in queues.into_iter().enumerate() {
        let worker = Arc::clone(&shared);
        let name = format!("{}-{index}", shared.options.thread_name);
        let spawned =
            thread::Builder::new().name(name).spawn(move || Worker::run(worker, index, queues));
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                // Those that did not start have ended.
                let missing = shared.options.workers - index;
                shared.running_count.fetch_sub(missing, Ordering::AcqRel);
                shared.shutdown();
                for thread in threads {
                    drop(thread.join());
                }
                return Err(error);
            }
        }
    }
    Ok((shared, threads))
}

impl Shared {
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn pool(&self) -> &Arc<BlockingPool> {
        &self.pool
    }

    pub(crate) fn live(&self) -> &Arc<LiveTasks> {
        &self.live
    }

    /// Asks the workers to end. They do so after their present poll.
    pub(crate) fn shutdown(&self) {
        self.is_shutdown.store(true, Ordering::SeqCst);
        for remote in &self.remotes {
            remote.parker.unpark(|| self.server.unpark());
        }
    }

    /// Queues a task that became ready: on the worker's own queue if this is one.
    fn schedule(&self, task: Runnable, info: &ScheduleInfo) {
        let mut task = Some(task);
        // The thread's variables may be gone already while it ends.
        let _ = LOCAL.try_with(|local| {
            if let Some(local) = &*local.borrow()
                && std::ptr::eq(local.owner, self)
                && let Some(task) = task.take()
            {
                let lane =
                    lane::choose(task.metadata(), info.woken_while_running, local.cause.get());
                local.queues.of(lane).push(task);
            }
        });
        if let Some(task) = task {
            let lane = lane::choose(task.metadata(), info.woken_while_running, Cause::Foreign);
            self.injected.of(lane).push(task);
            self.wake_one();
        }
    }

    /// Wakes a worker for work that was just queued, if one sleeps and none searches.
    fn wake_one(&self) {
        if let Some(worker) = self.idle.choose() {
            self.remotes[worker].parker.unpark(|| self.server.unpark());
        }
    }

    fn has_work(&self) -> bool {
        let has = |lane| {
            !self.injected.of(lane).is_empty()
                || self.remotes.iter().any(|remote| !remote.stealers.of(lane).is_empty())
        };
        has(Lane::Reaction) || has(Lane::Compute)
    }

    /// Cancels every task and closes the server: the last worker's duty.
    fn clear(&self) {
        self.live.close();
        loop {
            let queued = take(|| self.injected.reaction.steal());
            match queued.or_else(|| take(|| self.injected.compute.steal())) {
                Some(task) => drop_task(task),
                None if self.live.count() == 0 => break,
                // Another thread is about to queue a task that it has just spawned or woken.
                None => thread::yield_now(),
            }
        }
        self.server.shutdown();
    }

    /// Runs `future` on the calling thread, which is no worker, and sleeps while it is pending.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _entered = context::enter(Handle { scheduler: Scheduler::Hybrid(Arc::clone(self)) });
        let main =
            Arc::new(ThreadWaker { is_woken: AtomicBool::new(true), thread: thread::current() });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        loop {
            if main.is_woken.swap(false, Ordering::AcqRel) {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    return value;
                }
            } else {
                thread::park();
            }
        }
    }
}

pub(crate) fn spawn<F>(
    shared: &Arc<Shared>,
    site: &'static Location<'static>,
    future: F,
) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let scheduler = Arc::clone(shared);
    let schedule =
        WithInfo(move |task: Runnable, info: ScheduleInfo| scheduler.schedule(task, &info));
    let (runnable, handle) = task::spawn(&shared.live, site, future, schedule);
    if let Some(runnable) = runnable {
        runnable.schedule();
    }
    handle
}

/// Returns whether this thread is a worker of this flavor.
pub(crate) fn is_worker() -> bool {
    LOCAL.try_with(|local| local.borrow().is_some()).unwrap_or(false)
}

/// One kernel thread that runs tasks.
struct Worker {
    index: usize,
    shared: Arc<Shared>,
    local: Rc<Local>,
    lookout: Lookout,
    share: Share,
    random: fastrand::Rng,
    is_searching: bool,
}

impl Worker {
    fn run(shared: Arc<Shared>, index: usize, queues: PerLane<Queue<Runnable>>) {
        let handle = Handle { scheduler: Scheduler::Hybrid(Arc::clone(&shared)) };
        let entered = context::enter(handle);
        shared.remotes[index].parker.bind();
        let local = Rc::new(Local {
            owner: Arc::as_ptr(&shared),
            queues,
            cause: Cell::new(Cause::Foreign),
        });
        LOCAL.with(|current| *current.borrow_mut() = Some(Rc::clone(&local)));
        let mut worker = Self {
            index,
            lookout: shared.server.lookout(),
            share: Share::new(shared.options.reaction_slice),
            random: fastrand::Rng::with_seed(index as u64),
            is_searching: false,
            local,
            shared,
        };
        worker.work();
        worker.leave();
        drop(entered);
    }

    fn work(&mut self) {
        let mut now = monotonic_now();
        while !self.shared.is_shutdown.load(Ordering::Relaxed) {
            if self.lookout.is_due(now) {
                self.local.cause.set(Cause::Detection);
                contained("a look", || self.lookout.detect());
                // Who hogs matters only where somebody computes.
                context::sample_processor_time(!self.local.queues.compute.is_empty());
            }
            if let Some((task, lane)) = self.next() {
                self.stop_searching();
                self.share_out();
                now = self.poll(task, lane, now);
            } else if let Some((task, lane)) = self.search() {
                self.stop_searching();
                now = self.poll(task, lane, now);
            } else {
                self.sleep();
                now = monotonic_now();
            }
        }
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

    /// Polls a task, or drops it if it is aborted. Returns the time.
    fn poll(&mut self, task: Runnable, lane: Lane, now: Instant) -> Instant {
        self.local.cause.set(Cause::Poll(lane));
        if task.metadata().is_aborted() {
            drop_task(task);
            return monotonic_now();
        }
        context::begin_poll(now.as_nanos(), self.shared.options.quantum);
        // The future's panics are caught inside; what may come out is that of a waker.
        contained("a poll", || task.run());
        let end = context::take_poll_end().map_or_else(monotonic_now, Instant::from_nanos);
        self.share.record(lane, end.as_nanos().saturating_sub(now.as_nanos()));
        end
    }

    fn search(&mut self) -> Option<(Runnable, Lane)> {
        if !self.is_searching {
            self.is_searching = self.shared.idle.begin_search();
        }
        if !self.is_searching {
            return None;
        }
        let count = self.shared.remotes.len();
        let begin = self.random.usize(..count);
        for lane in [Lane::Reaction, Lane::Compute] {
            let queue = self.local.queues.of(lane);
            if let Some(task) = take(|| self.shared.injected.of(lane).steal_batch_and_pop(queue)) {
                return Some((task, lane));
            }
            for victim in (0..count).map(|step| (begin + step) % count) {
                if victim == self.index {
                    continue;
                }
                let stealer = self.shared.remotes[victim].stealers.of(lane);
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
        let was_last = self.shared.idle.begin_sleep(self.index, self.is_searching);
        self.is_searching = false;
        if was_last && self.shared.has_work() {
            // Perhaps ourselves: then the sleep below ends at once.
            self.shared.wake_one();
        }
        loop {
            self.local.cause.set(Cause::Detection);
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

    /// Gives up what is queued here; the last worker clears everything.
    fn leave(mut self) {
        self.stop_searching();
        LOCAL.with(|current| current.borrow_mut().take());
        for lane in [Lane::Reaction, Lane::Compute] {
            while let Some(task) = self.local.queues.of(lane).pop() {
                self.shared.injected.of(lane).push(task);
            }
        }
        if self.shared.running_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.clear();
        }
    }
}

/// Steals until the attempt has an answer.
fn take<T>(steal: impl Fn() -> Steal<T>) -> Option<T> {
    loop {
        match steal() {
            Steal::Success(value) => return Some(value),
            Steal::Empty => return None,
            Steal::Retry => {}
        }
    }
}

/// Wakes the thread that sits in `block_on`.
struct ThreadWaker {
    /// Set by whoever wakes (release), taken by the thread (acquire).
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}
