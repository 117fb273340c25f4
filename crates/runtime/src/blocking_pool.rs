//! Threads for blocking closures.
//!
//! A closure is an ordinary task cell whose single poll is the call, so its handle is an ordinary
//! [`JoinHandle`]. A thread is created when all others are busy, up to a limit, and ends after it has been
//! idle for a while.

use std::{collections::VecDeque, io, panic::Location, time::Duration};

use crate::{
    context::Enter,
    sync::{Arc, Condvar, PoisonError, RealGuard, RealMutex, thread},
    task_cell::{self, JoinHandle, LiveTasks, Runnable},
};

pub(crate) struct BlockingPool {
    state: RealMutex<PoolState>,
    /// Signalled for a closure in the queue, and for the shutdown.
    has_work: Condvar,
    live: Arc<LiveTasks>,
    threads_max: usize,
    keep_alive: Duration,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Runnable>,
    threads: Vec<thread::JoinHandle<()>>,
    thread_count: usize,
    idle_count: usize,
    is_shutdown: bool,
}

impl BlockingPool {
    pub(crate) fn new(threads_max: usize, keep_alive: Duration) -> Self {
        Self {
            state: RealMutex::new(PoolState::default()),
            has_work: Condvar::new(),
            live: Arc::new(match threads_max {
                1 => LiveTasks::with_shards(1),
                _ => LiveTasks::new(),
            }),
            threads_max,
            keep_alive,
        }
    }

