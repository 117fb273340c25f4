//! The hybrid flavor: many tasks over a few kernel threads, with work stealing.
//!
//! Each worker has a queue per lane, from which the others may steal. Between polls it makes a poll pass when
//! one is due, and runs the tasks that this wakes. A worker without work sleeps in the poller
//! if no other thread does, otherwise on its thread.
//!
//! No task delays another one's event: when every thread that could watch is inside a long poll, a supervisor
//! notices and calls a reserve thread, which watches and serves the reaction lane. When a thread sleeps in
//! the kernel inside a poll, a reserve thread takes its place in both lanes. See `docs/design/reaction.md`.

mod census;
mod deadlock;
mod injected;
mod local;
mod need;
mod order;
mod reserve;
mod sentinel;
mod shared;
mod supervisor;
mod worker;
mod worker_slot;

use std::{
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, Wake, Waker},
};

use async_task::{ScheduleInfo, WithInfo};
use crossbeam::{deque::Worker as Queue, utils::CachePadded};
use vigie_detect::{Driver, Server, clock::monotonic_now};

use self::{
    local::Remote,
    order::{Injected, ReserveMode},
    reserve::Reserves,
    sentinel::Sentinel,
    supervisor::Supervisor,
    worker_slot::{Blocked, WorkerSlot},
};
pub(crate) use self::{
    reserve::RESERVES_MAX,
    shared::{HybridShared, is_awaited, is_worker},
};
use crate::{
    blocking_pool::BlockingPool,
    context::EnteredContext,
    kernel_help::{self, HogTimer},
    lane::{ComputeQueue, SharedCredit},
    measure::{Hogs, ReserveCounters, ThreadCounters},
    options::Options,
    parking::{idle::Idle, parker::Parker, watchdog::Watchdog},
    sync::{
        Arc, AtomicBool, AtomicCell, AtomicUsize, Ordering, Weak,
        thread::{self, Thread},
    },
    task_cell::{LiveTasks, Runnable, TaskInfo},
};

/// Creates the threads of a runtime. They hold the shared part until the shutdown.
pub(crate) fn start(
    server: Server,
    watchdog: Watchdog,
    options: Options,
    enter: fn(Arc<HybridShared>) -> EnteredContext,
) -> io::Result<(Arc<HybridShared>, Vec<thread::JoinHandle<()>>)> {
    let queues: Vec<Queue<Runnable>> = (0..options.workers).map(|_| Queue::new_fifo()).collect();
    let remotes = (0..options.workers + options.reserve_threads).map(|_| Remote {
        parker: Parker::new(),
        worker_slot: WorkerSlot::new(),
        hog_timer: HogTimer::new(),
        counters: CachePadded::new(ThreadCounters::new()),
    });

    let pool = BlockingPool::new(options.blocking_threads, options.blocking_keep_alive);
    let remotes = remotes.collect();
    let reserves = Reserves::new(options.reserve_threads, options.reserve_keep_alive);
    let shared = Arc::new(HybridShared {
        live: Arc::new(LiveTasks::new()),
        pool: Arc::new(pool),
        injected: Injected::new(),
        reacting: queues.iter().map(Queue::stealer).collect(),
        computing: (0..options.workers).map(|_| ComputeQueue::new()).collect(),
        foreign_credit: SharedCredit::new(),
        remotes,
        idle: Idle::new(options.workers),
        reserves,
        sentinel: Sentinel::new(),
        watchdog,
        blocked: Blocked::new(),
        serves: AtomicCell::new(ReserveMode::Nothing),
        has_long_polls: AtomicBool::new(false),
        signal: options.kernel_help.usable_signal(),
        hogs: Hogs::new(options.quantum),
        reserve_counters: ReserveCounters::new(),
        is_shutdown: AtomicBool::new(false),
        running_count: AtomicUsize::new(options.workers + 1),
        server,
        options,
        enter,
    });

    let name = &shared.options.thread_name;
    let mut bodies: Vec<(String, Box<dyn FnOnce() + Send>)> = Vec::new();
    for (index, queues) in queues.into_iter().enumerate() {
        let runtime = Arc::clone(&shared);
        let body = Box::new(move || worker::run(runtime, index, queues));
        bodies.push((format!("{name}-{index}"), body));
    }
    let runtime = Arc::clone(&shared);
    bodies.push((format!("{name}-supervisor"), Box::new(move || Supervisor::run(runtime))));

    let mut threads = Vec::with_capacity(bodies.len());
    for (name, body) in bodies {
        match thread::Builder::new().name(name).spawn(body) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                // Threads that did not start count as ended.
                let missing = shared.options.workers + 1 - threads.len();
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

impl HybridShared {
    /// Runs `future` on the calling thread, which is not a worker, and sleeps while it is pending.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _entered = (self.enter)(Arc::clone(self));
        let main = Arc::new(ThreadWaker {
            is_woken: AtomicBool::new(true),
            is_parked: AtomicBool::new(false),
            thread: thread::current(),
            shared: Arc::downgrade(self),
        });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        loop {
            if main.is_woken.swap(false, Ordering::AcqRel) {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    return value;
                }
            } else {
                main.is_parked.store(true, Ordering::Relaxed);
                thread::park();
                main.is_parked.store(false, Ordering::Relaxed);
                kernel_help::note_answer();
            }
        }
    }
}

pub(crate) fn schedule(
    shared: &Arc<HybridShared>,
) -> impl async_task::Schedule<TaskInfo> + Send + Sync + 'static {
    let shared = Arc::clone(shared);
    WithInfo(move |task: Runnable, info: ScheduleInfo| shared.schedule(task, &info))
}

/// Wakes the thread that is inside `block_on`.
struct ThreadWaker {
    /// Set by the waking thread (release), cleared by the woken one (acquire).
    is_woken: AtomicBool,
    /// The thread sleeps, or is about to: a hint.
    is_parked: AtomicBool,
    thread: Thread,
    /// Weak, since the runtime keeps wakers.
    shared: Weak<HybridShared>,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            if self.is_parked.load(Ordering::Relaxed)
                && let Some(shared) = self.shared.upgrade()
            {
                // First: the thread clears the note as soon as it runs.
                shared.note_call();
            }
            self.thread.unpark();
        }
    }
}
