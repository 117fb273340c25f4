//! The kernel-level flavor: a kernel thread for each task, scheduled by the kernel.
//!
//! A task's thread polls it, sleeps while it is pending, and ends with it. A *slot* connects the two sides: a
//! wake-up puts the task there, and the thread takes it from there. One more thread, which hosts the server
//! and runs no task, watches whatever the tasks' threads do not watch (timers, notifiers, signals, descriptors of
//! foreign threads).
//!
//! ```text
//!  waker ──▶ schedule ──▶ slot ──▶ thread: poll ──▶ pending: sleep at the slot
//!                           ▲                  └──▶ over: the thread ends
//!  shutdown ── wakes all ───┘ and each thread ends; then all tasks are dropped
//! ```

use std::{
    cell::Cell,
    future::Future,
    io, mem,
    pin::{Pin, pin},
    ptr,
    task::{Context, Poll, Wake, Waker},
};

use pin_project_lite::pin_project;
use slab::Slab;
use vigie_detect::{Server, ThreadPoller, Unparker};

use crate::{
    blocking_pool::BlockingPool,
    context::EnteredContext,
    options::Options,
    panics::contained,
    sync::{
        Arc, AtomicBool, OnceLock, Ordering, PoisonError, RealGuard, RealMutex, thread,
        thread_local,
    },
    task_cell::{self, JoinHandle, Label, LiveTasks, Runnable, drop_task},
};

pub(crate) struct KernelLevelShared {
    pub(crate) server: Server,
    pub(crate) live: Arc<LiveTasks>,
    pub(crate) pool: Arc<BlockingPool>,
    pub(crate) options: Options,
    /// Enters this runtime on a thread.
    enter: fn(Arc<Self>) -> EnteredContext,
    /// Tasks are dropped instead of being polled.
    is_shutdown: AtomicBool,
    threads: RealMutex<Threads>,
    /// Tasks whose threads have ended at the shutdown. Dropped when all polls are over, so that no task sees
    /// another one cancelled.
    orphans: RealMutex<Vec<Runnable>>,
}

#[derive(Default)]
struct Threads {
    /// An entry for each thread that has a task: its handle, until it is joined.
    running: Slab<Option<thread::JoinHandle<()>>>,
    /// Threads whose task is over: joined at the next spawn, or at the end.
    ended: Vec<thread::JoinHandle<()>>,
    /// No more threads are created.
    is_shutdown: bool,
    /// The shutdown does not wait for the threads: the last one cleans up.
    ends_in_background: bool,
}

thread_local! {
    /// The runtime of this thread: compared, never dereferenced.
    static OWNER: Cell<*const KernelLevelShared> = const { Cell::new(ptr::null()) };
}

/// Creates a runtime and the thread that hosts its server.
pub(crate) fn start(
    server: Server,
    options: Options,
    enter: fn(Arc<KernelLevelShared>) -> EnteredContext,
) -> io::Result<(Arc<KernelLevelShared>, thread::JoinHandle<()>)> {
    let pool = BlockingPool::new(options.blocking_threads, options.blocking_keep_alive);
    let mut driver = server.driver();
    let hosted = server.clone();
    let host = thread::Builder::new().name("vigie-driver".to_owned()).spawn(move || {
        let _entered = hosted.enter();
        while !hosted.is_closed() {
            contained("a sleep", || driver.park(None));
        }
    })?;
    let shared = Arc::new(KernelLevelShared {
        server,
        live: Arc::new(LiveTasks::new()),
        pool: Arc::new(pool),
        options,
        enter,
        is_shutdown: AtomicBool::new(false),
        threads: RealMutex::new(Threads::default()),
        orphans: RealMutex::new(Vec::new()),
    });
    Ok((shared, host))
}