    pub(crate) fn spawn<T, F>(
        pool: &Arc<Self>,
        site: &'static Location<'static>,
        runtime: impl Enter,
        work: F,
    ) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let scheduled = Arc::clone(pool);
        // Only aborts wake it: a closure is polled once.
        let woken_for = runtime.clone();
        let schedule = move |runnable| {
            // It was in the queue, or has run: the pool had a thread for it.
            let _ = Self::enqueue(&scheduled, runnable, &woken_for);
        };
        let (runnable, mut handle) =
            task_cell::spawn(&pool.live, site.into(), async move { work() }, schedule);
        if let Some(runnable) = runnable
            && let Err(error) = Self::enqueue(pool, runnable, &runtime)
        {
            handle.refuse(error);
        }
        handle
    }

    /// Queues a closure, and creates a thread if none is idle.
    ///
    /// # Errors
    /// The reason why there is no thread at all; the closure is then cancelled.
    fn enqueue(pool: &Arc<Self>, runnable: Runnable, runtime: &impl Enter) -> io::Result<()> {
        let mut state = pool.lock();
        if state.is_shutdown {
            drop(state);
            // Cancels the task.
            drop(runnable);
            return Ok(());
        }

        state.queue.push_back(runnable);
        if state.idle_count >= state.queue.len() {
            pool.has_work.notify_one();
            return Ok(());
        }
        if state.thread_count >= pool.threads_max {
            return Ok(());
        }

        let (own, runtime) = (Arc::clone(pool), runtime.clone());
        let spawned = thread::Builder::new()
            .name("vigie-blocking".to_owned())
            .spawn(move || own.run(runtime));
        match spawned {
            Ok(thread) => {
                state.thread_count += 1;
                // Ended threads have not been joined yet: drop their handles first.
                state.threads.retain(|thread| !thread.is_finished());
                state.threads.push(thread);
            }
            Err(error) if state.thread_count > 0 => {
                tracing::warn!(%error, "no further blocking thread: the closure waits for its turn");
            }
            Err(error) => {
                tracing::error!(%error, "no blocking thread at all: the closure is cancelled");
                let cancelled = state.queue.pop_back();
                drop(state);
                drop(cancelled);
                return Err(error);
            }
        }
        Ok(())
    }

    fn run(&self, runtime: impl Enter) {
        let _entered = runtime.enter();
        let mut state = self.lock();
        loop {
            if let Some(runnable) = state.queue.pop_front() {
                drop(state);
                if runnable.metadata().is_aborted() {
                    drop(runnable);
                } else {
                    runnable.run();
                }
                state = self.lock();
                continue;
            }
            if state.is_shutdown {
                break;
            }
            state.idle_count += 1;
            let (guard, timed_out) = self
                .has_work
                .wait_timeout(state, self.keep_alive)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle_count -= 1;
            if timed_out.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.thread_count -= 1;
    }

    /// Returns the closures that have not ended.
    pub(crate) fn live(&self) -> &LiveTasks {
        &self.live
    }

    /// Cancels closures that have not begun; running ones finish.
    pub(crate) fn begin_shutdown(&self) -> Vec<thread::JoinHandle<()>> {
        let (queue, threads) = {
            let mut state = self.lock();
            state.is_shutdown = true;
            (std::mem::take(&mut state.queue), std::mem::take(&mut state.threads))
        };
        self.has_work.notify_all();
        self.live.close();
        drop(queue);
        threads
    }

    fn lock(&self) -> RealGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// The models of `tests/loom.rs` compile this file too, but not the tests below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::mpsc;

    use vigie_detect::Flavor;

    use super::*;
    use crate::{Runtime, RuntimeBuilder};

    /// Only for what hangs.
    const HANG: Duration = Duration::from_secs(30);

    fn builder() -> RuntimeBuilder {
        Runtime::builder().flavor(Flavor::UserLevel)
    }

    /// Waits until the pool has `threads` threads, all of them idle.
    fn settle(pool: &BlockingPool, threads: usize) {
        let is_settled = |state: &PoolState| {
            state.thread_count == threads && state.idle_count == threads && state.queue.is_empty()
        };
        let begun = vigie_detect::clock::monotonic_now();
        loop {
            let state = pool.lock();
            if is_settled(&state) {
                return;
            }
            let (thread_count, idle_count) = (state.thread_count, state.idle_count);
            drop(state);
            assert!(begun.elapsed() < HANG, "{thread_count} threads, {idle_count} idle");
            thread::yield_now();
        }
    }

    /// Goal: an idle thread is used again. Method: closures one after the other, each spawned when the
    /// thread of the one before is idle.
    #[test]
    fn an_idle_thread_is_used_again() {
        let runtime = builder().build().expect("a runtime");
        let (tell, told) = mpsc::channel();
        for n in 0..10 {
            let tell = tell.clone();
            runtime.handle().spawn_blocking(move || tell.send(n)).detach();
            assert_eq!(told.recv_timeout(HANG), Ok(n));
            settle(runtime.handle().pool(), 1);
        }
    }

    /// Goal: a thread that was idle and has work now counts as busy: the next closure gets another one.
    /// Method: a closure that has begun on a thread that was idle waits for the next one; twice, the second
    /// time with two threads.
    #[test]
    fn a_busy_thread_is_not_idle() {
        let runtime = builder().build().expect("a runtime");
        let handle = runtime.handle();
        let (tell, told) = mpsc::channel();
        handle.spawn_blocking(|| ()).detach();
        for threads in 1..=2 {
            settle(handle.pool(), threads);
            let mut releases = Vec::new();
            for n in 0..threads {
                let (release, released) = mpsc::channel::<()>();
                releases.push(release);
                let tell = tell.clone();
                let waits = move || {
                    tell.send(n).expect("the test waits");
                    released.recv().expect("the last closure releases all");
                };
                handle.spawn_blocking(waits).detach();
                assert_eq!(told.recv_timeout(HANG), Ok(n), "it begins");
            }
            let tell = tell.clone();
            let release = move || {
                releases.iter().for_each(|release| release.send(()).expect("it waits"));
                tell.send(threads).expect("the test waits");
            };
            handle.spawn_blocking(release).detach();
            assert_eq!(told.recv_timeout(HANG), Ok(threads), "it has a thread of its own");
        }
        settle(handle.pool(), 3);
    }

    /// Goal: threads that have had nothing to do for long enough end, are counted no more, and are replaced
    /// when there is work again. Method: the shortest time.
    #[test]
    fn an_idle_thread_ends() {
        let keep_alive = Duration::from_nanos(1);
        let runtime = builder().blocking_keep_alive(keep_alive).build().expect("a runtime");
        let (tell, told) = mpsc::channel();
        for n in 0..3 {
            let tell = tell.clone();
            runtime.handle().spawn_blocking(move || tell.send(n)).detach();
            assert_eq!(told.recv_timeout(HANG), Ok(n));
            settle(runtime.handle().pool(), 0);
        }
    }
}
