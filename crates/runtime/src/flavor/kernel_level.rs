//! The kernel-level flavor: a kernel thread for each task, and the kernel's own scheduler among them.
//!
//! A task's thread polls it, sleeps while it is pending, and ends with it. A *seat* stands between the
//! two sides: whoever wakes the task puts it there, the thread takes it from there. What no task's thread
//! watches by itself (timers, bells, signals, descriptors of foreign threads) is watched by one more
//! thread, which hosts the server and runs no task.
//!
//! ```text
//!  waker ──▶ schedule ──▶ seat ──▶ thread: poll ──▶ pending: sleep at the seat
//!                           ▲                  └──▶ over: the thread ends
//!  shutdown ── wakes all ───┘ and each thread drops its task instead of polling it
//! ```

use std::{
    cell::Cell,
    future::Future,
    io,
    panic::Location,
    pin::{Pin, pin},
    ptr,
    task::{Context, Poll, Wake, Waker},
};

use pin_project_lite::pin_project;
use slab::Slab;
use vigie_detect::Server;

use super::user_level::drop_task;
use crate::{
    blocking_pool::BlockingPool,
    builder::Options,
    context,
    handle::{Handle, Scheduler},
    join::JoinHandle,
    panics::contained,
    sync::{
        Arc, AtomicBool, Ordering, PoisonError, RealGuard, RealMutex,
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
    /// Tasks are dropped instead of being polled.
    is_shutdown: AtomicBool,
    threads: RealMutex<Threads>,
}

#[derive(Default)]
struct Threads {
    /// A place for each thread that has a task; its handle, until somebody joins it.
    running: Slab<Option<thread::JoinHandle<()>>>,
    /// Threads whose task is over: joined by whoever spawns next, or at the end.
    ended: Vec<thread::JoinHandle<()>>,
    /// No thread is made any more.
    is_shutdown: bool,
    /// Nobody waits for the end: the last thread clears up.
    ends_in_background: bool,
}

thread_local! {
    /// Which runtime this thread works for: compared, never followed.
    static OWNER: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// Makes a runtime and the thread that hosts its server.
pub(crate) fn start(
    server: Server,
    options: Options,
) -> io::Result<(Arc<Shared>, thread::JoinHandle<()>)> {
    let pool = BlockingPool::new(options.blocking_threads, options.blocking_keep_alive);
    let mut lookout = server.lookout();
    let hosted = server.clone();
    let host = thread::Builder::new().name("vigie-lookout".to_owned()).spawn(move || {
        let _entered = hosted.enter();
        while !hosted.is_closed() {
            contained("a sleep", || lookout.park(None));
        }
    })?;
    let shared = Arc::new(Shared {
        server,
        live: Arc::new(LiveTasks::new()),
        pool: Arc::new(pool),
        options,
        is_shutdown: AtomicBool::new(false),
        threads: RealMutex::new(Threads::default()),
    });
    Ok((shared, host))
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

    fn threads(&self) -> RealGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the task at `seat` a thread.
    fn give_thread(self: &Arc<Self>, seat: &Arc<Seat>) -> io::Result<()> {
        let mut threads = self.threads();
        if threads.is_shutdown {
            drop(threads);
            // Cancels the task.
            seat.take().into_iter().for_each(drop_task);
            return Ok(());
        }
        let ended = std::mem::take(&mut threads.ended);
        let place = threads.running.insert(None);
        let mut builder = thread::Builder::new().name(self.options.thread_name.clone());
        if let Some(bytes) = self.options.task_stack_bytes {
            builder = builder.stack_size(bytes);
        }
        let (shared, seated) = (Arc::clone(self), Arc::clone(seat));
        let spawned = builder.spawn(move || shared.run(&seated, place));
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

    /// The life of a task's thread.
    fn run(self: Arc<Self>, seat: &Seat, place: usize) {
        let entered =
            context::enter(Handle { scheduler: Scheduler::KernelLevel(Arc::clone(&self)) });
        OWNER.with(|owner| owner.set(Arc::as_ptr(&self)));
        seat.bind();
        while let Some(task) = seat.wait() {
            if self.is_shutdown.load(Ordering::SeqCst) || task.metadata().is_aborted() {
                drop_task(task);
            } else {
                // The future's panics are caught inside; what may come out is that of a waker.
                contained("a poll", || task.run());
            }
        }
        drop(entered);
        self.leave(place);
    }

    /// A task's thread ends.
    fn leave(&self, place: usize) {
        let mut threads = self.threads();
        let handle = threads.running.remove(place);
        threads.ended.extend(handle);
        let clears_up = threads.ends_in_background && threads.running.is_empty();
        drop(threads);
        if clears_up {
            self.clear_in_background();
        }
    }

    /// Cancels every task, waits for all threads and closes the server; inside a task, which cannot wait
    /// for itself, lets the last thread do that.
    pub(crate) fn shutdown(&self, in_background: bool) {
        self.is_shutdown.store(true, Ordering::SeqCst);
        let is_empty = {
            let mut threads = self.threads();
            threads.is_shutdown = true;
            threads.ends_in_background = in_background;
            threads.running.is_empty()
        };
        self.live.close();
        if in_background {
            if is_empty {
                self.clear_in_background();
            }
            return;
        }
        loop {
            let threads = {
                let mut threads = self.threads();
                let mut handles = std::mem::take(&mut threads.ended);
                handles.extend(threads.running.iter_mut().filter_map(|(_, handle)| handle.take()));
                handles
            };
            if threads.is_empty() {
                break;
            }
            join_all(threads);
        }
        while self.live.count() > 0 {
            // Another thread drops a task that it could give no thread any more.
            thread::yield_now();
        }
        self.pool.shutdown();
        self.server.shutdown();
    }

    fn clear_in_background(&self) {
        drop(self.pool.begin_shutdown());
        self.server.shutdown();
    }

    /// Runs `future` on the calling thread, and sleeps while it is pending.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _entered =
            context::enter(Handle { scheduler: Scheduler::KernelLevel(Arc::clone(self)) });
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

fn join_all(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        // Its own thread may hold the last reference to what is dropped here.
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
    shared: &Arc<Shared>,
    site: &'static Location<'static>,
    future: F,
) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let seat = Arc::new(Seat::new());
    let scheduler = Arc::clone(&seat);
    let future = Seating { future, _end: End(Arc::clone(&seat)) };
    let (runnable, mut handle) =
        task::spawn(&shared.live, site, future, move |task| scheduler.put(task));
    let Some(runnable) = runnable else { return handle };
    runnable.schedule();
    if let Err(error) = shared.give_thread(&seat) {
        tracing::warn!(task = %site, %error, "the kernel gave no thread for the task");
        handle.refuse(error);
        // Cancels the task.
        seat.take().into_iter().for_each(drop_task);
    }
    handle
}

/// Where a task waits for its thread, and the thread for its task.
struct Seat {
    state: RealMutex<Seated>,
    /// Raised with each change of `state` that the thread must see (release), taken by the thread.
    is_woken: AtomicBool,
    thread: crate::sync::OnceLock<Thread>,
}

#[derive(Default)]
struct Seated {
    task: Option<Runnable>,
    is_over: bool,
}

impl Seat {
    fn new() -> Self {
        Self {
            state: RealMutex::new(Seated::default()),
            is_woken: AtomicBool::new(false),
            thread: crate::sync::OnceLock::new(),
        }
    }

    fn bind(&self) {
        // Bound once: a seat has one thread.
        let _ = self.thread.set(thread::current());
    }

    fn lock(&self) -> RealGuard<'_, Seated> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, task: Runnable) {
        let replaced = self.lock().task.replace(task);
        debug_assert!(replaced.is_none(), "invariant: a task is ready once");
        self.wake();
    }

    fn take(&self) -> Option<Runnable> {
        self.lock().task.take()
    }

    fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Waits for the task to be ready; `None` once it is over.
    fn wait(&self) -> Option<Runnable> {
        loop {
            {
                let mut seated = self.lock();
                if let Some(task) = seated.task.take() {
                    return Some(task);
                }
                if seated.is_over {
                    return None;
                }
            }
            while !self.is_woken.swap(false, Ordering::AcqRel) {
                thread::park();
            }
        }
    }
}

pin_project! {
    /// A task's future, whose end its seat learns of.
    struct Seating<F> {
        #[pin]
        future: F,
        // Dropped after the future.
        _end: End,
    }
}

impl<F: Future> Future for Seating<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

/// Goes with the task's future, and lets its thread end.
struct End(Arc<Seat>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.wake();
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
