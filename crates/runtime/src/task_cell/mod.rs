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

mod join;
pub(crate) mod kind;
mod live_tasks;

use std::{
    any::Any,
    future::Future,
    mem::{self, ManuallyDrop},
    panic::{self, AssertUnwindSafe, Location},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use pin_project_lite::pin_project;

pub use self::join::{JoinError, JoinHandle};
use self::live_tasks::Membership;
pub(crate) use self::{kind::Kind, live_tasks::LiveTasks};
use crate::{
    context::{self, Charge, EndedPoll},
    flavor::hybrid,
    lane::{Account, Credit, Early, Trust},
    panics::contained,
    sync::{
        Arc, AtomicBool, Ordering,
        count::{AtomicU64, RELAXED},
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
    /// Where its name stands among the live tasks, plus one; zero if it has none.
    pub(crate) name_key: u32,
    /// When the task became ready, in nanoseconds: see [`ReadyTime`]. Written by whoever schedules it,
    /// read by the worker that polls it then.
    ready: AtomicU64,
    /// Somebody wants the task dropped instead of polled. Set by any thread before it wakes the task;
    /// read by the worker before each poll, ordered by the task cell's own state.
    is_aborted: AtomicBool,
    kind: Option<Kind>,
    /// What the task has used lately.
    pub(crate) account: Account,
    trust: Trust,
    /// The task slept in the kernel in its last poll. Written by the thread that polls.
    sleeps: AtomicBool,
    /// The last poll was long, whether the task computed, slept, or waited for a processor.
    was_late: AtomicBool,
}

/// When a task became ready, and whether an event made it so: nanoseconds, whose last bit says the
/// latter. Zero if nobody looked at the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadyTime(u64);

impl ReadyTime {
    pub(crate) const UNKNOWN: Self = Self(0);

    pub(crate) const fn new(nanos: u64, by_event: bool) -> Self {
        Self((nanos & !1) | by_event as u64)
    }

    /// Returns the time, if it is known.
    pub(crate) const fn nanos(self) -> Option<u64> {
        if self.0 == 0 { None } else { Some(self.0) }
    }

    /// Returns how long the task has been ready at `now`, in nanoseconds, and whether an event made it
    /// so.
    pub(crate) const fn delay(self, now: u64) -> Option<(u64, bool)> {
        if self.0 == 0 { None } else { Some((now.saturating_sub(self.0), self.0 & 1 == 1)) }
    }
}

/// What a task is called, and what it begins with.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) site: &'static Location<'static>,
    pub(crate) name: Option<Arc<str>>,
    /// Known to the schedulers that ask for it.
    pub(crate) kind: Option<Kind>,
    pub(crate) credit: Credit,
}

impl From<&'static Location<'static>> for Label {
    fn from(site: &'static Location<'static>) -> Self {
        Self { site, name: None, kind: None, credit: Credit::FULL }
    }
}

/// A task whose last poll slept in the kernel for so long will do so again, as far as is known. Less is a lock
/// that is soon free, and no reason to have another thread ready.
const SLEEP_NS: u64 = 300_000;

impl TaskInfo {
    fn new(label: &Label, name_key: u32) -> Self {
        Self {
            site: label.site,
            name_key,
            ready: AtomicU64::new(0),
            is_aborted: AtomicBool::new(false),
            kind: label.kind,
            account: Account::new(
                label.credit,
                label.kind.and_then(|kind| kind.expected_ns(Early::First)),
            ),
            trust: Trust::new(),
            sleeps: AtomicBool::new(false),
            was_late: AtomicBool::new(false),
        }
    }

    pub(crate) fn note_ready(&self, time: ReadyTime) {
        self.ready.store(time.0, RELAXED);
    }

    pub(crate) fn ready_time(&self) -> ReadyTime {
        ReadyTime(self.ready.load(RELAXED))
    }

    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Takes note of a poll.
    fn record_poll(&self, charge: Charge) {
        self.account.charge(charge.credit, charge.used_ns.min(charge.most_ns));
        let was_early = self.early();
        if let Some((kind, early)) = was_early {
            kind.note_poll(early, charge.used_ns);
        }
        self.trust.note_poll(charge.has_computed);
        if was_early.is_some() {
            self.account.expect(self.expected_ns());
        }
        let sleeps = charge.slept_ns >= SLEEP_NS && hybrid::was_asleep();
        if sleeps != self.sleeps() {
            self.sleeps.store(sleeps, Ordering::Relaxed);
        }
        if charge.was_long != self.was_late() {
            self.was_late.store(charge.was_long, Ordering::Relaxed);
        }
    }

    /// Returns whether the last poll was long, for whatever reason.
    pub(crate) fn was_late(&self) -> bool {
        self.was_late.load(Ordering::Relaxed)
    }

    /// Returns whether the task will probably sleep in the kernel when it is polled.
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Returns the kind of the task and which poll comes next, if that is one of the first.
    pub(crate) fn early(&self) -> Option<(Kind, Early)> {
        self.kind.zip(self.trust.early())
    }

    /// Returns [`early`](Self::early) as one number for atomics, or zero.
    pub(crate) fn early_word(&self) -> u64 {
        self.early().map_or(0, |(kind, early)| kind.to_word(early))
    }

    /// Returns what others of its kind have used in the poll that comes next, in nanoseconds, if that is one of the
    /// first.
    pub(crate) fn expected_ns(&self) -> Option<u32> {
        self.early().and_then(|(kind, early)| kind.expected_ns(early))
    }

    /// Returns whether the task has shown itself that it holds no thread for long.
    pub(crate) fn is_proven(&self) -> bool {
        self.trust.is_proven()
    }
}

/// Makes a task of a future that may move between threads. The first `Runnable` is not scheduled yet;
/// there is none if the runtime is shut down.
pub(crate) fn spawn<F>(
    live: &Arc<LiveTasks>,
    label: Label,
    future: F,
    schedule: impl async_task::Schedule<TaskInfo> + Send + Sync + 'static,
) -> (Option<Runnable>, JoinHandle<F::Output>)
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    insert(live, label, |info, membership, lent| {
        let builder = async_task::Builder::new().metadata(info);
        let make = |info| TaskFuture { future: Some(future), info: lent.insert(info), membership };
        // SAFETY: the future and the schedule function are `Send` and `'static`, as `Builder::spawn`
        // would ask; what the future borrows besides is the metadata, which outlives it (task-1).
        unsafe { builder.spawn_unchecked(make, schedule) }
    })
}

