//! Waiting for a task, and aborting it.

use std::{
    any::Any,
    error::Error,
    fmt,
    future::Future,
    io,
    mem::ManuallyDrop,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use super::{id::Id, info::TaskInfo, outcome::Outcome};
use crate::{
    refusal::{self, Resource},
    sync::{Mutex, lock},
};

/// A handle to a task: awaits its result, or aborts it. Dropping it detaches the task, which keeps running.
///
/// # Cancel safety
/// Cancel safe: the result stays until it is taken.
///
/// # Panics
/// If it is polled again after it has returned the result.
#[must_use = "the task's result, and its panic, are lost without the handle; `detach` says that this is meant"]
pub struct JoinHandle<T> {
    /// `None` once the handle is dropped.
    task: Option<async_task::FallibleTask<Outcome<T>, TaskInfo>>,
    /// Borrowed from the task, and valid as long as it is there (task-1).
    info: &'static TaskInfo,
    /// Borrowed: valid as long as the task is there, like `info`.
    waker: ManuallyDrop<Waker>,
    /// The reason why the task never ran.
    refusal: Option<io::Error>,
    /// The result was taken.
    is_taken: bool,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(
        task: async_task::Task<Outcome<T>, TaskInfo>,
        info: &'static TaskInfo,
        waker: ManuallyDrop<Waker>,
    ) -> Self {
        Self { task: Some(task.fallible()), info, waker, refusal: None, is_taken: false }
    }

    /// Cancels the task, because it could not be given what it needs to run.
    pub(crate) fn refuse(&mut self, error: io::Error) {
        self.refusal = Some(error);
    }

    /// Detaches the task, which keeps running.
    pub fn detach(self) {
        drop(self);
    }

    /// Aborts the task: its future is dropped instead of being polled again, and the handle returns
    /// [`JoinError::is_cancelled`]. A task that is inside a poll ends with that poll.
    pub fn abort(&self) {
        if self.task.is_some() {
            self.info.abort();
            self.waker.wake_by_ref();
        }
    }

    /// Returns a handle that can abort the task after this one is gone: detached, or awaited elsewhere.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { info: self.info, waker: Waker::clone(&self.waker) }
    }

    /// Returns the number of the task.
    #[must_use]
    pub fn id(&self) -> Id {
        self.info.id
    }

    /// Returns whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(async_task::FallibleTask::is_finished)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(
            !self.is_taken,
            "a `JoinHandle` was polled after it had returned the task's result"
        );
        let task = self.task.as_mut().expect("invariant: gone only in drop");
        let outcome = ready!(Pin::new(task).poll(cx));
        self.is_taken = true;
        let id = self.info.id;
        Poll::Ready(match outcome.map(Outcome::into_result) {
            Some(Ok(value)) => Ok(value),
            Some(Err(payload)) => {
                Err(JoinError { id, cause: Cause::Panicked(Mutex::new(payload)) })
            }
            None => {
                let cause = self.refusal.take().map_or(Cause::Cancelled, Cause::Refused);
                Err(JoinError { id, cause })
            }
        })
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// Aborts a task, alongside its [`JoinHandle`] or without it. Like a waker, it keeps alive a detached task
/// that nothing else can wake; of a task that has ended it keeps only the memory.
#[derive(Clone)]
pub struct AbortHandle {
    /// Borrowed from the task, and valid as long as the waker is there (task-1).
    info: &'static TaskInfo,
    waker: Waker,
}

impl AbortHandle {
    /// The same as [`JoinHandle::abort`]. Does nothing if the task has ended.
    pub fn abort(&self) {
        self.info.abort();
        self.waker.wake_by_ref();
    }

    /// Returns the number of the task.
    #[must_use]
    pub fn id(&self) -> Id {
        self.info.id
    }

    /// Returns whether the task has ended: its future is gone.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.info.is_over()
    }

    /// Returns whether the task has ended by a panic.
    pub(crate) fn has_panicked(&self) -> bool {
        self.info.is_over() && self.info.has_panicked()
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// The reason why a task has no result.
pub struct JoinError {
    id: Id,
    cause: Cause,
}

enum Cause {
    Cancelled,
    Refused(io::Error),
    /// In a mutex, which is never contended, so that the error is `Sync`.
    Panicked(Mutex<Box<dyn Any + Send>>),
}

impl JoinError {
    /// Returns whether the task was aborted, its runtime shut down, or its thread
    /// [refused](Self::is_refused).
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        matches!(self.cause, Cause::Cancelled | Cause::Refused(_))
    }

    /// Returns whether the task panicked.
    #[must_use]
    pub const fn is_panic(&self) -> bool {
        matches!(self.cause, Cause::Panicked(_))
    }

    /// Returns whether the task never ran because there was no thread for it: a task of the kernel-level
    /// flavor, or a closure of [`spawn_blocking`](crate::spawn_blocking) when no blocking thread could be
    /// created. The error's text says why: a limit of the kernel, or
    /// [`RuntimeBuilder::task_threads`](crate::RuntimeBuilder::task_threads).
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        matches!(self.cause, Cause::Refused(_))
    }

    /// Returns the number of the task.
    #[must_use]
    pub const fn id(&self) -> Id {
        self.id
    }

    /// Returns the payload of the task's panic.
    ///
    /// # Panics
    /// If the task did not panic.
    #[must_use]
    #[track_caller]
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        match self.try_into_panic() {
            Ok(payload) => payload,
            Err(error) => panic!("there is no panic to take: {error}"),
        }
    }

    /// Returns the payload of the task's panic.
    ///
    /// # Errors
    /// Returns the error itself if the task did not panic.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        match self.cause {
            Cause::Panicked(payload) => match payload.into_inner() {
                Ok(payload) => Ok(payload),
                Err(poisoned) => Ok(poisoned.into_inner()),
            },
            cause @ (Cause::Cancelled | Cause::Refused(_)) => Err(Self { cause, ..self }),
        }
    }
}

impl Error for JoinError {}

/// For results of `spawn_blocking` in functions that return [`io::Error`].
impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> Self {
        match error.cause {
            Cause::Refused(error) => error,
            _ => Self::other(error),
        }
    }
}

/// The message of a panic, if its payload is one.
fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    let literal = payload.downcast_ref::<&str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// By tokio's form: `unwrap` prints this, and a payload's own form would not say why.
impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Cancelled => write!(f, "JoinError::Cancelled({:?})", self.id),
            Cause::Refused(error) => write!(f, "JoinError::Refused({:?}, {error:?})", self.id),
            Cause::Panicked(payload) => match message(&**lock(payload)) {
                Some(message) => write!(f, "JoinError::Panic({:?}, {message:?}, ...)", self.id),
                None => write!(f, "JoinError::Panic({:?}, ...)", self.id),
            },
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Cancelled => write!(f, "task {} was cancelled", self.id),
            Cause::Refused(error) => {
                let cause = refusal::cause(Resource::Thread, error);
                write!(f, "there is no thread for task {}: {error}{cause}", self.id)
            }
            Cause::Panicked(payload) => match message(&**lock(payload)) {
                Some(message) => write!(f, "task {} panicked with message {message:?}", self.id),
                None => write!(f, "task {} panicked", self.id),
            },
        }
    }
}
