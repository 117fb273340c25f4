//! The task cell: what a scheduler knows about a task besides its future.
//!
//! The cell is `async-task`'s: one allocation holds the future, its result, the wakers' reference count and
//! our [`TaskInfo`]. This module adds the rest of a task: panics are caught, polls are timed, the runtime
//! knows all live tasks, and an abort takes effect before the next poll.
//!
//! Invariant task-1: the information of a task is in the same allocation as its future.
//! `async-task` writes it first, lends it to the closure that makes the future, and drops it with the
//! allocation: after the future, and not before the last `Runnable`, `Task` and `Waker` is gone. So a
//! reference to it may be kept by the future and beside a `Task` or a `Waker`, and nowhere else.

#![expect(unsafe_code, reason = "the future borrows the information beside it: task-1")]

mod id;
mod info;
mod join;
pub(crate) mod kind;
mod live_tasks;
mod outcome;
pub(crate) mod poll;

use std::{
    future::Future,
    mem::{self, ManuallyDrop},
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use pin_project_lite::pin_project;

pub use self::{
    id::{Id, id, try_id},
    info::TaskState,
    join::{AbortHandle, JoinError, JoinHandle},
};
pub(crate) use self::{
    info::{Label, ReadyTime, TaskInfo},
    kind::TaskKind,
    live_tasks::LiveTasks,
};
use self::{
    live_tasks::Membership,
    outcome::Outcome,
    poll::{Charge, EndedPoll},
};
use crate::{
    panics::contained,
    sync::{
        Arc,
        thread::{self, ThreadId},
        thread_local,
    },
};

/// A task that is ready to be polled.
pub(crate) type Runnable = async_task::Runnable<TaskInfo>;

/// Cancels a task: drops its future.
pub(crate) fn drop_task(task: Runnable) {
    contained("a cancelled task", || drop(task));
}

/// Creates a task from a future that may move between threads. The first `Runnable` is not scheduled yet; it
/// is `None` if the runtime is shut down.
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
        let make = |info| TaskFuture::new(future, lent.insert(info), membership);
        // SAFETY: the future and the schedule function are `Send` and `'static`, as `Builder::spawn`
        // would ask; what the future borrows besides is the metadata, which outlives it (task-1).
        unsafe { builder.spawn_unchecked(make, schedule) }
    })
}

/// Schedules a new task for the first time.
pub(crate) fn queue<T>((runnable, handle): (Option<Runnable>, JoinHandle<T>)) -> JoinHandle<T> {
    if let Some(runnable) = runnable {
        runnable.schedule();
    }
    handle
}

/// Like [`spawn`], for a future that stays on this thread. The task is scheduled.
pub(crate) fn spawn_local<F>(
    live: &Arc<LiveTasks>,
    label: Label,
    future: F,
    schedule: impl async_task::Schedule<TaskInfo> + Send + Sync + 'static,
) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    queue(insert(live, label, |info, membership, lent| {
        let builder = async_task::Builder::new().metadata(info);
        let future = OnItsThread { thread: thread::current().id(), future: Some(Box::pin(future)) };
        let make = |info| TaskFuture::new(future, lent.insert(info), membership);
        // SAFETY: the future need not be `Send`, since `OnItsThread` keeps it from being polled or
        // dropped on any other thread; what it borrows is the metadata, which outlives it (task-1).
        unsafe { builder.spawn_unchecked(make, schedule) }
    }))
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
        ((runnable, task, info, lent), waker, info)
    });
    // Dropping a runnable cancels its task: the handle says so.
    let runnable = is_accepted.then_some(runnable);
    (runnable, JoinHandle::new(task, info, waker))
}

/// Returns the waker of a task without counting a reference, for the task's handle: a handle keeps the cell
/// alive (task-1), and another reference would cost two atomic operations per task.
fn lend(waker: &Waker) -> ManuallyDrop<Waker> {
    // SAFETY: data and table are those of a waker. It is used only while the `Task` beside it exists, hence
    // the cell; only by reference, and cloned where a count is needed; and is never dropped.
    ManuallyDrop::new(unsafe { Waker::new(waker.data(), waker.vtable()) })
}

