//! A future that needs no task.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Wake, Waker},
};

type Driven = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future that is polled on the thread that wakes it, so that it needs no task and no thread. Dropping this drops the future; its
/// wakers do not keep it alive.
pub(super) struct Watch {
    state: Mutex<WatchState>,
}

struct WatchState {
    /// `None` while it is polled, and once it has ended.
    future: Option<Driven>,
    /// It was woken since the last poll began.
    is_woken: bool,
}

impl Watch {
    /// Polls a future for the first time.
    pub(super) fn start(future: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        let future: Driven = Box::pin(future);
        let state = WatchState { future: Some(future), is_woken: true };
        let this = Arc::new(Self { state: Mutex::new(state) });
        this.poll();
        this
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        // No foreign code runs under this lock, so a poisoned one says nothing about what it holds.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the future until it has been polled after the last wake. A caller that comes meanwhile, also from inside the
    /// future, leaves that to the one that polls.
    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(Arc::new(WatchWaker(Arc::downgrade(self))));
        loop {
            let mut state = self.lock();
            if !state.is_woken {
                return;
            }
            let Some(mut future) = state.future.take() else { return };
            state.is_woken = false;
            drop(state);
            if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                return;
            }
            self.lock().future = Some(future);
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

struct WatchWaker(Weak<Watch>);

impl Wake for WatchWaker {
    fn wake(self: Arc<Self>) {
        if let Some(watch) = self.0.upgrade() {
            watch.lock().is_woken = true;
            watch.poll();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicUsize, Ordering},
        task::Poll,
    };

    use super::*;

    /// Goal: a future is polled again after each wake, also one from inside its own poll, and never after it was dropped.
    /// Method: a future that counts its polls and wakes itself twice; then wakes by its last waker.
    #[test]
    fn wakes_poll_the_future() {
        let (polls, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
        let (count, kept) = (Arc::clone(&polls), Arc::clone(&last));
        let watch = Watch::start(poll_fn(move |cx| {
            if count.fetch_add(1, Ordering::Relaxed) < 2 {
                cx.waker().wake_by_ref();
            }
            *kept.lock().expect("no panic") = Some(cx.waker().clone());
            Poll::Pending
        }));
        assert_eq!(polls.load(Ordering::Relaxed), 3);
        let waker: Waker = last.lock().expect("no panic").take().expect("it was polled");
        waker.wake_by_ref();
        assert_eq!(polls.load(Ordering::Relaxed), 4);
        drop(watch);
        assert_eq!(Arc::strong_count(&polls), 1, "the waker keeps nothing alive");
        waker.wake();
        assert_eq!(polls.load(Ordering::Relaxed), 4);
    }

    /// Goal: a future that has ended is not polled again. Method: wake it after its end.
    #[test]
    fn an_ended_future_rests() {
        let last = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&last);
        let watch = Watch::start(poll_fn(move |cx| {
            *kept.lock().expect("no panic") = Some(cx.waker().clone());
            Poll::Ready(())
        }));
        let waker: Waker = last.lock().expect("no panic").take().expect("it was polled");
        waker.wake();
        assert!(watch.lock().future.is_none());
    }
}
