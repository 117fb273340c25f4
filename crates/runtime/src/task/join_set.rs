//! A set of tasks, which yields results as the tasks end.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    future::{Future, poll_fn},
    panic::Location,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use slab::Slab;

use super::{LocalSet, spawn};
use crate::{
    handle::Handle,
    sync::{Arc, Mutex, lock},
    task_cell::{AbortHandle, Id, JoinError, JoinHandle},
};

/// A set of tasks whose results come in the order in which the tasks end. Dropping the set aborts all of
/// them.
///
/// # Cost
/// A task in a set costs one short lock and one wake-up more when it ends. [`join_next`](Self::join_next)
/// checks only tasks that have ended and local ones.
///
/// # Examples
/// ```
/// use vigie_runtime::{Runtime, task::JoinSet};
///
/// let runtime = Runtime::builder().workers(2).build()?;
/// let sum = runtime.block_on(async {
///     let mut squares: JoinSet<u32> = (1..=10).map(|n| async move { n * n }).collect();
///     let mut sum = 0;
///     while let Some(square) = squares.join_next().await {
///         sum += square?;
///     }
///     Ok::<_, vigie_runtime::JoinError>(sum)
/// })?;
/// assert_eq!(sum, 385);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the set aborts its tasks"]
pub struct JoinSet<T> {
    handles: Slab<JoinHandle<T>>,
    ended: Arc<EndedList>,
    /// Tasks whose futures are gone, in that order. Their results may come a moment later.
    ending: VecDeque<usize>,
    /// Tasks that stay on this thread. A leaked future reports no end, so these are checked one by one.
    local: BTreeSet<usize>,
    /// The waker of the latest poll.
    waker: Waker,
}

/// The list to which tasks report that their futures are gone.
#[derive(Default)]
struct EndedList(Mutex<EndedTasks>);

#[derive(Default)]
struct EndedTasks {
    keys: Vec<usize>,
    waker: Option<Waker>,
}

impl EndedList {
    /// Moves the keys of ended tasks to the end of `ending`. If `waker` is given, the next task that ends
    /// wakes it.
    fn take(&self, waker: Option<&Waker>, ending: &mut VecDeque<usize>) {
        let mut tasks = lock(&self.0);
        ending.extend(tasks.keys.drain(..));
        if let Some(waker) = waker
            && !tasks.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            tasks.waker = Some(waker.clone());
        }
    }
}

/// Dropped with the future of a task, however that ends.
struct EndGuard {
    key: usize,
    ended: Arc<EndedList>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let waker = {
            let mut tasks = lock(&self.ended.0);
            tasks.keys.push(self.key);
            tasks.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> JoinSet<T> {
    /// Makes an empty set.
    pub fn new() -> Self {
        let (handles, ended, ending) = (Slab::new(), Arc::default(), VecDeque::new());
        Self { handles, ended, ending, local: BTreeSet::new(), waker: Waker::noop().clone() }
    }

    /// Returns how many tasks are in the set: those that run, and those whose results have not been taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Waits for the next task to end and takes its result out of the set. `None` if the set is empty.
    ///
    /// # Cancel safety
    /// Cancel safe: a result stays in the set until it is returned.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    /// Like [`join_next`](Self::join_next), with the number of the task. An error has it too:
    /// [`JoinError::id`].
    ///
    /// # Cancel safety
    /// Cancel safe: a result stays in the set until it is returned.
    pub async fn join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        poll_fn(|cx| self.poll_join_next_with_id(cx)).await
    }

    /// Takes the result of a task that has ended. `None` if no task has.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.try_join_next_with_id().map(without_id)
    }