/// Like [`spawn`], for a future that stays on this thread.
pub(crate) fn spawn_local<F>(
    live: &Arc<LiveTasks>,
    label: Label,
    future: F,
    schedule: impl async_task::Schedule<TaskInfo> + Send + Sync + 'static,
) -> (Option<Runnable>, JoinHandle<F::Output>)
where
    F: Future + 'static,
    F::Output: 'static,
{
    insert(live, label, |info, membership, lent| {
        let builder = async_task::Builder::new().metadata(info);
        let future = OnItsThread { thread: thread::current().id(), future: Some(Box::pin(future)) };
        let make = |info| TaskFuture { future: Some(future), info: lent.insert(info), membership };
        // SAFETY: the future need not be `Send`, since `OnItsThread` keeps it from being polled or
        // dropped on any other thread; what it borrows is the metadata, which outlives it (task-1).
        unsafe { builder.spawn_unchecked(make, schedule) }
    })
}

fn insert<T>(
    live: &Arc<LiveTasks>,
    label: Label,
    make: impl FnOnce(
        TaskInfo,
        Membership,
        &mut Option<&'static TaskInfo>,
    ) -> (Runnable, async_task::Task<Outcome<T>, TaskInfo>),
) -> (Option<Runnable>, JoinHandle<T>) {
    let name = label.name.clone();
    let ((runnable, task, info, waker), is_accepted) = live.enter(name, |membership, key| {
        let mut info = None;
        let (runnable, task) = make(TaskInfo::new(&label, key), membership, &mut info);
        let info = info.expect("invariant: the closure that makes the future was called");
        let waker = runnable.waker();
        let lent = lend(&waker);
        ((runnable, task, info, lent), waker)
    });
    // Dropping a runnable cancels its task: the handle says so.
    let runnable = is_accepted.then_some(runnable);
    (runnable, JoinHandle::new(task, info, waker))
}

/// Returns the waker of a task without a reference of its own, for the task's handle: a handle keeps the
/// cell by itself (task-1), and counting once more is two atomic operations for each task.
fn lend(waker: &Waker) -> ManuallyDrop<Waker> {
    // SAFETY: data and table are those of a waker. It is used while the `Task` beside it is there, hence
    // the cell; only by reference, which takes a reference of its own where it needs one; and is never
    // dropped.
    ManuallyDrop::new(unsafe { Waker::new(waker.data(), waker.vtable()) })
}

pin_project! {
    /// The future of a task, which never panics, is timed, and knows when the task ends.
    struct TaskFuture<F> {
        #[pin]
        // Gone only in `drop`.
        future: Option<F>,
        info: &'static TaskInfo,
        // Dropped after the future: a task is live until its future is gone.
        membership: Membership,
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
        let charge = context::end_poll(|elapsed_ns, &Charge { has_computed, .. }| {
            let (name, site) = (this.membership.name(), this.info.site);
            context::leave_long_poll(EndedPoll { has_computed, name, site, elapsed_ns });
        });
        if let Some(charge) = charge {
            this.info.record_poll(charge);
        }
        match polled {
            Ok(Poll::Pending) => {
                // Whoever aborts the task, or closes the runtime, raises a flag and wakes the task. A
                // wake-up between the scheduler's look at the flag and the beginning of this poll has
                // no effect, since the task is ready already; but it stands before the beginning in
                // the order of the cell's state, so that the flag is seen here.
                if this.info.is_aborted() || this.membership.is_closing() {
                    cx.waker().wake_by_ref();
                }
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
        // The scheduler queues it for its own thread; what the future holds depends on it.
        assert!(
            self.thread == thread::current().id(),
            "invariant: a local task stays on its thread"
        );
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
