//! A small tokio runtime beside ours, for libraries that need its context.
//!
//! Such a library calls `tokio::spawn`, or makes sockets and timers of tokio's, wherever it is called. So each
//! thread of our runtime is inside the context of that runtime for as long as it is inside ours: entered once
//! for each thread, at no cost for a poll. The library's tasks run on tokio's thread, which the kernel
//! schedules beside ours; sockets and timers of tokio's that a task of ours awaits are watched by tokio's thread,
//! which wakes the task.

#![expect(unsafe_code, reason = "a guard of tokio's is kept beside the handle that it borrows")]

use std::{fmt, io, mem::ManuallyDrop, time::Duration};

use crate::sync::{Arc, thread};

/// The context, for as many threads as need it.
#[derive(Clone, Debug)]
pub(crate) struct TokioContext(Arc<tokio::runtime::Handle>);

/// The runtime itself.
pub(crate) struct TokioRuntime {
    /// `None` once it is shut down.
    runtime: Option<tokio::runtime::Runtime>,
}

impl TokioRuntime {
    /// Starts the runtime on one thread of its own.
    pub(crate) fn start(thread_name: &str) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("{thread_name}-tokio"))
            .enable_all()
            .build()?;
        Ok(Self { runtime: Some(runtime) })
    }

    pub(crate) fn context(&self) -> TokioContext {
        let runtime = self.runtime.as_ref().expect("invariant: shut down at the end");
        TokioContext(Arc::new(runtime.handle().clone()))
    }

    /// Cancels its tasks and waits up to `timeout` for its threads. No task of ours may be polled any more.
    pub(crate) fn shutdown(mut self, timeout: Duration) {
        let Some(runtime) = self.runtime.take() else { return };
        if timeout.is_zero() {
            return runtime.shutdown_background();
        }
        // On a thread of its own: tokio refuses to wait on a thread that is inside a `block_on` of any tokio
        // runtime, where ours may be dropped too.
        let runtime = Arc::new(crate::sync::RealMutex::new(Some(runtime)));
        let taken = Arc::clone(&runtime);
        let take = move || taken.lock().ok().and_then(|mut runtime| runtime.take());
        let spawned = thread::Builder::new().spawn({
            let take = take.clone();
            move || take().into_iter().for_each(|runtime| runtime.shutdown_timeout(timeout))
        });
        match spawned {
            Ok(thread) => drop(thread.join()),
            Err(error) => {
                tracing::warn!(%error, "tokio's runtime is left: there is no thread to wait for it");
                take().into_iter().for_each(tokio::runtime::Runtime::shutdown_background);
            }
        }
    }

    /// Leaks it, in a forked child.
    pub(crate) fn leak(mut self) {
        std::mem::forget(self.runtime.take());
    }
}

impl Drop for TokioRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for TokioRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioRuntime").finish_non_exhaustive()
    }
}

impl TokioContext {
    /// Makes this tokio's context on the calling thread until the guard is dropped. `None` while the thread's
    /// variables are being destroyed.
    pub(crate) fn enter(&self) -> Option<EnteredTokio> {
        if tokio::runtime::Handle::try_current()
            .is_err_and(|error| error.is_thread_local_destroyed())
        {
            return None;
        }
        let handle = Arc::clone(&self.0);
        // SAFETY: the handle is neither moved nor freed before the guard is gone: it is behind the `Arc` that
        // `EnteredTokio` owns beside the guard, and gives up after it.
        let lent: &'static tokio::runtime::Handle = unsafe { &*Arc::as_ptr(&handle) };
        Some(EnteredTokio {
            guard: ManuallyDrop::new(lent.enter()),
            handle: ManuallyDrop::new(handle),
        })
    }
}

/// Keeps the thread in tokio's context while it lives.
pub(crate) struct EnteredTokio {
    /// Borrows the handle.
    guard: ManuallyDrop<tokio::runtime::EnterGuard<'static>>,
    handle: ManuallyDrop<Arc<tokio::runtime::Handle>>,
}

impl Drop for EnteredTokio {
    fn drop(&mut self) {
        // SAFETY: dropped here alone, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        // SAFETY: as above; the guard that borrows it is gone.
        unsafe { ManuallyDrop::drop(&mut self.handle) };
    }
}

impl fmt::Debug for EnteredTokio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnteredTokio").finish_non_exhaustive()
    }
}