    /// Like [`try_join_next`](Self::try_join_next), with the number of the task.
    pub fn try_join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        self.ended.take(None, &mut self.ending);
        // A task that is about to end takes the waker of the latest poll, which belongs to the waiting caller
        // if there is one.
        let waker = self.waker.clone();
        self.take_ended(&mut Context::from_waker(&waker), JoinHandle::is_finished)
    }

    /// The poll-style [`join_next`](Self::join_next): `Ready(None)` if the set is empty. Only the waker of
    /// the latest call is woken.
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        self.poll_join_next_with_id(cx).map(|next| next.map(without_id))
    }

    /// The poll-style [`join_next_with_id`](Self::join_next_with_id).
    pub fn poll_join_next_with_id(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<(Id, T), JoinError>>> {
        if self.handles.is_empty() {
            return Poll::Ready(None);
        }
        self.waker.clone_from(cx.waker());
        self.ended.take(Some(cx.waker()), &mut self.ending);
        match self.take_ended(cx, |_| true) {
            Some(result) => Poll::Ready(Some(result)),
            None => Poll::Pending,
        }
    }

    /// Takes the result of the first ended task among those that `may_ask` admits.
    fn take_ended(
        &mut self,
        cx: &mut Context<'_>,
        may_ask: impl Fn(&JoinHandle<T>) -> bool,
    ) -> Option<Result<(Id, T), JoinError>> {
        let Self { handles, ending, local, .. } = self;
        let mut ask = |handles: &mut Slab<JoinHandle<T>>, key: usize| {
            let handle = handles.get_mut(key).filter(|handle| may_ask(handle))?;
            let Poll::Ready(result) = Pin::new(handle).poll(cx) else { return None };
            let id = handles.remove(key).id();
            Some(result.map(|value| (id, value)))
        };
        for _ in 0..ending.len() {
            let Some(key) = ending.pop_front() else { break };
            if !handles.contains(key) {
                // Left over from a spawn that panicked, or from a local task whose result was taken before.
                continue;
            }
            if let Some(result) = ask(handles, key) {
                local.remove(&key);
                return Some(result);
            }
            // Its last poll is about to return on another thread.
            ending.push_back(key);
        }
        let (key, result) = local.iter().find_map(|&key| Some((key, ask(handles, key)?)))?;
        local.remove(&key);
        Some(result)
    }

    /// Aborts all tasks: see [`JoinHandle::abort`]. They stay in the set until their results are taken.
    pub fn abort_all(&self) {
        self.handles.iter().for_each(|(_, handle)| handle.abort());
    }

    /// Aborts all tasks and waits until they are gone.
    ///
    /// # Cancel safety
    /// Cancel safe: all tasks are aborted by the first poll.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Waits for all tasks, and returns their results in the order in which they ended.
    ///
    /// # Panics
    /// Panics with the payload of the first task that panicked, or if a task was cancelled.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropping the future drops the set, and with it all tasks.
    pub async fn join_all(mut self) -> Vec<T> {
        let mut results = Vec::with_capacity(self.len());
        while let Some(result) = self.join_next().await {
            match result.map_err(JoinError::try_into_panic) {
                Ok(result) => results.push(result),
                Err(Ok(payload)) => std::panic::resume_unwind(payload),
                Err(Err(error)) => panic!("a task of the set has no result: {error}"),
            }
        }
        results
    }

    /// Takes all tasks out of the set. They keep running.
    pub fn detach_all(&mut self) {
        self.ending.clear();
        self.local.clear();
        // Reports under keys that are later reused would be attributed to other tasks.
        self.ended = Arc::default();
        self.handles.drain().for_each(JoinHandle::detach);
    }

    /// Spawns a task with `make`, which gets the guard that reports the end, and adds it to the set.
    fn enter(&mut self, make: impl FnOnce(EndGuard) -> JoinHandle<T>) -> AbortHandle {
        let key = self.handles.vacant_key();
        let handle = make(EndGuard { key, ended: Arc::clone(&self.ended) });
        let abort = handle.abort_handle();
        let entered = self.handles.insert(handle);
        debug_assert_eq!(entered, key, "no other task is added meanwhile");
        abort
    }
}

impl<T: Send + 'static> JoinSet<T> {
    /// Spawns a task of the set in the calling task's runtime.
    ///
    /// # Panics
    /// Panics outside any runtime.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.spawn_on(future, &Handle::expect_current())
    }

    /// Spawns a task of the set in the runtime of `handle`.
    #[track_caller]
    pub fn spawn_on<F>(&mut self, future: F, handle: &Handle) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
    {
        let site = Location::caller();
        handle.refuse_fork();
        self.enter(|end| handle.spawn_at(site.into(), with_end(future, end)))
    }

    /// Runs a closure that may block, on a thread kept for such closures: see [`Handle::spawn_blocking`].
    ///
    /// # Panics
    /// Panics outside any runtime.
    #[track_caller]
    pub fn spawn_blocking<F>(&mut self, work: F) -> AbortHandle
    where
        F: FnOnce() -> T + Send + 'static,
    {
        let site = Location::caller();
        let handle = Handle::expect_current();
        handle.refuse_fork();
        self.enter(|end| {
            let work = move || {
                let _end = end;
                work()
            };
            handle.spawn_blocking_at(site, work)
        })
    }
}

fn without_id<T>(result: Result<(Id, T), JoinError>) -> Result<T, JoinError> {
    result.map(|(_, value)| value)
}

impl<T: 'static> JoinSet<T> {
    /// Spawns a task of the set that stays on this thread: see [`spawn_local`](crate::spawn_local).
    ///
    /// # Panics
    /// Panics where [`spawn_local`](crate::spawn_local) does.
    #[track_caller]
    pub fn spawn_local<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
    {
        let site = Location::caller();
        self.enter_local(|end| spawn::spawn_local_at(site.into(), with_end(future, end)))
    }

    /// Spawns a task of this set in `local`, where it stays on one thread.
    #[track_caller]
    pub fn spawn_local_on<F>(&mut self, future: F, local: &LocalSet) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
    {
        let site = Location::caller();
        self.enter_local(|end| local.spawn_at(site.into(), with_end(future, end)))
    }

    fn enter_local(&mut self, make: impl FnOnce(EndGuard) -> JoinHandle<T>) -> AbortHandle {
        let key = self.handles.vacant_key();
        let abort = self.enter(make);
        self.local.insert(key);
        abort
    }
}

async fn with_end<F: Future>(future: F, end: EndGuard) -> F::Output {
    let _end = end;
    future.await
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, F> FromIterator<F> for JoinSet<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    /// Spawns each future as a task in the calling task's runtime.
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> Self {
        let mut set = Self::new();
        futures.into_iter().for_each(|future| drop(set.spawn(future)));
        set
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish_non_exhaustive()
    }
}
