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
use vigie_detect::{Alarm, OwnWaitPoint, Server};

use crate::{
    blocking_pool::BlockingPool,
    context::Entered,
    options::Options,
    panics::contained,
    sync::{
        Arc, AtomicBool, OnceLock, Ordering, PoisonError, RealGuard, RealMutex, thread,
        thread_local,
    },
    task_cell::{self, JoinHandle, Label, LiveTasks, Runnable, drop_task},
};

pub(crate) struct Shared {
    server: Server,
    live: Arc<LiveTasks>,
    pool: Arc<BlockingPool>,
    options: Options,
    /// Makes a thread run for this runtime.
    enter: fn(Arc<Self>) -> Entered,
    /// Tasks are dropped instead of being polled.
    is_shutdown: AtomicBool,
    threads: RealMutex<Threads>,
    /// Tasks whose threads have ended at the shutdown. Dropped when all polls are over, so that no task
    /// sees another one cancelled.
    orphans: RealMutex<Vec<Runnable>>,
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
    enter: fn(Arc<Shared>) -> Entered,
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
        enter,
        is_shutdown: AtomicBool::new(false),
        threads: RealMutex::new(Threads::default()),
        orphans: RealMutex::new(Vec::new()),
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

    fn orphans(&self) -> RealGuard<'_, Vec<Runnable>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
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
        let entered = (self.enter)(Arc::clone(&self));
        OWNER.with(|owner| owner.set(Arc::as_ptr(&self)));
        let point = OwnWaitPoint::new(&self.server);
        // Set once: a seat has one thread.
        let _ = seat.alarm.set(point.alarm());
        while let Some(task) = seat.wait(&point) {
            if self.is_shutdown.load(Ordering::SeqCst) {
                self.orphans().push(task);
                break;
            }
            if task.metadata().is_aborted() {
                drop_task(task);
            } else {
                // The future's panics are caught inside; what may come out is that of a waker.
                contained("a poll", || task.run());
            }
        }
        drop(point);
        drop(entered);
        self.leave(place);
    }

    /// A task's thread ends.
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

    /// Cancels every task, waits for all threads and closes the server; inside a task, which cannot wait
    /// for itself, lets the last thread do that.
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

    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the threads of tasks, to be joined after the shutdown has begun. Asked again until there
    /// are none.
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
                // Another thread drops a task that it could give no thread any more.
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
        let point = OwnWaitPoint::new(&self.server);
        let main = Arc::new(MainWaker { is_woken: AtomicBool::new(true), alarm: point.alarm() });
        let waker = Waker::from(Arc::clone(&main));
        let mut future = pin!(future);
        loop {
            if main.is_woken.swap(false, Ordering::AcqRel) {
                contained("a look", || point.look_if_due());
                OwnWaitPoint::begin_poll(&waker);
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

pub(crate) fn spawn<F>(shared: &Arc<Shared>, label: Label, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let site = label.site;
    let seat = Arc::new(Seat::new());
    let scheduler = Arc::clone(&seat);
    let future = Seating { future, _end: End(Arc::clone(&seat)) };
    let (runnable, mut handle) =
        task_cell::spawn(&shared.live, label, future, move |task| scheduler.put(task));
    let Some(runnable) = runnable else { return handle };
    runnable.schedule();
    if let Err(error) = shared.give_thread(&seat) {
        tracing::warn!(task = %site, %error, "no thread for the task: it is cancelled");
        handle.refuse(error);
        // Cancels the task.
        seat.take().into_iter().for_each(drop_task);
    }
    handle
}

/// Where a task waits for its thread, and the thread for its task.
struct Seat {
    state: RealMutex<Seated>,
    /// Of the task's thread, which looks at the state after it has left it here.
    alarm: OnceLock<Alarm>,
}

#[derive(Default)]
struct Seated {
    task: Option<Runnable>,
    is_over: bool,
}

impl Seat {
    fn new() -> Self {
        Self { state: RealMutex::new(Seated::default()), alarm: OnceLock::new() }
    }

    fn lock(&self) -> RealGuard<'_, Seated> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, task: Runnable) {
        if self.alarm.get().is_some_and(Alarm::is_inherited) {
            // Neither run nor dropped: the seat, and what its future holds, are the parent's.
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
        if let Some(alarm) = self.alarm.get() {
            alarm.ring();
        }
    }

    /// Waits for the task to be ready; `None` once it is over.
    fn wait(&self, point: &OwnWaitPoint) -> Option<Runnable> {
        loop {
            {
                let mut seated = self.lock();
                if let Some(task) = seated.task.take() {
                    drop(seated);
                    // Woken while it ran, perhaps again and again: its descriptors must not wait for the
                    // next sleep.
                    contained("a look", || point.look_if_due());
                    return Some(task);
                }
                if seated.is_over {
                    return None;
                }
            }
            contained("a sleep", || point.wait());
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
        OwnWaitPoint::begin_poll(cx.waker());
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
struct MainWaker {
    /// Set by whoever wakes (release), taken by the thread (acquire).
    is_woken: AtomicBool,
    alarm: Alarm,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.alarm.ring();
        }
    }
}
