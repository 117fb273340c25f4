//! Spawning from inside a runtime.

use std::{
    future::Future,
    panic::Location,
    pin::Pin,
    task::{Context, Poll},
};

use crate::{
    context,
    flavor::user_level,
    handle::{Handle, NoRuntime, Scheduler},
    join::JoinHandle,
};

/// Spawns a task in the runtime of the running one.
///
/// # Panics
/// Panics outside of any runtime; [`Handle::current`] asks first.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let site = Location::caller();
    context::with_current(|handle| found(handle).spawn_at(site, future))
}

/// Spawns a task that stays on this thread, and so need not be `Send`: user-level flavor only.
///
/// # Panics
/// Panics outside of a `block_on` of the user-level flavor.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let site = Location::caller();
    context::with_current(|handle| match &found(handle).scheduler {
        Scheduler::UserLevel(shared) if user_level::runs_here(Some(&**shared)) => {
            user_level::spawn_local(shared, site, future)
        }
        _ => panic!("`spawn_local` needs a `block_on` of the user-level flavor around it"),
    })
}

/// Runs a closure that may block on a thread kept for that: see [`Handle::spawn_blocking`].
///
/// # Panics
/// Panics outside of any runtime.
#[track_caller]
pub fn spawn_blocking<T, F>(work: F) -> JoinHandle<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let site = Location::caller();
    context::with_current(|handle| found(handle).spawn_blocking_at(site, work))
}

#[track_caller]
fn found(handle: Option<&Handle>) -> &Handle {
    match handle {
        Some(handle) => handle,
        None => panic!("{NoRuntime}"),
    }
}

/// Lets other tasks run, and the scheduler look for events if that is due.
///
/// # Cost
/// One task switch: no allocation, no system call. A task that yields again and again goes to the
/// compute lane: it never stands before one that an event has woken.
///
/// # Cancel safety
/// Cancel safe.
pub fn yield_now() -> YieldNow {
    YieldNow { has_yielded: false }
}

/// The future of [`yield_now`].
#[derive(Debug)]
#[must_use = "nothing is yielded before the future is polled"]
pub struct YieldNow {
    has_yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
