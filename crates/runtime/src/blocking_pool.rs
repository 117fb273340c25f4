//! Threads for closures that block.
//!
//! A closure is an ordinary task cell whose one poll is the call, so that its handle is a
//! [`JoinHandle`] like any other. Threads are made when all others are busy, up to a bound, and end
//! when they have had nothing to do for a while.

use std::{collections::VecDeque, panic::Location, time::Duration};

use crate::{
    context,
    handle::Handle,
    join::JoinHandle,
    sync::{Arc, Condvar, PoisonError, RealGuard, RealMutex, thread},
    task_cell::{self, LiveTasks, Runnable},
};

pub(crate) struct BlockingPool {
    state: RealMutex<State>,
    /// Signalled for a closure in the queue, and for the shutdown.
    has_work: Condvar,
    live: Arc<LiveTasks>,
    threads_max: usize,
    keep_alive: Duration,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Runnable>,
    threads: Vec<thread::JoinHandle<()>>,
    thread_count: usize,
    idle_count: usize,
    is_shutdown: bool,
}

impl BlockingPool {
    pub(crate) fn new(threads_max: usize, keep_alive: Duration) -> Self {
        Self {
            state: RealMutex::new(State::default()),
            has_work: Condvar::new(),
            live: Arc::new(LiveTasks::new()),
            threads_max,
            keep_alive,
        }
    }

    pub(crate) fn spawn<T, F>(
        pool: &Arc<Self>,
        site: &'static Location<'static>,
        runtime: Handle,
        work: F,
    ) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let scheduled = Arc::clone(pool);
        // Wakes come from aborts only: a closure is polled once.
        let schedule = move |runnable| scheduled.enqueue(runnable, &runtime);
        let (runnable, handle) =
            task_cell::spawn(&pool.live, site.into(), async move { work() }, schedule);
        if let Some(runnable) = runnable {
            runnable.schedule();
        }
        handle
    }

    fn enqueue(self: &Arc<Self>, runnable: Runnable, runtime: &Handle) {
        let mut state = self.lock();
        if state.is_shutdown {
            drop(state);
            // Cancels the task.
            drop(runnable);
            return;
        }
        state.queue.push_back(runnable);
        if state.idle_count >= state.queue.len() {
            self.has_work.notify_one();
            return;
        }
        if state.thread_count >= self.threads_max {
            return;
        }
        let pool = Arc::clone(self);
        let runtime = runtime.clone();
        let spawned = thread::Builder::new()
            .name("vigie-blocking".to_owned())
            .spawn(move || pool.run(runtime));
        match spawned {
            Ok(thread) => {
                state.thread_count += 1;
                // Ended threads were joined by nobody yet: their handles go first.
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
            }
        }
    }

    fn run(&self, runtime: Handle) {
        let _entered = context::enter(runtime);
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

    /// Cancels closures that have not begun; running ones end by themselves.
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

    fn lock(&self) -> RealGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