impl KernelLevelShared {
    fn threads(&self) -> RealGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphans(&self) -> RealGuard<'_, Vec<Runnable>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the task at `slot` a thread.
    fn give_thread(self: &Arc<Self>, slot: &Arc<ThreadSlot>) -> io::Result<()> {
        let mut threads = self.threads();
        if threads.is_shutdown {
            drop(threads);
            // Cancels the task.
            slot.take().into_iter().for_each(drop_task);
            return Ok(());
        }
        if threads.running.len() >= self.options.task_threads {
            let error = "as many tasks as `task_threads` allows have a thread already";
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, error));
        }
        let ended = mem::take(&mut threads.ended);
        let place = threads.running.insert(None);
        let mut builder = thread::Builder::new().name(self.options.thread_name.clone());
        if let Some(bytes) = self.options.task_stack_bytes {
            builder = builder.stack_size(bytes);
        }
        let (shared, slotted) = (Arc::clone(self), Arc::clone(slot));
        let spawned = builder.spawn(move || shared.run(&slotted, place));
        let made = match spawned {
            Ok(thread) => {
                threads.running[place] = Some(thread);
                Ok(())
            }
            Err(error) => {
                threads.running.remove(place);
                Err(error)
            }
        };
        drop(threads);
        join_all(ended);
        made
    }

    /// Runs a task's thread.
    fn run(self: Arc<Self>, slot: &ThreadSlot, place: usize) {
        let entered = (self.enter)(Arc::clone(&self));
        OWNER.with(|owner| owner.set(Arc::as_ptr(&self)));
        let point = ThreadPoller::new(&self.server);
        // Set once: a slot has one thread.
        let _ = slot.unparker.set(point.unparker());
        while let Some(task) = slot.wait(&point) {
            if self.is_shutdown.load(Ordering::SeqCst) {
                self.orphans().push(task);
                break;
            }
            if task.metadata().is_aborted() {
                drop_task(task);
            } else {
                // The future's panics are caught inside; only a waker's panic can get here.
                contained("a poll", || task.run());
            }
        }
        drop(point);
        drop(entered);
        self.leave(place);
    }

    /// Ends a task's thread.
    fn leave(self: &Arc<Self>, place: usize) {
        let mut threads = self.threads();
        let handle = threads.running.remove(place);
        threads.ended.extend(handle);
        let clears_up = threads.ends_in_background && threads.running.is_empty();
        drop(threads);
        if clears_up {
            self.clear_in_background();
        }
    }

    /// Cancels every task, waits for all threads and closes the server. Inside a task, which cannot wait for
    /// itself, leaves that to the last thread.
    pub(crate) fn shutdown(self: &Arc<Self>, in_background: bool) {
        self.is_shutdown.store(true, Ordering::SeqCst);
        let is_empty = {
            let mut threads = self.threads();
            threads.is_shutdown = true;
            threads.ends_in_background = in_background;
            threads.running.is_empty()
        };
        self.live.close();
        if in_background && is_empty {
            self.clear_in_background();
        }
    }

    /// Returns how many tasks have a thread.
    pub(crate) fn thread_count(&self) -> usize {
        self.threads().running.len()
    }

    /// Returns the threads of tasks, to be joined after the shutdown has begun. Call it until it returns
    /// none.
    pub(crate) fn take_threads(&self) -> Vec<thread::JoinHandle<()>> {
        let mut threads = self.threads();
        let mut handles = mem::take(&mut threads.ended);
        handles.extend(threads.running.iter_mut().filter_map(|(_, handle)| handle.take()));
        handles
    }

    /// Cancels every task, once no thread polls any more.
    pub(crate) fn cancel_all(self: &Arc<Self>) {
        let _entered = (self.enter)(Arc::clone(self));
        loop {
            let task = self.orphans().pop();
            match task {
                Some(task) => drop_task(task),
                None if self.live.count() == 0 => break,
                // Another thread is dropping a task that it could not give a thread.
                None => thread::yield_now(),
            }
        }
    }

    fn clear_in_background(self: &Arc<Self>) {
        self.cancel_all();
        drop(self.pool.begin_shutdown());
        self.server.shutdown();
    }

    /// Runs `future` on the calling thread, and sleeps while it is pending.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _entered = (self.enter)(Arc::clone(self));
        let point = ThreadPoller::new(&self.server);
        let main =
            Arc::new(MainWaker { is_woken: AtomicBool::new(true), unparker: point.unparker() });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        loop {
            if main.is_woken.swap(false, Ordering::AcqRel) {
                contained("a poll pass", || point.poll_if_due());
                ThreadPoller::begin_poll(&waker);
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    return value;
                }
            } else {
                contained("a sleep", || point.wait());
            }
        }
    }
}

