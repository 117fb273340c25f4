//! A set of tasks that stay on one thread, on a runtime of any flavor.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    marker::PhantomData,
    mem,
    panic::Location,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use crate::{
    panics::contained,
    runtime::Runtime,
    sync::{Arc, PoisonError, RealGuard, RealMutex, thread, thread_local},
    task_cell::{self, JoinHandle, Label, LiveTasks, Runnable, drop_task, poll},
};

thread_local! {
    static CURRENT: RefCell<Option<Rc<LocalTasks>>> = const { RefCell::new(None) };
}

/// Tasks that need not be `Send`, on the thread that owns the set. They run while that thread awaits the set:
/// in [`run_until`](Self::run_until), in [`block_on`](Self::block_on), or in the set itself, which is a future
/// that ends with its last task. Dropping the set cancels its tasks.
///
/// It works in the `block_on` of every flavor. Events are detected by the runtime: on the hybrid flavor its
/// workers keep watching while a task of the set computes, so that only tasks of the set wait for it. On the
/// user-level flavor, [`spawn_local`](crate::spawn_local) needs no set.
///
/// # Examples
/// ```
/// use std::rc::Rc;
/// use vigie_runtime::{Runtime, spawn_local, task::LocalSet, time::sleep};
///
/// let runtime = Runtime::builder().workers(1).build()?;
/// let name = Rc::new("not Send".to_owned());
/// let length = LocalSet::new().block_on(&runtime, async move {
///     let task = spawn_local(async move {
///         sleep(std::time::Duration::from_millis(1)).await;
///         name.len()
///     });
///     task.await
/// })?;
/// assert_eq!(length, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the set cancels its tasks"]
pub struct LocalSet {
    tasks: Rc<LocalTasks>,
}

struct LocalTasks {
    live: Arc<LiveTasks>,
    ready: Arc<ReadyTasks>,
}

/// The tasks that any thread has woken.
#[derive(Default)]
struct ReadyTasks(RealMutex<Queue>);

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Runnable>,
    /// Of the future that polls the set.
    waker: Option<Waker>,
}

impl ReadyTasks {
    fn lock(&self) -> RealGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, task: Runnable) {
        let waker = {
            let mut queue = self.lock();
            queue.tasks.push_back(task);
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The number of tasks that are polled before the future beside them gets its turn.
const POLLS_MAX: usize = 64;

impl LocalSet {
    /// Returns an empty set.
    pub fn new() -> Self {
        let live = Arc::new(LiveTasks::with_shards(1));
        Self { tasks: Rc::new(LocalTasks { live, ready: Arc::default() }) }
    }

    /// Spawns a task of the set. It runs when the set is awaited.
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.spawn_at(Location::caller().into(), future)
    }

    pub(super) fn spawn_at<F>(&self, label: Label, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.tasks.spawn(label, future)
    }

    /// Runs `future`, and the tasks of the set beside it, until `future` is ready. Inside,
    /// [`spawn_local`](crate::spawn_local) spawns tasks of the set. Tasks that have not ended by then stay in
    /// the set.
    ///
    /// # Cancel safety
    /// As cancel safe as `future`. Tasks of the set lose nothing.
    pub async fn run_until<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(move |cx| {
            let _entered = self.enter();
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(value);
            }
            self.tasks.poll_ready_tasks(cx);
            Poll::Pending
        })
        .await
    }

    /// Runs `future`, and the tasks of the set beside it, on the calling thread: see
    /// [`Runtime::block_on`] and [`run_until`](Self::run_until).
    ///
    /// # Panics
    /// Same as [`Runtime::block_on`].
    #[track_caller]
    pub fn block_on<F: Future>(&self, runtime: &Runtime, future: F) -> F::Output {
        runtime.block_on(self.run_until(future))
    }

    /// Makes this the set of the calling thread until the guard is dropped:
    /// [`spawn_local`](crate::spawn_local) then spawns tasks of the set.
    pub fn enter(&self) -> LocalEnterGuard {
        let previous = CURRENT.with(|current| current.replace(Some(Rc::clone(&self.tasks))));
        LocalEnterGuard { previous, stays: PhantomData }
    }
}

/// Spawns a task of the set that the thread is in; gives `future` back if it is in none.
pub(super) fn try_spawn<F>(label: Label, future: F) -> Result<JoinHandle<F::Output>, (Label, F)>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let current = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
    match current {
        Some(tasks) => Ok(tasks.spawn(label, future)),
        None => Err((label, future)),
    }
}

impl LocalTasks {
    fn spawn<F>(&self, label: Label, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let ready = Arc::clone(&self.ready);
        let schedule = move |task: Runnable| ready.push(task);
        task_cell::spawn_local(&self.live, label, future, schedule)
    }

    /// Polls tasks that are ready. The next one that becomes ready, or is left, wakes `cx`.
    fn poll_ready_tasks(&self, cx: &mut Context<'_>) {
        // These polls are part of the one that is going on, whose task pays for them.
        let outer = poll::suspend_poll();
        for _ in 0..POLLS_MAX {
            let task = {
                let mut queue = self.ready.lock();
                let task = queue.tasks.pop_front();
                if task.is_none() {
                    queue.waker = Some(cx.waker().clone());
                }
                task
            };
            let Some(task) = task else { break };
            if task.metadata().is_aborted() {
                drop_task(task);
            } else {
                contained("a poll", || task.run());
            }
        }
        poll::resume(outer);
        if !self.ready.lock().tasks.is_empty() {
            cx.waker().wake_by_ref();
        }
    }

    fn is_over(&self) -> bool {
        self.live.count() == 0
    }
}

impl Future for LocalSet {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let _entered = self.enter();
        self.tasks.poll_ready_tasks(cx);
        if self.tasks.is_over() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Default for LocalSet {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for LocalSet {
    fn drop(&mut self) {
        // What the tasks' destructors spawn is refused.
        let _entered = self.enter();
        self.tasks.live.close();
        loop {
            let next = self.tasks.ready.lock().tasks.pop_front();
            match next {
                Some(task) => drop_task(task),
                None if self.tasks.is_over() => break,
                // Another thread is about to queue a task that it has just woken.
                None => thread::yield_now(),
            }
        }
    }
}

impl fmt::Debug for LocalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSet").field("len", &self.tasks.live.count()).finish_non_exhaustive()
    }
}

/// Keeps the thread in a set while it lives: see [`LocalSet::enter`].
#[must_use = "the thread is in the set only until this is dropped"]
pub struct LocalEnterGuard {
    previous: Option<Rc<LocalTasks>>,
    /// Of this thread.
    stays: PhantomData<Rc<()>>,
}

impl Drop for LocalEnterGuard {
    fn drop(&mut self) {
        let previous = mem::take(&mut self.previous);
        let left = CURRENT.try_with(|current| current.replace(previous));
        drop(left);
    }
}

impl fmt::Debug for LocalEnterGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalEnterGuard").finish_non_exhaustive()
    }
}
