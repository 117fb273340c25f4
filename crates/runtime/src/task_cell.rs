//! The task cell: what a scheduler knows of a task beside its future.
//!
//! The cell is `async-task`'s: one allocation holds the future, its result, the waker's count and our
//! [`TaskInfo`]. This module adds what makes a task of it: panics are caught, polls are timed, the
//! runtime knows all of its live tasks, and an abort takes effect before the next poll.
//!
//! Invariant task-1: the information of a task stands in the same allocation as its future.
//! `async-task` writes it first, lends it to the closure that makes the future, and drops it with the
//! allocation: after the future, and not before the last `Runnable`, `Task` and `Waker` is gone. So a
//! reference to it may be kept by the future and beside a `Task`, and nowhere else.

#![expect(unsafe_code, reason = "the future borrows the information beside it: task-1")]

use std::{
    any::Any,
    future::Future,
    mem,
    panic::{self, AssertUnwindSafe, Location},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use pin_project_lite::pin_project;
use slab::Slab;

use crate::{
    context::{self, PollLength},
    join::JoinHandle,
    panics::contained,
    sync::{
        Arc, AtomicBool, AtomicU8, Mutex, Ordering, lock,
        thread::{self, ThreadId},
    },
};

/// A task that is ready to be polled.
pub(crate) type Runnable = async_task::Runnable<TaskInfo>;

/// What a task's future left: its value, or the payload of its panic. Gone once it is taken. Dropping
/// it never panics: `async-task` drops what nobody takes, and ends the process if that panics.
pub(crate) struct Outcome<T>(Option<Result<T, Box<dyn Any + Send>>>);

impl<T> Outcome<T> {
    pub(crate) fn into_result(mut self) -> Result<T, Box<dyn Any + Send>> {
        self.0.take().expect("invariant: taken once")
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        contained("the result of a task", || self.0 = None);
    }
}

/// What the scheduler keeps with each task.
#[derive(Debug)]
pub(crate) struct TaskInfo {
    /// Where the task was spawned.
    pub(crate) site: &'static Location<'static>,
    /// Somebody wants the task dropped instead of polled. Set by any thread before it wakes the task;
    /// read by the worker before each poll, ordered by the task cell's own state.
    is_aborted: AtomicBool,
    /// Raised by long polls, lowered by short ones. Written by the worker that polls, read by whoever
    /// wakes: a stale value misplaces one wake-up.
    strikes: AtomicU8,
    /// How many short polls there were since the last one that was not, up to [`TRUST`].
    short_polls: AtomicU8,
    /// How often in a row the task was woken while it ran. Written by whoever schedules.
    self_wakes: AtomicU8,
    /// The task has been scheduled before: from now on a schedule is a wake-up.
    was_scheduled: AtomicBool,
}

/// What one long poll counts: as much as so many short ones make good.
const STRIKE: u8 = 4;

/// The most that is counted, so that a task which behaves again comes back soon.
const STRIKES_MAX: u8 = 16;

/// How many short polls in a row make a task trusted.
const TRUST: u8 = 32;

impl TaskInfo {
    fn new(site: &'static Location<'static>) -> Self {
        Self {
            site,
            is_aborted: AtomicBool::new(false),
            strikes: AtomicU8::new(0),
            short_polls: AtomicU8::new(0),
            self_wakes: AtomicU8::new(0),
            was_scheduled: AtomicBool::new(false),
        }
    }

    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Takes note of a poll.
    fn record_poll(&self, length: PollLength) {
        let before = self.strikes.load(Ordering::Relaxed);
        let after = match length {
            PollLength::Short => before.saturating_sub(1),
            PollLength::Long => (before + STRIKE).min(STRIKES_MAX),
            PollLength::Hog => (before + 2 * STRIKE).min(STRIKES_MAX),
        };
        if after != before {
            self.strikes.store(after, Ordering::Relaxed);
        }
        let short_polls = self.short_polls.load(Ordering::Relaxed);
        if length != PollLength::Short {
            self.short_polls.store(0, Ordering::Relaxed);
        } else if short_polls < TRUST {
            self.short_polls.store(short_polls + 1, Ordering::Relaxed);
        }
    }

    /// Returns whether the task has behaved for so long that another long poll is not expected.
    pub(crate) fn is_trusted(&self) -> bool {
        self.short_polls.load(Ordering::Relaxed) >= TRUST
    }

    /// Returns whether the task hogged its worker lately. One long poll is no habit, unless it was very
    /// long: a page fault, a first use of something.
    pub(crate) fn is_on_probation(&self) -> bool {
        self.strikes.load(Ordering::Relaxed) > STRIKE
    }

    /// Takes note of how the task was woken; returns how often in a row it was woken inside its own
    /// poll, this time included.
    pub(crate) fn note_wake(&self, was_running: bool) -> u8 {
        let count =
            if was_running { self.self_wakes.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.self_wakes.store(count, Ordering::Relaxed);
        count
    }

    /// Returns whether this is the first time that the task is scheduled.
    pub(crate) fn note_scheduled(&self) -> bool {
        !self.was_scheduled.load(Ordering::Relaxed)
            && !self.was_scheduled.swap(true, Ordering::Relaxed)
    }
}

/// All live tasks of a runtime, by the waker that brings each of them to a worker: so that a shutdown
/// finds them wherever they wait.
#[derive(Debug)]
pub(crate) struct LiveTasks {
    tasks: Mutex<Live>,
}

#[derive(Debug)]
struct Live {
    wakers: Slab<Waker>,
    is_closed: bool,
}

impl LiveTasks {
    pub(crate) fn new() -> Self {
        Self { tasks: Mutex::new(Live { wakers: Slab::new(), is_closed: false }) }
    }

    /// Returns how many tasks have not ended.
    pub(crate) fn count(&self) -> usize {
        lock(&self.tasks).wakers.len()
    }

    /// Accepts no task any more.
    pub(crate) fn refuse(&self) {
        lock(&self.tasks).is_closed = true;
    }

    /// Accepts no task any more, and wakes all there are.
    pub(crate) fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut live = lock(&self.tasks);
            live.is_closed = true;
            live.wakers.iter().map(|(_, waker)| waker.clone()).collect()
        };
        for waker in wakers {
            waker.wake();
        }
    }

    fn remove(&self, key: usize) {
        let waker = lock(&self.tasks).wakers.try_remove(key);
        drop(waker);
    }
}