fn join_all(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        // The thread itself may hold the last reference to what is dropped here.
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            tracing::error!("a task's thread panicked");
        }
    }
}

/// Returns whether this thread runs a task of this flavor.
pub(crate) fn runs_here() -> bool {
    OWNER.try_with(|owner| !owner.get().is_null()).unwrap_or(false)
}

pub(crate) fn spawn<F>(
    shared: &Arc<KernelLevelShared>,
    label: Label,
    future: F,
) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let site = label.site;
    let slot = Arc::new(ThreadSlot::new());
    let scheduler = Arc::clone(&slot);
    let future = Slotted { future, _end: ThreadSlotGuard(Arc::clone(&slot)) };
    let (runnable, mut handle) =
        task_cell::spawn(&shared.live, label, future, move |task| scheduler.put(task));
    let Some(runnable) = runnable else { return handle };
    runnable.schedule();
    if let Err(error) = shared.give_thread(&slot) {
        tracing::warn!(task = %site, %error, "no thread for the task: it is cancelled");
        handle.refuse(error);
        // Cancels the task.
        slot.take().into_iter().for_each(drop_task);
    }
    handle
}

/// The place where a woken task waits for its thread, and the thread for its task.
struct ThreadSlot {
    state: RealMutex<SlotState>,
    /// Of the task's thread, which checks the state after setting this.
    unparker: OnceLock<Unparker>,
}

#[derive(Default)]
struct SlotState {
    task: Option<Runnable>,
    is_over: bool,
}

impl ThreadSlot {
    fn new() -> Self {
        Self { state: RealMutex::new(SlotState::default()), unparker: OnceLock::new() }
    }

    fn lock(&self) -> RealGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, task: Runnable) {
        if self.unparker.get().is_some_and(Unparker::is_inherited) {
            // Neither run nor dropped: the slot and the future's contents belong to the parent.
            mem::forget(task);
            return;
        }
        let replaced = self.lock().task.replace(task);
        debug_assert!(replaced.is_none(), "invariant: a task is ready once");
        self.wake();
    }

    fn take(&self) -> Option<Runnable> {
        self.lock().task.take()
    }

    fn wake(&self) {
        if let Some(unparker) = self.unparker.get() {
            unparker.unpark();
        }
    }

    /// Waits until the task is ready; `None` once it is over.
    fn wait(&self, point: &ThreadPoller) -> Option<Runnable> {
        loop {
            {
                let mut slotted = self.lock();
                if let Some(task) = slotted.task.take() {
                    drop(slotted);
                    // Woken while it ran, perhaps repeatedly: its descriptors must not wait for the next
                    // sleep.
                    contained("a poll pass", || point.poll_if_due());
                    return Some(task);
                }
                if slotted.is_over {
                    return None;
                }
            }
            contained("a sleep", || point.wait());
        }
    }
}

pin_project! {
    /// A task's future, which tells its slot when it ends.
    struct Slotted<F> {
        #[pin]
        future: F,
        // Dropped after the future.
        _end: ThreadSlotGuard,
    }
}

impl<F: Future> Future for Slotted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        ThreadPoller::begin_poll(cx.waker());
        self.project().future.poll(cx)
    }
}

/// Dropped with the task's future; lets its thread end.
struct ThreadSlotGuard(Arc<ThreadSlot>);

impl Drop for ThreadSlotGuard {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.wake();
    }
}

/// Wakes the thread that is inside `block_on`.
struct MainWaker {
    /// Set by the waking thread (release), cleared by the woken one (acquire).
    is_woken: AtomicBool,
    unparker: Unparker,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.unparker.unpark();
        }
    }
}