pin_project! {
    /// The future of a task. It never panics, is timed, and records when the task ends.
    struct TaskFuture<F> {
        #[pin]
        // `None` only in `drop`.
        future: Option<F>,
        info: &'static TaskInfo,
        span: TaskSpan,
        // Dropped after the future: a task is live until its future is gone.
        membership: Membership,
    }

    impl<F> PinnedDrop for TaskFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let _entered = this.info.id.enter();
            contained("the destructor of a task", || this.future.set(None));
            this.info.note_end();
        }
    }
}

impl<F> TaskFuture<F> {
    fn new(future: F, info: &'static TaskInfo, membership: Membership) -> Self {
        Self { future: Some(future), info, span: TaskSpan::new(info), membership }
    }
}

/// A span of `tracing` for each task, entered while it is polled, so that its events and child spans name it. Without the
/// feature `spans` there is none.
struct TaskSpan {
    #[cfg(feature = "spans")]
    span: tracing::Span,
}

impl TaskSpan {
    #[cfg(feature = "spans")]
    fn new(info: &TaskInfo) -> Self {
        let (id, site) = (info.id, info.site);
        Self { span: tracing::trace_span!(target: "vigie::task", "task", %id, %site) }
    }

    #[cfg(feature = "spans")]
    fn in_scope<T>(&self, poll: impl FnOnce() -> T) -> T {
        self.span.in_scope(poll)
    }

    #[cfg(not(feature = "spans"))]
    fn new(_info: &TaskInfo) -> Self {
        Self {}
    }

    #[cfg(not(feature = "spans"))]
    #[inline]
    #[expect(clippy::unused_self, reason = "there is something with the feature")]
    fn in_scope<T>(&self, poll: impl FnOnce() -> T) -> T {
        poll()
    }
}

impl<F: Future> Future for TaskFuture<F> {
    type Output = Outcome<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The future is never polled again after a panic; state that it shares with other code is that code's
        // concern.
        let future = this.future.as_pin_mut().expect("invariant: gone only in drop");
        let entered = this.info.id.enter();
        this.info.note_begin(poll::began());
        let poll = AssertUnwindSafe(|| this.span.in_scope(|| future.poll(cx)));
        let polled = panic::catch_unwind(poll);
        drop(entered);
        let charge = poll::end_poll(|elapsed_ns, &Charge { has_computed, .. }| {
            let (name, site) = (this.membership.name(), this.info.site);
            poll::leave_long_poll(EndedPoll { has_computed, name, site, elapsed_ns });
        });
        if let Some(charge) = charge {
            this.info.record_poll(charge);
        }
        this.info.note_pause(poll::poll_end().unwrap_or(0));
        match polled {
            Ok(Poll::Pending) => {
                // A thread that aborts the task or closes the runtime sets a flag and wakes the task. A
                // wake-up between the scheduler's check of the flag and the beginning of this poll has no
                // effect, since the task is ready already; but it precedes the beginning in the order of the
                // cell's state, so the flag is visible here.
                if this.info.is_aborted() || this.membership.is_closing() {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
            Ok(Poll::Ready(value)) => Poll::Ready(Outcome::new(this.info.id, Ok(value))),
            Err(payload) => {
                tracing::error!(task = %this.info.site, "a task panicked");
                this.info.note_panic();
                Poll::Ready(Outcome::new(this.info.id, Err(payload)))
            }
        }
    }
}

thread_local! {
    /// Read at each poll, where `thread::current` would count references.
    static HERE: ThreadId = thread::current().id();
}

/// A future that is polled and dropped only on the thread that created it. If a runtime is dropped on another
/// thread, the future is leaked.
struct OnItsThread<F> {
    thread: ThreadId,
    /// Boxed so that it can be taken out and leaked; `None` afterwards.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for OnItsThread<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // The scheduler queues it for its own thread; the future's soundness depends on that.
        assert!(
            self.thread == HERE.with(|here| *here),
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