/// Makes a task of a future that may move between threads. The first `Runnable` is not scheduled yet;
/// there is none if the runtime is shut down.
pub(crate) fn spawn<F>(
    live: &Arc<LiveTasks>,
    site: &'static Location<'static>,
    future: F,
    schedule: impl async_task::Schedule<TaskInfo> + Send + Sync + 'static,
) -> (Option<Runnable>, JoinHandle<F::Output>)
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    insert(live, |membership, lent| {
        let builder = async_task::Builder::new().metadata(TaskInfo::new(site));
        let make = |info| TaskFuture {
            future: Some(future),
            info: lent.insert(info),
            _membership: membership,
        };
        // SAFETY: the future and the schedule function are `Send` and `'static`, as `Builder::spawn`
        // would ask; what the future borrows besides is the metadata, which outlives it (task-1).
        unsafe { builder.spawn_unchecked(make, schedule) }
    })
}

/// Like [`spawn`], for a future that stays on this thread.
pub(crate) fn spawn_local<F>(
    live: &Arc<LiveTasks>,
    site: &'static Location<'static>,
    future: F,
    schedule: impl async_task::Schedule<TaskInfo> + Send + Sync + 'static,
) -> (Option<Runnable>, JoinHandle<F::Output>)
where
    F: Future + 'static,
    F::Output: 'static,
{
    insert(live, |membership, lent| {
        let builder = async_task::Builder::new().metadata(TaskInfo::new(site));
        let future = OnItsThread { thread: thread::current().id(), future: Some(Box::pin(future)) };
        let make = |info| TaskFuture {
            future: Some(future),
            info: lent.insert(info),
            _membership: membership,
        };
        // SAFETY: the future need not be `Send`, since `OnItsThread` keeps it from being polled or
        // dropped on any other thread; what it borrows is the metadata, which outlives it (task-1).
        unsafe { builder.spawn_unchecked(make, schedule) }
    })
}

fn insert<T>(
    live: &Arc<LiveTasks>,
    make: impl FnOnce(
        Membership,
        &mut Option<&'static TaskInfo>,
    ) -> (Runnable, async_task::Task<Outcome<T>, TaskInfo>),
) -> (Option<Runnable>, JoinHandle<T>) {
    let mut tasks = lock(&live.tasks);
    let is_closed = tasks.is_closed;
    let key = (!is_closed).then(|| tasks.wakers.vacant_key());
    let membership = Membership { live: Arc::clone(live), key };
    let mut info = None;
    let (runnable, task) = make(membership, &mut info);
    let info = info.expect("invariant: the closure that makes the future was called");
    let waker = runnable.waker();
    if !is_closed {
        tasks.wakers.insert(waker.clone());
    }
    drop(tasks);
    // Dropping a runnable cancels its task: the handle says so.
    let runnable = (!is_closed).then_some(runnable);
    (runnable, JoinHandle::new(task, info, waker))
}

pin_project! {
    /// The future of a task, which never panics, is timed, and knows when the task ends.
    struct TaskFuture<F> {
        #[pin]
        // Gone only in `drop`.
        future: Option<F>,
        info: &'static TaskInfo,
        // Dropped after the future: a task is live until its future is gone.
        _membership: Membership,
    }

    impl<F> PinnedDrop for TaskFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            contained("the destructor of a task", || this.project().future.set(None));
        }
    }
}

impl<F: Future> Future for TaskFuture<F> {
    type Output = Outcome<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The future is never polled again after a panic, and what it shares with others is theirs.
        let future = this.future.as_pin_mut().expect("invariant: gone only in drop");
        let polled = panic::catch_unwind(AssertUnwindSafe(|| future.poll(cx)));
        let length = context::end_poll();
        match polled {
            Ok(Poll::Pending) => {
                this.info.record_poll(length);
                Poll::Pending
            }
            Ok(Poll::Ready(value)) => Poll::Ready(Outcome(Some(Ok(value)))),
            Err(payload) => {
                tracing::error!(task = %this.info.site, "a task panicked");
                Poll::Ready(Outcome(Some(Err(payload))))
            }
        }
    }
}

/// A future that is polled and dropped only on the thread that made it. Should a runtime be dropped
/// on another thread, the future is leaked.
struct OnItsThread<F> {
    thread: ThreadId,
    /// Boxed, so that it can be taken out and leaked; gone once it is.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for OnItsThread<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        assert!(self.thread == thread::current().id(), "a local task was polled on another thread");
        let future = self.future.as_mut().expect("invariant: leaked only in drop");
        future.as_mut().poll(cx)
    }
}

impl<F> Drop for OnItsThread<F> {
    fn drop(&mut self) {
        if self.thread != thread::current().id() {
            tracing::warn!("a local task was leaked: its runtime was dropped on another thread");
            mem::forget(self.future.take());
        }
    }
}

/// A place among the live tasks.
struct Membership {
    live: Arc<LiveTasks>,
    /// None for a task that came after the end: the shutdown does not wait for it.
    key: Option<usize>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.live.remove(key);
        }
    }
}
